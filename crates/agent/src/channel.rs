//! gRPC channels to the control plane.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_tls::config::{
    CertificateSource, CommonTlsContext, DataSource, PeerChecks, TlsParams, TlsVersion, TrustSource,
    UpstreamTlsContext, Validation,
};
use evenkeel_tls::{
    ConfigError, HandshakeError, SanKind, SanMatcher, SdsSecret, SdsServer, SecretStore, StringPattern, TlsStream,
    UpstreamTls,
};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpSocket, TcpStream};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::bootstrap::{CONTROL_PLANE_NAME, split_host_port};
use crate::options::Options;
use crate::secret_names::CERTIFICATE_SECRET;
use crate::trust::ControlPlaneRoots;

/// How long connecting may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an idle connection is probed, to notice a control plane that has vanished.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Why there is no connection to the control plane.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The root certificates cannot be used.
    #[error("the control plane cannot be verified: {0}")]
    Config(#[from] ConfigError),
    /// The file of the root certificates.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Connecting failed.
    #[error("{address}: {}", root_cause(.source))]
    Connect {
        /// The control plane's address.
        address: String,
        /// The error of the transport.
        source: tonic::transport::Error,
    },
}

impl From<(PathBuf, io::Error)> for ChannelError {
    fn from((path, source): (PathBuf, io::Error)) -> Self {
        Self::File { path, source }
    }
}

/// Connects to the control plane and verifies it with `roots`. If `secrets` is given, the agent presents the workload's certificate.
pub async fn connect(
    options: &Options,
    roots: &ControlPlaneRoots,
    secrets: Option<&SecretStore>,
) -> Result<Channel, ChannelError> {
    let empty = SecretStore::new();
    let context = context(roots.get(options)?, secrets.is_some());
    connect_verified(options, context, secrets.unwrap_or(&empty)).await
}

async fn connect_verified(
    options: &Options,
    context: UpstreamTlsContext,
    secrets: &SecretStore,
) -> Result<Channel, ChannelError> {
    let tls = Arc::new(UpstreamTls::new(&context, secrets)?);
    let (address, mark) = (options.discovery_address.clone(), options.mark());
    let connector = service_fn(move |_: Uri| {
        let (tls, address) = (tls.clone(), address.clone());
        async move {
            let socket = dial(&address, mark).await?;
            let stream = tls.connect(socket).await.map_err(into_io)?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    let failed = |source| ChannelError::Connect { address: options.discovery_address.clone(), source };
    // The scheme does not decide about encryption: the connector does TLS.
    Endpoint::from_static("http://istiod.istio-system.svc:15012")
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .connect_with_connector(connector)
        .await
        .map_err(failed)
}

/// Connects to the certificate service, which is the control plane unless the options name another one. That one is verified by the name
/// in its address, as Istio's agent does it.
pub(crate) async fn connect_for_certificate(
    options: &Options,
    roots: &ControlPlaneRoots,
) -> Result<Channel, ChannelError> {
    let Some((address, own_roots)) = options.certificate_service() else { return connect(options, roots, None).await };
    let roots = match own_roots {
        Some(path) => std::fs::read_to_string(&path).map_err(|source| ChannelError::File { path, source })?,
        None => roots.get(options)?,
    };
    let name = split_host_port(&address).0.to_owned();
    let other = Options { discovery_address: address, ..options.clone() };
    connect_verified(&other, context_for(&name, roots, false), &SecretStore::new()).await
}

/// Opens a TLS connection to the control plane with the workload's certificate, over which a program speaks its own
/// HTTP/2.
pub async fn open(
    options: &Options,
    roots: &ControlPlaneRoots,
    secrets: &SecretStore,
) -> io::Result<TlsStream<TcpStream>> {
    let roots = roots.get(options).map_err(|(_, error)| error)?;
    let tls = UpstreamTls::new(&context(roots, true), secrets).map_err(io::Error::other)?;
    let opening = async {
        let socket = dial(&options.discovery_address, options.mark()).await?;
        tls.connect(socket).await.map_err(into_io)
    };
    tokio::time::timeout(CONNECT_TIMEOUT, opening).await?
}

/// The slot that [`connect`] takes the workload's certificate from.
pub fn certificate_secret() -> SdsSecret {
    SdsSecret { name: CERTIFICATE_SECRET.into(), server: SdsServer::Ads }
}

fn context(roots: String, with_certificate: bool) -> UpstreamTlsContext {
    context_for(CONTROL_PLANE_NAME, roots, with_certificate)
}

fn context_for(name: &str, roots: String, with_certificate: bool) -> UpstreamTlsContext {
    UpstreamTlsContext {
        common: CommonTlsContext {
            certificates: with_certificate.then(|| CertificateSource::Sds(certificate_secret())).into_iter().collect(),
            validation: Validation::Chain {
                trust: TrustSource::Static(DataSource::Inline(roots.into_bytes())),
                checks: PeerChecks {
                    subject_alt_names: vec![match name.parse::<IpAddr>() {
                        Ok(_) => SanMatcher { kind: Some(SanKind::IpAddress), pattern: StringPattern::exact(name) },
                        Err(_) => SanMatcher::dns(name),
                    }],
                    ..PeerChecks::default()
                },
            },
            alpn: vec!["h2".into()],
            params: TlsParams { minimum_version: Some(TlsVersion::Tls13), ..TlsParams::default() },
        },
        sni: name.into(),
    }
}

/// Connects to a host and port, trying its addresses in order.
pub(crate) async fn dial(address: &str, mark: Option<u32>) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("`{address}` has no address"));
    for candidate in tokio::net::lookup_host(address).await? {
        let socket = if candidate.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(mark) = mark {
            setsockopt(&socket, sockopt::Mark, &mark)
                .map_err(|error| io::Error::other(format!("SO_MARK needs CAP_NET_ADMIN: {error}")))?;
        }
        socket.set_nodelay(true)?;
        match socket.connect(candidate).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn into_io(error: HandshakeError) -> io::Error {
    match error {
        HandshakeError::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// The innermost reason; tonic's own message is only "transport error".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
