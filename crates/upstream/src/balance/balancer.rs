//! The contract of a load balancing policy, and what a pick takes and gives.

use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::cluster::Cluster;
use evenkeel_stats::Writer;

use super::tables::SharedTables;
use crate::host::Host;
use crate::local_hosts::LocalHosts;
use crate::random::Random;
use crate::stats::zone;

/// What zone-aware routing needs besides the cluster's own hosts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZoneContext<'a> {
    pub local: &'a Rc<LocalHosts>,
    pub stats: &'a Rc<Writer<zone::Stats>>,
}

/// A load balancing policy over a set of hosts.
pub(crate) trait Balancer: Debug {
    /// A host; `None` when there is none. Attempts after the first ask for another host, but may get the same one.
    fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>>;
}

/// Input of a pick.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick<'a> {
    /// The request's hash, or a random number when it has none.
    pub hash: u64,
    /// How many hosts were rejected before in this pick.
    pub attempt: u32,
    pub random: &'a Random,
}

/// Hosts to choose between.
#[derive(Debug)]
pub(crate) struct Pool {
    pub hosts: Vec<Rc<Host>>,
    /// Each host's share of all requests, adding up to 1; only for balancers that use the hash.
    pub shares: Vec<f64>,
}

/// What a balancer is built from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Making<'a> {
    pub config: &'a Cluster,
    pub random: &'a Random,
    pub tables: &'a Arc<SharedTables>,
    /// For zone-aware routing; `None` without a local cluster.
    pub zones: Option<ZoneContext<'a>>,
}

/// Result of a pick.
#[derive(Debug, Default)]
pub(crate) struct Picked<'a> {
    pub host: Option<&'a Rc<Host>>,
    /// So few hosts are healthy that health was ignored (or, with `fail_traffic_on_panic`, that nothing was picked).
    pub panic: bool,
    /// How the subset was chosen.
    pub subset: SubsetOutcome,
}

/// How a subset was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SubsetOutcome {
    /// The cluster has no subsets.
    #[default]
    None,
    /// A subset matched.
    Selected,
    /// No subset matched; the fallback was used.
    Fallback,
    /// The fallback had no host either: any host was picked (`panic_mode_any`).
    FallbackPanic,
}
