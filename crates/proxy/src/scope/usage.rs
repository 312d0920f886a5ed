//! Records which names of its scope a proxy has used, and when.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_runtime_config::demand::DEFAULT_HOLD;
use evenkeel_runtime_config::{Demand, bootstrap};
use tokio::time::Instant;

/// How long remembered names may delay readiness: having them speeds up first requests, but none depends on them.
pub(crate) const REMEMBERED_HOLD: Duration = DEFAULT_HOLD;
/// When each name was last used.
#[derive(Debug)]
pub(crate) struct Scope {
    /// `None`: the scope is not on demand, and nothing is dropped.
    pub(super) unused_after: Option<Duration>,
    pub(super) last_used: HashMap<Demand, Use>,
    /// Changes when a name is added or dropped, and when the first resource of a name arrives.
    pub revision: u64,
    pub(super) logged: Option<Instant>,
    /// When the remembered names were requested.
    pub(super) recalled: Option<Instant>,
}

/// The use of a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) last: Instant,
    /// The workload itself has used it. Otherwise it is only remembered, which does not count as use.
    pub(super) own: bool,
}

impl Scope {
    pub fn new(scope: &bootstrap::Scope) -> Self {
        let unused_after = match scope {
            bootstrap::Scope::Learned { unused_after, .. } => Some(*unused_after),
            bootstrap::Scope::Given | bootstrap::Scope::Full => None,
        };
        Self { unused_after, last_used: HashMap::new(), revision: 0, logged: None, recalled: None }
    }

    pub fn is_learned(&self) -> bool {
        self.unused_after.is_some()
    }

    pub(super) fn note(&mut self, demand: Demand, now: Instant) {
        let before = self.last_used.insert(demand, Use { last: now, own: true });
        if before.is_none_or(|before| !before.own) {
            self.revision += 1;
        }
    }

    /// Whether the remembered names have been waited for long enough.
    pub fn remembered_is_overdue(&self, now: Instant) -> bool {
        self.recalled.is_some_and(|recalled| now.duration_since(recalled) >= REMEMBERED_HOLD)
    }

    /// Records that the first resource of a name in use has arrived.
    pub fn note_arrival(&mut self) {
        self.revision += 1;
    }

    pub(super) fn forget(&mut self, demand: &Demand) {
        if self.last_used.remove(demand).is_some() {
            self.revision += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_waited_for_no_longer_than_its_limit() {
        let mut scope = Scope::new(&bootstrap::Scope::Full);
        let now = Instant::now();
        assert!(!scope.remembered_is_overdue(now + 10 * REMEMBERED_HOLD), "nothing is remembered");
        scope.recalled = Some(now);
        assert!(!scope.remembered_is_overdue(now));
        assert!(!scope.remembered_is_overdue(now + REMEMBERED_HOLD - Duration::from_nanos(1)));
        assert!(scope.remembered_is_overdue(now + REMEMBERED_HOLD));
    }
}
