//! Per-cluster state shared by all threads: circuit breaker counts, and host health.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::cluster::{CircuitBreakers, Cluster};
use evenkeel_runtime_config::route::Priority;
use evenkeel_stats::{Registry, Scope, ScopeName, Writer};

use super::balance::tables::SharedTables;
use super::breaker::{Counts, breaker_stats};
use super::health::host::HostHealth;
use super::health::outlier::OutlierDetector;
use super::own::OwnConnections;

/// With fewer clusters, entries of removed ones are not cleaned up.
const FEWEST_TO_LOOK_AT: usize = 64;

/// All clusters, shared by the workers and the control thread. Locked when the configuration changes, never on the request path.
#[derive(Debug, Default)]
pub struct SharedClusters {
    clusters: Mutex<KnownClusters>,
    /// The clusters' hash tables.
    tables: Arc<SharedTables>,
    /// The connections to all of them.
    pub(super) own: Arc<OwnConnections>,
}

#[derive(Debug, Default)]
struct KnownClusters {
    by_name: FastMap<Arc<str>, Weak<SharedCluster>>,
    /// The number of entries at which removed clusters are cleaned up. It is twice the number left by the last cleanup,
    /// so that its cost per new cluster stays small.
    look_at: usize,
}

/// One cluster.
#[derive(Debug, Default)]
pub struct SharedCluster {
    counts: [Arc<Counts>; 2],
    breakers: Mutex<Breakers>,
    pub(super) tables: Arc<SharedTables>,
    pub(super) own: Arc<OwnConnections>,
    /// Requests in flight to all hosts, if they are counted.
    active: Arc<AtomicU32>,
    hosts: Mutex<FastMap<EndpointAddress, Weak<HostHealth>>>,
    outliers: Mutex<Option<Arc<OutlierDetector>>>,
    /// Incremented when a host's health changes, so that workers rebuild their host sets.
    health_version: AtomicU64,
    had_traffic: AtomicBool,
}

/// The current limits, and their gauges if there are any.
#[derive(Debug, Default)]
struct Breakers {
    limits: CircuitBreakers,
    stats: Vec<(Priority, Writer<breaker_stats::Stats>)>,
}

impl SharedClusters {
    /// The connections that this process has made.
    pub fn own(&self) -> &Arc<OwnConnections> {
        &self.own
    }

    /// The cluster of that name; it lives as long as some thread holds it.
    pub fn cluster(&self, name: &Arc<str>) -> Arc<SharedCluster> {
        let mut clusters = lock(&self.clusters);
        if let Some(cluster) = clusters.by_name.get(name).and_then(Weak::upgrade) {
            return cluster;
        }
        if clusters.by_name.len() >= clusters.look_at {
            clusters.by_name.retain(|_, cluster| cluster.strong_count() > 0);
            clusters.look_at = (2 * clusters.by_name.len()).max(FEWEST_TO_LOOK_AT);
        }
        let cluster =
            Arc::new(SharedCluster { tables: self.tables.clone(), own: self.own.clone(), ..SharedCluster::default() });
        clusters.by_name.insert(name.clone(), Arc::downgrade(&cluster));
        cluster
    }
}

impl SharedCluster {
    /// Counts of requests and connections of one priority.
    pub(super) fn counts(&self, priority: Priority) -> &Arc<Counts> {
        match priority {
            Priority::Default => &self.counts[0],
            Priority::High => &self.counts[1],
        }
    }

    /// Sets the current limits. Every thread that applies a configuration calls this; once would be enough.
    pub(super) fn set_limits(&self, limits: &CircuitBreakers) {
        self.counts[0].connections.set_limit(limits.default.max_connections);
        self.counts[1].connections.set_limit(limits.high.max_connections);
        lock(&self.breakers).limits.clone_from(limits);
    }

    /// Sets the circuit breaker gauges of clusters that limit anything.
    pub(super) fn publish_breakers(&self, cluster: &Cluster, registry: &Registry) {
        let mut breakers = lock(&self.breakers);
        if breakers.stats.is_empty() {
            for (priority, limits) in [
                (Priority::Default, &cluster.circuit_breakers.default),
                (Priority::High, &cluster.circuit_breakers.high),
            ] {
                if limits.limits_anything() {
                    let scope = breaker_scope(registry, &cluster.stat_name, priority);
                    breakers.stats.push((priority, scope.writer()));
                }
            }
        }
        for (priority, stats) in &breakers.stats {
            let limits = match priority {
                Priority::Default => &breakers.limits.default,
                Priority::High => &breakers.limits.high,
            };
            self.counts(*priority).publish(limits, stats);
        }
    }

    /// The host at that address; it lives as long as some thread holds it.
    pub fn host(&self, address: &EndpointAddress) -> Arc<HostHealth> {
        let mut hosts = lock(&self.hosts);
        if let Some(host) = hosts.get(address).and_then(Weak::upgrade) {
            return host;
        }
        hosts.retain(|_, host| host.strong_count() > 0);
        let host = Arc::new(HostHealth::of_cluster(&self.active));
        hosts.insert(address.clone(), Arc::downgrade(&host));
        host
    }

    /// The outlier detector of its hosts, if configured.
    pub(super) fn outliers(&self) -> Option<Arc<OutlierDetector>> {
        lock(&self.outliers).clone()
    }

    pub(super) fn set_outliers(&self, detector: Option<Arc<OutlierDetector>>) {
        *lock(&self.outliers) = detector;
    }

    /// Whether some worker has had a connection to one of its hosts.
    pub(super) fn had_traffic(&self) -> bool {
        self.had_traffic.load(Ordering::Relaxed)
    }

    pub(super) fn note_traffic(&self) {
        if !self.had_traffic() {
            self.had_traffic.store(true, Ordering::Relaxed);
        }
    }

    /// Changes whenever any host's health changes.
    #[inline]
    pub fn health_version(&self) -> u64 {
        self.health_version.load(Ordering::Acquire)
    }

    /// Records that a host's health changed.
    pub(super) fn health_changed(&self) {
        self.health_version.fetch_add(1, Ordering::AcqRel);
    }
}

/// `cluster.NAME.circuit_breakers.PRIORITY.`
fn breaker_scope(registry: &Registry, cluster: &str, priority: Priority) -> Scope<breaker_stats::Stats> {
    let name = match priority {
        Priority::Default => "default",
        Priority::High => "high",
    };
    let mut scope = ScopeName::tagged("cluster", "envoy_cluster_name", cluster);
    scope.dotted.push_str(&format!("circuit_breakers.{name}."));
    scope.family.push_str(&format!("circuit_breakers_{name}_"));
    registry.scope(scope)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
