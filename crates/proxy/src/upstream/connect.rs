//! Opening a connection to a host.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_runtime_config::Cluster;
use evenkeel_runtime_config::cluster::{EndpointAddress, TcpKeepalive, Transport};
use evenkeel_tls::HandshakeError;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use crate::conn::Stream;

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// Not within the cluster's `connect_timeout`.
    #[error("connection timeout")]
    Timeout,
    /// The socket could not be made or connected.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The TLS handshake failed.
    #[error("{0}")]
    Tls(#[from] HandshakeError),
}

impl ConnectError {
    /// Envoy's transport failure reason.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Timeout => String::new(),
            Self::Socket(error) => format!("delayed connect error: {}", plain(error)),
            Self::Tls(error) => format!("TLS_error: {error}"),
        }
    }
}

/// The system's words without Rust's `(os error 111)`.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Connects and, over TLS, shakes hands, all within the cluster's `connect_timeout`.
pub(crate) async fn connect(
    cluster: &Cluster,
    transport: &Transport,
    address: &EndpointAddress,
) -> Result<Stream, ConnectError> {
    let limit: Duration = cluster.connect_timeout;
    match tokio::time::timeout(limit, connect_unlimited(cluster, transport, address)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::Timeout),
    }
}

async fn connect_unlimited(
    cluster: &Cluster,
    transport: &Transport,
    address: &EndpointAddress,
) -> Result<Stream, ConnectError> {
    match (address, transport) {
        (EndpointAddress::Socket(address), Transport::Raw) => Ok(Stream::Tcp(tcp(cluster, *address).await?)),
        (EndpointAddress::Socket(address), Transport::Tls(tls)) => {
            let stream = tcp(cluster, *address).await?;
            Ok(Stream::Tls(Box::new(Box::pin(tls.connect(stream)).await?)))
        }
        (EndpointAddress::Pipe(path), Transport::Raw) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        (EndpointAddress::Pipe(path), Transport::Tls(tls)) => {
            let stream = UnixStream::connect(path).await?;
            Ok(Stream::TlsUnix(Box::new(Box::pin(tls.connect(stream)).await?)))
        }
    }
}

async fn tcp(cluster: &Cluster, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    for option in &cluster.bind.socket_options {
        set_option(&socket, option.level, option.name, option.value)?;
    }
    if let Some(keepalive) = &cluster.tcp_keepalive {
        socket.set_tcp_keepalive(&keepalive_parameters(keepalive))?;
    }
    // A source address of the other family cannot be bound; Envoy ignores it too.
    if let Some(source) = cluster.bind.source.filter(|source| source.is_ipv4() == address.is_ipv4()) {
        socket.bind(&SocketAddr::new(source, cluster.bind.source_port).into())?;
    }
    TcpSocket::from_std_stream(socket.into()).connect(address).await
}

fn set_option(socket: &Socket, level: i32, name: i32, value: i32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the value pointer is valid for `size` bytes during the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("socket option {level}/{name}: {error}")))
}

fn keepalive_parameters(keepalive: &TcpKeepalive) -> socket2::TcpKeepalive {
    let mut parameters = socket2::TcpKeepalive::new();
    if let Some(time) = keepalive.time {
        parameters = parameters.with_time(time);
    }
    if let Some(interval) = keepalive.interval {
        parameters = parameters.with_interval(interval);
    }
    if let Some(probes) = keepalive.probes {
        parameters = parameters.with_retries(probes);
    }
    parameters
}

/// What every downstream socket gets.
pub(crate) fn prepare_accepted(stream: &std::net::TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    SockRef::from(stream).set_tcp_nodelay(true)
}
