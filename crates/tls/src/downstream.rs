//! Terminating TLS from clients.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::{CertificateSource, ClientCertificate, DownstreamTlsContext, PeerChecks, Validation};
use crate::error::{ConfigError, FailedHandshake, HandshakeError};
use crate::hello::ClientHello;
use crate::identity::{Identity, NameMatch};
use crate::revocation::RevocationLists;
use crate::sds::SdsSecret;
use crate::secrets::SecretStore;
use crate::session::Session;
use crate::slot::Slot;
use crate::stream::{self, TlsStream};
use crate::suites::Suites;
use crate::tickets::Tickets;
use crate::trust::TrustBundle;
use crate::untrusted::UntrustedClients;
use crate::verify::ClientVerifier;

/// A compiled `DownstreamTlsContext`. Its certificate and roots may change at any time; a handshake uses those in force
/// when it begins.
pub struct DownstreamTls {
    /// The first certificate, used when no other matches.
    first: Certificate,
    others: Vec<Certificate>,
    trust: Option<Slot<TrustBundle>>,
    checks: PeerChecks,
    client_certificate: ClientCertificate,
    alpn: Vec<Vec<u8>>,
    suites: Suites,
}

/// One of a server's certificates.
struct Certificate {
    identity: Slot<Identity>,
    built: ArcSwapOption<BuiltConfig>,
}

/// The rustls configurations for one pair of secrets. New secrets lead to a new configuration with another ticket key,
/// because a session must not outlive the roots that its client was verified with.
struct BuiltConfig {
    identity: Arc<Identity>,
    trust: Option<Arc<TrustBundle>>,
    /// Verifies clients after a handshake that accepts any certificate (`ACCEPT_UNTRUSTED`).
    untrusted: Option<Arc<ClientVerifier>>,
    with_alpn: Arc<ServerConfig>,
    /// For clients that offer none of our protocols: Envoy continues without ALPN, where rustls would send an alert.
    without_alpn: Arc<ServerConfig>,
}

impl DownstreamTls {
    /// Compiles a context; static secrets are read and checked here.
    pub fn new(context: &DownstreamTlsContext, secrets: &SecretStore) -> Result<Self, ConfigError> {
        let sources = &context.common.certificates;
        let [first, others @ ..] = sources.as_slice() else { return Err(ConfigError::NoCertificate) };
        let (trust, checks) = match (&context.common.validation, context.client_certificate) {
            (_, ClientCertificate::No) => (None, PeerChecks::default()),
            (Validation::None, _) => return Err(ConfigError::ClientCertificateWithoutTrust),
            (Validation::Chain { trust, checks }, _) => (Some(secrets.trust(trust)?), checks.clone()),
        };
        let downstream = Self {
            first: Certificate::new(first, secrets)?,
            others: others.iter().map(|source| Certificate::new(source, secrets)).collect::<Result<_, _>>()?,
            trust,
            checks,
            client_certificate: context.client_certificate,
            alpn: context.common.alpn.iter().map(|protocol| protocol.clone().into_bytes()).collect(),
            suites: Suites::new(&context.common.params)?,
        };
        let all_static = sources.iter().all(|source| matches!(source, CertificateSource::Static { .. }));
        if all_static && downstream.missing_secret().is_none() {
            for certificate in downstream.certificates() {
                downstream.current(certificate).map_err(|error| match error {
                    HandshakeError::Config(error) => error,
                    other => ConfigError::Rustls(rustls::Error::General(other.to_string())),
                })?;
            }
        }
        Ok(downstream)
    }

    /// The first secret that SDS has still to deliver; handshakes fail until then.
    pub fn missing_secret(&self) -> Option<&SdsSecret> {
        let missing = self.certificates().find_map(|certificate| certificate.identity.missing());
        missing.or_else(|| self.trust.as_ref().and_then(Slot::missing))
    }

    /// Whether clients must show a certificate.
    pub fn is_mutual(&self) -> bool {
        self.client_certificate == ClientCertificate::Required
    }

    /// Whether every client is verified, so that a connection's peer is known.
    pub fn identifies_clients(&self) -> bool {
        self.is_mutual() && !self.checks.accept_untrusted
    }

    /// Continues the handshake that `hello` began. Dropping the future closes the connection.
    pub async fn accept<S>(&self, hello: ClientHello, io: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.accept_preferring(hello, io, None).await.map_err(|failed| failed.error)
    }

    /// Like [`Self::accept`], but chooses the application protocol `preferred` if the client offers it, whatever the
    /// context says.
    pub async fn accept_preferring<S>(
        &self,
        hello: ClientHello,
        io: S,
        preferred: Option<&[u8]>,
    ) -> Result<TlsStream<S>, Box<FailedHandshake>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let built = self.current(self.choose(&hello))?;
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
                stream::send_alert(io, &bytes).await;
                let session = Session { server_name, ..Session::default() };
                return Err(Box::new(FailedHandshake { error: error.into(), session }));
            }
        };
        let local = Some(built.identity.certificate().clone());
        let session = Session { local, server_name, ..Session::default() };
        let untrusted = built.untrusted.as_deref();
        TlsStream::handshake(io, connection.into(), rest, session, untrusted, SystemTime::now()).await
    }

    fn certificates(&self) -> impl Iterator<Item = &Certificate> + Clone {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Chooses the certificate for a client as Envoy does: among those with the requested name; among all if the client
    /// requested no name; otherwise the first. ECDSA keys come first if the client can verify them.
    fn choose(&self, hello: &ClientHello) -> &Certificate {
        if self.others.is_empty() {
            return &self.first;
        }
        let identity = |certificate: &Certificate| certificate.identity.load();
        let fits = |certificate: &&Certificate, wanted: Option<NameMatch>| {
            identity(certificate).is_some_and(|identity| {
                (hello.verifies_ecdsa() || !identity.has_ecdsa_key())
                    && wanted.is_none_or(|wanted| identity.names_match(hello.server_name()) == Some(wanted))
            })
        };
        let best = |wanted: Option<NameMatch>| {
            let mut fitting = self.certificates().filter(|certificate| fits(certificate, wanted));
            let has_ecdsa = |certificate: &&Certificate| identity(certificate).is_some_and(|i| i.has_ecdsa_key());
            fitting.clone().find(has_ecdsa).or_else(|| fitting.next())
        };
        let named = best(Some(NameMatch::Exact)).or_else(|| best(Some(NameMatch::Wildcard)));
        let any = || if hello.server_name().is_none() { best(None) } else { None };
        named.or_else(any).unwrap_or(&self.first)
    }

    /// The configurations for the current secrets, built again when one has changed.
    fn current(&self, certificate: &Certificate) -> Result<Arc<BuiltConfig>, HandshakeError> {
        let identity = certificate.identity.require()?;
        let trust = self.trust.as_ref().map(Slot::require).transpose()?;
        if let Some(built) = certificate.built.load_full()
            && built.is_of(&identity, trust.as_ref())
        {
            return Ok(built);
        }
        let built = Arc::new(self.build(identity, trust)?);
        certificate.built.store(Some(built.clone()));
        Ok(built)
    }

    fn build(&self, identity: Arc<Identity>, trust: Option<Arc<TrustBundle>>) -> Result<BuiltConfig, ConfigError> {
        let builder = ServerConfig::builder_with_provider(self.suites.provider.clone());
        let builder = builder.with_protocol_versions(self.suites.versions)?;
        let mandatory = self.client_certificate == ClientCertificate::Required;
        let verifier = trust.as_deref().map(|trust| ClientVerifier::new(trust, &self.checks, mandatory));
        let verifier = verifier.transpose()?.map(Arc::new);
        let untrusted = verifier.clone().filter(|_| self.checks.accept_untrusted);
        let builder = match (verifier, &untrusted) {
            (None, _) => builder.with_no_client_auth(),
            (Some(verifier), None) => builder.with_client_cert_verifier(verifier),
            (Some(verifier), Some(_)) => builder.with_client_cert_verifier(Arc::new(UntrustedClients(verifier))),
        };
        let mut config = builder.with_cert_resolver(Arc::new(OneCertificate(identity.certified_key())));
        // Sessions live in tickets that the client keeps; the server stores none.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        let (checks, lists) = (&self.checks, self.checks.revocation.as_ref().map(RevocationLists::encoded));
        let lists = (lists, checks.revocation_of_leaf_only);
        let accepted = (self.client_certificate, checks.accept_untrusted);
        let rest = (&checks.subject_alt_names, &checks.pins, lists, accepted, &self.alpn);
        let rest = format!("{rest:?}");
        config.ticketer = Arc::new(Tickets::new(&identity, trust.as_deref(), &rest));
        config.send_tls13_tickets = 1;
        let without_alpn = Arc::new(config.clone());
        config.alpn_protocols = self.alpn.clone();
        Ok(BuiltConfig { identity, trust, untrusted, with_alpn: Arc::new(config), without_alpn })
    }
}

impl Certificate {
    fn new(source: &CertificateSource, secrets: &SecretStore) -> Result<Self, ConfigError> {
        Ok(Self { identity: secrets.identity(source)?, built: ArcSwapOption::empty() })
    }
}

impl BuiltConfig {
    fn is_of(&self, identity: &Arc<Identity>, trust: Option<&Arc<TrustBundle>>) -> bool {
        Arc::ptr_eq(&self.identity, identity) && self.trust.as_ref().map(Arc::as_ptr) == trust.map(Arc::as_ptr)
    }
}

/// Whether the two sides have a protocol in common, or one of them has no list.
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
            .field("identities", &self.certificates().map(|one| &one.identity).collect::<Vec<_>>())
            .field("trust", &self.trust)
            .field("checks", &self.checks)
            .field("client_certificate", &self.client_certificate)
            .field("alpn", &alpn)
            .finish_non_exhaustive()
    }
}
