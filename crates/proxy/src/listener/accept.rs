//! The accept loop of one worker on one listening socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::Listener;
use evenkeel_runtime_config::overload::Action;
use socket2::SockRef;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::serve::{Accepted, UNNAMED, serve};
use super::socket::ListenerKey;
use crate::overload::Refused;
use crate::stats::listener::Counter;
use crate::worker::{Message, Worker};

/// Pause after the system has run out of descriptors or memory: accepting again at once would only spin.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// Interval of checking whether connections may be accepted again.
const OVERLOAD_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of connections taken from a listening socket before it is closed.
const MAX_LAST_ACCEPTS: usize = 4096;

/// Accepts until told to stop, and assigns each connection to a worker. After `stop` is sent, with the listener as it was,
/// connections already in the accept queue are still taken and served by it: closing the socket would reset them. After
/// its sender is dropped, they are left to the other owner of the socket.
pub(crate) async fn accept(
    worker: Rc<Worker>,
    listener: ListenerKey,
    socket: TcpListener,
    mut stop: oneshot::Receiver<Option<Arc<Listener>>>,
) {
    // SAFETY: a `TcpListener` owns its descriptor and returns the same one for as long as it lives.
    let socket = match unsafe { AsyncFd::register(socket) } {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(%listener, %error, "listening socket not usable");
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            told = &mut stop => {
                if let Ok(removed) = told {
                    empty_queue(&worker, &listener, socket.get_ref(), removed.as_ref()).await;
                }
                return;
            }
            accepted = async {
                allowed(&worker).await;
                next(&socket).await
            } => accepted,
        };
        match accepted {
            Ok(accepted) => place(&worker, accepted, &listener, None).await,
            // The peer aborted the connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%listener, %error, "cannot accept");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

/// Rejects a connection at once and at no further cost to the proxy.
fn reset(worker: &Worker, stream: &std::net::TcpStream, bound: &Listener, refused: Refused) {
    // Closing with a linger time of zero sends RST (socket(7)).
    _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    let stats = worker.generation().connection_stats(&bound.address);
    stats.listener.inc(match refused {
        Refused::Listener => Counter::downstream_cx_overflow,
        Refused::Memory => Counter::downstream_cx_memory_overflow,
        Refused::Process => Counter::downstream_global_cx_overflow,
        Refused::Overload => Counter::downstream_cx_overload_reject,
    });
}

/// Waits until connections may be accepted.
async fn allowed(worker: &Worker) {
    while worker.overload.is_on(Action::StopAcceptingConnections, &worker.random) {
        tokio::time::sleep(OVERLOAD_PAUSE).await;
    }
}

/// Accepts the queued connections, at most a full backlog.
async fn empty_queue(
    worker: &Rc<Worker>,
    listener: &ListenerKey,
    socket: &TcpListener,
    removed: Option<&Arc<Listener>>,
) {
    for _ in 0..MAX_LAST_ACCEPTS {
        match take(socket) {
            Ok(accepted) => place(worker, accepted, listener, removed).await,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => return,
        }
    }
}

async fn next(socket: &AsyncFd<TcpListener>) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    loop {
        let mut ready = socket.readable().await?;
        if let Ok(accepted) = ready.try_io(|socket| take(socket.get_ref())) {
            return accepted;
        }
    }
}

/// Accepts one connection. The standard library's `accept` refuses the peers of Unix sockets, which have no address.
fn take(socket: &TcpListener) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    let (stream, peer) = SockRef::from(socket).accept()?;
    Ok((stream.into(), peer.as_socket().unwrap_or(UNNAMED)))
}

fn prepare_accepted(stream: &std::net::TcpStream, bound: &Listener) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    match bound.address.socket() {
        Some(_) => stream.set_nodelay(true),
        None => Ok(()),
    }
}

/// Chooses the worker and passes the connection to it; the slot counts the connection until it is closed.
async fn place(
    worker: &Rc<Worker>,
    (stream, peer): (std::net::TcpStream, SocketAddr),
    listener: &ListenerKey,
    removed: Option<&Arc<Listener>>,
) {
    // Looked up by the accepting worker: the chosen one may already have a configuration without this listener.
    let bound = worker.generation().shared.bound.get(listener).or(removed).cloned();
    let Some(bound) = bound else { return };
    if prepare_accepted(&stream, &bound).is_err() {
        return;
    }
    let admission = match worker.overload.admit((&bound.name, bound.ignore_global_conn_limit), &worker.random) {
        Ok(admission) => admission,
        Err(refused) => return reset(worker, &stream, &bound, refused),
    };
    let mut slot = worker.balance.choose();
    slot.admit(admission);
    let accepted = Accepted { stream, peer, bound, slot };
    let chosen = accepted.slot.worker();
    if chosen == worker.index {
        serve(worker, accepted);
    } else if let Some(other) = worker.peers.get(chosen) {
        // A full inbox stalls this accept loop, and connections stay in the kernel's queue; none are dropped.
        let _ = other.send(Message::Deliver(Box::new(accepted))).await;
    }
}
