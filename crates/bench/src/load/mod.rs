//! The loads. Each runs on the load's core: as a program of its own pinned there, or in this process, which is.

pub mod h2load;
pub mod http2;
pub mod idle;
pub mod open_loop;
pub mod streams;
pub mod tls;
pub mod wrk;

use std::time::Duration;

use anyhow::{Result, bail};

/// What a load did.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// How many units.
    pub count: u64,
    /// In what time.
    pub time: Duration,
    /// Median and 99th percentile of the latency, where the load measures them.
    pub latency: Option<(Duration, Duration)>,
}

/// Where the answer at the start of `bytes` ends; `None` until it is all there. Only what the benchmarks' servers send is
/// understood: status 200 with a `content-length`.
pub fn answer_end(bytes: &[u8]) -> Result<Option<usize>> {
    const OK: &[u8] = b"HTTP/1.1 200";
    const LENGTH: &[u8] = b"\r\ncontent-length: ";
    if !OK.starts_with(&bytes[..bytes.len().min(OK.len())]) {
        bail!("answered {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
    }
    let Some(head) = find(bytes, b"\r\n\r\n").map(|at| at + 4) else { return Ok(None) };
    let lower = bytes[..head].to_ascii_lowercase();
    let Some(at) = find(&lower, LENGTH) else { bail!("answered without content-length") };
    let digits = lower[at + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
    Ok((bytes.len() >= head + length).then_some(head + length))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::answer_end;

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
