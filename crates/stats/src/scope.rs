//! Scopes and their names.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

use crate::histogram::HistogramSnapshot;
use crate::layout::{Layout, Shape, Shaped};
use crate::lifetime::Lifetime;
use crate::list::{Index, List};
use crate::native::NativeBuckets;
use crate::shard::Shard;

/// The names of a scope's metrics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScopeName {
    /// Prefix of the metrics' names in `/stats`: `cluster.NAME.`. If empty, `/stats` uses the Prometheus names.
    pub dotted: String,
    /// Prefix in Prometheus text, without tags: `envoy_cluster_`.
    pub family: String,
    /// Prometheus labels.
    pub tags: Vec<(&'static str, String)>,
}

impl ScopeName {
    /// Names a scope without tags: `server.` becomes `envoy_server_`.
    pub fn plain(dotted: &str) -> Self {
        Self { dotted: dotted.to_owned(), family: format!("envoy_{}", sanitized(dotted)), tags: Vec::new() }
    }

    /// Names a scope `KIND.VALUE.` with the value as tag: `cluster.NAME.` becomes
    /// `envoy_cluster_…{envoy_cluster_name="NAME"}`.
    pub fn tagged(kind: &str, tag: &'static str, value: &str) -> Self {
        Self {
            dotted: format!("{kind}.{value}."),
            family: format!("envoy_{}_", sanitized(kind)),
            tags: vec![(tag, value.to_owned())],
        }
    }

    /// Names a scope that Envoy does not have: its metrics' names begin with `prefix` and have these labels.
    pub fn labelled(prefix: &str, tags: Vec<(&'static str, String)>) -> Self {
        Self { dotted: String::new(), family: prefix.to_owned(), tags }
    }
}

/// Replaces characters that Prometheus forbids in a metric's name by `_`.
pub(crate) fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == ':' { c } else { '_' }).collect()
}

/// Appends `NAME="VALUE"` with the value escaped, after a comma unless it is the first.
pub(crate) fn push_label(text: &mut String, name: &str, value: &str) {
    if !text.is_empty() {
        text.push(',');
    }
    text.push_str(name);
    text.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
    text.push('"');
}

/// A named group of metrics.
pub struct Scope<L> {
    core: Arc<ScopeCore>,
    layout: PhantomData<fn() -> L>,
}

impl<L> Clone for Scope<L> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), layout: PhantomData }
    }
}

impl<L> fmt::Debug for Scope<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({}{{{}}})", self.core.prefix(), self.core.labels)
    }
}

impl<L> Scope<L> {
    pub(crate) fn from_core(core: Arc<ScopeCore>) -> Self {
        Self { core, layout: PhantomData }
    }

    pub(crate) fn core(&self) -> &Arc<ScopeCore> {
        &self.core
    }
}

impl<L: Layout> Scope<L> {
    /// Creates a scope that no registry reports, for numbers shown elsewhere.
    pub fn detached() -> Self {
        Self::from_core(Arc::new(ScopeCore::new::<L>(&ScopeName::default())))
    }

    /// Returns a counter's value over all shards.
    pub fn counter(&self, counter: L::Counter) -> u64 {
        self.core.counter(counter.into())
    }

    /// Returns the greatest value that a counter has in any shard, for counters that hold a time.
    pub fn latest(&self, counter: L::Counter) -> u64 {
        let mut latest = 0;
        self.core.shards.for_each(|shard| latest = latest.max(read(&shard.counters, counter.into())));
        latest
    }

    /// Returns a gauge's value over all shards.
    pub fn gauge(&self, gauge: L::Gauge) -> i64 {
        self.core.gauge(gauge.into())
    }
}

/// A scope without the type of its layout.
pub(crate) struct ScopeCore {
    /// As in [`ScopeName`].
    pub(crate) dotted: Box<str>,
    pub(crate) family: Box<str>,
    /// The labels in Prometheus' syntax, without braces.
    pub(crate) labels: Box<str>,
    pub(crate) shape: &'static Shape,
    shards: List<Arc<Shard>>,
    /// Number of shards that no writer holds.
    pub(crate) free: AtomicUsize,
    /// Whether the registry counts values in native buckets, too.
    natively: Arc<AtomicBool>,
    /// Set for series of [`crate::Families`].
    pub(crate) lifetime: Option<Lifetime>,
    /// The index that reports it until it is dropped, and its hash there.
    listed: Option<(Weak<Scopes>, u64)>,
}

/// The scopes of a registry.
pub(crate) type Scopes = Index<Weak<ScopeCore>>;

impl Drop for ScopeCore {
    fn drop(&mut self) {
        if let Some((scopes, hash)) = self.listed.take()
            && let Some(scopes) = scopes.upgrade()
        {
            scopes.remove(hash, |listed| std::ptr::eq(listed.as_ptr(), self));
        }
    }
}

impl ScopeCore {
    pub(crate) fn new<L: Layout>(name: &ScopeName) -> Self {
        let mut labels = String::new();
        name.tags.iter().for_each(|(name, value)| push_label(&mut labels, name, value));
        Self {
            dotted: name.dotted.as_str().into(),
            family: name.family.as_str().into(),
            labels: labels.into(),
            shape: L::SHAPE,
            shards: List::default(),
            free: AtomicUsize::new(0),
            natively: Arc::default(),
            lifetime: None,
            listed: None,
        }
    }

    /// Gives the scope other buckets.
    pub(crate) fn shaped(mut self, shape: &'static Shape) -> Self {
        self.shape = shape;
        self
    }

    /// Makes the scope count as its registry does.
    pub(crate) fn counted(mut self, natively: &Arc<AtomicBool>) -> Self {
        self.natively = Arc::clone(natively);
        self
    }

    /// Makes the scope remove itself from its registry when it is dropped.
    pub(crate) fn listed(mut self, scopes: &Arc<Scopes>, hash: u64) -> Self {
        self.listed = Some((Arc::downgrade(scopes), hash));
        self
    }

    /// Makes the scope a series of [`crate::Families`].
    pub(crate) fn limited(mut self, labels: &str, lifetime: Lifetime) -> Self {
        self.labels = labels.into();
        self.lifetime = Some(lifetime);
        self
    }

    /// Whether it has the other's name and metrics.
    pub(crate) fn is_called_as(&self, other: &Self) -> bool {
        (&self.dotted, &self.family, &self.labels) == (&other.dotted, &other.family, &other.labels)
            && self.shape.same(other.shape)
    }

    /// Returns the prefix of the metrics' names in `/stats`.
    pub(crate) fn prefix(&self) -> &str {
        if self.dotted.is_empty() { &self.family } else { &self.dotted }
    }

    /// Returns a metric's name in `/stats`.
    pub(crate) fn name_of(&self, metric: &str) -> String {
        if self.dotted.is_empty() && !self.labels.is_empty() {
            format!("{}{metric}{{{}}}", self.family, self.labels)
        } else {
            format!("{}{metric}", self.prefix())
        }
    }

    /// Returns a free shard, or a new one. Without free shards none is examined.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        if self.free.load(Relaxed) > 0 {
            let free = self.shards.find(|shard| (!shard.taken.swap(true, AcqRel)).then(|| Arc::clone(shard)));
            if let Some(shard) = free {
                self.free.fetch_sub(1, Relaxed);
                return shard;
            }
        }
        let shard = Arc::new(Shard::new(self.shape));
        self.shards.push(Arc::clone(&shard));
        // Looked at only now: whoever sets it walks over the shards afterwards.
        if self.natively.load(SeqCst) {
            shard.count_natively();
        }
        shard
    }

    /// From now on, values are counted in native buckets, too.
    pub(crate) fn count_natively(&self) {
        self.shards.for_each(|shard| shard.count_natively());
    }

    fn sum(&self, part: impl Fn(&Shard) -> u64) -> u64 {
        let mut sum = 0u64;
        self.shards.for_each(|shard| sum = sum.wrapping_add(part(shard)));
        sum
    }

    pub(crate) fn counter(&self, at: usize) -> u64 {
        self.sum(|shard| read(&shard.counters, at))
    }

    pub(crate) fn gauge(&self, at: usize) -> i64 {
        self.sum(|shard| read(&shard.gauges, at)) as i64
    }

    pub(crate) fn status(&self, at: usize) -> u64 {
        self.sum(|shard| shard.status(at))
    }

    /// Whether any status was counted.
    pub(crate) fn has_statuses(&self) -> bool {
        self.shards.find(|shard| shard.has_statuses().then_some(())).is_some()
    }

    pub(crate) fn histogram(&self, at: usize, natively: bool) -> HistogramSnapshot {
        // First, so that each value in native buckets is in the classic ones, too.
        let native = natively.then(|| {
            let mut buckets = NativeBuckets::default();
            self.shards.for_each(|shard| shard.add_native(at, &mut buckets));
            buckets
        });
        let mut snapshot = HistogramSnapshot::new(self.shape.histograms.get(at).map_or(&[], |metric| metric.bounds));
        self.shards.for_each(|shard| shard.add_histogram(at, &mut snapshot));
        HistogramSnapshot { native, ..snapshot }
    }

    /// Returns a value that changes when anything is counted; `None` while a gauge is not zero.
    pub(crate) fn activity(&self) -> Option<u64> {
        let is_level = (0..self.shape.gauges.len()).all(|at| self.gauge(at) == 0);
        is_level.then(|| self.sum(|shard| shard.activity()))
    }
}

fn read(cells: &[AtomicU64], at: usize) -> u64 {
    cells.get(at).map_or(0, |cell| cell.load(Relaxed))
}
