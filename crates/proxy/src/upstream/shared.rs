//! What all workers share of a cluster: its limits' counts and its endpoints' numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_runtime_config::Cluster;
use evenkeel_runtime_config::cluster::{EndpointAddress, Health};
use evenkeel_stats::{Registry, Scope, Writer};
use tokio::sync::Notify;

use crate::stats::{self, cluster, endpoint};

/// One generation of a cluster and the parts of it that live on.
#[derive(Debug)]
pub struct ClusterShared {
    /// The configuration.
    pub cluster: Arc<Cluster>,
    /// Counts that live as long as the cluster's name.
    pub core: Arc<ClusterCore>,
    /// Numbers of `cluster.endpoints.hosts`, in the same order.
    pub endpoints: Vec<Arc<EndpointShared>>,
}

/// Counts of a cluster across all workers and generations.
#[derive(Debug)]
pub struct ClusterCore {
    /// Statistics `cluster.NAME.`.
    pub scope: Scope<cluster::Stats>,
    /// Open connections.
    pub connections: AtomicU32,
    /// Requests waiting for a connection.
    pub pending: AtomicU32,
    /// Requests in flight.
    pub requests: AtomicU32,
    /// Retries in flight.
    pub retries: AtomicU32,
    /// Told when a connection closes while requests wait.
    pub(crate) freed: Notify,
}

/// Numbers of one endpoint across all workers.
#[derive(Debug)]
pub struct EndpointShared {
    /// Its address.
    pub address: EndpointAddress,
    /// Requests, or TCP connections, in flight: what least request compares.
    pub active: AtomicU32,
    /// Counters for `/clusters`.
    pub scope: Scope<endpoint::Stats>,
}

impl EndpointShared {
    pub(crate) fn new(address: EndpointAddress) -> Arc<Self> {
        Arc::new(Self { address, active: AtomicU32::new(0), scope: Scope::detached() })
    }
}

impl ClusterShared {
    /// The next generation of `cluster`; counts go on from `before`. Unchanged configuration is the same generation.
    pub fn next(cluster: &Arc<Cluster>, before: Option<&Arc<Self>>, registry: &Registry) -> Arc<Self> {
        if let Some(before) = before.filter(|before| Arc::ptr_eq(&before.cluster, cluster)) {
            return Arc::clone(before);
        }
        let core = before.map_or_else(|| ClusterCore::new(cluster, registry), |before| Arc::clone(&before.core));
        let known: rustc_hash::FxHashMap<&EndpointAddress, &Arc<EndpointShared>> =
            before.iter().flat_map(|before| &before.endpoints).map(|endpoint| (&endpoint.address, endpoint)).collect();
        let endpoints = cluster.endpoints.hosts.iter().map(|host| {
            known.get(&host.address).map_or_else(|| EndpointShared::new(host.address.clone()), |known| Arc::clone(known))
        });
        Arc::new(Self { cluster: Arc::clone(cluster), core, endpoints: endpoints.collect() })
    }

    /// Writes the membership gauges; called by the one thread that applies configuration.
    pub(crate) fn publish_membership(&self, writer: &Writer<cluster::Stats>) {
        let hosts = &self.cluster.endpoints.hosts;
        let count = |health: Health| hosts.iter().filter(|host| host.health == health).count() as i64;
        writer.set(cluster::Gauge::membership_total, hosts.len() as i64);
        writer.set(cluster::Gauge::membership_healthy, count(Health::Healthy));
        writer.set(cluster::Gauge::membership_degraded, count(Health::Degraded));
    }
}

impl ClusterCore {
    fn new(cluster: &Cluster, registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            scope: registry.scope(stats::cluster_name(&cluster.stat_name)),
            connections: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            retries: AtomicU32::new(0),
            freed: Notify::new(),
        })
    }
}

/// Counts one up unless that would exceed `limit`. Exact across workers.
pub(crate) fn try_acquire(count: &AtomicU32, limit: u32) -> bool {
    let raised = |now: u32| (now < limit).then_some(now + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, raised).is_ok()
}
