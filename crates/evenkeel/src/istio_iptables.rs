//! `evenkeel istio-iptables`: loads the rules that redirect a Pod's connections to its proxy, in the network that it is started in.
//! The init container of injected Pods runs it; its flags are those of Istio's command of this name.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Context;
use evenkeel_capture::{Capture, Family, Ruleset, iptables, nftables};
use evenkeel_local::tools::{self, Loader};

/// The system's name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// An address of documentation (RFC 5737), which nobody has.
const UNUSED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
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
    let loader = Loader::find()?;
    for ruleset in capture.rulesets() {
        let is_v6 = ruleset.family == Family::V6;
        loader.add_routes(&capture.routes(ruleset.family), is_v6).context("routes of captured connections")?;
        load_ruleset(&loader, &ruleset, is_v6)?;
    }
    Ok(())
}

/// Whether an outbound connection of this process arrives where the proxy will listen.
fn validate(capture: &Capture, out: &mut dyn Write) -> anyhow::Result<u8> {
    let Some(target) = captured_target(capture) else {
        writeln!(out, "not verified: the Pod captures no outbound connection")?;
        return Ok(0);
    };
    let place = SocketAddr::from((Ipv4Addr::UNSPECIFIED, capture.ports.outbound));
    let listener = TcpListener::bind(place).with_context(|| format!("cannot listen on {place}"))?;
    match TcpStream::connect_timeout(&target, VALIDATION_TIMEOUT) {
        Ok(stream) if arrives(&listener, stream.local_addr()?)? => {
            writeln!(out, "verified: outbound connections are captured")?;
            Ok(0)
        }
        _ => {
            let reason = "outbound connections are not captured: the CNI plugin has not loaded the Pod's rules. Does its agent \
                          (DaemonSet) run on this node, and is `evenkeel-cni` in the node's /etc/cni/net.d/*.conflist? The Pod has to be \
                          deleted, as the rules are loaded before its first container starts";
            writeln!(out, "error: {reason}")?;
            Ok(VALIDATION_FAILED)
        }
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
fn captured_target(capture: &Capture) -> Option<SocketAddr> {
    let excluded = |address: IpAddr| capture.rules.except_outbound_ranges.iter().any(|range| range.contains(&address));
    let candidates: Vec<IpAddr> = match &capture.rules.outbound_ranges {
        None => vec![UNUSED.into()],
        Some(ranges) => ranges.iter().map(|range| range.addr()).filter(IpAddr::is_ipv4).collect(),
    };
    let address = candidates.into_iter().find(|address| !excluded(*address))?;
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
