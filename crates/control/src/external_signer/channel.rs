//! The connection to an external signer.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_model::{ExternalSigner, SignerTls};
use evenkeel_tls::config::{
    CertificateSource, CommonTlsContext, DataSource, PeerChecks, TlsParams, TrustSource, UpstreamTlsContext, Validation,
};
use evenkeel_tls::{SanKind, SanMatcher, SecretStore, StringPattern, UpstreamTls};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use super::read;
use crate::jwks;

/// How long connecting may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an idle connection is probed, to notice a signer that has vanished.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Plain text or TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Returns a channel that connects with the first request. Certificates and roots are read for each connection, so that new
/// ones take effect without a restart.
pub(super) fn open(signer: Arc<ExternalSigner>) -> Channel {
    let connect = service_fn(move |_: Uri| {
        let signer = signer.clone();
        async move { connect(&signer).await.map(TokioIo::new) }
    });
    // The scheme does not decide about encryption: the connector does TLS. The name is only the authority of the HTTP/2
    // requests.
    let endpoint = Endpoint::from_static("http://istio-ca").connect_timeout(CONNECT_TIMEOUT);
    endpoint.http2_keep_alive_interval(KEEPALIVE).connect_with_connector_lazy(connect)
}

async fn connect(signer: &ExternalSigner) -> io::Result<Box<dyn Stream>> {
    let address = &signer.address;
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    let Some(tls) = &signer.tls else {
        return Ok(Box::new(dial(address).await.map_err(named)?));
    };
    // Files that cannot be read are reported before a connection is opened.
    let context = context(address, tls)?;
    let tls = UpstreamTls::new(&context, &SecretStore::new()).map_err(|error| named(io::Error::other(error)))?;
    let socket = dial(address).await.map_err(named)?;
    Ok(Box::new(tls.connect(socket).await.map_err(|error| named(io::Error::other(error)))?))
}

async fn dial(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn context(address: &str, tls: &SignerTls) -> io::Result<UpstreamTlsContext> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let inline = |path: &Path| {
        let text = read(path).map_err(io::Error::other)?;
        Ok::<_, io::Error>(DataSource::Inline(text.into_bytes()))
    };
    let roots = match &tls.roots {
        Some(path) => inline(path)?,
        None => DataSource::Inline(jwks::system_roots_pem().into_bytes()),
    };
    let identity = match &tls.identity {
        Some((chain, key)) => Some(CertificateSource::Static { chain: inline(chain)?, key: inline(key)? }),
        None => None,
    };
    let names = match tls.names.as_slice() {
        [] => vec![name(tls.sni.as_deref().unwrap_or(host))],
        names => names.iter().map(|name| SanMatcher { kind: None, pattern: StringPattern::exact(name) }).collect(),
    };
    Ok(UpstreamTlsContext {
        common: CommonTlsContext {
            certificates: identity.into_iter().collect(),
            validation: Validation::Chain {
                trust: TrustSource::Static(roots),
                checks: PeerChecks { subject_alt_names: names, ..PeerChecks::default() },
            },
            alpn: vec!["h2".into()],
            params: TlsParams::default(),
        },
        sni: tls.sni.clone().unwrap_or_else(|| host.to_owned()),
    })
}

fn name(name: &str) -> SanMatcher {
    match name.parse::<IpAddr>() {
        Ok(_) => SanMatcher { kind: Some(SanKind::IpAddress), pattern: StringPattern::exact(name) },
        Err(_) => SanMatcher::dns(name),
    }
}
