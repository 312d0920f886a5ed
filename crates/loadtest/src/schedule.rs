//! When each caller's requests are due.

use std::time::{Duration, Instant};

/// What holds for all callers.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Requests a second of all callers; `None`: as fast as responses come.
    pub rate: Option<f64>,
    /// Number of calls of all callers, whatever time they take.
    pub exactly: Option<u64>,
    /// How long to send; `None`: until the calls are made, or the run is stopped.
    pub duration: Option<Duration>,
    /// Moves each request by up to a tenth of the distance to the one before.
    pub jitter: bool,
    /// Spreads the callers' first requests evenly.
    pub uniform: bool,
    /// Leaves out requests that were due while an earlier one was not answered.
    pub no_catch_up: bool,
}

/// One caller among all.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Its number, from 0.
    pub index: usize,
    /// Number of callers.
    pub callers: usize,
    /// Number of its calls, if that is limited.
    pub calls: Option<u64>,
}

/// What a caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It sends when this time comes; a time in the past is one at which it was busy.
    At(Instant),
    /// It sends at once.
    Now,
    /// It has sent everything.
    Done,
}

/// The requests of one caller.
#[derive(Debug)]
pub struct Schedule {
    start: Instant,
    end: Option<Instant>,
    /// Seconds between requests, and what is added to spread the last one to the end.
    distance: Option<f64>,
    calls: Option<u64>,
    next: u64,
    no_catch_up: bool,
    jitter: Option<Random>,
    /// Number of requests that were left out.
    pub skipped: u64,
}

impl Schedule {
    /// A single request, at once.
    pub fn once() -> Self {
        let now = Instant::now();
        let (end, distance, jitter) = (None, None, None);
        Self { start: now, end, distance, calls: Some(1), next: 0, no_catch_up: false, jitter, skipped: 0 }
    }

    /// The requests of a caller from `start` on.
    pub fn new(pace: &Pace, place: Place, start: Instant) -> Self {
        let distance = pace.rate.map(|rate| place.callers as f64 / rate);
        let end = pace.duration.filter(|_| pace.exactly.is_none()).map(|duration| start + duration);
        let mut first = start;
        if let Some(distance) = distance.filter(|_| pace.uniform) {
            first += Duration::from_secs_f64(distance * place.index as f64 / place.callers as f64);
        }
        // The last of n requests is sent at the end, so n - 1 distances fill the time.
        let spread = |distance: f64| match place.calls {
            Some(calls) if pace.duration.is_some() && calls > 1 => distance * calls as f64 / (calls - 1) as f64,
            _ => distance,
        };
        let jitter = pace.jitter.then(|| Random::new(place.index as u64));
        let (calls, no_catch_up, distance) = (place.calls, pace.no_catch_up, distance.map(spread));
        Self { start: first, end, distance, calls, next: 0, no_catch_up, jitter, skipped: 0 }
    }

    /// The next request, now that the one before is answered.
    pub fn next(&mut self, now: Instant) -> Next {
        loop {
            if self.calls.is_some_and(|calls| self.next >= calls) {
                return Next::Done;
            }
            let Some(distance) = self.distance else {
                if self.end.is_some_and(|end| now >= end) {
                    return Next::Done;
                }
                self.next += 1;
                return Next::Now;
            };
            let due = self.start + Duration::from_secs_f64(self.next as f64 * distance);
            // What was due in time is not sent after the end; the result says how many these were.
            if self.end.is_some_and(|end| now > end) && self.next > 1 {
                return Next::Done;
            }
            self.next += 1;
            if self.no_catch_up && due < now && self.next > 1 {
                self.skipped += 1;
                continue;
            }
            let shift = self.jitter.as_mut().filter(|_| self.next > 1).map_or(0.0, |random| random.tenth() * distance);
            return Next::At(shifted(due, shift));
        }
    }

    /// Number of requests that were due and are not sent.
    pub fn unsent(&self) -> u64 {
        self.distance.and(self.calls).map_or(0, |calls| calls.saturating_sub(self.next))
    }
}

fn shifted(time: Instant, seconds: f64) -> Instant {
    let by = Duration::from_secs_f64(seconds.abs());
    if seconds < 0.0 { time.checked_sub(by).unwrap_or(time) } else { time + by }
}

/// xorshift64: plenty for jitter, and no dependency.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from -0.1 to 0.1.
    fn tenth(&mut self) -> f64 {
        ((self.next() >> 11) as f64 / (1_u64 << 53) as f64 - 0.5) / 5.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        Pace {
            rate: Some(10.0),
            exactly: None,
            duration: Some(Duration::from_secs(2)),
            jitter: false,
            uniform: false,
            no_catch_up: false,
        }
    }

    /// The times at which requests are due, in milliseconds, if each is answered after `busy`.
    fn due(pace: &Pace, place: Place, busy: Duration) -> Vec<u128> {
        let start = Instant::now();
        let (mut schedule, mut now, mut all) = (Schedule::new(pace, place, start), start, Vec::new());
        while let Next::At(due) = schedule.next(now) {
            all.push(due.duration_since(start).as_millis());
            now = now.max(due) + busy;
        }
        all
    }

    #[test]
    fn requests_are_due_whatever_the_responses_do() {
        let place = |index| Place { index, callers: 4, calls: Some(5) };
        let quick = Duration::from_millis(1);
        assert_eq!(due(&pace(), place(0), quick), [0, 500, 1000, 1500, 2000]);
        assert_eq!(due(&pace(), place(0), Duration::from_millis(499)), [0, 500, 1000, 1500, 2000]);
        // The caller is busy for 700 ms each time: what it sends was due before, and the time ends before all are sent.
        assert_eq!(due(&pace(), place(0), Duration::from_millis(700)), [0, 500, 1000]);
        assert_eq!(due(&Pace { no_catch_up: true, ..pace() }, place(0), Duration::from_millis(700)), [0, 1000, 2000]);
        assert_eq!(due(&Pace { uniform: true, ..pace() }, place(2), quick)[0], 200);
        let jitter = due(&Pace { jitter: true, ..pace() }, place(1), quick);
        assert!(jitter[1..].iter().zip([500, 1000, 1500, 2000]).all(|(due, at)| due.abs_diff(at) <= 50), "{jitter:?}");
        assert_ne!(jitter, [0, 500, 1000, 1500, 2000]);
    }

    #[test]
    fn an_exact_number_takes_the_time_it_takes() {
        let pace = Pace { exactly: Some(3), duration: None, ..pace() };
        let place = Place { index: 0, callers: 1, calls: Some(3) };
        assert_eq!(due(&pace, place, Duration::from_secs(9)), [0, 100, 200]);
        let mut schedule = Schedule::new(&Pace { rate: None, ..pace }, place, Instant::now());
        let found: Vec<_> = (0..4).map(|_| schedule.next(Instant::now())).collect();
        assert_eq!(found, [Next::Now, Next::Now, Next::Now, Next::Done]);
    }

    #[test]
    fn what_was_not_sent_is_counted() {
        let start = Instant::now();
        let mut schedule = Schedule::new(&pace(), Place { index: 0, callers: 4, calls: Some(5) }, start);
        assert_eq!(schedule.next(start), Next::At(start));
        assert!(matches!(schedule.next(start + Duration::from_secs(3)), Next::At(_)));
        assert_eq!(schedule.next(start + Duration::from_secs(4)), Next::Done);
        assert_eq!(schedule.unsent(), 3);
    }
}
