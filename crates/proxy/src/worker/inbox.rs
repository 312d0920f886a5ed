//! What a worker is told by the other threads.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_upstream::ClusterSnapshot;
use tokio::sync::{mpsc, oneshot};

use super::{DrainScope, Generation, Worker};
use crate::balance::{Level, Shed};
use crate::handover::Parcel;
use crate::listener::socket::ListenerKey;

/// Messages a worker's inbox holds before senders wait: connections handed over, mostly.
pub(crate) const MAX_INBOX_MESSAGES: usize = 4096;

/// A connection or a stream that another thread has given to this worker.
pub(crate) trait Delivery: fmt::Debug + Send {
    /// Serves it on a task of its own.
    fn serve(self: Box<Self>, worker: &Rc<Worker>);
}

/// What a worker is told.
#[derive(Debug)]
pub(crate) enum Message {
    /// A new configuration, whole.
    Configure(Arc<Generation>),
    /// Accept on this socket for that listener.
    Listen(ListenerKey, std::net::TcpListener),
    /// Stop accepting for it and close the socket.
    Unlisten(ListenerKey),
    /// Stop accepting for it; somebody else does.
    Release(ListenerKey),
    /// Say what there is to say about clusters.
    Clusters(oneshot::Sender<Vec<ClusterSnapshot>>),
    /// Serve this.
    Deliver(Box<dyn Delivery>),
    /// Give connections to a successor, or stop doing so.
    GiveAway(Option<mpsc::Sender<Parcel>>),
    /// Give some load away.
    Shed(Shed),
    /// Give cold connections away.
    Level(Level),
    /// Close these connections at their next message boundary.
    Drain(DrainScope),
    /// Close everything and end.
    Stop,
}
