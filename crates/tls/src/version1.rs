//! Certificates of X.509 version 1 (RFC 5280 section 4.1.2.1), such as `openssl x509 -req` makes without extensions.
//!
//! webpki reads only version 3. BoringSSL, and so Envoy, does not look at a leaf's version. Therefore a leaf of version 1
//! is verified here, if a root has signed it directly: its validity, its signature, and that it has no extensions. Everything
//! else about such a certificate is refused with a message that says how to make one of version 3.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, PeerMisbehaved, RootCertStore};
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime};
use webpki::RawPublicKeyEntity;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::{FromDer, X509Version};

use crate::peer::rfc2253;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;

/// Why a certificate of version 1 is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version1Refused {
    /// Whose certificate it is.
    subject: String,
    reason: &'static str,
}

impl std::error::Error for Version1Refused {}

impl fmt::Display for Version1Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the certificate of `{}` is of X.509 version 1, and {}; make one of version 3, for example with \
             `openssl x509 -req -extfile FILE …`, where FILE has a line such as `subjectAltName = DNS:NAME`",
            self.subject, self.reason
        )
    }
}

impl From<Version1Refused> for Error {
    fn from(refused: Version1Refused) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refused))))
    }
}

/// A certificate of version 1.
#[derive(Debug)]
pub(crate) struct Version1<'c> {
    der: &'c [u8],
    parsed: X509Certificate<'c>,
}

impl<'c> Version1<'c> {
    /// Reads a certificate; `None` if it is of another version or damaged.
    pub(crate) fn read(certificate: &'c CertificateDer<'_>) -> Option<Self> {
        let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
        (rest.is_empty() && parsed.version() == X509Version::V1).then_some(Self { der: certificate, parsed })
    }

    /// The public key, as a SubjectPublicKeyInfo.
    pub(crate) fn public_key(&self) -> SubjectPublicKeyInfoDer<'c> {
        SubjectPublicKeyInfoDer::from(self.parsed.tbs_certificate.subject_pki.raw)
    }

    pub(crate) fn refused(&self, reason: &'static str) -> Version1Refused {
        Version1Refused { subject: rfc2253(self.parsed.subject()), reason }
    }

    /// Whether one of the roots has signed this certificate, and it is valid.
    pub(crate) fn verify(
        &self,
        roots: &RootCertStore,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: UnixTime,
    ) -> Result<(), Error> {
        if !self.parsed.extensions().is_empty() || self.parsed.tbs_certificate.issuer_uid.is_some() {
            return Err(self.refused("has fields of a later version").into());
        }
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let validity = self.parsed.validity();
        if now.as_secs() < seconds(validity.not_before.timestamp()) {
            return Err(CertificateError::NotValidYet.into());
        }
        if now.as_secs() > seconds(validity.not_after.timestamp()) {
            return Err(CertificateError::Expired.into());
        }
        let signed = Signed::read(self.der).ok_or(CertificateError::BadEncoding)?;
        let (_, issuer, _) = element(self.parsed.issuer().as_raw()).ok_or(CertificateError::BadEncoding)?;
        let mut issuers = roots.roots.iter().filter(|root| root.subject.as_ref() == issuer).peekable();
        if issuers.peek().is_none() {
            return Err(self.refused("no trusted root has signed it directly").into());
        }
        // What a constrained root may sign cannot be told for a certificate without names.
        let mut issuers = issuers.filter(|root| root.name_constraints.is_none());
        match issuers.any(|root| signed.is_by(root.subject_public_key_info.as_ref(), algorithms)) {
            true => Ok(()),
            false => Err(CertificateError::BadSignature.into()),
        }
    }
}

/// The first certificate of version 1 among those that have to sign others: none may.
pub(crate) fn refuse_authorities(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    match intermediates.iter().find_map(Version1::read) {
        Some(authority) => Err(authority.refused("such a certificate cannot sign others").into()),
        None => Ok(()),
    }
}

/// Verifies a handshake's signature of TLS 1.2 with the key of a certificate.
pub(crate) fn verify_tls12_signature(
    key: &SubjectPublicKeyInfoDer<'_>,
    message: &[u8],
    signature: &DigitallySignedStruct,
    supported: &WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let bad = |_| Error::from(CertificateError::BadEncoding);
    let key = RawPublicKeyEntity::try_from(key).map_err(bad)?;
    let algorithms = supported.mapping.iter().find(|(scheme, _)| *scheme == signature.scheme);
    let Some((_, algorithms)) = algorithms else {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    };
    let verifies = |algorithm: &&dyn SignatureVerificationAlgorithm| {
        key.verify_signature(*algorithm, message, signature.signature()).is_ok()
    };
    match algorithms.iter().any(verifies) {
        true => Ok(()),
        false => Err(CertificateError::BadSignature.into()),
    }
}

/// The outer parts of a certificate.
struct Signed<'c> {
    /// What is signed.
    message: &'c [u8],
    /// The contents of the AlgorithmIdentifier.
    algorithm: &'c [u8],
    signature: &'c [u8],
}

impl<'c> Signed<'c> {
    fn read(der: &'c [u8]) -> Option<Self> {
        let (SEQUENCE, certificate, []) = element(der)? else { return None };
        let (SEQUENCE, tbs, rest) = element(certificate)? else { return None };
        let message = certificate.get(..certificate.len() - rest.len())?;
        let (SEQUENCE, algorithm, rest) = element(rest)? else { return None };
        let (BIT_STRING, [0, signature @ ..], []) = element(rest)? else { return None };
        // Version 1 is the default and therefore left out; the serial number and the algorithm follow.
        let (INTEGER, _, rest) = element(tbs)? else { return None };
        let (SEQUENCE, inner, _) = element(rest)? else { return None };
        (inner == algorithm).then_some(Self { message, algorithm, signature })
    }

    /// Whether the key signed it. `key`: the contents of a SubjectPublicKeyInfo, as webpki keeps them of a root.
    fn is_by(&self, key: &[u8], algorithms: &[&dyn SignatureVerificationAlgorithm]) -> bool {
        let Some(whole) = sequence(key) else { return false };
        let whole = SubjectPublicKeyInfoDer::from(whole);
        let Ok(key) = RawPublicKeyEntity::try_from(&whole) else { return false };
        let mut fitting = algorithms.iter().filter(|known| known.signature_alg_id().as_ref() == self.algorithm);
        fitting.any(|algorithm| key.verify_signature(*algorithm, self.message, self.signature).is_ok())
    }
}

/// The tag and the contents of the first DER element, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, length, rest) = match der {
        [tag, short @ 0..=0x7f, rest @ ..] => (*tag, usize::from(*short), rest),
        [tag, 0x81, length, rest @ ..] => (*tag, usize::from(*length), rest),
        [tag, 0x82, high, low, rest @ ..] => (*tag, usize::from(*high) << 8 | usize::from(*low), rest),
        _ => return None,
    };
    Some((tag, rest.get(..length)?, rest.get(length..)?))
}

/// The contents as a DER sequence; a key has less than 64 KiB.
fn sequence(contents: &[u8]) -> Option<Vec<u8>> {
    let [high, low] = u16::try_from(contents.len()).ok()?.to_be_bytes();
    let head: &[u8] = match (high, low) {
        (0, low @ 0..=0x7f) => &[SEQUENCE, low],
        (0, low) => &[SEQUENCE, 0x81, low],
        (high, low) => &[SEQUENCE, 0x82, high, low],
    };
    Some([head, contents].concat())
}
