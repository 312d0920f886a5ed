//! New mutual TLS 1.3 connections, one request each, one after the other on a few threads.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evenkeel_load::{Work, answer_end};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};

use crate::config::MutualTls;
use crate::config::SERVER_NAME;

/// Connections made at the same time.
const THREADS: usize = 4;
/// How long to wait for a server.
const PATIENCE: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET /hello HTTP/1.1\r\nHost: backend.local\r\n\r\n";

/// The kind of handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// Certificates and signatures both ways; X25519.
    Full,
    /// A ticket of an earlier connection; X25519.
    Resumed,
    /// As [`Handshake::Full`], with X25519MLKEM768 preferred.
    FullHybrid,
}

/// A TLS client with the mesh's certificate.
pub struct Client {
    tls: ClientConfig,
    handshake: Handshake,
}

/// A connection after its handshake.
pub type Stream = StreamOwned<ClientConnection, TcpStream>;

impl Client {
    /// Reads the certificates.
    pub fn new(files: &MutualTls, handshake: Handshake) -> Result<Self> {
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = match handshake {
            Handshake::Full | Handshake::Resumed => vec![aws_lc_rs::kx_group::X25519],
            Handshake::FullHybrid => vec![aws_lc_rs::kx_group::X25519MLKEM768, aws_lc_rs::kx_group::X25519],
        };
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&files.root)?)?;
        let chain = CertificateDer::pem_file_iter(&files.cert)?.collect::<Result<Vec<_>, _>>()?;
        let mut tls = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key)?)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { tls, handshake })
    }

    /// Connects for `time`; each connection sends one request, receives its answer and is closed.
    pub fn connect_again_and_again(&self, target: SocketAddr, time: Duration) -> Result<Work> {
        let start = Instant::now();
        let worker = || -> Result<u64> {
            // Tickets belong to one peer and one turn.
            let mut tls = self.tls.clone();
            if self.handshake == Handshake::Resumed {
                tls.resumption = Resumption::in_memory_sessions(8);
            } else {
                tls.resumption = Resumption::disabled();
            }
            let tls = Arc::new(tls);
            let (mut count, mut resumed) = (0, 0);
            while start.elapsed() < time {
                let stream = request(&tls, target)?;
                count += 1;
                resumed += u64::from(stream.conn.handshake_kind() == Some(HandshakeKind::Resumed));
                // A reset instead of a close leaves no port in TIME_WAIT, of which there are 28,000.
                socket2::SockRef::from(&stream.sock).set_linger(Some(Duration::ZERO))?;
            }
            // The first connection of a turn has no ticket yet.
            let wanted = if self.handshake == Handshake::Resumed { count - 1 } else { 0 };
            ensure!(resumed == wanted, "{resumed} of {count} connections resumed, expected {wanted}");
            Ok(count)
        };
        let counts = std::thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(worker));
            threads.map(|thread| thread.join().unwrap_or_else(|_| bail!("a client's thread panicked")))
        });
        let count = counts.into_iter().sum::<Result<u64>>()?;
        Ok(Work { count, time: start.elapsed(), latency: None })
    }

    /// A connection that has carried one request.
    pub fn used_connection(&self, target: SocketAddr) -> Result<Stream> {
        request(&Arc::new(self.tls.clone()), target)
    }
}

fn request(tls: &Arc<ClientConfig>, target: SocketAddr) -> Result<Stream> {
    let socket = TcpStream::connect(target)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let connection = ClientConnection::new(Arc::clone(tls), ServerName::try_from(SERVER_NAME)?)?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(REQUEST).context("handshake")?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 8 << 10]);
    while answer_end(&answer)?.is_none() {
        let count = stream.read(&mut buffer).context("reading the answer")?;
        ensure!(count > 0, "the connection was closed");
        answer.extend_from_slice(&buffer[..count]);
    }
    Ok(stream)
}
