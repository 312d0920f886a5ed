//! The destination of a request, and why no host may be found for it.

use std::net::SocketAddr;
use std::rc::Rc;

use evenkeel_runtime_config::dynamic_forward_proxy::DynamicHost;
use evenkeel_runtime_config::metadata::MetadataMatch;
use evenkeel_runtime_config::retry::RetryPolicy;

use super::host::Host;

/// The inputs that determine the host of a request or connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Target<'a> {
    /// The address the client connected to, for `ORIGINAL_DST`.
    pub original_dst: Option<SocketAddr>,
    /// The host that a filter has resolved, for a dynamic forward proxy.
    pub dynamic: Option<&'a DynamicHost>,
    /// Hosts of previous tries, in order.
    pub previous: &'a [Rc<Host>],
    /// The policy that decides which hosts a retry avoids; `None` for a first try.
    pub retry: Option<&'a RetryPolicy>,
    /// The hash computed by the route's hash policies.
    pub hash: Option<u64>,
    /// Metadata that the route requires of a host.
    pub metadata_match: Option<&'a MetadataMatch>,
    /// The host of a stateful session.
    pub override_host: Option<OverrideHost<'a>>,
}

impl Target<'_> {
    /// How often to pick again when a host is rejected (`host_selection_retry_max_attempts`).
    pub(super) fn reselect_attempts(&self) -> u32 {
        let refuses = |policy: &&RetryPolicy| policy.avoid_previous_hosts || !policy.avoid_metadata.is_empty();
        self.retry.filter(refuses).map_or(0, |policy| policy.host_selection_max_attempts)
    }

    /// Whether the retry policy rejects this host.
    pub(super) fn refuses(&self, host: &Host) -> bool {
        self.retry.is_some_and(|policy| {
            let tried = || self.previous.iter().any(|tried| tried.label == host.label);
            (policy.avoid_previous_hosts && tried())
                || policy.avoid_metadata.iter().any(|metadata| metadata.is_in(&host.endpoint().lb_metadata))
        })
    }
}

/// The host that a stateful session asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideHost<'a> {
    /// Its address, as in `/clusters` and logs.
    pub address: &'a str,
    /// Whether no other host may be used.
    pub strict: bool,
    /// Status of the response if the host is gone and no other may be used.
    pub status_if_gone: u16,
}

/// Why no host was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No endpoint, or none is healthy (`UH`).
    #[error("no healthy upstream")]
    NoHealthyHost,
    /// The only host allowed is gone (`UH`).
    #[error("no healthy upstream")]
    HostGone {
        /// Status of the response.
        status: u16,
    },
    /// The control plane asks to drop a share of the requests (`DO`), or all of them (`UDO`).
    #[error("drop overload")]
    DropOverload {
        /// All of them.
        all: bool,
    },
}
