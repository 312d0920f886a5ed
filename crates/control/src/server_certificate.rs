//! The certificate of the TLS port, renewed before it expires.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_ca::rotation::Signing;
use evenkeel_ca::{Authority, SignError};
use evenkeel_tls::{ConfigError, TrustBundle, TrustError, optional_clients};
use tokio::sync::watch;
use tokio_rustls::rustls;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};

/// Names by which Istio's agents call the control plane.
const NAMES: [&str; 6] = [
    "istiod.istio-system.svc",
    "istiod.istio-system.svc.cluster.local",
    "istiod.istio-system",
    "localhost",
    "127.0.0.1",
    "::1",
];
/// Lifetime of the certificate.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// How often the certificate is checked.
const RENEWAL_CHECK: Duration = Duration::from_secs(3600);
/// The certificate is renewed when less than this time is left.
const RENEW_BEFORE: Duration = Duration::from_secs(12 * 3600);

/// Why the TLS port has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum ServerCertificateError {
    /// The authority refuses to sign it.
    #[error("the control plane's certificate: {0}")]
    Sign(#[from] SignError),
    /// rustls cannot use it.
    #[error("the control plane's certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// The authority's PEM cannot be parsed.
    #[error("the certificate authority's PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The roots are unusable.
    #[error("the certificate authority's roots: {0}")]
    Roots(#[from] TrustError),
    /// Clients cannot be verified with them.
    #[error("the verification of clients: {0}")]
    Clients(#[from] ConfigError),
}

/// The certificate in use, and what is needed to create the next one.
pub struct ServerCertificates {
    authorities: watch::Receiver<Arc<Signing>>,
    names: Vec<String>,
    /// The trust domain of the mesh.
    trust_domain: Arc<str>,
    config: watch::Sender<Arc<ServerConfig>>,
    not_after: SystemTime,
}

impl std::fmt::Debug for ServerCertificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCertificates").field("names", &self.names).finish_non_exhaustive()
    }
}

impl ServerCertificates {
    /// Creates the first certificate, for the usual names and `more`. Clients may present a certificate of the mesh; one that
    /// is presented must be valid, and a URI in it must be of `trust_domain`: another mesh may have
    /// the same root.
    pub fn new(
        mut authorities: watch::Receiver<Arc<Signing>>,
        more: &[String],
        trust_domain: Arc<str>,
    ) -> Result<Self, ServerCertificateError> {
        let names: Vec<String> = NAMES.iter().map(|&n| n.to_owned()).chain(more.iter().cloned()).collect();
        let (config, not_after) = configure(&authorities.borrow_and_update(), &names, &trust_domain)?;
        Ok(Self { authorities, names, trust_domain, config: watch::Sender::new(Arc::new(config)), not_after })
    }

    /// Returns the TLS configuration, which follows the current certificate and roots.
    pub fn config(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.config.subscribe()
    }

    /// Renews the certificate before it expires and when the authorities change; never completes.
    pub async fn renew(mut self) {
        loop {
            let changed = tokio::time::timeout(RENEWAL_CHECK, self.authorities.changed()).await;
            let left = self.not_after.duration_since(SystemTime::now()).unwrap_or_default();
            match changed {
                Ok(Err(_)) => return,
                Err(_) if left > RENEW_BEFORE => continue,
                _ => {}
            }
            let signing = self.authorities.borrow_and_update().clone();
            match configure(&signing, &self.names, &self.trust_domain) {
                Ok((config, not_after)) => {
                    self.config.send_replace(Arc::new(config));
                    self.not_after = not_after;
                }
                Err(error) => tracing::error!(%error, ?left, "the control plane's certificate cannot be renewed"),
            }
        }
    }
}

fn configure(
    signing: &Signing,
    names: &[String],
    trust_domain: &str,
) -> Result<(ServerConfig, SystemTime), ServerCertificateError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let (key, not_after) = issue(&signing.server, names, &provider)?;
    // As in Istio, the trust domain is checked in the handshake: no service behind it has to.
    let trust = TrustBundle::from_pem(signing.roots.as_bytes())?;
    let trust = match &signing.revocation_lists {
        // As proxies do: a certificate that no valid revocation list covers is rejected.
        Some(lists) => trust.with_revocation_lists(lists.as_bytes())?,
        None => trust,
    };
    let clients = optional_clients(&trust, trust_domain)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::unwrap_or_clone(key))));
    config.alpn_protocols = vec![b"h2".to_vec()];
    // Sessions are not resumed, so that every connection presents its certificate again; it may no longer be valid.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((config, not_after))
}

fn issue(
    authority: &Authority,
    names: &[String],
    provider: &CryptoProvider,
) -> Result<(Arc<CertifiedKey>, SystemTime), ServerCertificateError> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let made = authority.server_certificate(&names, TTL, SystemTime::now())?;
    let chain = CertificateDer::pem_slice_iter(made.chain_pem.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(made.key_pem.as_bytes())?;
    Ok((Arc::new(CertifiedKey::from_der(chain, key, provider)?), made.not_after))
}
