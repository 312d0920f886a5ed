//! The broker, which runs in the keeper: it creates connected sockets in the machine's network and passes them to the
//! mesh.
//!
//! A request carries the descriptor for its answer. The client cancels a request by closing that descriptor, and a
//! restarted client cannot receive an answer to its predecessor.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use tokio::net::{TcpSocket, UdpSocket};
use tokio::sync::Semaphore;

use super::channel::{self, ChannelEnd, Message};
use crate::ports::lift;

/// The timeout of a connection attempt. Envoy's own timeout, 10 s by default in Istio, applies as well and may be
/// shorter.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most simultaneous connection attempts; further requests are refused with EAGAIN.
pub const MAX_CONNECTING: usize = 512;
/// The port of name servers.
const DNS_PORT: u16 = 53;
/// The pause after a message could not be received for lack of descriptors or memory.
const RECEIVE_RETRY: Duration = Duration::from_millis(50);

/// The transport of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP: the socket is passed on once it is connected.
    Tcp,
    /// UDP, for DNS.
    Udp,
    /// A TCP socket that listens on a loopback address.
    Listen,
    /// A UDP socket that is bound to a loopback address.
    Datagrams,
}

/// A request for a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its kind.
    pub transport: Transport,
    /// The peer's address in the machine's network, or the address to listen on.
    pub to: SocketAddr,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Listen => "listen",
            Transport::Datagrams => "datagrams",
        };
        write!(f, "{transport} {}", self.to)
    }
}

impl FromStr for Request {
    type Err = Errno;

    fn from_str(text: &str) -> Result<Self, Errno> {
        let (transport, to) = text.split_once(' ').ok_or(Errno::EINVAL)?;
        let transport = match transport {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            "listen" => Transport::Listen,
            "datagrams" => Transport::Datagrams,
            _ => return Err(Errno::EINVAL),
        };
        Ok(Self { transport, to: to.parse().map_err(|_| Errno::EINVAL)? })
    }
}

/// Creates sockets in the machine's network on request.
#[derive(Debug)]
pub struct Broker {
    requests: OwnedFd,
    role: Role,
}

/// The sockets that a broker may create.
#[derive(Debug)]
enum Role {
    /// Connections, except to the listed addresses, on which `up` serves its own user only.
    WayOut(Vec<SocketAddr>),
    /// Sockets that listen on a loopback address.
    WaysIn,
}

impl Broker {
    /// Creates a broker for connections, and the descriptor of its client. `own` are the addresses on which `up` serves
    /// its own user only.
    pub fn new(own: Vec<SocketAddr>) -> io::Result<(Self, OwnedFd)> {
        Self::of(Role::WayOut(own))
    }

    /// Creates a broker for the listening sockets of gateway ports. Only the supervisor gets the descriptor.
    pub fn for_gateway_ports() -> io::Result<(Self, OwnedFd)> {
        Self::of(Role::WaysIn)
    }

    fn of(role: Role) -> io::Result<(Self, OwnedFd)> {
        let (requests, mesh) = channel::pair()?;
        Ok((Self { requests, role }, lift(mesh)?))
    }

    /// Serves until dropped.
    ///
    /// # Errors
    /// If the descriptor cannot be registered with the event loop.
    pub async fn serve(self) -> io::Result<()> {
        let requests = ChannelEnd::new(self.requests)?;
        let (role, slots) = (Arc::new(self.role), Arc::new(Semaphore::new(MAX_CONNECTING)));
        loop {
            match requests.receive().await {
                Ok(Some(message)) => {
                    let (role, slot) = (role.clone(), slots.clone().try_acquire_owned());
                    tokio::spawn(async move {
                        answer(message, slot.is_ok(), &role).await;
                        drop(slot);
                    });
                }
                Ok(None) => return Ok(()),
                Err(_) => tokio::time::sleep(RECEIVE_RETRY).await,
            }
        }
    }
}

/// Answers with the socket or with the error number, unless the client has cancelled the request.
async fn answer(message: Message, has_slot: bool, role: &Role) {
    let Some(reply) = message.descriptor.and_then(|reply| ChannelEnd::new(reply).ok()) else { return };
    let made = async {
        if !has_slot {
            return Err(Errno::EAGAIN);
        }
        let request: Request = message.text.parse()?;
        make(request, role).await.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    };
    let made = tokio::select! {
        made = made => made,
        () = reply.closed() => return,
    };
    let sent = match &made {
        Ok(socket) => reply.send("0", Some(socket.as_fd())).await,
        Err(error) => reply.send(&(*error as i32).to_string(), None).await,
    };
    // If the client has disconnected meanwhile, the socket is closed with the answer.
    drop(sent);
}

async fn make(Request { transport, to }: Request, role: &Role) -> io::Result<OwnedFd> {
    match role {
        Role::WaysIn if transport == Transport::Listen && to.ip().is_loopback() => {
            let listener = std::net::TcpListener::bind(to)?;
            listener.set_nonblocking(true)?;
            return Ok(listener.into());
        }
        Role::WaysIn if transport == Transport::Datagrams && to.ip().is_loopback() => {
            let socket = std::net::UdpSocket::bind(to)?;
            socket.set_nonblocking(true)?;
            return Ok(socket.into());
        }
        Role::WaysIn => return Err(Errno::EPERM.into()),
        // The control plane's pages show the whole configuration, and treat each client as the machine's user.
        Role::WayOut(own) if leads_to_loopback(to.ip()) && own.iter().any(|address| address.port() == to.port()) => {
            return Err(Errno::ECONNREFUSED.into());
        }
        Role::WayOut(_) => {}
    }
    match transport {
        Transport::Listen | Transport::Datagrams => Err(Errno::EPERM.into()),
        // No other datagrams leave the mesh.
        Transport::Udp if to.port() != DNS_PORT => Err(Errno::EPERM.into()),
        Transport::Tcp => {
            let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, socket.connect(to)).await;
            Ok(connected.map_err(|_| Errno::ETIMEDOUT)??.into_std()?.into())
        }
        Transport::Udp => {
            let any = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(to).await?;
            Ok(socket.into_std()?.into())
        }
    }
}

/// Whether a connection to this address ends at the machine's own loopback: also by the notation of IPv4 in IPv6, and by
/// the unspecified address.
fn leads_to_loopback(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_they_are_written() {
        let check = |text: &str, transport, to: &str| {
            let request = Request { transport, to: to.parse().expect("an address") };
            assert_eq!((text.parse(), request.to_string()), (Ok(request), text.to_owned()));
        };
        check("tcp 192.0.2.1:80", Transport::Tcp, "192.0.2.1:80");
        check("udp [2001:db8::1]:53", Transport::Udp, "[2001:db8::1]:53");
        check("listen 127.0.0.1:80", Transport::Listen, "127.0.0.1:80");
        check("datagrams 127.0.0.1:53", Transport::Datagrams, "127.0.0.1:53");
        for nonsense in ["", "tcp", "tcp ", "sctp 192.0.2.1:80", "tcp example.com:80", "tcp 192.0.2.1:80 "] {
            assert_eq!(nonsense.parse::<Request>(), Err(Errno::EINVAL), "{nonsense:?}");
        }
    }
}
