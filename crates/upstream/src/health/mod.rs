//! Host health: active health checks and outlier detection. Both run once per process, on the control thread, and set
//! flags in [`HostHealth`] that every worker reads when it builds its host sets.
//!
//! A new kind of active check is a file beside `active/http.rs` and an arm in `active/mod.rs`.

mod active;
pub(super) mod host;
pub(super) mod outlier;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::cluster::{Cluster, Endpoint};
use evenkeel_runtime_config::health_check::HealthCheck;
use evenkeel_stats::{Registry, ScopeName, Writer};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep};

pub use host::{HealthFlags, HostHealth};
pub use outlier::{Outcome, OutlierDetector};

use self::active::{CheckTarget, Checking, Votes, all_checks_stats, health_check_stats};
use super::shared::{SharedCluster, SharedClusters};
use crate::random::Random;

pub(crate) use outlier::report;

/// Runs the checks and outlier detectors of all clusters. Lives on the control thread, within its `LocalSet`.
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
    /// Holding the hosts keeps their health state until workers have applied the configuration.
    hosts: Vec<Arc<HostHealth>>,
    outliers: Option<Outliers>,
    checks: Option<Checks>,
}

/// The checks of a cluster's hosts.
#[derive(Debug)]
struct Checks {
    checks: Arc<[HealthCheck]>,
    /// One per check, in the same order.
    stats: Vec<Rc<Writer<health_check_stats::Stats>>>,
    /// Combined, if there are several checks.
    all: Option<Writer<all_checks_stats::Stats>>,
    random: Rc<Random>,
    sessions: HashMap<EndpointAddress, Checked>,
}

/// A host that is checked.
#[derive(Debug)]
struct Checked {
    endpoint: Arc<Endpoint>,
    votes: Rc<Votes>,
    /// One task per check.
    tasks: Vec<AbortHandle>,
}

impl Checked {
    /// Whether it was removed by service discovery and has failed a check.
    fn is_over(&self) -> bool {
        self.tasks.iter().any(AbortHandle::is_finished)
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
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
    /// A manager without clusters.
    pub fn new(shared: Arc<SharedClusters>, registry: Arc<Registry>) -> Self {
        Self { shared, registry, clusters: HashMap::new() }
    }

    /// Sets the gauges that are computed on demand.
    pub fn publish_gauges(&self, config: &Config) {
        self.clusters.values().filter_map(|cluster| cluster.checks.as_ref()).for_each(Checks::publish);
        for (name, cluster) in &config.clusters {
            self.shared.cluster(name).publish_breakers(cluster, &self.registry);
        }
    }

    /// Applies a configuration that replaces `before`. Call before the workers get it.
    pub fn update(&mut self, config: &Config, before: &Config) {
        for name in &*config.changed_clusters(before) {
            self.follow(name, config.clusters.get(name));
        }
    }

    fn follow(&mut self, name: &Arc<str>, cluster: Option<&Arc<Cluster>>) {
        let watched = |cluster: &&Arc<Cluster>| cluster.outlier_detection.is_some() || cluster.health_checks.is_some();
        let Some(cluster) = cluster.filter(watched) else {
            if let Some(mut known) = self.clusters.remove(name) {
                known.stop();
            }
            return;
        };
        let known = self.clusters.entry(name.clone()).or_insert_with(|| Watched {
            config: cluster.clone(),
            shared: self.shared.cluster(name),
            hosts: Vec::new(),
            outliers: None,
            checks: None,
        });
        known.update(cluster.clone(), &self.registry);
    }
}

impl Watched {
    fn update(&mut self, config: Arc<Cluster>, registry: &Registry) {
        self.hosts = config.endpoints.hosts.iter().map(|endpoint| self.shared.host(&endpoint.address)).collect();
        self.config = config;
        self.update_checks(registry);
        self.update_outliers(registry);
    }

    /// Starts and stops checks as configured for each host.
    fn update_checks(&mut self, registry: &Registry) {
        let Some(wanted) = &self.config.health_checks else { return self.stop_checks() };
        let changed = self.checks.as_ref().is_some_and(|checks| !Arc::ptr_eq(&checks.checks, wanted));
        let checks = self.checks.get_or_insert_with(|| Checks {
            checks: wanted.clone(),
            stats: Vec::new(),
            all: None,
            random: Rc::new(Random::from_system()),
            sessions: HashMap::new(),
        });
        if changed || checks.stats.is_empty() {
            checks.checks = wanted.clone();
            checks.count_in(registry, &self.config);
        }
        let mut before = std::mem::take(&mut checks.sessions);
        for (endpoint, health) in self.config.endpoints.hosts.iter().zip(&self.hosts) {
            let known = before.remove(&endpoint.address);
            if endpoint.check.disabled {
                continue;
            }
            if known.is_none() {
                let pending = if self.config.ignore_unchecked_hosts {
                    HealthFlags::PENDING_ACTIVE_HC
                } else {
                    HealthFlags::default()
                };
                health.change(HealthFlags::FAILED_ACTIVE_HC.and(pending), HealthFlags::default());
            }
            health.change(HealthFlags::default(), HealthFlags::PENDING_DYNAMIC_REMOVAL);
            let first = known.is_none();
            let as_it_was = |known: &Checked| !changed && known.endpoint == *endpoint && !known.is_over();
            let checked = match known.filter(as_it_was) {
                Some(known) => known,
                None => checks.start(&self.config, &self.shared, endpoint, health, first),
            };
            checks.sessions.insert(endpoint.address.clone(), checked);
        }
        // A host removed by service discovery stays while it passes its checks, unless configured otherwise.
        for (address, left) in before {
            let stays = !self.config.ignore_health_on_removal
                && !left.is_over()
                && !left.votes.health().flags().has(HealthFlags::FAILED_ACTIVE_HC);
            if stays {
                left.votes.health().change(HealthFlags::PENDING_DYNAMIC_REMOVAL, HealthFlags::default());
                checks.sessions.insert(address, left);
            }
        }
        checks.publish();
    }

    fn stop_checks(&mut self) {
        let Some(checks) = self.checks.take() else { return };
        let all = HealthFlags::FAILED_ACTIVE_HC
            .and(HealthFlags::DEGRADED_ACTIVE_HC)
            .and(HealthFlags::PENDING_ACTIVE_HC)
            .and(HealthFlags::ACTIVE_HC_TIMEOUT)
            .and(HealthFlags::EXCLUDED_VIA_IMMEDIATE_HC_FAIL)
            .and(HealthFlags::PENDING_DYNAMIC_REMOVAL);
        for checked in checks.sessions.values() {
            checked.votes.health().change(HealthFlags::default(), all);
        }
        self.shared.health_changed();
    }

    fn update_outliers(&mut self, registry: &Registry) {
        let Some(wanted) = &self.config.outlier_detection else { return self.stop_outliers() };
        let outliers = self.outliers.get_or_insert_with(|| {
            let writer = registry.scope(scope_name(&self.config, "outlier_detection.")).writer();
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
        self.stop_checks();
        self.stop_outliers();
    }
}

impl Checks {
    /// Registers a scope for each check, and a combined one if there are several.
    fn count_in(&mut self, registry: &Registry, cluster: &Cluster) {
        let stats = |check: &HealthCheck| {
            let name = match &*check.name {
                "" => scope_name(cluster, "health_check."),
                name => {
                    let mut scope = scope_name(cluster, "health_check.");
                    scope.dotted.push_str(&format!("name.{name}."));
                    scope.tags.push(("envoy_health_check_name", name.to_owned()));
                    scope
                }
            };
            Rc::new(registry.scope(name).writer())
        };
        self.stats = self.checks.iter().map(stats).collect();
        let several = self.checks.len() > 1;
        self.all = several.then(|| registry.scope(scope_name(cluster, "health_check.")).writer());
    }

    fn start(
        &self,
        cluster: &Arc<Cluster>,
        shared: &Arc<SharedCluster>,
        endpoint: &Arc<Endpoint>,
        health: &Arc<HostHealth>,
        first: bool,
    ) -> Checked {
        let votes = Rc::new(Votes::new(health, self.checks.len()));
        let tasks = self.checks.iter().zip(&self.stats).enumerate().map(|(index, (check, stats))| {
            let checking = Checking {
                checks: self.checks.clone(),
                index,
                target: CheckTarget::new(cluster, check, endpoint),
                votes: votes.clone(),
                shared: shared.clone(),
                stats: stats.clone(),
                random: self.random.clone(),
                first,
            };
            spawn_local(checking.run()).abort_handle()
        });
        let tasks = tasks.collect();
        Checked { endpoint: endpoint.clone(), votes, tasks }
    }

    fn publish(&self) {
        let hosts = || self.sessions.values().map(|checked| &*checked.votes);
        for (check, stats) in self.stats.iter().enumerate() {
            active::publish(stats, check, hosts());
        }
        if let Some(all) = &self.all {
            active::publish_all(all, hosts());
        }
    }
}

/// `cluster.NAME.KIND`.
fn scope_name(cluster: &Cluster, kind: &str) -> ScopeName {
    let mut name = ScopeName::tagged("cluster", "envoy_cluster_name", &cluster.stat_name);
    name.dotted.push_str(kind);
    name.family.push_str(&kind.replace('.', "_"));
    name
}

async fn keep_ticking(detector: Arc<OutlierDetector>, shared: Arc<SharedCluster>) {
    loop {
        sleep(detector.interval()).await;
        if detector.tick(Instant::now()) {
            shared.health_changed();
        }
    }
}
