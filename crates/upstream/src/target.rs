//! Where a request wants to go, and why it may find nobody there.

use std::net::SocketAddr;
use std::rc::Rc;

use evenkeel_runtime_config::cluster::MetadataMatch;
use evenkeel_runtime_config::retry::RetryPolicy;

use super::host::Host;

/// What a request or connection says about where it wants to go.
#[derive(Debug, Clone, Copy, Default)]
pub struct Target<'a> {
    /// What the client dialled, for `ORIGINAL_DST`.
    pub original_dst: Option<SocketAddr>,
    /// Hosts tried before, in their order.
    pub previous: &'a [Rc<Host>],
    /// What a retry avoids; nothing for a first try.
    pub retry: Option<&'a RetryPolicy>,
    /// What the route's hash policies came to.
    pub hash: Option<u64>,
    /// Metadata that the route asks of a host.
    pub metadata_match: Option<&'a MetadataMatch>,
    /// The host a session asks for.
    pub override_host: Option<OverrideHost<'a>>,
}

impl Target<'_> {
    /// How often to pick again when a host is refused (`host_selection_retry_max_attempts`).
    pub(super) fn reselect_attempts(&self) -> u32 {
        let refuses = |policy: &&RetryPolicy| policy.avoid_previous_hosts || !policy.avoid_metadata.is_empty();
        self.retry.filter(refuses).map_or(0, |policy| policy.host_selection_max_attempts)
    }

    /// A host that the retry policy wants another one for.
    pub(super) fn refuses(&self, host: &Host) -> bool {
        self.retry.is_some_and(|policy| {
            let tried = || self.previous.iter().any(|tried| tried.label == host.label);
            (policy.avoid_previous_hosts && tried())
                || policy.avoid_metadata.iter().any(|metadata| metadata.is_in(&host.endpoint().lb_metadata))
        })
    }
}

/// The host a session asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideHost<'a> {
    /// Its address, as in logs.
    pub address: &'a str,
    /// No other will do.
    pub strict: bool,
    /// Status of the answer if it is not there, and no other will do.
    pub status_if_gone: u16,
}

/// Why no host was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No endpoint, or none healthy (`UH`).
    #[error("no healthy upstream")]
    NoHealthyHost,
    /// The only host that would do is not there (`UH`).
    #[error("no healthy upstream")]
    HostGone {
        /// Status of the answer.
        status: u16,
    },
    /// The control plane asks to refuse a share of the requests (`DO`), or all of them (`UDO`).
    #[error("drop overload")]
    DropOverload {
        /// All of them.
        all: bool,
    },
}
