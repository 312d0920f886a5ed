//! The record in a Lease: what it becomes, and what an observer concludes from it.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

/// A record, and since when this process has seen it.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    holder: Option<String>,
    renewed: Option<MicroTime>,
    version: Option<String>,
    duration: Duration,
    since: Instant,
}

impl Observed {
    /// The record of a Lease as seen `now`, after `last`.
    pub(super) fn of(lease: &Lease, last: Option<Self>, now: Instant) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let version = lease.metadata.resource_version.clone();
        let same = last.filter(|last| last.version == version);
        Self {
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            renewed: spec.renew_time,
            version,
            duration: Duration::from_secs(spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0)),
            since: same.map_or(now, |same| same.since),
        }
    }

    pub(super) fn is_held_by(&self, identity: &str) -> bool {
        self.holder.as_deref() == Some(identity)
    }

    /// Whether nobody holds it, or its holder has not renewed it for as long as the holder itself and this process demand.
    pub(super) fn is_free(&self, duration: Duration, now: Instant) -> bool {
        self.holder.is_none()
            || self.renewed.is_none()
            || now.saturating_duration_since(self.since) > duration.max(self.duration)
    }
}

/// The Lease as its new holder writes it.
pub(super) fn acquired(lease: Lease, identity: &str, duration: Duration) -> Lease {
    let now = MicroTime(Timestamp::now());
    let spec = lease.spec.unwrap_or_default();
    let is_other = spec.holder_identity.as_deref() != Some(identity);
    let spec = LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        lease_duration_seconds: Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).max(1)),
        lease_transitions: Some(spec.lease_transitions.unwrap_or(0).saturating_add(i32::from(is_other))),
        ..spec
    };
    Lease { spec: Some(spec), ..lease }
}

/// The Lease as its holder renews it.
pub(super) fn renewed(lease: Lease) -> Lease {
    let spec = LeaseSpec { renew_time: Some(MicroTime(Timestamp::now())), ..lease.spec.unwrap_or_default() };
    Lease { spec: Some(spec), ..lease }
}

/// The Lease as its holder leaves it to anybody.
pub(super) fn released(lease: Lease) -> Lease {
    let spec = LeaseSpec { holder_identity: Some(String::new()), ..renewed(lease.clone()).spec.unwrap_or_default() };
    Lease { spec: Some(spec), ..lease }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: &str) -> Lease {
        let mut lease = acquired(Lease::default(), holder, Duration::from_secs(15));
        lease.metadata.resource_version = Some(version.to_owned());
        lease
    }

    #[test]
    fn a_lease_is_free_when_it_was_released_or_not_renewed_for_its_duration() {
        let (start, duration) = (Instant::now(), Duration::from_secs(15));
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let first = Observed::of(&lease("a", "1"), None, start);
        let check = |seen: &Lease, at: u64, expected: bool| {
            let observed = Observed::of(seen, Some(first.clone()), after(at));
            assert_eq!(observed.is_free(duration, after(at)), expected, "{at} {seen:?}");
        };
        check(&lease("a", "1"), 15, false);
        check(&lease("a", "1"), 16, true);
        // It has been renewed at some time meanwhile.
        check(&lease("a", "2"), 16, false);
        check(&released(lease("a", "2")), 1, true);
        check(&Lease::default(), 0, true);
        // Its holder counts on a longer time than this candidate.
        let patient = acquired(lease("a", "1"), "a", Duration::from_secs(60));
        let seen = Observed::of(&patient, Some(first.clone()), after(30));
        assert!(!seen.is_free(duration, after(30)) && seen.is_held_by("a") && !seen.is_held_by("b"));
    }

    #[test]
    fn transitions_count_holders() {
        let transitions = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        let first = lease("a", "1");
        let second = acquired(first.clone(), "b", Duration::from_secs(15));
        assert_eq!([&first, &renewed(first.clone()), &second].map(transitions), [Some(1), Some(1), Some(2)]);
    }
}
