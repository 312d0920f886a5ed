//! Messages to a worker from other threads.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::explain::query::RecentRequest;
use evenkeel_upstream::ClusterSnapshot;
use tokio::sync::{mpsc, oneshot};

use super::{DrainScope, Generation, Worker};
use crate::balance::{Level, LoadTransfer};
use crate::handover::Parcel;
use crate::listener::socket::ListenerKey;

/// Messages a worker's inbox holds before senders have to wait: mostly connections handed over.
pub(crate) const MAX_INBOX_MESSAGES: usize = 4096;

/// A connection or stream that another thread has handed to this worker.
pub(crate) trait Delivery: fmt::Debug + Send {
    /// Serves it in a task of its own.
    fn serve(self: Box<Self>, worker: &Rc<Worker>);
}

/// A message to a worker.
#[derive(Debug)]
pub(crate) enum Message {
    /// Install a new configuration.
    Configure(Arc<Generation>),
    /// Accept on this socket for this listener.
    Listen(ListenerKey, socket2::Socket),
    /// Stop accepting for this listener, serve what the kernel has accepted, and close the socket.
    Unlisten(ListenerKey),
    /// Stop accepting for this listener, and leave the accept queue to another process.
    Release(ListenerKey),
    /// Send a snapshot of the clusters.
    Clusters(oneshot::Sender<Vec<ClusterSnapshot>>),
    /// Send a snapshot of this cluster.
    Cluster(Arc<str>, oneshot::Sender<Option<ClusterSnapshot>>),
    /// Send the recent requests that are kept.
    RecentRequests(oneshot::Sender<Vec<Arc<RecentRequest>>>),
    /// Serve this connection or stream.
    Deliver(Box<dyn Delivery>),
    /// Hand connections over to a successor (`Some`), or stop doing so.
    GiveAway(Option<mpsc::Sender<Parcel>>),
    /// Move some load to other workers.
    LoadTransfer(LoadTransfer),
    /// Move cold connections to other workers.
    Level(Level),
    /// Drain these connections.
    Drain(DrainScope),
    /// Close all connections and end.
    Stop,
}
