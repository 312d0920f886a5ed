//! The contract of a load balancing policy, and the inputs and outputs of a pick.

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

/// The inputs of zone-aware routing besides the cluster's own hosts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZoneContext<'a> {
    pub local: &'a Rc<LocalHosts>,
    pub stats: &'a Rc<Writer<zone::Stats>>,
}

/// A load balancing policy over a set of hosts.
pub(crate) trait Balancer: Debug {
    /// Picks a host; `None` if there is none. Attempts after the first request another host, but may get the same one.
    fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>>;
}

/// Input of a pick.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick<'a> {
    /// The request's hash, or a random number when it has none.
    pub hash: u64,
    /// Number of hosts rejected before in this pick.
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

/// The inputs of a balancer's construction.
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
    /// Whether health was ignored because too few hosts are healthy (or, with `fail_traffic_on_panic`, nothing was picked).
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
