//! Load balancing, compatible with Envoy 1.40.
//!
//! [`HostSet`] is what a worker picks from: [`levels`] by priority and health, or one set of levels per [`subset`]. A
//! level ends in one or more [`Balancer`]s, each over hosts among which it may choose freely. Everything is rebuilt
//! when endpoints or their health change; picking allocates nothing and takes no lock.
//!
//! To add a balancer: a variant of `runtime_config::cluster::LoadBalancer`, a file here that implements [`Balancer`],
//! and a line in [`build`]. A balancer that uses the request's hash also says so in `LoadBalancer::follows_hash`.

mod bounded_load;
mod edf;
mod hash_table;
mod least_request;
mod levels;
mod locality;
mod maglev;
mod priority;
mod random_choice;
mod ring_hash;
mod round_robin;
mod slow_start;
mod subset;

use std::cell::OnceCell;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::cluster::{Cluster, Health, LoadBalancer};

use super::host::Host;
use super::target::Target;
use crate::random::Random;
pub use hash_table::SharedTables;
use levels::Levels;
use subset::Subsets;

/// A load balancing policy over a set of hosts.
pub(super) trait Balancer: Debug {
    /// A host; `None` when there is none. Attempts after the first ask for another host, but may get the same one.
    fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>>;
}

/// Input of a pick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pick<'a> {
    /// The request's hash, or a random number when it has none.
    pub hash: u64,
    /// How many hosts were rejected before in this pick.
    pub attempt: u32,
    pub random: &'a Random,
}

/// Hosts to choose between.
#[derive(Debug)]
pub(super) struct Pool {
    pub hosts: Vec<Rc<Host>>,
    /// Each host's share of all requests, adding up to 1; only for balancers that use the hash.
    pub shares: Vec<f64>,
}

/// What a balancer is built from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Making<'a> {
    pub config: &'a Cluster,
    pub random: &'a Random,
    pub tables: &'a Arc<SharedTables>,
}

/// The balancer for a policy.
fn build(policy: &LoadBalancer, pool: Pool, making: Making<'_>) -> Box<dyn Balancer> {
    match *policy {
        LoadBalancer::RoundRobin { slow_start } => round_robin::new(pool.hosts, slow_start, making.random),
        LoadBalancer::LeastRequest(options) => least_request::new(pool.hosts, options, making.random),
        LoadBalancer::Random => random_choice::new(pool.hosts),
        LoadBalancer::RingHash(options) => ring_hash::new(pool, options, making.tables),
        LoadBalancer::Maglev(options) => maglev::new(pool, options, making.tables),
        // Its hosts are created on demand and never get here.
        LoadBalancer::ClusterProvided => round_robin::new(pool.hosts, None, making.random),
    }
}

/// A cluster's hosts, grouped for load balancing.
#[derive(Debug, Default)]
pub(super) struct HostSet {
    /// All hosts, in the order of the configuration.
    pub hosts: Vec<Rc<Host>>,
    /// Indices into `hosts`; built when a stateful session first asks for a host.
    by_address: OnceCell<FastMap<Arc<str>, usize>>,
    arrangement: Arrangement,
}

#[derive(Debug, Default)]
enum Arrangement {
    #[default]
    Empty,
    Whole(Levels),
    Subsets(Subsets),
}

/// Result of a pick.
#[derive(Debug, Default)]
pub(super) struct Picked<'a> {
    pub host: Option<&'a Rc<Host>>,
    /// So few hosts are healthy that health was ignored (or, with `fail_traffic_on_panic`, that nothing was picked).
    pub panic: bool,
    /// How the subset was chosen.
    pub subset: SubsetOutcome,
}

/// How a subset was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SubsetOutcome {
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

impl HostSet {
    /// Groups hosts by their current health.
    pub fn new(hosts: Vec<Rc<Host>>, making: Making<'_>) -> Self {
        let arrangement = match &making.config.subsets {
            None => Arrangement::Whole(Levels::new(&hosts, making, true)),
            Some(config) => Arrangement::Subsets(Subsets::new(&hosts, config, making)),
        };
        Self { hosts, by_address: OnceCell::new(), arrangement }
    }

    /// Picks a host.
    pub fn pick(&self, target: &Target<'_>, random: &Random) -> Picked<'_> {
        match &self.arrangement {
            Arrangement::Empty => Picked::default(),
            Arrangement::Whole(levels) => levels.pick(target, random),
            Arrangement::Subsets(subsets) => subsets.pick(target, random),
        }
    }

    /// The host at an address.
    pub fn by_address(&self, address: &str) -> Option<&Rc<Host>> {
        let places = || self.hosts.iter().enumerate().map(|(place, host)| (host.label.clone(), place)).collect();
        self.by_address.get_or_init(places).get(address).and_then(|place| self.hosts.get(*place))
    }

    /// Number of subsets.
    pub fn subsets(&self) -> usize {
        match &self.arrangement {
            Arrangement::Subsets(subsets) => subsets.len(),
            Arrangement::Empty | Arrangement::Whole(_) => 0,
        }
    }

    /// Number of hosts with that health.
    pub fn count(&self, health: Health) -> usize {
        self.hosts.iter().filter(|host| host.health() == health).count()
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;
