//! Traffic over time: totals, and a memory of it that is bounded.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_admin::dashboard::{History, Traffic};

/// Seconds of the window of rates and of quantiles.
pub(crate) const WINDOW_S: u64 = 10;
/// Points of one second.
const FINE_POINTS: usize = 600;
/// Seconds of a coarse point.
const COARSE_S: u64 = 10;
/// Coarse points: an hour.
const COARSE_POINTS: usize = 360;

/// Counters since some start.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) client_errors: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) connections: u64,
    /// Requests by the upper bound of their duration in milliseconds, as bits: positive numbers have the order of their bits.
    pub(crate) durations: BTreeMap<u64, u64>,
}

impl Totals {
    /// Adds counters.
    pub(crate) fn add(&mut self, other: &Self) {
        for ((_, mine), (_, others)) in self.counters_mut().into_iter().zip(other.counters()) {
            *mine += others;
        }
        for (bound, count) in &other.durations {
            *self.durations.entry(*bound).or_default() += count;
        }
    }

    /// What came after `earlier`. A counter that became smaller began anew, or lost a series: it counts as unchanged.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut result = self.clone();
        for ((_, mine), (_, others)) in result.counters_mut().into_iter().zip(earlier.counters()) {
            *mine = mine.saturating_sub(others);
        }
        for (bound, count) in &mut result.durations {
            *count = count.saturating_sub(earlier.durations.get(bound).copied().unwrap_or_default());
        }
        result.durations.retain(|_, count| *count > 0);
        result
    }

    /// Whether anything was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.counters().iter().all(|(_, value)| *value == 0)
    }

    fn counters(&self) -> [(&'static str, u64); 6] {
        [
            ("requests", self.requests),
            ("errors", self.errors),
            ("client_errors", self.client_errors),
            ("bytes_received", self.bytes_received),
            ("bytes_sent", self.bytes_sent),
            ("connections", self.connections),
        ]
    }

    fn counters_mut(&mut self) -> [(&'static str, &mut u64); 6] {
        [
            ("requests", &mut self.requests),
            ("errors", &mut self.errors),
            ("client_errors", &mut self.client_errors),
            ("bytes_received", &mut self.bytes_received),
            ("bytes_sent", &mut self.bytes_sent),
            ("connections", &mut self.connections),
        ]
    }

    /// A quantile of the durations in milliseconds, interpolated within its bucket as `histogram_quantile` does.
    fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.durations.values().sum();
        let rank = share * all as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (bound, count) in self.durations.iter().filter(|(_, count)| **count > 0) {
            let (upper, count) = (f64::from_bits(*bound), *count as f64);
            if below + count >= rank {
                let within = lower + (upper - lower) * (rank - below) / count;
                return Some(if upper.is_finite() { within } else { lower });
            }
            (below, lower) = (below + count, upper);
        }
        None
    }

    /// As rates over so many seconds.
    pub(crate) fn traffic(&self, seconds: f64) -> Traffic {
        if seconds <= 0.0 {
            return Traffic::default();
        }
        let share = |part: u64| if self.requests > 0 { part as f64 / self.requests as f64 } else { 0.0 };
        Traffic {
            requests: self.requests as f64 / seconds,
            error_share: share(self.errors),
            client_error_share: share(self.client_errors),
            p50_ms: self.quantile(0.5),
            p95_ms: self.quantile(0.95),
            p99_ms: self.quantile(0.99),
            bytes_received: self.bytes_received as f64 / seconds,
            bytes_sent: self.bytes_sent as f64 / seconds,
            connections: self.connections as f64 / seconds,
        }
    }
}

/// When proxies were read: at this second, for the time since the previous reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tick {
    /// Seconds since 1970.
    pub(crate) second: u64,
    /// Seconds since the previous reading; 0: there was none shortly before.
    pub(crate) elapsed: f64,
}

/// A point of a series: the rates in a tick, in 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    second: u64,
    requests: f32,
    errors: f32,
    /// Not a number if there was no request, as the other quantiles.
    p50_ms: f32,
    p95_ms: f32,
    p99_ms: f32,
    bytes: f32,
}

impl Point {
    fn new(second: u64, traffic: &Traffic) -> Self {
        let quantile = |quantile: Option<f64>| quantile.map_or(f32::NAN, |ms| ms as f32);
        Self {
            second,
            requests: traffic.requests as f32,
            errors: (traffic.requests * traffic.error_share) as f32,
            p50_ms: quantile(traffic.p50_ms),
            p95_ms: quantile(traffic.p95_ms),
            p99_ms: quantile(traffic.p99_ms),
            bytes: (traffic.bytes_received + traffic.bytes_sent) as f32,
        }
    }
}

/// The traffic of an edge or a workload over the last hour. Seconds without traffic take no memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series {
    /// Everything that was counted, also before the dashboard looked.
    pub(crate) totals: Totals,
    /// What was counted in the ticks of the window.
    recent: VecDeque<(u64, Totals)>,
    fine: VecDeque<Point>,
    coarse: VecDeque<Point>,
    /// What was counted in the present coarse point.
    gathering: Totals,
}

impl Series {
    /// Adds what was counted in a tick.
    pub(crate) fn add(&mut self, tick: Tick, counted: &Totals) {
        self.recent.push_back((tick.second, counted.clone()));
        push_bounded(&mut self.fine, Point::new(tick.second, &counted.traffic(tick.elapsed)), FINE_POINTS);
        self.gathering.add(counted);
    }

    /// Ends the coarse point that ended at this second, in which proxies were read for so long.
    pub(crate) fn end_coarse(&mut self, second: u64, elapsed: f64) {
        let gathered = std::mem::take(&mut self.gathering);
        if !gathered.is_empty() {
            push_bounded(&mut self.coarse, Point::new(second, &gathered.traffic(elapsed)), COARSE_POINTS);
        }
    }

    /// Forgets ticks that are older than the window.
    pub(crate) fn expire(&mut self, now: u64) {
        while self.recent.front().is_some_and(|(second, _)| second + WINDOW_S <= now) {
            self.recent.pop_front();
        }
    }

    /// Rates in the window.
    pub(crate) fn rates(&self, seconds: f64) -> Traffic {
        let mut all = Totals::default();
        self.recent.iter().for_each(|(_, counted)| all.add(counted));
        all.traffic(seconds)
    }

    /// Whether there was traffic in the window.
    pub(crate) fn is_active(&self) -> bool {
        !self.recent.is_empty()
    }
}

/// The times at which proxies were read: seconds without traffic are zero, others unknown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ticks {
    fine: VecDeque<Tick>,
    coarse: VecDeque<Tick>,
    gathered: f64,
}

impl Ticks {
    /// Adds a tick; returns the coarse one that ends before it, if one does.
    pub(crate) fn add(&mut self, tick: Tick) -> Option<Tick> {
        let previous = self.fine.back().map(|tick| tick.second / COARSE_S);
        let ended = previous.filter(|coarse| *coarse != tick.second / COARSE_S && self.gathered > 0.0);
        let ended = ended.map(|coarse| Tick { second: coarse * COARSE_S, elapsed: std::mem::take(&mut self.gathered) });
        if let Some(ended) = ended {
            push_bounded(&mut self.coarse, ended, COARSE_POINTS);
        }
        self.gathered += tick.elapsed;
        push_bounded(&mut self.fine, tick, FINE_POINTS);
        ended
    }

    /// The length of the window in which proxies were read, in seconds.
    pub(crate) fn window(&self) -> f64 {
        let Some(last) = self.fine.back() else { return 0.0 };
        self.fine.iter().rev().take_while(|tick| tick.second + WINDOW_S > last.second).map(|tick| tick.elapsed).sum()
    }

    /// A series second by second.
    pub(crate) fn recent_history(&self, series: &Series) -> History {
        history(&self.fine, &series.fine, 1)
    }

    /// A series over the last hour.
    pub(crate) fn hour_history(&self, series: &Series) -> History {
        history(&self.coarse, &series.coarse, COARSE_S)
    }
}

fn history(ticks: &VecDeque<Tick>, points: &VecDeque<Point>, step_s: u64) -> History {
    let mut history = History { step_s, ..History::default() };
    let mut points = points.iter().peekable();
    for tick in ticks.iter().filter(|tick| tick.elapsed > 0.0) {
        while points.next_if(|point| point.second < tick.second).is_some() {}
        let point = points.next_if(|point| point.second == tick.second).copied();
        let point = point.unwrap_or_else(|| Point::new(tick.second, &Traffic::default()));
        let quantile = |ms: f32| Some(f64::from(ms)).filter(|ms| !ms.is_nan());
        history.time.push(tick.second as f64);
        history.requests.push(f64::from(point.requests));
        history.errors.push(f64::from(point.errors));
        history.p50_ms.push(quantile(point.p50_ms));
        history.p95_ms.push(quantile(point.p95_ms));
        history.p99_ms.push(quantile(point.p99_ms));
        history.bytes.push(f64::from(point.bytes));
    }
    history
}

fn push_bounded<T>(ring: &mut VecDeque<T>, value: T, most: usize) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(count: u64) -> Totals {
        Totals { requests: count, durations: BTreeMap::from([(10f64.to_bits(), count)]), ..Totals::default() }
    }

    #[test]
    fn quantiles_are_interpolated() {
        let check = |durations: &[(f64, u64)], share: f64, expected: Option<f64>| {
            let durations = durations.iter().map(|(bound, count)| (bound.to_bits(), *count)).collect();
            assert_eq!(Totals { durations, ..Totals::default() }.quantile(share), expected);
        };
        check(&[], 0.5, None);
        check(&[(10.0, 4)], 0.5, Some(5.0));
        check(&[(1.0, 50), (5.0, 50)], 0.75, Some(3.0));
        check(&[(1.0, 50), (f64::INFINITY, 50)], 0.99, Some(1.0));
    }

    #[test]
    fn a_counter_that_begins_anew_is_no_traffic() {
        assert!(requests(3).since(&requests(7)).is_empty());
        assert_eq!(requests(9).since(&requests(7)), requests(2));
    }

    #[test]
    fn an_hour_is_remembered_in_bounded_memory() {
        let (mut ticks, mut series) = (Ticks::default(), Series::default());
        for second in 0..5000 {
            let tick = Tick { second, elapsed: 1.0 };
            if let Some(ended) = ticks.add(tick) {
                series.end_coarse(ended.second, ended.elapsed);
            }
            series.add(tick, &requests(2));
            series.expire(second);
        }
        assert_eq!((ticks.window(), series.rates(ticks.window()).requests), (WINDOW_S as f64, 2.0));
        let (recent, hour) = (ticks.recent_history(&series), ticks.hour_history(&series));
        assert_eq!((recent.time.len(), hour.time.len()), (FINE_POINTS, COARSE_POINTS));
        assert!(recent.requests.iter().chain(&hour.requests).all(|rate| *rate == 2.0), "{hour:?}");
        assert_eq!(hour.time.last(), Some(&4980.0));
        // Nobody calls any more: the next second is zero, the window empties, and the past stays.
        ticks.add(Tick { second: 5000, elapsed: 1.0 });
        series.expire(5020);
        assert!(!series.is_active());
        assert_eq!(ticks.recent_history(&series).requests.last(), Some(&0.0));
    }

    #[test]
    fn times_at_which_nobody_looked_have_no_points() {
        let (mut ticks, series) = (Ticks::default(), Series::default());
        ticks.add(Tick { second: 1, elapsed: 0.0 });
        ticks.add(Tick { second: 2, elapsed: 1.0 });
        ticks.add(Tick { second: 900, elapsed: 0.0 });
        ticks.add(Tick { second: 901, elapsed: 1.0 });
        assert_eq!(ticks.recent_history(&series).time, [2.0, 901.0]);
        assert_eq!(ticks.window(), 1.0);
    }
}
