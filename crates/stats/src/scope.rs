//! Scopes, and how they are called.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

use crate::histogram::HistogramSnapshot;
use crate::layout::{Layout, Shape, Shaped};
use crate::lifetime::Lifetime;
use crate::list::{Index, List};
use crate::shard::Shard;

/// How a scope's metrics are called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScopeName {
    /// What stands before the metric's name in `/stats`: `cluster.NAME.`. Empty: it is called there as it is in Prometheus text.
    pub dotted: String,
    /// What stands before it in Prometheus text, tags taken out: `envoy_cluster_`.
    pub family: String,
    /// Prometheus labels.
    pub tags: Vec<(&'static str, String)>,
}

impl ScopeName {
    /// A scope without tags: `server.` becomes `envoy_server_`.
    pub fn plain(dotted: &str) -> Self {
        Self { dotted: dotted.to_owned(), family: format!("envoy_{}", sanitized(dotted)), tags: Vec::new() }
    }

    /// `KIND.VALUE.` with the value as tag: `cluster.NAME.` becomes `envoy_cluster_…{envoy_cluster_name="NAME"}`.
    pub fn tagged(kind: &str, tag: &'static str, value: &str) -> Self {
        Self {
            dotted: format!("{kind}.{value}."),
            family: format!("envoy_{}_", sanitized(kind)),
            tags: vec![(tag, value.to_owned())],
        }
    }

    /// Without a name of Envoy's: the metrics' names begin with `prefix`, and have these labels.
    pub fn labelled(prefix: &str, tags: Vec<(&'static str, String)>) -> Self {
        Self { dotted: String::new(), family: prefix.to_owned(), tags }
    }
}

/// Characters Prometheus refuses in a metric's name become `_`.
pub(crate) fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == ':' { c } else { '_' }).collect()
}

/// Appends `NAME="VALUE"`, after a comma unless it is the first, with what a value may not hold escaped.
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
    /// A scope no registry reports, for numbers shown elsewhere.
    pub fn detached() -> Self {
        Self::from_core(Arc::new(ScopeCore::new::<L>(&ScopeName::default())))
    }

    /// A counter's value over all shards.
    pub fn counter(&self, counter: L::Counter) -> u64 {
        self.core.counter(counter.into())
    }

    /// A gauge's value over all shards.
    pub fn gauge(&self, gauge: L::Gauge) -> i64 {
        self.core.gauge(gauge.into())
    }
}

/// A scope without its type.
pub(crate) struct ScopeCore {
    /// As in [`ScopeName`].
    pub(crate) dotted: Box<str>,
    pub(crate) family: Box<str>,
    /// As they are written between the braces.
    pub(crate) labels: Box<str>,
    pub(crate) shape: &'static Shape,
    shards: List<Arc<Shard>>,
    /// Shards that no writer holds.
    pub(crate) free: AtomicUsize,
    /// For series of [`crate::Families`].
    pub(crate) lifetime: Option<Lifetime>,
    /// Where it is reported until it is dropped.
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
            lifetime: None,
            listed: None,
        }
    }

    /// A scope with other buckets.
    pub(crate) fn shaped(mut self, shape: &'static Shape) -> Self {
        self.shape = shape;
        self
    }

    /// A scope its registry reports until it is dropped.
    pub(crate) fn listed(mut self, scopes: &Arc<Scopes>, hash: u64) -> Self {
        self.listed = Some((Arc::downgrade(scopes), hash));
        self
    }

    /// A series of [`crate::Families`].
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

    /// What stands before a metric's name in `/stats`.
    pub(crate) fn prefix(&self) -> &str {
        if self.dotted.is_empty() { &self.family } else { &self.dotted }
    }

    /// A metric's name in `/stats`.
    pub(crate) fn name_of(&self, metric: &str) -> String {
        match self.dotted.is_empty() && !self.labels.is_empty() {
            true => format!("{}{metric}{{{}}}", self.family, self.labels),
            false => format!("{}{metric}", self.prefix()),
        }
    }

    /// A free shard, or a new one. With none free it looks at none.
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
        shard
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

    /// Some status was counted.
    pub(crate) fn has_statuses(&self) -> bool {
        self.shards.find(|shard| shard.has_statuses().then_some(())).is_some()
    }

    pub(crate) fn histogram(&self, at: usize) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::new(self.shape.histograms.get(at).map_or(&[], |metric| metric.bounds));
        self.shards.for_each(|shard| shard.add_histogram(at, &mut snapshot));
        snapshot
    }

    /// Differs from what it was when anything was counted since; `None`: a gauge is not zero.
    pub(crate) fn activity(&self) -> Option<u64> {
        let is_level = (0..self.shape.gauges.len()).all(|at| self.gauge(at) == 0);
        is_level.then(|| self.sum(|shard| shard.activity()))
    }
}

fn read(cells: &[AtomicU64], at: usize) -> u64 {
    cells.get(at).map_or(0, |cell| cell.load(Relaxed))
}
