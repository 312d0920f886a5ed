//! Health of hosts: active checks and outlier detection. Both run once for the whole process, on the control thread, and
//! set flags in [`HostHealth`] that every worker reads when it arranges its hosts.
//!
//! A new kind of active check is one file beside `active/http.rs` and one arm in `active/mod.rs`.

mod host;
mod outlier;

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::cluster::Cluster;
use evenkeel_stats::{Registry, ScopeName};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep};

pub use host::{HealthFlags, HostHealth, Tally};
pub use outlier::{Outcome, OutlierDetector};

use super::shared::{SharedCluster, SharedClusters};
use crate::random::Random;

pub(in crate::upstream) use outlier::report;

/// Keeps the checks and detectors of all clusters going. Lives on the control thread, within its `LocalSet`.
#[derive(Debug)]
pub struct HealthManager {
    shared: Arc<SharedClusters>,
    registry: Arc<Registry>,
    clusters: HashMap<Arc<str>, Watched>,
}

/// A cluster whose hosts' health is watched.
#[derive(Debug)]
struct Watched {
    config: Arc<Cluster>,
    shared: Arc<SharedCluster>,
    /// Holding the hosts keeps their health while no worker has taken them over yet.
    hosts: Vec<Arc<HostHealth>>,
    outliers: Option<Outliers>,
}

#[derive(Debug)]
struct Outliers {
    detector: Arc<OutlierDetector>,
    ticking: AbortHandle,
}

impl Drop for Outliers {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}

impl HealthManager {
    /// Watches nothing yet.
    pub fn new(shared: Arc<SharedClusters>, registry: Arc<Registry>) -> Self {
        Self { shared, registry, clusters: HashMap::new() }
    }

    /// Follows the configuration. To be called before the workers get it.
    pub fn update(&mut self, config: &Config) {
        let watched = |cluster: &Cluster| cluster.outlier_detection.is_some();
        self.clusters.retain(|name, known| {
            let keep = config.clusters.get(name).is_some_and(|cluster| watched(cluster));
            if !keep {
                known.stop();
            }
            keep
        });
        for (name, cluster) in config.clusters.iter().filter(|(_, cluster)| watched(cluster)) {
            match self.clusters.get_mut(name) {
                Some(known) if Arc::ptr_eq(&known.config, cluster) => {}
                Some(known) => known.update(cluster.clone(), &self.registry),
                None => {
                    let mut known = Watched {
                        config: cluster.clone(),
                        shared: self.shared.cluster(name),
                        hosts: Vec::new(),
                        outliers: None,
                    };
                    known.update(cluster.clone(), &self.registry);
                    self.clusters.insert(name.clone(), known);
                }
            }
        }
    }
}

impl Watched {
    fn update(&mut self, config: Arc<Cluster>, registry: &Registry) {
        self.hosts = config.endpoints.hosts.iter().map(|endpoint| self.shared.host(&endpoint.address)).collect();
        self.config = config;
        self.update_outliers(registry);
    }

    fn update_outliers(&mut self, registry: &Registry) {
        let Some(wanted) = &self.config.outlier_detection else { return self.stop_outliers() };
        let outliers = self.outliers.get_or_insert_with(|| {
            let mut name = ScopeName::tagged("cluster", "envoy_cluster_name", &self.config.stat_name);
            name.dotted.push_str("outlier_detection.");
            name.family.push_str("outlier_detection_");
            let writer = registry.scope(name).writer();
            let detector = Arc::new(OutlierDetector::new(wanted.clone(), writer, Random::from_system()));
            self.shared.set_outliers(Some(detector.clone()));
            let ticking = spawn_local(keep_ticking(detector.clone(), self.shared.clone())).abort_handle();
            Outliers { detector, ticking }
        });
        outliers.detector.update(wanted, self.hosts.iter().cloned());
    }

    fn stop_outliers(&mut self) {
        let Some(outliers) = self.outliers.take() else { return };
        self.shared.set_outliers(None);
        if outliers.detector.release_all() {
            self.shared.health_changed();
        }
    }

    fn stop(&mut self) {
        self.stop_outliers();
    }
}

async fn keep_ticking(detector: Arc<OutlierDetector>, shared: Arc<SharedCluster>) {
    loop {
        sleep(detector.interval()).await;
        if detector.tick(Instant::now()) {
            shared.health_changed();
        }
    }
}
