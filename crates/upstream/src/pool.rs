//! A cluster's connection pool: reuses idle connections and opens new ones within the circuit breakers' limits.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::route::Priority;
use evenkeel_runtime_config::view::ConnectionView;
use tokio::time::Instant;

use super::breaker::{Overflow, Slots};
use super::cluster::Cluster;
use super::connect::{ConnectError, connect_timed};
use super::connection::{Connection, LocalWaiter, Pending};
use super::host::{Host, bump};
use super::open::{ConnectTimes, ConnectionSlots, Established, Idle, IdleGuard, OpenConnection};
use super::race;
use super::stats::cluster::{Counter, Gauge, Histogram};
use crate::alpn::WantedProtocol;
use crate::turn;

/// Idle connections one worker keeps for one host.
const MAX_IDLE_PER_HOST: usize = 4096;

/// Why no connection could be acquired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// A circuit breaker is open (`UO`).
    #[error("overflow")]
    Overflow(Overflow),
    /// Connecting failed (`UF`).
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl Cluster {
    /// An idle connection that is still open, if any. Never waits.
    pub fn reuse(&self, host: &Rc<Host>) -> Option<Connection> {
        loop {
            let Idle { mut stream, mut open, since, .. } = host.idle.borrow_mut().pop()?;
            let now = turn::now();
            let idle = now.duration_since(since);
            // The most recently used connection is taken first: if it has idled too long, so have the others.
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

    /// A new connection for one HTTP/1.1 request that takes it over: an upgrade.
    pub async fn connect(&self, host: &Rc<Host>) -> Result<Connection, AcquireError> {
        self.stats().inc(Counter::upstream_cx_http1_total);
        self.connect_unshared(host, WantedProtocol::Http1, None).await
    }

    /// A new connection for an arbitrary byte stream, on behalf of one client.
    pub async fn connect_tcp(&self, host: &Rc<Host>, client: &ConnectionView) -> Result<Connection, AcquireError> {
        self.connect_unshared(host, WantedProtocol::Bytes, Some(client)).await
    }

    async fn connect_unshared(
        &self,
        host: &Rc<Host>,
        wanted: WantedProtocol,
        client: Option<&ConnectionView>,
    ) -> Result<Connection, AcquireError> {
        let room = self.unshared_room(host)?;
        Ok(Connection::new(self.establish(host, room, wanted, client).await?, host.clone()))
    }

    /// Room for a connection that cannot be substituted by a shared one, so it fails instead of waiting.
    pub(super) fn unshared_room(&self, host: &Rc<Host>) -> Result<ConnectionSlots, AcquireError> {
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

    /// Room for a connection to `host`, if any; if there is none, closes an idle connection to another host to make some.
    pub(super) fn try_room(&self, host: &Rc<Host>, priority: Priority) -> Option<ConnectionSlots> {
        let host_slot = match self.host_slots(host) {
            Some(slots) => Some(slots.try_take(false)?),
            None => None,
        };
        let (slots, counted) = self.cluster_slots(priority);
        let cluster = slots.try_take(counted).or_else(|| {
            self.shared.stats.inc(Counter::upstream_cx_overflow);
            // An idle connection to another host is worth less than one to this host; but the room it frees belongs to
            // the request that has waited longest.
            (self.close_one_idle() && !slots.is_awaited()).then(|| slots.try_take(counted)).flatten()
        });
        Some(ConnectionSlots { _cluster: cluster?, _host: host_slot })
    }

    /// Waits in the queue for room for a connection to `host`.
    async fn wait_for_room(&self, host: &Rc<Host>, priority: Priority) -> ConnectionSlots {
        let share = &self.shared.share;
        let host_slot = match self.host_slots(host) {
            None => None,
            Some(slots) => match slots.try_take(false) {
                Some(slot) => Some(slot),
                None => Some(slots.wait(share, turn::now()).await),
            },
        };
        let (slots, counted) = self.cluster_slots(priority);
        let cluster = match slots.try_take(counted) {
            Some(slot) => slot,
            None => slots.wait(share, turn::now()).await,
        };
        ConnectionSlots { _cluster: cluster, _host: host_slot }
    }

    /// Waits for room for a connection; returns `None` when an idle connection becomes available or `other` completes first.
    pub(super) async fn room_or(
        &self,
        host: &Rc<Host>,
        priority: Priority,
        other: impl Future<Output = ()>,
    ) -> Option<ConnectionSlots> {
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

    /// The host's own connection limit, if it has one.
    fn host_slots<'h>(&self, host: &'h Rc<Host>) -> Option<&'h Arc<Slots>> {
        let limit = self.config.borrow().circuit_breakers.max_connections_per_host?;
        host.shared.connections.set_limit(limit);
        Some(&host.shared.connections)
    }

    /// Counts this worker's pool for `host`; fails if the maximum number of pools is in use.
    pub(super) fn use_pool(&self, host: &Host, priority: Priority) -> Result<(), AcquireError> {
        if host.pool.borrow().is_none() {
            let permit = self.count(Overflow::Pools, priority).map_err(|overflow| {
                self.shared.stats.inc(Counter::upstream_cx_pool_overflow);
                AcquireError::Overflow(overflow)
            })?;
            host.pool.replace(Some(permit));
            self.note_busy();
        }
        Ok(())
    }

    /// Closes idle connections when other workers' requests need their room. Runs as long as the cluster exists and
    /// limits its connections.
    pub(super) fn answer_other_workers(cluster: &Rc<Self>) {
        let limited = cluster.config.borrow().circuit_breakers.default.max_connections != u32::MAX;
        if !limited || cluster.answering.replace(true) {
            return;
        }
        let (share, cluster) = (Arc::clone(&cluster.shared.share), Rc::downgrade(cluster));
        turn::spawn(async move {
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
        room: ConnectionSlots,
        wanted: WantedProtocol,
        client: Option<&ConnectionView>,
    ) -> Result<Established, ConnectError> {
        let config = self.config();
        let epoch = self.epoch.get();
        // Counted before connecting, so that concurrent requests see it.
        let mut open = self.count_open(host, room, epoch);
        let (stream, times) =
            connect_timed(&config, (host, &self.group.own), wanted, client).await.inspect_err(|error| {
                bump(&host.counts.cx_connect_fail);
                self.shared.stats.inc(Counter::upstream_cx_connect_fail);
                if matches!(error, ConnectError::Timeout(_)) {
                    self.shared.stats.inc(Counter::upstream_cx_connect_timeout);
                }
            })?;
        self.shared.stats.record(
            Histogram::upstream_cx_connect_ms,
            turn::now().saturating_duration_since(times.begin).as_millis() as u64,
        );
        (open.local, open.times) = (stream.local_addr(), times);
        Ok(Established { stream, open })
    }

    fn count_open(&self, host: &Rc<Host>, room: ConnectionSlots, epoch: u64) -> OpenConnection {
        self.group.note_traffic();
        self.note_busy();
        bump(&host.counts.cx_total);
        bump(&host.counts.cx_active);
        self.shared.stats.inc(Counter::upstream_cx_total);
        self.shared.stats.shift(Gauge::upstream_cx_active, 1);
        let now = turn::now();
        OpenConnection {
            shared: self.shared.clone(),
            cx_active: Rc::clone(&host.counts.cx_active),
            times: ConnectTimes::new(now, now),
            epoch,
            requests: 1,
            local: None,
            _room: room,
        }
    }

    /// Whether the connection has reached its request or age limit.
    fn is_worn_out(&self, open: &OpenConnection, now: Instant) -> bool {
        let config = self.config.borrow();
        let http = &config.http;
        if http.max_requests_per_connection.is_some_and(|most| open.requests >= most) {
            self.shared.stats.inc(Counter::upstream_cx_max_requests);
            return true;
        }
        let too_old = http.max_connection_duration.is_some_and(|limit| now.duration_since(open.times.begin) >= limit);
        if too_old {
            self.shared.stats.inc(Counter::upstream_cx_max_duration_reached);
        }
        too_old
    }

    /// Returns a connection after a complete exchange that left it reusable. It is closed instead of kept if it belongs
    /// to an old configuration or has reached its request or age limit.
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
        // Counted before the check: a request that starts to wait in between sees that the connection can be requested.
        if slots.is_awaited() && slots.must_move(&self.shared.share, self.shared.waiting.get() > 0, now) {
            drop(counted);
            return;
        }
        host.idle.borrow_mut().push(Idle { stream, open, since: now, _counted: counted });
        if self.shared.waiting.get() > 0 {
            self.shared.freed.notify_one();
        }
    }

    /// Closes the longest idle connection of the first host that has one.
    fn close_one_idle(&self) -> bool {
        let hosts = self.hosts.borrow().clone();
        let close_one = |host: &Rc<Host>| {
            let mut idle = host.idle.borrow_mut();
            if idle.is_empty() {
                return false;
            }
            idle.remove(0);
            true
        };
        hosts.hosts.iter().any(close_one) || self.made.any(close_one)
    }
}
