//! Which workload a token belongs to: what the certificate service and the debug pages ask, and who answers.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::time::SystemTime;

use evenkeel_ca::{TokenKey, Workload};
use http::HeaderMap;

/// Istio's name of the metadata with the cluster that a token is from.
const CLUSTER: &str = "clusterid";

/// A token as a client presents it.
#[derive(Clone, Copy)]
pub struct Presented<'a> {
    /// The token.
    pub token: &'a str,
    /// The cluster whose API server has issued it, as the client says; empty: it does not say.
    pub cluster: &'a str,
}

impl fmt::Debug for Presented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presented").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl<'a> Presented<'a> {
    /// The token in the metadata of a call.
    pub(crate) fn of(metadata: &'a HeaderMap) -> Option<Self> {
        let cluster = metadata.get(CLUSTER).and_then(|name| name.to_str().ok()).unwrap_or_default();
        Some(Self { token: bearer(metadata)?, cluster })
    }
}

/// Verifies the tokens with which workloads authenticate.
pub trait TokenAuthenticator: fmt::Debug + Send + Sync {
    /// Returns the verdict about a token if it needs no I/O.
    fn verdict(&self, presented: Presented<'_>, now: SystemTime) -> Option<Result<Workload, TokenRefusal>>;

    /// Verifies a token, with I/O where that is necessary. Bounded in time.
    fn review<'a>(&'a self, presented: Presented<'a>, now: SystemTime) -> Review<'a>;
}

/// The verdict of [`TokenAuthenticator::review`].
pub type Review<'a> = Pin<Box<dyn Future<Output = Result<Workload, TokenRefusal>> + Send + 'a>>;

/// Why a token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// It proves nothing.
    #[error("{0}")]
    Invalid(String),
    /// Nobody can verify it at present; the client may try again.
    #[error("{0}")]
    Unavailable(String),
}

/// The control plane's own tokens, verified with its key.
impl TokenAuthenticator for TokenKey {
    fn verdict(&self, presented: Presented<'_>, now: SystemTime) -> Option<Result<Workload, TokenRefusal>> {
        Some(self.verify(presented.token, now).map_err(|error| TokenRefusal::Invalid(error.to_string())))
    }

    fn review<'a>(&'a self, presented: Presented<'a>, now: SystemTime) -> Review<'a> {
        Box::pin(ready(self.verify(presented.token, now).map_err(|error| TokenRefusal::Invalid(error.to_string()))))
    }
}

/// Returns the token of `authorization: Bearer TOKEN`; the scheme is case-insensitive (RFC 9110 section 11.1).
pub(crate) fn bearer(metadata: &HeaderMap) -> Option<&str> {
    let (scheme, token) = metadata.get("authorization")?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}
