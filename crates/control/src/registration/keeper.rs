//! Maintains the entries: puts new ones in force and stores them, and removes obsolete ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_model::Snapshot;
use serde_json::Value;

use super::entry::{self, Stored};
use super::{Key, Registrations, file_name};
use crate::metrics::plane;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// Minimum time between two changes of an entry, so that a workload whose health changes constantly does not cause constant
/// pushes.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the entries of connected workloads are touched, and those of others checked.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Age at which an untouched entry is abandoned: its control plane is gone, and its workload has not connected to another.
const ABANDONED: Duration = Duration::from_secs(60);
/// Delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(5);

/// An operation on an entry.
#[derive(Debug)]
pub(super) enum Work {
    /// Store this object.
    Write(Key, Value),
    /// Store this object, unless the workload has connected to another control plane since.
    WriteIfOurs(Key, Value),
    /// Remove it, unless the workload has connected to another control plane since.
    Remove(Key),
}

impl Registrations {
    /// Maintains the entries until the future is dropped.
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
                    entry.written = true;
                    work.push(match entry.streams {
                        0 => Work::WriteIfOurs(key.clone(), document),
                        _ => Work::Write(key.clone(), document),
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
            Work::Write(key, document) => {
                let name = file_name(&key);
                let is_new = self.stored.version(&name).is_none();
                let done = self.stored.put(&name, document);
                if is_new && done.is_ok() {
                    self.metrics.plane.inc(plane::Counter::auto_registration_success_total);
                    tracing::info!(namespace = %key.0, entry = %key.1, "workload registered");
                }
                (key, done)
            }
            Work::WriteIfOurs(key, document) => {
                let done = if self.is_ours(&key) { self.stored.put(&file_name(&key), document) } else { Ok(()) };
                (key, done)
            }
            Work::Remove(key) => {
                if self.is_ours(&key) && self.remove(&file_name(&key)) {
                    tracing::info!(namespace = %key.0, entry = %key.1, "workload no longer registered");
                }
                return;
            }
        };
        let Err(error) = done else { return };
        self.metrics.plane.inc(plane::Counter::auto_registration_errors_total);
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

    /// Whether the entry was last stored by this control plane.
    fn is_ours(&self, key: &Key) -> bool {
        self.read(&file_name(key)).is_some_and(|stored| stored.controller == self.controller)
    }

    /// Touches the entries of connected workloads, and removes those of workloads that are connected nowhere.
    fn beat(&self, abandoned: bool) {
        let connected: BTreeSet<String> = {
            let mut state = self.lock();
            let here = state.entries.iter_mut().filter(|(_, entry)| entry.streams > 0 && entry.written);
            here.map(|(key, entry)| {
                let name = file_name(key);
                // Another process may have removed or replaced it.
                entry.dirty |= self.read(&name).is_none_or(|stored| stored.controller != self.controller);
                name
            })
            .collect()
        };
        // One that is missing is stored again with the next heartbeat.
        connected.iter().for_each(|name| _ = self.stored.touch(name));
        let snapshot = self.world.borrow().snapshot.clone();
        let names = self.stored.names().unwrap_or_default();
        for name in names.into_iter().filter(|name| !connected.contains(name)) {
            if (abandoned && self.is_abandoned(&name)) || !self.has_group(&name, &snapshot) {
                // An entry within its grace period is in the state, and its removal is scheduled in any case.
                tracing::info!(entry = name, "removed the WorkloadEntry of a workload that has not come back");
                self.remove(&name);
            }
        }
    }

    fn read(&self, name: &str) -> Option<Stored> {
        entry::read(&self.stored.get(name)?)
    }

    /// Whether the group of an entry exists. An entry that cannot be read is kept until it is abandoned.
    fn has_group(&self, name: &str, snapshot: &Snapshot) -> bool {
        self.read(name).is_none_or(|stored| snapshot.workload_group(&stored.namespace, &stored.group).is_some())
    }

    fn is_abandoned(&self, name: &str) -> bool {
        let age = self.stored.version(name).and_then(|version| version.modified.elapsed().ok());
        age.is_some_and(|age| age > ABANDONED)
    }

    fn remove(&self, name: &str) -> bool {
        let removed = self.stored.remove(name);
        if let Ok(true) = removed {
            self.metrics.plane.inc(plane::Counter::auto_registration_deletes_total);
        }
        removed
            .inspect_err(|error| tracing::warn!(entry = name, %error, "a WorkloadEntry cannot be removed"))
            .unwrap_or(false)
    }
}
