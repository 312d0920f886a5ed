//! The state of one health check of one host: thresholds, flags, and the next interval. No I/O and no clock.

use std::time::Duration;

use evenkeel_runtime_config::health_check::{HealthCheck, Intervals};

use super::super::host::HealthFlags;
use crate::random::Random;

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The host is healthy; if `degraded`, it asks for less traffic (`x-envoy-degraded`).
    Healthy {
        /// The response reports it as degraded.
        degraded: bool,
    },
    /// It responded, but not as a healthy host does.
    Unhealthy {
        /// The result counts towards the threshold, rather than failing the host immediately.
        retriable: bool,
    },
    /// Connecting failed, or the connection broke.
    NetworkFailure,
    /// No response in time.
    Timeout,
}

/// The effect of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Flags to set.
    pub set: HealthFlags,
    /// Flags to clear.
    pub clear: HealthFlags,
    /// The host's health changed.
    pub changed: bool,
    /// Results point to a change, but its threshold is not reached yet.
    pending: bool,
    healthy: bool,
}

/// The state of a host under one check.
#[derive(Debug)]
pub struct Session {
    failed: bool,
    first: bool,
    in_a_row: u32,
}

#[cfg(test)]
impl Change {
    /// A change of these flags.
    pub fn of(set: HealthFlags, clear: HealthFlags) -> Self {
        Self { set, clear, changed: true, pending: false, healthy: true }
    }
}

impl Session {
    /// `failed`: the host's current state; `first`: it was never checked.
    pub fn new(failed: bool, first: bool) -> Self {
        Self { failed, first, in_a_row: 0 }
    }

    /// Records that the host was marked as failed by something other than this check.
    pub fn note_failed(&mut self) {
        if !std::mem::replace(&mut self.failed, true) {
            self.in_a_row = 0;
        }
    }

    /// Applies the result of a check.
    pub fn conclude(&mut self, check: &HealthCheck, verdict: Verdict) -> Change {
        let first = std::mem::take(&mut self.first);
        let (mut set, mut clear) = (HealthFlags::default(), HealthFlags::PENDING_ACTIVE_HC);
        let healthy = matches!(verdict, Verdict::Healthy { .. });
        // Results that confirm the current state reset the count.
        self.in_a_row = if healthy == self.failed { self.in_a_row + 1 } else { 0 };
        let threshold = if healthy { check.healthy_threshold } else { check.unhealthy_threshold };
        let at_once = match verdict {
            Verdict::Healthy { .. } => first,
            Verdict::Unhealthy { retriable } => !retriable,
            Verdict::NetworkFailure | Verdict::Timeout => false,
        };
        let against = healthy == self.failed;
        let changed = against && (at_once || self.in_a_row >= threshold);
        if changed {
            self.failed = !healthy;
            self.in_a_row = 0;
        }
        match verdict {
            Verdict::Healthy { degraded: true } => set = set.and(HealthFlags::DEGRADED_ACTIVE_HC),
            Verdict::Healthy { degraded: false } => clear = clear.and(HealthFlags::DEGRADED_ACTIVE_HC),
            _ => {}
        }
        match verdict {
            Verdict::Timeout if self.failed => set = set.and(HealthFlags::ACTIVE_HC_TIMEOUT),
            // A success below the threshold does not change why the host is failed.
            Verdict::Healthy { .. } if self.failed => {}
            _ => clear = clear.and(HealthFlags::ACTIVE_HC_TIMEOUT),
        }
        if self.failed {
            set = set.and(HealthFlags::FAILED_ACTIVE_HC)
        } else {
            clear = clear.and(HealthFlags::FAILED_ACTIVE_HC).and(HealthFlags::EXCLUDED_VIA_IMMEDIATE_HC_FAIL);
        }
        Change { set, clear, changed, pending: against && !changed, healthy }
    }
}

/// The interval until the next check. `traffic`: some worker has had a connection to the cluster.
pub fn pause(intervals: &Intervals, change: &Change, traffic: bool, random: &Random) -> Duration {
    let base = match (traffic, change.healthy, change.pending) {
        (true, true, false) => intervals.interval,
        (true, true, true) => intervals.healthy_edge,
        (true, false, false) => intervals.unhealthy,
        (true, false, true) => intervals.unhealthy_edge,
        (false, true, false) => intervals.no_traffic_healthy,
        (false, _, _) => intervals.no_traffic,
    };
    let share = base.mul_f64(f64::from(intervals.jitter_percent) / 100.0);
    base + some_of(share, random) + some_of(intervals.jitter, random)
}

/// A random fraction of a duration.
pub fn some_of(limit: Duration, random: &Random) -> Duration {
    let micros = usize::try_from(limit.as_micros()).unwrap_or(usize::MAX);
    Duration::from_micros(random.below(micros) as u64)
}

#[cfg(test)]
mod tests {
    use evenkeel_runtime_config::health_check::{Probe, TcpProbe};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn check() -> HealthCheck {
        HealthCheck {
            name: "".into(),
            probe: Probe::Tcp(TcpProbe::default()),
            timeout: SECOND,
            unhealthy_threshold: 3,
            healthy_threshold: 2,
            intervals: Intervals {
                interval: SECOND,
                initial_jitter: Duration::ZERO,
                jitter: Duration::ZERO,
                jitter_percent: 0,
                unhealthy: 2 * SECOND,
                unhealthy_edge: 3 * SECOND,
                healthy_edge: 4 * SECOND,
                no_traffic: 60 * SECOND,
                no_traffic_healthy: 30 * SECOND,
            },
            alt_port: None,
            reuse_connection: true,
            transport_labels: None,
            always_log_failures: false,
            always_log_success: false,
        }
    }

    const HEALTHY: Verdict = Verdict::Healthy { degraded: false };
    const REFUSED: Verdict = Verdict::Unhealthy { retriable: false };

    /// The state after each verdict: failed, and the interval in seconds.
    fn story(verdicts: &[Verdict]) -> Vec<(bool, u64)> {
        let (check, random) = (check(), Random::seeded(1));
        let mut session = Session::new(true, true);
        verdicts
            .iter()
            .map(|verdict| {
                let change = session.conclude(&check, *verdict);
                (
                    change.set.has(HealthFlags::FAILED_ACTIVE_HC),
                    pause(&check.intervals, &change, true, &random).as_secs(),
                )
            })
            .collect()
    }

    #[test]
    fn thresholds_hold_except_for_the_first_success_and_plain_refusals() {
        use Verdict::{NetworkFailure, Timeout};
        assert_eq!(story(&[HEALTHY]), [(false, 1)], "the first success is enough");
        assert_eq!(
            story(&[NetworkFailure, HEALTHY, HEALTHY]),
            [(true, 2), (true, 4), (false, 1)],
            "not the first check any more"
        );
        assert_eq!(
            story(&[HEALTHY, NetworkFailure, Timeout, HEALTHY, NetworkFailure, Timeout, NetworkFailure]),
            [(false, 1), (false, 3), (false, 3), (false, 1), (false, 3), (false, 3), (true, 2)],
            "three in a row"
        );
        assert_eq!(story(&[HEALTHY, REFUSED]), [(false, 1), (true, 2)], "at once");
        let retriable = Verdict::Unhealthy { retriable: true };
        assert_eq!(story(&[HEALTHY, retriable, retriable, retriable]), [(false, 1), (false, 3), (false, 3), (true, 2)]);
    }

    #[test]
    fn flags_say_degraded_timed_out_and_no_longer_pending() {
        let check = check();
        let mut session = Session::new(true, true);
        let change = session.conclude(&check, Verdict::Healthy { degraded: true });
        assert!(change.set.has(HealthFlags::DEGRADED_ACTIVE_HC) && change.changed);
        assert!(change.clear.has(HealthFlags::PENDING_ACTIVE_HC));
        let change = session.conclude(&check, Verdict::Timeout);
        assert!(!change.set.has(HealthFlags::ACTIVE_HC_TIMEOUT) && !change.changed, "it is not out yet");
        assert!(!change.clear.has(HealthFlags::DEGRADED_ACTIVE_HC), "a failure says nothing of it");
        session.conclude(&check, Verdict::Timeout);
        let change = session.conclude(&check, Verdict::Timeout);
        assert!(change.set.has(HealthFlags::ACTIVE_HC_TIMEOUT) && change.changed);
        let change = session.conclude(&check, HEALTHY);
        let said = [change.set, change.clear].map(|flags| flags.has(HealthFlags::ACTIVE_HC_TIMEOUT));
        assert_eq!(said, [false; 2], "it is out still, and for the same reason");
        let change = session.conclude(&check, HEALTHY);
        assert!(change.clear.has(HealthFlags::DEGRADED_ACTIVE_HC) && change.clear.has(HealthFlags::ACTIVE_HC_TIMEOUT));
    }

    #[test]
    fn clusters_without_traffic_are_checked_rarely_and_jitter_only_adds() {
        let mut check = check();
        let random = Random::seeded(5);
        let mut session = Session::new(true, true);
        let change = session.conclude(&check, HEALTHY);
        assert_eq!(pause(&check.intervals, &change, false, &random), 30 * SECOND);
        let pending = session.conclude(&check, Verdict::Timeout);
        assert_eq!(pause(&check.intervals, &pending, false, &random), 60 * SECOND);
        (check.intervals.jitter, check.intervals.jitter_percent) = (SECOND, 50);
        let mut pauses: Vec<_> = (0..100).map(|_| pause(&check.intervals, &change, true, &random)).collect();
        pauses.sort();
        assert!(pauses[0] >= SECOND && pauses[99] < 5 * SECOND / 2 && pauses[0] < pauses[99], "{pauses:?}");
    }
}
