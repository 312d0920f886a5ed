//! Derives from a state of the rotation which authority signs what, and which roots are trusted.

use std::sync::Arc;

use aws_lc_rs::digest;

use super::state::State;
use crate::authority::Authority;
use crate::files::hex;
use crate::plugged;

/// Length of a version, in bytes.
const VERSION_BYTES: usize = 8;

/// The authorities in use. It is replaced as a whole.
pub struct Signing {
    /// The state of the rotation.
    pub state: State,
    /// Signs certificates of workloads.
    pub active: Arc<Authority>,
    /// Signs the control planes' own certificates.
    pub server: Arc<Authority>,
    /// The trusted roots, PEM.
    pub roots: Arc<str>,
    /// Revocation lists of the mesh's own certificates, PEM. They are part of [`bundle`](Self::bundle), too.
    pub revocation_lists: Option<Arc<str>>,
    /// The text sent to agents: the roots and revocation lists, and a comment that names the authority whose certificates are
    /// current.
    pub bundle: Arc<str>,
    /// Version of the roots: equal versions mean an equal [`bundle`](Self::bundle).
    pub version: String,
}

impl Signing {
    pub(super) fn new(
        state: State,
        active: Arc<Authority>,
        server: Arc<Authority>,
        roots: String,
        revocation_lists: Option<String>,
    ) -> Self {
        let lists = revocation_lists.as_deref().unwrap_or_default();
        let bundle = format!("{SIGNER_COMMENT}{}\n{roots}{lists}", active.key_id());
        let hash = digest::digest(&digest::SHA256, bundle.as_bytes());
        let version = hash.as_ref().get(..VERSION_BYTES).map(hex).unwrap_or_default();
        let revocation_lists = revocation_lists.map(Arc::from);
        Self { state, active, server, roots: roots.into(), revocation_lists, bundle: bundle.into(), version }
    }
}

impl Signing {
    /// Returns the roots and the revocation lists in PEM: the last part of an answer to a certificate request.
    pub fn trust(&self) -> String {
        format!("{}{}", self.roots, self.revocation_lists.as_deref().unwrap_or_default())
    }

    /// Returns when the first of the revocation lists expires, in seconds since 1970: from then on peers reject all
    /// certificates.
    pub fn lists_end(&self) -> Option<u64> {
        plugged::lists_end(self.revocation_lists.as_deref()?)
    }
}

impl std::fmt::Debug for Signing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = (self.state.phase, self.state.generation, &self.version);
        f.debug_struct("Signing").field("phase", &of.0).field("generation", &of.1).field("version", of.2).finish()
    }
}

/// Start of the first line of a bundle; the authority key identifier of current certificates follows. A text before the first
/// certificate of a PEM file is a comment (RFC 7468 section 2), and Istio's agents get a new certificate whenever the text
/// differs.
pub const SIGNER_COMMENT: &str = "# signer ";
