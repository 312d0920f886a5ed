//! What the agent serves itself: DNS, and programs that need no proxy. It does so while it holds its place.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_proxy::Place;
use evenkeel_tls::SecretStore;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::dns::{self, Forwarder, Names};
use crate::handover::{DNS_TCP, DNS_UDP, GRPC, Inherited, while_held};
use crate::options::Options;
use crate::{Task, grpc, names, node_message, resolv_conf};

/// How long a lookup of DNS takes at most: it waits for the control plane, and for the resolvers.
const MAX_LOOKUP: Duration = Duration::from_secs(8);
/// Pause between two looks whether the names of the mesh are there.
const NAMES_POLL: Duration = Duration::from_millis(5);

/// The DNS proxy, running.
pub(crate) struct Dns {
    pub(crate) names: Names,
    server: Arc<dns::Server>,
    _task: Task,
}

impl Dns {
    /// Starts it, if the options ask for one, on the sockets of the agent before or on new ones.
    pub(crate) async fn start(
        options: &Options,
        inherited: Option<&mut Inherited>,
        place: &watch::Sender<Place>,
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
        let task = Task::spawn(while_held(place.subscribe(), move || serving.clone().run()));
        Ok(Some(Self { names, server, _task: task }))
    }

    /// Follows the control plane's names.
    pub(crate) fn follow(&self, options: &Options, store: &SecretStore) -> anyhow::Result<Task> {
        let (node, names) = (node_message(options)?, self.names.clone());
        Ok(Task::spawn(names::follow(options.clone(), node, store.clone(), names)))
    }

    /// Waits until it can answer as well as the agent before.
    pub(crate) async fn has_names(&self) {
        while !self.names.are_ready() {
            sleep(NAMES_POLL).await;
        }
    }

    /// Waits for answers to those who have asked.
    pub(crate) async fn finish(&self) {
        _ = timeout(MAX_LOOKUP, self.server.finish()).await;
    }

    /// Other handles of its sockets, for UDP and TCP.
    pub(crate) fn sockets(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        self.server.sockets()
    }
}

/// The way of gRPC programs to the control plane, open.
pub(crate) struct GrpcServer {
    relay: Arc<grpc::GrpcRelay>,
    _task: Task,
}

impl GrpcServer {
    /// Opens it, if the options ask for it, on the socket of the agent before or on a new one.
    pub(crate) fn start(
        options: &Options,
        inherited: Option<&mut Inherited>,
        store: &SecretStore,
        place: &watch::Sender<Place>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(file) = &options.grpc_bootstrap else { return Ok(None) };
        let handed = inherited.map(Inherited::take_grpc).transpose()?.flatten();
        let relay = Arc::new(grpc::GrpcRelay::open(file, handed, options, store, place.subscribe())?);
        let serving = relay.clone();
        let task = Task::spawn(while_held(place.subscribe(), move || serving.clone().run()));
        Ok(Some(Self { relay, _task: task }))
    }

    /// Another handle of the socket.
    pub(crate) fn socket(&self) -> std::io::Result<OwnedFd> {
        self.relay.socket()
    }
}

/// Their sockets for the next agent.
pub(crate) fn sockets(dns: Option<&Dns>, grpc: Option<&GrpcServer>) -> std::io::Result<Vec<(String, OwnedFd)>> {
    let mut sockets = Vec::new();
    if let Some(dns) = dns {
        let (udp, tcp) = dns.sockets()?;
        sockets.extend([(DNS_UDP.to_owned(), udp), (DNS_TCP.to_owned(), tcp)]);
    }
    if let Some(grpc) = grpc {
        sockets.push((GRPC.to_owned(), grpc.socket()?));
    }
    Ok(sockets)
}
