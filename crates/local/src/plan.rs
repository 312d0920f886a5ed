//! The plan of a run: the user's options, and the decisions made from them before anything is started.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_api::Object;
use evenkeel_base::Diagnostics;
use evenkeel_control::SignerOptions;

use crate::applied::Applied;
use crate::cleanup::StateDir;
use crate::dashboard::DashboardPort;
use crate::metrics_pages::MetricsPages;
use crate::pages::HostPages;
use crate::ports::{HostPort, HostSockets, PortChoice};
use crate::tools::Tools;
use crate::workloads::Manifest;

/// The options of `up`.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory with the YAML to run.
    pub directory: PathBuf,
    /// State directory; `--check` makes a temporary one if none is given, otherwise [`StateDir::default_path`].
    pub state: Option<PathBuf>,
    /// Ports on 127.0.0.1 for the Gateways' ports.
    pub gateway_ports: Vec<PortChoice>,
    /// Run the scenario once and exit.
    pub check: bool,
    /// Trust domain of all identities.
    pub trust_domain: String,
    /// Folder with the operator's certificate authority.
    pub ca_certs: Option<PathBuf>,
    /// The external signer of the workloads' certificates, if there is one.
    pub signer: SignerOptions,
    /// Worker threads of each sidecar.
    pub sidecar_concurrency: u32,
    /// Level of the control plane's and the proxies' own logs, e.g. `warning`.
    pub log_level: String,
    /// Whether replicas can reach destinations outside the mesh: the machine, and what it can reach.
    pub egress: bool,
    /// Whether refused security objects are left out, instead of closing what they would have judged.
    pub leave_out_refused: bool,
    /// Run a Prometheus that scrapes the mesh.
    pub with_prometheus: bool,
    /// Recent requests that each worker of a proxy keeps; 0: none.
    pub recent_requests: usize,
    /// Names of variables that programs get from `up`'s environment.
    pub passed_variables: Vec<String>,
    /// How long in-flight requests may take at the end.
    pub drain_time: Duration,
    /// Finds what proxies would refuse of these objects.
    pub compile: fn(&[Object]) -> Diagnostics,
}

/// All decisions made before the namespaces were entered.
#[derive(Debug)]
pub struct Plan {
    /// The user's options.
    pub options: Options,
    /// The directory that runs: the user's, or a check's copy.
    pub directory: PathBuf,
    /// Objects applied over it; `None` for a check's copy.
    pub applied: Option<Applied>,
    /// The content of both.
    pub manifest: Manifest,
    /// Sockets on the host.
    pub host_ports: Vec<HostPort>,
    /// A socket on the host for the control plane's pages.
    pub host_pages: HostPages,
    /// A socket on the host for the dashboard.
    pub dashboard: DashboardPort,
    /// A socket on the host for the metrics of all proxies.
    pub metrics_pages: MetricsPages,
    /// The URL of the Prometheus that scrapes the mesh, if there is one.
    pub prometheus: Option<String>,
    /// Unconnected sockets of the host's network, with which a check calls in from outside.
    pub callers: HostSockets,
    /// The channel to the keeper for connections from the host's network; `None` without egress.
    pub egress_broker: Option<OwnedFd>,
    /// The channel to the keeper for listening sockets in the host's network.
    pub ports_broker: OwnedFd,
    /// `ip` and `nft`.
    pub tools: Tools,
    /// The state directory.
    pub state: StateDir,
}

impl Plan {
    /// The folder of the operator's certificate authority.
    pub fn authority(&self) -> Option<PathBuf> {
        let folder = self.options.ca_certs.as_ref()?;
        Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()))
    }

    /// The configuration directories; that of applied objects comes last.
    pub fn configuration(&self) -> Vec<PathBuf> {
        let applied = self.applied.iter().map(|applied| applied.folder().to_owned());
        std::iter::once(self.directory.clone()).chain(applied).collect()
    }
}
