//! A connection between accept and its end: what is handed from one part of its life to the next, and from one worker or
//! process to another.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::ConnectionInfo;
use evenkeel_runtime_config::listener::Listener;
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::stream::Stream;
use tokio::time::Instant;

use super::filtered::{self, Filtered};
use crate::balance::WorkerSlot;
use crate::stats::{listener, listener_worker};
use crate::tcp::{UpstreamHalf, UpstreamSide};
use crate::worker::{Cause, ConnectionStats, Directive, Worker};
use evenkeel_upstream::turn;

/// A connection for which a filter chain has been chosen.
pub(crate) struct Downstream<S = Stream> {
    pub(crate) stream: S,
    /// Bytes already read from the stream, to be used first.
    pub(crate) input: Buffer,
    /// Metadata of the connection.
    pub(crate) info: Arc<ConnectionInfo>,
    /// Requests served on it so far.
    pub(crate) requests: u32,
    /// When it became idle, if it is: moving to another worker does not restart its idle timeout.
    pub(crate) idle_since: Option<Instant>,
    /// Whether another worker, or the predecessor process, has served it before, and has counted and admitted it.
    pub(crate) resumed: bool,
}

impl<S> Downstream<S> {
    /// Returns the same connection over another stream type.
    pub(super) fn map<T>(self, map: impl FnOnce(S) -> T) -> Downstream<T> {
        let Self { stream, input, info, requests, idle_since, resumed } = self;
        Downstream { stream: map(stream), input, info, requests, idle_since, resumed }
    }
}

impl Downstream {
    /// Returns the same connection, with its bytes passing through its network filters if these need to see them.
    pub(crate) fn filtered(mut self, connection: Option<Rc<filtered::Connection>>) -> Self {
        let Some(connection) = connection else { return self };
        let read = std::mem::take(&mut self.input);
        self.map(|stream| Filtered::over(stream, connection, &read))
    }
}

impl<T> Downstream<io::Result<T>> {
    /// Returns the same connection if its stream is `Ok`, or else the error.
    pub(super) fn transpose(self) -> io::Result<Downstream<T>> {
        let Self { stream, input, info, requests, idle_since, resumed } = self;
        Ok(Downstream { stream: stream?, input, info, requests, idle_since, resumed })
    }
}

/// A connection's assignment: the slot on its worker, and its listeners.
pub(super) struct Placement {
    /// `None` once the connection has moved away.
    pub(super) slot: Option<WorkerSlot>,
    pub(super) bound: Arc<Listener>,
    /// The listener found by the original destination, if any.
    pub(super) logical: Option<Arc<Listener>>,
}

impl Placement {
    /// Moves the assignment to another worker; `None` when the cause no longer applies, and nothing changes.
    pub(super) fn move_to(&mut self, worker: usize, cause: Cause) -> Option<Self> {
        let mut slot = self.slot.take();
        let moved = slot.as_mut().is_none_or(|slot| match cause {
            Cause::Load => slot.move_to(worker),
            Cause::Count => slot.level_with(worker),
        });
        if !moved {
            self.slot = slot;
            return None;
        }
        Some(Self { slot, bound: Arc::clone(&self.bound), logical: self.logical.clone() })
    }

    /// The listener whose filter chains serve the connection.
    pub(super) fn listener(&self) -> &Arc<Listener> {
        self.logical.as_ref().unwrap_or(&self.bound)
    }
}

/// Serves a connection until it ends (`None`), or has to move to another worker or process.
pub(crate) type Terminating<'w> = Pin<Box<dyn Future<Output = Option<Box<MovingConnection>>> + 'w>>;

/// A connection that continues on this worker, with what serves it here.
pub(super) struct Resumed {
    pub(super) downstream: Downstream,
    pub(super) arrival: Arrival,
    pub(super) placement: Placement,
    pub(super) counted: Counted,
}

/// How a connection reaches its filter chain.
pub(super) enum Arrival {
    /// For the first time; a TCP proxy's upstream may have been connected ahead.
    New(Option<Box<UpstreamSide>>),
    /// After a move, or a failed attempt to move, with the upstream half of a TCP connection.
    Back(Option<Box<UpstreamHalf>>),
}

/// A connection that has to move, between two messages.
pub(crate) struct MovingConnection {
    pub(crate) downstream: Downstream,
    /// The upstream half of a TCP connection.
    pub(crate) upstream: Option<Box<UpstreamHalf>>,
    pub(crate) to: Directive,
}

/// Counts a connection in the statistics of its listeners, including the logical listener.
pub(super) struct Counted {
    pub(super) bound: Rc<ConnectionStats>,
    logical: Option<Rc<ConnectionStats>>,
    pub(super) since: Instant,
    /// Whether another worker or process counts it from now on.
    pub(super) moved_away: bool,
}

impl Counted {
    /// A newly accepted connection.
    pub(super) fn new(worker: &Worker, placement: &Placement) -> Self {
        let counted = Self::moved(worker, placement, turn::now());
        for stats in counted.all() {
            stats.listener.inc(listener::Counter::downstream_cx_total);
            stats.worker.inc(listener_worker::Counter::downstream_cx_total);
        }
        counted
    }

    /// A connection that was already counted by another worker or process.
    pub(super) fn moved(worker: &Worker, placement: &Placement, since: Instant) -> Self {
        let generation = worker.generation();
        let stats = |listener: &Arc<Listener>| generation.connection_stats(&listener.address);
        let (bound, logical) = (stats(&placement.bound), placement.logical.as_ref().map(stats));
        let counted = Self { bound, logical, since, moved_away: false };
        counted.shift(1);
        counted
    }

    fn shift(&self, by: i64) {
        for stats in self.all() {
            stats.listener.shift(listener::Gauge::downstream_cx_active, by);
            stats.worker.shift(listener_worker::Gauge::downstream_cx_active, by);
        }
    }

    /// Statistics of the listener whose filter chain serves the connection.
    pub(super) fn serving(&self) -> &ConnectionStats {
        self.logical.as_deref().unwrap_or(&self.bound)
    }

    fn all(&self) -> impl Iterator<Item = &ConnectionStats> {
        std::iter::once(&*self.bound).chain(self.logical.as_deref())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shift(-1);
        if self.moved_away {
            return;
        }
        let millis = u64::try_from(turn::now().saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX);
        for stats in self.all() {
            stats.listener.inc(listener::Counter::downstream_cx_destroy);
            stats.listener.record(listener::Histogram::downstream_cx_length_ms, millis);
        }
    }
}
