//! Keys that an issuer publishes, fetched over a cluster of the configuration.
//!
//! All workers and filters with the same source share its keys. One of them fetches, and the others wait for it or go
//! on with the keys that are there. Requests never wait for keys that are still good, nor, while the issuer cannot be
//! reached, for newer ones: the last good keys stay in use, and fetching is tried again with growing pauses.

use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use evenkeel_http::{HeaderId, RequestHead};
use evenkeel_jwt::{Jwks, MAX_JWKS_BYTES, Status};
use evenkeel_runtime_config::jwt_authn::RemoteJwks;

use super::counts::Counts;
use super::counts::stats::Counter;
use super::judge::Keys;
use crate::callouts::{CallOptions, HttpAnswer, HttpCall};
use crate::http::{Pause, Services};

/// Maximum number of requests that wait for the keys of one source; further ones are denied.
const MAX_WAITING: usize = 1_024;
/// Maximum pause between two failed fetches.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// Keys are fetched again this long before they expire, as in Envoy, so that no request has to wait.
const REFRESH_BEFORE: Duration = Duration::from_secs(5);
/// Added to the limit of a fetch for requests that wait for it: the fetch reports its own end.
const GRACE: Duration = Duration::from_secs(1);

/// The keys of one source.
#[derive(Debug)]
pub(super) struct Remote {
    source: RemoteJwks,
    keys: ArcSwapOption<Jwks>,
    /// A worker is fetching.
    fetching: AtomicBool,
    /// Number of fetches that have ended.
    ended: AtomicU64,
    /// Number of fetches that have failed since the last good one.
    failures: AtomicU64,
    /// When to fetch again, and when the keys are too old to be used without another attempt; in [`millis`].
    refresh_at: AtomicU64,
    expires_at: AtomicU64,
    /// The error of the last answer.
    problem: Mutex<Option<Status>>,
    /// Tasks that wait for the end of a fetch.
    waiting: Mutex<Vec<Waker>>,
}

/// Keys shared by URI and cluster.
type Shared = HashMap<(Box<str>, Arc<str>), Weak<Remote>>;

/// Looked at only when filters are created.
static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since the process began to use keys.
fn millis(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*START).as_millis()).unwrap_or(u64::MAX)
}

fn as_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Remote {
    /// The keys of a source, which other filters may have already.
    pub(super) fn shared(source: &RemoteJwks) -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|_, remote| remote.strong_count() > 0);
        let key = (source.uri.clone(), Arc::clone(&source.cluster));
        if let Some(known) = shared.get(&key).and_then(Weak::upgrade) {
            if known.has_settings_of(source) {
                return known;
            }
            // The settings changed, and the keys did not.
            let new = Arc::new(Self::new(source, known.keys.load_full(), &known));
            shared.insert(key, Arc::downgrade(&new));
            return new;
        }
        let new = Arc::new(Self::empty(source));
        shared.insert(key, Arc::downgrade(&new));
        new
    }

    fn empty(source: &RemoteJwks) -> Self {
        LazyLock::force(&START);
        Self {
            source: source.clone(),
            keys: ArcSwapOption::empty(),
            fetching: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            refresh_at: AtomicU64::new(0),
            expires_at: AtomicU64::new(0),
            problem: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    fn new(source: &RemoteJwks, keys: Option<Arc<Jwks>>, known: &Self) -> Self {
        let new = Self::empty(source);
        new.keys.store(keys);
        new.expires_at.store(known.expires_at.load(Ordering::Acquire), Ordering::Release);
        new
    }

    fn has_settings_of(&self, source: &RemoteJwks) -> bool {
        let own = &self.source;
        own.timeout == source.timeout
            && own.cache_duration == source.cache_duration
            && own.failed_refetch == source.failed_refetch
            && own.keep_fresh == source.keep_fresh
            && own.retry.is_some() == source.retry.is_some()
    }

    /// The keys for a request. `waited`: it has waited for a fetch already.
    pub(super) fn keys(&self, now: Instant, waited: bool) -> Keys {
        let keys = self.keys.load_full();
        let failed = self.failures.load(Ordering::Acquire) > 0;
        let good = keys.is_some() && (failed || millis(now) < self.expires_at.load(Ordering::Acquire));
        match keys {
            Some(keys) if good || waited => Keys::Known(keys),
            None if waited => {
                let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
                Keys::Failed(problem.unwrap_or(Status::FetchFail))
            }
            _ => Keys::Coming,
        }
    }

    /// Whether these are the keys, and requests need not wait for newer ones.
    pub(super) fn are_current(&self, keys: &Arc<Jwks>, now: Instant) -> bool {
        let is_old = millis(now) >= self.expires_at.load(Ordering::Acquire);
        let is_same = self.keys.load().as_ref().is_some_and(|own| Arc::ptr_eq(own, keys));
        is_same && (!is_old || self.failures.load(Ordering::Acquire) > 0)
    }

    /// Whether a fetch is due and none is in progress.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        millis(now) >= self.refresh_at.load(Ordering::Acquire) && !self.fetching.load(Ordering::Acquire)
    }

    /// Fetches the keys in the background, unless a fetch is in progress or it is too early after a failure.
    pub(super) fn fetch(self: &Arc<Self>, services: &dyn Services, counts: &Rc<Counts>, now: Instant) {
        let too_early = millis(now) < self.refresh_at.load(Ordering::Acquire);
        let Some(tasks) = services.tasks().filter(|_| !too_early) else { return };
        if self.fetching.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut fetch = Fetch { remote: Arc::clone(self), counts: Rc::clone(counts), began: now, done: false };
        let call = services.callouts().http(self.call());
        tasks.run(Box::pin(async move {
            let answer = call.await;
            fetch.end(answer.ok());
        }));
    }

    fn call(&self) -> HttpCall {
        let source = &self.source;
        let mut head = RequestHead::default();
        head.set_method(b"GET");
        head.set_authority(source.authority.as_bytes());
        head.set_path(source.path.as_bytes());
        head.headers.set(HeaderId::ForwardedProto, if source.https { b"https" } else { b"http" });
        let options = CallOptions {
            timeout: Some(source.timeout),
            retry: source.retry.clone(),
            max_answer_bytes: MAX_JWKS_BYTES,
            ..CallOptions::default()
        };
        HttpCall { cluster: Arc::clone(&source.cluster), head, body: Vec::new(), options }
    }

    /// What a request waits for: the end of the fetch in progress. `None`: too many wait already, or no fetch may begin.
    /// Where nothing is run, the wait does not end.
    pub(super) fn wait(self: &Arc<Self>, services: &dyn Services) -> Option<Pause> {
        if services.tasks().is_none() {
            return Some(Pause::until(pending(), self.source.timeout + GRACE));
        }
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len();
        if waiting >= MAX_WAITING || !self.fetching.load(Ordering::Acquire) {
            return None;
        }
        let (remote, seen) = (Arc::clone(self), self.ended.load(Ordering::Acquire));
        let until = poll_fn(move |task| {
            let mut waiting = remote.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if remote.ended.load(Ordering::Acquire) != seen {
                return Poll::Ready(());
            }
            if !waiting.iter().any(|waker| waker.will_wake(task.waker())) {
                waiting.push(task.waker().clone());
            }
            Poll::Pending
        });
        // Retries are within the limit of the fetch.
        Some(Pause::until(until, self.source.timeout + GRACE))
    }
}

/// A fetch in progress. One that is dropped has failed.
struct Fetch {
    remote: Arc<Remote>,
    counts: Rc<Counts>,
    began: Instant,
    done: bool,
}

impl Fetch {
    fn end(&mut self, answer: Option<HttpAnswer>) {
        self.done = true;
        let remote = &self.remote;
        let parsed = match answer {
            Some(answer) if answer.head.status == 200 => Jwks::parse(&answer.body).map_err(|error| error.status()),
            _ => Err(Status::FetchFail),
        };
        let now = millis(self.began);
        let settings = &remote.source;
        match parsed {
            Ok(keys) => {
                self.counts.inc(Counter::jwks_fetch_success);
                let lasts = settings.cache_duration;
                let early = REFRESH_BEFORE.min(lasts / 2);
                remote.expires_at.store(now.saturating_add(as_millis(lasts)), Ordering::Release);
                remote.refresh_at.store(now.saturating_add(as_millis(lasts - early)), Ordering::Release);
                remote.failures.store(0, Ordering::Release);
                remote.keys.store(Some(Arc::new(keys)));
            }
            Err(problem) => {
                self.counts.inc(Counter::jwks_fetch_failed);
                let failures = remote.failures.fetch_add(1, Ordering::AcqRel);
                let doublings = u32::try_from(failures.min(16)).unwrap_or(16);
                let pause = settings.failed_refetch.saturating_mul(1 << doublings);
                let pause = pause.min(MAX_BACK_OFF.max(settings.failed_refetch));
                remote.refresh_at.store(now.saturating_add(as_millis(pause)), Ordering::Release);
                *remote.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
            }
        }
        self.wake();
    }

    fn wake(&self) {
        let remote = &self.remote;
        remote.fetching.store(false, Ordering::Release);
        let waiting = {
            let mut waiting = remote.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            remote.ended.fetch_add(1, Ordering::AcqRel);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if !self.done {
            self.end(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_http::ResponseHead;
    use evenkeel_stats::{Registry, ScopeName};
    use evenkeel_testkit::jwt::{Signer, jwks};

    use super::*;

    const LASTS: Duration = Duration::from_secs(600);

    fn source(name: &str) -> RemoteJwks {
        RemoteJwks {
            uri: format!("http://{name}/keys").into(),
            https: false,
            authority: name.into(),
            path: "/keys".into(),
            cluster: name.into(),
            timeout: Duration::from_secs(1),
            cache_duration: LASTS,
            retry: None,
            failed_refetch: Duration::from_secs(1),
            keep_fresh: false,
        }
    }

    /// One fetch that begins at `now` and ends with this answer.
    fn fetch(remote: &Arc<Remote>, now: Instant, answer: Option<(u16, &str)>) {
        let counts = Rc::new(Registry::new().scope(ScopeName::plain("t.")).writer());
        remote.fetching.store(true, Ordering::Release);
        let answer = answer.map(|(status, body)| HttpAnswer {
            head: ResponseHead { status, ..ResponseHead::default() },
            body: body.into(),
            ..HttpAnswer::default()
        });
        Fetch { remote: Arc::clone(remote), counts, began: now, done: false }.end(answer);
    }

    fn state(remote: &Remote, now: Instant, waited: bool) -> &'static str {
        match remote.keys(now, waited) {
            Keys::Known(_) => "known",
            Keys::Failed(Status::FetchFail) => "failed",
            Keys::Failed(_) => "bad",
            Keys::Coming => "coming",
        }
    }

    #[test]
    fn the_last_good_keys_survive_an_outage() {
        let set = jwks(&[&Signer::ec("a", "P-256")]);
        let good = Some((200, set.as_str()));
        let remote = Remote::shared(&source("outage"));
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!((state(&remote, at(0), false), state(&remote, at(0), true)), ("coming", "failed"));
        fetch(&remote, at(0), Some((500, "")));
        assert_eq!((state(&remote, at(0), false), state(&remote, at(0), true)), ("coming", "failed"));
        fetch(&remote, at(0), Some((200, "{}")));
        assert_eq!(state(&remote, at(0), true), "bad");
        fetch(&remote, at(1), good);
        assert_eq!((state(&remote, at(1), false), remote.is_due(at(595))), ("known", false));
        // Newer ones are fetched before these expire, while requests go on.
        assert_eq!((state(&remote, at(597), false), remote.is_due(at(597))), ("known", true));
        // There was no request for a while: the next one waits for newer keys.
        assert_eq!(state(&remote, at(700), false), "coming");
        // The issuer is away.
        for second in 700..720 {
            fetch(&remote, at(second), None);
            assert_eq!(state(&remote, at(second), false), "known");
        }
        assert!(!remote.is_due(at(719 + 59)) && remote.is_due(at(719 + 61)));
        fetch(&remote, at(800), Some((200, "<html>")));
        assert_eq!(state(&remote, at(800), false), "known");
        fetch(&remote, at(900), good);
        assert_eq!((state(&remote, at(900), false), remote.is_due(at(901))), ("known", false));
    }

    #[test]
    fn filters_with_the_same_source_share_its_keys() {
        let first = Remote::shared(&source("shared"));
        assert!(Arc::ptr_eq(&first, &Remote::shared(&source("shared"))));
        assert!(!Arc::ptr_eq(&first, &Remote::shared(&source("another"))));
        let set = jwks(&[&Signer::ec("a", "P-256")]);
        fetch(&first, Instant::now(), Some((200, &set)));
        // Other settings: the keys stay.
        let changed = Remote::shared(&RemoteJwks { cache_duration: LASTS * 2, ..source("shared") });
        assert!(!Arc::ptr_eq(&first, &changed));
        assert_eq!(state(&changed, Instant::now(), false), "known");
    }
}
