//! How many calls of its own a worker makes at a time. Each purpose has places of its own, and within them no cluster has more than a
//! half: a service that hangs, or a client that makes many calls to it, takes no place from the checks of others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::callouts::Purpose;

/// Maximum number of checks in flight on a worker: calls that requests and connections wait for. Further ones fail at once, and what they
/// would have decided is refused.
pub const MAX_CHECKS_PER_WORKER: usize = 4096;

/// Maximum number of calls with spans, and of open streams of logs, on a worker.
pub const MAX_REPORTS_PER_WORKER: usize = 512;

/// Maximum number of mirrored requests in flight on a worker. Further requests are not mirrored.
pub const MAX_MIRRORS_PER_WORKER: usize = 1024;

/// The places of a worker.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    checks: Rc<Group>,
    reports: Rc<Group>,
    mirrors: Rc<Group>,
}

#[derive(Debug, Default)]
struct Group {
    taken: Cell<usize>,
    by_cluster: RefCell<HashMap<Arc<str>, usize>>,
}

/// A place, taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    group: Rc<Group>,
    cluster: Arc<str>,
}

impl Places {
    /// Takes a place for a call to this cluster, if there is one.
    pub(super) fn take(&self, purpose: Purpose, cluster: &Arc<str>) -> Option<Place> {
        let (group, most) = match purpose {
            Purpose::Check => (&self.checks, MAX_CHECKS_PER_WORKER),
            Purpose::Telemetry => (&self.reports, MAX_REPORTS_PER_WORKER),
            Purpose::Mirror => (&self.mirrors, MAX_MIRRORS_PER_WORKER),
        };
        if group.taken.get() >= most {
            return None;
        }
        let mut by_cluster = group.by_cluster.borrow_mut();
        let of_cluster = by_cluster.entry(Arc::clone(cluster)).or_default();
        if *of_cluster >= most / 2 {
            return None;
        }
        *of_cluster += 1;
        group.taken.set(group.taken.get() + 1);
        drop(by_cluster);
        Some(Place { group: Rc::clone(group), cluster: Arc::clone(cluster) })
    }

    /// Number of calls in flight.
    pub(super) fn taken(&self) -> usize {
        [&self.checks, &self.reports, &self.mirrors].iter().map(|group| group.taken.get()).sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.group.taken.set(self.group.taken.get().saturating_sub(1));
        let mut by_cluster = self.group.by_cluster.borrow_mut();
        if let Some(count) = by_cluster.get_mut(&self.cluster) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                by_cluster.remove(&self.cluster);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_purpose_and_no_cluster_takes_the_places_of_another() {
        let places = Places::default();
        let mut taken = Vec::new();
        let mut check = |purpose, cluster: &str, expected: usize| {
            let cluster: Arc<str> = cluster.into();
            let before = taken.len();
            while let Some(place) = places.take(purpose, &cluster) {
                taken.push(place);
            }
            assert_eq!(taken.len() - before, expected, "{purpose:?} to {cluster}");
        };
        check(Purpose::Mirror, "hangs", MAX_MIRRORS_PER_WORKER / 2);
        check(Purpose::Mirror, "other", MAX_MIRRORS_PER_WORKER / 2);
        check(Purpose::Mirror, "third", 0);
        check(Purpose::Telemetry, "collector", MAX_REPORTS_PER_WORKER / 2);
        check(Purpose::Check, "hangs", MAX_CHECKS_PER_WORKER / 2);
        check(Purpose::Check, "authz", MAX_CHECKS_PER_WORKER / 2);
        taken.clear();
        assert_eq!(places.taken(), 0);
        assert!(places.checks.by_cluster.borrow().is_empty(), "no name is kept");
    }
}
