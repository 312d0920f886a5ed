//! What is to run: the user's wishes, and what was settled of them before anything is started.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_api::Object;
use evenkeel_base::Diagnostics;

use crate::applied::Applied;
use crate::cleanup::StateDir;
use crate::pages::HostPages;
use crate::ports::{HostPort, HostSockets, PortChoice};
use crate::tools::Tools;
use crate::workloads::Manifest;

/// What `up` is asked to do.
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
    /// Worker threads of each sidecar.
    pub sidecar_concurrency: u32,
    /// Level of the control plane's and the proxies' own logs, e.g. `warning`.
    pub log_level: String,
    /// Whether there is a way out of the mesh: to the machine, and to what it reaches.
    pub egress: bool,
    /// How long in-flight requests may take at the end.
    pub drain_time: Duration,
    /// Says what proxies would refuse of these objects.
    pub compile: fn(&[Object]) -> Diagnostics,
}

/// All that was settled before the namespaces were entered.
#[derive(Debug)]
pub struct Plan {
    /// The user's wishes.
    pub options: Options,
    /// The directory that runs: the user's, or a check's copy.
    pub directory: PathBuf,
    /// What was applied over it; a check's copy has nothing.
    pub applied: Option<Applied>,
    /// What is in them.
    pub manifest: Manifest,
    /// Sockets on the host.
    pub host_ports: Vec<HostPort>,
    /// A socket on the host for the control plane's pages.
    pub host_pages: HostPages,
    /// Unconnected sockets of the host's network, with which a check calls in from outside.
    pub callers: HostSockets,
    /// Where the keeper is asked for sockets of the host's network; none: there is no way out.
    pub outside: Option<OwnedFd>,
    /// Where the keeper is asked for sockets that listen in the host's network.
    pub ports_broker: OwnedFd,
    /// `ip` and `nft`.
    pub tools: Tools,
    /// Where state goes.
    pub state: StateDir,
}

impl Plan {
    /// The directories that say what runs: what was applied to the mesh comes last.
    pub fn configuration(&self) -> Vec<PathBuf> {
        let applied = self.applied.iter().map(|applied| applied.folder().to_owned());
        std::iter::once(self.directory.clone()).chain(applied).collect()
    }
}
