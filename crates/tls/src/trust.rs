//! The roots a peer's certificate may be signed by.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::revocation::{RevocationError, RevocationLists};

/// Most roots in one bundle, in certificates; a system's whole store has about 150.
pub const MAX_ROOTS: usize = 1000;

/// One root or several, as during a rotation.
#[derive(Clone)]
pub struct TrustBundle {
    roots: Arc<RootCertStore>,
    revocation: Option<RevocationLists>,
}

/// Why a PEM text is not a trust bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The text has no certificate.
    #[error("holds no `BEGIN CERTIFICATE` section")]
    Empty,
    /// More than [`MAX_ROOTS`].
    #[error("holds more than {MAX_ROOTS} certificates")]
    TooMany,
    /// A certificate is damaged or cannot be a root.
    #[error("certificate {number} cannot be used as a root: {reason}")]
    BadCertificate {
        /// Place in the text, from 1.
        number: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The revocation lists that came with them cannot be used.
    #[error("crl: {0}")]
    Revocation(#[source] RevocationError),
}

impl TrustBundle {
    /// Parses every certificate of a PEM text as a root.
    pub fn from_pem(text: &[u8]) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        for (index, certificate) in CertificateDer::pem_slice_iter(text).enumerate() {
            let bad = |reason: String| TrustError::BadCertificate { number: index + 1, reason };
            if index == MAX_ROOTS {
                return Err(TrustError::TooMany);
            }
            let certificate = certificate.map_err(|error| bad(error.to_string()))?;
            roots.add(certificate).map_err(|error| bad(error.to_string()))?;
        }
        match roots.is_empty() {
            true => Err(TrustError::Empty),
            false => Ok(Self { roots: Arc::new(roots), revocation: None }),
        }
    }

    /// The same roots, with the revocation lists of a PEM text that was delivered together with them.
    pub fn with_revocation_lists(self, lists: &[u8]) -> Result<Self, TrustError> {
        let revocation = RevocationLists::from_pem(lists).map_err(TrustError::Revocation)?;
        Ok(Self { revocation: Some(revocation), ..self })
    }

    /// The revocation lists that were delivered with the roots.
    pub(crate) fn revocation(&self) -> Option<&RevocationLists> {
        self.revocation.as_ref()
    }

    /// How many roots there are.
    pub fn count(&self) -> usize {
        self.roots.len()
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        self.roots.clone()
    }
}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustBundle").field("roots", &self.roots.len()).field("revocation", &self.revocation).finish()
    }
}
