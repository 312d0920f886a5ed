//! The new process's side: takes the running process's sockets, and later its connections and statistics.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_stats::Registry;

use super::wire::{ANSWER_TIMEOUT, Channel, Head, Packet, VERSION};
use super::{HandoverError, Parcel, prepare_folder, system};
use crate::listener::socket::HandedSockets;
use crate::pool::WorkerPool;

/// The first message of a predecessor.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    pub(crate) listeners: Vec<HandedSockets>,
    /// The admin interface's socket, by its configured address.
    pub(crate) admin: Option<(SocketAddr, OwnedFd)>,
    /// Sockets of the program that embeds the predecessor, by name.
    pub(crate) program: Vec<(String, OwnedFd)>,
    /// How many times the process has been replaced, including this time.
    pub(crate) epoch: u32,
}

/// A takeover that has begun: the predecessor has sent its sockets and still serves. Dropping it cancels the takeover.
#[derive(Debug)]
pub struct Succession {
    pub(crate) successor: Successor,
    pub(crate) inheritance: Inheritance,
}

impl Succession {
    /// Requests the sockets of the process that listens at `path`; `None` when there is none. Blocks for at most 10 s.
    ///
    /// # Errors
    /// When the socket's folder is not private, or the process speaks another version or does not answer.
    pub fn begin(path: &Path) -> Result<Option<Self>, HandoverError> {
        prepare_folder(path)?;
        let channel = match Channel::connect(path) {
            Ok(channel) => channel,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(system("connecting to the running process")(error)),
        };
        let inheritance = ask(&channel)?;
        Ok(Some(Self { successor: Successor { channel }, inheritance }))
    }

    /// How many times the process has been replaced, including this time.
    pub fn epoch(&self) -> u32 {
        self.inheritance.epoch
    }

    /// Removes and returns the socket that the program around the predecessor registered under this name.
    pub fn take_socket(&mut self, name: &str) -> Option<OwnedFd> {
        let given = &mut self.inheritance.program;
        let at = given.iter().position(|(given, _)| given == name)?;
        Some(given.swap_remove(at).1)
    }
}

/// A handover that has begun. Dropping it cancels it, and the predecessor resumes as before.
#[derive(Debug)]
pub(crate) struct Successor {
    channel: Channel,
}

impl Successor {
    /// Takes everything over, on a thread that ends with the predecessor; `None` when the predecessor is gone already.
    pub(crate) fn take_over(
        self,
        pool: Arc<WorkerPool>,
        registry: Arc<Registry>,
        end_after: Duration,
    ) -> Option<Taking> {
        let end_after_ms = u64::try_from(end_after.as_millis()).unwrap_or(u64::MAX);
        self.channel.send(&Head::TakeOver { end_after_ms }, b"", &[]).ok()?;
        let stop = self.channel.try_clone().ok()?;
        let thread = std::thread::Builder::new().name("handover".into());
        thread.spawn(move || take(&self.channel, &pool, &registry)).ok()?;
        Some(Taking { channel: stop })
    }
}

/// A takeover in progress; dropping it cancels it, for a process that ends itself.
pub(crate) struct Taking {
    channel: Channel,
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.channel.close();
    }
}

fn ask(channel: &Channel) -> Result<Inheritance, HandoverError> {
    let talking = || system("asking the running process");
    channel.set_timeout(Some(ANSWER_TIMEOUT)).map_err(talking())?;
    channel.send(&Head::Hello { version: VERSION, epoch: 0 }, b"", &[]).map_err(talking())?;
    let mut inheritance = Inheritance::default();
    loop {
        let Some(Packet { head, mut fds, .. }) = channel.receive().map_err(talking())? else {
            return Err(HandoverError::Ended("it closed before it had given its sockets"));
        };
        match head {
            Head::Hello { version, epoch } if version == VERSION => inheritance.epoch = epoch.wrapping_add(1),
            Head::Hello { version, .. } => return Err(HandoverError::Version(version)),
            Head::Listener(listener) => {
                let known = inheritance.listeners.iter_mut().find(|known| known.listener == listener);
                match known {
                    Some(known) => known.sockets.append(&mut fds),
                    None => inheritance.listeners.push(HandedSockets { listener, sockets: fds }),
                }
            }
            Head::Admin { address } => inheritance.admin = fds.pop().map(|socket| (address, socket)),
            Head::Program { name } => inheritance.program.extend(fds.pop().map(|socket| (name, socket))),
            Head::Tickets { keys } => evenkeel_tls::tickets::import(&keys),
            Head::Ready => break,
            _ => return Err(HandoverError::Ended("it said something unexpected")),
        }
    }
    channel.set_timeout(None).map_err(talking())?;
    Ok(inheritance)
}

/// Receives connections and statistics until the predecessor has nothing left.
fn take(channel: &Channel, pool: &WorkerPool, registry: &Registry) {
    let (mut counters, mut gauges) = (HashMap::new(), HashMap::new());
    let mut taken = 0u64;
    loop {
        match channel.receive() {
            Ok(Some(Packet { head: Head::Connection(packed), bytes, fds })) => {
                taken += 1;
                pool.adopt(Parcel { packed, bytes, fds });
            }
            Ok(Some(Packet { head: Head::Statistics { counters: some, gauges: others, complete }, .. })) => {
                counters.extend(some);
                gauges.extend(others);
                if complete {
                    registry.carry(std::mem::take(&mut counters), std::mem::take(&mut gauges));
                }
            }
            Ok(Some(Packet { head: Head::Done, .. })) => {
                tracing::info!(connections = taken, "handover: the predecessor has ended");
                break;
            }
            Ok(Some(Packet { head, .. })) => tracing::warn!(?head, "handover: an unexpected message"),
            Ok(None) => {
                tracing::warn!(connections = taken, "handover: the predecessor has gone early");
                break;
            }
            Err(error) => {
                tracing::warn!(%error, connections = taken, "handover: lost the predecessor");
                break;
            }
        }
    }
    registry.end_carried_gauges();
}
