//! Terminating TLS from clients.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::{CertificateSource, ClientCertificate, DownstreamTlsContext, Validation};
use crate::error::{ConfigError, HandshakeError};
use crate::hello::ClientHello;
use crate::identity::Identity;
use crate::san::SanMatcher;
use crate::secrets::{SdsSecret, SecretStore, Slot};
use crate::stream::{self, TlsStream};
use crate::suites::Suites;
use crate::trust::TrustBundle;
use crate::verify::ClientVerifier;

/// A compiled `DownstreamTlsContext`. Its certificate and roots may change at any time; a handshake uses those of the
/// moment it begins.
pub struct DownstreamTls {
    identity: Slot<Identity>,
    trust: Option<Slot<TrustBundle>>,
    names: Vec<SanMatcher>,
    client_certificate: ClientCertificate,
    alpn: Vec<Vec<u8>>,
    suites: Suites,
    built: ArcSwapOption<Built>,
}

/// rustls configurations made of one pair of secrets. New secrets make a new one, and with it a new ticket key: a session
/// must not outlive the roots its client was verified by.
struct Built {
    identity: Arc<Identity>,
    trust: Option<Arc<TrustBundle>>,
    with_alpn: Arc<ServerConfig>,
    /// For clients whose offer has nothing in common with ours: Envoy goes on without ALPN, rustls would send an alert.
    without_alpn: Arc<ServerConfig>,
}

impl DownstreamTls {
    /// Compiles a context; static secrets are read and checked here.
    pub fn new(context: &DownstreamTlsContext, secrets: &SecretStore) -> Result<Self, ConfigError> {
        let source = context.common.certificate.as_ref().ok_or(ConfigError::NoCertificate)?;
        let (trust, names) = match (&context.common.validation, context.client_certificate) {
            (_, ClientCertificate::No) => (None, Vec::new()),
            (Validation::None, _) => return Err(ConfigError::ClientCertificateWithoutTrust),
            (Validation::Chain { trust, subject_alt_names }, _) => {
                (Some(secrets.trust(trust)?), subject_alt_names.clone())
            }
        };
        let downstream = Self {
            identity: secrets.identity(source)?,
            trust,
            names,
            client_certificate: context.client_certificate,
            alpn: context.common.alpn.iter().map(|protocol| protocol.clone().into_bytes()).collect(),
            suites: Suites::new(&context.common.params)?,
            built: ArcSwapOption::empty(),
        };
        let all_static = matches!(source, CertificateSource::Static { .. });
        if all_static && downstream.missing_secret().is_none() {
            downstream.current().map_err(|error| match error {
                HandshakeError::Config(error) => error,
                other => ConfigError::Rustls(rustls::Error::General(other.to_string())),
            })?;
        }
        Ok(downstream)
    }

    /// The first secret that SDS has still to deliver; handshakes fail until then.
    pub fn missing_secret(&self) -> Option<&SdsSecret> {
        self.identity.missing().or_else(|| self.trust.as_ref().and_then(Slot::missing))
    }

    /// Whether clients are verified, so that a connection's peer is known.
    pub fn is_mutual(&self) -> bool {
        self.client_certificate == ClientCertificate::Required
    }

    /// Goes on with the handshake that `hello` began. Dropping the future closes the connection.
    pub async fn accept<S>(&self, hello: ClientHello, io: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.accept_preferring(hello, io, None).await
    }

    /// As [`Self::accept`], choosing the application protocol `preferred` if the client offers it, whatever the context says.
    pub async fn accept_preferring<S>(
        &self,
        hello: ClientHello,
        io: S,
        preferred: Option<&[u8]>,
    ) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let built = self.current()?;
        let config = match preferred.filter(|preferred| hello.alpn().iter().any(|offered| offered == preferred)) {
            Some(preferred) => {
                let mut config = ServerConfig::clone(&built.without_alpn);
                config.alpn_protocols = vec![preferred.to_vec()];
                Arc::new(config)
            }
            None if negotiable(&self.alpn, hello.alpn()) => built.with_alpn.clone(),
            None => built.without_alpn.clone(),
        };
        let server_name = hello.server_name().map(str::to_owned);
        let (accepted, rest) = hello.into_parts();
        let connection: ServerConnection = match accepted.into_connection(config) {
            Ok(connection) => connection,
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                // Writing to memory cannot fail; when the client is gone the alert does not matter.
                let _ = alert.write_all(&mut bytes);
                stream::send_last_words(io, &bytes).await;
                return Err(error.into());
            }
        };
        let local = built.identity.certificate().clone();
        TlsStream::handshake(io, connection.into(), rest, server_name, Some(local), SystemTime::now()).await
    }

    /// The configurations of the present secrets, made anew when one has changed.
    fn current(&self) -> Result<Arc<Built>, HandshakeError> {
        let identity = self.identity.require()?;
        let trust = self.trust.as_ref().map(Slot::require).transpose()?;
        if let Some(built) = self.built.load_full()
            && built.is_of(&identity, trust.as_ref())
        {
            return Ok(built);
        }
        let built = Arc::new(self.build(identity, trust)?);
        self.built.store(Some(built.clone()));
        Ok(built)
    }

    fn build(&self, identity: Arc<Identity>, trust: Option<Arc<TrustBundle>>) -> Result<Built, ConfigError> {
        let builder = ServerConfig::builder_with_provider(self.suites.provider.clone());
        let builder = builder.with_protocol_versions(self.suites.versions)?;
        let builder = match &trust {
            None => builder.with_no_client_auth(),
            Some(trust) => {
                let mandatory = self.client_certificate == ClientCertificate::Required;
                let verifier = ClientVerifier::new(trust, self.names.clone(), mandatory)?;
                builder.with_client_cert_verifier(Arc::new(verifier))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(OneCertificate(identity.certified_key())));
        // Sessions live in tickets that the client keeps; this side stores none.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Ticketer::new()?;
        config.send_tls13_tickets = 1;
        let without_alpn = Arc::new(config.clone());
        config.alpn_protocols = self.alpn.clone();
        Ok(Built { identity, trust, with_alpn: Arc::new(config), without_alpn })
    }
}

impl Built {
    fn is_of(&self, identity: &Arc<Identity>, trust: Option<&Arc<TrustBundle>>) -> bool {
        Arc::ptr_eq(&self.identity, identity) && self.trust.as_ref().map(Arc::as_ptr) == trust.map(Arc::as_ptr)
    }
}

/// Whether the two sides have a protocol in common, or one of them does not care.
fn negotiable(ours: &[Vec<u8>], offered: &[Vec<u8>]) -> bool {
    offered.is_empty() || offered.iter().any(|protocol| ours.contains(protocol))
}

#[derive(Debug)]
struct OneCertificate(Arc<CertifiedKey>);

impl ResolvesServerCert for OneCertificate {
    fn resolve(&self, _hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

impl fmt::Debug for DownstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alpn: Vec<_> = self.alpn.iter().map(|protocol| String::from_utf8_lossy(protocol)).collect();
        f.debug_struct("DownstreamTls")
            .field("identity", &self.identity)
            .field("trust", &self.trust)
            .field("names", &self.names)
            .field("client_certificate", &self.client_certificate)
            .field("alpn", &alpn)
            .finish_non_exhaustive()
    }
}
