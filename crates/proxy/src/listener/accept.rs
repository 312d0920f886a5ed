//! The accept loop of one worker on one listening socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;

use crate::worker::{Accepted, Message, Worker};

/// Pause after the system has run out of descriptors or memory: accepting again at once would only spin.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until aborted and gives every connection to the worker that has room.
pub(crate) async fn accept(worker: Rc<Worker>, listener: SocketAddr, socket: TcpListener) {
    // SAFETY: a `TcpListener` owns its descriptor and returns the same one for as long as it lives.
    let socket = match unsafe { AsyncFd::register(socket) } {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(%listener, %error, "listening socket not usable");
            return;
        }
    };
    loop {
        match next(&socket).await {
            Ok((stream, peer)) => {
                if prepare_accepted(&stream).is_ok() {
                    place(&worker, stream, peer, listener).await;
                }
            }
            // The peer was gone before we came to it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%listener, %error, "cannot accept");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

async fn next(socket: &AsyncFd<TcpListener>) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    loop {
        let mut ready = socket.readable().await?;
        if let Ok(accepted) = ready.try_io(|socket| socket.get_ref().accept()) {
            return accepted;
        }
    }
}

fn prepare_accepted(stream: &std::net::TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

/// The worker is chosen here, once; the seat counts the connection until it is closed.
async fn place(worker: &Rc<Worker>, stream: std::net::TcpStream, peer: SocketAddr, listener: SocketAddr) {
    let accepted = Accepted { stream, peer, listener, seat: worker.balance.choose() };
    let chosen = accepted.seat.worker();
    if chosen == worker.index {
        worker.serve(accepted);
    } else if let Some(other) = worker.peers.get(chosen) {
        // A full inbox holds this accept loop back, and with it the kernel's queue; nothing is dropped.
        let _ = other.send(Message::Connection(accepted)).await;
    }
}
