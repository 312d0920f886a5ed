//! The program the proxy runs in, such as a workload's agent: what it says, and what it hears.

use std::os::fd::OwnedFd;

use tokio::sync::{oneshot, watch};

use crate::handover::Succession;

/// Whose turn it is to serve, while one process takes over from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The process before this one serves until this one is ready.
    Awaited,
    /// This process serves.
    Held,
    /// The process after this one serves. What cannot travel finishes here, and should that process end early, the place is
    /// this one's again.
    GivenAway {
        /// Its process id, if it can be seen from here.
        to: Option<u32>,
    },
}

/// What the proxy and the program it runs in have to do with each other. Signals are the program's.
#[derive(Debug)]
pub struct Program {
    /// Sent or dropped: the proxy drains and ends.
    pub stop: oneshot::Receiver<()>,
    /// Gets each change; the program has put the right one there for the start.
    pub place: watch::Sender<Place>,
    /// The takeover the program has begun. Without one the proxy begins its own, if its settings say so.
    pub succession: Option<Succession>,
    /// The program's own sockets, by name, for the process that takes over.
    pub sockets: Vec<(String, OwnedFd)>,
}

impl Program {
    /// One that only says when to end.
    pub fn until(stop: oneshot::Receiver<()>) -> Self {
        Self { stop, place: watch::channel(Place::Held).0, succession: None, sockets: Vec::new() }
    }
}
