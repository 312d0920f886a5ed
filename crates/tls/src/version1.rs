//! Certificates of X.509 version 1 (RFC 5280 section 4.1.2.1), such as `openssl x509 -req` makes without extensions.
//!
//! webpki reads only version 3. BoringSSL, and so Envoy, does not look at a leaf's version. Therefore a leaf of version 1
//! is verified here: its validity, that it has no extensions, and with [`crate::authorities`] its chain. What is refused is refused
//! with a message that says how to make a certificate of version 3.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, PeerMisbehaved};
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::RawPublicKeyEntity;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::{FromDer, X509Version};

use crate::authorities::Authorities;
use crate::peer::rfc2253;

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

    /// Whether a root vouches for this certificate, directly or through other authorities, and it is valid.
    pub(crate) fn verify(&self, authorities: &Authorities<'_>) -> Result<(), Error> {
        if !self.parsed.extensions().is_empty() || self.parsed.tbs_certificate.issuer_uid.is_some() {
            return Err(self.refused("has fields of a later version").into());
        }
        if authorities.vouch_for(self.der, &self.parsed)? {
            Ok(())
        } else {
            Err(self.refused("neither a trusted root nor an authority that came with it has signed it").into())
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
    if algorithms.iter().any(verifies) { Ok(()) } else { Err(CertificateError::BadSignature.into()) }
}
