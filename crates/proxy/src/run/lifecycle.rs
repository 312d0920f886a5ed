//! The process from ready to ended: signals and commands, drains, taking over and handing over.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use evenkeel_process::manager::Manager;
use evenkeel_stats::Registry;
use tokio::sync::{mpsc, oneshot, watch};

use super::admin_port::AdminPort;
use super::drains::Drains;
use super::error::RunError;
use super::instructions::{Instruction, Instructions};
use super::program::HotRestartState;
use crate::access_log::LogHandle;
use crate::admin::Command;
use crate::handover::{HandoverError, Parcel, Predecessor, Request, Successor, SuccessorWait, Taking};
use crate::options::Settings;
use crate::pool::WorkerPool;
use crate::state::{Phase, Shared};
use crate::worker::DrainScope;

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Connections may finish.
    Drain,
    /// At once.
    Now,
}

/// This process's role in hot restarts.
pub(super) struct HotRestart {
    /// How many times the process has been replaced before (the restart epoch).
    pub(super) epoch: u32,
    state: watch::Sender<HotRestartState>,
    /// Sockets of the program that embeds the proxy, for a successor.
    sockets: Arc<[(String, OwnedFd)]>,
    /// The service manager to notify of the process's state, unless the embedding program does that.
    manager: Manager,
}

impl HotRestart {
    /// For a standalone proxy.
    pub(super) fn alone() -> Self {
        Self {
            manager: Manager::of_this_process(),
            ..Self::inside(watch::channel(HotRestartState::Serving).0, Vec::new())
        }
    }

    /// For a proxy inside another program.
    pub(super) fn inside(state: watch::Sender<HotRestartState>, sockets: Vec<(String, OwnedFd)>) -> Self {
        Self { epoch: 0, state, sockets: sockets.into(), manager: Manager::nobody() }
    }

    /// Tells the service manager that the process is about to end, if this process is the service.
    fn leave(&self) {
        match *self.state.borrow() {
            HotRestartState::Serving => self.manager.stopping(),
            HotRestartState::HandedOver { to: Some(process) } => self.manager.replaced_by(process),
            HotRestartState::HandedOver { to: None } | HotRestartState::Waiting => {}
        }
    }
}

/// The process once it is set up.
pub(super) struct Lifecycle {
    shared: Shared,
    pool: Arc<WorkerPool>,
    registry: Arc<Registry>,
    settings: Settings,
    log: LogHandle,
    admin: Option<AdminPort>,
    hot_restart: HotRestart,
    drains: Drains,
    /// Requests from the handover thread, made for a successor.
    requests: mpsc::Sender<(Request, oneshot::Sender<()>)>,
    requested: mpsc::Receiver<(Request, oneshot::Sender<()>)>,
    /// The takeover from the predecessor, which continues for as long as this is held.
    taking: Option<Taking>,
    /// Waits for a successor.
    successor_wait: Option<SuccessorWait>,
}

impl Lifecycle {
    pub(super) fn new(
        shared: Shared,
        pool: Arc<WorkerPool>,
        registry: Arc<Registry>,
        settings: Settings,
        log: LogHandle,
        admin: Option<AdminPort>,
        hot_restart: HotRestart,
    ) -> Self {
        let (requests, requested) = mpsc::channel(1);
        let drains = Drains::new(shared.clone(), pool.clone(), settings.drain_time);
        Self {
            shared,
            pool,
            registry,
            settings,
            log,
            admin,
            hot_restart,
            drains,
            requests,
            requested,
            taking: None,
            successor_wait: None,
        }
    }

    /// Runs until the process is to end, then ends the workers. With `successor`, this process replaces another one as
    /// soon as it is live.
    pub(super) async fn run(
        &mut self,
        successor: Option<Successor>,
        mut instructions: Instructions,
        commands: mpsc::Receiver<Command>,
    ) -> Result<(), RunError> {
        match successor {
            Some(_) => _ = self.hot_restart.state.send_replace(HotRestartState::Waiting),
            None => self.wait_for_successor()?,
        }
        let ending = self.live(successor, &mut instructions, commands).await?;
        self.hot_restart.leave();
        if matches!(*self.hot_restart.state.borrow(), HotRestartState::HandedOver { .. })
            && let Some(successor_wait) = &mut self.successor_wait
        {
            successor_wait.leave_name();
        }
        self.successor_wait = None;
        if ending == Ending::Drain {
            finish_connections(&self.shared, &self.pool, &mut instructions).await;
        }
        self.pool.stop();
        Ok(())
    }

    async fn live(
        &mut self,
        mut successor: Option<Successor>,
        instructions: &mut Instructions,
        mut commands: mpsc::Receiver<Command>,
    ) -> Result<Ending, RunError> {
        let mut rising = true;
        loop {
            tokio::select! {
                instruction = instructions.next() => match instruction {
                    Instruction::End => return Ok(Ending::Drain),
                    Instruction::ReopenLogs => self.log.reopen(),
                },
                Some(command) = commands.recv() => match command {
                    Command::Quit => return Ok(Ending::Now),
                    Command::Drain(drain) => self.drains.begin(drain),
                    Command::Health { failed } => self.drains.set_health(failed),
                },
                () = live(&self.shared), if rising => {
                    rising = false;
                    if let Some(successor) = successor.take() {
                        self.take_over(successor)?;
                    }
                    self.hot_restart.manager.ready();
                }
                Some((request, done)) = self.requested.recv() => {
                    match request {
                        Request::GiveAway { connections, process } => {
                            self.hand_over_connections(Some(connections), HotRestartState::HandedOver { to: process });
                        }
                        Request::GoOn => self.hand_over_connections(None, HotRestartState::Serving),
                        Request::End => return Ok(Ending::Now),
                    }
                    let _ = done.send(());
                }
            }
        }
    }

    /// Hands everything over to a successor, or (`None`) resumes as before.
    fn hand_over_connections(&mut self, to: Option<mpsc::Sender<Parcel>>, state: HotRestartState) {
        self.drains.hand_over_connections(to, self.admin.as_ref());
        self.hot_restart.state.send_replace(state);
    }

    fn take_over(&mut self, from: Successor) -> Result<(), RunError> {
        self.taking = from.take_over(self.pool.clone(), self.registry.clone(), self.settings.parent_shutdown_time);
        tracing::info!(epoch = self.hot_restart.epoch, "took over from the process before");
        if let Some(admin) = &self.admin {
            admin.open(&self.settings)?;
        }
        self.hot_restart.state.send_replace(HotRestartState::Serving);
        Ok(self.wait_for_successor()?)
    }

    fn wait_for_successor(&mut self) -> Result<(), HandoverError> {
        let Some(path) = &self.settings.handover else { return Ok(()) };
        let predecessor = Predecessor {
            pool: self.pool.clone(),
            registry: self.registry.clone(),
            admin: self.admin.as_ref().and_then(AdminPort::copy),
            program: self.hot_restart.sockets.clone(),
            epoch: self.hot_restart.epoch,
            requests: self.requests.clone(),
        };
        self.successor_wait = Some(predecessor.wait(path)?);
        Ok(())
    }
}

/// Waits until all awaited resources have arrived.
async fn live(shared: &Shared) {
    loop {
        let settled = shared.settled.notified();
        if shared.state.borrow().phase == Phase::Live {
            return;
        }
        settled.await;
    }
}

/// Stops accepting and lets open connections finish, for at most the drain time or until told to end again.
async fn finish_connections(shared: &Shared, pool: &WorkerPool, instructions: &mut Instructions) {
    shared.state.borrow_mut().phase = Phase::Draining;
    let open = pool.active_connections();
    tracing::info!(connections = open, "draining; signal again to end at once");
    pool.drain(DrainScope::All);
    pool.stop_listening(DrainScope::All);
    tokio::select! {
        finished = pool.drained() => if !finished {
            tracing::warn!(connections = pool.active_connections(), "drain time is over; closing what is left");
        },
        () = instructions.end() => tracing::warn!(connections = pool.active_connections(), "told again; closing what is left"),
    }
}
