//! The servers of the active agent itself: DNS, and gRPC programs that need no proxy.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_proxy::HotRestartState;
use evenkeel_tls::SecretStore;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::dns::{self, Forwarder, Names};
use crate::handover::{DNS_TCP, DNS_UDP, GRPC, Inherited, STATUS, while_held};
use crate::names::TrustPath;
use crate::options::Options;
use crate::status_port::StatusPort;
use crate::trust::ControlPlaneRoots;
use crate::{Task, grpc, names, node_message, resolv_conf};

/// Maximum duration of a DNS lookup: the wait for the control plane plus that for the resolvers.
const MAX_LOOKUP: Duration = Duration::from_secs(8);
/// How often it is checked whether the names of the mesh have arrived.
const NAMES_POLL: Duration = Duration::from_millis(5);

/// The DNS proxy, running.
pub(crate) struct Dns {
    pub(crate) names: Names,
    server: Arc<dns::Server>,
    _task: Task,
}

impl Dns {
    /// Starts the DNS proxy, if the options ask for one, on the previous agent's sockets or on new ones.
    pub(crate) async fn start(
        options: &Options,
        inherited: Option<&mut Inherited>,
        state: &watch::Sender<HotRestartState>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(address) = options.dns() else { return Ok(None) };
        let names = if options.learns() { Names::learned(&options.cluster_domain) } else { Names::default() };
        let forwarder = Forwarder::new(resolv_conf::resolvers(&options.resolv_conf, address), options.mark());
        let handed = inherited.map(Inherited::take_dns).transpose()?.flatten();
        let server = match handed {
            Some((udp, tcp)) if udp.local_addr().is_ok_and(|bound| bound == address) => {
                dns::Server::adopt(udp, tcp, names.clone(), forwarder)
            }
            _ => dns::Server::bind(address, names.clone(), forwarder).await?,
        };
        let server = Arc::new(server);
        let serving = server.clone();
        let task = Task::spawn(while_held(state.subscribe(), move || serving.clone().run()));
        Ok(Some(Self { names, server, _task: task }))
    }

    /// Waits until this proxy has the names to answer as well as the previous agent.
    pub(crate) async fn has_names(&self) {
        while !self.names.are_ready() {
            sleep(NAMES_POLL).await;
        }
    }

    /// Waits until queries in progress are answered.
    pub(crate) async fn finish(&self) {
        _ = timeout(MAX_LOOKUP, self.server.finish()).await;
    }

    /// Duplicates of its descriptors for UDP and TCP.
    pub(crate) fn sockets(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        self.server.sockets()
    }
}

/// Starts the agent's stream: the control plane's names, if somebody asks for them, and its roots.
pub(crate) fn follow(
    options: &Options,
    dns: Option<&Dns>,
    store: &SecretStore,
    trust: TrustPath,
) -> anyhow::Result<Task> {
    let (node, names) = (node_message(options)?, dns.map(|dns| dns.names.clone()));
    Ok(Task::spawn(names::follow(options.clone(), node, store.clone(), names, trust)))
}

/// The running relay for gRPC programs.
pub(crate) struct GrpcServer {
    relay: Arc<grpc::GrpcRelay>,
    _task: Task,
}

impl GrpcServer {
    /// Opens the relay, if the options ask for it, on the previous agent's socket or on a new one.
    pub(crate) fn start(
        options: &Options,
        inherited: Option<&mut Inherited>,
        verified: (&SecretStore, &ControlPlaneRoots),
        state: &watch::Sender<HotRestartState>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(file) = &options.grpc_bootstrap else { return Ok(None) };
        let handed = inherited.map(Inherited::take_grpc).transpose()?.flatten();
        let relay = Arc::new(grpc::GrpcRelay::open(file, handed, options, verified, state.subscribe())?);
        let serving = relay.clone();
        let task = Task::spawn(while_held(state.subscribe(), move || serving.clone().run()));
        Ok(Some(Self { relay, _task: task }))
    }

    /// A duplicate of the socket's descriptor.
    pub(crate) fn socket(&self) -> std::io::Result<OwnedFd> {
        self.relay.socket()
    }
}

/// The sockets of all of them, for the next agent.
pub(crate) fn sockets(
    dns: Option<&Dns>,
    grpc: Option<&GrpcServer>,
    status: Option<&StatusPort>,
) -> std::io::Result<Vec<(String, OwnedFd)>> {
    let mut sockets = Vec::new();
    if let Some(dns) = dns {
        let (udp, tcp) = dns.sockets()?;
        sockets.extend([(DNS_UDP.to_owned(), udp), (DNS_TCP.to_owned(), tcp)]);
    }
    if let Some(grpc) = grpc {
        sockets.push((GRPC.to_owned(), grpc.socket()?));
    }
    if let Some(status) = status {
        sockets.push((STATUS.to_owned(), status.socket()?));
    }
    Ok(sockets)
}
