//! Byte streams, HTTP/2 connections, and the configuration's clusters with their connection pools.
//!
//! This crate knows nothing of listeners, the phases of a request, or worker threads: crate `proxy` builds on it. The
//! lower half ([`stream`], [`conn`], [`h2`], [`alpn`], [`proxy_protocol`]) drives one connection on either side of the
//! proxy; the upper half picks an endpoint of a cluster and a connection to it.
//!
//! Each worker has its own [`Upstreams`]: pools, load balancing state and counters that no other worker touches. What
//! must hold across workers (circuit breaker limits, the hosts' health and load) is in [`SharedClusters`].
//!
//! The path of a request: [`Upstreams::cluster`] → [`Cluster::pick`] → [`Cluster::begin_request`] →
//! [`Cluster::acquire`] → (bytes) → [`Cluster::release`]. Dropping any of the values in between closes or uncounts what
//! it stands for.

// Nothing here panics on input from outside: an impossible state is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod alpn;
mod balance;
mod breaker;
mod choice;
mod cluster;
pub mod conn;
mod connect;
mod connection;
mod edge_stats;
pub mod h2;
mod happy_eyeballs;
mod health;
mod host;
mod keep_alive;
mod load_report;
mod local_hosts;
mod made;
pub mod metadata_exchange;
mod multiplexed;
mod open;
pub mod own;
mod pool;
pub mod proxy_protocol;
mod race;
pub mod random;
mod reported_weight;
mod services;
mod shared;
mod shared_pools;
mod snapshot;
mod stats;
pub mod stream;
mod target;
pub mod turn;
pub mod udp;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::{Config, FastMap};
use evenkeel_stats::Registry;
use tokio::time::Instant;

pub use breaker::{Overflow, Permit};
pub use choice::{HostChoice, PassedOver};
pub use cluster::Cluster;
pub use connect::{ConnectError, connect};
pub use connection::{Connection, RequestGuard};
pub use edge_stats::edge;
pub use health::{HealthFlags, HealthManager, Outcome};
pub use host::Host;
pub use multiplexed::{Need, PooledConnection, StreamSlot};
pub use open::ConnectTimes;
pub use pool::AcquireError;
pub use race::ended_before;
pub use shared::SharedClusters;
pub use snapshot::{ClusterSnapshot, HostSnapshot};
pub use stats::{cluster as cluster_stats, udp as udp_stats};
pub use target::{OverrideHost, PickError, Target};

use self::cluster::Common;
use self::own::OwnConnections;
use crate::random::Random;

/// How often to call [`Upstreams::sweep`].
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// One worker's clusters.
#[derive(Debug)]
pub struct Upstreams {
    clusters: RefCell<FastMap<Arc<str>, Rc<Cluster>>>,
    shared: Arc<SharedClusters>,
    common: Common,
}

impl Upstreams {
    /// Creates an empty set of clusters. Exactly one worker must report memberships.
    pub fn new(shared: Arc<SharedClusters>, registry: Arc<Registry>, reports_membership: bool) -> Self {
        let random = Rc::new(Random::from_system());
        let common = Common { random, registry, busy: Rc::default(), local: Rc::default(), reports_membership };
        Self { clusters: RefCell::default(), shared, common }
    }

    /// Applies a configuration that replaces `before`: unchanged clusters are not touched, changed ones keep the pools
    /// of endpoints that are still present, removed ones end with the last request that uses them.
    pub fn apply(&self, config: &Config, before: &Config) {
        for name in &*config.changed_clusters(before) {
            self.take_over(name, config.clusters.get(name));
        }
    }

    fn take_over(&self, name: &Arc<str>, wanted: Option<&Arc<evenkeel_runtime_config::Cluster>>) {
        let mut clusters = self.clusters.borrow_mut();
        let cluster = match (clusters.get(name), wanted) {
            (None, None) => return,
            (Some(cluster), None) => {
                cluster.close_idle();
                clusters.remove(name);
                return;
            }
            (Some(cluster), Some(wanted)) => {
                cluster.update(wanted);
                Rc::clone(cluster)
            }
            (None, Some(wanted)) => {
                let group = self.shared.cluster(name);
                let scope = stats::scope(&self.common.registry, &wanted.stat_name);
                let cluster = Cluster::new(wanted.clone(), group, scope, self.common.clone());
                Rc::clone(clusters.entry(name.clone()).or_insert(Rc::new(cluster)))
            }
        };
        Cluster::answer_other_workers(&cluster);
    }

    /// The connections that this process has made.
    pub fn own(&self) -> &OwnConnections {
        &self.shared.own
    }

    /// The cluster of that name.
    pub fn cluster(&self, name: &str) -> Option<Rc<Cluster>> {
        self.clusters.borrow().get(name).cloned()
    }

    /// Closes idle connections that are too old or were closed by the peer; drops unused original destinations.
    /// Clusters that had no connection since the last sweep are skipped.
    pub fn sweep(&self, now: Instant) {
        let clusters = self.clusters.borrow();
        let mut busy = self.common.busy.take();
        busy.retain(|name| clusters.get(name).is_some_and(|cluster| cluster.sweep(now)));
        // Clusters that became busy meanwhile.
        self.common.busy.borrow_mut().extend(busy);
    }

    /// Closes all idle connections. Called when the worker ends.
    pub fn close_idle(&self) {
        self.clusters.borrow().values().for_each(|cluster| cluster.close_idle());
    }

    /// This worker's snapshot, for `/clusters`.
    pub fn snapshot(&self) -> Vec<ClusterSnapshot> {
        self.clusters.borrow().values().map(|cluster| cluster.snapshot()).collect()
    }

    /// Returns the snapshot of one cluster.
    pub fn snapshot_of(&self, name: &str) -> Option<ClusterSnapshot> {
        self.clusters.borrow().get(name).map(|cluster| cluster.snapshot())
    }
}
