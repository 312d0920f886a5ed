//! Which workload a token belongs to: what the certificate service and the debug pages ask, and who answers.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::time::SystemTime;

use evenkeel_ca::{TokenKey, Workload};
use http::HeaderMap;

/// Verifies the tokens with which workloads authenticate.
pub trait TokenAuthenticator: fmt::Debug + Send + Sync {
    /// Returns the verdict about a token if it needs no I/O.
    fn verdict(&self, token: &str, now: SystemTime) -> Option<Result<Workload, TokenRefusal>>;

    /// Verifies a token, with I/O where that is necessary. Bounded in time.
    fn review<'a>(&'a self, token: &'a str, now: SystemTime) -> Review<'a>;
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
    fn verdict(&self, token: &str, now: SystemTime) -> Option<Result<Workload, TokenRefusal>> {
        Some(self.verify(token, now).map_err(|error| TokenRefusal::Invalid(error.to_string())))
    }

    fn review<'a>(&'a self, token: &'a str, now: SystemTime) -> Review<'a> {
        Box::pin(ready(self.verify(token, now).map_err(|error| TokenRefusal::Invalid(error.to_string()))))
    }
}

/// Returns the token of `authorization: Bearer TOKEN`; the scheme is case-insensitive (RFC 9110 section 11.1).
pub(crate) fn bearer(metadata: &HeaderMap) -> Option<&str> {
    let (scheme, token) = metadata.get("authorization")?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}
