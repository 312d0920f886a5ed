//! The verdicts about tokens that were accepted.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use evenkeel_ca::Workload;

/// Maximum number of verdicts that are kept: some 5 MB.
const MAX_VERDICTS: usize = 20_000;

/// What stands for a token here: whoever reads this memory has no token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(token: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        Self(bytes)
    }
}

/// A bounded number of verdicts; the oldest one makes room.
#[derive(Debug, Default)]
pub(super) struct Cache {
    verdicts: HashMap<Digest, Verdict>,
}

#[derive(Debug)]
struct Verdict {
    workload: Workload,
    reviewed: Instant,
    /// When the token ends.
    end: SystemTime,
}

impl Cache {
    /// Returns the workload of a token whose verdict is younger than `max_age`. The caller has checked when the token ends.
    pub(super) fn get(&self, token: &Digest, max_age: Duration, now: Instant) -> Option<Workload> {
        let verdict = self.verdicts.get(token)?;
        (now.saturating_duration_since(verdict.reviewed) < max_age).then(|| verdict.workload.clone())
    }

    pub(super) fn insert(&mut self, token: Digest, workload: Workload, end: SystemTime, now: Instant) {
        if self.verdicts.len() >= MAX_VERDICTS && !self.verdicts.contains_key(&token) {
            self.make_room(now);
        }
        self.verdicts.insert(token, Verdict { workload, reviewed: now, end });
    }

    pub(super) fn remove(&mut self, token: &Digest) {
        self.verdicts.remove(token);
    }

    /// Removes what counts no longer, or else the older half.
    fn make_room(&mut self, now: Instant) {
        let today = SystemTime::now();
        self.verdicts
            .retain(|_, verdict| verdict.end > today && now.saturating_duration_since(verdict.reviewed) < super::STALE);
        if self.verdicts.len() < MAX_VERDICTS {
            return;
        }
        let mut times: Vec<Instant> = self.verdicts.values().map(|verdict| verdict.reviewed).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        self.verdicts.retain(|_, verdict| verdict.reviewed > middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_age_and_are_bounded() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        let web = || Workload { namespace: "shop".into(), service_account: "web".into(), pod: "web-0".into() };
        let end = SystemTime::now() + Duration::from_secs(600);
        cache.insert(Digest::of("a"), web(), end, start);
        let check = |age: u64, expected: bool| {
            let found = cache.get(&Digest::of("a"), Duration::from_secs(10), start + Duration::from_secs(age));
            assert_eq!(found, expected.then(web), "{age}");
        };
        check(0, true);
        check(9, true);
        check(10, false);
        assert_eq!(cache.get(&Digest::of("b"), super::super::STALE, start), None);
        cache.remove(&Digest::of("a"));
        assert_eq!(cache.get(&Digest::of("a"), super::super::STALE, start), None);
        for number in 0..2 * MAX_VERDICTS {
            let now = start + Duration::from_millis(number as u64);
            cache.insert(Digest::of(&number.to_string()), web(), end, now);
            assert!(cache.verdicts.len() <= MAX_VERDICTS);
        }
        let last = Digest::of(&(2 * MAX_VERDICTS - 1).to_string());
        assert_eq!(cache.get(&last, super::super::FRESH, start), Some(web()));
    }
}
