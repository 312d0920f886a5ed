//! Combines the results of a host's health checks: a host is healthy when all of them pass.

use std::cell::Cell;
use std::sync::Arc;

use super::super::host::{HealthFlags, HostHealth};
use super::session::Change;

/// The flags that health checks set.
const VOTED: HealthFlags = HealthFlags::FAILED_ACTIVE_HC
    .and(HealthFlags::DEGRADED_ACTIVE_HC)
    .and(HealthFlags::PENDING_ACTIVE_HC)
    .and(HealthFlags::ACTIVE_HC_TIMEOUT);

/// The flags set by each of a host's checks, in the cluster's order. A host has a flag while any check sets it.
#[derive(Debug)]
pub(in super::super) struct Votes {
    health: Arc<HostHealth>,
    flags: Box<[Cell<HealthFlags>]>,
    /// The host asked to be excluded, which was applied to all checks.
    excluded: Cell<bool>,
}

impl Votes {
    /// All checks start with the host's known flags.
    pub(in super::super) fn new(health: &Arc<HostHealth>, checks: usize) -> Self {
        let known = health.flags().only(VOTED);
        Self { health: health.clone(), flags: vec![Cell::new(known); checks].into(), excluded: Cell::new(false) }
    }

    /// The host.
    pub(in super::super) fn health(&self) -> &Arc<HostHealth> {
        &self.health
    }

    /// The flags last set by a check.
    pub(in super::super) fn of(&self, check: usize) -> HealthFlags {
        self.flags.get(check).map(Cell::get).unwrap_or_default()
    }

    /// A host that asked to be excluded has to pass each of its checks again.
    pub(super) fn note_exclusion(&self) {
        let excluded = self.health.flags().has(HealthFlags::EXCLUDED_VIA_IMMEDIATE_HC_FAIL);
        if excluded && !self.excluded.replace(excluded) {
            self.flags.iter().for_each(|flags| flags.set(flags.get().and(HealthFlags::FAILED_ACTIVE_HC)));
        }
        self.excluded.set(excluded);
    }

    /// Applies a check's change; true when the host's health changed.
    pub(super) fn cast(&self, check: usize, change: &Change) -> bool {
        if let Some(flags) = self.flags.get(check) {
            flags.set(flags.get().without(change.clear).and(change.set.only(VOTED)));
        }
        let all = self.flags.iter().fold(HealthFlags::default(), |all, flags| all.and(flags.get()));
        let mut clear = VOTED.without(all);
        if !all.has(HealthFlags::FAILED_ACTIVE_HC) {
            clear = clear.and(HealthFlags::EXCLUDED_VIA_IMMEDIATE_HC_FAIL);
        }
        self.health.change(all, clear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: HealthFlags = HealthFlags::NONE;
    const FAILED: HealthFlags = HealthFlags::FAILED_ACTIVE_HC;
    const PENDING: HealthFlags = HealthFlags::PENDING_ACTIVE_HC;
    const DEGRADED: HealthFlags = HealthFlags::DEGRADED_ACTIVE_HC;

    fn host(flags: HealthFlags) -> Arc<HostHealth> {
        let health = Arc::new(HostHealth::default());
        health.change(flags, NONE);
        health
    }

    #[test]
    fn a_host_is_well_when_all_checks_say_so() {
        let health = host(FAILED.and(PENDING));
        let votes = Votes::new(&health, 2);
        let check = |of: usize, set: HealthFlags, clear: HealthFlags, news: bool, expected: HealthFlags| {
            assert_eq!(votes.cast(of, &Change::of(set, clear)), news, "{of} {set:?} {clear:?}");
            assert_eq!(health.flags(), expected);
        };
        let passed = FAILED.and(PENDING);
        check(0, NONE, passed, false, passed);
        check(1, NONE, passed, true, NONE);
        check(1, FAILED, PENDING, true, FAILED);
        check(0, DEGRADED, passed, true, FAILED.and(DEGRADED));
        check(0, FAILED, NONE, false, FAILED.and(DEGRADED));
        check(1, NONE, FAILED, false, FAILED.and(DEGRADED));
        check(0, NONE, FAILED.and(DEGRADED), true, NONE);
    }

    #[test]
    fn a_host_that_asked_to_be_left_out_has_to_pass_every_check_again() {
        let health = host(NONE);
        let votes = Votes::new(&health, 2);
        assert!(health.fail_at_once());
        for check in [0, 1] {
            votes.note_exclusion();
            assert!(votes.of(check).has(FAILED));
            assert_eq!(votes.cast(check, &Change::of(NONE, FAILED)), check == 1);
        }
        assert_eq!(health.flags(), NONE);
        votes.note_exclusion();
        assert!(health.fail_at_once());
        votes.note_exclusion();
        assert!(votes.of(0).has(FAILED), "and again");
    }
}
