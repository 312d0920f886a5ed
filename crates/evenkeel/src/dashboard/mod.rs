//! `evenkeel dashboard`: the address of the running mesh's dashboard, for a browser; that of a cluster's mesh runs in this process.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use clap::Args;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::dashboard;

use crate::in_cluster::ControlPlaneChoice;
use crate::manifests::Manifests;

mod source;

/// The program that opens an address in the user's browser (xdg-utils).
const OPENER: &str = "xdg-open";

#[derive(Debug, Args)]
pub struct DashboardArguments {
    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// The mesh of a cluster, whose dashboard runs until Ctrl-C [default: the mesh that runs on this machine, or else that of the cluster
    /// that kubectl would use].
    #[command(flatten)]
    in_cluster: ControlPlaneChoice,

    /// In a cluster: show the Pods of this namespace [default: those of all, 200 at most].
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Also open it in the browser (xdg-open).
    #[arg(long)]
    open: bool,
}

/// Prints the address, and opens it if that is wanted.
pub fn run(arguments: &DashboardArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    if is_of_cluster(&arguments.in_cluster, arguments.state.as_ref()) {
        let address = serve(&arguments.in_cluster, arguments.namespace.as_deref())?;
        arguments.show(address, out)?;
        out.flush()?;
        loop {
            std::thread::park();
        }
    }
    let state = arguments.state.clone().unwrap_or_else(StateDir::default_path);
    let address = dashboard::of_run(&state).with_context(|| {
        let state = state.display();
        format!("no mesh is running with the state directory {state}; start one: evenkeel up DIR, or name its directory: --state DIR")
    })?;
    arguments.show(address, out)?;
    Ok(0)
}

/// Whether the mesh of a cluster is meant: it is named, or nothing else is named or runs on this machine.
pub fn is_of_cluster(in_cluster: &ControlPlaneChoice, state: Option<&PathBuf>) -> bool {
    let is_usual = || state.is_none() && in_cluster.cluster.is_named() && !Manifests::is_running(None);
    in_cluster.cluster.is_given() || is_usual()
}

/// Starts the dashboard of a cluster's mesh on this machine's loopback. It runs as long as this process.
pub fn serve(in_cluster: &ControlPlaneChoice, namespace: Option<&str>) -> anyhow::Result<SocketAddr> {
    let source = source::ClusterSource::start(in_cluster, namespace)?;
    let listener = dashboard::bind().context("no port of the loopback can be opened")?;
    let address = listener.local_addr()?;
    crate::in_cluster::runtime()?.spawn(evenkeel_dashboard::server::serve(listener, source));
    Ok(address)
}

impl DashboardArguments {
    fn show(&self, address: SocketAddr, out: &mut dyn Write) -> anyhow::Result<()> {
        let url = format!("http://{address}/");
        writeln!(out, "{url}")?;
        if self.open {
            let mut opener = Command::new(OPENER);
            opener.arg(&url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            opener.spawn().with_context(|| format!("{OPENER} cannot be run; open {url} yourself"))?;
        }
        Ok(())
    }
}
