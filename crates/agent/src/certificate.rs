//! The workload's certificate: requests it, renews it and publishes it.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand;
use evenkeel_tls::config::CertificateSource;
use evenkeel_tls::slot::Slot;
use evenkeel_tls::{ConfigError, Identity, IdentityError, SecretStore};
use evenkeel_xds::client::Backoff;
use evenkeel_xds::istio::auth::IstioCertificateRequest;
use evenkeel_xds::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use tokio::sync::watch;
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::channel::{self, ChannelError};
use crate::grpc;
use crate::options::{Options, OptionsError};
use crate::sds::{PemBundle, Secrets};

/// Share of a certificate's lifetime after which it is renewed.
const RENEW_AT: f64 = 0.8;
/// Random share by which the renewal is earlier or later, so that workloads started together do not renew together.
const RENEW_JITTER: f64 = 0.05;
/// Least time between two renewals, whatever the certificates' lifetime.
const MIN_RENEWAL: Duration = Duration::from_secs(1);
/// How often the root file is checked for new roots.
const ROOT_CHECK: Duration = Duration::from_secs(2);
/// How long the control plane may take to sign.
const SIGN_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate in force, for status reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentCertificate {
    /// The SPIFFE id in it.
    pub identity: String,
    /// End of its validity.
    pub not_after: SystemTime,
}

/// Why the workload could not get a certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The options do not make an identity.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A file cannot be read, or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The token has characters that a header must not have.
    #[error("{0}: not a token")]
    Token(PathBuf),
    /// The control plane cannot be reached.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The control plane refused.
    #[error("the control plane signed no certificate: {}: {}", .0.code(), .0.message())]
    Refused(tonic::Status),
    /// The control plane's answer has no certificate.
    #[error("the control plane answered without a certificate chain")]
    Empty,
    /// The certificate is not usable.
    #[error("the control plane sent a certificate that cannot be used: {0}")]
    Unusable(#[from] IdentityError),
    /// The certificate is for another identity.
    #[error("the control plane sent a certificate for {received}, wanted {wanted}")]
    Identity {
        /// Name in the certificate.
        received: String,
        /// Name asked for.
        wanted: String,
    },
    /// The key or request could not be made.
    #[error("cannot make a key or a signing request: {0}")]
    Request(#[from] rcgen::Error),
}

/// Gets one workload's certificate and renews it.
pub struct CertificateRenewer {
    options: Options,
    /// For the proxy.
    secrets: Secrets,
    /// For the agent's own stream. Holding a slot keeps the value in the store.
    store: SecretStore,
    _slot: Slot<Identity>,
    current: watch::Sender<Option<CurrentCertificate>>,
    renew_at: SystemTime,
    material: Option<PemBundle>,
    /// Whether the files for gRPC programs are older than `material`.
    unwritten: bool,
}

impl CertificateRenewer {
    /// Makes a renewer without a certificate yet. It publishes to `secrets` and `store` and reports to `current`.
    pub fn new(
        options: Options,
        secrets: Secrets,
        store: SecretStore,
        current: watch::Sender<Option<CurrentCertificate>>,
    ) -> Result<Self, ConfigError> {
        let slot = store.identity(&CertificateSource::Sds(channel::certificate_secret()))?;
        let renew_at = SystemTime::UNIX_EPOCH;
        Ok(Self { options, secrets, store, _slot: slot, current, renew_at, material: None, unwritten: false })
    }

    /// Gets a certificate, trying until there is one.
    pub async fn obtain(&mut self) {
        let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, u64::from(std::process::id()));
        loop {
            match self.try_obtain().await {
                Ok(()) => return,
                Err(error) => {
                    let wait = backoff.next_wait();
                    tracing::warn!(%error, ?wait, "no certificate; trying again");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Renews the certificate and follows the root file until the future is dropped.
    pub async fn keep(mut self) {
        loop {
            let due = self.renew_at.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::time::sleep(due.min(ROOT_CHECK)).await;
            if self.unwritten {
                self.write_files();
            }
            if SystemTime::now() >= self.renew_at {
                self.obtain().await;
            } else if let Err(error) = self.follow_roots() {
                tracing::warn!(%error, "the root file is not usable; the previous roots stay in use");
            }
        }
    }

    async fn try_obtain(&mut self) -> Result<(), CertificateError> {
        let (material, identity) = request(&self.options).await?;
        // Counted from now: the certificate's validity begins a little earlier, for peers whose clock is slow.
        let now = SystemTime::now();
        let lifetime = identity.not_after().duration_since(now).unwrap_or_default();
        let share = RENEW_AT + RENEW_JITTER * (2.0 * random_share() - 1.0);
        self.renew_at = now + lifetime.mul_f64(share).max(MIN_RENEWAL);
        let current =
            CurrentCertificate { identity: identity.certificate().display_name(), not_after: identity.not_after() };
        tracing::info!(identity = current.identity, ?lifetime, "certificate received");
        self.publish(material)?;
        self.current.send_replace(Some(current));
        Ok(())
    }

    /// Trusts a root that the operator adds to the file at once, not only with the next certificate.
    fn follow_roots(&mut self) -> Result<(), CertificateError> {
        let Some(material) = self.material.clone() else { return Ok(()) };
        let file = read(&self.options.root_cert)?;
        let roots = merge_roots(&[&file, &material.roots]);
        if roots != material.roots && evenkeel_tls::TrustBundle::from_pem(roots.as_bytes()).is_ok() {
            tracing::info!("the trusted roots have changed");
            self.publish(PemBundle { roots, ..material })?;
        }
        Ok(())
    }

    fn publish(&mut self, material: PemBundle) -> Result<(), CertificateError> {
        let secret = channel::certificate_secret();
        self.store.set_identity(&secret, material.chain.as_bytes(), material.key.as_bytes())?;
        // Publish before any file is written: what the proxy uses must not depend on the disk.
        self.secrets.publish(&material);
        self.material = Some(material);
        self.write_files();
        Ok(())
    }

    /// Writes the certificate for gRPC programs, which read it from files. A failed write is tried again; until then
    /// they use the previous certificate.
    fn write_files(&mut self) {
        let Some(material) = self.material.as_ref().filter(|_| self.options.grpc_bootstrap.is_some()) else { return };
        let written = grpc::write_certificate(&self.options.state, material);
        if let Err((path, error)) = &written
            && !self.unwritten
        {
            tracing::error!(path = %path.display(), %error, "cannot write the certificate for gRPC programs; trying again");
        }
        self.unwritten = written.is_err();
    }
}

/// Makes a key, requests a certificate for it, and checks the answer.
async fn request(options: &Options) -> Result<(PemBundle, Identity), CertificateError> {
    let wanted = options.identity()?.to_string();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(wanted.as_str().try_into()?)];
    let csr = params.serialize_request(&key)?.pem()?;

    let chain = sign(options, csr).await?;
    // Leaf first, root last.
    let (root, chain) = chain.split_last().ok_or(CertificateError::Empty)?;
    let chain: String = chain.iter().map(|certificate| with_newline(certificate)).collect();
    let key = key.serialize_pem();
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes(), SystemTime::now())?;
    let received = identity.certificate().display_name();
    if received != wanted {
        return Err(CertificateError::Identity { received, wanted });
    }
    let file = read(&options.root_cert)?;
    Ok((PemBundle { chain, key, roots: merge_roots(&[&file, root]) }, identity))
}

async fn sign(options: &Options, csr: String) -> Result<Vec<String>, CertificateError> {
    // The token is read each time, because a cluster replaces it about every hour.
    let token = read(&options.token)?;
    let bearer = MetadataValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| CertificateError::Token(options.token.clone()))?;
    let channel = channel::connect(options, None).await?;
    let validity_duration = i64::try_from(options.certificate_ttl_s).unwrap_or(i64::MAX);
    let mut request = Request::new(IstioCertificateRequest { csr, validity_duration, metadata: None });
    request.metadata_mut().insert("authorization", bearer);
    request.set_timeout(SIGN_TIMEOUT);
    let response = IstioCertificateServiceClient::new(channel).create_certificate(request).await;
    Ok(response.map_err(CertificateError::Refused)?.into_inner().cert_chain)
}

/// Reads a small local file on the runtime's thread: a blocking thread would stay alive, and so would its memory.
fn read(path: &std::path::Path) -> Result<String, CertificateError> {
    std::fs::read_to_string(path).map_err(|source| CertificateError::File { path: path.to_owned(), source })
}

fn with_newline(text: &str) -> String {
    format!("{}\n", text.trim_end())
}

/// All certificates of several PEM texts, each once, in order.
fn merge_roots(texts: &[&str]) -> String {
    let mut roots: Vec<pem::Pem> = Vec::new();
    for certificate in texts.iter().flat_map(|text| pem::parse_many(text).unwrap_or_default()) {
        if certificate.tag() == "CERTIFICATE" && !roots.iter().any(|known| known.contents() == certificate.contents()) {
            roots.push(certificate);
        }
    }
    let unix = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    // Comments between certificates are not kept.
    roots
        .into_iter()
        .map(|root| pem::encode_config(&pem::Pem::new("CERTIFICATE", root.into_contents()), unix))
        .collect()
}

/// A random number from 0 to 1.
fn random_share() -> f64 {
    let mut bytes = [0; 4];
    match rand::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}
