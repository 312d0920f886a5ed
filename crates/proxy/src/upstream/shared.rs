//! What all threads know of a cluster together: circuit breakers' counts, and the health of its hosts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::cluster::EndpointAddress;

use super::balance::SharedTables;
use super::breaker::Counts;
use super::health::{HostHealth, OutlierDetector};

/// All clusters, shared by the workers and the control thread. Locked when configuration changes, never by a request.
#[derive(Debug, Default)]
pub struct SharedClusters {
    clusters: Mutex<FastMap<Arc<str>, Weak<SharedCluster>>>,
    /// Hash tables of all of them.
    tables: Arc<SharedTables>,
}

/// One cluster.
#[derive(Debug, Default)]
pub struct SharedCluster {
    pub(super) counts: Arc<Counts>,
    pub(super) tables: Arc<SharedTables>,
    /// Requests in flight to all hosts, where they are counted.
    active: Arc<AtomicU32>,
    hosts: Mutex<FastMap<EndpointAddress, Weak<HostHealth>>>,
    outliers: Mutex<Option<Arc<OutlierDetector>>>,
    /// Goes up when a host's health changed: whoever arranged hosts by it arranges them again.
    health_version: AtomicU64,
    /// Some worker picked one of its hosts.
    pub(super) had_traffic: std::sync::atomic::AtomicBool,
}

impl SharedClusters {
    /// The cluster of that name; it lives as long as some thread has it.
    pub fn cluster(&self, name: &Arc<str>) -> Arc<SharedCluster> {
        let mut clusters = lock(&self.clusters);
        if let Some(cluster) = clusters.get(name).and_then(Weak::upgrade) {
            return cluster;
        }
        clusters.retain(|_, cluster| cluster.strong_count() > 0);
        let cluster = Arc::new(SharedCluster { tables: self.tables.clone(), ..SharedCluster::default() });
        clusters.insert(name.clone(), Arc::downgrade(&cluster));
        cluster
    }
}

impl SharedCluster {
    /// The host at that address; it lives as long as some thread has it.
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

    /// Who ejects its hosts, if anybody does.
    pub(super) fn outliers(&self) -> Option<Arc<OutlierDetector>> {
        lock(&self.outliers).clone()
    }

    pub(super) fn set_outliers(&self, detector: Option<Arc<OutlierDetector>>) {
        *lock(&self.outliers) = detector;
    }

    /// Differs from what it was when any host's health changed in between.
    #[inline]
    pub fn health_version(&self) -> u64 {
        self.health_version.load(Ordering::Acquire)
    }

    /// A host's health changed.
    pub(super) fn health_changed(&self) {
        self.health_version.fetch_add(1, Ordering::AcqRel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
