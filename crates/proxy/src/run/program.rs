//! The program that embeds the proxy, such as a workload's agent, and the channels between the two.

use std::os::fd::OwnedFd;

use tokio::sync::{oneshot, watch};

use crate::handover::Succession;

/// Which process serves during a hot restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotRestartState {
    /// The predecessor serves until this process is ready.
    Waiting,
    /// This process serves.
    Serving,
    /// The successor serves. Connections that cannot be handed over finish here, and if the successor ends early, this
    /// process serves again.
    HandedOver {
        /// The successor's process id, if visible in this process's namespace.
        to: Option<u32>,
    },
}

/// The interface between the proxy and the program that embeds it. Signals are left to the program.
#[derive(Debug)]
pub struct Program {
    /// When sent or dropped, the proxy drains and ends.
    pub stop: oneshot::Receiver<()>,
    /// Receives each change; the program sets the initial value.
    pub hot_restart: watch::Sender<HotRestartState>,
    /// A takeover begun by the program. Without one the proxy begins its own, if its settings say so.
    pub succession: Option<Succession>,
    /// The program's own sockets, by name, to be passed to a successor.
    pub sockets: Vec<(String, OwnedFd)>,
}

impl Program {
    /// A program that only tells the proxy when to end.
    pub fn until(stop: oneshot::Receiver<()>) -> Self {
        Self { stop, hot_restart: watch::channel(HotRestartState::Serving).0, succession: None, sockets: Vec::new() }
    }
}
