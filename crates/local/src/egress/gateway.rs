//! Accepts connections that leave the mesh, and forwards their bytes.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_agent::dns::Table;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::EgressError;
use super::broker_client::BrokerClient;
use super::hosts::{MachineNames, is_machine};
use super::rules::{self, MACHINE, PLAIN_PORT, PROXIES_PORT, RESERVED, SERVICES, network};
use super::services::{ServiceSnapshot, Services};
use crate::addresses::BRIDGE_ADDRESS;
use crate::cluster::is_in_mesh;

/// The most simultaneous connections of the whole mesh. Each takes two descriptors. Further ones are reset.
pub const MAX_CONNECTIONS: usize = 4096;
/// The most simultaneous connections of one replica, so that no replica uses up the total. Further ones are reset.
pub const MAX_CONNECTIONS_PER_REPLICA: usize = 1024;
/// The backlog of listening sockets, in connections.
const BACKLOG: u32 = 1024;
/// The buffer of each direction of a connection, in bytes.
const BUFFER_BYTES: usize = 16 * 1024;
/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// TCP keep-alive: the idle time in seconds, the number of probes, and their interval in seconds.
const KEEP_ALIVE: (u32, u32, u32) = (60, 4, 15);

/// The listening sockets that rules redirect to.
pub struct Gateway {
    proxies: TcpListener,
    plain: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    services: Arc<Services>,
    broker: Option<Arc<BrokerClient>>,
    machine: MachineNames,
    counts: Mutex<Counts>,
}

impl Gateway {
    /// Binds the sockets. It must be called within a runtime.
    pub fn bind(
        services: Arc<Services>,
        broker: Option<Arc<BrokerClient>>,
        machine: MachineNames,
    ) -> Result<Self, EgressError> {
        let listen = |port| {
            let address = SocketAddr::new(BRIDGE_ADDRESS.into(), port);
            let open = || {
                let socket = TcpSocket::new_v4()?;
                socket.set_reuseaddr(true)?;
                socket.bind(address)?;
                socket.listen(BACKLOG)
            };
            open().map_err(|error| EgressError::Listen(address, error))
        };
        let shared = Shared { services, broker, machine, counts: Mutex::default() };
        Ok(Self { proxies: listen(PROXIES_PORT)?, plain: listen(PLAIN_PORT)?, shared: Arc::new(shared) })
    }

    /// Serves until dropped.
    pub async fn serve(self) {
        tokio::join!(accept(&self.proxies, false, &self.shared), accept(&self.plain, true, &self.shared));
    }
}

async fn accept(listener: &TcpListener, plain: bool, shared: &Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let shared = shared.clone();
                tokio::spawn(async move { shared.forward_connection(stream, peer, plain).await });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection that leaves the mesh");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Why a connection is not forwarded.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Refused(&'static str),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Shared {
    async fn forward_connection(self: Arc<Self>, mut stream: TcpStream, peer: SocketAddr, plain: bool) {
        let Ok(to) = original_destination(&stream) else { return reset(stream) };
        let carried = async {
            let _place = self.count(peer).ok_or(Failure::Refused("too many connections leave the mesh"))?;
            let judge = match (plain, is_own(peer)) {
                (true, true) => Judge::Unneeded,
                (true, false) => Judge::Here,
                (false, _) => Judge::Sidecar,
            };
            let mut there = self.connect(to, judge).await?;
            keep_alive(&stream)?;
            keep_alive(&there)?;
            match tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut there, BUFFER_BYTES, BUFFER_BYTES).await {
                Ok(_) => Ok(()),
                Err(error) => {
                    // The connection is reset, because neither end may take the truncated data as complete.
                    reset(there);
                    Err(Failure::Io(error))
                }
            }
        };
        if let Err(error) = carried.await {
            tracing::info!(from = %peer.ip(), %to, %error, "a connection that leaves the mesh has failed");
            reset(stream);
        }
    }

    async fn connect(&self, to: SocketAddrV4, judge: Judge) -> Result<TcpStream, Failure> {
        // Sidecars have already applied the policy, with more knowledge of the host, but not of what addresses mean here.
        let needs_services = judge != Judge::Sidecar || *to.ip() == MACHINE;
        let services = if needs_services { self.services.now().await } else { Arc::default() };
        match (target_of(to, &services, judge, &self.machine.table())?, &self.broker) {
            (to, Some(broker)) => Ok(broker.tcp(to).await?),
            (_, None) => Err(Failure::Refused("`evenkeel up` was started with --no-egress")),
        }
    }

    fn count(self: &Arc<Self>, peer: SocketAddr) -> Option<ConnectionGuard> {
        let SocketAddr::V4(peer) = peer else { return None };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.enter(*peer.ip()).then(|| ConnectionGuard { shared: self.clone(), replica: *peer.ip() })
    }
}

/// Who applies the mesh's policy for outbound traffic to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judge {
    /// The replica's sidecar has, before it made the connection.
    Sidecar,
    /// Nobody has yet: the replica has no sidecar, or the connection goes past it.
    Here,
    /// The control plane's connections are not subject to it.
    Unneeded,
}

/// Finds the address in the machine's network for one in the mesh. `machine` has the names of the machine.
fn target_of(
    to: SocketAddrV4,
    services: &ServiceSnapshot,
    judge: Judge,
    machine: &Table,
) -> Result<SocketAddr, Failure> {
    let (ip, refused) = (*to.ip(), |why| Err(Failure::Refused(why)));
    let within = |(first, prefix): (Ipv4Addr, u8)| network(ip, prefix) == first;
    if within(SERVICES) || within(RESERVED) {
        return refused("no ready replica of a service has this address and port");
    }
    if ip != MACHINE && is_in_mesh(ip) {
        return refused("no replica has this address");
    }
    if ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || ip.octets()[0] == 0 {
        return refused("nothing has this address");
    }
    let names_it = || services.registered.names_address(to, MACHINE, |name| is_machine(machine, name));
    let is_allowed = || services.allow_any || names_it();
    match judge {
        Judge::Here if !is_allowed() => refused(
            "the mesh's outboundTrafficPolicy is REGISTRY_ONLY, no sidecar allows it, and no ServiceEntry has this address and port",
        ),
        // Whatever a host's name or a name server says, only who names the machine means it.
        Judge::Sidecar if ip == MACHINE && !is_allowed() => refused(
            "the mesh's outboundTrafficPolicy is REGISTRY_ONLY, and no ServiceEntry names the machine and this port",
        ),
        Judge::Here | Judge::Sidecar | Judge::Unneeded => {
            let host = if ip == MACHINE { Ipv4Addr::LOCALHOST } else { ip };
            Ok(SocketAddr::new(host.into(), to.port()))
        }
    }
}

fn is_own(peer: SocketAddr) -> bool {
    matches!(peer, SocketAddr::V4(peer) if rules::is_own(*peer.ip()))
}

/// The destination before the redirect.
fn original_destination(stream: &TcpStream) -> io::Result<SocketAddrV4> {
    let original = getsockopt(&stream.as_fd(), sockopt::OriginalDst)?;
    let address = Ipv4Addr::from(u32::from_be(original.sin_addr.s_addr));
    Ok(SocketAddrV4::new(address, u16::from_be(original.sin_port)))
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (idle, count, interval) = KEEP_ALIVE;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &idle)?;
    setsockopt(stream, sockopt::TcpKeepCount, &count)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &interval)?;
    stream.set_nodelay(true)
}

/// Closes the connection with a reset.
fn reset(stream: TcpStream) {
    // If that fails, the connection is closed in order.
    let _ = setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// The number of connections by replica.
#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_replica: HashMap<Ipv4Addr, usize>,
}

impl Counts {
    fn enter(&mut self, replica: Ipv4Addr) -> bool {
        let of_replica = self.by_replica.get(&replica).copied().unwrap_or(0);
        let has_room = self.all < MAX_CONNECTIONS && of_replica < MAX_CONNECTIONS_PER_REPLICA;
        if has_room {
            self.all += 1;
            self.by_replica.insert(replica, of_replica + 1);
        }
        has_room
    }

    fn leave(&mut self, replica: Ipv4Addr) {
        self.all = self.all.saturating_sub(1);
        if let Some(count) = self.by_replica.get_mut(&replica) {
            *count -= 1;
            if *count == 0 {
                self.by_replica.remove(&replica);
            }
        }
    }
}

/// Counts a connection as long as it exists.
struct ConnectionGuard {
    shared: Arc<Shared>,
    replica: Ipv4Addr,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner).leave(self.replica);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_meshs_own_never_leaves_and_the_machine_is_its_loopback() {
        let check = |to: &str, expected: &str| {
            let any = ServiceSnapshot { allow_any: true, ..ServiceSnapshot::default() };
            let machine = MachineNames::new(true).table();
            let seen = match target_of(to.parse().expect("an address"), &any, Judge::Sidecar, &machine) {
                Ok(to) => to.to_string(),
                Err(error) => error.to_string(),
            };
            assert_eq!(seen, expected, "{to}");
        };
        check("192.0.2.1:443", "192.0.2.1:443");
        check("10.244.0.2:5432", "127.0.0.1:5432");
        check("10.96.0.99:80", "no ready replica of a service has this address and port");
        check("10.111.255.255:80", "no ready replica of a service has this address and port");
        check("240.240.0.1:80", "no ready replica of a service has this address and port");
        check("10.244.0.1:15098", "no replica has this address");
        check("10.244.9.9:80", "no replica has this address");
        for nobodys in ["127.0.0.1:80", "127.8.8.8:80", "0.0.0.0:80", "0.1.2.3:80", "224.0.0.1:80"] {
            check(nobodys, "nothing has this address");
        }
        check("255.255.255.255:80", "no ready replica of a service has this address and port");
    }

    #[test]
    fn where_no_sidecar_has_judged_the_policy_is_held_here_and_that_for_the_machine_always() {
        let machine = MachineNames::new(true).table();
        let check = |to: &str, judge: Judge, allow_any: bool, expected: bool| {
            let services = ServiceSnapshot { allow_any, ..ServiceSnapshot::default() };
            match target_of(to.parse().expect("an address"), &services, judge, &machine) {
                Ok(_) => assert!(expected, "{to} {judge:?} {allow_any}"),
                Err(error) => {
                    assert!(!expected && error.to_string().contains("REGISTRY_ONLY"), "{to} {judge:?}: {error}");
                }
            }
        };
        for to in ["192.0.2.1:443", "10.244.0.2:5432"] {
            let is_machine = to.starts_with("10.");
            for (judge, expected) in [(Judge::Sidecar, !is_machine), (Judge::Here, false), (Judge::Unneeded, true)] {
                check(to, judge, false, expected);
                check(to, judge, true, true);
            }
        }
    }

    #[test]
    fn no_replica_takes_the_others_connections() {
        let (greedy, modest) = (Ipv4Addr::new(10, 244, 1, 1), Ipv4Addr::new(10, 244, 1, 2));
        let mut counts = Counts::default();
        let entered = (0..MAX_CONNECTIONS).filter(|_| counts.enter(greedy)).count();
        assert_eq!(entered, MAX_CONNECTIONS_PER_REPLICA);
        assert!(counts.enter(modest));
        counts.leave(greedy);
        assert!(counts.enter(greedy) && !counts.enter(greedy));
        (0..MAX_CONNECTIONS_PER_REPLICA).for_each(|_| counts.leave(greedy));
        counts.leave(modest);
        assert_eq!((counts.all, counts.by_replica.len()), (0, 0));
    }
}
