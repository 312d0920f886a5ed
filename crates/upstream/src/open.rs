//! Bookkeeping of upstream connections: while they are open, and while they idle in a pool.

use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_stats::Writer;
use evenkeel_tls::Session;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::breaker::{Share, Slot};
use super::stats::cluster::{Counter, Gauge, Histogram, Stats};
use crate::edge_stats::edge;
use crate::stream::Stream;
use crate::turn;

/// The times at which the steps of connecting happened, and what came of it.
#[derive(Debug, Clone)]
pub struct ConnectTimes {
    /// The connection's ID in this process (`%UPSTREAM_CONNECTION_ID%`).
    pub id: u64,
    /// Connecting began.
    pub begin: Instant,
    /// The TCP connection was established.
    pub end: Instant,
    /// The TLS handshake was completed; `None` without TLS.
    pub handshake_end: Option<Instant>,
    /// The TLS session; `None` without TLS.
    pub session: Option<Arc<Session>>,
    /// Statistics of the traffic to this peer, once a connection uses them.
    pub edge: OnceCell<Rc<Writer<edge::Stats>>>,
}

/// IDs of all workers' connections; clients' connections have IDs of their own.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

impl ConnectTimes {
    /// A connection made between these times, without TLS.
    pub(super) fn new(begin: Instant, end: Instant) -> Self {
        Self {
            id: LAST_ID.fetch_add(1, Relaxed) + 1,
            begin,
            end,
            handshake_end: None,
            session: None,
            edge: OnceCell::new(),
        }
    }
}

/// A newly made connection.
pub(super) struct Established {
    pub(super) stream: Stream,
    pub(super) open: OpenConnection,
}

/// Counts a connection while it is open.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) shared: Rc<Shared>,
    /// The number of the host's open connections.
    pub(super) cx_active: Rc<Cell<u64>>,
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
        self.cx_active.set(self.cx_active.get().saturating_sub(1));
        self.shared.stats.inc(Counter::upstream_cx_destroy);
        self.shared.stats.shift(Gauge::upstream_cx_active, -1);
        self.shared.stats.record(
            Histogram::upstream_cx_length_ms,
            turn::now().saturating_duration_since(self.times.begin).as_millis() as u64,
        );
    }
}

/// The slots of a connection: in the cluster, and for the host.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    pub(super) _cluster: Slot,
    pub(super) _host: Option<Slot>,
}

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

/// Counts an idle connection, so that other workers can request its room.
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
