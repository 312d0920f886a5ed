//! Outlier detection: ejects hosts for their failures, as Envoy does.
//!
//! Workers count ([`OutlierDetector::report`]): consecutive failures in atomics that all workers share, so that a
//! threshold holds exactly however requests are spread; rates in per-worker tallies. The worker that counts the failure
//! that reaches a threshold ejects the host immediately, under a lock that otherwise only the control thread takes, to
//! evaluate rates and ejection times ([`OutlierDetector::tick`]). The current time is always passed as an argument.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_runtime_config::outlier_detection::{OutlierDetection, Threshold};
use evenkeel_stats::Writer;
use tokio::time::Instant;

use super::host::{HealthFlags, HostHealth, InARow, Tally, Volume};
use crate::random::Random;

evenkeel_stats::layout! {
    /// `cluster.NAME.outlier_detection.`
    pub mod outlier_stats {
        counters {
            ejections_consecutive_5xx, ejections_detected_consecutive_5xx,
            ejections_detected_consecutive_gateway_failure, ejections_detected_consecutive_local_origin_failure,
            ejections_detected_failure_percentage, ejections_detected_local_origin_failure_percentage,
            ejections_detected_local_origin_success_rate, ejections_detected_success_rate,
            ejections_enforced_consecutive_5xx, ejections_enforced_consecutive_gateway_failure,
            ejections_enforced_consecutive_local_origin_failure, ejections_enforced_failure_percentage,
            ejections_enforced_local_origin_failure_percentage, ejections_enforced_local_origin_success_rate,
            ejections_enforced_success_rate, ejections_enforced_total, ejections_overflow, ejections_success_rate,
            ejections_total,
        }
        gauges { ejections_active }
        histograms {}
        statuses None
    }
}

use outlier_stats::{Counter, Gauge};

/// The outcome of a request, as outlier detection sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The host responded with this status; for gRPC, with the HTTP status that its `grpc-status` corresponds to.
    Answered(u16),
    /// Connecting failed, or the connection ended before a response.
    ConnectFailed,
    /// A connection was made. Counts only with `split_external_local_origin_errors`.
    Connected,
    /// A connection was made, and no further outcome will follow (TCP proxying).
    ConnectedFinally,
    /// No response in time.
    TimedOut,
}

/// Ejects the hosts of one cluster.
#[derive(Debug)]
pub struct OutlierDetector(Mutex<State>);

#[derive(Debug)]
struct State {
    config: Arc<OutlierDetection>,
    members: Vec<Member>,
    stats: Writer<outlier_stats::Stats>,
    random: Random,
}

/// A host and the state of its ejections.
#[derive(Debug)]
struct Member {
    host: Arc<HostHealth>,
    /// When it was ejected; `None` while it is not.
    ejected: Option<Instant>,
    /// The next ejection lasts this many times the base time.
    multiplier: u32,
    /// Added to the current ejection's time.
    jitter: Duration,
    /// Counts at the beginning of the interval: external (responses) and local origin.
    seen: (Volume, Volume),
}

/// Why a host is ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Consecutive5xx,
    ConsecutiveGatewayFailure,
    ConsecutiveLocalOriginFailure,
    SuccessRate,
    SuccessRateLocalOrigin,
    FailurePercentage,
    FailurePercentageLocalOrigin,
}

/// The origin of the errors evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    External,
    Local,
}

/// Counts an outcome; true when a host was ejected for it, so that the host sets of all workers are out of date.
pub(crate) fn report(
    detector: &OutlierDetector,
    config: &OutlierDetection,
    (host, tally): (&Arc<HostHealth>, &Tally),
    outcome: Outcome,
    now: Instant,
) -> bool {
    if config.split_local_origin {
        match outcome {
            Outcome::Answered(status) => answered(detector, config, (host, tally), config.counted_status(status), now),
            Outcome::Connected | Outcome::ConnectedFinally => {
                tally.local(true);
                host.end_row(InARow::LocalOrigin);
                false
            }
            Outcome::ConnectFailed | Outcome::TimedOut => {
                tally.local(false);
                let row = (InARow::LocalOrigin, config.consecutive_local_origin_failure);
                reached(host, row) && detector.eject(host, Reason::ConsecutiveLocalOriginFailure, now)
            }
        }
    } else {
        let status = match outcome {
            Outcome::Answered(status) => config.counted_status(status),
            Outcome::ConnectFailed => 503,
            Outcome::TimedOut => 504,
            Outcome::ConnectedFinally => 200,
            Outcome::Connected => return false,
        };
        answered(detector, config, (host, tally), status, now)
    }
}

fn answered(
    detector: &OutlierDetector,
    config: &OutlierDetection,
    (host, tally): (&Arc<HostHealth>, &Tally),
    status: u16,
    now: Instant,
) -> bool {
    let failed = (500..600).contains(&status);
    tally.external(!failed);
    if !failed {
        host.end_row(InARow::Any5xx);
        host.end_row(InARow::Gateway);
        return false;
    }
    let mut ejected = false;
    if matches!(status, 502..=504) {
        let row = (InARow::Gateway, config.consecutive_gateway_failure);
        ejected |= reached(host, row) && detector.eject(host, Reason::ConsecutiveGatewayFailure, now);
    } else {
        host.end_row(InARow::Gateway);
    }
    let row = (InARow::Any5xx, config.consecutive_5xx);
    ejected | (reached(host, row) && detector.eject(host, Reason::Consecutive5xx, now))
}

/// Of the failures counted at the same time on several workers, exactly one reaches the threshold.
fn reached(host: &HostHealth, (row, threshold): (InARow, Threshold)) -> bool {
    host.again(row) == threshold.count
}

impl OutlierDetector {
    /// A detector without hosts.
    pub(super) fn new(config: Arc<OutlierDetection>, stats: Writer<outlier_stats::Stats>, random: Random) -> Self {
        Self(Mutex::new(State { config, members: Vec::new(), stats, random }))
    }

    /// Sets the cluster's current configuration and hosts. Ejected hosts that remain stay ejected.
    pub(super) fn update(&self, config: &Arc<OutlierDetection>, hosts: impl Iterator<Item = Arc<HostHealth>>) {
        let mut state = self.state();
        state.config = config.clone();
        let mut before = std::mem::take(&mut state.members);
        state.members = hosts
            .map(|host| match before.iter().position(|member| Arc::ptr_eq(&member.host, &host)) {
                Some(at) => before.swap_remove(at),
                None => Member { seen: host.volumes(), host, ejected: None, multiplier: 0, jitter: Duration::ZERO },
            })
            .collect();
        state.publish();
    }

    /// Called when outlier detection was removed from the configuration: ends all ejections.
    pub(super) fn release_all(&self) -> bool {
        let mut state = self.state();
        let mut changed = false;
        for member in std::mem::take(&mut state.members) {
            changed |= member.host.change(HealthFlags::default(), HealthFlags::FAILED_OUTLIER_CHECK);
        }
        state.publish();
        changed
    }

    /// The interval between calls of [`OutlierDetector::tick`].
    pub(super) fn interval(&self) -> Duration {
        self.state().config.interval
    }

    /// Ends ejections whose time is over, then evaluates the rates of the past interval. True when any host's health changed.
    pub(super) fn tick(&self, now: Instant) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let mut changed = false;
        for member in &mut state.members {
            changed |= member.forgive(&state.config, now);
        }
        let rates: Vec<(Volume, Volume)> = state.members.iter_mut().map(Member::interval).collect();
        let external: Vec<Volume> = rates.iter().map(|(external, _)| *external).collect();
        changed |= state.compare(Origin::External, &external, now);
        if state.config.split_local_origin {
            let local: Vec<Volume> = rates.iter().map(|(_, local)| *local).collect();
            changed |= state.compare(Origin::Local, &local, now);
        }
        state.publish();
        changed
    }

    /// A host that passes an active health check is unejected, unless configured otherwise.
    pub(super) fn passed_health_check(&self, host: &Arc<HostHealth>, now: Instant) -> bool {
        let mut state = self.state();
        if !state.config.successful_health_check_unejects {
            return false;
        }
        let member = state.members.iter_mut().find(|member| Arc::ptr_eq(&member.host, host));
        let changed = member.is_some_and(|member| member.ejected.is_some() && member.end_ejection(now));
        state.publish();
        changed
    }

    /// When the host was ejected, if it is.
    pub(crate) fn ejected(&self, host: &Arc<HostHealth>) -> Option<Instant> {
        self.state().members.iter().find(|member| Arc::ptr_eq(&member.host, host))?.ejected
    }

    fn eject(&self, host: &Arc<HostHealth>, reason: Reason, now: Instant) -> bool {
        let mut state = self.state();
        let Some(index) = state.members.iter().position(|member| Arc::ptr_eq(&member.host, host)) else {
            return false;
        };
        if state.members[index].ejected.is_some() {
            return false;
        }
        if reason == Reason::Consecutive5xx {
            state.stats.inc(Counter::ejections_consecutive_5xx);
        }
        let ejected = state.eject(index, reason, now);
        host.end_row(reason.row());
        state.publish();
        ejected
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn ejected(&self) -> usize {
        self.members.iter().filter(|member| member.ejected.is_some()).count()
    }

    fn publish(&self) {
        self.stats.set(Gauge::ejections_active, self.ejected() as i64);
    }

    /// Ejects a host if `max_ejection_percent` allows it, with the probability of the `enforcing_*` setting.
    fn eject(&mut self, index: usize, reason: Reason, now: Instant) -> bool {
        self.stats.inc(reason.detected());
        let active = self.ejected();
        let within_limit = (active + 1) * 100 <= self.config.max_ejection_percent as usize * self.members.len();
        let may_eject = within_limit || (self.config.always_eject_one_host && active == 0);
        if !may_eject {
            self.stats.inc(Counter::ejections_overflow);
            return false;
        }
        if matches!(reason, Reason::Consecutive5xx | Reason::SuccessRate) {
            self.stats.inc(Counter::ejections_total);
        }
        if self.random.below(100) as u32 >= reason.enforcing_percent(&self.config) {
            return false;
        }
        self.stats.inc(Counter::ejections_enforced_total);
        self.stats.inc(reason.enforced());
        let jitter = u64::try_from(self.config.max_ejection_time_jitter.as_millis()).unwrap_or(u64::MAX);
        let jitter = self.random.below(usize::try_from(jitter).unwrap_or(usize::MAX).saturating_add(1)) as u64;
        let member = &mut self.members[index];
        member.ejected = Some(now);
        member.jitter = Duration::from_millis(jitter);
        let (base, longest) = (self.config.base_ejection_time, self.config.max_ejection_time);
        if base.saturating_mul(member.multiplier) < longest.saturating_add(base) {
            member.multiplier += 1;
        }
        member.host.change(HealthFlags::FAILED_OUTLIER_CHECK, HealthFlags::default())
    }

    /// Ejects by success rate and failure percentage; `volumes` are the counts of the interval, one per member.
    fn compare(&mut self, origin: Origin, volumes: &[Volume], now: Instant) -> bool {
        let rate = |volume: &Volume| 100.0 * volume.success as f64 / volume.total as f64;
        let enough = |least: u64| -> Vec<(usize, f64)> {
            let counted = volumes.iter().enumerate().zip(&self.members);
            let candidates = counted
                .filter(|((_, volume), member)| member.ejected.is_none() && volume.total > 0 && volume.total >= least);
            candidates.map(|((index, volume), _)| (index, rate(volume))).collect()
        };
        let (success, failure) = (self.config.success_rate, self.config.failure_percentage);
        let (for_success, for_failure) = (enough(success.request_volume), enough(failure.request_volume));
        let mut changed = false;
        if !for_success.is_empty() && for_success.len() >= success.minimum_hosts as usize {
            let limit = ejection_rate(&for_success, f64::from(success.stdev_factor_thousandths) / 1000.0);
            for (index, rate) in for_success {
                if rate < limit {
                    if origin == Origin::External {
                        self.stats.inc(Counter::ejections_success_rate);
                    }
                    let reason = match origin {
                        Origin::External => Reason::SuccessRate,
                        Origin::Local => Reason::SuccessRateLocalOrigin,
                    };
                    changed |= self.eject(index, reason, now);
                }
            }
        }
        if !for_failure.is_empty() && for_failure.len() >= failure.minimum_hosts as usize {
            for (index, rate) in for_failure {
                if 100.0 - rate >= f64::from(failure.threshold) && self.members[index].ejected.is_none() {
                    let reason = match origin {
                        Origin::External => Reason::FailurePercentage,
                        Origin::Local => Reason::FailurePercentageLocalOrigin,
                    };
                    changed |= self.eject(index, reason, now);
                }
            }
        }
        changed
    }
}

/// The success rate below which a host is an outlier: the mean minus `factor` standard deviations.
fn ejection_rate(rates: &[(usize, f64)], factor: f64) -> f64 {
    let count = rates.len() as f64;
    let mean = rates.iter().map(|(_, rate)| rate).sum::<f64>() / count;
    let variance = rates.iter().map(|(_, rate)| (rate - mean).powi(2)).sum::<f64>() / count;
    mean - factor * variance.sqrt()
}

impl Member {
    /// Ends the ejection when its time is over; for each interval without ejection, shortens the next one.
    fn forgive(&mut self, config: &OutlierDetection, now: Instant) -> bool {
        let Some(since) = self.ejected else {
            self.multiplier = self.multiplier.saturating_sub(1);
            return false;
        };
        let time = config.base_ejection_time.saturating_mul(self.multiplier).min(config.max_ejection_time);
        now.duration_since(since) >= time.saturating_add(self.jitter) && self.end_ejection(now)
    }

    fn end_ejection(&mut self, _now: Instant) -> bool {
        self.ejected = None;
        for row in [InARow::Any5xx, InARow::Gateway, InARow::LocalOrigin] {
            self.host.end_row(row);
        }
        self.host.change(HealthFlags::default(), HealthFlags::FAILED_OUTLIER_CHECK)
    }

    /// Counts since the last call.
    fn interval(&mut self) -> (Volume, Volume) {
        let now = self.host.volumes();
        let before = std::mem::replace(&mut self.seen, now);
        // A worker that drops the host takes its counts along, so they can decrease.
        let since = |now: Volume, before: Volume| Volume {
            total: now.total.saturating_sub(before.total),
            success: now.success.saturating_sub(before.success).min(now.total.saturating_sub(before.total)),
        };
        (since(now.0, before.0), since(now.1, before.1))
    }
}

impl Reason {
    fn row(self) -> InARow {
        match self {
            Self::ConsecutiveGatewayFailure => InARow::Gateway,
            Self::ConsecutiveLocalOriginFailure => InARow::LocalOrigin,
            _ => InARow::Any5xx,
        }
    }

    fn enforcing_percent(self, config: &OutlierDetection) -> u32 {
        match self {
            Self::Consecutive5xx => config.consecutive_5xx.enforcing_percent,
            Self::ConsecutiveGatewayFailure => config.consecutive_gateway_failure.enforcing_percent,
            Self::ConsecutiveLocalOriginFailure => config.consecutive_local_origin_failure.enforcing_percent,
            Self::SuccessRate => config.success_rate.enforcing_percent,
            Self::SuccessRateLocalOrigin => config.success_rate.enforcing_local_origin_percent,
            Self::FailurePercentage => config.failure_percentage.enforcing_percent,
            Self::FailurePercentageLocalOrigin => config.failure_percentage.enforcing_local_origin_percent,
        }
    }

    fn detected(self) -> Counter {
        match self {
            Self::Consecutive5xx => Counter::ejections_detected_consecutive_5xx,
            Self::ConsecutiveGatewayFailure => Counter::ejections_detected_consecutive_gateway_failure,
            Self::ConsecutiveLocalOriginFailure => Counter::ejections_detected_consecutive_local_origin_failure,
            Self::SuccessRate => Counter::ejections_detected_success_rate,
            Self::SuccessRateLocalOrigin => Counter::ejections_detected_local_origin_success_rate,
            Self::FailurePercentage => Counter::ejections_detected_failure_percentage,
            Self::FailurePercentageLocalOrigin => Counter::ejections_detected_local_origin_failure_percentage,
        }
    }

    fn enforced(self) -> Counter {
        match self {
            Self::Consecutive5xx => Counter::ejections_enforced_consecutive_5xx,
            Self::ConsecutiveGatewayFailure => Counter::ejections_enforced_consecutive_gateway_failure,
            Self::ConsecutiveLocalOriginFailure => Counter::ejections_enforced_consecutive_local_origin_failure,
            Self::SuccessRate => Counter::ejections_enforced_success_rate,
            Self::SuccessRateLocalOrigin => Counter::ejections_enforced_local_origin_success_rate,
            Self::FailurePercentage => Counter::ejections_enforced_failure_percentage,
            Self::FailurePercentageLocalOrigin => Counter::ejections_enforced_local_origin_failure_percentage,
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_runtime_config::outlier_detection::{FailurePercentage, SuccessRate};
    use evenkeel_stats::Scope;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Fixture {
        config: Arc<OutlierDetection>,
        detector: OutlierDetector,
        hosts: Vec<(Arc<HostHealth>, Arc<Tally>)>,
        stats: Scope<outlier_stats::Stats>,
        now: Instant,
    }

    impl Fixture {
        fn new(hosts: usize, config: OutlierDetection) -> Self {
            let stats = Scope::detached();
            let config = Arc::new(config);
            let detector = OutlierDetector::new(config.clone(), stats.writer(), Random::seeded(7));
            let hosts: Vec<_> = (0..hosts)
                .map(|_| {
                    let host = Arc::<HostHealth>::default();
                    let tally = host.tally();
                    (host, tally)
                })
                .collect();
            detector.update(&config, hosts.iter().map(|(host, _)| host.clone()));
            Self { config, detector, hosts, stats, now: Instant::now() }
        }

        fn report(&self, host: usize, outcome: Outcome, times: usize) -> bool {
            let (host, tally) = &self.hosts[host];
            (0..times)
                .fold(false, |any, _| any | report(&self.detector, &self.config, (host, tally), outcome, self.now))
        }

        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.now += self.config.interval.min(end - self.now);
                self.detector.tick(self.now);
            }
        }

        fn ejected(&self) -> Vec<usize> {
            let out =
                |(_, (host, _)): &(usize, &(Arc<HostHealth>, _))| host.flags().has(HealthFlags::FAILED_OUTLIER_CHECK);
            self.hosts.iter().enumerate().filter(out).map(|(index, _)| index).collect()
        }
    }

    fn all_may_go() -> OutlierDetection {
        OutlierDetection { max_ejection_percent: 100, ..OutlierDetection::default() }
    }

    #[test]
    fn the_configured_statuses_count_instead_of_5xx() {
        let config = OutlierDetection { error_statuses: Some([404, 429].into()), ..all_may_go() };
        let f = Fixture::new(3, config);
        assert!(!f.report(0, Outcome::Answered(503), 10), "5xx does not count");
        assert!(f.report(0, Outcome::Answered(429), 5));
        assert!(!f.report(1, Outcome::Answered(404), 4));
        f.report(1, Outcome::Answered(200), 1);
        assert!(!f.report(1, Outcome::Answered(404), 4), "the row had ended");
        assert!(f.report(2, Outcome::ConnectFailed, 5), "connections that fail count as before");
    }

    #[test]
    fn failures_in_a_row_eject_and_time_brings_back() {
        let mut f = Fixture::new(3, all_may_go());
        assert!(!f.report(0, Outcome::Answered(500), 4));
        f.report(0, Outcome::Answered(200), 1);
        assert!(!f.report(0, Outcome::Answered(503), 4), "the row had ended");
        assert!(f.report(0, Outcome::TimedOut, 1), "the fifth");
        assert_eq!(f.ejected(), [0]);
        assert_eq!(f.stats.gauge(Gauge::ejections_active), 1);
        assert_eq!(f.stats.counter(Counter::ejections_enforced_consecutive_5xx), 1);
        assert_eq!(f.stats.counter(Counter::ejections_detected_consecutive_gateway_failure), 1);
        f.pass(29 * SECOND);
        assert_eq!(f.ejected(), [0]);
        f.pass(SECOND);
        assert_eq!(f.ejected(), [0; 0]);
        assert_eq!(f.stats.gauge(Gauge::ejections_active), 0);
    }

    #[test]
    fn each_ejection_lasts_longer_up_to_the_limit_and_good_time_shortens_the_next() {
        let config = OutlierDetection {
            base_ejection_time: 30 * SECOND,
            max_ejection_time: 70 * SECOND,
            interval: SECOND,
            ..all_may_go()
        };
        let mut f = Fixture::new(2, config);
        let mut lasted = Vec::new();
        for _ in 0..4 {
            f.report(0, Outcome::ConnectFailed, 5);
            let since = f.now;
            while !f.ejected().is_empty() {
                f.pass(SECOND);
            }
            lasted.push((f.now - since).as_secs());
        }
        assert_eq!(lasted, [30, 60, 70, 70]);
        f.pass(10 * SECOND);
        f.report(0, Outcome::ConnectFailed, 5);
        f.pass(30 * SECOND);
        assert_eq!(f.ejected(), [0; 0], "ten good intervals: as if it were the first time");
    }

    #[test]
    fn no_more_hosts_are_ejected_than_may_be() {
        for (hosts, percent, always_one, expected) in [
            (4, 50, false, vec![0, 1]),
            (4, 10, false, vec![]),
            (4, 10, true, vec![0]),
            (4, 100, false, vec![0, 1, 2, 3]),
        ] {
            let config = OutlierDetection {
                max_ejection_percent: percent,
                always_eject_one_host: always_one,
                ..OutlierDetection::default()
            };
            let f = Fixture::new(hosts, config);
            (0..hosts).for_each(|host| _ = f.report(host, Outcome::Answered(500), 5));
            assert_eq!(f.ejected(), expected, "{percent} % of {hosts}");
            let overflow = f.stats.counter(Counter::ejections_overflow);
            assert_eq!(overflow, (hosts - expected.len()) as u64);
        }
    }

    #[test]
    fn gateway_failures_and_local_origin_have_rows_of_their_own() {
        let gateway = OutlierDetection {
            consecutive_5xx: Threshold { count: 0, enforcing_percent: 100 },
            consecutive_gateway_failure: Threshold { count: 3, enforcing_percent: 100 },
            ..all_may_go()
        };
        let f = Fixture::new(1, gateway);
        f.report(0, Outcome::Answered(502), 2);
        f.report(0, Outcome::Answered(500), 1);
        assert!(!f.report(0, Outcome::Answered(503), 2), "a 500 is no gateway failure: the row ended");
        assert!(f.report(0, Outcome::Answered(504), 1));

        let split = OutlierDetection { split_local_origin: true, ..all_may_go() };
        let f = Fixture::new(2, split);
        f.report(0, Outcome::ConnectFailed, 4);
        f.report(0, Outcome::Answered(500), 4);
        assert_eq!(f.ejected(), [0; 0], "each row is one short");
        f.report(0, Outcome::Connected, 1);
        assert!(!f.report(0, Outcome::TimedOut, 4));
        assert!(f.report(0, Outcome::ConnectFailed, 1));
        assert_eq!(f.stats.counter(Counter::ejections_enforced_consecutive_local_origin_failure), 1);
        assert_eq!(f.stats.counter(Counter::ejections_detected_consecutive_5xx), 0);
    }

    #[test]
    fn rates_of_an_interval_find_outliers() {
        let config = OutlierDetection {
            consecutive_5xx: Threshold { count: 0, enforcing_percent: 0 },
            success_rate: SuccessRate { stdev_factor_thousandths: 1900, ..OutlierDetection::default().success_rate },
            ..all_may_go()
        };
        let mut f = Fixture::new(6, config.clone());
        for host in 0..6 {
            // Responses are interleaved, so that consecutive failures do not matter.
            let good = if host == 3 { 60 } else { 99 };
            f.report(host, Outcome::Answered(500), 100 - good);
            f.report(host, Outcome::Answered(200), good);
        }
        f.pass(10 * SECOND);
        assert_eq!(f.ejected(), [3]);
        assert_eq!(f.stats.counter(Counter::ejections_enforced_success_rate), 1);

        let by_percentage = OutlierDetection {
            success_rate: SuccessRate { enforcing_percent: 0, ..config.success_rate },
            failure_percentage: FailurePercentage {
                threshold: 40,
                minimum_hosts: 2,
                request_volume: 50,
                enforcing_percent: 100,
                enforcing_local_origin_percent: 0,
            },
            ..config
        };
        let mut f = Fixture::new(2, by_percentage);
        f.report(0, Outcome::Answered(500), 40);
        f.report(0, Outcome::Answered(200), 60);
        f.report(1, Outcome::Answered(200), 49);
        f.pass(10 * SECOND);
        assert_eq!(f.ejected(), [0; 0], "one host has too few requests to compare");
        f.report(0, Outcome::Answered(500), 40);
        f.report(0, Outcome::Answered(200), 60);
        f.report(1, Outcome::Answered(200), 50);
        f.pass(10 * SECOND);
        assert_eq!(f.ejected(), [0]);
        assert_eq!(f.stats.counter(Counter::ejections_enforced_failure_percentage), 1);
    }

    #[test]
    fn chance_and_health_checks_may_spare_a_host() {
        let lenient =
            OutlierDetection { consecutive_5xx: Threshold { count: 5, enforcing_percent: 0 }, ..all_may_go() };
        let f = Fixture::new(1, lenient);
        assert!(!f.report(0, Outcome::Answered(500), 50));
        assert!(f.stats.counter(Counter::ejections_detected_consecutive_5xx) >= 1);
        assert_eq!(f.stats.counter(Counter::ejections_enforced_total), 0);

        let f = Fixture::new(1, all_may_go());
        assert!(f.report(0, Outcome::Answered(500), 5));
        assert!(f.detector.passed_health_check(&f.hosts[0].0, f.now));
        assert_eq!(f.ejected(), [0; 0]);
    }

    #[test]
    fn a_threshold_holds_over_threads_exactly() {
        let f = Fixture::new(
            1,
            OutlierDetection { consecutive_5xx: Threshold { count: 1000, enforcing_percent: 100 }, ..all_may_go() },
        );
        let (host, config, detector, now) = (&f.hosts[0].0, &f.config, &f.detector, f.now);
        let ejections: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        let tally = host.tally();
                        let once = |_| report(detector, config, (host, &tally), Outcome::Answered(500), now);
                        (0..250).map(once).filter(|ejected| *ejected).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(ejections, 1, "the thousandth, whichever thread counted it");
        assert_eq!(f.ejected(), [0]);
    }

    #[test]
    fn hosts_that_stay_keep_their_ejection() {
        let f = Fixture::new(3, all_may_go());
        f.report(1, Outcome::Answered(500), 5);
        f.detector.update(&f.config, f.hosts.iter().skip(1).map(|(host, _)| host.clone()));
        assert_eq!((f.ejected(), f.stats.gauge(Gauge::ejections_active)), (vec![1], 1));
        assert!(f.detector.release_all());
        assert_eq!((f.ejected(), f.stats.gauge(Gauge::ejections_active)), (vec![], 0));
    }
}
