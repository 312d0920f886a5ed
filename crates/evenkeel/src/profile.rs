//! `evenkeel profile`: where the CPU time of a live proxy or control plane goes, or what it allocates.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use evenkeel_profile::{MAX_SECONDS, PREFIX, Profile, svg};

use crate::admin;
use crate::in_cluster::{ControlPlaneChoice, ControlPlaneName};
use crate::proxy_config;
use crate::proxy_config::target::ProxyChoice;

pub const EXAMPLES: &str = "\
Examples:
  evenkeel profile web                       web.cpu.svg, a flame graph, and web.cpu.pb.gz, for `go tool pprof`
  evenkeel profile web --heap --seconds 60   what the proxy has allocated in a minute, and what of it it still holds
  evenkeel profile --control-plane           the control plane of the running mesh";

/// Which program, what, and for how long.
#[derive(Debug, Args)]
pub struct ProfileArguments {
    #[command(flatten)]
    proxy: ProxyChoice,

    /// Profile a control plane: that of the running mesh or of the cluster, or the one with this HTTP port.
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address, num_args = 0..=1, require_equals = true,
        conflicts_with_all = ["workload", "namespace", "admin"])]
    control_plane: Option<Option<SocketAddr>>,

    #[command(flatten)]
    control_plane_name: ControlPlaneName,

    /// Record what is allocated instead of where CPU time goes.
    #[arg(long)]
    heap: bool,

    /// How long to record.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    seconds: u64,

    /// Path of both files without their endings [default: NAME.cpu or NAME.heap].
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

/// Records, writes both files, and prints their names.
pub fn run(arguments: &ProfileArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let kind = if arguments.heap { "heap" } else { "profile" };
    let bytes = fetch(arguments, &format!("{PREFIX}{kind}?seconds={}", arguments.seconds))?;
    let profile =
        Profile::read(&bytes).context("the answer is no profile: it is another program, or another version")?;
    let name = name(arguments);
    let title = format!("{name}, {} s", arguments.seconds);
    let path = arguments.output.clone().unwrap_or_else(|| {
        PathBuf::from(format!("{}.{}", name.replace('/', "-"), if arguments.heap { "heap" } else { "cpu" }))
    });
    for (ending, content) in [("svg", svg(&profile, &title).as_bytes()), ("pb.gz", &bytes)] {
        let mut path = path.clone().into_os_string();
        path.push(format!(".{ending}"));
        std::fs::write(&path, content).with_context(|| PathBuf::from(&path).display().to_string())?;
        writeln!(out, "{}", PathBuf::from(path).display())?;
    }
    for note in profile.notes() {
        writeln!(out, "{note}")?;
    }
    Ok(0)
}

fn fetch(arguments: &ProfileArguments, page: &str) -> anyhow::Result<Vec<u8>> {
    if let Some(address) = arguments.control_plane {
        let (cluster, name) = (arguments.proxy.cluster().clone(), arguments.control_plane_name.clone());
        let (state, in_cluster) = (arguments.proxy.state.as_deref(), ControlPlaneChoice { cluster, name });
        let address = admin::control_plane(address, state, &in_cluster)?;
        return admin::get_within(proxy_config::patience(page), admin::CONTROL_PLANE, address, page);
    }
    arguments.proxy.exchange(page, None)
}

/// What the program is called in the files.
fn name(arguments: &ProfileArguments) -> String {
    match (&arguments.proxy.workload, arguments.control_plane) {
        (_, Some(_)) => "control-plane".to_owned(),
        (Some(workload), None) => workload.clone(),
        (None, None) => "proxy".to_owned(),
    }
}
