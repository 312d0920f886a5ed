//! The main process of a program: the one that was started, or one that has taken over from it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;

use crate::pidfd::PidFd;
use crate::program::Program;

/// A running process that is supervised.
#[derive(Debug)]
pub(crate) struct MainProcess {
    id: u32,
    relation: Relation,
}

/// Its relation to the supervisor.
#[derive(Debug)]
enum Relation {
    /// Its child, and leader of a process group.
    Child(Child),
    /// Not its child: the supervisor can neither get its exit status nor signal its group.
    Successor(PidFd),
}

impl MainProcess {
    /// The process that was started as the program.
    pub(crate) fn started(child: Child) -> Self {
        Self { id: child.id().unwrap_or_default(), relation: Relation::Child(child) }
    }

    /// A process that has taken over.
    ///
    /// # Errors
    /// If there is no such process.
    pub(crate) fn successor(id: u32) -> io::Result<Self> {
        let number = i32::try_from(id).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(Self { id, relation: Relation::Successor(PidFd::open(number)?) })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// `program` in the version of this process.
    ///
    /// # Errors
    /// If it has ended, or cannot be inspected.
    pub(crate) fn seen(&self, program: &Program) -> io::Result<Program> {
        match &self.relation {
            Relation::Child(_) => Ok(program.clone()),
            Relation::Successor(process) => program.as_seen_in(self.id, process),
        }
    }

    /// Completes when it ends, with the reason. Dropping the future loses nothing.
    pub(crate) async fn ended(&mut self) -> String {
        match &mut self.relation {
            Relation::Child(child) => describe(child.wait().await),
            Relation::Successor(process) => match process.ended().await {
                Ok(()) => "ended".to_owned(),
                Err(error) => format!("lost: {error}"),
            },
        }
    }

    /// Ends it: SIGTERM, then SIGKILL after `grace`.
    pub(crate) async fn stop(&mut self, grace: Duration) {
        self.signal(Signal::SIGTERM);
        if tokio::time::timeout(grace, self.ended()).await.is_err() {
            self.signal(Signal::SIGKILL);
            let _ = self.ended().await;
        }
    }

    /// Kills the processes that it left behind, which could occupy the replica's port. Not done if another process took
    /// over, because that one may be among them.
    pub(crate) fn clear_group(&self) {
        if let Relation::Child(_) = self.relation {
            self.signal(Signal::SIGKILL);
        }
    }

    /// Sends a signal, to the whole group if it leads one.
    fn signal(&self, signal: Signal) {
        match &self.relation {
            Relation::Child(_) => {
                if let Ok(pid @ 2..) = i32::try_from(self.id) {
                    let _ = killpg(Pid::from_raw(pid), signal);
                }
            }
            Relation::Successor(process) => process.signal(signal),
        }
    }
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match (status.code(), status.signal().and_then(|number| Signal::try_from(number).ok())) {
            (Some(code), _) => format!("exited with status {code}"),
            (None, Some(signal)) => format!("killed by {signal}"),
            (None, None) => "ended".to_owned(),
        },
        Err(error) => format!("lost: {error}"),
    }
}
