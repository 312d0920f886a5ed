//! What the status of each object is now, and which ones are not written yet.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_api::gateway_api::GROUP;
use evenkeel_base::ObjectRef;
use evenkeel_model::{Status, StatusSink};
use tokio::sync::Notify;

/// Maximum number of statuses that a control plane which does not lead remembers of objects that may be gone.
const MAX_STATUSES: usize = 200_000;

/// Collects statuses. Clones collect into the same queue.
#[derive(Debug, Clone, Default)]
pub struct StatusQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    statuses: Mutex<Statuses>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Statuses {
    latest: HashMap<ObjectRef, Arc<Status>>,
    pending: HashSet<ObjectRef>,
}

/// A status that is to be written.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) object: ObjectRef,
    pub(super) status: Arc<Status>,
}

/// What became of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The object has it.
    Done,
    /// It is to be written later.
    Retry,
    /// The object or its kind is gone.
    Gone,
    /// It is not written before it changes.
    Refused,
}

impl StatusQueue {
    /// Makes all statuses pending.
    pub(super) fn all_pending(&self) {
        let mut statuses = self.lock();
        let Statuses { latest, pending } = &mut *statuses;
        pending.extend(latest.keys().cloned());
        drop(statuses);
        self.0.wake.notify_one();
    }

    /// Makes the status of a Gateway pending: what it says of its deployment has changed.
    pub(crate) fn gateway_pending(&self, namespace: &str, name: &str) {
        let mut statuses = self.lock();
        let Statuses { latest, pending } = &mut *statuses;
        let is_it =
            |of: &&ObjectRef| (of.group, of.kind, &*of.namespace, &*of.name) == (GROUP, "Gateway", namespace, name);
        pending.extend(latest.keys().find(is_it).cloned());
        drop(statuses);
        self.0.wake.notify_one();
    }

    /// Waits until a status is pending.
    pub(super) async fn pending(&self) {
        while self.lock().pending.is_empty() {
            self.0.wake.notified().await;
        }
    }

    /// Takes what is pending, in the order of names.
    pub(super) fn take(&self) -> Vec<Pending> {
        let mut statuses = self.lock();
        let mut objects: Vec<ObjectRef> = std::mem::take(&mut statuses.pending).into_iter().collect();
        objects.sort();
        let latest = |object: ObjectRef| {
            let status = statuses.latest.get(&object)?.clone();
            Some(Pending { object, status })
        };
        objects.into_iter().filter_map(latest).collect()
    }

    /// Records what became of statuses. Returns whether some are to be written later.
    pub(super) fn note(&self, outcomes: Vec<(ObjectRef, Outcome)>) -> bool {
        let mut statuses = self.lock();
        let mut is_later = false;
        for (object, outcome) in outcomes {
            match outcome {
                Outcome::Done | Outcome::Refused => {}
                Outcome::Retry => {
                    is_later = true;
                    statuses.pending.insert(object);
                }
                // One that has come meanwhile is of an object that is there again.
                Outcome::Gone if statuses.pending.contains(&object) => {}
                Outcome::Gone => _ = statuses.latest.remove(&object),
            }
        }
        is_later
    }

    fn lock(&self) -> MutexGuard<'_, Statuses> {
        self.0.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatusSink for StatusQueue {
    fn write(&mut self, object: &ObjectRef, status: &Arc<Status>) {
        let mut statuses = self.lock();
        if statuses.latest.len() >= MAX_STATUSES && !statuses.latest.contains_key(object) {
            tracing::warn!(%object, "more than {MAX_STATUSES} statuses: this one is not written");
            return;
        }
        statuses.latest.insert(object.clone(), status.clone());
        statuses.pending.insert(object.clone());
        drop(statuses);
        self.0.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{Rank, SourceId};

    use super::*;

    #[test]
    fn only_the_latest_status_is_written_and_what_failed_again() {
        let object = |name: &str| ObjectRef {
            group: "networking.istio.io",
            kind: "VirtualService",
            namespace: "shop".into(),
            name: name.into(),
            source: SourceId::new("kubernetes", Rank(200)),
        };
        let status = |generation| Arc::new(Status::of(Some(generation), []));
        let mut queue = StatusQueue::default();
        let taken = |queue: &StatusQueue| {
            let taken = queue.take();
            taken.iter().map(|p| format!("{}:{:?}", p.object.name, p.status.observed_generation)).collect::<Vec<_>>()
        };
        queue.write(&object("b"), &status(1));
        queue.write(&object("a"), &status(1));
        queue.write(&object("a"), &status(2));
        assert_eq!(taken(&queue), ["a:Some(2)", "b:Some(1)"]);
        assert!(taken(&queue).is_empty());
        assert!(queue.note(vec![(object("a"), Outcome::Retry), (object("b"), Outcome::Gone)]));
        assert_eq!(taken(&queue), ["a:Some(2)"]);
        assert!(!queue.note(vec![(object("a"), Outcome::Done)]));
        queue.all_pending();
        assert_eq!(taken(&queue), ["a:Some(2)"], "b is gone");
    }
}
