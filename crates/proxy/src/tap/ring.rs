//! The requests that have ended, until readers fetch them. All readers share one ring of bounded size, and each has a position in it: a
//! reader costs no memory of its own, and a slow one misses the requests that had to make room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::entry::{TapPage, TappedRequest};

/// Maximum number of requests in the ring.
const MAX_REQUESTS: usize = 4096;
/// Maximum size of the requests in the ring, in bytes.
const MAX_BYTES: usize = 2 * 1024 * 1024;
/// How long requests are collected after the last page was fetched.
const READER_TIMEOUT: Duration = Duration::from_secs(10);

/// The requests of all workers that readers may fetch.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    /// Whether somebody reads. Workers read it once per request.
    is_on: AtomicBool,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    /// When a page was last fetched; none: nobody reads.
    last_read: Option<Instant>,
    /// The number of the next request.
    next: u64,
    /// Number of the first request since somebody reads.
    begin: u64,
    bytes: usize,
    requests: VecDeque<Arc<TappedRequest>>,
}

impl Ring {
    /// Whether the last reader has left.
    fn is_abandoned(&self, now: Instant) -> bool {
        self.last_read.is_none_or(|read| now.saturating_duration_since(read) > READER_TIMEOUT)
    }

    fn remove_first(&mut self) {
        if let Some(first) = self.requests.pop_front() {
            self.bytes = self.bytes.saturating_sub(first.size());
        }
    }
}

impl Tap {
    /// Whether somebody reads.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request that has ended.
    pub(super) fn add(&self, request: TappedRequest) {
        let mut ring = self.lock();
        if ring.last_read.is_none() {
            return;
        }
        ring.next += 1;
        ring.bytes += request.size();
        ring.requests.push_back(Arc::new(request));
        while ring.requests.len() > MAX_REQUESTS || ring.bytes > MAX_BYTES {
            ring.remove_first();
        }
    }

    /// The requests from number `since` on; without it, only the number of the next one. Requests are collected from now on.
    pub(crate) fn read(&self, since: Option<u64>, now: Instant) -> TapPage {
        let mut ring = self.lock();
        if ring.is_abandoned(now) {
            clear(&mut ring);
            ring.begin = ring.next;
        }
        ring.last_read = Some(now);
        self.is_on.store(true, Ordering::Relaxed);
        let next = ring.next;
        let first = next - ring.requests.len() as u64;
        let since_or_end = since.unwrap_or(next);
        let interrupted = since_or_end > next || since_or_end < ring.begin;
        let from = if interrupted { ring.begin } else { since_or_end };
        let skipped = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
        let found: Vec<Arc<TappedRequest>> = ring.requests.iter().skip(skipped).cloned().collect();
        drop(ring);
        let requests = found.iter().map(|request| (**request).clone()).collect();
        TapPage { next, dropped: first.saturating_sub(from), interrupted, requests }
    }

    /// Stops collecting when the last reader has left.
    pub(crate) fn end_without_reader(&self, now: Instant) {
        if !self.is_on() {
            return;
        }
        let mut ring = self.lock();
        if ring.is_abandoned(now) {
            clear(&mut ring);
            self.is_on.store(false, Ordering::Relaxed);
        }
    }
}

fn clear(ring: &mut Ring) {
    ring.last_read = None;
    ring.bytes = 0;
    ring.requests = VecDeque::new();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str) -> TappedRequest {
        TappedRequest { path: path.to_owned(), ..TappedRequest::default() }
    }

    fn paths(page: &TapPage) -> Vec<&str> {
        page.requests.iter().map(|request| &*request.path).collect()
    }

    #[test]
    fn readers_get_what_ends_while_they_read() {
        let (tap, start) = (Tap::default(), Instant::now());
        tap.add(request("/before"));
        assert!(!tap.is_on());
        assert_eq!(tap.read(None, start), TapPage::default());
        assert!(tap.is_on());
        tap.add(request("/a"));
        tap.add(request("/b"));
        let page = tap.read(Some(0), start);
        assert_eq!((paths(&page), page.next, page.dropped), (vec!["/a", "/b"], 2, 0));
        tap.add(request("/c"));
        assert_eq!(paths(&tap.read(Some(2), start)), ["/c"]);
        assert_eq!(paths(&tap.read(Some(1), start)), ["/b", "/c"], "another reader");
        assert_eq!(tap.read(None, start).next, 3);
        assert!(tap.read(Some(99), start).interrupted, "the proxy has restarted");
    }

    #[test]
    fn it_ends_with_its_last_reader() {
        let (tap, start) = (Tap::default(), Instant::now());
        tap.read(None, start);
        tap.add(request("/a"));
        tap.end_without_reader(start + READER_TIMEOUT);
        assert!(tap.is_on());
        let later = start + READER_TIMEOUT * 2;
        tap.end_without_reader(later);
        assert!(!tap.is_on());
        tap.add(request("/lost"));
        let page = tap.read(Some(0), later);
        assert!(page.interrupted && page.requests.is_empty(), "{page:?}");
        tap.add(request("/b"));
        let page = tap.read(Some(page.next), later);
        assert!(!page.interrupted && paths(&page) == ["/b"], "{page:?}");
    }

    #[test]
    fn a_slow_reader_learns_how_many_it_missed() {
        let check = |length: usize, count: usize, most: usize| {
            let (tap, start) = (Tap::default(), Instant::now());
            tap.read(None, start);
            (0..count).for_each(|_| tap.add(request(&"a".repeat(length))));
            let page = tap.read(Some(0), start);
            assert_eq!(page.dropped as usize + page.requests.len(), count);
            assert!(page.dropped > 0 && page.requests.len() <= most, "{} of {most}", page.requests.len());
        };
        check(1, MAX_REQUESTS + 5, MAX_REQUESTS);
        check(8192, 1000, MAX_BYTES / 8192);
    }
}
