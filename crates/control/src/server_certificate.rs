//! The TLS port's own certificate, renewed before it ends.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use evenkeel_ca::{Authority, SignError};
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier,
};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

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
/// How often it is looked at.
const RENEWAL_CHECK: Duration = Duration::from_secs(3600);
/// It is renewed when less than this is left.
const RENEW_BEFORE: Duration = Duration::from_secs(12 * 3600);

/// Why the TLS port has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum ServerCertificateError {
    /// The authority does not sign it.
    #[error("the control plane's certificate: {0}")]
    Sign(#[from] SignError),
    /// It cannot be used.
    #[error("the control plane's certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// PEM of the authority cannot be read.
    #[error("the certificate authority's PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The roots are unusable.
    #[error("the certificate authority's roots: {0}")]
    Roots(#[from] VerifierBuilderError),
}

/// The certificate in use, and what makes the next one.
pub struct ServerCertificates {
    authority: Arc<Authority>,
    names: Vec<String>,
    current: Arc<Current>,
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for ServerCertificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCertificates").field("names", &self.names).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Current(RwLock<(Arc<CertifiedKey>, SystemTime)>);

impl ServerCertificates {
    /// Makes the first certificate, for the usual names and `more`. Clients may show a certificate of the mesh; one that
    /// is shown must be valid.
    pub fn new(authority: Arc<Authority>, more: &[String]) -> Result<Self, ServerCertificateError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let names: Vec<String> = NAMES.iter().map(|&n| n.to_owned()).chain(more.iter().cloned()).collect();
        let current = Arc::new(Current(RwLock::new(issue(&authority, &names, &provider)?)));
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(authority.trust_bundle_pem().as_bytes()) {
            roots.add(root?)?;
        }
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .allow_unauthenticated()
            .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Every connection shows its certificate anew: a session that is resumed shows what was valid once.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { authority, names, current, config: Arc::new(config) })
    }

    /// TLS with whatever certificate is current.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// Renews the certificate in time, for ever.
    pub async fn renew(self) {
        let provider = Arc::new(aws_lc_rs::default_provider());
        loop {
            tokio::time::sleep(RENEWAL_CHECK).await;
            let left = self.current.not_after().duration_since(SystemTime::now()).unwrap_or_default();
            if left > RENEW_BEFORE {
                continue;
            }
            match issue(&self.authority, &self.names, &provider) {
                Ok(next) => *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = next,
                Err(error) => tracing::error!(%error, ?left, "the control plane's certificate cannot be renewed"),
            }
        }
    }
}

impl Current {
    fn not_after(&self) -> SystemTime {
        self.0.read().unwrap_or_else(PoisonError::into_inner).1
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).0.clone())
    }
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
