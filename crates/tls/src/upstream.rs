//! Originating TLS to servers.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, SignatureScheme};
use rustls_pki_types::{IpAddr, Ipv4Addr, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::{PeerChecks, UpstreamTlsContext, Validation};
use crate::error::{ConfigError, HandshakeError};
use crate::identity::Identity;
use crate::sds::SdsSecret;
use crate::secrets::SecretStore;
use crate::session::Session;
use crate::slot::Slot;
use crate::stream::TlsStream;
use crate::suites::Suites;
use crate::trust::TrustBundle;
use crate::verify::{self, ServerVerifier};

/// Sessions kept for resumption per context, in server names times eight tickets; a context has one server name.
const SESSIONS: usize = 8;

/// A compiled `UpstreamTlsContext`. Its certificate and roots may change at any time; a handshake uses those in force
/// when it begins.
pub struct UpstreamTls {
    identity: Option<Slot<Identity>>,
    /// `None` verifies nothing (no validation context).
    trust: Option<Slot<TrustBundle>>,
    checks: PeerChecks,
    server_name: Option<ServerName<'static>>,
    alpn: Vec<Vec<u8>>,
    suites: Suites,
    built: ArcSwapOption<BuiltConfig>,
}

/// A rustls configuration made of one pair of secrets, with the sessions it may resume.
struct BuiltConfig {
    identity: Option<Arc<Identity>>,
    trust: Option<Arc<TrustBundle>>,
    config: Arc<ClientConfig>,
}

impl UpstreamTls {
    /// Compiles a context; static secrets are read and checked here.
    pub fn new(context: &UpstreamTlsContext, secrets: &SecretStore) -> Result<Self, ConfigError> {
        let (trust, checks) = match &context.common.validation {
            Validation::None => (None, PeerChecks::default()),
            Validation::Chain { trust, checks } => (Some(secrets.trust(trust)?), checks.clone()),
        };
        let server_name = match context.sni.as_str() {
            "" => None,
            name => Some(parse_server_name(name)?),
        };
        let identity = match context.common.certificates.as_slice() {
            [] => None,
            [source] => Some(secrets.identity(source)?),
            _ => return Err(ConfigError::ClientCertificates),
        };
        Ok(Self {
            identity,
            trust,
            checks,
            server_name,
            alpn: context.common.alpn.iter().map(|protocol| protocol.clone().into_bytes()).collect(),
            suites: Suites::new(&context.common.params)?,
            built: ArcSwapOption::empty(),
        })
    }

    /// The first secret that SDS has still to deliver; handshakes fail until then.
    pub fn missing_secret(&self) -> Option<&SdsSecret> {
        let identity = self.identity.as_ref().and_then(Slot::missing);
        identity.or_else(|| self.trust.as_ref().and_then(Slot::missing))
    }

    /// Makes a TLS connection over a connected socket. Dropping the future closes it.
    pub async fn connect<S>(&self, io: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.connect_with(io, None, None).await
    }

    /// Like [`Self::connect`], but offers other application protocols than the context says.
    pub async fn connect_offering<S>(&self, io: S, alpn: &[&[u8]]) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.connect_with(io, Some(alpn), None).await
    }

    /// Like [`Self::connect_offering`], but to the server that a request names.
    pub async fn connect_called<S>(
        &self,
        io: S,
        alpn: &[&[u8]],
        called: Called<'_>,
    ) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.connect_with(io, Some(alpn), Some(called)).await
    }

    /// The application protocols the context says to offer.
    pub fn alpn(&self) -> &[Vec<u8>] {
        &self.alpn
    }

    /// The server name that is sent and verified; none is sent when absent.
    pub fn server_name(&self) -> Option<String> {
        self.server_name.as_ref().map(|name| name.to_str().into_owned())
    }

    /// Whether it presents a certificate.
    pub fn presents_certificate(&self) -> bool {
        self.identity.is_some()
    }

    /// Returns names, one of which the server's certificate must have; empty: any. `None`: nothing is verified.
    pub fn accepted_names(&self) -> Option<&[crate::SanMatcher]> {
        self.trust.as_ref().map(|_| &*self.checks.subject_alt_names)
    }

    async fn connect_with<S>(
        &self,
        io: S,
        alpn: Option<&[&[u8]]>,
        called: Option<Called<'_>>,
    ) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let built = self.current()?;
        let config = match alpn {
            None => built.config.clone(),
            Some(alpn) => {
                // This copies a few reference counts, little beside a handshake. Sessions for resumption are shared
                // with the other configurations.
                let mut config = ClientConfig::clone(&built.config);
                config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
                Arc::new(config)
            }
        };
        let asked = called.map(|called| parse_server_name(called.name)).transpose()?;
        let asked = asked.or_else(|| self.server_name.clone());
        let sni = asked.as_ref().map(|name| name.to_str().into_owned());
        // rustls needs a name for its session cache; an address is never sent as SNI.
        let name = asked.unwrap_or(ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0, 0, 0, 0]))));
        let connection = ClientConnection::new(config, name)?;
        let local = built.identity.as_ref().map(|identity| identity.certificate().clone());
        let session = Session { local, server_name: sni, ..Session::default() };
        let shaking = TlsStream::handshake(io, connection.into(), Vec::new(), session, None, SystemTime::now());
        let stream = shaking.await.map_err(|failed| failed.error)?;
        if let Some(called) = called.filter(|called| called.verify) {
            let peer = stream.session().peer.as_ref().ok_or(HandshakeError::NoPeerCertificate)?;
            // Also a resumed session, which may have begun under another name.
            verify::verify_called(peer, called.name)?;
        }
        Ok(stream)
    }

    /// The configuration for the current secrets, built again when one has changed.
    fn current(&self) -> Result<Arc<BuiltConfig>, HandshakeError> {
        let identity = self.identity.as_ref().map(Slot::require).transpose()?;
        let trust = self.trust.as_ref().map(Slot::require).transpose()?;
        if let Some(built) = self.built.load_full()
            && built.is_of(identity.as_ref(), trust.as_ref())
        {
            return Ok(built);
        }
        let config = Arc::new(self.build(identity.as_deref(), trust.as_deref())?);
        let built = Arc::new(BuiltConfig { identity, trust, config });
        self.built.store(Some(built.clone()));
        Ok(built)
    }

    fn build(&self, identity: Option<&Identity>, trust: Option<&TrustBundle>) -> Result<ClientConfig, ConfigError> {
        let verifier = match trust {
            Some(trust) => ServerVerifier::chain(trust, &self.checks),
            None => ServerVerifier::accept_any(),
        };
        let builder = ClientConfig::builder_with_provider(self.suites.provider.clone())
            .with_protocol_versions(self.suites.versions)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(OneCertificate(identity.certified_key()))),
        };
        config.alpn_protocols = self.alpn.clone();
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        Ok(config)
    }
}

/// The server that a request names.
#[derive(Debug, Clone, Copy)]
pub struct Called<'a> {
    /// A DNS name, which is sent as SNI in place of the context's, or an address.
    pub name: &'a str,
    /// Whether the server's certificate must have this name (`auto_san_validation`).
    pub verify: bool,
}

impl BuiltConfig {
    fn is_of(&self, identity: Option<&Arc<Identity>>, trust: Option<&Arc<TrustBundle>>) -> bool {
        self.identity.as_ref().map(Arc::as_ptr) == identity.map(Arc::as_ptr)
            && self.trust.as_ref().map(Arc::as_ptr) == trust.map(Arc::as_ptr)
    }
}

fn parse_server_name(name: &str) -> Result<ServerName<'static>, ConfigError> {
    ServerName::try_from(name.to_owned()).map_err(|_| ConfigError::Sni(name.to_owned()))
}

#[derive(Debug)]
struct OneCertificate(Arc<CertifiedKey>);

impl ResolvesClientCert for OneCertificate {
    fn resolve(&self, _root_hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alpn: Vec<_> = self.alpn.iter().map(|protocol| String::from_utf8_lossy(protocol)).collect();
        f.debug_struct("UpstreamTls")
            .field("identity", &self.identity)
            .field("trust", &self.trust)
            .field("checks", &self.checks)
            .field("server_name", &self.server_name)
            .field("alpn", &alpn)
            .finish_non_exhaustive()
    }
}
