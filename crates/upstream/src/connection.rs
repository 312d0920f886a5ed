//! One worker's upstream connections and requests in use, and guards that count them while they last.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::time::Instant;

use super::breaker::Permit;
use super::host::Host;
use super::open::{ConnectTimes, Established, OpenConnection, Shared};
use super::stats::cluster::Gauge;
use crate::stream::Stream;

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

impl Connection {
    /// A newly made connection, for one request at a time.
    pub(super) fn new(made: Established, host: Rc<Host>) -> Self {
        Self { stream: made.stream, host, reused: false, idle_since: None, open: made.open }
    }

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
