//! Why a TLS context cannot be used, and why a handshake failed.

use std::error::Error as _;
use std::io;

use rustls::CertificateError;

use crate::identity::IdentityError;
use crate::sds::SdsSecret;
use crate::session::Session;
use crate::trust::TrustError;

/// A TLS context that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A server without a certificate.
    #[error("a downstream TLS context needs tls_certificates or tls_certificate_sds_secret_configs")]
    NoCertificate,
    /// A client with more than one certificate.
    #[error("an upstream TLS context accepts at most one certificate")]
    ClientCertificates,
    /// A certificate or its key cannot be used.
    #[error("tls_certificates: {0}")]
    Identity(#[source] IdentityError),
    /// A trust bundle cannot be used.
    #[error("trusted_ca: {0}")]
    Trust(#[source] TrustError),
    /// The roots of trust domains cannot be used.
    #[error("custom_validator_config: {0}")]
    Domains(#[source] TrustError),
    /// A file named by the context cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The lowest protocol version is above the highest.
    #[error("tls_params: no protocol version between {minimum} and {maximum}")]
    Versions {
        /// `tls_minimum_protocol_version`.
        minimum: &'static str,
        /// `tls_maximum_protocol_version`.
        maximum: &'static str,
    },
    /// A name that is not known as a cipher suite.
    #[error("tls_params.cipher_suites: `{0}` is not the name of a cipher suite")]
    UnknownCipherSuite(String),
    /// None of the listed suites is supported.
    #[error(
        "tls_params.cipher_suites: none of {0:?} is supported; add ECDHE-ECDSA-AES128-GCM-SHA256 or another ECDHE suite with AES-GCM or ChaCha20"
    )]
    NoCipherSuite(Vec<String>),
    /// A name that is not known as a curve.
    #[error("tls_params.ecdh_curves: `{0}` is not one of P-256, P-384, P-521, X25519, X25519MLKEM768")]
    UnknownCurve(String),
    /// None of the listed curves is supported.
    #[error("tls_params.ecdh_curves: none of {0:?} is supported; add P-256, P-384, X25519 or X25519MLKEM768")]
    NoCurve(Vec<String>),
    /// A client certificate is required, but there are no roots to verify it with.
    #[error("require_client_certificate needs a validation_context with trusted_ca")]
    ClientCertificateWithoutTrust,
    /// A SAN matcher's regular expression does not compile.
    #[error("match_typed_subject_alt_names: {0}")]
    SanPattern(String),
    /// The server name is not a DNS name.
    #[error("sni: `{0}` is not a DNS name")]
    Sni(String),
    /// rustls refused the combination.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

/// A handshake that failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The certificate or trust bundle this side needs has not arrived over SDS.
    #[error("the secret `{0}` has not arrived over SDS")]
    SecretMissing(SdsSecret),
    /// A secret that arrived later cannot be used with this context.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket failed or was closed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer has to present a certificate and did not.
    #[error("the peer's certificate was refused: the peer presented none")]
    NoPeerCertificate,
    /// None of the names in the peer's certificate is an expected one.
    #[error("the peer's certificate was refused: {0}")]
    PeerNames(SanMismatch),
    /// The peer's certificate was refused by us for another reason.
    #[error("the peer's certificate was refused: {0}")]
    PeerCertificate(String),
    /// A resumed session began with a certificate that is no longer valid.
    #[error("the peer resumed a session whose certificate has expired")]
    ResumedExpired,
    /// The peer refused us: it sent this alert.
    #[error("the peer sent the alert {0}")]
    Alert(String),
    /// Any other protocol error.
    #[error("TLS: {0}")]
    Protocol(#[source] rustls::Error),
}

/// A handshake that failed, and how far it got.
#[derive(Debug)]
pub struct FailedHandshake {
    /// Why.
    pub error: HandshakeError,
    /// What had been negotiated by then; version and cipher are empty until they are known. The peer is the one named
    /// in the refused certificate.
    pub session: Session,
}

impl From<HandshakeError> for Box<FailedHandshake> {
    fn from(error: HandshakeError) -> Self {
        Self::new(FailedHandshake { error, session: Session::default() })
    }
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(reason) => match mismatch(&reason) {
                Some(mismatch) => Self::PeerNames(mismatch.clone()),
                None => Self::PeerCertificate(certificate_reason(&reason)),
            },
            rustls::Error::NoCertificatesPresented => Self::NoPeerCertificate,
            rustls::Error::AlertReceived(alert) => Self::Alert(format!("{alert:?}")),
            other => Self::Protocol(other),
        }
    }
}

impl HandshakeError {
    /// Whether the cause is this side's configuration or secrets, not the peer or the network.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::SecretMissing(_) | Self::Config(_))
    }
}

/// The name mismatch that our verifiers reported, taken out of rustls' error.
fn mismatch(reason: &CertificateError) -> Option<&SanMismatch> {
    match reason {
        CertificateError::Other(other) => other.0.downcast_ref(),
        _ => None,
    }
}

/// The reason in words; rustls prints reasons of our own verifiers only in their debug form.
fn certificate_reason(reason: &CertificateError) -> String {
    match reason {
        CertificateError::Other(other) => match other.source() {
            Some(source) => source.to_string(),
            None => other.to_string(),
        },
        CertificateError::UnknownIssuer => "it is not signed by a trusted root".into(),
        CertificateError::BadSignature => "its signature is wrong".into(),
        CertificateError::Expired => "it has expired".into(),
        CertificateError::ExpiredContext { time, not_after } => {
            format!("it expired {} s ago", time.as_secs().saturating_sub(not_after.as_secs()))
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet".into(),
        CertificateError::Revoked => "it has been revoked".into(),
        CertificateError::UnknownRevocationStatus => {
            "no revocation list of its issuer says whether it is revoked".into()
        }
        CertificateError::ExpiredRevocationList | CertificateError::ExpiredRevocationListContext { .. } => {
            "the revocation list of its issuer is out of date".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its extended key usage does not cover this use".into()
        }
        other => other.to_string(),
    }
}

/// None of a certificate's names is the expected one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("expected {expected}, the certificate is for {}", seen(.presented))]
pub struct SanMismatch {
    pub(crate) expected: String,
    pub(crate) presented: Vec<String>,
}

impl SanMismatch {
    /// The names the certificate has.
    pub fn presented(&self) -> &[String] {
        &self.presented
    }
}

fn seen(presented: &[String]) -> String {
    match presented {
        [] => "no name at all".into(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}
