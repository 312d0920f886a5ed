//! Listening sockets, and connections for the gRPC server: plaintext, or after a TLS handshake.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_tls::{HandshakeError, PeerCertificate};
use evenkeel_xds::server::grpc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;
use tonic::Extensions;

use crate::clients::{Admission, Clients, MAX_CONNECTIONS};
use crate::quota::Rate;

/// Length of the kernel's accept queue, in connections. When a mesh starts, all proxies connect at once, and those beyond the
/// queue wait a second until TCP retries. The system's `net.core.somaxconn` may limit it further.
const BACKLOG: u32 = 4096;
/// How long a client may take to send its first byte.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take for its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Log lines about failed handshakes: the burst, and the interval after which one more is allowed.
const FAILURE_LINES: (u32, Duration) = (20, Duration::from_secs(1));
/// Maximum number of accepted connections that wait for the gRPC server.
const ACCEPTED_QUEUE: usize = 64;
/// Pause after an `accept` that failed because file descriptors or memory ran out.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Why the control plane does not start.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is in use or does not belong to this machine.
    #[error("{flag} {address}: {reason}{hint}")]
    Bind {
        /// The flag that sets the address.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        reason: io::Error,
        /// What the user can do about it.
        hint: &'static str,
    },
    /// Plaintext on an address that other machines can reach.
    #[error(
        "--grpc-address {0}: plaintext xDS is only served on a loopback address; \
         use --secure-grpc-address for other machines, or add --allow-plaintext-from-network"
    )]
    Plaintext(SocketAddr),
}

/// Binds an address given by a flag.
pub async fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, ListenError> {
    listener(address).map_err(|reason| {
        let hint = match reason.kind() {
            io::ErrorKind::AddrInUse => "; another process listens there: stop it, or give another address",
            io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege: give another port",
            _ => "",
        };
        ListenError::Bind { flag, address, reason, hint }
    })
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted control plane takes its port back from connections that are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Refuses a plaintext address that other machines can reach, unless `allowed`.
pub fn check_plaintext(address: SocketAddr, allowed: bool) -> Result<(), ListenError> {
    let local = match address.ip() {
        IpAddr::V4(v4) => v4.is_loopback(),
        IpAddr::V6(v6) => v6.is_loopback(),
    };
    if local || allowed { Ok(()) } else { Err(ListenError::Plaintext(address)) }
}

/// The peer of a connection, as known before it sends a request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub secure: bool,
    /// The identity in the peer's certificate, which has been verified, if the peer presented one.
    pub identity: Option<SpiffeId>,
    /// When that certificate expires.
    pub expires: Option<SystemTime>,
    /// The serial number of that certificate.
    pub serial: Option<Arc<str>>,
    /// The number of its certificate requests without a valid token.
    pub refused: Arc<AtomicU32>,
}

/// A connection for the gRPC server.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    peer: Peer,
    admission: Admission,
    /// Closes the connection of a client that sends nothing; `None` after its first byte.
    patience: Option<Pin<Box<Sleep>>>,
    _slot: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    fn new(stream: Stream, peer: Peer, admission: Admission, slot: OwnedSemaphorePermit) -> Self {
        let patience = Box::pin(tokio::time::sleep(FIRST_BYTE_TIMEOUT));
        Self { stream, peer, admission, patience: Some(patience), _slot: slot }
    }

    /// Returns the peer in the form that the gRPC server uses.
    pub fn client(&self) -> grpc::Client {
        let mut extensions = Extensions::default();
        extensions.insert(self.peer.clone());
        grpc::Client {
            extensions,
            budget: self.admission.messages.clone(),
            anonymous: self.peer.secure && self.peer.identity.is_none(),
            expires: self.peer.expires,
        }
    }
}

/// Accepts plaintext connections.
pub fn plain(listener: TcpListener) -> mpsc::Receiver<Connection> {
    let (sender, receiver) = mpsc::channel(ACCEPTED_QUEUE);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let clients = Clients::new();
    tokio::spawn(async move {
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let Some((stream, address)) = accept(&listener, &sender).await else { return };
            let peer =
                Peer { address, secure: false, identity: None, expires: None, serial: None, refused: Arc::default() };
            if sender.send(Connection::new(Stream::Plain(stream), peer, clients.plain(), slot)).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Accepts TLS connections and yields those whose handshake succeeded. A slow or faulty client delays no other.
pub fn tls(listener: TcpListener, config: watch::Receiver<Arc<ServerConfig>>) -> mpsc::Receiver<Connection> {
    let (sender, receiver) = mpsc::channel(ACCEPTED_QUEUE);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let clients = Clients::new();
    let lines = Arc::new(Rate::new(FAILURE_LINES.0, FAILURE_LINES.1, 1));
    tokio::spawn(async move {
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let Some((stream, address)) = accept(&listener, &sender).await else { return };
            let mut shaking = clients.shake_hands(address.ip());
            let acceptor = TlsAcceptor::from(config.borrow().clone());
            let (sender, clients, lines) = (sender.clone(), clients.clone(), lines.clone());
            tokio::spawn(async move {
                let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
                let handshake = tokio::select! {
                    biased;
                    handshake = handshake => handshake,
                    () = shaking.evicted() => {
                        tracing::debug!(%address, "too many TLS handshakes at a time; the client may come again");
                        return;
                    }
                };
                match handshake {
                    Ok(Ok(stream)) => match admit(&clients, &stream, address, SystemTime::now()) {
                        Ok((peer, admission)) => {
                            drop(shaking);
                            let connection = Connection::new(Stream::Tls(Box::new(stream)), peer, admission, slot);
                            let _ = sender.send(connection).await;
                        }
                        Err(reason) => tracing::debug!(%address, reason, "client not served"),
                    },
                    // A client whose certificate is rejected is logged, unless there are too many such lines.
                    Ok(Err(error)) if lines.note((), Instant::now()) => {
                        tracing::warn!(%address, error = reason(error), "TLS handshake failed");
                    }
                    Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
                    Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
                }
            });
        }
    });
    receiver
}

/// Says why a handshake failed; rustls prints the reasons of the verifiers only in their debug form.
fn reason(error: io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => HandshakeError::from(tls.clone()).to_string(),
        None => error.to_string(),
    }
}

/// Determines a client's identity after its handshake, and what the client is granted.
fn admit(
    clients: &Clients,
    stream: &TlsStream<TcpStream>,
    address: SocketAddr,
    now: SystemTime,
) -> Result<(Peer, Admission), &'static str> {
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(|chain| PeerCertificate::parse(chain).ok());
    let expires = certificate.as_ref().map(PeerCertificate::not_after);
    // Sessions are not resumed here, so the handshake has just checked this; the check stays correct if they ever are.
    if expires.is_some_and(|end| end < now) {
        return Err("its certificate has expired");
    }
    let serial = certificate.as_ref().map(|certificate| Arc::from(certificate.serial.as_str()));
    let identity = certificate.and_then(|certificate| certificate.spiffe_id());
    let admission = match &identity {
        Some(identity) => clients.known(identity, address.ip()).ok_or("too many connections of its identity")?,
        None => clients.anonymous(address.ip()),
    };
    Ok((Peer { address, secure: true, identity, expires, serial, refused: Arc::default() }, admission))
}

/// Accepts the next connection; `None` when the server has ended.
async fn accept<T>(listener: &TcpListener, server: &mpsc::Sender<T>) -> Option<(TcpStream, SocketAddr)> {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.closed() => return None,
        };
        match accepted {
            Ok((stream, address)) => {
                // Responses are small and awaited, so the kernel must not delay them (Nagle's algorithm).
                let _ = stream.set_nodelay(true);
                return Some((stream, address));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.admission.poll_evicted(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let read = match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if read.is_ready() {
            this.patience = None;
        } else if let Some(patience) = &mut this.patience
            && patience.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.admission.poll_evicted(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_stays_on_this_machine() {
        let check = |address: &str, allowed: bool, expected: bool| {
            let address = address.parse().expect("an address");
            assert_eq!(check_plaintext(address, allowed).is_ok(), expected, "{address}");
        };
        check("127.0.0.1:15010", false, true);
        check("[::1]:15010", false, true);
        check("0.0.0.0:15010", false, false);
        check("10.0.0.1:15010", false, false);
        check("10.0.0.1:15010", true, true);
    }
}
