//! One worker's part of a cluster: hosts, pools, circuit breakers, statistics.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_http::Headers;
use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::cluster::{
    Cluster as Config, Discovery, Endpoint, EndpointAddress, Health, MetadataMatch, OriginalDst, Transport,
};
use evenkeel_runtime_config::retry::RetryPolicy;
use evenkeel_runtime_config::route::Priority;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::{Registry, Scope, Writer};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::balance::{HostSet, Making, SubsetOutcome};
use super::breaker::{Overflow, Permit, Share, Slot, Slots};
use super::connect::{ConnectError, connect};
use super::health::{HealthFlags, Outcome, OutlierDetector, report};
use super::host::{Host, bump, same_transport};
use super::race;
use super::shared::SharedCluster;
use super::stats::cluster::{Counter, Gauge, Histogram, Stats};
use crate::alpn::Wanted;
use crate::h2;
use crate::random::Random;
use crate::stream::Stream;

/// Idle connections one worker keeps for one host.
const MAX_IDLE_PER_HOST: usize = 4096;
/// Original destinations one worker remembers; beyond it a destination is used once and forgotten.
const MAX_ORIGINAL_DESTINATIONS: usize = 10_000;

/// What a request or connection says about where it wants to go.
#[derive(Debug, Clone, Copy, Default)]
pub struct Target<'a> {
    /// What the client dialled, for `ORIGINAL_DST`.
    pub original_dst: Option<SocketAddr>,
    /// Hosts tried before, in their order.
    pub previous: &'a [Rc<Host>],
    /// What a retry avoids; nothing for a first try.
    pub retry: Option<&'a RetryPolicy>,
    /// What the route's hash policies came to.
    pub hash: Option<u64>,
    /// Metadata that the route asks of a host.
    pub metadata_match: Option<&'a MetadataMatch>,
    /// The host a session asks for.
    pub override_host: Option<OverrideHost<'a>>,
}

impl Target<'_> {
    /// How often to pick again when a host is refused (`host_selection_retry_max_attempts`).
    pub(super) fn reselect_attempts(&self) -> u32 {
        let refuses = |policy: &&RetryPolicy| policy.avoid_previous_hosts || !policy.avoid_metadata.is_empty();
        self.retry.filter(refuses).map_or(0, |policy| policy.host_selection_max_attempts)
    }

    /// A host that the retry policy wants another one for.
    pub(super) fn refuses(&self, host: &Host) -> bool {
        self.retry.is_some_and(|policy| {
            let tried = || self.previous.iter().any(|tried| tried.label == host.label);
            (policy.avoid_previous_hosts && tried())
                || policy.avoid_metadata.iter().any(|metadata| metadata.is_in(&host.endpoint().lb_metadata))
        })
    }
}

/// The host a session asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideHost<'a> {
    /// Its address, as in logs.
    pub address: &'a str,
    /// No other will do.
    pub strict: bool,
    /// Status of the answer if it is not there, and no other will do.
    pub status_if_gone: u16,
}

/// Why no host was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No endpoint, or none healthy (`UH`).
    #[error("no healthy upstream")]
    NoHealthyHost,
    /// The only host that would do is not there (`UH`).
    #[error("no healthy upstream")]
    HostGone {
        /// Status of the answer.
        status: u16,
    },
    /// The control plane asks to refuse a share of the requests (`DO`), or all of them (`UDO`).
    #[error("drop overload")]
    DropOverload {
        /// All of them.
        all: bool,
    },
}

/// Why there is no connection to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// A circuit breaker is open (`UO`).
    #[error("overflow")]
    Overflow(Overflow),
    /// Connecting failed (`UF`).
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// One worker's part of a cluster.
#[derive(Debug)]
pub struct Cluster {
    pub(super) config: RefCell<Arc<Config>>,
    /// Arranged for picking by their health at `health_version`.
    hosts: RefCell<Rc<HostSet>>,
    health_version: Cell<u64>,
    group: Arc<SharedCluster>,
    outliers: RefCell<Option<Arc<OutlierDetector>>>,
    /// Hosts made on demand by `ORIGINAL_DST`.
    original: RefCell<FastMap<SocketAddr, Rc<Host>>>,
    shared: Rc<Shared>,
    random: Rc<Random>,
    reports_membership: bool,
    /// A task closes idle connections for other workers.
    answering: Cell<bool>,
    /// Goes up when connections made before must not be used again.
    pub(super) epoch: Cell<u64>,
    registry: Arc<Registry>,
    /// Statistics of HTTP/2 connections, once there was one.
    http2_stats: OnceCell<Rc<Writer<h2::stats::Stats>>>,
}

/// What connections need of their cluster, without keeping its hosts alive.
#[derive(Debug)]
struct Shared {
    stats: Writer<Stats>,
    /// What other workers see of this one.
    share: Arc<Share>,
    /// Connections kept without using them.
    idle: Cell<u32>,
    /// Requests that wait for a connection here.
    waiting: Cell<u32>,
    /// A connection became idle.
    freed: Notify,
}

/// A connection waiting in a pool.
#[derive(Debug)]
pub(super) struct Idle {
    stream: Stream,
    open: OpenConnection,
    since: Instant,
    _counted: IdleGuard,
}

/// Counts an idle connection, for other workers that want its room.
#[derive(Debug)]
struct IdleGuard(Rc<Shared>);

impl IdleGuard {
    fn new(shared: &Rc<Shared>) -> Self {
        shared.idle.set(shared.idle.get() + 1);
        shared.share.set_idle(shared.idle.get());
        Self(Rc::clone(shared))
    }
}

impl Drop for IdleGuard {
    fn drop(&mut self) {
        self.0.idle.set(self.0.idle.get().saturating_sub(1));
        self.0.share.set_idle(self.0.idle.get());
    }
}

/// Room for a connection: in the cluster, and to the host.
#[derive(Debug)]
pub(super) struct Room {
    _cluster: Slot,
    _host: Option<Slot>,
}

/// A connection in use. Dropping it closes it; [`Cluster::release`] keeps it.
#[derive(Debug)]
pub struct Connection {
    /// The bytes.
    pub stream: Stream,
    /// Whom it leads to.
    pub host: Rc<Host>,
    /// It served a request before: the peer may be about to close it.
    pub reused: bool,
    /// Since when it had waited in its pool.
    idle_since: Option<Instant>,
    open: OpenConnection,
}

/// A connection that was just made.
pub(super) struct Established {
    pub(super) stream: Stream,
    pub(super) open: OpenConnection,
}

impl Established {
    /// For one request after the other.
    pub(super) fn into_connection(self, host: Rc<Host>) -> Connection {
        Connection { stream: self.stream, host, reused: false, idle_since: None, open: self.open }
    }
}

/// Counts a connection for as long as it is open.
#[derive(Debug)]
pub(super) struct OpenConnection {
    shared: Rc<Shared>,
    /// Weak: a host owns its idle connections.
    host: Weak<Host>,
    opened: Instant,
    pub(super) epoch: u64,
    /// Requests it served.
    requests: u32,
    /// This end's address.
    pub(super) local: Option<SocketAddr>,
    _room: Room,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if let Some(host) = self.host.upgrade() {
            host.counts.cx_active.set(host.counts.cx_active.get().saturating_sub(1));
        }
        self.shared.stats.inc(Counter::upstream_cx_destroy);
        self.shared.stats.shift(Gauge::upstream_cx_active, -1);
        self.shared.stats.record(Histogram::upstream_cx_length_ms, self.opened.elapsed().as_millis() as u64);
    }
}

impl Connection {
    /// The host closed it when it was used again: that is how long the host keeps connections.
    pub fn lost_race(&self, now: Instant) {
        if let Some(since) = self.idle_since {
            // The request was sent in between; what it took is short against what is learned.
            self.host.keep_alive().closed_after(now.duration_since(since), now);
        }
    }

    /// This end's address; `None` for Unix sockets.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.open.local
    }
}

/// Counts a request to a host for as long as it lasts.
#[derive(Debug)]
pub struct RequestGuard {
    shared: Rc<Shared>,
    host: Rc<Host>,
    /// Other workers see it too.
    everywhere: bool,
    _permit: Permit,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if self.everywhere {
            self.host.shared.end_request();
        }
        self.host.active.set(self.host.active.get().saturating_sub(1));
        self.shared.stats.shift(Gauge::upstream_rq_active, -1);
    }
}

/// Counts a request that waits for room on this worker.
struct LocalWaiter<'a>(&'a Shared);

impl<'a> LocalWaiter<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.waiting.set(shared.waiting.get() + 1);
        Self(shared)
    }
}

impl Drop for LocalWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}

/// Counts a request that waits for a connection.
pub(super) struct Pending<'a> {
    shared: &'a Shared,
    _permit: Permit,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.shared.stats.shift(Gauge::upstream_rq_pending_active, -1);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The task that closes idle connections sees that there is nothing left to do.
        self.shared.share.ask();
    }
}

impl Cluster {
    pub(super) fn new(
        config: Arc<Config>,
        group: Arc<SharedCluster>,
        scope: Scope<Stats>,
        random: Rc<Random>,
        registry: Arc<Registry>,
        reports_membership: bool,
    ) -> Self {
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
            group,
            outliers: RefCell::default(),
            original: RefCell::default(),
            config: RefCell::new(config.clone()),
            shared: Rc::new(shared),
            random,
            reports_membership,
            answering: Cell::default(),
            epoch: Cell::default(),
            registry,
            http2_stats: OnceCell::new(),
        };
        cluster.arrange(&config);
        cluster
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.config.borrow().clone()
    }

    /// HTTP/1 trailers are passed on to its hosts and taken from them.
    pub fn enables_trailers(&self) -> bool {
        self.config.borrow().http.enable_trailers
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
    pub(super) fn update(&self, wanted: &Arc<Config>) {
        let before = self.config.replace(wanted.clone());
        if Arc::ptr_eq(&before, wanted) {
            return;
        }
        if !connections_alike(&before, wanted) {
            self.epoch.set(self.epoch.get() + 1);
            self.close_idle();
        }
        self.arrange(wanted);
        if self.reports_membership {
            self.shared.stats.inc(Counter::update_success);
        }
    }

    /// Takes over the endpoints, keeping the hosts that are still there.
    fn arrange(&self, config: &Config) {
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
                        retire(&replaced);
                    }
                    Host::watched(endpoint, transport.clone(), self.group.host(&endpoint.address))
                }
            }
        });
        let mut hosts: Vec<_> = hosts.collect();
        for host in known.into_values() {
            // Discovery removed it, but it passes its checks.
            if host.shared.flags().has(HealthFlags::PENDING_DYNAMIC_REMOVAL) {
                hosts.push(host);
            } else {
                changed = true;
                retire(&host);
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

    /// Arranges the hosts by their health as it is now.
    fn rebuild(&self, config: &Config, hosts: Vec<Rc<Host>>) {
        self.health_version.set(self.group.health_version());
        let (gone, hosts): (Vec<_>, Vec<_>) = hosts.into_iter().partition(|host| {
            let flags = host.shared.flags();
            flags.has(HealthFlags::PENDING_DYNAMIC_REMOVAL) && flags.has(HealthFlags::FAILED_ACTIVE_HC)
        });
        gone.iter().for_each(|host| retire(host));
        hosts.iter().for_each(|host| host.note_health(config));
        let making = Making { config, random: &self.random, tables: &self.group.tables };
        let set = Rc::new(HostSet::new(hosts, making));
        let before = self.hosts.replace(set.clone());
        if self.reports_membership {
            self.report_membership(&set);
            self.report_subsets(before.subsets(), set.subsets());
        }
    }

    /// Arranges the hosts again if the health of any changed. One load when none did.
    #[inline]
    fn follow_health(&self, config: &Config) {
        if self.health_version.get() != self.group.health_version() {
            let hosts = self.hosts.borrow().hosts.clone();
            self.rebuild(config, hosts);
        }
    }

    /// What became of a request or connection to a host, for outlier detection.
    pub fn report(&self, host: &Host, outcome: Outcome) {
        let outliers = self.outliers.borrow();
        let Some(detector) = outliers.as_deref() else { return };
        let config = self.config.borrow();
        let Some(detection) = config.outlier_detection.as_deref() else { return };
        if report(detector, detection, (&host.shared, &host.tally), outcome, Instant::now()) {
            self.group.health_changed();
        }
    }

    /// A host asks in an answer to be left out (`x-envoy-immediate-health-check-fail`). It is heard where its health is checked,
    /// which is what brings it back.
    pub fn heed_health_header(&self, host: &Host, response: &Headers) {
        if self.config.borrow().health_check.is_some()
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

    /// Refuses the share of requests that the control plane wants refused. Asked once for a request, whatever its tries.
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
        if let Discovery::OriginalDst(options) = &config.discovery {
            let host = target.original_dst.map(|address| self.original_host(&config, options, address));
            return host.ok_or_else(|| self.none_healthy());
        }
        self.follow_health(&config);
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

    fn none_healthy(&self) -> PickError {
        self.shared.stats.inc(Counter::upstream_cx_none_healthy);
        PickError::NoHealthyHost
    }

    fn original_host(&self, config: &Config, options: &OriginalDst, mut address: SocketAddr) -> Rc<Host> {
        if let Some(port) = options.port_override {
            address.set_port(port);
        }
        let mut original = self.original.borrow_mut();
        if let Some(host) = original.get(&address) {
            return host.clone();
        }
        let endpoint = Arc::new(Endpoint::at(EndpointAddress::Socket(address)));
        let host = Host::new(&endpoint, config.transport.clone());
        if original.len() < MAX_ORIGINAL_DESTINATIONS {
            original.insert(address, host.clone());
        } else {
            host.removed.set(true);
        }
        host
    }

    /// Counts a request, unless `max_requests` are in flight.
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

    /// Counts a retry, unless `max_retries` are in flight.
    pub fn begin_retry(&self, priority: Priority) -> Result<Permit, Overflow> {
        let permit = self.count(Overflow::Retries, priority);
        self.shared.stats.inc(match permit {
            Ok(_) => Counter::upstream_rq_retry,
            Err(_) => Counter::upstream_rq_retry_overflow,
        });
        permit
    }

    fn count(&self, resource: Overflow, priority: Priority) -> Result<Permit, Overflow> {
        let config = self.config.borrow();
        let thresholds = match priority {
            Priority::Default => &config.circuit_breakers.default,
            Priority::High => &config.circuit_breakers.high,
        };
        self.group.counts(priority).try_acquire(resource, thresholds)
    }

    /// An idle connection that is still open, if there is one. Never waits.
    pub fn reuse(&self, host: &Rc<Host>) -> Option<Connection> {
        loop {
            let Idle { mut stream, mut open, since, .. } = host.idle.borrow_mut().pop()?;
            let now = Instant::now();
            let idle = now.duration_since(since);
            // The last one used is taken first: when it has waited too long, so have the others.
            if host.keep_alive().is_known() && host.keep_alive().limit(now).is_some_and(|limit| idle >= limit) {
                self.shared.stats.inc(Counter::upstream_cx_idle_timeout);
                continue;
            }
            if stream.is_idle_and_open() && (idle < race::LOOK_AFTER || race::is_quiet(&stream)) {
                open.requests += 1;
                return Some(Connection { stream, host: host.clone(), reused: true, idle_since: Some(since), open });
            }
            host.keep_alive().closed_after(idle, now);
        }
    }

    /// A new connection for one HTTP/1.1 request: an upgrade.
    pub async fn connect(&self, host: &Rc<Host>) -> Result<Connection, AcquireError> {
        self.stats().inc(Counter::upstream_cx_http1_total);
        self.connect_unshared(host, Wanted::Http1, None).await
    }

    /// A new connection for bytes of any protocol, on behalf of one client.
    pub async fn connect_tcp(&self, host: &Rc<Host>, client: &ConnectionView) -> Result<Connection, AcquireError> {
        self.connect_unshared(host, Wanted::Bytes, Some(client)).await
    }

    async fn connect_unshared(
        &self,
        host: &Rc<Host>,
        wanted: Wanted,
        client: Option<&ConnectionView>,
    ) -> Result<Connection, AcquireError> {
        let room = self.unshared_room(host)?;
        Ok(self.establish(host, room, wanted, client).await?.into_connection(host.clone()))
    }

    /// Room for a connection that nothing can be waited for instead of.
    pub(super) fn unshared_room(&self, host: &Rc<Host>) -> Result<Room, AcquireError> {
        self.try_room(host, Priority::Default).ok_or(AcquireError::Overflow(Overflow::Connections))
    }

    pub(super) fn begin_pending(&self, priority: Priority) -> Result<Pending<'_>, AcquireError> {
        let permit = self.count(Overflow::Pending, priority).map_err(|overflow| {
            self.shared.stats.inc(Counter::upstream_rq_pending_overflow);
            AcquireError::Overflow(overflow)
        })?;
        self.shared.stats.inc(Counter::upstream_rq_pending_total);
        self.shared.stats.shift(Gauge::upstream_rq_pending_active, 1);
        Ok(Pending { shared: &self.shared, _permit: permit })
    }

    /// Room for a connection to `host` if there is any; an idle connection to another host makes some.
    pub(super) fn try_room(&self, host: &Rc<Host>, priority: Priority) -> Option<Room> {
        let host_slot = match self.host_slots(host) {
            Some(slots) => Some(slots.try_take(false)?),
            None => None,
        };
        let (slots, counted) = self.cluster_slots(priority);
        let cluster = slots.try_take(counted).or_else(|| {
            self.shared.stats.inc(Counter::upstream_cx_overflow);
            // An idle connection to another host is worth less than one to this host; its room may go to who waits longer.
            (self.close_one_idle() && !slots.is_awaited()).then(|| slots.try_take(counted)).flatten()
        });
        Some(Room { _cluster: cluster?, _host: host_slot })
    }

    /// Room for a connection to `host`, once it is this request's turn.
    async fn wait_for_room(&self, host: &Rc<Host>, priority: Priority) -> Room {
        let share = &self.shared.share;
        let host_slot = match self.host_slots(host) {
            None => None,
            Some(slots) => match slots.try_take(false) {
                Some(slot) => Some(slot),
                None => Some(slots.wait(share, Instant::now()).await),
            },
        };
        let (slots, counted) = self.cluster_slots(priority);
        let cluster = match slots.try_take(counted) {
            Some(slot) => slot,
            None => slots.wait(share, Instant::now()).await,
        };
        Room { _cluster: cluster, _host: host_slot }
    }

    /// Waits for room for a connection, or until one that is kept becomes free (`None`), or something else happens
    /// (`None`).
    pub(super) async fn room_or(
        &self,
        host: &Rc<Host>,
        priority: Priority,
        other: impl Future<Output = ()>,
    ) -> Option<Room> {
        let _waiting = LocalWaiter::new(&self.shared);
        tokio::select! {
            biased;
            room = self.wait_for_room(host, priority) => Some(room),
            () = self.shared.freed.notified() => None,
            () = other => None,
        }
    }

    fn cluster_slots(&self, priority: Priority) -> (&Arc<Slots>, bool) {
        let config = self.config.borrow();
        let thresholds = match priority {
            Priority::Default => &config.circuit_breakers.default,
            Priority::High => &config.circuit_breakers.high,
        };
        (&self.group.counts(priority).connections, thresholds.track_remaining)
    }

    /// Room per host, where that is limited.
    fn host_slots<'h>(&self, host: &'h Rc<Host>) -> Option<&'h Arc<Slots>> {
        let limit = self.config.borrow().circuit_breakers.max_connections_per_host?;
        host.shared.connections.set_limit(limit);
        Some(&host.shared.connections)
    }

    /// Counts this worker's pool for `host`, unless as many as may be are in use.
    pub(super) fn use_pool(&self, host: &Host, priority: Priority) -> Result<(), AcquireError> {
        if host.pool.borrow().is_none() {
            let permit = self.count(Overflow::Pools, priority).map_err(|overflow| {
                self.shared.stats.inc(Counter::upstream_cx_pool_overflow);
                AcquireError::Overflow(overflow)
            })?;
            host.pool.replace(Some(permit));
        }
        Ok(())
    }

    /// Closes idle connections when requests of other workers want their room, for as long as the cluster lives and limits
    /// its connections.
    pub(super) fn answer_other_workers(cluster: &Rc<Self>) {
        let limited = cluster.config.borrow().circuit_breakers.default.max_connections != u32::MAX;
        if !limited || cluster.answering.replace(true) {
            return;
        }
        let (share, cluster) = (Arc::clone(&cluster.shared.share), Rc::downgrade(cluster));
        tokio::task::spawn_local(async move {
            loop {
                share.wanted().await;
                let Some(cluster) = cluster.upgrade() else { return };
                while cluster.group.counts(Priority::Default).connections.is_awaited() && cluster.close_one_idle() {}
            }
        });
    }

    pub(super) async fn establish(
        &self,
        host: &Rc<Host>,
        room: Room,
        wanted: Wanted,
        client: Option<&ConnectionView>,
    ) -> Result<Established, ConnectError> {
        let config = self.config();
        let epoch = self.epoch.get();
        // Counted before it is connected, so that concurrent requests see it.
        let mut open = self.count_open(host, room, epoch);
        let started = Instant::now();
        let stream = connect(&config, host, wanted, client).await.inspect_err(|error| {
            bump(&host.counts.cx_connect_fail);
            self.shared.stats.inc(Counter::upstream_cx_connect_fail);
            if matches!(error, ConnectError::Timeout(_)) {
                self.shared.stats.inc(Counter::upstream_cx_connect_timeout);
            }
        })?;
        self.shared.stats.record(Histogram::upstream_cx_connect_ms, started.elapsed().as_millis() as u64);
        open.local = stream.local_addr();
        Ok(Established { stream, open })
    }

    fn count_open(&self, host: &Rc<Host>, room: Room, epoch: u64) -> OpenConnection {
        self.group.note_traffic();
        bump(&host.counts.cx_total);
        bump(&host.counts.cx_active);
        self.shared.stats.inc(Counter::upstream_cx_total);
        self.shared.stats.shift(Gauge::upstream_cx_active, 1);
        OpenConnection {
            shared: self.shared.clone(),
            host: Rc::downgrade(host),
            opened: Instant::now(),
            epoch,
            requests: 1,
            local: None,
            _room: room,
        }
    }

    /// It has served as many requests, or for as long, as it may.
    fn is_worn_out(&self, open: &OpenConnection, now: Instant) -> bool {
        let config = self.config.borrow();
        let http = &config.http;
        if http.max_requests_per_connection.is_some_and(|most| open.requests >= most) {
            self.shared.stats.inc(Counter::upstream_cx_max_requests);
            return true;
        }
        let too_old = http.max_connection_duration.is_some_and(|limit| now.duration_since(open.opened) >= limit);
        if too_old {
            self.shared.stats.inc(Counter::upstream_cx_max_duration_reached);
        }
        too_old
    }

    /// Gives a connection back after a complete exchange that left it usable. It is closed instead of kept when it is of
    /// an old configuration or has served as many requests as it may.
    pub fn release(&self, connection: Connection, now: Instant) {
        let Connection { stream, host, open, .. } = connection;
        let worn_out = self.is_worn_out(&open, now);
        if worn_out || host.removed.get() || host.names_clients() || open.epoch != self.epoch.get() {
            return;
        }
        let slots = &self.group.counts(Priority::Default).connections;
        if host.idle.borrow().len() >= MAX_IDLE_PER_HOST {
            return;
        }
        let counted = IdleGuard::new(&self.shared);
        // Counted first and looked at then: who begins to wait in between sees that it is there to be asked for.
        if slots.is_awaited() && slots.must_move(&self.shared.share, self.shared.waiting.get() > 0, now) {
            drop(counted);
            return;
        }
        host.idle.borrow_mut().push(Idle { stream, open, since: now, _counted: counted });
        if self.shared.waiting.get() > 0 {
            self.shared.freed.notify_one();
        }
    }

    pub(super) fn sweep(&self, now: Instant) {
        self.follow_health(&self.config.borrow());
        let limit = self.config.borrow().http.idle_timeout;
        let hosts = self.hosts.borrow().clone();
        hosts.hosts.iter().for_each(|host| self.sweep_host(host, now, limit));
        let mut original = self.original.borrow_mut();
        original.retain(|_, host| {
            self.sweep_host(host, now, limit);
            Rc::strong_count(host) > 1 || !host.idle.borrow().is_empty() || host.multiplexed.in_use()
        });
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
        self.original.borrow().values().for_each(|host| host.close_idle());
    }

    fn close_one_idle(&self) -> bool {
        let hosts = self.hosts.borrow().clone();
        let original = self.original.borrow();
        let mut all = hosts.hosts.iter().chain(original.values());
        all.any(|host| {
            let mut idle = host.idle.borrow_mut();
            if idle.is_empty() {
                return false;
            }
            idle.remove(0);
            true
        })
    }

    pub(super) fn snapshot(&self) -> ClusterSnapshot {
        let config = self.config.borrow();
        let hosts = self.hosts.borrow();
        let original = self.original.borrow();
        let all = hosts.hosts.iter().chain(original.values());
        ClusterSnapshot { name: config.name.clone(), hosts: all.map(|host| HostSnapshot::of(host)).collect() }
    }
}

/// The transport of an endpoint: that of the match it was resolved to, else the cluster's.
fn transport<'a>(config: &'a Config, endpoint: &Endpoint) -> &'a Transport {
    let matched = endpoint.transport_index.and_then(|index| config.transport_matches.get(index));
    matched.map_or(&config.transport, |matched| &matched.transport)
}

fn retire(host: &Host) {
    host.removed.set(true);
    host.close_idle();
}

/// Connections of one configuration may be used under the other.
fn connections_alike(one: &Config, other: &Config) -> bool {
    one.bind == other.bind
        && one.tcp_keepalive == other.tcp_keepalive
        && one.discovery == other.discovery
        && one.http == other.http
        && same_transport(&one.transport, &other.transport)
}

/// One worker's numbers of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterSnapshot {
    /// Name.
    pub name: Arc<str>,
    /// Hosts in order; original destinations last.
    pub hosts: Vec<HostSnapshot>,
}

/// One worker's numbers of a host, as `/clusters` shows them.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct HostSnapshot {
    pub address: Arc<str>,
    pub hostname: Arc<str>,
    /// What discovery says of it; the flags say the rest.
    pub discovered: Health,
    pub health_flags: HealthFlags,
    pub weight: u32,
    pub cx_total: u64,
    pub cx_active: u64,
    pub cx_connect_fail: u64,
    pub rq_total: u64,
    pub rq_active: u64,
    pub rq_success: u64,
    pub rq_error: u64,
    pub rq_timeout: u64,
}

impl HostSnapshot {
    fn of(host: &Host) -> Self {
        let counts = &host.counts;
        Self {
            address: host.label.clone(),
            hostname: host.hostname.clone(),
            discovered: host.endpoint().health,
            health_flags: host.shared.flags(),
            weight: host.weight(),
            cx_total: counts.cx_total.get(),
            cx_active: counts.cx_active.get(),
            cx_connect_fail: counts.cx_connect_fail.get(),
            rq_total: counts.rq_total.get(),
            rq_active: u64::from(host.active.get()),
            rq_success: counts.rq_success.get(),
            rq_error: counts.rq_error.get(),
            rq_timeout: counts.rq_timeout.get(),
        }
    }
}
