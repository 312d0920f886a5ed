//! A token bucket in one atomic number: the moment at which it would have been empty, had it filled at its rate since. Taking tokens moves
//! this moment forward by the time in which they come; a full bucket does not move it back. Threads that take at once repeat until each has
//! seen the other's tokens gone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How a bucket fills.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refill {
    /// Tokens that come in [`Refill::interval`], evenly spread. Without any, what the bucket has at first is all.
    pub tokens: u64,
    /// The time in which they come; not zero.
    pub interval: Duration,
}

impl Refill {
    /// So many in a second.
    pub fn per_second(tokens: u64) -> Self {
        Self { tokens, interval: Duration::from_secs(1) }
    }

    /// The seconds in which one token comes; infinite if none does.
    fn seconds_per_token(self) -> f64 {
        self.interval.as_secs_f64() / self.tokens as f64
    }
}

/// A token bucket that any number of threads share.
#[derive(Debug)]
pub struct TokenBucket {
    most: u64,
    /// Seconds in which one token comes.
    pace: f64,
    began: Instant,
    /// Seconds since `began`, as bits of an `f64`: when the bucket would have been empty. For a bucket that never fills, the number of
    /// tokens that are left.
    empty_at: AtomicU64,
}

impl TokenBucket {
    /// Creates a bucket that holds `most` tokens at most, and has `first` now.
    pub fn new(most: u64, refill: Refill, first: u64, now: Instant) -> Self {
        let pace = refill.seconds_per_token();
        let first = first.min(most) as f64;
        let state = if pace.is_finite() { -first * pace } else { first };
        Self { most, pace, began: now, empty_at: AtomicU64::new(state.to_bits()) }
    }

    /// Takes `count` tokens; false, and none is taken, if there are fewer.
    pub fn take(&self, count: u64, now: Instant) -> bool {
        self.change(now, |there| if there >= count as f64 { count as f64 } else { 0.0 }) >= count as f64
    }

    /// Takes as many tokens as there are, `most` at the most, and returns how many.
    pub fn take_up_to(&self, most: u64, now: Instant) -> u64 {
        self.change(now, |there| there.min(most as f64).floor()) as u64
    }

    /// The whole tokens that are there.
    pub fn there(&self, now: Instant) -> u64 {
        let state = f64::from_bits(self.empty_at.load(Relaxed));
        self.tokens(state, self.seconds(now)).floor() as u64
    }

    /// The time until `count` tokens are there, if nobody takes any; `None`: that never happens.
    pub fn wait(&self, count: u64, now: Instant) -> Option<Duration> {
        let state = f64::from_bits(self.empty_at.load(Relaxed));
        let missing = count as f64 - self.tokens(state, self.seconds(now));
        match missing > 0.0 {
            false => Some(Duration::ZERO),
            true if count > self.most || !self.pace.is_finite() => None,
            true => Duration::try_from_secs_f64(missing * self.pace).ok(),
        }
    }

    fn seconds(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.began).as_secs_f64()
    }

    /// The tokens in this state. What rounding takes from a whole token is given back: a token that comes every tenth of a second is there
    /// after a tenth.
    fn tokens(&self, state: f64, now: f64) -> f64 {
        const ROUNDING: f64 = 1e-6;
        let tokens = if self.pace.is_finite() { (now - state) / self.pace } else { state };
        let tokens = tokens.clamp(0.0, self.most as f64);
        if tokens.ceil() - tokens < ROUNDING { tokens.ceil() } else { tokens }
    }

    /// Takes what `wanted` makes of the tokens that are there, and returns it.
    fn change(&self, now: Instant, wanted: impl Fn(f64) -> f64) -> f64 {
        let now = self.seconds(now);
        let mut taken = 0.0;
        let _ = self.empty_at.fetch_update(Relaxed, Relaxed, |bits| {
            let there = self.tokens(f64::from_bits(bits), now);
            taken = wanted(there);
            let left = there - taken;
            let state = if self.pace.is_finite() { now - left * self.pace } else { left };
            // A clock that stands still changes nothing that is not taken.
            (taken > 0.0).then_some(state.to_bits())
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const MILLIS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn tokens_come_evenly_up_to_the_most() {
        let began = Instant::now();
        let bucket = TokenBucket::new(20, Refill { tokens: 10, interval: MILLIS(1000) }, 5, began);
        let check = |millis: u64, count: u64, expected: bool, left: u64| {
            let now = began + MILLIS(millis);
            assert_eq!(bucket.take(count, now), expected, "{count} after {millis} ms");
            assert_eq!(bucket.there(now), left, "left after {millis} ms");
        };
        check(0, 6, false, 5);
        check(0, 5, true, 0);
        check(99, 1, false, 0);
        check(100, 1, true, 0);
        check(150, 1, false, 0);
        check(1_200, 11, true, 0);
        // Not more than fit, however long nobody takes any.
        check(60_000, 21, false, 20);
        check(60_000, 20, true, 0);
        // A clock that goes back gives nothing.
        check(59_000, 1, false, 0);
    }

    #[test]
    fn as_many_as_there_are_are_taken() {
        let began = Instant::now();
        let bucket = TokenBucket::new(1024, Refill::per_second(1024), 51, began);
        let check = |millis: u64, wanted: u64, expected: u64| {
            assert_eq!(bucket.take_up_to(wanted, began + MILLIS(millis)), expected, "{wanted} after {millis} ms");
        };
        check(0, 100, 51);
        check(50, 49, 49);
        check(10_000, 2000, 1024);
        check(10_500, 2000, 512);
        check(10_500, 2000, 0);
    }

    #[test]
    fn the_wait_is_told() {
        let began = Instant::now();
        let bucket = TokenBucket::new(10, Refill { tokens: 1, interval: MILLIS(100) }, 2, began);
        let check = |count: u64, expected: Option<u64>| {
            let wait = bucket.wait(count, began).map(|wait| wait.as_millis() as u64);
            assert_eq!(wait, expected, "{count}");
        };
        check(2, Some(0));
        check(3, Some(100));
        check(10, Some(800));
        check(11, None);
        let never = TokenBucket::new(2, Refill { tokens: 0, interval: MILLIS(100) }, 2, began);
        assert!(never.take(2, began) && !never.take(1, began + MILLIS(1_000_000)));
        assert_eq!(never.wait(1, began), None);
    }

    /// Random takes at random times, beside a bucket that counts one by one.
    #[test]
    fn it_agrees_with_a_bucket_that_counts() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let (most, per_second) = (1 + next(50), 1 + next(50));
            let began = Instant::now();
            let bucket = TokenBucket::new(most, Refill::per_second(per_second), most, began);
            // In thousandths of a token, so that nothing is rounded.
            let (mut there, mut millis) = (most * 1000, 0);
            for _ in 0..200 {
                let (passed, wanted) = (next(120), 1 + next(8));
                millis += passed;
                there = (there + passed * per_second).min(most * 1000);
                let expected = there >= wanted * 1000;
                there -= if expected { wanted * 1000 } else { 0 };
                let got = bucket.take(wanted, began + MILLIS(millis));
                assert_eq!(got, expected, "{wanted} after {millis} ms of {most} at {per_second}/s, {there} left");
            }
        }
    }

    /// What threads take together is what one would.
    #[test]
    fn threads_share_it_exactly() {
        let began = Instant::now();
        let bucket = TokenBucket::new(1_000, Refill::per_second(1_000), 1_000, began);
        let taken = AtomicUsize::new(0);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for millis in 0..2_000 {
                        for _ in 0..3 {
                            if bucket.take(1, began + MILLIS(millis)) {
                                taken.fetch_add(1, Relaxed);
                            }
                        }
                    }
                });
            }
        });
        // A thread that lags sees an earlier time than others, and takes nothing that has not come then.
        let taken = taken.into_inner() as u64;
        assert!(taken <= 2_999, "{taken}");
        assert_eq!(taken + bucket.there(began + MILLIS(1_999)), 2_999);
    }
}
