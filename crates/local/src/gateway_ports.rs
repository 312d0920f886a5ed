//! Ports of Gateways that are added and removed while the mesh runs.
//!
//! A gateway gets its listening sockets when it starts and no more later. Connections to ports that are added later
//! are therefore forwarded to one of its replicas from inside its network, so that they come from 127.0.0.1 like all others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::egress::broker_client::BrokerClient;
use crate::gateway_datagrams;
use crate::gateway_reach::Reach;
use crate::plan::Plan;
use crate::ports::{GatewayPort, HostPort, PortKey};
use crate::replica::Replicas;
use crate::running;
use evenkeel_model::PublishedPort;

/// Connections forwarded for one port at a time; more wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 1024;
/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The ports of Gateways that are open on this machine.
#[derive(Debug)]
pub(crate) struct GatewayPorts {
    plan: Arc<Plan>,
    broker: BrokerClient,
    /// Ports from the start that no Gateway has any more.
    closed: BTreeSet<PortKey>,
    forwarded: BTreeMap<PortKey, ForwardedPort>,
}

/// A port that was added later and is forwarded.
#[derive(Debug)]
struct ForwardedPort {
    port: HostPort,
    forwarding: JoinHandle<()>,
}

impl Drop for ForwardedPort {
    fn drop(&mut self) {
        self.port.close();
        self.forwarding.abort();
    }
}

impl GatewayPorts {
    /// The ports at the start. Must be called within a runtime.
    pub(crate) fn new(plan: Arc<Plan>) -> io::Result<Self> {
        let broker = BrokerClient::new(plan.ports_broker.try_clone()?)?;
        Ok(Self { plan, broker, closed: BTreeSet::new(), forwarded: BTreeMap::new() })
    }

    /// The command with which each open port can be reached.
    pub(crate) fn lines(&self) -> Vec<String> {
        let open: Vec<&HostPort> = self.open_ports().collect();
        let moved = open.iter().filter(|port| port.address.port() != port.gateway.number);
        let moved: Vec<String> =
            moved.map(|port| format!("{} of the Gateway is {}", port.gateway.number, port.address.port())).collect();
        let note = (!moved.is_empty()).then(|| format!("on this machine's loopback, port {}", moved.join(", port ")));
        open.into_iter().map(HostPort::usage).chain(note).collect()
    }

    /// The ports that are open.
    fn open_ports(&self) -> impl Iterator<Item = &HostPort> {
        let first = self.plan.host_ports.iter().filter(|port| !self.closed.contains(&port.gateway.key()));
        first.chain(self.forwarded.values().map(|forwarded| &forwarded.port))
    }

    /// Writes down for the other commands which ports of connections are open.
    pub(crate) fn record(&self) -> io::Result<()> {
        let of_tcp = self.open_ports().filter(|port| !port.gateway.is_udp());
        let open: Vec<PublishedPort> = of_tcp.map(running::published).collect();
        self.plan.state.publish_ports(&open)
    }

    /// Opens and closes ports as Gateways now require; returns messages about it.
    pub(crate) async fn follow(&mut self, wanted: &[GatewayPort], replicas: &watch::Receiver<Replicas>) -> Vec<String> {
        let mut said = Vec::new();
        let is_wanted = |key: &PortKey| wanted.iter().any(|port| port.key() == *key);
        let closes = |port: &HostPort| {
            format!("{} is closed: no Gateway has port {} any more", port.address, port.gateway.number)
        };
        for forwarded in self.forwarded.extract_if(.., |key, _| !is_wanted(key)) {
            said.push(closes(&forwarded.1.port));
        }
        for port in &self.plan.host_ports {
            let key = port.gateway.key();
            if !is_wanted(&key) && self.closed.insert(key) {
                port.close();
                said.push(closes(port));
            }
        }
        for port in wanted {
            match self.open(port, replicas).await {
                Ok(None) => {}
                Ok(Some(usage)) => said.push(format!("{}: port {} is open: {usage}", port.span, port.number)),
                Err(error) => said.push(format!("error: {error}")),
            }
        }
        if let Err(error) = self.record() {
            said.push(format!("error: other commands do not know the gateways' ports: {error}"));
        }
        said
    }

    /// Opens a port unless it is open; returns the command with which to reach it.
    async fn open(
        &mut self,
        port: &GatewayPort,
        replicas: &watch::Receiver<Replicas>,
    ) -> Result<Option<String>, crate::ports::PortError> {
        let key = port.key();
        if let Some(known) = self.plan.host_ports.iter().find(|known| known.gateway.key() == key) {
            if !self.closed.contains(&key) {
                return Ok(None);
            }
            known.reopen().map_err(|error| port.taken(known.address.port(), &error))?;
            self.closed.remove(&key);
            return Ok(Some(known.usage()));
        }
        if self.forwarded.contains_key(&key) {
            return Ok(None);
        }
        let first = self.plan.host_ports.is_empty() && self.forwarded.is_empty();
        let host = port.on_host(first, &self.plan.options.gateway_ports, &self.open_on_host(port.is_udp()));
        if port.is_udp() {
            return self.open_datagrams(port, host, replicas).await.map(Some);
        }
        let opened = async {
            let socket = self.broker.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, host))).await?;
            let opened = HostPort::of(port, socket)?;
            Ok((TcpListener::from_std(opened.listener()?)?, opened))
        };
        let (socket, opened) = opened.await.map_err(|error: io::Error| port.taken(host, &error))?;
        let usage = opened.usage();
        let forwarding = tokio::spawn(serve(socket, replicas.clone(), port.clone()));
        self.forwarded.insert(key, ForwardedPort { port: opened, forwarding });
        Ok(Some(usage))
    }

    async fn open_datagrams(
        &mut self,
        port: &GatewayPort,
        host: u16,
        replicas: &watch::Receiver<Replicas>,
    ) -> Result<String, crate::ports::PortError> {
        let opened = async {
            let socket = self.broker.datagrams(SocketAddr::from((Ipv4Addr::LOCALHOST, host))).await?;
            let opened = HostPort::of_datagrams(port, &socket)?;
            Ok((UdpSocket::from_std(socket)?, opened))
        };
        let (socket, opened) = opened.await.map_err(|error: io::Error| port.taken(host, &error))?;
        let usage = opened.usage();
        let reach = Reach { replicas: replicas.clone(), owner: port.owner.clone(), listener: port.listener, turn: 0 };
        let forwarding = tokio::spawn(gateway_datagrams::serve(socket, reach));
        self.forwarded.insert(port.key(), ForwardedPort { port: opened, forwarding });
        Ok(usage)
    }

    /// The machine's ports of a transport that are open.
    fn open_on_host(&self, is_udp: bool) -> BTreeSet<u16> {
        self.open_ports().filter(|port| port.gateway.is_udp() == is_udp).map(|port| port.address.port()).collect()
    }
}

/// Forwards connections to the gateway until aborted.
async fn serve(socket: TcpListener, replicas: watch::Receiver<Replicas>, port: GatewayPort) {
    let mut turn: usize = 0;
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(slot) = slots.clone().acquire_owned().await {
        match socket.accept().await {
            Ok((stream, _)) => {
                let (replicas, owner, listener) = (replicas.clone(), port.owner.clone(), port.listener);
                turn = turn.wrapping_add(1);
                tokio::spawn(async move {
                    forward(stream, Reach { replicas, owner, listener, turn }).await;
                    drop(slot);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Forwards one connection. There is no idle timeout here, because the gateway has its own.
async fn forward(mut from: TcpStream, reach: Reach) {
    if let Ok(mut to) = reach.connect().await {
        let _ = (from.set_nodelay(true), to.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
    }
}
