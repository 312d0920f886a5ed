//! Process-wide health state of one host: flags that every worker reads, and counts for outlier detection.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::breaker::Slots;
use crate::keep_alive::KeepAlive;
use crate::reported_weight::ReportedWeight;

/// Reasons why a host is not healthy, as a bit set. Envoy's `HealthFlag`s that do not come from service discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HealthFlags(u32);

impl HealthFlags {
    /// Active health checks failed, or none has passed yet.
    pub const FAILED_ACTIVE_HC: Self = Self(1);
    /// Ejected by outlier detection.
    pub const FAILED_OUTLIER_CHECK: Self = Self(1 << 1);
    /// Passes active health checks, but reports to be degraded.
    pub const DEGRADED_ACTIVE_HC: Self = Self(1 << 2);
    /// No active health check has completed yet.
    pub const PENDING_ACTIVE_HC: Self = Self(1 << 3);
    /// The last active health check timed out.
    pub const ACTIVE_HC_TIMEOUT: Self = Self(1 << 4);
    /// Removed by service discovery; it stays while it passes its health checks.
    pub const PENDING_DYNAMIC_REMOVAL: Self = Self(1 << 5);
    /// Asked to be excluded, so it does not count among its priority's hosts.
    pub const EXCLUDED_VIA_IMMEDIATE_HC_FAIL: Self = Self(1 << 6);

    /// Names as `/clusters` shows them, each with a leading slash.
    const NAMES: [(Self, &'static str); 7] = [
        (Self::FAILED_ACTIVE_HC, "/failed_active_hc"),
        (Self::FAILED_OUTLIER_CHECK, "/failed_outlier_check"),
        (Self::DEGRADED_ACTIVE_HC, "/degraded_active_hc"),
        (Self::PENDING_DYNAMIC_REMOVAL, "/pending_dynamic_removal"),
        (Self::PENDING_ACTIVE_HC, "/pending_active_hc"),
        (Self::EXCLUDED_VIA_IMMEDIATE_HC_FAIL, "/excluded_via_immediate_hc_fail"),
        (Self::ACTIVE_HC_TIMEOUT, "/active_hc_timeout"),
    ];

    /// Whether any of `flags` is set.
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// No flag.
    pub const NONE: Self = Self(0);

    /// The flags that are also in `flags`.
    #[must_use]
    pub const fn only(self, flags: Self) -> Self {
        Self(self.0 & flags.0)
    }

    /// The flags that are not in `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// The union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Names of the flags set, in Envoy's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.has(*flag)).map(|(_, name)| name)
    }
}

/// One host of one cluster, shared by all threads.
#[derive(Debug, Default)]
pub struct HostHealth {
    flags: AtomicU32,
    /// Requests in flight from all workers, to it and to all hosts of its cluster; counted only if the load balancer uses them.
    active: AtomicU32,
    cluster_active: Arc<AtomicU32>,
    /// Consecutive failures, indexed by [`InARow`].
    in_a_row: [AtomicU32; 3],
    /// The tallies of workers that know the host.
    tallies: Mutex<Vec<Weak<Tally>>>,
    /// How long the host keeps idle connections.
    pub(crate) keep_alive: KeepAlive,
    /// Connection slots for all workers, if connections are limited per host.
    pub(crate) connections: Arc<Slots>,
    /// Its weight by its load reports, if the load balancer uses them.
    pub(crate) reported: OnceLock<Box<ReportedWeight>>,
}

/// Kinds of consecutive failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InARow {
    Any5xx,
    Gateway,
    LocalOrigin,
}

/// One worker's count of requests to a host. Only that worker writes it, so counting is a load and a store.
#[derive(Debug, Default)]
pub struct Tally {
    external: Pair,
    local: Pair,
    one_writer: std::marker::PhantomData<fn(Cell<()>)>,
}

#[derive(Debug, Default)]
struct Pair {
    total: AtomicU64,
    success: AtomicU64,
}

/// Requests, and how many of them succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Volume {
    pub total: u64,
    pub success: u64,
}

impl Pair {
    fn count(&self, success: bool) {
        self.total.store(self.total.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if success {
            self.success.store(self.success.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    fn volume(&self) -> Volume {
        // Success is read first: in this order it never exceeds the total.
        let success = self.success.load(Ordering::Acquire);
        Volume { total: self.total.load(Ordering::Acquire).max(success), success }
    }
}

impl Tally {
    pub(super) fn external(&self, success: bool) {
        self.external.count(success);
    }

    pub(super) fn local(&self, success: bool) {
        self.local.count(success);
    }
}

impl std::ops::Add for Volume {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { total: self.total + other.total, success: self.success + other.success }
    }
}

impl HostHealth {
    /// A host of the cluster with the given count of requests in flight.
    pub(crate) fn of_cluster(active: &Arc<AtomicU32>) -> Self {
        Self { cluster_active: active.clone(), ..Self::default() }
    }

    /// Counts a request. Relaxed: the counts that load balancers compare may change at any time anyway.
    pub(crate) fn begin_request(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.cluster_active.fetch_add(1, Ordering::Relaxed);
    }

    /// Uncounts a request.
    pub(crate) fn end_request(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.cluster_active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests in flight from all workers.
    pub(crate) fn active(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    /// Requests in flight from all workers to all hosts of its cluster.
    pub(crate) fn cluster_active(&self) -> u32 {
        self.cluster_active.load(Ordering::Relaxed)
    }

    /// The current flags.
    pub fn flags(&self) -> HealthFlags {
        HealthFlags(self.flags.load(Ordering::Acquire))
    }

    /// The host asked to be excluded until it passes its health checks again; true if that is new.
    pub(crate) fn fail_at_once(&self) -> bool {
        let failed = HealthFlags::FAILED_ACTIVE_HC.and(HealthFlags::EXCLUDED_VIA_IMMEDIATE_HC_FAIL);
        self.change(failed, HealthFlags::default())
    }

    /// Sets and clears flags atomically; true if any changed.
    pub(super) fn change(&self, set: HealthFlags, clear: HealthFlags) -> bool {
        let next = |flags: u32| (flags & !clear.0) | set.0;
        let before = self.flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, |flags| Some(next(flags)));
        before.is_ok_and(|before| before != next(before))
    }

    /// Counts a consecutive failure; returns their number.
    pub(super) fn again(&self, what: InARow) -> u32 {
        self.in_a_row[what as usize].fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Resets the count. Writes only if it is not zero: healthy hosts' counts stay in every worker's cache.
    pub(super) fn end_row(&self, what: InARow) {
        let count = &self.in_a_row[what as usize];
        if count.load(Ordering::Relaxed) != 0 {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Registers a worker's tally for this host.
    pub fn tally(&self) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.retain(|known| known.strong_count() > 0);
        tallies.push(Arc::downgrade(&tally));
        tally
    }

    /// Totals of all workers: external (responses) and local origin.
    pub(super) fn volumes(&self) -> (Volume, Volume) {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let live = tallies.iter().filter_map(Weak::upgrade);
        live.fold((Volume::default(), Volume::default()), |(external, local), tally| {
            (external + tally.external.volume(), local + tally.local.volume())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_set_cleared_and_named() {
        let host = HostHealth::default();
        assert!(host.change(HealthFlags::FAILED_ACTIVE_HC.and(HealthFlags::PENDING_ACTIVE_HC), HealthFlags::default()));
        assert!(!host.change(HealthFlags::FAILED_ACTIVE_HC, HealthFlags::default()), "set already");
        assert!(host.change(HealthFlags::FAILED_OUTLIER_CHECK, HealthFlags::PENDING_ACTIVE_HC));
        assert_eq!(host.flags().names().collect::<String>(), "/failed_active_hc/failed_outlier_check");
        assert!(host.change(HealthFlags::default(), HealthFlags::FAILED_ACTIVE_HC));
        assert!(!host.flags().has(HealthFlags::FAILED_ACTIVE_HC));
    }

    #[test]
    fn tallies_of_all_workers_add_up() {
        let host = HostHealth::default();
        let (one, other) = (host.tally(), host.tally());
        one.external(true);
        one.external(false);
        other.external(true);
        other.local(false);
        let volumes = (Volume { total: 3, success: 2 }, Volume { total: 1, success: 0 });
        assert_eq!(host.volumes(), volumes);
        drop(other);
        assert_eq!(host.volumes().0, Volume { total: 2, success: 1 });
    }
}
