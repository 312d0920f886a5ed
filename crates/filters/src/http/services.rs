//! What the worker offers to its filters, by subject. Nothing has a default: who offers less says so, and a filter sees that.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use evenkeel_runtime_config::dynamic_forward_proxy::DnsCache;
use evenkeel_runtime_config::view::ConnectionView;

use super::cluster_scope::ClusterScope;
use super::pause::Wait;
use crate::callouts::Callouts;
use crate::resolution::{ForwardProxyFacts, HostLookup};

/// What the worker offers to its filters.
pub trait Services {
    /// The clusters.
    fn clusters(&self) -> &dyn Clusters;
    /// The clock.
    fn clock(&self) -> &dyn Clock;
    /// The next random number.
    fn random(&self) -> u64;
    /// Makes calls to other clusters. A call is cancelled when dropped: a filter keeps it in its state, or in the future it waits for.
    fn callouts(&self) -> &dyn Callouts;
    /// Tasks that belong to no request; `None`: nothing is run here, as in explanations.
    fn tasks(&self) -> Option<&dyn Tasks>;
    /// Names and addresses; `None`: nothing is looked up here, as in explanations.
    fn names(&self) -> Option<&dyn Names>;
}

/// Clusters, as filters see them.
pub trait Clusters {
    /// The filters' per-cluster state and statistics, by the cluster's name; `None` if there is no such cluster.
    fn scope(&self, name: &str) -> Option<Rc<ClusterScope>>;
    /// The cluster of this name, if its hosts are resolved by filters (`envoy.clusters.dynamic_forward_proxy`).
    fn forward_proxy(&self, name: &str) -> Option<ForwardProxyFacts>;
    /// Counts a filter's reply among the responses of the cluster that the request would have gone to.
    fn charge_response(&self, name: &str, status: u16);
}

/// The wall clock. The monotonic time comes with each call of a filter.
pub trait Clock {
    /// The wall-clock time at a moment that is not after `now`.
    fn wall_clock(&self, at: Instant, now: Instant) -> SystemTime;
}

/// Tasks on this worker that belong to no request.
pub trait Tasks {
    /// Runs a task until it ends.
    fn run(&self, task: Wait);
}

/// Host names, and whose addresses they are.
pub trait Names {
    /// Resolves a host name.
    fn resolve(&self, cache: &Arc<DnsCache>, name: &Arc<str>) -> HostLookup;
    /// Whether a connection to this address would arrive at a listener of this proxy.
    fn is_own_listener(&self, address: SocketAddr, connection: &ConnectionView) -> bool;
}

/// The system's wall clock, for explanations and tests.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall_clock(&self, at: Instant, now: Instant) -> SystemTime {
        let wall = SystemTime::now();
        wall.checked_sub(now.saturating_duration_since(at)).unwrap_or(wall)
    }
}

/// No clusters: tests of filters that have nothing to do with any.
#[cfg(test)]
pub(crate) struct NoClusters;

#[cfg(test)]
impl Clusters for NoClusters {
    fn scope(&self, _: &str) -> Option<Rc<ClusterScope>> {
        None
    }

    fn forward_proxy(&self, _: &str) -> Option<ForwardProxyFacts> {
        None
    }

    fn charge_response(&self, _: &str, _: u16) {}
}
