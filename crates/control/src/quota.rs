//! How much of something one client may have, so that something is left for the others.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts what is taken: so much altogether, so much by one.
#[derive(Debug)]
pub struct Quota<K: Eq + Hash> {
    max: usize,
    max_each: usize,
    taken: Mutex<Taken<K>>,
}

#[derive(Debug)]
struct Taken<K> {
    all: usize,
    by: HashMap<K, usize>,
}

impl<K: Eq + Hash + Clone> Quota<K> {
    /// `max` altogether, `max_each` for each.
    pub fn new(max: usize, max_each: usize) -> Arc<Self> {
        Arc::new(Self { max, max_each, taken: Mutex::new(Taken { all: 0, by: HashMap::new() }) })
    }

    /// One more for `key` until the share is dropped; `None` at a limit.
    pub fn take(self: &Arc<Self>, key: K) -> Option<Share<K>> {
        let mut taken = self.lock();
        let its = taken.by.get(&key).copied().unwrap_or(0);
        if taken.all >= self.max || its >= self.max_each {
            return None;
        }
        taken.all += 1;
        taken.by.insert(key.clone(), its + 1);
        Some(Share { quota: self.clone(), key })
    }

    /// How many are taken.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Taken<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of a quota.
#[derive(Debug)]
pub struct Share<K: Eq + Hash> {
    quota: Arc<Quota<K>>,
    key: K,
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut taken = self.quota.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(1);
        let left = taken.by.get_mut(&self.key).map(|its| {
            *its = its.saturating_sub(1);
            *its
        });
        if left == Some(0) {
            taken.by.remove(&self.key);
        }
    }
}

/// Counts what happens: of each so many at once, and so many more with time (a token bucket).
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
    /// When the last use was taken off.
    since: Instant,
}

impl<K: Eq + Hash> Rate<K> {
    /// `burst` at once, one more after each `every`, remembered of `max_keys`.
    pub fn new(burst: u32, every: Duration, max_keys: usize) -> Self {
        Self { burst, every, max_keys, known: Mutex::default() }
    }

    /// Whether `key` has used up what it may.
    pub fn is_over(&self, key: &K, now: Instant) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).is_some_and(|bucket| self.after(*bucket, now).used >= self.burst)
    }

    /// Notes one of `key`; false, and nothing is noted, if it has used up what it may.
    pub fn note(&self, key: K, now: Instant) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.max_keys && !known.contains_key(&key) {
            known.retain(|_, bucket| self.after(*bucket, now).used > 0);
            if known.len() >= self.max_keys {
                // Nobody can tell who of so many it is: each waits for the others.
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

/// Whom an address belongs to, as far as can be told: an IPv6 host has a /64 to choose from.
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
