//! Quotas and rates per client, so that one client leaves enough for the others.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A quota with a limit on the total and a limit per key.
#[derive(Debug)]
pub struct Quota<K: Eq + Hash + Clone> {
    max: usize,
    max_each: usize,
    taken: Mutex<Counts<K>>,
}

#[derive(Debug)]
struct Counts<K> {
    all: usize,
    by: HashMap<K, usize>,
}

impl<K: Eq + Hash + Clone> Quota<K> {
    /// Creates a quota of `max` in total and `max_each` per key.
    pub fn new(max: usize, max_each: usize) -> Arc<Self> {
        Arc::new(Self { max, max_each, taken: Mutex::new(Counts { all: 0, by: HashMap::new() }) })
    }

    /// Takes one unit for `key` until the share is dropped; `None` at a limit.
    pub fn take(self: &Arc<Self>, key: K) -> Option<Share<K>> {
        let mut share = self.nothing(key);
        share.resize(1).then_some(share)
    }

    /// Returns a share of size 0 for `key`.
    pub fn nothing(self: &Arc<Self>, key: K) -> Share<K> {
        Share { quota: self.clone(), key, size: 0 }
    }

    /// Returns how many units are taken.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Counts<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Part of a quota, returned when it is dropped.
#[derive(Debug)]
pub struct Share<K: Eq + Hash + Clone> {
    quota: Arc<Quota<K>>,
    key: K,
    size: usize,
}

impl<K: Eq + Hash + Clone> Share<K> {
    /// Returns the key that the share belongs to.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Resizes the share. Returns false and leaves it unchanged if it would grow beyond a limit.
    pub fn resize(&mut self, size: usize) -> bool {
        if size == self.size {
            return true;
        }
        let mut taken = self.quota.lock();
        let others = taken.by.get(&self.key).map_or(0, |its| its - self.size);
        let all = taken.all - self.size + size;
        if size > self.size && (all > self.quota.max || others + size > self.quota.max_each) {
            return false;
        }
        taken.all = all;
        match others + size {
            0 => _ = taken.by.remove(&self.key),
            its => _ = taken.by.insert(self.key.clone(), its),
        }
        drop(taken);
        self.size = size;
        true
    }
}

impl<K: Eq + Hash + Clone> Drop for Share<K> {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// Limits the rate of events per key (a token bucket): a burst, and one more after each interval.
#[derive(Debug)]
pub struct Rate<K> {
    burst: u32,
    every: Duration,
    max_keys: usize,
    known: Mutex<HashMap<K, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    used: u32,
    /// When used-up tokens were last replenished.
    since: Instant,
}

impl<K: Eq + Hash> Rate<K> {
    /// Creates a rate of `burst` at once and one more after each `every`, tracked for at most `max_keys` keys.
    pub fn new(burst: u32, every: Duration, max_keys: usize) -> Self {
        Self { burst, every, max_keys, known: Mutex::default() }
    }

    /// Whether `key` has used up its tokens.
    pub fn is_over(&self, key: &K, now: Instant) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).is_some_and(|bucket| self.after(*bucket, now).used >= self.burst)
    }

    /// Takes a token of `key`; returns false, and takes none, if they are used up.
    pub fn note(&self, key: K, now: Instant) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.max_keys && !known.contains_key(&key) {
            known.retain(|_, bucket| self.after(*bucket, now).used > 0);
            if known.len() >= self.max_keys {
                // There are too many keys to tell them apart: each waits for the others.
                return false;
            }
        }
        let bucket = known.entry(key).or_insert(Bucket { used: 0, since: now });
        *bucket = self.after(*bucket, now);
        let granted = bucket.used < self.burst;
        bucket.used += u32::from(granted);
        granted
    }

    fn after(&self, bucket: Bucket, now: Instant) -> Bucket {
        let passed = now.saturating_duration_since(bucket.since).as_nanos() / self.every.as_nanos().max(1);
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        match bucket.used.saturating_sub(passed) {
            0 => Bucket { used: 0, since: now },
            used => Bucket { used, since: bucket.since + self.every * passed },
        }
    }
}

/// Returns the network that is treated as one host: an IPv6 host can choose any address of its /64.
pub fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => IpAddr::from((u128::from(v6) >> 64 << 64).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_something_for_others() {
        let quota = Quota::new(5, 3);
        let mut held: Vec<_> = (0..3).map(|_| quota.take("greedy").expect("a share")).collect();
        assert!(quota.take("greedy").is_none(), "its own limit");
        held.extend([quota.take("modest"), quota.take("modest")].map(|share| share.expect("a share")));
        assert!(quota.take("modest").is_none(), "everybody's");
        held.remove(0);
        assert!(quota.take("greedy").is_some());
        drop(held);
        assert!(quota.lock().by.is_empty(), "who has nothing is forgotten");
    }

    #[test]
    fn shares_grow_and_shrink_within_the_limits() {
        let quota = Quota::new(100, 60);
        let (mut one, mut two, mut other) = (quota.nothing("a"), quota.nothing("a"), quota.nothing("b"));
        let check = |expected: bool, all: usize, share: &mut Share<_>, size| {
            assert_eq!(share.resize(size), expected, "{size}");
            assert_eq!(quota.taken(), all, "{size}");
        };
        check(true, 40, &mut one, 40);
        check(false, 40, &mut two, 21);
        check(true, 60, &mut two, 20);
        check(false, 60, &mut other, 41);
        check(true, 100, &mut other, 40);
        check(true, 90, &mut one, 30);
        check(true, 100, &mut two, 30);
        drop((one, two));
        assert_eq!((quota.taken(), quota.lock().by.len()), (40, 1));
    }

    #[test]
    fn a_rate_is_a_burst_and_then_one_at_a_time() {
        let (rate, begin) = (Rate::new(3, Duration::from_secs(10), 2), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        let check = |key: &'static str, seconds, expected: bool| {
            assert_eq!(rate.is_over(&key, after(seconds)), !expected, "{key} at {seconds} s");
            assert_eq!(rate.note(key, after(seconds)), expected, "{key} at {seconds} s");
        };
        (0..3).for_each(|_| check("a", 0, true));
        check("a", 9, false);
        check("a", 10, true);
        check("a", 19, false);
        check("b", 19, true);
        assert!(!rate.note("c", after(19)), "two are known, and both have done something");
        (0..3).for_each(|_| check("a", 50, true));
        check("a", 50, false);
        assert!(rate.note("c", after(50)), "b is forgotten");
    }

    #[test]
    fn an_address_stands_for_a_host() {
        let check = |address: &str, expected: &str| {
            assert_eq!(host(address.parse().expect("an address")).to_string(), expected);
        };
        check("10.0.0.1", "10.0.0.1");
        check("::ffff:10.0.0.1", "10.0.0.1");
        check("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::");
    }
}
