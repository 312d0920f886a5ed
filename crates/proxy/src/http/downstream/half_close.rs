//! Whether a client that sends no more still reads.
//!
//! A client that ends its direction may still wait for the response (RFC 9112 section 9.6). A client that has closed its socket looks the
//! same on the wire until something is sent to it, but its request should be cancelled. For a client in this network namespace, as a
//! sidecar's application is, the kernel tells the two apart: whether any process still has the socket open.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;

use crate::listener::original_dst::original_destination;

/// `SOCK_DIAG_BY_FAMILY`, sock_diag(7).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `INET_DIAG_NOCOOKIE`: any socket with these addresses.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// `TCP_FIN_WAIT1` and `TCP_FIN_WAIT2`: the client has ended its direction and waits for the other's end.
const FIN_WAIT: [u8; 2] = [4, 5];

/// Length of `struct nlmsghdr`, in bytes.
const HEADER: usize = 16;
/// Offsets of the state and the inode in `struct inet_diag_msg`. The inode is 0 for a socket that no process has open.
const STATE: usize = HEADER + 1;
const INODE: std::ops::Range<usize> = HEADER + 68..HEADER + 72;

/// The state of a client's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientSocket {
    /// The client has only shut down its sending direction.
    HalfClosed,
    /// No process has it open any more.
    Closed,
    /// Neither of these.
    Open,
    /// Unknown: the client is not in this network namespace, or the kernel does not say.
    Unknown,
}

/// Returns the state of the client's socket.
pub(super) fn client_socket(stream: &TcpStream) -> ClientSocket {
    let Ok((client, local)) = stream.peer_addr().and_then(|client| Ok((client, stream.local_addr()?))) else {
        return ClientSocket::Unknown;
    };
    let dialled = original_destination(stream, local).unwrap_or(local);
    match state_of(client, dialled) {
        Ok(Some((_, 0))) => ClientSocket::Closed,
        Ok(Some((state, _))) if FIN_WAIT.contains(&state) => ClientSocket::HalfClosed,
        Ok(Some(_)) => ClientSocket::Open,
        Ok(None) | Err(_) => ClientSocket::Unknown,
    }
}

/// State and inode of this network namespace's TCP socket from `local` to `peer`.
fn state_of(local: SocketAddr, peer: SocketAddr) -> std::io::Result<Option<(u8, u32)>> {
    let mut socket = Socket::new(
        Domain::from(libc::AF_NETLINK),
        Type::RAW.cloexec().nonblocking(),
        Some(Protocol::from(libc::NETLINK_SOCK_DIAG)),
    )?;
    socket.write_all(&question(local, peer))?;
    // The kernel answers before the write returns.
    let mut answer = [0; 512];
    let length = socket.read(&mut answer)?;
    let answer = &answer[..length];
    let (Some(kind), Some(&state), Some(inode)) = (answer.get(4..6), answer.get(STATE), answer.get(INODE)) else {
        return Ok(None);
    };
    // Anything else is an error: there is no such socket.
    Ok((kind == SOCK_DIAG_BY_FAMILY.to_ne_bytes()).then(|| (state, inode.try_into().map_or(0, u32::from_ne_bytes))))
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2` for the one socket.
fn question(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let (local_ip, peer_ip) = (local.ip().to_canonical(), peer.ip().to_canonical());
    let family = if local_ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(local.port().to_be_bytes());
    body.extend(peer.port().to_be_bytes());
    body.extend(address(local_ip));
    body.extend(address(peer_ip));
    body.extend(0_u32.to_ne_bytes());
    body.extend(NO_COOKIE);
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// An address in 16 bytes, as `struct inet_diag_sockid` has it.
fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use tokio::net::TcpListener;

    use super::*;

    /// What is reported of a client that has done `act` to its connection.
    async fn after(host: &str, act: impl FnOnce(std::net::TcpStream) -> Option<std::net::TcpStream>) -> ClientSocket {
        let listener = TcpListener::bind((host, 0)).await.expect("loopback can be listened on");
        let client = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (stream, _) = listener.accept().await.expect("one waits");
        let kept = act(client);
        stream.readable().await.expect("its end arrives");
        let answer = client_socket(&stream);
        drop(kept);
        answer
    }

    #[tokio::test]
    async fn tells_a_client_that_listens_from_one_that_is_gone() {
        for host in ["127.0.0.1", "::1"] {
            let listens = after(host, |client| {
                client.shutdown(Shutdown::Write).expect("it can be ended");
                Some(client)
            });
            assert_eq!(listens.await, ClientSocket::HalfClosed, "{host}");
            let gone = after(host, |client| {
                drop(client);
                None
            });
            assert!(matches!(gone.await, ClientSocket::Closed | ClientSocket::Unknown), "{host}");
            let sends = after(host, |mut client| {
                client.write_all(b"more").expect("it is open");
                Some(client)
            });
            assert_eq!(sends.await, ClientSocket::Open, "{host}");
        }
    }
}
