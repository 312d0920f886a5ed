//! How long a host keeps idle connections open, learned: a connection it is about to close must not carry a request.
//!
//! A host says so (`Keep-Alive: timeout=5`), or shows it by closing. What is learned by watching is forgotten step by step,
//! for a host that was restarted closes connections that it would have kept.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// Closing after less than this is not for being idle: a restart, or the last request the host wanted to answer.
const SHORTEST: Duration = Duration::from_millis(10);
/// After this long without another close, twice the time is tried.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Share of the host's time at its end in which connections are no longer used, 1 ÷ this, and the least of it.
const MARGIN_SHARE: u32 = 5;
const LEAST_MARGIN: Duration = Duration::from_millis(5);

/// One worker's knowledge of one host.
#[derive(Debug, Default)]
pub struct KeepAlive {
    announced: Cell<Option<Duration>>,
    seen: Cell<Option<(Duration, Instant)>>,
}

impl KeepAlive {
    /// The value of a response's `Keep-Alive` header.
    pub fn announced(&self, value: &[u8]) {
        let parameters = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        let mut timeouts = parameters.filter_map(|parameter| {
            let (name, value) = parameter.split_at_checked(8)?;
            let number = name.eq_ignore_ascii_case(b"timeout=").then_some(value)?;
            std::str::from_utf8(number).ok()?.trim().parse::<u32>().ok()
        });
        if let Some(seconds) = timeouts.next_back() {
            self.announced.set(Some(Duration::from_secs(seconds.into())));
        }
    }

    /// The host closed a connection that had been idle for at most this long.
    pub fn closed_after(&self, idle: Duration, now: Instant) {
        if idle < SHORTEST {
            return;
        }
        let shortest = self.seen.get().map_or(idle, |(known, _)| known.min(idle));
        self.seen.set(Some((shortest, now)));
    }

    /// Idle connections are not to be used after this long; `None`: nothing is known.
    pub fn limit(&self, now: Instant) -> Option<Duration> {
        if let Some((known, at)) = self.seen.get()
            && now.duration_since(at) >= REMEMBERED
        {
            self.seen.set(Some((known.saturating_mul(2), now)));
        }
        let seen = self.seen.get().map(|(known, _)| known);
        let host = self.announced.get().into_iter().chain(seen).min()?;
        Some(host.saturating_sub((host / MARGIN_SHARE).max(LEAST_MARGIN)))
    }

    /// Anything is known.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.announced.get().is_some() || self.seen.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn hosts_say_how_long_they_wait() {
        for (value, expected) in [
            ("timeout=5", Some(4 * SECOND)),
            ("timeout=5, max=100", Some(4 * SECOND)),
            ("max=100, Timeout=10", Some(8 * SECOND)),
            ("timeout=soon", None),
            ("max=100", None),
            ("timeout=0", Some(Duration::ZERO)),
        ] {
            let host = KeepAlive::default();
            host.announced(value.as_bytes());
            assert_eq!(host.limit(Instant::now()), expected, "{value}");
        }
    }

    #[test]
    fn hosts_show_how_long_they_wait() {
        let (host, start) = (KeepAlive::default(), Instant::now());
        assert_eq!(host.limit(start), None);
        host.closed_after(Duration::from_millis(3), start);
        assert_eq!(host.limit(start), None, "not for being idle");
        host.closed_after(10 * SECOND, start);
        host.closed_after(5 * SECOND, start);
        host.closed_after(20 * SECOND, start);
        assert_eq!(host.limit(start), Some(4 * SECOND), "the shortest, with a margin");
        host.announced(b"timeout=60");
        assert_eq!(host.limit(start), Some(4 * SECOND), "what it does counts, not what it says");
        let later = start + REMEMBERED;
        assert_eq!(host.limit(later), Some(8 * SECOND), "longer is tried again");
        host.closed_after(5 * SECOND, later);
        assert_eq!(host.limit(later), Some(4 * SECOND));
    }
}
