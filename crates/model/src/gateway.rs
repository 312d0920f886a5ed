//! Gateways: the ports and hosts that gateway proxies serve.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Span, Spanned};

use crate::{Labels, RouteSet, Selectable, Viewer};

/// Servers on the gateway proxies that a selector matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Labels of the gateway proxy's Pod; empty = every gateway proxy.
    pub selector: Labels,
    /// The namespace of the gateway proxy's Pod; none given = any.
    pub proxy_namespace: Option<Arc<str>>,
    /// The Secrets of other namespaces than the gateway proxy's that it may have, as `NAMESPACE/NAME`.
    pub granted_secrets: BTreeSet<Arc<str>>,
    /// The certificate that its proxies show to backends that a BackendTLSPolicy asks to call by TLS.
    pub backend_certificate: Option<BackendCertificate>,
    /// Its servers, in the order written, without those that conflict with an earlier one, which have a diagnostic.
    pub servers: Vec<Server>,
    /// Where it was written.
    pub origin: Span,
}

/// The certificate of a gateway towards backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendCertificate {
    /// That of a Secret, as the proxies ask for it.
    Secret(Spanned<Arc<str>>),
    /// One that the gateway may not have, so that no connection is made.
    Refused,
}

/// One port with the hosts it serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// The port's number.
    pub port: u16,
    /// The port's name.
    pub port_name: Arc<str>,
    /// The server's own name; may be empty.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: ServerProtocol,
    /// Whether calls of gRPC-Web become gRPC.
    pub grpc_web: bool,
    /// Address to listen on; all if none is given.
    pub bind: Option<Arc<str>>,
    /// The hosts it serves.
    pub hosts: Vec<Spanned<GatewayHost>>,
    /// TLS, if any.
    pub tls: Option<ServerTls>,
    /// Whether plain HTTP is answered with a redirect to HTTPS.
    pub https_redirect: bool,
    /// Where it was written.
    pub origin: Span,
}

/// The protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerProtocol {
    /// `HTTP`, `HTTP2`, `GRPC`, `GRPC-Web`
    Http,
    /// `HTTPS`: TLS ended here, HTTP inside; with mode PASSTHROUGH: TLS by SNI
    Https,
    /// `TLS`: TLS ended here with TCP inside; with mode PASSTHROUGH: by SNI
    Tls,
    /// `TCP`, `MONGO`, `MYSQL`, `REDIS`
    Tcp,
    /// `UDP`: datagrams.
    Udp,
}

impl fmt::Display for ServerProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::Tls => "TLS",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// A host of a server, `[namespace/]host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayHost {
    /// Only route sets of this namespace may bind; none = any (`*`).
    pub namespace: Option<Arc<str>>,
    /// The host; may be a wildcard.
    pub host: Hostname,
}

/// TLS of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// The mode.
    pub mode: ServerTlsMode,
    /// Requirements on a client's certificate; without effect if clients present none.
    pub clients: ClientChecks,
    /// TLS 1.2 cipher suites; empty = the proxy's defaults.
    pub cipher_suites: Vec<Arc<str>>,
    /// Groups for the key exchange, preferred first; empty = the proxy's defaults.
    pub ecdh_curves: Vec<Arc<str>>,
    /// Protocols that are offered (ALPN), preferred first; empty = those of HTTP.
    pub alpn_protocols: Vec<Arc<str>>,
    /// Lowest version.
    pub min_version: Option<TlsVersion>,
    /// Highest version.
    pub max_version: Option<TlsVersion>,
}

/// How a server handles TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerTlsMode {
    /// Passed on unread, routed by SNI (`PASSTHROUGH`).
    Passthrough,
    /// Passed on unread, to the service that the SNI of a client of the mesh names (`AUTO_PASSTHROUGH`).
    AutoPassthrough,
    /// Ended here (`SIMPLE`).
    Simple(ServerCertificates),
    /// Ended here; the client shows a certificate (`MUTUAL`, `OPTIONAL_MUTUAL`).
    Mutual {
        /// The server's certificates.
        certificates: ServerCertificates,
        /// The roots for clients.
        roots: ClientRoots,
        /// Who is let in.
        admitted: AdmittedClients,
    },
    /// Ended here with the mesh's own certificates (`ISTIO_MUTUAL`).
    IstioMutual,
}

/// The clients that a server with roots for their certificates lets in. A policy sees the identity only of those whose
/// certificate verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmittedClients {
    /// Those with a certificate that verifies (`MUTUAL`).
    Verified,
    /// Those, and the ones without a certificate (`OPTIONAL_MUTUAL`).
    VerifiedOrNone,
    /// All, whatever certificate they show (`AllowInsecureFallback`).
    Any,
}

/// The location of a server's certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCertificates {
    /// In files on the machine or in the image of the gateway proxy.
    Files(Vec<CertificateFiles>),
    /// In Secrets of the gateway proxy's namespace, by name (`credentialName`, `credentialNames`).
    Secrets(Vec<Spanned<Arc<str>>>),
}

/// A certificate in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain (`serverCertificate`), a path.
    pub chain: Arc<str>,
    /// The key (`privateKey`), a path.
    pub key: Arc<str>,
}

/// The location of the roots for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientRoots {
    /// In a file (`caCertificates`).
    File(Arc<str>),
    /// In the Secret `NAME-cacert`, or else in the Secret NAME (`caCertCredentialName`, `credentialName`).
    Secret(Spanned<Arc<str>>),
    /// These certificates, as PEM.
    Pem(Arc<[u8]>),
}

/// Requirements on a client's certificate besides its chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientChecks {
    /// Names, one of which it must have; empty = any verified certificate.
    pub subject_alt_names: Vec<Arc<str>>,
    /// SHA-256 hashes of accepted keys, in base64.
    pub spki: Vec<Arc<str>>,
    /// SHA-256 hashes of accepted certificates, in hexadecimal.
    pub hashes: Vec<Arc<str>>,
    /// A file with revocation lists.
    pub revocation_lists: Option<Arc<str>>,
}

/// Versions of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.2
    V1_2,
    /// 1.3
    V1_3,
}

impl Gateway {
    /// Whether a gateway proxy serves it.
    pub fn selects(&self, router: &(impl Selectable + Viewer)) -> bool {
        let is_here = || self.proxy_namespace.as_ref().is_none_or(|namespace| router.is_in(namespace));
        router.selected_by(&self.selector) && is_here()
    }

    /// Whether a server of it passes TLS on to the service that its SNI names.
    pub fn passes_by_service(&self) -> bool {
        self.servers.iter().any(Server::passes_by_service)
    }
}

impl Server {
    /// Whether it passes TLS on to the service that its SNI names (`AUTO_PASSTHROUGH`).
    pub fn passes_by_service(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.mode == ServerTlsMode::AutoPassthrough)
    }
}

impl ServerTls {
    /// TLS with these certificates, which every client may use.
    pub(crate) fn simple(certificates: ServerCertificates) -> Self {
        Self {
            mode: ServerTlsMode::Simple(certificates),
            clients: ClientChecks::default(),
            cipher_suites: Vec::new(),
            ecdh_curves: Vec::new(),
            alpn_protocols: Vec::new(),
            min_version: None,
            max_version: None,
        }
    }

    /// The Secrets that it names: with the certificate, and with the roots for clients.
    pub fn secrets(&self) -> impl Iterator<Item = SecretUse<'_>> {
        let (certificates, roots) = match &self.mode {
            ServerTlsMode::Simple(certificates) => (Some(certificates), None),
            ServerTlsMode::Mutual { certificates, roots, .. } => (Some(certificates), Some(roots)),
            _ => (None, None),
        };
        let certificates = certificates.into_iter().flat_map(|certificates| match certificates {
            ServerCertificates::Files(_) => &[],
            ServerCertificates::Secrets(names) => names.as_slice(),
        });
        let roots = roots.and_then(|roots| match roots {
            ClientRoots::File(_) | ClientRoots::Pem(_) => None,
            ClientRoots::Secret(name) => Some(SecretUse::Roots(name)),
        });
        certificates.map(SecretUse::Certificate).chain(roots)
    }
}

/// The use of a Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretUse<'a> {
    /// Its certificate and key.
    Certificate(&'a Spanned<Arc<str>>),
    /// The roots for peers, in it or in `NAME-cacert`.
    Roots(&'a Spanned<Arc<str>>),
}

impl ServerTlsMode {
    /// Whether the server ends TLS itself.
    pub fn terminates(&self) -> bool {
        !matches!(self, Self::Passthrough | Self::AutoPassthrough)
    }
}

impl GatewayHost {
    /// Whether this host serves services of that namespace and host.
    pub fn covers(&self, namespace: &str, host: &Hostname) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace) && self.host.covers(host)
    }

    /// The name under which a route set's host is served here, if it is: the more specific of the two hosts.
    pub fn intersection<'a>(&'a self, route_set: &RouteSet, host: &'a Hostname) -> Option<&'a Hostname> {
        let namespace_fits = self.namespace.as_deref().is_none_or(|own| own == &*route_set.namespace);
        match namespace_fits {
            true if self.host.covers(host) => Some(host),
            true if host.covers(&self.host) => Some(&self.host),
            _ => None,
        }
    }
}

impl fmt::Display for GatewayHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.host),
            None => self.host.fmt(f),
        }
    }
}
