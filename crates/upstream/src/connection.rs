//! Connections and requests of one worker, and what is counted for as long as they last.

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

/// What connections need of their cluster, without keeping its hosts alive.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stats: Writer<Stats>,
    /// What other workers see of this one.
    pub(super) share: Arc<Share>,
    /// Connections kept without using them.
    pub(super) idle: Cell<u32>,
    /// Requests that wait for a connection here.
    pub(super) waiting: Cell<u32>,
    /// A connection became idle.
    pub(super) freed: Notify,
}

/// A connection waiting in a pool.
#[derive(Debug)]
pub(super) struct Idle {
    pub(super) stream: Stream,
    pub(super) open: OpenConnection,
    pub(super) since: Instant,
    pub(super) _counted: IdleGuard,
}

/// Counts an idle connection, for other workers that want its room.
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

/// Room for a connection: in the cluster, and to the host.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    pub(super) _cluster: Slot,
    pub(super) _host: Option<Slot>,
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
    pub(super) idle_since: Option<Instant>,
    pub(super) open: OpenConnection,
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
    pub(super) shared: Rc<Shared>,
    /// Weak: a host owns its idle connections.
    pub(super) host: Weak<Host>,
    pub(super) times: ConnectTimes,
    pub(super) epoch: u64,
    /// Requests it served.
    pub(super) requests: u32,
    /// This end's address.
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

    /// When it was made.
    pub fn connect_times(&self) -> &ConnectTimes {
        &self.open.times
    }
}

/// Counts a request to a host for as long as it lasts.
#[derive(Debug)]
pub struct RequestGuard {
    pub(super) shared: Rc<Shared>,
    pub(super) host: Rc<Host>,
    /// Other workers see it too.
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

/// Counts a request that waits for room on this worker.
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

/// Counts a request that waits for a connection.
pub(super) struct Pending<'a> {
    pub(super) shared: &'a Shared,
    pub(super) _permit: Permit,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.shared.stats.shift(Gauge::upstream_rq_pending_active, -1);
    }
}
