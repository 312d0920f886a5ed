//! Limits the rate of a response body with a token bucket of one token per byte, drained every 50 ms.

use std::time::{Duration, Instant};

use evenkeel_limits::{Refill, TokenBucket};

use crate::http::{Data, Flow, Pause};

/// How often buffered bytes are released, as in Envoy.
const INTERVAL: Duration = Duration::from_millis(50);

/// The rate limit of one response.
#[derive(Debug)]
pub(super) struct Limiter {
    /// One token for each byte; at most those of a second accumulate.
    bytes: TokenBucket,
    /// Buffered bytes: at most one piece, because nothing more is read meanwhile.
    kept: Vec<u8>,
    /// The body ends with `kept`.
    ends: bool,
}

impl Limiter {
    pub(super) fn new(kib_per_second: u64, now: Instant) -> Self {
        let rate = kib_per_second.saturating_mul(1024);
        let first = (rate as f64 * INTERVAL.as_secs_f64()) as u64;
        let bytes = TokenBucket::new(rate, Refill::per_second(rate), first, now);
        Self { bytes, kept: Vec::new(), ends: false }
    }

    /// Takes a piece and leaves in it what may pass now.
    pub(super) fn pass(&mut self, data: &mut Data<'_>) -> Flow {
        self.kept.extend_from_slice(&data.bytes);
        self.ends |= data.ends;
        let goes = self.bytes.take_up_to(self.kept.len() as u64, data.now) as usize;
        let rest = self.kept.split_off(goes);
        data.bytes = std::mem::replace(&mut self.kept, rest).into();
        data.ends = self.ends && self.kept.is_empty();
        if self.kept.is_empty() { Flow::Continue } else { Flow::Pause(Pause::for_time(INTERVAL)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_at_its_rate_whatever_pieces_it_comes_in() {
        let began = Instant::now();
        let mut limiter = Limiter::new(1, began);
        let mut check = |millis: u64, bytes: &[u8], ends: bool, expected: (usize, bool, bool)| {
            let now = began + Duration::from_millis(millis);
            let mut data = Data { bytes: bytes.into(), ends, now };
            let paused = matches!(limiter.pass(&mut data), Flow::Pause(_));
            assert_eq!((data.bytes.len(), data.ends, paused), expected, "after {millis} ms");
        };
        // 51 bytes pass immediately, and 51 more every 50 ms.
        check(0, &[1; 100], false, (51, false, true));
        check(50, b"", false, (49, false, false));
        check(60, &[1; 10], false, (10, false, false));
        // At most one second's rate accumulates.
        check(10_000, &[1; 2000], true, (1024, false, true));
        check(10_500, b"", false, (512, false, true));
        check(11_000, b"", false, (464, true, false));
    }
}
