//! Credentials: the certificates, keys and roots of Secrets, for gateways and for calls to servers outside the mesh.

use std::fmt;
use std::sync::Arc;

use evenkeel_base::Span;

/// The TLS contents of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The Secret's namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its certificate and key, or why they cannot be used.
    pub certificate: Result<KeyPair, Arc<str>>,
    /// Its roots for peers, or why they cannot be used.
    pub roots: Result<Roots, Arc<str>>,
    /// Where it is written.
    pub origin: Span,
}

/// A certificate chain and its key. Both are PEM and fit together.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// The chain, leaf first.
    pub chain: Arc<[u8]>,
    /// The key. It must not get into logs, pages or files.
    pub key: Arc<[u8]>,
}

/// Roots that peers' certificates are verified with. They are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// The certificates.
    pub certificates: Arc<[u8]>,
    /// Revocation lists of their issuers.
    pub revocation_lists: Option<Arc<[u8]>>,
}

/// Suffix of the name of a Secret that has only the roots of another one (Istio's `SdsCaSuffix`).
pub const ROOTS_SUFFIX: &str = "-cacert";

impl fmt::Debug for KeyPair {
    /// The key is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}
