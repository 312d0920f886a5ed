//! Limits the rate of a response body with a token bucket of one token per byte, drained every 50 ms.

use std::time::{Duration, Instant};

use crate::http::{Data, Flow, Pause};

/// How often buffered bytes are released, as in Envoy.
const INTERVAL: Duration = Duration::from_millis(50);

/// The rate limit of one response.
#[derive(Debug)]
pub(super) struct Limiter {
    /// Bytes per second; also the most tokens that accumulate.
    rate: f64,
    tokens: f64,
    counted: Instant,
    /// Buffered bytes: at most one piece, because nothing more is read meanwhile.
    kept: Vec<u8>,
    /// The body ends with `kept`.
    ends: bool,
}

impl Limiter {
    pub(super) fn new(kib_per_second: u64, now: Instant) -> Self {
        let rate = kib_per_second as f64 * 1024.0;
        Self { rate, tokens: rate * INTERVAL.as_secs_f64(), counted: now, kept: Vec::new(), ends: false }
    }

    /// Takes a piece and leaves in it what may pass now.
    pub(super) fn pass(&mut self, data: &mut Data<'_>) -> Flow {
        self.kept.extend_from_slice(&data.bytes);
        self.ends |= data.ends;
        let passed = data.now.saturating_duration_since(self.counted);
        self.counted = data.now;
        self.tokens = (self.tokens + passed.as_secs_f64() * self.rate).min(self.rate);
        let goes = self.kept.len().min(self.tokens as usize);
        self.tokens -= goes as f64;
        let rest = self.kept.split_off(goes);
        data.bytes = std::mem::replace(&mut self.kept, rest).into();
        data.ends = self.ends && self.kept.is_empty();
        match self.kept.is_empty() {
            true => Flow::Continue,
            false => Flow::Pause(Pause::for_time(INTERVAL)),
        }
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
