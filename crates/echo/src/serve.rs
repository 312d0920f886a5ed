//! The listeners, and who serves their connections.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UdpSocket};
use tokio_rustls::TlsAcceptor;

use crate::grpc;
use crate::http::Echo;
use crate::options::{EchoArguments, Listener};
use crate::streams;

/// Why the servers could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port is not free.
    #[error("listening on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A file of TLS is wrong.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The flags do not fit together.
    #[error("{0}")]
    Flags(&'static str),
    /// Nobody reads the output.
    #[error("writing the addresses")]
    Write(#[from] io::Error),
}

/// Starts the servers, names their addresses, and serves until the process ends.
///
/// # Errors
/// A port is not free, or a file is wrong.
pub fn run(arguments: &EchoArguments, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(start(arguments, out))?;
    runtime.block_on(std::future::pending())
}

async fn start(arguments: &EchoArguments, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let tls = tls(arguments)?;
    let echo = Arc::new(Echo {
        max_delay: arguments.max_echo_delay,
        max_size: arguments.maxpayloadsizekb << 10,
        debug_path: arguments.echo_debug_path.clone(),
        default_query: arguments.echo_server_default_params.clone(),
        started: Instant::now(),
    });
    for (name, port) in [("http-echo", arguments.http_port), ("grpc 'ping'", arguments.grpc_port)] {
        if let Some(listener) = listen(port).await? {
            announce(out, name, &streams::name(listener.local_addr()))?;
            tokio::spawn(serve(listener, echo.clone(), tls.clone()));
        }
    }
    if let Some(listener) = listen(arguments.tcp_port).await? {
        announce(out, "tcp-echo", &streams::name(listener.local_addr()))?;
        tokio::spawn(streams::echo_tcp(listener));
    }
    if let Listener::At(address) = arguments.udp_port {
        let socket = UdpSocket::bind(address).await.map_err(|source| Error::Listen { address, source })?;
        announce(out, "udp-echo", &streams::name(socket.local_addr()))?;
        tokio::spawn(streams::echo_udp(socket));
    }
    for proxy in &arguments.proxies {
        if let Some(listener) = listen(proxy.listener).await? {
            let from = streams::name(listener.local_addr());
            announce(out, "tcp proxy", &format!("{from}, forwards to {}", proxy.target))?;
            tokio::spawn(streams::forward(listener, proxy.target.as_str().into()));
        }
    }
    Ok(())
}

fn announce(out: &mut (dyn Write + Send), name: &str, address: &str) -> io::Result<()> {
    writeln!(out, "Evenkeel {} {name} server listening on {address}", env!("CARGO_PKG_VERSION"))?;
    out.flush()
}

async fn listen(port: Listener) -> Result<Option<TcpListener>, Error> {
    let Listener::At(address) = port else { return Ok(None) };
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    Ok(Some(listener))
}

async fn serve(listener: TcpListener, echo: Arc<Echo>, tls: Option<TlsAcceptor>) {
    loop {
        // Without descriptors accept fails at once: it is tried again when others had their turn.
        let Ok((stream, client)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let (echo, tls) = (echo.clone(), tls.clone());
        _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            match tls {
                // A handshake that fails concerns the client alone.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        connection(stream, echo, client).await;
                    }
                }
                None => connection(stream, echo, client).await,
            }
        });
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, echo: Arc<Echo>, client: SocketAddr) {
    let service = service_fn(move |request: Request<Incoming>| {
        let echo = echo.clone();
        async move {
            let response =
                if grpc::is_call(&request) { grpc::answer(request).await } else { echo.answer(request, client).await };
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    // An error is the client's: it sees it, too.
    _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

fn tls(arguments: &EchoArguments) -> Result<Option<TlsAcceptor>, Error> {
    let (Some(cert), Some(key)) = (&arguments.cert, &arguments.key) else {
        return if arguments.mtls { Err(Error::Flags("-mtls needs -cert, -key and -cacert")) } else { Ok(None) };
    };
    let of = |path: &Path| {
        let path = path.to_owned();
        move |error: &dyn std::fmt::Display| Error::File { path, reason: error.to_string() }
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| of(cert)(&error))?;
    let builder = match (&arguments.cacert, arguments.mtls) {
        (Some(file), true) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| of(file)(&error))?;
            }
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| of(file)(&error))?)
        }
        (None, true) => return Err(Error::Flags("-mtls needs -cacert")),
        (_, false) => builder.with_no_client_auth(),
    };
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| of(key)(&error))?;
    let mut config = builder.with_single_cert(certificates(cert)?, key).map_err(|error| of(cert)(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    found.map_err(|error| Error::File { path: path.to_owned(), reason: error.to_string() })
}
