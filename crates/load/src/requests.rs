//! What a load did, and the answers that it understands.

use std::time::Duration;

use crate::error::LoadError;

/// The work that a load did.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Number of units.
    pub count: u64,
    /// The time that it took.
    pub time: Duration,
    /// Median and 99th percentile of the latency, where the load measures them.
    pub latency: Option<(Duration, Duration)>,
}

/// Requests with the latency of each.
#[derive(Debug, Default)]
pub struct Requests {
    /// Latencies, one for each request.
    pub latencies: Vec<Duration>,
    /// The time that it took.
    pub time: Duration,
}

impl Requests {
    /// Adds what another load did.
    pub fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.time += other.time;
    }

    /// Their number, and percentiles of their latency.
    ///
    /// # Errors
    ///
    /// There was no request.
    pub fn work(mut self) -> Result<Work, LoadError> {
        self.latencies.sort_unstable();
        let count = self.latencies.len();
        let percentile = |per_cent: usize| self.latencies.get((count * per_cent / 100).min(count.saturating_sub(1)));
        let (p50, p99) = percentile(50).zip(percentile(99)).ok_or(LoadError::NoRequest)?;
        Ok(Work { count: count as u64, time: self.time, latency: Some((*p50, *p99)) })
    }
}

/// Returns where the answer at the start of `bytes` ends; `None` until it is complete. Only answers of the benchmarks'
/// servers are understood: status 200 with a `content-length`.
///
/// # Errors
/// The answer is another one.
pub fn answer_end(bytes: &[u8]) -> Result<Option<usize>, LoadError> {
    const OK: &[u8] = b"HTTP/1.1 200";
    const LENGTH: &[u8] = b"\r\ncontent-length: ";
    if !OK.starts_with(&bytes[..bytes.len().min(OK.len())]) {
        return Err(LoadError::Answer(String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()));
    }
    let Some(head) = find(bytes, b"\r\n\r\n").map(|at| at + 4) else { return Ok(None) };
    let lower = bytes[..head].to_ascii_lowercase();
    let Some(at) = find(&lower, LENGTH) else { return Err(LoadError::NoLength) };
    let digits = lower[at + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
    Ok((bytes.len() >= head + length).then_some(head + length))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Requests, answer_end};

    #[test]
    fn percentiles_are_of_all_requests() {
        let requests = |latencies: std::ops::Range<u64>| Requests {
            latencies: latencies.rev().map(Duration::from_micros).collect(),
            time: Duration::from_secs(1),
        };
        let mut both = requests(0..50);
        both.add(requests(50..100));
        let work = both.work().unwrap();
        assert_eq!((work.count, work.time), (100, Duration::from_secs(2)));
        assert_eq!(work.latency, Some((Duration::from_micros(50), Duration::from_micros(99))));
        assert!(Requests::default().work().is_err());
    }

    #[test]
    fn an_answer_ends_after_its_body() {
        let check = |text: &str, end: Option<usize>| assert_eq!(answer_end(text.as_bytes()).unwrap(), end, "{text:?}");
        check("", None);
        check("HTTP/1.1 2", None);
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", None);
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", Some(41));
        check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nserver: x\r\n\r\n", Some(49));
        assert!(answer_end(b"HTTP/1.1 503 Service Unavailable\r\n").is_err());
        assert!(answer_end(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
