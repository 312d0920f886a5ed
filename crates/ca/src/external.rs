//! Certificates from an external signer: builds the request, and checks that the answer is exactly what was requested.
//!
//! The signer is trusted to sign, not to decide: the identity, the key and the lifetime of a certificate are decided before.
//! So a signer that is faulty or compromised cannot give a workload another's identity through this control plane.

use std::time::{Duration, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_tls::{ChainError, PeerCertificate, TrustBundle, printable, verify_chain};
use pem::{EncodeConfig, LineEnding, Pem};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::authority::{IssuedCertificate, MAX_TTL, MIN_TTL};
use crate::csr::{self, CsrError};
use crate::plugged::to_pem;

/// Maximum number of certificates in an answer.
pub const MAX_CERTIFICATES: usize = 10;
/// How far the signer's clock may be ahead.
pub const CLOCK_SKEW: Duration = Duration::from_secs(120);
/// How long a certificate's validity may be in the future; one that begins later is refused.
pub const MAX_WAIT: Duration = Duration::from_secs(5);

/// A workload's request that has been checked and is sent to a signer.
#[derive(Debug, Clone)]
pub struct ExternalRequest {
    pem: String,
    /// The key's SubjectPublicKeyInfo, DER.
    key: Vec<u8>,
    identity: SpiffeId,
    ttl: Duration,
}

/// Why an answer is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// It contains no certificate.
    #[error("it has no certificate")]
    Empty,
    /// It contains too many certificates.
    #[error("it has more than {MAX_CERTIFICATES} certificates")]
    TooMany,
    /// A certificate cannot be parsed.
    #[error("a certificate cannot be read: {0}")]
    Malformed(String),
    /// The certificate has another name, none, or more than one.
    #[error("the certificate is for {found}, wanted `{wanted}` and no other name")]
    Names {
        /// The names in the certificate.
        found: String,
        /// The requested identity.
        wanted: String,
    },
    /// The certificate has a subject, which Envoy and gRPC compare with policies like a name.
    #[error("the certificate has the subject `{0}`, wanted none: let the signer leave the subject out")]
    Subject(String),
    /// It is for another key: the workload could not use it, or somebody else could.
    #[error("the certificate has another key than the request")]
    Key,
    /// It is a CA certificate: the workload could sign certificates with it.
    #[error("the certificate may sign others")]
    Authority,
    /// It is valid for longer than requested.
    #[error("the certificate is valid for {found_s} s, which is longer than the {wanted_s} s that were asked for")]
    TooLong {
        /// The validity from now, in seconds.
        found_s: u64,
        /// The requested lifetime, in seconds.
        wanted_s: u64,
    },
    /// It has expired, or expires before anybody could renew it.
    #[error("the certificate has expired, or does so within {} s", MIN_TTL.as_secs())]
    Expired,
    /// It is not valid yet: peers would reject it now.
    #[error("the certificate is not valid yet; the signer's clock is ahead of this one by {0} s or more")]
    NotYetValid(u64),
    /// Peers would not accept its chain.
    #[error("peers would refuse it: {0}")]
    Untrusted(#[from] ChainError),
}

impl ExternalRequest {
    /// Checks a workload's request (PEM or DER) as if it were signed here. `ttl` is clamped as for certificates signed here.
    pub fn new(request: &[u8], identity: &SpiffeId, ttl: Duration) -> Result<Self, CsrError> {
        let (der, _) = csr::checked(request, identity)?;
        let malformed = |error: &dyn std::fmt::Display| CsrError::Malformed(error.to_string());
        let (rest, parsed) = X509CertificationRequest::from_der(&der).map_err(|error| malformed(&error))?;
        if !rest.is_empty() {
            return Err(CsrError::Malformed(format!("{} bytes after the request", rest.len())));
        }
        // The signer may copy it. Istio's agents send an empty organization.
        if let Some(subject) = named(&parsed.certification_request_info.subject) {
            return Err(CsrError::Subject(subject));
        }
        let key = parsed.certification_request_info.subject_pki.raw.to_vec();
        // Encoded again: a text with several sections might contain another request than the one that was checked.
        let unix = EncodeConfig::new().set_line_ending(LineEnding::LF);
        let pem = pem::encode_config(&Pem::new("CERTIFICATE REQUEST", der.as_ref()), unix);
        Ok(Self { pem, key, identity: identity.clone(), ttl: ttl.clamp(MIN_TTL, MAX_TTL) })
    }

    /// Returns the request in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the lifetime to request.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Accepts an answer, PEM texts with the leaf first, if the certificate is what was requested and peers that trust
    /// `trust` would accept it. The signer's roots are dropped, because it does not decide which roots are trusted.
    ///
    /// # Errors
    /// Why the answer is not used.
    pub fn accept(
        &self,
        answer: &[String],
        trust: &TrustBundle,
        now: SystemTime,
    ) -> Result<IssuedCertificate, AnswerError> {
        let mut chain = Vec::new();
        for found in answer.iter().flat_map(|text| CertificateDer::pem_slice_iter(text.as_bytes())) {
            chain.push(found.map_err(|error| AnswerError::Malformed(error.to_string()))?);
            if chain.len() > MAX_CERTIFICATES {
                return Err(AnswerError::TooMany);
            }
        }
        let leaf = chain.first().ok_or(AnswerError::Empty)?;
        self.check_leaf(leaf)?;
        let malformed = |error: &dyn std::fmt::Display| AnswerError::Malformed(error.to_string());
        let parsed = PeerCertificate::parse(&chain).map_err(|error| malformed(&error))?;
        self.check_validity(&parsed, now)?;
        let mut sent = vec![leaf.clone()];
        for certificate in chain.iter().skip(1) {
            if !is_root(certificate)? {
                sent.push(certificate.clone());
            }
        }
        // Its validity may begin in a moment; the caller waits for that.
        verify_chain(trust, &sent, now.max(parsed.not_before()))?;
        Ok(IssuedCertificate {
            chain: sent.iter().map(to_pem).collect(),
            serial: parsed.serial.clone(),
            not_before: parsed.not_before(),
            not_after: parsed.not_after(),
        })
    }

    fn check_leaf(&self, leaf: &CertificateDer<'_>) -> Result<(), AnswerError> {
        let malformed = |error: &dyn std::fmt::Display| AnswerError::Malformed(error.to_string());
        let (_, certificate) = X509Certificate::from_der(leaf).map_err(|error| malformed(&error))?;
        let names = certificate.subject_alternative_name().map_err(|error| malformed(&error))?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let wanted = self.identity.to_string();
        match names {
            [GeneralName::URI(uri)] if **uri == *wanted => {}
            others => return Err(AnswerError::Names { found: describe(others), wanted }),
        }
        if let Some(subject) = named(certificate.subject()) {
            return Err(AnswerError::Subject(subject));
        }
        if certificate.public_key().raw != self.key {
            return Err(AnswerError::Key);
        }
        let usage = certificate.key_usage().map_err(|error| malformed(&error))?;
        let may_sign = usage.is_some_and(|usage| usage.value.key_cert_sign() || usage.value.crl_sign());
        if certificate.is_ca() || may_sign {
            return Err(AnswerError::Authority);
        }
        Ok(())
    }

    fn check_validity(&self, leaf: &PeerCertificate, now: SystemTime) -> Result<(), AnswerError> {
        if leaf.not_after() < now + MIN_TTL {
            return Err(AnswerError::Expired);
        }
        let left = leaf.not_after().duration_since(now).unwrap_or_default();
        if left > self.ttl + CLOCK_SKEW {
            return Err(AnswerError::TooLong { found_s: left.as_secs(), wanted_s: self.ttl.as_secs() });
        }
        match leaf.not_before().duration_since(now) {
            Ok(wait) if wait > MAX_WAIT => Err(AnswerError::NotYetValid(wait.as_secs())),
            _ => Ok(()),
        }
    }
}

/// A subject that names something; `None`: it has no attribute with a value.
fn named(subject: &X509Name<'_>) -> Option<String> {
    let is_empty = |attribute: &AttributeTypeAndValue<'_>| attribute.attr_value().data.is_empty();
    (!subject.iter_attributes().all(is_empty)).then(|| printable(&subject.to_string()))
}

/// Whether a certificate names itself as its issuer.
fn is_root(certificate: &CertificateDer<'_>) -> Result<bool, AnswerError> {
    let parsed = X509Certificate::from_der(certificate).map_err(|error| AnswerError::Malformed(error.to_string()));
    parsed.map(|(_, certificate)| certificate.issuer() == certificate.subject())
}

fn describe(names: &[GeneralName<'_>]) -> String {
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::URI(text) => format!("`{}`", printable(text)),
        GeneralName::DNSName(text) => format!("DNS `{}`", printable(text)),
        GeneralName::RFC822Name(text) => format!("e-mail `{}`", printable(text)),
        GeneralName::IPAddress(_) => "an IP address".to_owned(),
        _ => "a name of another kind".to_owned(),
    };
    match names {
        [] => "no name".to_owned(),
        _ => names.iter().take(4).map(text).collect::<Vec<_>>().join(" and "),
    }
}
