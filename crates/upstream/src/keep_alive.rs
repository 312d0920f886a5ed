//! Learns how long a host keeps idle connections open: a connection that it is about to close must not carry a request.
//!
//! A host announces it (`Keep-Alive: timeout=5`) or shows it by closing. What was learned from closing is forgotten
//! gradually, since a host that restarts closes connections that it would have kept.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Closing after a shorter time is not an idle timeout: it is a restart, or the last request that the host wanted to serve.
const SHORTEST: Duration = Duration::from_millis(10);
/// After this long without another close, twice the observed time is tried.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The final part of the host's time in which connections are no longer used: 1 ÷ this of it, but at least the time below.
const MARGIN_SHARE: u32 = 5;
const LEAST_MARGIN: Duration = Duration::from_millis(5);

/// The shared knowledge of all workers about one host. The fields are independent of each other, so no lock is needed.
#[derive(Debug, Default)]
pub struct KeepAlive {
    /// In microseconds plus one; 0: nothing was announced.
    announced: AtomicU64,
    /// The shortest time observed, encoded likewise.
    seen: AtomicU64,
    /// When it was observed, in milliseconds after `epoch`.
    seen_at: AtomicU64,
    epoch: OnceLock<Instant>,
}

impl KeepAlive {
    /// Takes the value of a response's `Keep-Alive` header.
    pub fn announced(&self, value: &[u8]) {
        let parameters = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        let mut timeouts = parameters.filter_map(|parameter| {
            let (name, value) = parameter.split_at_checked(8)?;
            let number = name.eq_ignore_ascii_case(b"timeout=").then_some(value)?;
            std::str::from_utf8(number).ok()?.trim().parse::<u32>().ok()
        });
        if let Some(seconds) = timeouts.next_back() {
            set(&self.announced, Duration::from_secs(seconds.into()));
        }
    }

    /// Records that the host closed a connection that had been idle for at most this long.
    pub fn closed_after(&self, idle: Duration, now: Instant) {
        if idle < SHORTEST {
            return;
        }
        set(&self.seen, get(&self.seen).map_or(idle, |known| known.min(idle)));
        self.seen_at.store(self.millis(now), Ordering::Relaxed);
    }

    /// Idle connections must not be reused after this long; `None`: nothing is known.
    pub fn limit(&self, now: Instant) -> Option<Duration> {
        let (mut seen, now) = (get(&self.seen), self.millis(now));
        let at = self.seen_at.load(Ordering::Relaxed);
        let long_ago = now.saturating_sub(at) >= REMEMBERED.as_millis() as u64;
        // Of the workers that notice this, one tries the longer time.
        if let Some(known) = seen.filter(|_| long_ago)
            && self.seen_at.compare_exchange(at, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            seen = Some(known.saturating_mul(2));
            set(&self.seen, known.saturating_mul(2));
        }
        let host = get(&self.announced).into_iter().chain(seen).min()?;
        Some(host.saturating_sub((host / MARGIN_SHARE).max(LEAST_MARGIN)))
    }

    /// Whether anything is known.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.announced.load(Ordering::Relaxed) != 0 || self.seen.load(Ordering::Relaxed) != 0
    }

    fn millis(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(*self.epoch.get_or_init(|| now));
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Writes only a value that differs: it rarely changes, and every worker reads it.
fn set(time: &AtomicU64, value: Duration) {
    let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
    if time.load(Ordering::Relaxed) != micros {
        time.store(micros, Ordering::Relaxed);
    }
}

fn get(time: &AtomicU64) -> Option<Duration> {
    time.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_micros)
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
