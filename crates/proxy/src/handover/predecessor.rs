//! The running process's side: waits for a successor and hands everything over to it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_stats::{Registry, Value};
use socket2::Socket;
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::sync::oneshot;

use super::wire::{ANSWER_TIMEOUT, Channel, Head, MAX_FDS, VERSION};
use super::{HandoverError, Parcel, prepare_folder, system};
use crate::listener::socket::HandedSockets;
use crate::pool::WorkerPool;

/// Connections queued for sending; further ones wait on their workers.
const MAX_WAITING_PARCELS: usize = 256;
/// Interval of polling for parcels to send, or for the end of the handover.
const POLL: Duration = Duration::from_millis(2);
/// Pause after a failed accept: while the cause lasts, the next accept would fail at once as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval between two statistics packets.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Samples in one statistics packet.
const MAX_SAMPLES_PER_PACKET: usize = 800;

/// A request from the handover thread to the control thread.
#[derive(Debug)]
pub(crate) enum Request {
    /// Stop accepting, and give connections to a channel.
    GiveAway {
        /// Receives the connections.
        connections: mpsc::Sender<Parcel>,
        /// The successor's process id, if visible in this process's namespace.
        process: Option<u32>,
    },
    /// The successor is gone: resume as before.
    GoOn,
    /// Everything has been handed over: end the process.
    End,
}

/// The state that a running process hands over to a successor.
pub(crate) struct Predecessor {
    pub(crate) pool: Arc<WorkerPool>,
    pub(crate) registry: Arc<Registry>,
    /// The admin interface's socket, by its configured address.
    pub(crate) admin: Option<(SocketAddr, OwnedFd)>,
    /// Sockets of the program that embeds the proxy, by name.
    pub(crate) program: Arc<[(String, OwnedFd)]>,
    /// How many times the process has been replaced before (the restart epoch).
    pub(crate) epoch: u32,
    /// Requests to the control thread, each with a sender that it completes when done.
    pub(crate) requests: mpsc::Sender<(Request, oneshot::Sender<()>)>,
}

/// Handle of the thread that waits for a successor. Dropping it ends the thread, and removes the socket file unless a
/// successor has replaced it.
pub(crate) struct SuccessorWait {
    listener: Socket,
    path: PathBuf,
    inode: Option<u64>,
}

impl SuccessorWait {
    /// To be called once a successor serves: the file name is the successor's from then on, even before it has put its
    /// own socket there.
    pub(crate) fn leave_name(&mut self) {
        self.inode = None;
    }
}

impl Drop for SuccessorWait {
    fn drop(&mut self) {
        if self.inode.is_some() && inode(&self.path) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
        // Unblocks the thread in `accept`.
        let _ = self.listener.shutdown(std::net::Shutdown::Both);
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| std::os::unix::fs::MetadataExt::ino(&found))
}

impl Predecessor {
    /// Starts a thread that waits for successors.
    pub(crate) fn wait(self, path: &Path) -> Result<SuccessorWait, HandoverError> {
        prepare_folder(path)?;
        let listener = Channel::listen(path).map_err(system("listening for a successor"))?;
        let waiting = listener.try_clone().map_err(system("listening for a successor"))?;
        let successor_wait = SuccessorWait { listener: waiting, path: path.to_owned(), inode: inode(path) };
        let thread = std::thread::Builder::new().name("handover".into());
        thread.spawn(move || self.serve(&listener)).map_err(system("starting the handover's thread"))?;
        Ok(successor_wait)
    }

    fn serve(&self, listener: &Socket) {
        while let Some(channel) = next(|| Channel::accept(listener)) {
            match self.hand_over(&channel) {
                Ok(true) => return,
                Ok(false) => tracing::warn!("handover: the successor ended; going on"),
                Err(error) => tracing::warn!(%error, "handover: failed; going on"),
            }
            if self.tell(Request::GoOn).is_none() {
                return;
            }
        }
    }

    /// Serves one successor. Returns true when everything was handed over.
    fn hand_over(&self, channel: &Channel) -> io::Result<bool> {
        channel.set_timeout(Some(ANSWER_TIMEOUT))?;
        let version = match channel.receive()?.map(|packet| packet.head) {
            Some(Head::Hello { version, .. }) => version,
            _ => return Ok(false),
        };
        channel.send(&Head::Hello { version: VERSION, epoch: self.epoch }, b"", &[])?;
        if version != VERSION {
            return Ok(false);
        }
        tracing::info!("handover: a successor is starting");
        self.send_sockets(channel)?;
        // No limit: the successor may take any time to get its configuration.
        channel.set_timeout(None)?;
        let end_after = match channel.receive()?.map(|packet| packet.head) {
            Some(Head::TakeOver { end_after_ms }) => Duration::from_millis(end_after_ms),
            _ => return Ok(false),
        };
        let (sender, parcels) = mpsc::channel(MAX_WAITING_PARCELS);
        if self.tell(Request::GiveAway { connections: sender, process: channel.peer() }).is_none() {
            return Ok(false);
        }
        tracing::info!(connections = self.pool.active_connections(), "handover: giving everything to the successor");
        self.hand_over_connections(channel, parcels, end_after)?;
        self.report(channel)?;
        channel.send(&Head::Done, b"", &[])?;
        tracing::info!("handover: done");
        self.tell(Request::End);
        Ok(true)
    }

    fn send_sockets(&self, channel: &Channel) -> io::Result<()> {
        for HandedSockets { listener, sockets } in self.pool.handed_sockets()? {
            for sockets in chunks(sockets) {
                channel.send(&Head::Listener(listener.clone()), b"", &sockets)?;
            }
        }
        if let Some((address, socket)) = &self.admin {
            channel.send(&Head::Admin { address: *address }, b"", &[socket.try_clone()?])?;
        }
        for (name, socket) in self.program.iter() {
            channel.send(&Head::Program { name: name.clone() }, b"", &[socket.try_clone()?])?;
        }
        channel.send(&Head::Tickets { keys: evenkeel_tls::tickets::export() }, b"", &[])?;
        channel.send(&Head::Ready, b"", &[])
    }

    /// Sends connections as they arrive, until none are left or the time limit has passed.
    fn hand_over_connections(
        &self,
        channel: &Channel,
        mut parcels: mpsc::Receiver<Parcel>,
        limit: Duration,
    ) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        let mut reported = Instant::now();
        loop {
            // Read before the channel: a connection is put into the channel before it stops being counted.
            let none_left = self.pool.active_connections() == 0;
            match parcels.try_recv() {
                Ok(Parcel { packed, fds, bytes }) => {
                    channel.send(&Head::Connection(packed), &bytes, &fds)?;
                    continue;
                }
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) if none_left || Instant::now() >= deadline => return Ok(()),
                Err(TryRecvError::Empty) => {}
            }
            if reported.elapsed() >= REPORT_INTERVAL {
                self.report(channel)?;
                reported = Instant::now();
            }
            std::thread::park_timeout(POLL);
        }
    }

    fn report(&self, channel: &Channel) -> io::Result<()> {
        let (mut counters, mut gauges) = (Vec::new(), Vec::new());
        for sample in self.registry.samples() {
            match sample.value {
                Value::Counter(value) if travels(&sample.name) => counters.push((sample.name, value)),
                Value::Gauge(value) if travels(&sample.name) && sample.name.ends_with("_active") => {
                    gauges.push((sample.name, value));
                }
                _ => {}
            }
        }
        while counters.len() > MAX_SAMPLES_PER_PACKET {
            let counters = counters.split_off(counters.len() - MAX_SAMPLES_PER_PACKET);
            channel.send(&Head::Statistics { counters, gauges: Vec::new(), complete: false }, b"", &[])?;
        }
        while gauges.len() > MAX_SAMPLES_PER_PACKET {
            let gauges = gauges.split_off(gauges.len() - MAX_SAMPLES_PER_PACKET);
            channel.send(&Head::Statistics { counters: Vec::new(), gauges, complete: false }, b"", &[])?;
        }
        channel.send(&Head::Statistics { counters, gauges, complete: true }, b"", &[])
    }

    /// Sends a request and waits until it is done. `None` when the control thread is gone.
    fn tell(&self, request: Request) -> Option<()> {
        let (sender, answer) = oneshot::channel();
        self.requests.blocking_send((request, sender)).ok()?;
        answer.blocking_recv().ok()
    }
}

/// The next accepted connection; `None` when the listener was shut down.
fn next<T>(mut accept: impl FnMut() -> io::Result<T>) -> Option<T> {
    loop {
        match accept() {
            Ok(channel) => return Some(channel),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return None,
            // Possible causes: another user's process, one that has disconnected already, or no free descriptor. The
            // next one may be a successor.
            Err(error) => {
                tracing::warn!(%error, "handover: cannot accept");
                std::thread::park_timeout(ACCEPT_PAUSE);
            }
        }
    }
}

/// True for statistics about traffic, false for those about the process itself.
fn travels(name: &str) -> bool {
    !["server.", "workers.", "control_plane."].iter().any(|prefix| name.starts_with(prefix))
}

/// Splits descriptors into groups that fit into a packet.
fn chunks(mut sockets: Vec<OwnedFd>) -> Vec<Vec<OwnedFd>> {
    let mut chunks = Vec::new();
    while sockets.len() > MAX_FDS {
        chunks.push(sockets.split_off(sockets.len() - MAX_FDS));
    }
    chunks.push(sockets);
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_listeners_end_is_the_end() {
        let errors = [libc::EMFILE, libc::ECONNABORTED, libc::EPERM, libc::ENFILE, libc::EINTR];
        let mut results = errors.map(io::Error::from_raw_os_error).map(Err).into_iter().chain([Ok(7)]);
        assert_eq!(next(|| results.next().expect("no more is asked for")), Some(7));
        assert_eq!(next(|| Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL))), None);
    }

    #[test]
    fn the_name_goes_with_the_process_unless_it_is_a_successors() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("proxy.sock");
        let successor_wait = || {
            let listener = Channel::listen(&path).expect("a free name");
            SuccessorWait { listener, inode: inode(&path), path: path.clone() }
        };
        drop(successor_wait());
        assert!(!path.exists());
        // The successor has put its own socket there.
        let (before, after) = (successor_wait(), successor_wait());
        drop(before);
        assert!(path.exists());
        // The successor is about to do so.
        let mut before = after;
        before.leave_name();
        drop(before);
        assert!(path.exists());
        assert!(Channel::connect(&path).is_err(), "nobody listens any more");
        drop(successor_wait());
        assert!(!path.exists());
    }
}
