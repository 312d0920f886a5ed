//! Maintains the files of the entries: writes new ones, and removes obsolete ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};

use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_model::Snapshot;

use super::entry::{self, Stored};
use super::{Key, Registrations};

/// Pause between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// Minimum time between two changes of an entry, so that a workload whose health changes constantly does not cause constant
/// pushes.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the files of connected workloads are touched, and those of others checked.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Age at which an untouched file is abandoned: its control plane is gone, and its workload has not connected to another.
const ABANDONED: Duration = Duration::from_secs(60);
/// Delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(5);

/// An operation on a file.
#[derive(Debug)]
pub(super) enum Work {
    /// Write this content.
    Write(Key, Vec<u8>),
    /// Write this content, unless the workload has connected to another control plane since.
    WriteIfOurs(Key, Vec<u8>),
    /// Remove it, unless the workload has connected to another control plane since.
    Remove(Key),
}

impl Registrations {
    /// Maintains the files until the future is dropped.
    pub async fn keep(self: Arc<Self>) {
        let (started, mut world) = (Instant::now(), self.world.clone());
        let mut next_heartbeat = Instant::now() + HEARTBEAT;
        loop {
            let due = self.due().map_or(next_heartbeat, |due| due.min(next_heartbeat));
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(due.into()) => {}
                changed = world.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.follow_groups();
                }
            }
            let beats = next_heartbeat <= Instant::now();
            if beats {
                next_heartbeat = Instant::now() + HEARTBEAT;
            }
            let keeping = self.clone();
            let round = move || {
                let work = keeping.take_work(Instant::now());
                work.into_iter().for_each(|work| keeping.act(work));
                if beats {
                    keeping.beat(started.elapsed() >= ABANDONED);
                }
            };
            if tokio::task::spawn_blocking(round).await.is_err() {
                tracing::error!("a round of keeping WorkloadEntries panicked");
            }
            tokio::time::sleep(ROUND).await;
        }
    }

    /// Returns when the next entry is due.
    fn due(&self) -> Option<Instant> {
        let state = self.lock();
        let written = state.entries.values().filter(|entry| entry.dirty).map(|entry| entry.not_before);
        state.entries.values().filter_map(|entry| entry.due).chain(written).min()
    }

    /// Marks the entries whose group was created or deleted: they are removed with their group, as Kubernetes deletes what a
    /// group owns, and come back with it while their workload is connected.
    fn follow_groups(&self) {
        let world = self.world.borrow().clone();
        for entry in self.lock().entries.values_mut() {
            let registrant = &entry.registrant;
            let has_group = world.snapshot.workload_group(&registrant.namespace, &registrant.group).is_some();
            entry.dirty |= has_group != entry.written;
        }
    }

    /// Returns the operations that are due.
    pub(super) fn take_work(&self, now: Instant) -> Vec<Work> {
        let world = self.world.borrow().clone();
        let mut work = Vec::new();
        let mut state = self.lock();
        state.entries.retain(|key, entry| {
            let is_over = entry.streams == 0 && entry.due.is_some_and(|due| due <= now);
            if is_over {
                work.push(Work::Remove(key.clone()));
                return false;
            }
            // A retry is due.
            let again = entry.streams > 0 && entry.due.take_if(|due| *due <= now).is_some();
            if !again && (!entry.dirty || entry.not_before > now) {
                return true;
            }
            (entry.dirty, entry.not_before) = (false, now + PAUSE);
            let registrant = &entry.registrant;
            let group = world.snapshot.workload_group(&registrant.namespace, &registrant.group);
            match group.and_then(|group| group.spec()) {
                Some(group) => {
                    let (connected, health) = (entry.connected, entry.health.as_ref());
                    let document = entry::document(group, registrant, &self.controller, connected, health);
                    let text = format!("{document:#}\n").into_bytes();
                    entry.written = true;
                    work.push(match entry.streams {
                        0 => Work::WriteIfOurs(key.clone(), text),
                        _ => Work::Write(key.clone(), text),
                    });
                }
                None if std::mem::take(&mut entry.written) => work.push(Work::Remove(key.clone())),
                None => {}
            }
            true
        });
        work
    }

    fn act(&self, work: Work) {
        let (key, done) = match work {
            Work::Write(key, text) => {
                let path = self.path(&key);
                let is_new = !path.exists();
                let done = write_atomically(&path, &text, Readers::Owner);
                if is_new && done.is_ok() {
                    tracing::info!(namespace = %key.0, entry = %key.1, "workload registered");
                }
                (key, done)
            }
            Work::WriteIfOurs(key, text) => {
                let done = match self.is_ours(&key) {
                    true => write_atomically(&self.path(&key), &text, Readers::Owner),
                    false => Ok(()),
                };
                (key, done)
            }
            Work::Remove(key) => {
                if self.is_ours(&key) && remove(&self.path(&key)) {
                    tracing::info!(namespace = %key.0, entry = %key.1, "workload no longer registered");
                }
                return;
            }
        };
        let Err(error) = done else { return };
        tracing::error!(
            namespace = %key.0, entry = %key.1, %error,
            "the WorkloadEntry of a workload cannot be written; tried again in {} s", RETRY.as_secs()
        );
        if let Some(entry) = self.lock().entries.get_mut(&key)
            && entry.streams > 0
        {
            entry.due = Some(Instant::now() + RETRY);
        }
    }

    /// Whether the file was last written by this control plane.
    fn is_ours(&self, key: &Key) -> bool {
        stored(&self.path(key)).is_some_and(|stored| stored.controller == self.controller)
    }

    /// Touches the files of connected workloads, and removes those of workloads that are connected nowhere.
    fn beat(&self, abandoned: bool) {
        let connected: BTreeSet<PathBuf> = {
            let mut state = self.lock();
            let here = state.entries.iter_mut().filter(|(_, entry)| entry.streams > 0 && entry.written);
            here.map(|(key, entry)| {
                let path = self.path(key);
                // Another process may have removed or replaced it.
                entry.dirty |= stored(&path).is_none_or(|stored| stored.controller != self.controller);
                path
            })
            .collect()
        };
        for path in &connected {
            let marked =
                fs::File::options().write(true).open(path).and_then(|file| file.set_modified(SystemTime::now()));
            // It is written again with the next heartbeat.
            _ = marked;
        }
        let snapshot = self.world.borrow().snapshot.clone();
        for path in files(&self.folder).into_iter().filter(|path| !connected.contains(path)) {
            if (abandoned && is_abandoned(&path)) || !has_group(&path, &snapshot) {
                // An entry within its grace period is in the state, and its removal is scheduled in any case.
                tracing::info!(file = %path.display(), "removed the WorkloadEntry of a workload that has not come back");
                remove(&path);
            }
        }
    }
}

fn stored(path: &Path) -> Option<Stored> {
    entry::read(&fs::read(path).ok()?)
}

/// Whether the group of an entry exists. A file that cannot be read is kept until it is abandoned.
fn has_group(path: &Path, snapshot: &Snapshot) -> bool {
    stored(path).is_none_or(|stored| snapshot.workload_group(&stored.namespace, &stored.group).is_some())
}

fn is_abandoned(path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|known| known.modified()).ok().and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age > ABANDONED)
}

fn remove(path: &Path) -> bool {
    match fs::remove_file(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "a WorkloadEntry cannot be removed");
            false
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|it| it == "json")).collect()
}
