//! The main process of a program: the one that was started, or one that has taken over from it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::fstat;
use nix::unistd::{Pid, geteuid};
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

    /// A process that has taken over from `program`. The program's process names it, and may be in an attacker's hands:
    /// only a process of the same user, in the same container, can be its successor.
    ///
    /// # Errors
    /// If there is no such process, or ([`io::ErrorKind::PermissionDenied`]) if it belongs elsewhere.
    pub(crate) fn successor(id: u32, program: &Program) -> io::Result<Self> {
        let number = i32::try_from(id).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let process = PidFd::open(number)?;
        let place = Place::of_process(id);
        // If the process still runs, what was read belongs to it and not to another that got its id.
        if process.wait(Duration::ZERO) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        if place? != Place::of_program(program)? {
            let reason = "it is another user's, or runs in another container";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        Ok(Self { id, relation: Relation::Successor(process) })
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

/// Whose process it is, and in which namespaces.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// Real, effective, saved and file system user.
    users: [u32; 4],
    /// Mounts and network, each as device and inode.
    namespaces: [(u64, u64); 2],
}

impl Place {
    fn of_process(id: u32) -> io::Result<Self> {
        let folder = PathBuf::from(format!("/proc/{id}"));
        let status = fs::read_to_string(folder.join("status"))?;
        Ok(Self { users: users(&status).ok_or(io::ErrorKind::InvalidData)?, namespaces: namespaces(&folder)? })
    }

    fn of_program(program: &Program) -> io::Result<Self> {
        let Some(container) = &program.container else {
            return Ok(Self {
                users: [geteuid().as_raw(); 4],
                namespaces: namespaces(Path::new("/proc/thread-self"))?,
            });
        };
        let user = container.privileges.account.map_or(geteuid().as_raw(), |account| account.uid);
        let handles = container.handles();
        Ok(Self { users: [user; 4], namespaces: [opened(&handles.mount)?, opened(&handles.network)?] })
    }
}

/// The namespaces of a process, by its folder in `/proc`.
fn namespaces(folder: &Path) -> io::Result<[(u64, u64); 2]> {
    let found = |name: &str| fs::metadata(folder.join("ns").join(name)).map(|found| (found.dev(), found.ino()));
    Ok([found("mnt")?, found("net")?])
}

fn opened(namespace: &OwnedFd) -> io::Result<(u64, u64)> {
    let found = fstat(namespace)?;
    Ok((found.st_dev, found.st_ino))
}

/// The four numbers in the line `Uid:` of `/proc/PID/status`.
fn users(status: &str) -> Option<[u32; 4]> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let numbers: Option<Vec<u32>> = line.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    numbers?.try_into().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_users_is_nobodys_successor() {
        let check = |status: &str, expected| assert_eq!(users(status), expected, "{status:?}");
        check("Name:\tx\nUid:\t0\t1\t2\t3\nGid:\t0\t0\t0\t0\n", Some([0, 1, 2, 3]));
        check("Uid:\t0\t1\t2\n", None);
        check("Uid:\t0\t1\t2\tx\n", None);
        check("", None);
    }
}
