//! Weights of hosts from their load reports (Envoy's `client_side_weighted_round_robin`).

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use evenkeel_runtime_config::cluster::Utilization;
use tokio::time::Instant;

/// No report has come since the last one expired.
const NEVER: u64 = u64::MAX;

/// The reports of one host, shared by all workers.
#[derive(Debug)]
pub(crate) struct ReportedWeight {
    weight: AtomicU32,
    /// When the first of the current reports came, and the last one; in microseconds.
    since: AtomicU64,
    latest: AtomicU64,
}

impl Default for ReportedWeight {
    fn default() -> Self {
        Self { weight: AtomicU32::new(0), since: AtomicU64::new(NEVER), latest: AtomicU64::new(0) }
    }
}

/// Microseconds since the first call.
fn micros(at: Instant) -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start = *START;
    // One more than the difference, so that no time equals the value of hosts that never reported.
    u64::try_from(at.saturating_duration_since(start).as_micros()).unwrap_or(NEVER - 2) + 1
}

impl ReportedWeight {
    /// A report came.
    pub fn report(&self, weight: u32, now: Instant) {
        let now = micros(now);
        self.weight.store(weight, Ordering::Relaxed);
        self.latest.store(now, Ordering::Relaxed);
        let _ = self.since.compare_exchange(NEVER, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The weight, if the host has reported for long enough, and recently.
    fn valid(&self, settings: &Utilization, now: Instant) -> Option<u32> {
        let now = micros(now);
        let before =
            |period: std::time::Duration| u64::try_from(period.as_micros()).ok().and_then(|p| now.checked_sub(p));
        let since = self.since.load(Ordering::Relaxed);
        if before(settings.blackout).is_none_or(|latest| since > latest) {
            return None;
        }
        if before(settings.expiration).is_some_and(|earliest| self.latest.load(Ordering::Relaxed) < earliest) {
            // Its next reports are new ones.
            self.since.store(NEVER, Ordering::Relaxed);
            return None;
        }
        Some(self.weight.load(Ordering::Relaxed))
    }
}

/// The weights of the hosts of one priority. Hosts without a valid one get the median of the others.
pub(crate) fn weights<'h>(
    hosts: impl Iterator<Item = Option<&'h ReportedWeight>>,
    settings: &Utilization,
    now: Instant,
) -> Vec<u32> {
    let valid: Vec<Option<u32>> = hosts.map(|host| host.and_then(|host| host.valid(settings, now))).collect();
    let mut known: Vec<u32> = valid.iter().flatten().copied().collect();
    let median = median(&mut known);
    // A scheduler needs weights above 0.
    valid.into_iter().map(|weight| weight.unwrap_or(median).max(1)).collect()
}

/// The median, or 1 of none.
fn median(weights: &mut [u32]) -> u32 {
    let middle = weights.len() / 2;
    if weights.is_empty() {
        return 1;
    }
    let odd = weights.len() % 2 == 1;
    let (lower, upper, _) = weights.select_nth_unstable(middle);
    match lower.iter().max() {
        Some(lower) if !odd => u32::midpoint(*lower, *upper),
        _ => *upper,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn settings() -> Utilization {
        Utilization {
            blackout: 10 * SECOND,
            expiration: 60 * SECOND,
            update: SECOND,
            error_penalty: 1.0,
            metrics: vec![],
        }
    }

    #[test]
    fn a_weight_counts_after_the_blackout_until_it_expires() {
        let (host, start) = (ReportedWeight::default(), Instant::now());
        let check = |seconds: u64, expected: Option<u32>| {
            let now = start + SECOND * u32::try_from(seconds).expect("few");
            assert_eq!(host.valid(&settings(), now), expected, "after {seconds} s");
        };
        check(100, None);
        host.report(7, start + 100 * SECOND);
        check(109, None);
        check(110, Some(7));
        host.report(8, start + 120 * SECOND);
        check(120, Some(8));
        check(180, Some(8));
        check(181, None);
        // The blackout begins again.
        host.report(9, start + 190 * SECOND);
        check(199, None);
        check(200, Some(9));
    }

    #[test]
    fn hosts_without_a_weight_get_the_median() {
        let check = |reported: &[Option<u32>], expected: &[u32]| {
            let start = Instant::now();
            let hosts: Vec<_> = reported
                .iter()
                .map(|weight| {
                    let host = ReportedWeight::default();
                    weight.iter().for_each(|weight| host.report(*weight, start));
                    host
                })
                .collect();
            let seen = weights(hosts.iter().map(Some), &settings(), start + 20 * SECOND);
            assert_eq!(seen, expected, "{reported:?}");
        };
        check(&[], &[]);
        check(&[None, None], &[1, 1]);
        check(&[Some(40), Some(0), Some(7)], &[40, 1, 7]);
        check(&[Some(40), None, Some(10), Some(20)], &[40, 20, 10, 20]);
        check(&[Some(40), None, Some(10)], &[40, 25, 10]);
        check(&[Some(u32::MAX), None, Some(u32::MAX)], &[u32::MAX; 3]);
    }
}
