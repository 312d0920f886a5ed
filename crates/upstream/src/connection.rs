//! One worker's upstream connections and requests, and guards that count them while they last.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use evenkeel_stats::Writer;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::breaker::{Permit, Share, Slot};
use super::connect::ConnectTimes;
use super::host::Host;
use super::stats::cluster::{Counter, Gauge, Histogram, Stats};
use crate::stream::Stream;

/// The part of a cluster that connections need, which does not keep its hosts alive.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stats: Writer<Stats>,
    /// This worker's state that other workers see.
    pub(super) share: Arc<Share>,
    /// Number of idle connections.
    pub(super) idle: Cell<u32>,
    /// Requests on this worker that wait for a connection.
    pub(super) waiting: Cell<u32>,
    /// Notified when a connection becomes idle.
    pub(super) freed: Notify,
}

/// An idle connection in a pool.
#[derive(Debug)]
pub(super) struct Idle {
    pub(super) stream: Stream,
    pub(super) open: OpenConnection,
    pub(super) since: Instant,
    pub(super) _counted: IdleGuard,
}

/// Counts an idle connection, so that other workers can ask for its room.
#[derive(Debug)]
pub(super) struct IdleGuard(Rc<Shared>);

impl IdleGuard {
    pub(super) fn new(shared: &Rc<Shared>) -> Self {
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

/// The slots of a connection: in the cluster, and for the host.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    pub(super) _cluster: Slot,
    pub(super) _host: Option<Slot>,
}

/// A connection in use. Dropping it closes it; [`Cluster::release`] returns it to the pool.
#[derive(Debug)]
pub struct Connection {
    /// The byte stream.
    pub stream: Stream,
    /// The host it connects to.
    pub host: Rc<Host>,
    /// It has served a request before, so the peer may be about to close it.
    pub reused: bool,
    /// When it was last put into the pool.
    pub(super) idle_since: Option<Instant>,
    pub(super) open: OpenConnection,
}

/// A newly made connection.
pub(super) struct Established {
    pub(super) stream: Stream,
    pub(super) open: OpenConnection,
}

impl Established {
    /// Uses it for one request at a time.
    pub(super) fn into_connection(self, host: Rc<Host>) -> Connection {
        Connection { stream: self.stream, host, reused: false, idle_since: None, open: self.open }
    }
}

/// Counts a connection while it is open.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) shared: Rc<Shared>,
    /// Weak, since a host owns its idle connections.
    pub(super) host: Weak<Host>,
    pub(super) times: ConnectTimes,
    pub(super) epoch: u64,
    /// Requests it has served.
    pub(super) requests: u32,
    /// The local address.
    pub(super) local: Option<SocketAddr>,
    pub(super) _room: ConnectionSlots,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if let Some(host) = self.host.upgrade() {
            host.counts.cx_active.set(host.counts.cx_active.get().saturating_sub(1));
        }
        self.shared.stats.inc(Counter::upstream_cx_destroy);
        self.shared.stats.shift(Gauge::upstream_cx_active, -1);
        self.shared.stats.record(Histogram::upstream_cx_length_ms, self.times.begin.elapsed().as_millis() as u64);
    }
}

impl Connection {
    /// The host closed it when it was reused: its idle time tells how long the host keeps connections.
    pub fn lost_race(&self, now: Instant) {
        if let Some(since) = self.idle_since {
            // The time since the request was sent is included; it is short against what is learned.
            self.host.keep_alive().closed_after(now.duration_since(since), now);
        }
    }

    /// The local address; `None` for Unix sockets.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.open.local
    }

    /// When the connection was made.
    pub fn connect_times(&self) -> &ConnectTimes {
        &self.open.times
    }
}

/// Counts a request to a host while it lasts.
#[derive(Debug)]
pub struct RequestGuard {
    pub(super) shared: Rc<Shared>,
    pub(super) host: Rc<Host>,
    /// It is also counted in the totals of all workers.
    pub(super) everywhere: bool,
    pub(super) _permit: Permit,
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

/// Counts a request that waits for room for a connection on this worker.
pub(super) struct LocalWaiter<'a>(&'a Shared);

impl<'a> LocalWaiter<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        shared.waiting.set(shared.waiting.get() + 1);
        Self(shared)
    }
}

impl Drop for LocalWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}

/// Counts a request that waits for a connection (`max_pending_requests`).
pub(super) struct Pending<'a> {
    pub(super) shared: &'a Shared,
    pub(super) _permit: Permit,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.shared.stats.shift(Gauge::upstream_rq_pending_active, -1);
    }
}
