//! Upstream connections: taken from a host's idle ones, opened within the cluster's limits, given back.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use crate::conn::{Buffer, Stream};
use crate::stats::{cluster, endpoint};
use crate::upstream::cluster::{ClusterState, Host};
use crate::upstream::connect::{self, ConnectError};
use crate::upstream::shared::{ClusterCore, try_acquire};

/// Idle connections a worker keeps per host.
const MAX_IDLE_PER_HOST: usize = 1024;

/// A connection to a host, in use by one request.
pub(crate) struct UpstreamConnection {
    pub(crate) stream: Stream,
    pub(crate) input: Buffer,
    pub(crate) host: Rc<Host>,
    pub(crate) local_address: Option<SocketAddr>,
    /// Requests sent on it, this one included.
    pub(crate) requests: u32,
    slot: ConnectionSlot,
}

/// A connection between requests.
pub(crate) struct IdleConnection {
    stream: Stream,
    since: Instant,
    local_address: Option<SocketAddr>,
    requests: u32,
    slot: ConnectionSlot,
}

/// Why no connection is available.
#[derive(Debug)]
pub(crate) enum PoolError {
    /// A circuit breaker is open.
    Overflow,
    /// Connecting failed.
    Connect(ConnectError),
}

impl UpstreamConnection {
    /// An idle connection to `host`, or a new one. Waits while the cluster has all the connections it may have.
    pub(crate) async fn obtain(cluster: &Rc<ClusterState>, host: &Rc<Host>) -> Result<Self, PoolError> {
        if let Some(connection) = Self::take_idle(cluster, host) {
            return Ok(connection);
        }
        let limits = &cluster.config.circuit_breakers;
        if try_acquire(&cluster.core.connections, limits.max_connections) {
            return Self::open(cluster, host).await.map_err(PoolError::Connect);
        }
        cluster.stats().inc(cluster::Counter::upstream_cx_overflow);
        Self::wait(cluster, host).await
    }

    /// Whether an answer that never began may be the keep-alive race: the host closed while we sent.
    pub(crate) fn is_reused(&self) -> bool {
        self.requests > 1
    }

    /// The most recently used idle connection that is still alive.
    pub(crate) fn take_idle(cluster: &ClusterState, host: &Rc<Host>) -> Option<Self> {
        loop {
            let mut idle = host.idle.borrow_mut().pop()?;
            if idle.is_dead() {
                continue;
            }
            let limit = cluster.config.http.idle_timeout;
            if limit.is_some_and(|limit| idle.since.elapsed() >= limit) {
                cluster.stats().inc(cluster::Counter::upstream_cx_idle_timeout);
                continue;
            }
            return Some(Self {
                stream: idle.stream,
                input: Buffer::default(),
                host: Rc::clone(host),
                local_address: idle.local_address,
                requests: idle.requests + 1,
                slot: idle.slot,
            });
        }
    }

    /// Opens a connection; the caller has acquired its place among the cluster's connections.
    pub(crate) async fn open(cluster: &Rc<ClusterState>, host: &Rc<Host>) -> Result<Self, ConnectError> {
        let slot = ConnectionSlot::new(cluster, host);
        let stats = cluster.stats();
        let started = Instant::now();
        let connecting = connect::connect(&cluster.config, cluster.transport(host), &host.shared.address);
        let stream = match Box::pin(connecting).await {
            Ok(stream) => stream,
            Err(error) => {
                stats.inc(cluster::Counter::upstream_cx_connect_fail);
                host.stats.inc(endpoint::Counter::cx_connect_fail);
                match &error {
                    ConnectError::Timeout => stats.inc(cluster::Counter::upstream_cx_connect_timeout),
                    ConnectError::Tls(_) => stats.inc(cluster::Counter::ssl_connection_error),
                    ConnectError::Socket(_) => {}
                }
                return Err(error);
            }
        };
        if stream.is_tls() {
            stats.inc(cluster::Counter::ssl_handshake);
        }
        stats.record(cluster::Histogram::upstream_cx_connect_ms, started.elapsed().as_millis() as u64);
        let local_address = stream.local_address();
        Ok(Self { stream, input: Buffer::default(), host: Rc::clone(host), local_address, requests: 1, slot })
    }

    async fn wait(cluster: &Rc<ClusterState>, host: &Rc<Host>) -> Result<Self, PoolError> {
        let limits = &cluster.config.circuit_breakers;
        let _pending = PendingSlot::acquire(cluster).ok_or(PoolError::Overflow)?;
        loop {
            // Listen first: what is freed between the look and the wait must not be missed.
            let (freed, returned) = (cluster.core.freed.notified(), cluster.local.returned.notified());
            tokio::pin!(freed, returned);
            freed.as_mut().enable();
            returned.as_mut().enable();
            if let Some(connection) = Self::take_idle(cluster, host) {
                return Ok(connection);
            }
            if try_acquire(&cluster.core.connections, limits.max_connections) {
                return Self::open(cluster, host).await.map_err(PoolError::Connect);
            }
            tokio::select! {
                () = freed => {}
                () = returned => {}
            }
        }
    }

    /// Gives the connection back for another request, unless there is a reason to close it.
    pub(crate) fn give_back(self, cluster: &ClusterState) {
        let limit = cluster.config.http.max_requests_per_connection;
        if limit.is_some_and(|limit| self.requests >= limit) {
            cluster.stats().inc(cluster::Counter::upstream_cx_max_requests);
            return;
        }
        let waiting_here = cluster.local.waiting.get() > 0;
        let waiting_elsewhere = !waiting_here && cluster.core.pending.load(Ordering::Relaxed) > 0;
        // Another worker's request cannot use this connection, but it can use its place.
        if !self.input.is_empty() || self.host.gone.get() || waiting_elsewhere {
            return;
        }
        let host = self.host;
        let mut idle = host.idle.borrow_mut();
        if idle.len() < MAX_IDLE_PER_HOST {
            idle.push(IdleConnection {
                stream: self.stream,
                since: Instant::now(),
                local_address: self.local_address,
                requests: self.requests,
                slot: self.slot,
            });
        }
        drop(idle);
        if waiting_here {
            cluster.local.returned.notify_waiters();
        }
    }
}

impl IdleConnection {
    /// The host closed it, or sent bytes nobody asked for. Costs no system call unless the reactor saw something.
    fn is_dead(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let mut byte = Buffer::default();
        !matches!(byte.poll_fill(&mut self.stream, 64, &mut cx), Poll::Pending)
    }
}

/// Closes idle connections that are dead or have been idle for too long; a worker calls it once a second.
pub(crate) fn sweep(cluster: &ClusterState) {
    let limit = cluster.config.http.idle_timeout;
    cluster.for_each_host(|host| {
        host.idle.borrow_mut().retain_mut(|idle| {
            let expired = limit.is_some_and(|limit| idle.since.elapsed() >= limit);
            if expired {
                cluster.stats().inc(cluster::Counter::upstream_cx_idle_timeout);
            }
            !expired && !idle.is_dead()
        });
    });
}

/// A connection's place among the cluster's connections, across workers.
struct ConnectionSlot {
    cluster: Rc<crate::upstream::cluster::ClusterLocal>,
    core: Arc<ClusterCore>,
    host: std::rc::Weak<Host>,
}

impl ConnectionSlot {
    fn new(cluster: &ClusterState, host: &Rc<Host>) -> Self {
        let stats = cluster.stats();
        stats.inc(cluster::Counter::upstream_cx_total);
        stats.inc(cluster::Counter::upstream_cx_http1_total);
        stats.shift(cluster::Gauge::upstream_cx_active, 1);
        host.stats.inc(endpoint::Counter::cx_total);
        host.stats.shift(endpoint::Gauge::cx_active, 1);
        Self { cluster: Rc::clone(&cluster.local), core: Arc::clone(&cluster.core), host: Rc::downgrade(host) }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.cluster.stats.inc(cluster::Counter::upstream_cx_destroy);
        self.cluster.stats.shift(cluster::Gauge::upstream_cx_active, -1);
        if let Some(host) = self.host.upgrade() {
            host.stats.shift(endpoint::Gauge::cx_active, -1);
        }
        self.core.connections.fetch_sub(1, Ordering::AcqRel);
        if self.core.pending.load(Ordering::Acquire) > 0 {
            self.core.freed.notify_waiters();
        }
    }
}

/// A request's place among those that wait for a connection.
struct PendingSlot {
    cluster: Rc<ClusterState>,
}

impl PendingSlot {
    fn acquire(cluster: &Rc<ClusterState>) -> Option<Self> {
        let stats = cluster.stats();
        if !try_acquire(&cluster.core.pending, cluster.config.circuit_breakers.max_pending_requests) {
            stats.inc(cluster::Counter::upstream_rq_pending_overflow);
            return None;
        }
        stats.inc(cluster::Counter::upstream_rq_pending_total);
        stats.shift(cluster::Gauge::upstream_rq_pending_active, 1);
        cluster.local.waiting.set(cluster.local.waiting.get() + 1);
        Some(Self { cluster: Rc::clone(cluster) })
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        self.cluster.local.waiting.set(self.cluster.local.waiting.get() - 1);
        self.cluster.stats().shift(cluster::Gauge::upstream_rq_pending_active, -1);
        self.cluster.core.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request's place among those in flight to a cluster and a host.
pub(crate) struct RequestSlot {
    cluster: Rc<ClusterState>,
    host: Rc<Host>,
}

impl RequestSlot {
    /// `None` when `max_requests` are in flight already.
    pub(crate) fn acquire(cluster: &Rc<ClusterState>, host: &Rc<Host>) -> Option<Self> {
        let stats = cluster.stats();
        if !try_acquire(&cluster.core.requests, cluster.config.circuit_breakers.max_requests) {
            stats.inc(cluster::Counter::upstream_rq_pending_overflow);
            return None;
        }
        stats.inc(cluster::Counter::upstream_rq_total);
        stats.shift(cluster::Gauge::upstream_rq_active, 1);
        host.stats.inc(endpoint::Counter::rq_total);
        host.shared.active.fetch_add(1, Ordering::Relaxed);
        Some(Self { cluster: Rc::clone(cluster), host: Rc::clone(host) })
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.cluster.stats().shift(cluster::Gauge::upstream_rq_active, -1);
        self.cluster.core.requests.fetch_sub(1, Ordering::AcqRel);
        self.host.shared.active.fetch_sub(1, Ordering::Relaxed);
    }
}
