//! The keeper's part: makes sockets in the machine's network for the mesh, and hands them over connected.
//!
//! A request carries the descriptor its answer goes to. Who has asked gives up by closing that, and a mesh's part that is started again
//! cannot mistake an answer to the one before for its own.

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

/// How long a connection may take to be made. Envoy's own limit, 10 s by default in Istio, ends first when it is asked for less.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections being made at one time; further requests are refused with EAGAIN.
pub const MAX_CONNECTING: usize = 512;
/// Pause after a message could not be received for want of descriptors or memory.
const RECEIVE_RETRY: Duration = Duration::from_millis(50);

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP: the socket is handed over when the other end has accepted.
    Tcp,
    /// UDP, for DNS.
    Udp,
    /// TCP, to be connected to: a socket that listens on a loopback address.
    Listen,
}

/// A socket that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its kind.
    pub transport: Transport,
    /// Whom to connect it with, as the machine addresses it, or where it listens.
    pub to: SocketAddr,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Listen => "listen",
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
            _ => return Err(Errno::EINVAL),
        };
        Ok(Self { transport, to: to.parse().map_err(|_| Errno::EINVAL)? })
    }
}

/// The machine's side of the way out.
#[derive(Debug)]
pub struct Broker {
    requests: OwnedFd,
    role: Role,
}

/// What may be asked for.
#[derive(Debug)]
enum Role {
    /// Connections, but to what `up` itself serves on the machine for its user alone.
    WayOut(Vec<SocketAddr>),
    /// Sockets that listen on loopback.
    WaysIn,
}

impl Broker {
    /// The keeper's side, and the descriptor for the mesh's. `own`: what `up` itself serves on the machine for its user alone.
    pub fn new(own: Vec<SocketAddr>) -> io::Result<(Self, OwnedFd)> {
        Self::of(Role::WayOut(own))
    }

    /// The same for ways in, which the supervisor alone may ask for.
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
    /// When the descriptor cannot be watched; nothing is served then.
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

/// Answers with the socket, or with the error's number; to nobody if nobody waits any more.
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
    // It has gone meanwhile, and the socket goes with the answer.
    drop(sent);
}

async fn make(Request { transport, to }: Request, role: &Role) -> io::Result<OwnedFd> {
    match role {
        Role::WaysIn if transport == Transport::Listen && to.ip().is_loopback() => {
            let listener = std::net::TcpListener::bind(to)?;
            listener.set_nonblocking(true)?;
            return Ok(listener.into());
        }
        Role::WaysIn => return Err(Errno::EPERM.into()),
        // The control plane's pages say all of the configuration, and whoever reads them is taken for the machine's user.
        Role::WayOut(own) if to.ip().is_loopback() && own.iter().any(|address| address.port() == to.port()) => {
            return Err(Errno::ECONNREFUSED.into());
        }
        Role::WayOut(_) => {}
    }
    match transport {
        Transport::Listen => Err(Errno::EPERM.into()),
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
        for nonsense in ["", "tcp", "tcp ", "sctp 192.0.2.1:80", "tcp example.com:80", "tcp 192.0.2.1:80 "] {
            assert_eq!(nonsense.parse::<Request>(), Err(Errno::EINVAL), "{nonsense:?}");
        }
    }
}
