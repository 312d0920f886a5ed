//! Caches of host names that requests call (dynamic forward proxy). Workers request a name; the control thread resolves it,
//! and keeps it resolved while it is used.
//!
//! Memory is bounded: a cache holds `max_hosts` names. Names that did not resolve are evicted first, so that many requests
//! for names that do not exist cannot evict the others.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::{LookupError, Resolved};
use evenkeel_runtime_config::dynamic_forward_proxy::DnsCache;
use evenkeel_stats::{Registry, ScopeName, Writer, layout};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::resolver::{Found, Resolvers, failure_pause, resolve, resolver};

/// Capacity of the queue of lookups from all workers to the control thread.
pub(crate) const MAX_LOOKUPS: usize = 4096;
/// How long a worker uses an answer that is being refreshed.
const WHILE_REFRESHING: Duration = Duration::from_secs(1);

layout! {
    /// `dns_cache.NAME.`
    pub mod stats {
        counters {
            dns_query_attempt, dns_query_success, dns_query_failure, dns_query_timeout, host_added, host_removed,
            host_address_changed, host_overflow, dns_rq_pending_overflow,
        }
        gauges { num_hosts }
        histograms {}
        statuses None
    }
}
use stats::{Counter, Gauge};

/// A worker's question.
pub(crate) struct Lookup {
    pub cache: Arc<DnsCache>,
    /// In lower case.
    pub name: Arc<str>,
    pub answer: oneshot::Sender<Answer>,
}

/// The answer to it.
pub(crate) type Answer = Result<Resolved, LookupError>;

/// Answers the workers' lookups, for the life of the process.
pub(crate) async fn answer_lookups(mut lookups: mpsc::Receiver<Lookup>, registry: Arc<Registry>) {
    let caches = Caches { caches: Rc::default(), resolvers: Rc::default(), registry };
    while let Some(lookup) = lookups.recv().await {
        caches.answer(lookup);
    }
}

/// All caches, by their names. Under one name there are several only while their settings change.
struct Caches {
    caches: Rc<RefCell<ByName>>,
    resolvers: Rc<Resolvers>,
    registry: Arc<Registry>,
}

type ByName = HashMap<Arc<str>, Vec<Rc<Cache>>>;

/// One cache.
struct Cache {
    settings: Arc<DnsCache>,
    hosts: RefCell<Hosts>,
    resolvers: Rc<Resolvers>,
    stats: Writer<stats::Stats>,
}

#[derive(Default)]
struct Hosts {
    by_name: HashMap<Arc<str>, Entry>,
    /// Questions that wait for an answer.
    pending: usize,
}

/// A name.
struct Entry {
    state: State,
    last_used: Instant,
    waiting: Vec<oneshot::Sender<Answer>>,
    /// The task that keeps it resolved.
    _task: Task,
}

struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum State {
    /// The first answer is awaited.
    Resolving,
    /// The name has these addresses, and is resolved again at that time.
    Known(Arc<[IpAddr]>, Instant),
    /// The name does not resolve.
    Failed(Cow<'static, str>),
}

impl Caches {
    fn answer(&self, lookup: Lookup) {
        let mut caches = self.caches.borrow_mut();
        // A cache whose settings have changed is dropped once it is empty.
        caches.retain(|_, caches| {
            caches.retain(|cache| {
                Arc::ptr_eq(&cache.settings, &lookup.cache) || !cache.hosts.borrow().by_name.is_empty()
            });
            !caches.is_empty()
        });
        let same = caches.entry(Arc::clone(&lookup.cache.name)).or_default();
        let known =
            same.iter().find(|cache| Arc::ptr_eq(&cache.settings, &lookup.cache) || *cache.settings == *lookup.cache);
        let cache = known.cloned().unwrap_or_else(|| {
            let cache = Rc::new(self.cache(&lookup.cache));
            same.push(Rc::clone(&cache));
            cache
        });
        drop(caches);
        cache.answer(lookup);
    }

    fn cache(&self, settings: &Arc<DnsCache>) -> Cache {
        let scope = self.registry.scope(ScopeName::tagged("dns_cache", "envoy_dns_cache", &settings.name));
        Cache {
            settings: Arc::clone(settings),
            hosts: RefCell::default(),
            resolvers: Rc::clone(&self.resolvers),
            stats: scope.writer(),
        }
    }
}

impl Cache {
    fn answer(self: &Rc<Self>, lookup: Lookup) {
        let now = Instant::now();
        let mut hosts = self.hosts.borrow_mut();
        let Hosts { by_name, pending } = &mut *hosts;
        let may_wait = *pending < self.settings.max_pending;
        if let Some(entry) = by_name.get_mut(&lookup.name) {
            entry.last_used = now;
            let answer = match &entry.state {
                State::Known(addresses, refresh) => Ok(self.resolved(addresses, *refresh, now)),
                State::Failed(reason) => Err(LookupError::Failed(reason.clone())),
                State::Resolving if may_wait => {
                    entry.waiting.push(lookup.answer);
                    *pending += 1;
                    return;
                }
                State::Resolving => self.too_many_wait(),
            };
            // The request may have ended meanwhile.
            _ = lookup.answer.send(answer);
            return;
        }
        let refused = match () {
            () if !may_wait => Some(self.too_many_wait()),
            () if by_name.len() >= self.settings.max_hosts && !self.make_room(by_name) => {
                self.stats.inc(Counter::host_overflow);
                Some(Err(LookupError::CacheOverflow))
            }
            () => None,
        };
        if let Some(refused) = refused {
            _ = lookup.answer.send(refused);
            return;
        }
        *pending += 1;
        let resolving = Rc::clone(self).keep_resolved(Arc::clone(&lookup.name));
        let task = Task(tokio::task::spawn_local(resolving).abort_handle());
        let entry = Entry { state: State::Resolving, last_used: now, waiting: vec![lookup.answer], _task: task };
        by_name.insert(lookup.name, entry);
        self.stats.inc(Counter::host_added);
        self.stats.shift(Gauge::num_hosts, 1);
    }

    fn too_many_wait(&self) -> Answer {
        self.stats.inc(Counter::dns_rq_pending_overflow);
        Err(LookupError::PendingOverflow)
    }

    /// Forgets the name that did not resolve and was not used for the longest time; false if there is none. Envoy keeps
    /// such names for `host_ttl` like others, and a client that makes up names shuts out everyone else.
    fn make_room(&self, by_name: &mut HashMap<Arc<str>, Entry>) -> bool {
        let failed = by_name.iter().filter(|(_, entry)| matches!(entry.state, State::Failed(_)));
        let Some(oldest) = failed.min_by_key(|(_, entry)| entry.last_used).map(|(name, _)| Arc::clone(name)) else {
            return false;
        };
        by_name.remove(&oldest);
        self.stats.inc(Counter::host_removed);
        self.stats.shift(Gauge::num_hosts, -1);
        true
    }

    /// The answer for a name with addresses. Workers ask again often enough that `host_ttl` sees that the name is used.
    fn resolved(&self, addresses: &Arc<[IpAddr]>, refresh: Instant, now: Instant) -> Resolved {
        let refresh = if refresh <= now { now + WHILE_REFRESHING } else { refresh };
        let until = refresh.min(now + self.settings.host_ttl / 2);
        Resolved { addresses: Arc::clone(addresses), until: until.into_std() }
    }

    /// Resolves a name again and again, until it was not used for `host_ttl`.
    async fn keep_resolved(self: Rc<Self>, name: Arc<str>) {
        let mut failures = 0;
        loop {
            let found = self.query(&name).await;
            failures = if matches!(found, Found::Addresses(..)) { 0 } else { failures + 1 };
            let pause = match &found {
                Found::Addresses(_, ttl) => (*ttl).max(self.settings.min_refresh),
                Found::Nothing(..) | Found::Failure(_) => failure_pause(&self.settings.options, failures),
            };
            if !self.note(&name, found, pause) {
                return;
            }
            sleep(pause).await;
            let is_unused = |entry: &Entry| entry.last_used.elapsed() >= self.settings.host_ttl;
            let unused = self.hosts.borrow().by_name.get(&name).is_none_or(is_unused);
            if unused {
                self.forget(&name);
                return;
            }
        }
    }

    async fn query(&self, name: &str) -> Found {
        let Some(resolver) = resolver(&self.resolvers, &self.settings.options) else {
            return Found::Failure("no_resolver".into());
        };
        self.stats.inc(Counter::dns_query_attempt);
        let found = match self.settings.query_timeout {
            None => Ok(resolve(&resolver, name).await),
            Some(limit) => timeout(limit, resolve(&resolver, name)).await,
        };
        let found = found.unwrap_or_else(|_| {
            self.stats.inc(Counter::dns_query_timeout);
            Found::Failure("resolve_timeout".into())
        });
        match found {
            Found::Addresses(addresses, _) if addresses.is_empty() => Found::Nothing(None, "no_address".into()),
            found => found,
        }
    }

    /// Records the result of a lookup, and answers the waiting requests. Returns false if the name is not kept.
    fn note(&self, name: &Arc<str>, found: Found, pause: Duration) -> bool {
        let now = Instant::now();
        let mut hosts = self.hosts.borrow_mut();
        let Hosts { by_name, pending } = &mut *hosts;
        let Some(entry) = by_name.get_mut(name) else { return false };
        match found {
            Found::Addresses(addresses, _) => {
                self.stats.inc(Counter::dns_query_success);
                if matches!(&entry.state, State::Known(known, _) if !known.iter().any(|ip| addresses.contains(ip))) {
                    self.stats.inc(Counter::host_address_changed);
                }
                entry.state = State::Known(addresses.into(), now + pause);
            }
            Found::Nothing(_, reason) | Found::Failure(reason) => {
                self.stats.inc(Counter::dns_query_failure);
                tracing::debug!(name = &**name, reason, "a requested host does not resolve");
                match &mut entry.state {
                    // The former addresses stay in use.
                    State::Known(_, refresh) => *refresh = now + pause,
                    state => *state = State::Failed(as_details(&reason).into()),
                }
            }
        }
        let answer = match &entry.state {
            State::Known(addresses, refresh) => Ok(self.resolved(addresses, *refresh, now)),
            State::Failed(reason) => Err(LookupError::Failed(reason.clone())),
            State::Resolving => Err(LookupError::Failed("no_answer".into())),
        };
        let waiting = std::mem::take(&mut entry.waiting);
        *pending = pending.saturating_sub(waiting.len());
        let is_kept = answer.is_ok() || !self.settings.asks_again_after_failure;
        for asking in waiting {
            _ = asking.send(answer.clone());
        }
        drop(hosts);
        if !is_kept {
            self.forget(name);
        }
        is_kept
    }

    fn forget(&self, name: &Arc<str>) {
        let Some(entry) = self.hosts.borrow_mut().by_name.remove(name) else { return };
        self.stats.inc(Counter::host_removed);
        self.stats.shift(Gauge::num_hosts, -1);
        // This is called by the entry's own task, which ends by itself.
        drop(entry);
    }
}

/// A reason without spaces, as response code details are, and not too long.
fn as_details(reason: &str) -> String {
    reason.chars().take(128).map(|c| if c.is_ascii_alphanumeric() || ":._-".contains(c) { c } else { '_' }).collect()
}
