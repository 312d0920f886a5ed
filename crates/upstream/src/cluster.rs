//! One worker's part of a cluster: its hosts, load balancing, and statistics. Its connections are in [`super::pool`].

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::{ClusterScope, HttpFilters, Setup};
use evenkeel_http::{Headers, Limits};
use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::bind::ClientSource;
use evenkeel_runtime_config::cluster::{Cluster as Config, Discovery, Endpoint, Health, OriginalDst, Transport};
use evenkeel_runtime_config::outlier_detection::OutlierDetection;
use evenkeel_runtime_config::route::Priority;
use evenkeel_stats::{Registry, Scope, ScopeName, Writer};
use rustc_hash::FxBuildHasher;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::balance::{HostSet, Making, SubsetOutcome, ZoneContext};
use super::breaker::{Overflow, Permit};
use super::connection::RequestGuard;
use super::health::{HealthFlags, Outcome, OutlierDetector, report};
use super::host::{Host, bump, same_transport};
use super::load_report::LoadReport;
use super::local_hosts::LocalHosts;
use super::made::MadeHosts;
use super::open::Shared;
use super::reported_weight::weights;
use super::shared::SharedCluster;
use super::snapshot::{ClusterSnapshot, HostSnapshot};
use super::stats::cluster::{Counter, Gauge, Stats};
use super::stats::{scope, udp, udp_name, zone};
use super::target::{PickError, Target};
use crate::random::Random;
use crate::{h2, turn};

/// Limit for a response's head in bytes if the cluster sets none; Envoy's default over HTTP/1.
const MAX_RESPONSE_HEAD_BYTES: usize = 80 * 1024;

/// Names of one worker's clusters that have something to sweep; the others are skipped.
pub(super) type Busy = RefCell<HashSet<Arc<str>, FxBuildHasher>>;

/// State shared by all clusters of a worker.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub random: Rc<Random>,
    pub registry: Arc<Registry>,
    pub busy: Rc<Busy>,
    /// The hosts of the local cluster, if the proxy has one.
    pub local: Rc<LocalHosts>,
    /// Whether this worker reports process-wide gauges (`membership_*`).
    pub reports_membership: bool,
}

/// One worker's part of a cluster.
#[derive(Debug)]
pub struct Cluster {
    pub(super) config: RefCell<Arc<Config>>,
    /// The hosts, grouped for load balancing by their health as of `health_version`.
    pub(super) hosts: RefCell<Rc<HostSet>>,
    health_version: Cell<u64>,
    /// When weights are next computed from load reports, if the load balancer uses them.
    weights_due: Cell<Option<Instant>>,
    local: Rc<LocalHosts>,
    pub(super) group: Arc<SharedCluster>,
    outliers: RefCell<Option<Arc<OutlierDetector>>>,
    /// Hosts made on demand, by `ORIGINAL_DST` and the dynamic forward proxy.
    pub(super) made: MadeHosts,
    pub(super) shared: Rc<Shared>,
    random: Rc<Random>,
    reports_membership: bool,
    /// A task closes idle connections when other workers need their room.
    pub(super) answering: Cell<bool>,
    /// Incremented when connections made earlier must not be reused.
    pub(super) epoch: Cell<u64>,
    /// Whether there is something to sweep: then the cluster's name is in `busy`.
    is_busy: Cell<bool>,
    busy: Rc<Busy>,
    registry: Arc<Registry>,
    /// Statistics of HTTP/2 connections, created with the first of them.
    http2_stats: OnceCell<Rc<Writer<h2::stats::Stats>>>,
    /// Statistics of UDP sessions, created with the first of them.
    udp_stats: OnceCell<Rc<Writer<udp::Stats>>>,
    /// The filters' shared state for this cluster, created on first use.
    filter_scope: OnceCell<Rc<ClusterScope>>,
    /// Statistics of zone-aware routing, if the cluster uses it.
    zone_stats: OnceCell<Rc<Writer<zone::Stats>>>,
    /// The upstream HTTP filters, which every try of a request passes; most clusters have none.
    http_filters: RefCell<Option<Rc<HttpFilters>>>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Wakes the task that closes idle connections, so that it notices that the cluster is gone.
        self.shared.share.ask();
    }
}

impl Cluster {
    pub(super) fn new(config: Arc<Config>, group: Arc<SharedCluster>, scope: Scope<Stats>, common: Common) -> Self {
        let Common { random, registry, busy, local, reports_membership } = common;
        group.set_limits(&config.circuit_breakers);
        let shared = Shared {
            stats: scope.writer(),
            share: group.counts(Priority::Default).connections.share(),
            idle: Cell::default(),
            waiting: Cell::default(),
            freed: Notify::new(),
        };
        let cluster = Self {
            hosts: RefCell::default(),
            health_version: Cell::default(),
            weights_due: Cell::default(),
            local,
            group,
            outliers: RefCell::default(),
            made: MadeHosts::default(),
            config: RefCell::new(config.clone()),
            shared: Rc::new(shared),
            random,
            reports_membership,
            answering: Cell::default(),
            epoch: Cell::default(),
            is_busy: Cell::default(),
            busy,
            http_filters: RefCell::new(http_filters(&config, &registry)),
            registry,
            http2_stats: OnceCell::new(),
            udp_stats: OnceCell::new(),
            filter_scope: OnceCell::new(),
            zone_stats: OnceCell::new(),
        };
        cluster.arrange(&config);
        cluster
    }

    /// The current configuration.
    pub fn config(&self) -> Arc<Config> {
        self.config.borrow().clone()
    }

    /// Whether the cluster mirrors requests, whatever their routes say.
    pub fn is_mirrored(&self) -> bool {
        self.config.borrow().mirrors.is_some()
    }

    /// Whether HTTP/1 trailers are forwarded to its hosts and accepted from them.
    pub fn enables_trailers(&self) -> bool {
        self.config.borrow().http.enable_trailers
    }

    /// Whether names of headers are passed on over HTTP/1 as they are spelled.
    pub fn preserves_case(&self) -> bool {
        self.config.borrow().http.preserve_header_case
    }

    /// Limits for a response's head over HTTP/1.
    pub fn response_limits(&self) -> Limits {
        let config = self.config.borrow();
        let http = &config.http;
        let max_head_bytes = http.max_response_headers_bytes.unwrap_or(MAX_RESPONSE_HEAD_BYTES);
        Limits { max_head_bytes, max_headers: http.max_headers_count }
    }

    /// This worker's counters.
    pub fn stats(&self) -> &Writer<Stats> {
        &self.shared.stats
    }

    /// This worker's counters of HTTP/2 connections.
    pub(super) fn http2_stats(&self) -> Rc<Writer<h2::stats::Stats>> {
        let make = || {
            let name = h2::stats::upstream_name(&self.config.borrow().stat_name);
            Rc::new(self.registry.scope::<h2::stats::Stats>(name).writer())
        };
        Rc::clone(self.http2_stats.get_or_init(make))
    }

    /// This worker's counters of UDP sessions.
    pub(super) fn udp_stats(&self) -> Rc<Writer<udp::Stats>> {
        let make = || {
            let name = udp_name(&self.config.borrow().stat_name);
            Rc::new(self.registry.scope::<udp::Stats>(name).writer())
        };
        Rc::clone(self.udp_stats.get_or_init(make))
    }

    /// The filters' shared state and statistics for this cluster on this worker.
    pub fn filter_scope(&self) -> Rc<ClusterScope> {
        let make = || {
            let config = self.config.borrow();
            Rc::new(ClusterScope::new(Arc::clone(&self.registry), &config.stat_name).outside(config.external))
        };
        Rc::clone(self.filter_scope.get_or_init(make))
    }

    /// The upstream HTTP filters, which every try of a request passes.
    #[inline]
    pub fn http_filters(&self) -> Option<Rc<HttpFilters>> {
        self.http_filters.borrow().clone()
    }

    pub(super) fn update(&self, wanted: &Arc<Config>) {
        let before = self.config.replace(wanted.clone());
        if Arc::ptr_eq(&before, wanted) {
            return;
        }
        if !Arc::ptr_eq(&before.http_filters, &wanted.http_filters) {
            self.http_filters.replace(http_filters(wanted, &self.registry));
        }
        if !connections_alike(&before, wanted) {
            self.epoch.set(self.epoch.get() + 1);
            self.close_idle();
        }
        self.made.follow(wanted);
        if before.utilization != wanted.utilization {
            self.weights_due.set(None);
            self.hosts.borrow().hosts.iter().for_each(|host| _ = host.set_reported_weight(0));
        }
        self.arrange(wanted);
        if self.reports_membership {
            self.shared.stats.inc(Counter::update_success);
        }
    }

    /// Applies the configured endpoints, keeping hosts that are still present.
    fn arrange(&self, config: &Config) {
        if follows_health(config) {
            self.note_busy();
        }
        self.outliers.replace(self.group.outliers());
        self.group.set_limits(&config.circuit_breakers);
        let before = self.hosts.borrow().clone();
        let mut known: FastMap<EndpointAddress, Rc<Host>> =
            before.hosts.iter().map(|host| (host.address.clone(), host.clone())).collect();
        let mut changed = false;
        let hosts = config.endpoints.hosts.iter().map(|endpoint| {
            let transport = transport(config, endpoint);
            match known.remove(&endpoint.address) {
                Some(host) if same_transport(&host.transport, transport) && host.hostname == endpoint.hostname => {
                    host.reconfigure(endpoint);
                    host
                }
                other => {
                    changed = true;
                    if let Some(replaced) = other {
                        replaced.retire();
                    }
                    Host::watched(endpoint, transport.clone(), self.group.host(&endpoint.address))
                }
            }
        });
        let mut hosts: Vec<_> = hosts.collect();
        for host in known.into_values() {
            // Service discovery removed it, but it still passes its health checks.
            if host.shared.flags().has(HealthFlags::PENDING_DYNAMIC_REMOVAL) {
                hosts.push(host);
            } else {
                changed = true;
                host.retire();
            }
        }
        if changed && config.close_connections_on_host_set_change && !before.hosts.is_empty() {
            self.epoch.set(self.epoch.get() + 1);
            self.close_idle();
        }
        self.rebuild(config, hosts);
        if changed && self.reports_membership {
            self.shared.stats.inc(Counter::membership_change);
        }
    }

    /// Rebuilds the host set by the hosts' current health.
    fn rebuild(&self, config: &Config, hosts: Vec<Rc<Host>>) {
        self.health_version.set(self.group.health_version());
        let (gone, hosts): (Vec<_>, Vec<_>) = hosts.into_iter().partition(|host| {
            let flags = host.shared.flags();
            flags.has(HealthFlags::PENDING_DYNAMIC_REMOVAL) && flags.has(HealthFlags::FAILED_ACTIVE_HC)
        });
        gone.iter().for_each(|host| host.retire());
        hosts.iter().for_each(|host| host.note_health(config));
        if config.utilization.is_some() {
            self.weigh(config, &hosts);
        }
        if config.is_local {
            self.local.set(&hosts, config);
        }
        let stats = config.zone_aware.map(|_| self.zone_stats());
        let zones = stats.as_ref().map(|stats| ZoneContext { local: &self.local, stats });
        let making = Making { config, random: &self.random, tables: &self.group.tables, zones };
        let set = Rc::new(HostSet::new(hosts, making));
        let before = self.hosts.replace(set.clone());
        if self.reports_membership {
            self.report_membership(&set);
            self.report_subsets(before.subsets(), set.subsets());
        }
    }

    fn zone_stats(&self) -> Rc<Writer<zone::Stats>> {
        let make = || Rc::new(scope::<zone::Stats>(&self.registry, &self.config.borrow().stat_name).writer());
        Rc::clone(self.zone_stats.get_or_init(make))
    }

    /// Sets the hosts' weights from their load reports; returns true if any changed.
    fn weigh(&self, config: &Config, hosts: &[Rc<Host>]) -> bool {
        let Some(settings) = config.utilization.as_deref() else { return false };
        let now = turn::now();
        self.weights_due.set(Some(now + settings.update));
        let mut levels: Vec<u32> = hosts.iter().map(|host| host.endpoint().priority).collect();
        levels.sort_unstable();
        levels.dedup();
        let mut changed = false;
        for level in levels {
            let members = || hosts.iter().filter(|host| host.endpoint().priority == level);
            let reported = members().map(|host| host.shared.reported.get().map(AsRef::as_ref));
            for (host, weight) in members().zip(weights(reported, settings, now)) {
                changed |= host.set_reported_weight(weight);
            }
        }
        changed
    }

    /// Computes weights from load reports, if it is due. Costs nothing in other clusters.
    #[inline]
    fn follow_reports(&self, config: &Config) {
        if self.weights_due.get().is_some_and(|due| turn::now() >= due) {
            let hosts = self.hosts.borrow().hosts.clone();
            if self.weigh(config, &hosts) {
                self.rebuild(config, hosts);
            }
        }
    }

    /// Takes note of the load report in a response's headers or trailers. True if there is a valid one and the load
    /// balancer uses it.
    pub fn heed_load_report(&self, host: &Host, fields: &Headers) -> bool {
        let config = self.config.borrow();
        let Some(settings) = config.utilization.as_deref() else { return false };
        let Some(report) = LoadReport::of(fields) else { return false };
        if let Some(weight) = report.weight(settings) {
            host.shared.reported.get_or_init(Box::default).report(weight, turn::now());
        }
        true
    }

    /// Rebuilds the host set if the health of any host changed. Costs one load if none did.
    #[inline]
    fn follow_health(&self, config: &Config) {
        if self.health_version.get() != self.group.health_version() {
            let hosts = self.hosts.borrow().hosts.clone();
            self.rebuild(config, hosts);
        }
    }

    /// Reports the outcome of a request or connection to outlier detection.
    pub fn report(&self, host: &Host, outcome: Outcome) {
        let outliers = self.outliers.borrow();
        let Some(detector) = outliers.as_deref() else { return };
        let config = self.config.borrow();
        let Some(detection) = config.outlier_detection.as_deref() else { return };
        if report(detector, detection, (&host.shared, &host.tally), outcome, turn::now()) {
            self.group.health_changed();
        }
    }

    /// A request got a connection to a host, new or reused. Matters only with `split_external_local_origin_errors`,
    /// where responses of hosts and errors that the proxy sees itself are counted apart.
    #[inline]
    pub fn report_connected(&self, host: &Host) {
        let splits = |detection: &OutlierDetection| detection.split_local_origin;
        if self.config.borrow().outlier_detection.as_deref().is_some_and(splits) {
            self.report(host, Outcome::Connected);
        }
    }

    /// The host asks in a response to be taken out of load balancing (`x-envoy-immediate-health-check-fail`). Honoured
    /// only with active health checks, since they are what brings the host back.
    pub fn heed_health_header(&self, host: &Host, response: &Headers) {
        if self.config.borrow().health_checks.is_some()
            && response.find(b"x-envoy-immediate-health-check-fail").is_some()
            && host.shared.fail_at_once()
        {
            self.group.health_changed();
        }
    }

    fn report_membership(&self, set: &HostSet) {
        let stats = &self.shared.stats;
        stats.set(Gauge::membership_total, set.hosts.len() as i64);
        stats.set(Gauge::membership_healthy, set.count(Health::Healthy) as i64);
        stats.set(Gauge::membership_degraded, set.count(Health::Degraded) as i64);
    }

    fn report_subsets(&self, before: usize, now: usize) {
        let stats = &self.shared.stats;
        if before != now {
            stats.set(Gauge::lb_subsets_active, now as i64);
            stats.add(Counter::lb_subsets_created, now.saturating_sub(before) as u64);
            stats.add(Counter::lb_subsets_removed, before.saturating_sub(now) as u64);
        }
    }

    /// Drops the share of requests that the control plane wants dropped (`drop_overloads`). Called once per request, not per try.
    pub fn drop_share(&self) -> Result<(), PickError> {
        let dropped = self.config.borrow().endpoints.drop_overload_ppm as usize;
        if dropped == 0 || self.random.below(1_000_000) >= dropped {
            return Ok(());
        }
        self.shared.stats.inc(Counter::upstream_rq_drop_overload);
        Err(PickError::DropOverload { all: dropped >= 1_000_000 })
    }

    /// Picks a host.
    pub fn pick(&self, target: &Target<'_>) -> Result<Rc<Host>, PickError> {
        let config = self.config.borrow();
        match &config.discovery {
            Discovery::OriginalDst(options) => {
                let host = target.original_dst.map(|address| self.original_host(&config, options, address));
                return host.ok_or_else(|| self.none_healthy());
            }
            Discovery::DynamicForwardProxy(_) => {
                let host = target.dynamic.and_then(|called| self.made.named(called, &config));
                self.note_busy();
                return host.ok_or_else(|| self.none_healthy());
            }
            _ => {}
        }
        self.follow_health(&config);
        self.follow_reports(&config);
        let hosts = self.hosts.borrow();
        if let Some(wanted) = target.override_host {
            match hosts.by_address(wanted.address) {
                Some(host) if config.override_host_status.allows(host.health()) => return Ok(host.clone()),
                Some(_) if wanted.strict => return Err(self.none_healthy()),
                None if wanted.strict => {
                    self.none_healthy();
                    return Err(PickError::HostGone { status: wanted.status_if_gone });
                }
                _ => {}
            }
        }
        let picked = hosts.pick(target, &self.random);
        if picked.panic {
            self.shared.stats.inc(Counter::lb_healthy_panic);
        }
        match picked.subset {
            SubsetOutcome::None => {}
            SubsetOutcome::Selected => self.shared.stats.inc(Counter::lb_subsets_selected),
            SubsetOutcome::Fallback => self.shared.stats.inc(Counter::lb_subsets_fallback),
            SubsetOutcome::FallbackPanic => self.shared.stats.inc(Counter::lb_subsets_fallback_panic),
        }
        picked.host.cloned().ok_or_else(|| self.none_healthy())
    }

    /// The host with the connections for this client: another one than `host` if they have the client's address.
    #[inline]
    pub fn on_behalf_of(&self, host: &Rc<Host>, client: Option<ClientSource>) -> Rc<Host> {
        let Some(client) = client else { return host.clone() };
        self.note_busy();
        self.made.for_client(host, client)
    }

    fn none_healthy(&self) -> PickError {
        self.shared.stats.inc(Counter::upstream_cx_none_healthy);
        PickError::NoHealthyHost
    }

    fn original_host(&self, config: &Config, options: &OriginalDst, mut address: SocketAddr) -> Rc<Host> {
        if let Some(port) = options.port_override {
            address.set_port(port);
        }
        let (host, is_new) = self.made.at(address, config);
        if is_new {
            self.note_busy();
        }
        host
    }

    /// Counts a request; fails if `max_requests` are in flight.
    pub fn begin_request(&self, host: &Rc<Host>, priority: Priority) -> Result<RequestGuard, Overflow> {
        let permit = self.count(Overflow::Requests, priority).inspect_err(|_| {
            self.shared.stats.inc(Counter::upstream_rq_pending_overflow);
        })?;
        host.active.set(host.active.get() + 1);
        let everywhere = self.config.borrow().load_balancer.follows_load();
        if everywhere {
            host.shared.begin_request();
        }
        bump(&host.counts.rq_total);
        self.shared.stats.inc(Counter::upstream_rq_total);
        self.shared.stats.shift(Gauge::upstream_rq_active, 1);
        Ok(RequestGuard { shared: self.shared.clone(), host: host.clone(), everywhere, _permit: permit })
    }

    /// Counts a retry; fails if `max_retries`, or as many as the retry budget allows, are in flight. `failed`: the
    /// previous try is no longer counted as a request. The budget is a share of the requests in flight, which have to
    /// include this one, so it is counted as a request while the budget is evaluated.
    pub fn begin_retry(&self, priority: Priority, failed: bool) -> Result<Permit, Overflow> {
        let _request = failed.then(|| self.count(Overflow::Requests, priority));
        let permit = self.count(Overflow::Retries, priority);
        self.shared.stats.inc(match permit {
            Ok(_) => Counter::upstream_rq_retry,
            Err(_) => Counter::upstream_rq_retry_overflow,
        });
        permit
    }

    pub(super) fn count(&self, resource: Overflow, priority: Priority) -> Result<Permit, Overflow> {
        let config = self.config.borrow();
        let thresholds = match priority {
            Priority::Default => &config.circuit_breakers.default,
            Priority::High => &config.circuit_breakers.high,
        };
        self.group.counts(priority).try_acquire(resource, thresholds)
    }

    /// Marks the cluster as having something to sweep.
    #[inline]
    pub(super) fn note_busy(&self) {
        if !self.is_busy.replace(true) {
            self.busy.borrow_mut().insert(self.config.borrow().name.clone());
        }
    }

    /// Sweeps the cluster's hosts; returns false when no further sweep is needed.
    pub(super) fn sweep(&self, now: Instant) -> bool {
        self.follow_health(&self.config.borrow());
        let limit = self.config.borrow().http.idle_timeout;
        let hosts = self.hosts.borrow().clone();
        hosts.hosts.iter().for_each(|host| self.sweep_host(host, now, limit));
        self.made.retain(|host| {
            self.sweep_host(host, now, limit);
            Rc::strong_count(host) > 1 || !host.idle.borrow().is_empty() || host.multiplexed.in_use()
        });
        let is_busy = !self.made.is_empty()
            || follows_health(&self.config.borrow())
            || hosts.hosts.iter().any(|host| host.is_busy());
        self.is_busy.set(is_busy);
        is_busy
    }

    fn sweep_host(&self, host: &Host, now: Instant, limit: Option<Duration>) {
        if host.counts.cx_active.get() == 0 {
            host.pool.take();
        }
        host.multiplexed.sweep();
        let limit = limit.into_iter().chain(host.keep_alive().limit(now)).min();
        host.idle.borrow_mut().retain_mut(|idle| {
            if limit.is_some_and(|limit| now.duration_since(idle.since) >= limit) {
                self.shared.stats.inc(Counter::upstream_cx_idle_timeout);
                return false;
            }
            let open = idle.stream.is_idle_and_open();
            if !open {
                host.keep_alive().closed_after(now.duration_since(idle.since), now);
            }
            open
        });
    }

    pub(super) fn close_idle(&self) {
        let hosts = self.hosts.borrow().clone();
        hosts.hosts.iter().for_each(|host| host.close_idle());
        self.made.for_each(|host| host.close_idle());
    }

    /// When outlier detection ejected a host, if it has.
    pub(super) fn ejected(&self, host: &Host) -> Option<Instant> {
        self.outliers.borrow().as_ref()?.ejected(&host.shared)
    }

    pub(super) fn snapshot(&self) -> ClusterSnapshot {
        let config = self.config.borrow();
        self.follow_reports(&config);
        let hosts = self.hosts.borrow();
        let mut shown: Vec<_> = hosts.hosts.iter().map(|host| HostSnapshot::of(host)).collect();
        self.made.for_each_endpoint(|host| shown.push(HostSnapshot::of(host)));
        ClusterSnapshot { name: config.name.clone(), hosts: shown }
    }
}

/// Whether hosts' health can change between configuration updates.
fn follows_health(config: &Config) -> bool {
    config.health_checks.is_some() || config.outlier_detection.is_some()
}

/// The transport of an endpoint: that of its transport socket match, else the cluster's.
fn transport<'a>(config: &'a Config, endpoint: &Endpoint) -> &'a Transport {
    let matched = endpoint.transport_index.and_then(|index| config.transport_matches.get(index));
    matched.map_or(&config.transport, |matched| &matched.transport)
}

fn http_filters(config: &Config, registry: &Arc<Registry>) -> Option<Rc<HttpFilters>> {
    if config.http_filters.is_empty() {
        return None;
    }
    let outer = ScopeName::tagged("cluster", "envoy_cluster_name", &config.stat_name);
    Some(Rc::new(HttpFilters::new(&config.http_filters, &Setup { registry, outer: &outer })))
}

/// Whether connections made under one configuration may be used under the other.
fn connections_alike(one: &Config, other: &Config) -> bool {
    one.bind == other.bind
        && one.tcp_keepalive == other.tcp_keepalive
        && one.discovery == other.discovery
        && one.http == other.http
        && same_transport(&one.transport, &other.transport)
}
