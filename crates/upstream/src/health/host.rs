//! What the whole process knows of one host's health: flags that every worker reads, and what outlier detection counts.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::breaker::Slots;
use crate::keep_alive::KeepAlive;

/// Why a host is not healthy, as bits. Envoy's `HealthFlag`s that do not come from discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HealthFlags(u32);

impl HealthFlags {
    /// Active checks failed, or none has passed yet.
    pub const FAILED_ACTIVE_HC: Self = Self(1);
    /// Ejected by outlier detection.
    pub const FAILED_OUTLIER_CHECK: Self = Self(1 << 1);
    /// Answers active checks, but says that it is degraded.
    pub const DEGRADED_ACTIVE_HC: Self = Self(1 << 2);
    /// No active check has ended yet.
    pub const PENDING_ACTIVE_HC: Self = Self(1 << 3);
    /// The last active check ended by its timeout.
    pub const ACTIVE_HC_TIMEOUT: Self = Self(1 << 4);
    /// Discovery removed it; it stays while it passes its checks.
    pub const PENDING_DYNAMIC_REMOVAL: Self = Self(1 << 5);
    /// It asked to be left out, and does not count among its priority's hosts.
    pub const EXCLUDED_VIA_IMMEDIATE_HC_FAIL: Self = Self(1 << 6);

    /// Names as `/clusters` shows them, each behind a slash.
    const NAMES: [(Self, &'static str); 7] = [
        (Self::FAILED_ACTIVE_HC, "/failed_active_hc"),
        (Self::FAILED_OUTLIER_CHECK, "/failed_outlier_check"),
        (Self::DEGRADED_ACTIVE_HC, "/degraded_active_hc"),
        (Self::PENDING_DYNAMIC_REMOVAL, "/pending_dynamic_removal"),
        (Self::PENDING_ACTIVE_HC, "/pending_active_hc"),
        (Self::EXCLUDED_VIA_IMMEDIATE_HC_FAIL, "/excluded_via_immediate_hc_fail"),
        (Self::ACTIVE_HC_TIMEOUT, "/active_hc_timeout"),
    ];

    /// Any of `flags` is set.
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// None is set.
    pub const NONE: Self = Self(0);

    /// Those of them that are in `flags`.
    #[must_use]
    pub const fn only(self, flags: Self) -> Self {
        Self(self.0 & flags.0)
    }

    /// Those of them that are not in `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Names of those set, in Envoy's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.has(*flag)).map(|(_, name)| name)
    }
}

/// One host of one cluster, shared by all threads.
#[derive(Debug, Default)]
pub struct HostHealth {
    flags: AtomicU32,
    /// Requests in flight from all workers, to it and to all hosts of its cluster; counted where a balancer goes by them.
    active: AtomicU32,
    cluster_active: Arc<AtomicU32>,
    /// Failures in a row, by [`InARow`].
    in_a_row: [AtomicU32; 3],
    /// Counts of each worker that knows the host.
    tallies: Mutex<Vec<Weak<Tally>>>,
    /// How long it keeps idle connections.
    pub(crate) keep_alive: KeepAlive,
    /// Room for connections of all workers, where they are limited per host.
    pub(crate) connections: Arc<Slots>,
}

/// What is counted as long as nothing else comes between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InARow {
    Any5xx,
    Gateway,
    LocalOrigin,
}

/// One worker's requests to a host. Only its worker writes it, so counting is a load and a store.
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

/// Requests and how many of them went well.
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
        // Success first: read in this order it never exceeds the total.
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
    /// A host of the cluster whose requests in flight are counted there.
    pub(crate) fn of_cluster(active: &Arc<AtomicU32>) -> Self {
        Self { cluster_active: active.clone(), ..Self::default() }
    }

    /// A request begins. Relaxed: balancers compare counts that change under their eyes anyway.
    pub(crate) fn begin_request(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.cluster_active.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that was counted ends.
    pub(crate) fn end_request(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.cluster_active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests in flight from all workers.
    pub(crate) fn active(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    /// The same, to all hosts of its cluster.
    pub(crate) fn cluster_active(&self) -> u32 {
        self.cluster_active.load(Ordering::Relaxed)
    }

    /// What is known of it now.
    pub fn flags(&self) -> HealthFlags {
        HealthFlags(self.flags.load(Ordering::Acquire))
    }

    /// It asks to be left out until it passes its checks again; true when that is news.
    pub(crate) fn fail_at_once(&self) -> bool {
        let failed = HealthFlags::FAILED_ACTIVE_HC.and(HealthFlags::EXCLUDED_VIA_IMMEDIATE_HC_FAIL);
        self.change(failed, HealthFlags::default())
    }

    /// Sets and clears flags at once; true when that changed anything.
    pub(super) fn change(&self, set: HealthFlags, clear: HealthFlags) -> bool {
        let next = |flags: u32| (flags & !clear.0) | set.0;
        let before = self.flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, |flags| Some(next(flags)));
        before.is_ok_and(|before| before != next(before))
    }

    /// One more in a row; how many there are now.
    pub(super) fn again(&self, what: InARow) -> u32 {
        self.in_a_row[what as usize].fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The row ends. Writes only when there is one: healthy hosts' counts stay in every worker's cache.
    pub(super) fn end_row(&self, what: InARow) {
        let count = &self.in_a_row[what as usize];
        if count.load(Ordering::Relaxed) != 0 {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// A worker begins to count for this host.
    pub fn tally(&self) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.retain(|known| known.strong_count() > 0);
        tallies.push(Arc::downgrade(&tally));
        tally
    }

    /// Counts of all workers: what hosts answered, and what the proxy saw itself.
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
