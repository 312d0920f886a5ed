//! Forwards queries for names outside the mesh unchanged to the resolvers that the workload would have asked.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long all resolvers together may take. Each gets an equal share, because a resolver that forwards needs time to
/// ask several others.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(6);
/// Queries waiting for a resolver at one time; beyond it a query is answered SERVFAIL at once.
const MAX_FORWARDS_IN_FLIGHT: usize = 256;
/// Maximum size of a response over UDP, in bytes: no resolver's limit for EDNS is larger (RFC 6891 section 6.2.5).
const MAX_UDP_BYTES: usize = 4096;

/// The resolvers for names outside the mesh.
pub trait Upstream: Clone + Send + Sync + 'static {
    /// Returns the response, or `None` if no resolver answered; the client then gets SERVFAIL. `udp` says which
    /// transport the client used.
    fn ask(&self, query: &[u8], udp: bool) -> impl Future<Output = Option<Vec<u8>>> + Send;
}

/// The upstream resolvers, asked in order.
#[derive(Debug, Clone)]
pub struct Forwarder {
    resolvers: Arc<[SocketAddr]>,
    mark: Option<u32>,
    in_flight: Arc<Semaphore>,
}

impl Forwarder {
    /// Asks `resolvers` in order. `mark` is set on the sockets (`SO_MARK`), so that capture rules let them out.
    pub fn new(resolvers: Vec<SocketAddr>, mark: Option<u32>) -> Self {
        Self { resolvers: resolvers.into(), mark, in_flight: Arc::new(Semaphore::new(MAX_FORWARDS_IN_FLIGHT)) }
    }

    async fn ask_udp(&self, resolver: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
        let socket = UdpSocket::bind(unspecified(resolver)).await?;
        self.set_mark(&socket)?;
        socket.connect(resolver).await?;
        over_udp(&socket, query).await
    }

    async fn ask_tcp(&self, resolver: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
        let socket = if resolver.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        self.set_mark(&socket)?;
        over_tcp(&mut socket.connect(resolver).await?, query).await
    }

    fn set_mark(&self, socket: &impl AsFd) -> std::io::Result<()> {
        let Some(mark) = self.mark else { return Ok(()) };
        nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::Mark, &mark).map_err(std::io::Error::from)
    }
}

impl Upstream for Forwarder {
    /// The first resolver's response.
    async fn ask(&self, query: &[u8], udp: bool) -> Option<Vec<u8>> {
        let _permit = self.in_flight.try_acquire().ok()?;
        let each = UPSTREAM_TIMEOUT / u32::try_from(self.resolvers.len().max(1)).unwrap_or(1);
        for &resolver in self.resolvers.iter() {
            let attempt =
                async { if udp { self.ask_udp(resolver, query).await } else { self.ask_tcp(resolver, query).await } };
            match timeout(each, attempt).await {
                Ok(Ok(response)) => return Some(response),
                Ok(Err(error)) => tracing::debug!(%resolver, %error, "DNS resolver failed"),
                Err(_) => tracing::debug!(%resolver, "DNS resolver did not answer in time"),
            }
        }
        None
    }
}

/// One exchange with a resolver that `socket` is connected to; the caller limits the time.
///
/// # Errors
/// Errors of sending and receiving.
pub async fn over_udp(socket: &UdpSocket, query: &[u8]) -> std::io::Result<Vec<u8>> {
    socket.send(query).await?;
    let mut buffer = vec![0; MAX_UDP_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // A late answer to an earlier query has another id.
        if length >= 12 && buffer.get(..2) == query.get(..2) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

/// One exchange over a connection to a resolver; the caller limits the time.
///
/// # Errors
/// When the query is too long for a message, and what the system says.
pub async fn over_tcp(stream: &mut TcpStream, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = u16::try_from(query.len()).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    let mut framed = Vec::with_capacity(query.len() + 2);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(query);
    stream.write_all(&framed).await?;
    let length = usize::from(stream.read_u16().await?);
    let mut response = vec![0; length];
    stream.read_exact(&mut response).await?;
    Ok(response)
}

fn unspecified(peer: SocketAddr) -> SocketAddr {
    if peer.is_ipv4() { SocketAddr::from(([0, 0, 0, 0], 0)) } else { SocketAddr::from(([0u16; 8], 0)) }
}
