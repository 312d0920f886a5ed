//! Opens one connection to one endpoint.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::bind::{BindConfig, ClientSource, SocketOption};
use evenkeel_runtime_config::cluster::{Cluster, ProxyProtocolTransport, TcpKeepalive, Transport};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_tls::Called;
use socket2::{Domain, Socket, TcpKeepalive as KeepaliveParams, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::happy_eyeballs::first_to_answer;
use super::host::Host;
use super::open::ConnectTimes;
use super::own::OwnConnections;
use crate::alpn::{WantedProtocol, offered};
use crate::conn::burst;
use crate::metadata_exchange::Exchanging;
use crate::proxy_protocol;
use crate::stream::Stream;
use crate::turn;

/// Why a connection could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint could not be reached, or refused the connection. Holds Envoy's wording (`delayed connect error: …`).
    #[error("{0}")]
    Refused(String),
    /// The TLS handshake failed.
    #[error("TLS_error: {0}")]
    Tls(String),
    /// The connection or its TLS handshake was not completed within `connect_timeout`.
    #[error("connection timeout after {} ms", .0.as_millis())]
    Timeout(Duration),
}

/// Connects to `host` for the protocol `wanted`, within the cluster's `connect_timeout`, which includes the TLS
/// handshake. `client` is the downstream connection when this connection serves that one only; a PROXY protocol header
/// then carries its addresses.
pub async fn connect(
    cluster: &Cluster,
    host: &Host,
    wanted: WantedProtocol,
    client: Option<&ConnectionView>,
) -> Result<Stream, ConnectError> {
    connect_timed(cluster, (host, &OwnConnections::default()), wanted, client).await.map(|(stream, _)| stream)
}

/// As [`connect`]; also returns the times of its steps, and notes the connection in `own`.
pub(super) async fn connect_timed(
    cluster: &Cluster,
    (host, own): (&Host, &OwnConnections),
    wanted: WantedProtocol,
    client: Option<&ConnectionView>,
) -> Result<(Stream, ConnectTimes), ConnectError> {
    let limit = cluster.connect_timeout;
    match timeout(limit, open(cluster, (host, own), wanted, client)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::Timeout(limit)),
    }
}

async fn open(
    cluster: &Cluster,
    (host, own): (&Host, &OwnConnections),
    wanted: WantedProtocol,
    client: Option<&ConnectionView>,
) -> Result<(Stream, ConnectTimes), ConnectError> {
    let begin = turn::now();
    let made = || ConnectTimes::new(begin, turn::now());
    let mut tcp = match &host.address {
        EndpointAddress::Socket(address) => {
            let further = host.further_addresses();
            let connect = |address| connect_tcp(cluster, address, host.source, (own, client));
            first_to_answer(*address, &further, connect).await.map_err(|error| refused(&error))?
        }
        EndpointAddress::Pipe(path) => {
            let stream = UnixStream::connect(socket_path(path)).await.map_err(|error| refused(&error))?;
            return Ok((Stream::Unix(stream), made()));
        }
    };
    let times = made();
    let mut transport = &host.transport;
    if let Transport::ProxyProtocol(header) = transport {
        send_proxy_header(&mut tcp, header, client).await?;
        transport = &header.inner;
    }
    match transport {
        // The header was sent above; the configuration compiler rejects nested PROXY protocol transports.
        Transport::Raw | Transport::ProxyProtocol(_) => Ok((Stream::Tcp(tcp), times)),
        Transport::Tls(tls) => {
            let overrides = host.alpn().filter(|_| wanted != WantedProtocol::Bytes);
            let offer = offered(tls.alpn(), overrides.as_deref(), wanted);
            let name = host.called();
            let called = name.as_deref().map(|name| Called { name, verify: cluster.http.auto_san_validation });
            let connecting = async {
                match called {
                    Some(called) => tls.connect_called(tcp, &offer, called).await,
                    None => tls.connect_offering(tcp, &offer).await,
                }
            };
            match burst::ahead_of(Box::pin(connecting)).await {
                Ok(stream) => {
                    let session = Some(Arc::clone(stream.session()));
                    let times = ConnectTimes { handshake_end: Some(turn::now()), session, ..times };
                    Ok((Exchanging::over(Stream::Tls(Box::new(stream)), cluster.metadata_exchange.as_ref()), times))
                }
                Err(error) => Err(ConnectError::Tls(error.to_string())),
            }
        }
    }
}

/// The path as the system wants it: `@NAME` stands for the name of an abstract socket, which begins with a zero byte.
fn socket_path(path: &Path) -> Cow<'_, Path> {
    match path.as_os_str().as_bytes().strip_prefix(b"@") {
        None => Cow::Borrowed(path),
        Some(name) => Cow::Owned(OsString::from_vec([b"\0", name].concat()).into()),
    }
}

/// Sends the PROXY protocol header, which precedes everything else on the connection, TLS included.
async fn send_proxy_header(
    tcp: &mut TcpStream,
    transport: &ProxyProtocolTransport,
    client: Option<&ConnectionView>,
) -> Result<(), ConnectError> {
    let Some(client) = client else {
        return Err(ConnectError::Refused("a connection with a PROXY protocol header serves one TCP client".into()));
    };
    let tlvs = transport.tlvs(client.tlvs.as_deref().unwrap_or_default());
    let header = proxy_protocol::encode(transport.version, client.remote, client.local, &tlvs);
    tcp.write_all(&header).await.map_err(|error| refused(&error))
}

async fn connect_tcp(
    cluster: &Cluster,
    address: SocketAddr,
    source: Option<ClientSource>,
    (own, client): (&OwnConnections, Option<&ConnectionView>),
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_tcp_nodelay(true)?;
    match source.filter(|source| source.address.is_ipv4() == address.is_ipv4()) {
        Some(source) => bind_as(&socket, &cluster.bind, source)?,
        None => bind(&socket, &cluster.bind, address)?,
    }
    if let Some(keepalive) = &cluster.tcp_keepalive {
        socket.set_tcp_keepalive(&keepalive_params(keepalive))?;
    }
    let hops = client.map_or(0, |client| own.hops_so_far(client)).saturating_add(1);
    let binds = source.is_some() || cluster.bind.source.is_some();
    let may_be_own = || client.is_some_and(|client| is_here(address, client)) && own.may_be_own(address.port());
    let announced = if !binds && may_be_own() {
        // A listener of this proxy may accept the connection, and connect further, before anything more is done here. (Requests are sent
        // later than that.)
        socket.bind(&any_port(address).into())?;
        let port = socket.local_addr()?.as_socket().map(|local| local.port());
        if let Some(port) = port {
            own.announce(port, address, hops);
        }
        port
    } else {
        None
    };
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    if announced.is_none()
        && let Some(local) = socket.local_addr()?.as_socket()
    {
        own.note(local, address, hops);
    }
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

/// Whether the address is on this machine, as far as the client's connection tells.
fn is_here(address: SocketAddr, client: &ConnectionView) -> bool {
    let ip = address.ip().to_canonical();
    ip.is_loopback() || ip.is_unspecified() || ip == client.local.ip().to_canonical()
}

/// Any address and port from which the address can be reached.
fn any_port(address: SocketAddr) -> SocketAddr {
    let any = if address.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, 0)
}

/// Binds to the client's address, which is not one of this machine. The cluster's source address does not apply, as in Envoy.
fn bind_as(socket: &Socket, bind: &BindConfig, client: ClientSource) -> io::Result<()> {
    for option in &bind.socket_options {
        set_option(socket, *option)?;
    }
    let (level, name) = match client.address {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
    };
    set_option(socket, SocketOption { level, name, value: 1 })?;
    if client.mark != 0 {
        let value = client.mark.cast_signed();
        set_option(socket, SocketOption { level: libc::SOL_SOCKET, name: libc::SO_MARK, value })?;
    }
    set_option(socket, ANY_PORT)?;
    socket.bind(&SocketAddr::new(client.address, 0).into())
}

/// The kernel chooses the port when connecting, per destination, so that thousands of connections may share one source address.
const ANY_PORT: SocketOption = SocketOption { level: libc::IPPROTO_IP, name: libc::IP_BIND_ADDRESS_NO_PORT, value: 1 };

pub(super) fn bind(socket: &Socket, bind: &BindConfig, peer: SocketAddr) -> io::Result<()> {
    for option in &bind.socket_options {
        set_option(socket, *option)?;
    }
    // A source address of the other family cannot be used; Envoy ignores it too.
    if let Some(source) = bind.source.filter(|source| source.is_ipv4() == peer.is_ipv4()) {
        if bind.source_port == 0 {
            set_option(socket, ANY_PORT)?;
        } else {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&SocketAddr::new(source, bind.source_port).into())?;
    }
    Ok(())
}

fn set_option(socket: &Socket, option: SocketOption) -> io::Result<()> {
    let value: libc::c_int = option.value;
    // The socket crates only offer options they know by name.
    // SAFETY: the descriptor is open for the life of `socket`, the pointer and the length describe one `c_int`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            option.level,
            option.name,
            std::ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let what = format!("setsockopt(level {}, name {}, value {}): {error}", option.level, option.name, option.value);
    Err(io::Error::new(error.kind(), what))
}

fn keepalive_params(keepalive: &TcpKeepalive) -> KeepaliveParams {
    let mut params = KeepaliveParams::new();
    if let Some(time) = keepalive.time {
        params = params.with_time(time);
    }
    if let Some(interval) = keepalive.interval {
        params = params.with_interval(interval);
    }
    if let Some(probes) = keepalive.probes {
        params = params.with_retries(probes);
    }
    params
}

/// The system's error text without the number that Rust appends.
fn refused(error: &io::Error) -> ConnectError {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words);
    ConnectError::Refused(format!("delayed connect error: {text}"))
}
