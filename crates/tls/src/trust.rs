//! The roots a peer's certificate may be signed by.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use evenkeel_base::spiffe;
use rustls::{CertificateError, Error, OtherError, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::peer::PeerCertificate;
use crate::revocation::{RevocationError, RevocationLists};

/// Maximum number of roots in one bundle; a system's whole store has about 150.
pub const MAX_ROOTS: usize = 1000;
/// Maximum number of trust domains of one bundle.
pub const MAX_TRUST_DOMAINS: usize = 1000;

/// One root or several, as during a rotation. Either all of them are trusted for every name, or each only for the identities
/// of its trust domain.
#[derive(Clone)]
pub struct TrustBundle {
    /// All roots.
    roots: Arc<RootCertStore>,
    /// The roots of each trust domain, if they are separate.
    domains: Option<Arc<BTreeMap<Box<str>, Arc<RootCertStore>>>>,
    revocation: Option<RevocationLists>,
}

/// Why no root can vouch for a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DomainError {
    /// The certificate has no SPIFFE id, or several URIs.
    #[error("it has no SPIFFE id, or more than one URI; here roots count for one trust domain each")]
    NoDomain,
    /// There are no roots of its trust domain.
    #[error("there are no roots of its trust domain `{0}`")]
    Unknown(String),
    /// Only identities of one trust domain are accepted, and this is another one.
    #[error("its trust domain `{found}` is not that of this mesh, `{wanted}`")]
    Other {
        /// The certificate's trust domain.
        found: String,
        /// The accepted one.
        wanted: String,
    },
    /// The certificate is signed by the authority of another trust domain than its own.
    #[error("it is not signed by a root of its trust domain `{0}`")]
    Foreign(String),
}

impl From<DomainError> for Error {
    fn from(error: DomainError) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
    }
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
        /// The error.
        reason: String,
    },
    /// The revocation lists that came with them cannot be used.
    #[error("crl: {0}")]
    Revocation(#[source] RevocationError),
    /// The roots of one trust domain cannot be used.
    #[error("trust domain `{name}`: {reason}")]
    Domain {
        /// The trust domain.
        name: String,
        /// The error.
        reason: Box<TrustError>,
    },
    /// The name is not that of a trust domain.
    #[error("is not the name of a trust domain: lower-case letters, digits, `.`, `-` and `_`")]
    DomainName,
    /// The trust domain occurs twice.
    #[error("there are two bundles of it")]
    Twice,
    /// More than [`MAX_TRUST_DOMAINS`].
    #[error("there are more than {MAX_TRUST_DOMAINS} trust domains")]
    TooManyDomains,
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
        if roots.is_empty() {
            Err(TrustError::Empty)
        } else {
            Ok(Self { roots: Arc::new(roots), domains: None, revocation: None })
        }
    }

    /// Roots in PEM for each trust domain. A peer is verified only with those of the trust domain in its SPIFFE id.
    pub fn from_domains<'a>(bundles: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self, TrustError> {
        let (mut all, mut domains) = (RootCertStore::empty(), BTreeMap::new());
        for (name, text) in bundles {
            let bad = |reason| TrustError::Domain { name: name.to_owned(), reason: Box::new(reason) };
            if domains.len() == MAX_TRUST_DOMAINS {
                return Err(TrustError::TooManyDomains);
            }
            if !spiffe::is_trust_domain(name) {
                return Err(bad(TrustError::DomainName));
            }
            let roots = Self::from_pem(text).map_err(bad)?.roots;
            all.roots.extend(roots.roots.iter().cloned());
            if domains.insert(name.into(), roots).is_some() {
                return Err(bad(TrustError::Twice));
            }
        }
        if all.is_empty() {
            Err(TrustError::Empty)
        } else {
            Ok(Self { roots: Arc::new(all), domains: Some(Arc::new(domains)), revocation: None })
        }
    }

    /// Adds the revocation lists of a PEM text that was delivered together with the roots.
    pub fn with_revocation_lists(self, lists: &[u8]) -> Result<Self, TrustError> {
        let revocation = RevocationLists::from_pem(lists).map_err(TrustError::Revocation)?;
        Ok(Self { revocation: Some(revocation), ..self })
    }

    /// The revocation lists that were delivered with the roots.
    pub(crate) fn revocation(&self) -> Option<&RevocationLists> {
        self.revocation.as_ref()
    }

    /// Returns the number of roots.
    pub fn count(&self) -> usize {
        self.roots.len()
    }

    /// All roots, whatever they vouch for.
    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        self.roots.clone()
    }

    /// Returns the roots of each trust domain, if they are separate.
    pub(crate) fn domains(&self) -> Option<&BTreeMap<Box<str>, Arc<RootCertStore>>> {
        self.domains.as_deref()
    }
}

/// The trust domain of a certificate: that of its only URI (X.509-SVID section 2).
pub(crate) fn trust_domain(end_entity: &CertificateDer<'_>) -> Result<String, Error> {
    let certificate = PeerCertificate::parse(std::slice::from_ref(end_entity))
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    match certificate.uri_sans.as_slice() {
        [uri] => spiffe::trust_domain_of(uri).map(str::to_owned).ok_or_else(|| DomainError::NoDomain.into()),
        _ => Err(DomainError::NoDomain.into()),
    }
}

/// Replaces an error by one that says that the chain does not lead to a root of the peer's own trust domain.
pub(crate) fn of_domain<T>(verified: Result<T, Error>, domain: &str) -> Result<T, Error> {
    verified.map_err(|error| match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => DomainError::Foreign(domain.to_owned()).into(),
        other => other,
    })
}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustBundle")
            .field("roots", &self.roots.len())
            .field("domains", &self.domains.as_ref().map(|domains| domains.keys().collect::<Vec<_>>()))
            .field("revocation", &self.revocation)
            .finish()
    }
}
