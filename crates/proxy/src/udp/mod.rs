//! The UDP proxy: one socket of a listener, served by one worker, and the sessions of its clients. The kernel gives all datagrams of a
//! client to the same socket of the listener, so that no session is known to two workers, and none moves.

mod datagrams;
mod order;
mod session;
mod share;
mod table;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::Listener;
use evenkeel_upstream::turn;
use evenkeel_upstream::udp::Received;
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::datagrams::ClientSocket;
use self::session::Session;
use self::table::Sessions;
use crate::listener::socket::ListenerKey;
use crate::worker::Worker;

/// Datagrams that are taken from a socket in one turn, so that other tasks get theirs.
const MAX_DATAGRAMS_PER_TURN: usize = 64;
/// The longest interval between two looks for sessions that are idle, or whose host is gone.
const MAX_SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest one.
const MIN_SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// Serves a socket of a listener until `stop` is sent: then its sessions end. After its sender is dropped, another process reads the
/// socket; what hosts send to sessions of this one is still passed on.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    key: ListenerKey,
    socket: socket2::Socket,
    mut stop: oneshot::Receiver<Option<Arc<Listener>>>,
) {
    let socket = match ClientSocket::new(socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(listener = %key, %error, "UDP socket not usable");
            return;
        }
    };
    let Some(sessions) = Sessions::new(&worker, key, socket) else { return };
    let mut buffers = Buffers::default();
    let mut sweep = Box::pin(tokio::time::sleep(Duration::ZERO));
    let mut reads = true;
    loop {
        tokio::select! {
            biased;
            stopped = &mut stop, if reads => {
                if stopped.is_ok() {
                    break;
                }
                reads = false;
            }
            () = &mut sweep, if !sessions.is_empty() => {
                sessions.sweep();
                sweep.as_mut().reset(next_sweep(&sessions));
            }
            ready = sessions.socket().readable(), if reads => {
                if ready.is_err() {
                    break;
                }
                let was_empty = sessions.is_empty();
                if take_datagrams(&sessions, &mut buffers) {
                    tokio::task::yield_now().await;
                }
                if was_empty {
                    sweep.as_mut().reset(next_sweep(&sessions));
                }
            }
            else => break,
        }
    }
    sessions.end_all();
}

fn next_sweep(sessions: &Sessions) -> Instant {
    turn::now() + (sessions.idle_timeout() / 4).clamp(MIN_SWEEP_INTERVAL, MAX_SWEEP_INTERVAL)
}

/// What datagrams of clients are read into.
struct Buffers {
    datagram: Box<[u8]>,
    control: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { datagram: Box::default(), control: nix::cmsg_space!(libc::in_pktinfo, libc::in6_pktinfo) }
    }
}

/// Passes waiting datagrams on. Whether there may be more.
fn take_datagrams(sessions: &Rc<Sessions>, buffers: &mut Buffers) -> bool {
    sessions.follow_configuration();
    // One byte more than datagrams may have shows those that are longer.
    let room = sessions.max_datagram() + 1;
    if buffers.datagram.len() != room {
        buffers.datagram = vec![0; room].into_boxed_slice();
    }
    for _ in 0..MAX_DATAGRAMS_PER_TURN {
        match sessions.socket().receive(&mut buffers.datagram, &mut buffers.control) {
            Ok(arrived) if arrived.bytes == room => sessions.count_too_long(),
            Ok(arrived) => {
                let datagram = buffers.datagram.get(..arrived.bytes).unwrap_or_default();
                if let Some(session) = sessions.datagram(arrived, datagram) {
                    let relay = turn::spawn(relay(Rc::clone(sessions), Rc::clone(&session)));
                    session.served_by(relay.abort_handle());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => sessions.count_error(),
        }
    }
    true
}

/// Passes what a session's host sends on to the client, until the session ends.
async fn relay(sessions: Rc<Sessions>, session: Rc<Session>) {
    while session.upstream.readable().await.is_ok() {
        if relay_waiting(&sessions, &session) {
            tokio::task::yield_now().await;
        }
    }
}

/// Passes what has arrived on. Whether there may be more.
fn relay_waiting(sessions: &Sessions, session: &Session) -> bool {
    let mut buffer = sessions.upstream_buffer();
    for _ in 0..MAX_DATAGRAMS_PER_TURN {
        match session.upstream.receive(&mut buffer) {
            Received::Datagram(bytes) => {
                let datagram = buffer.get(..bytes).unwrap_or_default();
                let sent = sessions.socket().send(datagram, session.key.peer, session.key.local);
                session.returned(bytes, &sent);
            }
            Received::Dropped => {}
            Received::Nothing => return false,
        }
    }
    true
}
