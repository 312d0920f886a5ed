//! `evenkeel istio-iptables`: loads the rules that redirect a Pod's connections to its proxy, in the network that it is started in.
//! The init container of injected Pods runs it; its flags are those of Istio's command of this name.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Context;
use evenkeel_capture::{Capture, Family, Ruleset, iptables, nftables};
use evenkeel_local::tools::{self, Loader};

use crate::capture_probe;

/// The system's name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How long a connection to the own machine may take.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Exit status of a Pod without rules, as Istio's: who repairs such Pods finds them by it.
const VALIDATION_FAILED: u8 = 126;

/// Flags of `evenkeel istio-iptables`.
#[derive(Debug, clap::Args)]
pub struct CaptureArguments {
    /// Print the rules and load nothing.
    #[arg(long)]
    dry_run: bool,

    /// Load nothing; a CNI plugin has loaded the rules.
    #[arg(long)]
    skip_rule_apply: bool,

    /// Fail, with exit status 126 as Istio's command, if outbound connections of this process are not captured.
    #[arg(long)]
    run_validation: bool,

    /// Flags of Istio's `istio-iptables`, such as `-p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -b '*' -d 15090,15021,15020`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

/// Loads the rules with nftables, or with iptables where there is no `nft`. Rules of an earlier start are replaced.
pub fn run(arguments: &CaptureArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let capture = Capture::from_arguments(arguments.flags.iter().map(String::as_str), &name_servers())?;
    if arguments.dry_run {
        for ruleset in capture.rulesets() {
            out.write_all(nftables::render(&ruleset).as_bytes())?;
        }
        return Ok(0);
    }
    if !arguments.skip_rule_apply {
        load(&capture)?;
    }
    if arguments.run_validation {
        return validate(&capture, out);
    }
    Ok(0)
}

/// Loads the rules in the network of the calling thread.
pub fn load(capture: &Capture) -> anyhow::Result<()> {
    let capture = for_network(capture.clone());
    let loader = Loader::find()?;
    for ruleset in capture.rulesets() {
        let is_v6 = ruleset.family == Family::V6;
        loader.add_routes(&capture.routes(ruleset.family), is_v6).context("routes of captured connections")?;
        load_ruleset(&loader, &ruleset, is_v6)?;
    }
    Ok(())
}

/// What is captured in the network of the calling thread: with an IPv6 address there, IPv6 as well, whatever the arguments say. Otherwise
/// everything by IPv6 would pass the sidecar by.
pub fn for_network(capture: Capture) -> Capture {
    Capture { ipv6: capture.ipv6 || capture_probe::has_ipv6(), ..capture }
}

/// Whether outbound connections of this process arrive where the proxy will listen.
fn validate(capture: &Capture, out: &mut dyn Write) -> anyhow::Result<u8> {
    let capture = for_network(capture.clone());
    let mut verified = Vec::new();
    for family in [Family::V4, Family::V6].into_iter().filter(|family| *family == Family::V4 || capture.ipv6) {
        let Some(target) = captured_target(&capture, family) else { continue };
        let name = if family == Family::V4 { "IPv4" } else { "IPv6" };
        if !is_captured(&capture, target)? {
            let reason = "outbound connections are not captured: the CNI plugin has not loaded the Pod's rules. Does its agent \
                          (DaemonSet) run on this node, and is `evenkeel-cni` in the node's /etc/cni/net.d/*.conflist? The agent \
                          repairs the Pod, unless `repair` is off in the chart `cni`; then the Pod has to be deleted";
            writeln!(out, "error: {name}: {reason}")?;
            return Ok(VALIDATION_FAILED);
        }
        verified.push(name);
    }
    if verified.is_empty() {
        writeln!(out, "not verified: the Pod captures no outbound connection")?;
    } else {
        writeln!(out, "verified: outbound connections are captured ({})", verified.join(", "))?;
    }
    Ok(0)
}

/// Whether a connection to an address arrives where the proxy will listen.
fn is_captured(capture: &Capture, target: SocketAddr) -> anyhow::Result<bool> {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let place = SocketAddr::from((any, capture.ports.outbound));
    let listener = TcpListener::bind(place).with_context(|| format!("cannot listen on {place}"))?;
    match TcpStream::connect_timeout(&target, VALIDATION_TIMEOUT) {
        Ok(stream) => Ok(arrives(&listener, stream.local_addr()?)?),
        // Without a route nothing leaves the Pod by IPv6.
        Err(error) => Ok(target.is_ipv6() && error.kind() == io::ErrorKind::NetworkUnreachable),
    }
}

/// Whether a connection from this address has come.
fn arrives(listener: &TcpListener, from: SocketAddr) -> io::Result<bool> {
    // It is established, so it waits in the queue if it came here.
    listener.set_nonblocking(true)?;
    while let Ok((_, peer)) = listener.accept() {
        if peer == from {
            return Ok(true);
        }
    }
    Ok(false)
}

/// An address, with nobody behind it, to which connections are captured.
fn captured_target(capture: &Capture, family: Family) -> Option<SocketAddr> {
    let address = capture_probe::address(capture, family)?;
    let port = (1..).find(|port| !capture.rules.except_outbound_ports.contains(port))?;
    Some((address, port).into())
}

fn load_ruleset(loader: &Loader, ruleset: &Ruleset, is_v6: bool) -> Result<(), tools::ToolError> {
    match loader {
        Loader::Nftables { .. } => loader.load(&nftables::replace(ruleset), is_v6),
        Loader::Iptables { .. } => loader.load(&iptables::render(ruleset), is_v6),
    }
}

/// The addresses that the Pod sends its queries to.
pub fn name_servers() -> Vec<IpAddr> {
    let text = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let address = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse().ok();
    text.lines().filter_map(address).collect()
}
