//! Moves a connection from one worker to another, between two messages. The peer does not notice: the socket, the bytes
//! read of the next message, the TLS state and all metadata go along.

use std::fmt;
use std::sync::Arc;

use evenkeel_upstream::stream::{Portable, Stream};
use tokio::time::Instant;

use super::connection::{Arrival, Counted, Downstream, MovingConnection, Placement, Resumed};
use crate::stats::worker::Counter;
use crate::worker::{Cause, Message, Worker};

/// A connection on its way from one worker to another.
pub(super) struct Moved {
    downstream: Downstream<Portable>,
    placement: Placement,
}

impl Moved {
    /// The name of the listener that accepted it.
    pub(super) fn listener_name(&self) -> &Arc<str> {
        &self.placement.bound.name
    }

    /// Continues the connection where the other worker left off; `None` if its socket cannot be registered here.
    pub(super) fn unpack(self, worker: &Worker) -> Option<Resumed> {
        let Self { downstream, placement } = self;
        let counted = Counted::moved(worker, &placement, Instant::from_std(downstream.info.accepted));
        let downstream = downstream.map(Portable::into_stream).transpose().ok()?;
        Some(Resumed { downstream, arrival: Arrival::Back(None), placement, counted })
    }
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Moved({})", self.downstream.info.id)
    }
}

/// Sends a connection to another worker. Returns it when that worker has no room for it, or the cause no longer
/// applies.
pub(super) fn send(
    worker: &Worker,
    (to, cause): (usize, Cause),
    moving: Box<MovingConnection>,
    placement: &mut Placement,
) -> Option<Box<MovingConnection>> {
    let Some(Ok(room)) = worker.peers.get(to).map(|peer| peer.try_reserve()) else { return Some(moving) };
    let Some(placement) = placement.move_to(to, cause) else { return Some(moving) };
    // A socket that cannot be deregistered from its reactor is lost, and the connection with it.
    if let Ok(downstream) = moving.downstream.map(Stream::into_portable).transpose() {
        worker.stats.inc(Counter::downstream_cx_moved_out);
        room.send(Message::Deliver(Box::new(Moved { downstream, placement })));
    }
    None
}
