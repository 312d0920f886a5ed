//! `evenkeel istio-iptables`: loads the rules that redirect a Pod's connections to its proxy, in the network that it is started in.
//! The init container of injected Pods runs it; its flags are those of Istio's command of this name.

use std::io::Write;
use std::net::IpAddr;

use anyhow::Context;
use evenkeel_capture::{Capture, Family, Ruleset, iptables, nftables};
use evenkeel_local::tools::{self, Loader};

/// The system's name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Flags of `evenkeel istio-iptables`.
#[derive(Debug, clap::Args)]
pub struct CaptureArguments {
    /// Print the rules and load nothing.
    #[arg(long)]
    dry_run: bool,

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
    let loader = Loader::find()?;
    for ruleset in capture.rulesets() {
        let is_v6 = ruleset.family == Family::V6;
        loader.add_routes(&capture.routes(ruleset.family), is_v6).context("routes of captured connections")?;
        load(&loader, &ruleset, is_v6)?;
    }
    Ok(0)
}

fn load(loader: &Loader, ruleset: &Ruleset, is_v6: bool) -> Result<(), tools::ToolError> {
    match loader {
        Loader::Nftables { .. } => loader.load(&nftables::replace(ruleset), is_v6),
        Loader::Iptables { .. } => loader.load(&iptables::render(ruleset), is_v6),
    }
}

/// The addresses that the Pod sends its queries to.
fn name_servers() -> Vec<IpAddr> {
    let text = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let address = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse().ok();
    text.lines().filter_map(address).collect()
}
