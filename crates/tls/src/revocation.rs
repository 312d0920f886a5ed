//! Certificate revocation lists (RFC 5280 section 5).
//!
//! As in Envoy, a context with such lists accepts a certificate only if a valid list of its issuer does not name it: a
//! missing and an outdated list both refuse it.

use std::fmt;
use std::sync::Arc;

use rustls::{CertificateError, Error, OtherError, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, SignatureVerificationAlgorithm, UnixTime};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy,
};

/// Maximum number of lists of one context.
pub const MAX_LISTS: usize = 100;

/// Revocation lists of the issuers of peers' certificates.
#[derive(Clone)]
pub struct RevocationLists {
    encoded: Arc<[CertificateRevocationListDer<'static>]>,
    parsed: Arc<[CertRevocationList<'static>]>,
}

/// Why a PEM text is not a set of revocation lists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevocationError {
    /// The text has no list.
    #[error("holds no `BEGIN X509 CRL` section")]
    Empty,
    /// More than [`MAX_LISTS`].
    #[error("holds more than {MAX_LISTS} revocation lists")]
    TooMany,
    /// A list is damaged.
    #[error("revocation list {number} cannot be used: {reason}")]
    Bad {
        /// Place in the text, from 1.
        number: usize,
        /// The error.
        reason: String,
    },
}

impl RevocationLists {
    /// Parses every list of a PEM text.
    pub fn from_pem(text: &[u8]) -> Result<Self, RevocationError> {
        let (mut encoded, mut parsed) = (Vec::new(), Vec::new());
        for (index, list) in CertificateRevocationListDer::pem_slice_iter(text).enumerate() {
            let bad = |reason: String| RevocationError::Bad { number: index + 1, reason };
            if index == MAX_LISTS {
                return Err(RevocationError::TooMany);
            }
            let list = list.map_err(|error| bad(error.to_string()))?;
            let owned = OwnedCertRevocationList::from_der(&list).map_err(|error| bad(error.to_string()))?;
            parsed.push(CertRevocationList::from(owned));
            encoded.push(list);
        }
        match encoded.is_empty() {
            true => Err(RevocationError::Empty),
            false => Ok(Self { encoded: encoded.into(), parsed: parsed.into() }),
        }
    }

    /// The lists in DER.
    pub(crate) fn encoded(&self) -> &[CertificateRevocationListDer<'static>] {
        &self.encoded
    }

    /// Checks the revocation of a server's certificate, whose chain has been verified.
    pub(crate) fn check_server(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        roots: &RootCertStore,
        leaf_only: bool,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: UnixTime,
    ) -> Result<(), Error> {
        let lists: Vec<&CertRevocationList<'_>> = self.parsed.iter().collect();
        let depth = if leaf_only { RevocationCheckDepth::EndEntity } else { RevocationCheckDepth::Chain };
        let options = RevocationOptionsBuilder::new(&lists)
            .map_err(|_| Error::General("no revocation lists".into()))?
            .with_depth(depth)
            .with_status_policy(UnknownStatusPolicy::Deny)
            .with_expiration_policy(ExpirationPolicy::Enforce)
            .build();
        let end_entity = EndEntityCert::try_from(end_entity).map_err(refusal)?;
        let (anchors, usage) = (&roots.roots, KeyUsage::server_auth());
        let verified = end_entity.verify_for_usage(algorithms, anchors, intermediates, now, usage, Some(options), None);
        verified.map(drop).map_err(refusal)
    }
}

fn refusal(error: webpki::Error) -> Error {
    Error::InvalidCertificate(match error {
        webpki::Error::CertRevoked => CertificateError::Revoked,
        webpki::Error::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
        webpki::Error::CrlExpired { .. } => CertificateError::ExpiredRevocationList,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    })
}

impl fmt::Debug for RevocationLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocationLists").field("lists", &self.encoded.len()).finish()
    }
}
