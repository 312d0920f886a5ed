//! The way upstream: which endpoint, over which connection.
//!
//! Each worker has its own [`Upstreams`]: pools, load-balancing state and counts that no other worker touches. What must
//! hold across workers, the circuit breakers' limits, the hosts' health and load, is in [`SharedClusters`].
//!
//! A request goes: [`Upstreams::cluster`] → [`Cluster::pick`] → [`Cluster::begin_request`] → [`Cluster::acquire`] →
//! (bytes) → [`Cluster::release`]. Dropping any of the values in between closes or counts down what it stands for.

mod balance;
mod breaker;
mod cluster;
mod connect;
mod connection;
mod health;
mod host;
mod keep_alive;
mod multiplexed;
mod pool;
mod race;
mod shared;
mod snapshot;
mod stats;
mod target;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::{Config, FastMap};
use evenkeel_stats::Registry;
use tokio::time::Instant;

pub use breaker::{Overflow, Permit};
pub use cluster::Cluster;
pub use connect::ConnectError;
pub(crate) use connect::connect;
pub use connection::{Connection, RequestGuard};
pub use health::{HealthFlags, HealthManager, Outcome};
pub use host::Host;
pub use multiplexed::{Need, Place, Upstream};
pub use pool::AcquireError;
pub(crate) use race::ended_before;
pub use shared::SharedClusters;
pub use snapshot::{ClusterSnapshot, HostSnapshot};
pub use stats::cluster as cluster_stats;
pub use target::{OverrideHost, PickError, Target};

use crate::random::Random;

/// How often [`Upstreams::sweep`] wants to be called.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// One worker's clusters.
#[derive(Debug)]
pub struct Upstreams {
    clusters: RefCell<FastMap<Arc<str>, Rc<Cluster>>>,
    shared: Arc<SharedClusters>,
    registry: Arc<Registry>,
    random: Rc<Random>,
    /// This worker reports what is true of the whole process (`membership_*`).
    reports_membership: bool,
}

impl Upstreams {
    /// No clusters yet. Exactly one worker must report memberships.
    pub fn new(shared: Arc<SharedClusters>, registry: Arc<Registry>, reports_membership: bool) -> Self {
        Self {
            clusters: RefCell::default(),
            shared,
            registry,
            random: Rc::new(Random::from_system()),
            reports_membership,
        }
    }

    /// Takes over a configuration: clusters that did not change keep everything, changed ones keep the pools of endpoints
    /// that are still there, removed ones end with the last request that uses them.
    pub fn apply(&self, config: &Config) {
        let mut clusters = self.clusters.borrow_mut();
        clusters.retain(|name, cluster| {
            let keep = config.clusters.contains_key(name);
            if !keep {
                cluster.close_idle();
            }
            keep
        });
        for (name, wanted) in &config.clusters {
            match clusters.get(name) {
                Some(cluster) => {
                    cluster.update(wanted);
                    Cluster::answer_other_workers(cluster);
                }
                None => {
                    let group = self.shared.cluster(name);
                    let scope = stats::scope(&self.registry, &wanted.stat_name);
                    let random = self.random.clone();
                    let registry = self.registry.clone();
                    let cluster = Cluster::new(wanted.clone(), group, scope, random, registry, self.reports_membership);
                    let cluster = Rc::new(cluster);
                    Cluster::answer_other_workers(&cluster);
                    clusters.insert(name.clone(), cluster);
                }
            }
        }
    }

    /// The cluster of that name.
    pub fn cluster(&self, name: &str) -> Option<Rc<Cluster>> {
        self.clusters.borrow().get(name).cloned()
    }

    /// Closes idle connections that are too old or that the peer closed; forgets original destinations nobody uses.
    pub fn sweep(&self, now: Instant) {
        self.clusters.borrow().values().for_each(|cluster| cluster.sweep(now));
    }

    /// Closes all idle connections, when the worker ends.
    pub fn close_idle(&self) {
        self.clusters.borrow().values().for_each(|cluster| cluster.close_idle());
    }

    /// This worker's numbers, for `/clusters`.
    pub fn snapshot(&self) -> Vec<ClusterSnapshot> {
        self.clusters.borrow().values().map(|cluster| cluster.snapshot()).collect()
    }
}
