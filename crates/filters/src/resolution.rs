//! Resolves host names for filters. The proxy implements the lookup; it caches names for all workers.

use std::borrow::Cow;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

/// A lookup in progress. Dropping it abandons the answer, not the lookup.
pub type HostLookup = Pin<Box<dyn Future<Output = Result<Resolved, LookupError>>>>;

/// The answer to a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The addresses, the preferred one first; never empty.
    pub addresses: Arc<[IpAddr]>,
    /// How long the answer may be used without asking again.
    pub until: Instant,
}

/// Why a name has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The cache holds as many names as it may.
    #[error("DNS cache overflow")]
    CacheOverflow,
    /// The maximum number of requests already waits for an answer.
    #[error("too many requests wait for DNS")]
    PendingOverflow,
    /// The name did not resolve; why.
    #[error("{0}")]
    Failed(Cow<'static, str>),
}

/// The data about a cluster that filters need to resolve its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardProxyFacts {
    /// Connections to its hosts are encrypted, so that the default port is 443.
    pub is_secure: bool,
}
