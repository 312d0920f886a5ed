//! A small HTTP client: GET over HTTP/1.1, with or without TLS, through the proxy that the environment names, with a bounded
//! body and few redirects.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_jwt::{JwksError, MAX_JWKS_BYTES};
use evenkeel_tls::TrustBundle;
use http::header::{HOST, LOCATION, PROXY_AUTHORIZATION, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::outgoing_proxy::{OutgoingProxies, OutgoingProxy};

/// Maximum number of redirects that are followed.
const MAX_REDIRECTS: usize = 3;
/// Paths where systems keep their trusted roots.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The last line of each certificate.
const END_OF_CERTIFICATE: &str = "-----END CERTIFICATE-----";
/// The variable that names another file of roots, as in OpenSSL.
const ROOTS_VARIABLE: &str = "SSL_CERT_FILE";
/// Istio's variable for the addresses from which nothing is fetched.
pub(super) const BLOCKED_VARIABLE: &str = "BLOCKED_CIDRS_IN_JWKS_URIS";
/// Maximum size of a file of roots, in bytes.
const MAX_ROOTS_BYTES: u64 = 8 * 1024 * 1024;

/// Why keys cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The URI is not valid.
    #[error("`{0}` is no http:// or https:// URL")]
    Uri(String),
    /// No connection could be established.
    #[error("no connection to {0}: {1}")]
    Connect(String, std::io::Error),
    /// The proxy from the environment cannot be used.
    #[error("the proxy {0}, which the environment names, {1}")]
    Proxy(String, String),
    /// The exchange failed.
    #[error("the exchange failed: {0}")]
    Exchange(#[from] hyper::Error),
    /// The body cannot be read.
    #[error("the answer ended early: {0}")]
    Body(String),
    /// The body is too long.
    #[error("the answer has more than {MAX_JWKS_BYTES} bytes")]
    TooLarge,
    /// A status other than 200.
    #[error("the server answered {0}")]
    Status(StatusCode),
    /// Too many redirects, or one that is not followed.
    #[error("the redirect to `{0}` is not followed")]
    Redirect(String),
    /// It took too long.
    #[error("no complete answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// Not text.
    #[error("the answer is not text in UTF-8")]
    NotText,
    /// The OpenID configuration is not usable.
    #[error("the OpenID configuration cannot be used: {0}")]
    Discovery(&'static str),
    /// The keys are not usable. The text of the answer is left out: whoever names the URL need not be allowed to read it.
    #[error("the key set cannot be used: {}", .0.plain())]
    Keys(JwksError),
    /// Every address of the host is in a blocked range.
    #[error("{0} has only addresses from which no keys are fetched ({BLOCKED_VARIABLE})")]
    Blocked(String),
    /// The task ended.
    #[error("the fetch was stopped")]
    Stopped,
}

/// The client, with the roots that it trusts.
pub(crate) struct Client {
    tls: TlsConnector,
    proxies: Arc<OutgoingProxies>,
    /// The ranges of addresses to which it does not connect.
    blocked: Arc<[IpNet]>,
}

/// A connection of any kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// Creates a client that trusts the system's roots, and `further` ones in PEM.
    pub(crate) fn new(further: &[String]) -> Self {
        let mut roots = RootCertStore::empty();
        let system = system_roots().map(|path| std::fs::read(&path).unwrap_or_default()).unwrap_or_default();
        for pem in further.iter().map(String::as_bytes).chain([system.as_slice()]) {
            // Some systems have roots that rustls does not read.
            let (_, _unusable) = roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        // The provider has the default versions, so this cannot fail; a client without roots could connect to no server.
        let config = match config {
            Ok(builder) => builder.with_root_certificates(roots).with_no_client_auth(),
            Err(_) => ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
        };
        Self { tls: TlsConnector::from(Arc::new(config)), proxies: Arc::default(), blocked: Arc::default() }
    }

    /// Makes the client use these proxies.
    pub(crate) fn through(self, proxies: Arc<OutgoingProxies>) -> Self {
        Self { proxies, ..self }
    }

    /// Makes the client connect to none of these addresses. A proxy decides itself what it connects to, unless the URL has an
    /// address instead of a name.
    pub(crate) fn without(self, blocked: Arc<[IpNet]>) -> Self {
        Self { blocked, ..self }
    }

    /// Returns a client that uses the same proxies and trusts these `further` roots.
    pub(crate) fn trusting(&self, further: &[String]) -> Self {
        Self::new(further).through(Arc::clone(&self.proxies)).without(Arc::clone(&self.blocked))
    }

    fn is_blocked(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.blocked.iter().any(|range| range.contains(&address))
    }

    /// Connects to a host that is not blocked. The addresses that are compared are those that are connected to.
    async fn connect(&self, name: &str, port: u16) -> Result<TcpStream, FetchError> {
        let refused = |error| FetchError::Connect(format!("{name}:{port}"), error);
        let found: Vec<SocketAddr> = tokio::net::lookup_host((name, port)).await.map_err(refused)?.collect();
        let allowed: Vec<SocketAddr> = found.iter().filter(|at| !self.is_blocked(at.ip())).copied().collect();
        if allowed.is_empty() && !found.is_empty() {
            return Err(FetchError::Blocked(name.to_owned()));
        }
        TcpStream::connect(&*allowed).await.map_err(refused)
    }

    /// Returns the body at a URL.
    pub(crate) async fn get(&self, url: &str) -> Result<Vec<u8>, FetchError> {
        let mut url = parse(url)?;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.ask(&url).await?;
            if !response.status().is_redirection() {
                return body(response).await;
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let next = redirected(&url, location).ok_or_else(|| FetchError::Redirect(server_of(location)))?;
            url = next;
        }
        Err(FetchError::Redirect(server_of(&url.to_string())))
    }

    async fn ask(&self, url: &Uri) -> Result<hyper::Response<hyper::body::Incoming>, FetchError> {
        let host = url.host().unwrap_or_default();
        let https = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if https { 443 } else { 80 });
        let name = host.trim_matches(['[', ']']);
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let refused = |error| FetchError::Connect(format!("{host}:{port}"), error);
        if name.parse().is_ok_and(|address| self.is_blocked(address)) {
            return Err(FetchError::Blocked(name.to_owned()));
        }
        let stream: Box<dyn Stream> = match self.proxies.of(url) {
            None => Box::new(self.connect(name, port).await?),
            Some(proxy) if https => self.tunnel(proxy, &format!("{host}:{port}")).await?,
            // For plain HTTP the proxy sends the request itself, so it gets the whole URL.
            Some(proxy) => {
                let stream = self.connect_proxy(proxy).await?;
                return exchange(stream, url, &url.to_string(), proxy.authorization.as_deref()).await;
            }
        };
        if !https {
            return exchange(stream, url, path, None).await;
        }
        let server = ServerName::try_from(name.to_owned()).map_err(|_| FetchError::Uri(url.to_string()))?;
        let stream = self.tls.connect(server, stream).await.map_err(refused)?;
        exchange(stream, url, path, None).await
    }

    /// Connects to a proxy.
    async fn connect_proxy(&self, proxy: &OutgoingProxy) -> Result<Box<dyn Stream>, FetchError> {
        let refused =
            |error: std::io::Error| FetchError::Proxy(format!("{proxy:?}"), format!("cannot be reached: {error}"));
        let socket = TcpStream::connect((&*proxy.host, proxy.port)).await.map_err(refused)?;
        if !proxy.tls {
            return Ok(Box::new(socket));
        }
        let server = ServerName::try_from(proxy.host.clone()).map_err(|error| refused(std::io::Error::other(error)))?;
        Ok(Box::new(self.tls.connect(server, socket).await.map_err(refused)?))
    }

    /// Opens a tunnel through a proxy, which only forwards bytes (RFC 9110 section 9.3.6): it sees neither keys nor paths.
    async fn tunnel(&self, proxy: &OutgoingProxy, to: &str) -> Result<Box<dyn Stream>, FetchError> {
        let refused = |reason: String| FetchError::Proxy(format!("{proxy:?}"), reason);
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect_proxy(proxy).await?)).await?;
        tokio::spawn(connection.with_upgrades());
        let request = Request::builder().method(Method::CONNECT).uri(to).header(HOST, to);
        let request = authorized(request, proxy.authorization.as_deref())
            .body(Empty::<Bytes>::new())
            .map_err(|_| FetchError::Uri(to.to_owned()))?;
        let response = sender.send_request(request).await?;
        if !response.status().is_success() {
            return Err(refused(format!("does not connect to {to}: it answered {}", response.status())));
        }
        let upgraded = hyper::upgrade::on(response).await?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }
}

async fn exchange<S>(
    stream: S,
    url: &Uri,
    target: &str,
    authorization: Option<&str>,
) -> Result<hyper::Response<hyper::body::Incoming>, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection ends with the exchange.
    tokio::spawn(connection);
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(target)
        .header(HOST, authority)
        .header(USER_AGENT, concat!("evenkeel/", env!("CARGO_PKG_VERSION")));
    let request =
        authorized(request, authorization).body(Empty::<Bytes>::new()).map_err(|_| FetchError::Uri(url.to_string()))?;
    Ok(sender.send_request(request).await?)
}

/// Adds the authorization for the proxy to a request.
fn authorized(request: http::request::Builder, authorization: Option<&str>) -> http::request::Builder {
    match authorization {
        Some(value) => request.header(PROXY_AUTHORIZATION, value),
        None => request,
    }
}

async fn body(response: hyper::Response<hyper::body::Incoming>) -> Result<Vec<u8>, FetchError> {
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    match Limited::new(response.into_body(), MAX_JWKS_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLarge),
        Err(error) => Err(FetchError::Body(error.to_string())),
    }
}

fn parse(url: &str) -> Result<Uri, FetchError> {
    let uri: Uri = url.parse().map_err(|_| FetchError::Uri(url.to_owned()))?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if known && !authority.is_empty() && !authority.contains('@') {
        Ok(uri)
    } else {
        Err(FetchError::Uri(url.to_owned()))
    }
}

/// Returns the scheme and the server of a URL; its path is part of an answer.
fn server_of(url: &str) -> String {
    let parsed: Option<Uri> = url.parse().ok();
    let parts = parsed.as_ref().and_then(|url| Some((url.scheme_str()?, url.authority()?)));
    parts.map_or_else(|| "something else".to_owned(), |(scheme, server)| format!("{scheme}://{server}"))
}

/// Returns the target of a redirect; `None` if it leads from TLS to plaintext.
fn redirected(from: &Uri, location: &str) -> Option<Uri> {
    let absolute = if location.starts_with('/') && !location.starts_with("//") {
        format!("{}://{}{location}", from.scheme_str()?, from.authority()?)
    } else {
        location.to_owned()
    };
    let to = parse(&absolute).ok()?;
    (from.scheme_str() != Some("https") || to.scheme_str() == Some("https")).then_some(to)
}

/// Returns the roots that the system trusts in PEM, without those that rustls cannot parse.
pub(crate) fn system_roots_pem() -> String {
    let text = system_roots().map(|path| std::fs::read_to_string(path).unwrap_or_default()).unwrap_or_default();
    let usable = |root: &&str| TrustBundle::from_pem(root.as_bytes()).is_ok();
    text.split_inclusive(END_OF_CERTIFICATE).filter(usable).map(|root| format!("{}\n", root.trim())).collect()
}

fn system_roots() -> Option<PathBuf> {
    let named = std::env::var_os(ROOTS_VARIABLE).map(PathBuf::from);
    let known = || SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| is_usable(path));
    named.filter(|path| is_usable(path)).or_else(known)
}

fn is_usable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_ROOTS_BYTES)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn redirects_keep_tls() {
        for (from, location, expected) in [
            ("https://a.test/x", "/keys", Some("https://a.test/keys")),
            ("https://a.test/x", "https://b.test/keys", Some("https://b.test/keys")),
            ("https://a.test/x", "http://a.test/keys", None),
            ("http://a.test/x", "https://a.test/keys", Some("https://a.test/keys")),
            ("http://a.test/x", "//b.test/keys", None),
            ("http://a.test/x", "file:///etc/passwd", None),
            ("http://a.test/x", "http://user@b.test/", None),
            ("http://a.test/x", "", None),
        ] {
            let found = redirected(&parse(from).expect("a URL"), location).map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), expected, "{from} {location}");
        }
    }
}
