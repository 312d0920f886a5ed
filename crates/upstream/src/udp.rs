//! The upstream side of UDP sessions: a host of a cluster, room under its circuit breaker, and a socket of the session's own.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use evenkeel_runtime_config::route::Priority;
use evenkeel_stats::Writer;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::UdpSocket;

use super::cluster::Cluster;
use super::connect::bind;
use super::host::Host;
use super::open::ConnectionSlots;
use super::stats::cluster::Counter;
use super::stats::udp;
use super::target::{PickError, Target};

/// Why a session has no upstream.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// There is no host.
    #[error(transparent)]
    NoHost(#[from] PickError),
    /// `max_connections` of the cluster are open.
    #[error("the circuit breaker of the cluster has no room")]
    Overflow,
    /// There is no socket for it.
    #[error("no socket for the session: {0}")]
    Socket(#[from] io::Error),
}

/// The upstream side of one UDP session. Its drop gives back its room and closes its socket.
#[derive(Debug)]
pub struct UdpUpstream {
    /// The host that it sends to.
    pub host: Rc<Host>,
    /// The address of its socket.
    pub local: Option<SocketAddr>,
    cluster: Rc<Cluster>,
    stats: Rc<Writer<udp::Stats>>,
    socket: UdpSocket,
    _room: ConnectionSlots,
}

impl Cluster {
    /// Opens the upstream side of a session with a host that was picked.
    ///
    /// # Errors
    /// If the circuit breaker has no room, or the system no socket.
    pub fn open_udp(self: &Rc<Self>, host: Rc<Host>) -> Result<UdpUpstream, UdpError> {
        let room = self.try_room(&host, Priority::Default).ok_or(UdpError::Overflow)?;
        let address = host.socket_addr().ok_or(io::ErrorKind::Unsupported).map_err(io::Error::from)?;
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking().cloexec(), None)?;
        bind(&socket, &self.config().bind, address)?;
        socket.connect(&address.into())?;
        let local = socket.local_addr()?.as_socket();
        let socket = UdpSocket::from_std(socket.into())?;
        Ok(UdpUpstream { host, local, cluster: Rc::clone(self), stats: self.udp_stats(), socket, _room: room })
    }

    /// Picks a host for a session, or for one datagram.
    ///
    /// # Errors
    /// If there is none.
    pub fn pick_udp(&self, hash: Option<u64>) -> Result<Rc<Host>, PickError> {
        self.pick(&Target { hash, ..Target::default() })
    }
}

impl UdpUpstream {
    /// Whether its host is no longer in the cluster.
    pub fn is_removed(&self) -> bool {
        self.host.removed.get()
    }

    /// Whether it belongs to this cluster.
    pub fn is_of(&self, cluster: &Rc<Cluster>) -> bool {
        Rc::ptr_eq(&self.cluster, cluster)
    }

    /// Sends a datagram to the host; the system may drop it.
    pub fn send(&self, datagram: &[u8]) {
        // Not through the runtime, which knows only after the first wait that the socket is writable.
        let socket = SockRef::from(&self.socket);
        // An error that an earlier datagram has caused (ICMP) is not this one's.
        let sent = socket.send(datagram).or_else(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                self.stats.inc(udp::Counter::sess_rx_errors);
                socket.send(datagram)
            }
            _ => Err(error),
        });
        match sent {
            Ok(bytes) => {
                self.stats.inc(udp::Counter::sess_tx_datagrams);
                self.cluster.stats().add(Counter::upstream_cx_tx_bytes_total, bytes as u64);
            }
            Err(_) => self.stats.inc(udp::Counter::sess_tx_errors),
        }
    }

    /// Waits until the host has sent something.
    ///
    /// # Errors
    /// If the runtime ends.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Takes a datagram of the host, if there is one. `buffer` has one byte more than datagrams may have: longer ones are
    /// dropped, and counted.
    pub fn receive(&self, buffer: &mut [u8]) -> Received {
        match self.socket.try_recv(buffer) {
            Ok(bytes) => {
                self.stats.inc(udp::Counter::sess_rx_datagrams);
                self.cluster.stats().add(Counter::upstream_cx_rx_bytes_total, bytes as u64);
                if bytes < buffer.len() {
                    return Received::Datagram(bytes);
                }
                self.stats.inc(udp::Counter::sess_rx_datagrams_dropped);
                Received::Dropped
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
            Err(_) => {
                self.stats.inc(udp::Counter::sess_rx_errors);
                Received::Dropped
            }
        }
    }
}

/// What a read of a session's socket has yielded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A datagram of this many bytes.
    Datagram(usize),
    /// Something that is not passed on: a datagram that is too long, or an error.
    Dropped,
    /// Nothing: wait.
    Nothing,
}
