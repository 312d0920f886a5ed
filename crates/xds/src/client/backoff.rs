//! The wait before connecting again.

use std::time::Duration;

/// Exponential backoff with jitter: each wait is drawn from the upper half of its interval, so that the proxies of a
/// mesh do not all reconnect at once after the control plane restarts.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempt: u32,
    random: u64,
}

impl Backoff {
    /// First wait. It is short, because a control plane that starts together with the mesh is up in a moment.
    pub const BASE: Duration = Duration::from_millis(100);
    /// Maximum wait. With Envoy's 30 s a mesh would miss changes for that long after its control plane is back; a refused
    /// connection every two seconds costs hardly anything.
    pub const MAX: Duration = Duration::from_secs(2);

    /// Waits between `base` and `max`; the seed makes the jitter repeatable.
    pub fn new(base: Duration, max: Duration, seed: u64) -> Self {
        Self { base, max, attempt: 0, random: seed | 1 }
    }

    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let ceiling = self.base.saturating_mul(1 << self.attempt.min(16)).min(self.max);
        self.attempt = self.attempt.saturating_add(1);
        // xorshift64 is good enough for jitter.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let fraction = (self.random >> 40) as f64 / (1u64 << 24) as f64;
        ceiling.mul_f64(0.5 + fraction / 2.0)
    }

    /// A connection worked: start small again.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_limit_and_starts_over() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2), 7);
        for ceiling in [100, 200, 400, 800, 1600, 2000, 2000] {
            let wait = backoff.next_wait().as_millis();
            assert!((ceiling / 2..=ceiling).contains(&wait), "{wait} of {ceiling}");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_millis(100));
    }
}
