//! Series whose labels come from traffic, such as one per pair of services: their number is limited, and unused ones expire.

use std::borrow::Borrow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::layout::{Layout, Shape, Shaped};
use crate::lifetime::Lifetime;
use crate::list::Index;
use crate::scope::{Scope, ScopeCore, ScopeName, push_label, sanitized};
use crate::tags::parsed;
use crate::writer::{SharedWriter, Writer};

/// The value of each label of the series that counts everything beyond the limit.
pub const OTHER: &str = "other";

/// Families that allow more series than this get an index for all of them at once.
const MANY_SERIES: usize = 1_000;

crate::layout! {
    /// `metric_series.NAME.`: the series of one [`Families`].
    pub mod metric_series {
        counters {
            /// Times a series was requested and not created, because the limit was reached: it is counted in the series "other".
            refused_total,
            /// Series that are no longer reported, because they were unused for some time.
            expired_total,
        }
        gauges {
            /// Series that exist.
            kept,
            /// Maximum number of series.
            limit,
        }
        histograms {}
        statuses None
    }
}

/// The name and limits of [`Families`].
#[derive(Debug, Clone, Copy)]
pub struct FamiliesOptions {
    /// The label in `evenkeel_metric_series_…{family="NAME"}`.
    pub name: &'static str,
    /// The prefix of each metric's name, after the name of the outer scope.
    pub prefix: &'static str,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Maximum number of series; further ones are counted together in one whose labels all have the value [`OTHER`].
    pub max_series: usize,
    /// A series expires when nothing was counted in it for this long and all its gauges are zero.
    pub expire_after: Option<Duration>,
    /// Where the series are reported.
    pub reported: Reported,
}

/// Where the series of [`Families`] are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// On all pages with statistics, and to statistics sinks.
    Everywhere,
    /// Only by [`Families::for_each`], for pages of their own.
    InView,
}

/// The metric families of a layout, one per metric, whose series have labels that come from traffic. A series is a [`Scope`]:
/// it has a value of each metric. Clones share the families.
pub struct Families<L> {
    core: Arc<FamiliesCore>,
    layout: PhantomData<fn() -> L>,
}

impl<L> Clone for Families<L> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), layout: PhantomData }
    }
}

impl<L> fmt::Debug for Families<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Families({})", self.core.options.name)
    }
}

impl<L: Layout> Families<L> {
    pub(crate) fn from_core(core: Arc<FamiliesCore>) -> Self {
        Self { core, layout: PhantomData }
    }

    /// Returns a writer of the series with these values, in the order of the labels; `None` when the limit of series is
    /// reached.
    pub fn series(&self, values: &[&str]) -> Option<Writer<L>> {
        let mut labels = LabelValues::new(&self.core);
        values.iter().for_each(|value| labels.push(value));
        self.core.writer(&labels.name, Limit::Counted)
    }

    /// Returns a writer of the series that counts everything beyond the limit.
    pub fn other(&self) -> Writer<L> {
        let mut labels = LabelValues::new(&self.core);
        // Without labels, the name has one part for all further values.
        (0..self.core.options.labels.len().max(1)).for_each(|_| labels.push(OTHER));
        // This series does not count toward the limit, so it can always be created.
        self.core.writer(&labels.name, Limit::Exempt).unwrap_or_else(|| Scope::detached().writer())
    }

    /// Calls `each` with the labels of each series that has not expired, in no particular order.
    pub fn for_each(&self, mut each: impl FnMut(&[(String, String)], &Scope<L>)) {
        self.core.for_each_reported(|series| {
            each(&parsed(&series.labels), &Scope::from_core(Arc::clone(series)));
        });
    }

    /// Like [`series`](Self::series), for several threads; beyond the limit a writer of the series [`OTHER`]. The series is
    /// looked up with each call.
    pub fn shared(&self, values: &[&str]) -> SharedWriter<L> {
        SharedWriter::of(self.series(values).unwrap_or_else(|| self.other()))
    }

    /// Creates the handles of one worker, which finds its series by keys of its choice.
    pub fn handles<K: Hash + Eq>(&self) -> SeriesHandles<K, L> {
        SeriesHandles {
            families: self.clone(),
            known: RefCell::default(),
            other: OnceCell::new(),
            seen: Cell::new(self.core.expired.load(Relaxed)),
        }
    }
}

/// The series that one worker has looked up, by a key that is cheap to compute: the labels are only needed when the key is
/// new.
pub struct SeriesHandles<K, L> {
    families: Families<L>,
    known: RefCell<HashMap<K, Rc<Writer<L>>>>,
    other: OnceCell<Rc<Writer<L>>>,
    /// Number of series that had expired when the handles were last checked.
    seen: Cell<u64>,
}

impl<K, L> fmt::Debug for SeriesHandles<K, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SeriesHandles({})", self.families.core.options.name)
    }
}

impl<K: Hash + Eq, L: Layout> SeriesHandles<K, L> {
    /// Returns the series of a key; `values` adds the values of its labels if the key is not known here.
    pub fn get<Q>(&self, key: &Q, values: impl FnOnce(&mut LabelValues)) -> Rc<Writer<L>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let core = &self.families.core;
        let expired = core.expired.load(Relaxed);
        if self.seen.replace(expired) != expired {
            self.known.borrow_mut().retain(|_, series| !series.scope().core().is_idle());
        }
        if let Some(series) = self.known.borrow().get(key) {
            return Rc::clone(series);
        }
        let mut labels = LabelValues::new(core);
        values(&mut labels);
        let Some(series) = core.writer(&labels.name, Limit::Counted).map(Rc::new) else {
            return Rc::clone(self.other.get_or_init(|| Rc::new(self.families.other())));
        };
        // Several keys may stand for one series, so the number of keys is limited separately.
        let mut known = self.known.borrow_mut();
        if known.len() < core.options.max_series {
            known.insert(key.to_owned(), Rc::clone(&series));
        }
        series
    }
}

/// Collects the labels of a series.
#[derive(Debug)]
pub struct LabelValues {
    names: std::slice::Iter<'static, &'static str>,
    name: SeriesName,
}

/// The name of a series.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SeriesName {
    /// As in [`ScopeName`].
    dotted: String,
    family: String,
    /// The labels in Prometheus' syntax, without braces.
    labels: String,
}

impl LabelValues {
    fn new(core: &FamiliesCore) -> Self {
        Self { names: core.options.labels.iter(), name: core.outer.clone() }
    }

    /// Adds a label of this name in place of those of the options.
    pub fn named(&mut self, name: &str, value: &str) {
        push_label(&mut self.name.labels, name, value);
    }

    /// Adds the value of the next label. Values beyond the last label become part of the metrics' names.
    pub fn push(&mut self, value: &str) {
        let SeriesName { dotted, family, labels } = &mut self.name;
        match self.names.next() {
            Some(name) => push_label(labels, name, value),
            None => {
                family.push_str(&sanitized(value));
                family.push('_');
            }
        }
        if !dotted.is_empty() {
            dotted.push_str(value);
            dotted.push('.');
        }
    }
}

/// Whether a series counts toward the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Counted,
    Exempt,
}

/// All families of a registry.
pub(crate) type AllFamilies = Index<Weak<FamiliesCore>>;

/// [`Families`] without the type of their layout.
pub(crate) struct FamiliesCore {
    pub(crate) options: FamiliesOptions,
    /// The name that those of all series begin with.
    outer: SeriesName,
    shape: &'static Shape,
    new_series: fn(&ScopeName) -> ScopeCore,
    series: Index<Arc<ScopeCore>>,
    /// Whether values are counted in native buckets, too.
    natively: Arc<AtomicBool>,
    /// Number of series that count toward the limit.
    kept: AtomicUsize,
    /// Increases when series expire, so that workers check which of theirs have.
    expired: AtomicU64,
    /// Times are measured from here.
    start: Instant,
    own: SharedWriter<metric_series::Stats>,
    /// The index that has it until it is dropped, and its hash there.
    listed: (Weak<AllFamilies>, u64),
}

impl Drop for FamiliesCore {
    fn drop(&mut self) {
        // The next families of that name continue with this writer's shard.
        self.own.set(metric_series::Gauge::kept, 0);
        self.own.set(metric_series::Gauge::limit, 0);
        let (index, hash) = &self.listed;
        if let Some(index) = index.upgrade() {
            index.remove(*hash, |listed| std::ptr::eq(listed.as_ptr(), self));
        }
    }
}

/// What [`Families`] are created from.
pub(crate) struct Origin<'o> {
    pub(crate) outer: &'o ScopeName,
    pub(crate) options: FamiliesOptions,
    pub(crate) shape: &'static Shape,
    pub(crate) own: Scope<metric_series::Stats>,
    pub(crate) natively: Arc<AtomicBool>,
    pub(crate) listed: (Weak<AllFamilies>, u64),
}

impl FamiliesCore {
    pub(crate) fn new<L: Layout>(origin: Origin<'_>) -> Self {
        let Origin { outer, options, shape, own, natively, listed } = origin;
        let own = SharedWriter::of(own.writer());
        own.set(metric_series::Gauge::limit, i64::try_from(options.max_series).unwrap_or(i64::MAX));
        Self {
            options,
            outer: SeriesName::below(outer, options.prefix),
            shape,
            new_series: ScopeCore::new::<L>,
            series: Index::for_about(expected_series(options.max_series)),
            natively,
            kept: AtomicUsize::new(0),
            expired: AtomicU64::new(0),
            start: Instant::now(),
            own,
            listed,
        }
    }

    pub(crate) fn is<L: Layout>(&self, options: &FamiliesOptions, outer: &ScopeName) -> bool {
        self.options.name == options.name
            && self.shape.same(L::SHAPE)
            && self.outer == SeriesName::below(outer, options.prefix)
    }

    fn writer<L: Layout>(&self, name: &SeriesName, limit: Limit) -> Option<Writer<L>> {
        let hash = self.series.hash((&name.labels, &name.family));
        // Joining fails when the series has just ended.
        let joined = |series: &Arc<ScopeCore>| {
            let lifetime = series.lifetime.as_ref().filter(|_| name.is_of(series))?;
            lifetime.join().then(|| Arc::clone(series))
        };
        let known = self.series.find(hash, joined);
        if known.is_none() && limit == Limit::Counted && !self.reserve() {
            self.own.inc(metric_series::Counter::refused_total);
            return None;
        }
        let series = known.unwrap_or_else(|| self.insert(hash, name, limit, joined));
        let shard = series.shard();
        Some(Writer::new(Scope::from_core(series), shard))
    }

    /// Adds a series; its place within the limit has been taken already.
    fn insert(
        &self,
        hash: u64,
        name: &SeriesName,
        limit: Limit,
        joined: impl Fn(&Arc<ScopeCore>) -> Option<Arc<ScopeCore>>,
    ) -> Arc<ScopeCore> {
        let scope = ScopeName { dotted: name.dotted.clone(), family: name.family.clone(), tags: Vec::new() };
        let lifetime = Lifetime::new(limit == Limit::Counted);
        let new = (self.new_series)(&scope).shaped(self.shape).counted(&self.natively);
        let new = Arc::new(new.limited(&name.labels, lifetime));
        match self.series.find_or_insert(hash, joined, || Arc::clone(&new)) {
            Ok(known) => {
                if limit == Limit::Counted {
                    self.kept.fetch_sub(1, AcqRel);
                }
                known
            }
            Err(()) => new,
        }
    }

    fn reserve(&self) -> bool {
        let more = |kept: usize| (kept < self.options.max_series).then_some(kept + 1);
        self.kept.fetch_update(AcqRel, Relaxed, more).is_ok()
    }

    /// Adds the series that pages with statistics report to `all`.
    pub(crate) fn reported(&self, all: &mut Vec<Arc<ScopeCore>>) {
        self.own.set(metric_series::Gauge::kept, i64::try_from(self.kept.load(Relaxed)).unwrap_or(i64::MAX));
        if self.options.reported == Reported::Everywhere {
            self.for_each_reported(|series| all.push(Arc::clone(series)));
        }
    }

    /// From now on, values are counted in native buckets, too.
    pub(crate) fn count_natively(&self) {
        self.series.for_each(|series| series.count_natively());
    }

    fn for_each_reported(&self, mut each: impl FnMut(&Arc<ScopeCore>)) {
        self.series.for_each(|series| {
            let lifetime = series.lifetime.as_ref();
            if lifetime.is_none_or(|lifetime| lifetime.is_reported(series.activity())) {
                each(series);
            }
        });
    }

    /// Expires series that have been unused for long enough.
    pub(crate) fn expire(&self, now: Instant) {
        let Some(after) = self.options.expire_after else { return };
        let now = now.saturating_duration_since(self.start);
        let (mut expired, mut gone) = (0, Vec::new());
        self.series.for_each(|series| {
            let Some(lifetime) = &series.lifetime else { return };
            if lifetime.observe(series.activity(), now, after) {
                expired += 1;
            }
            if lifetime.is_idle() && lifetime.end() {
                gone.push(Arc::clone(series));
            }
        });
        for series in gone {
            let removed = self
                .series
                .remove(self.series.hash((&series.labels, &series.family)), |known| Arc::ptr_eq(known, &series));
            if series.lifetime.as_ref().is_some_and(|lifetime| lifetime.limited) {
                self.kept.fetch_sub(removed, AcqRel);
            }
        }
        self.own.add(metric_series::Counter::expired_total, expired);
        self.expired.fetch_add(expired, Relaxed);
    }
}

/// The number of series that an index is made for: families that allow few may exist once per cluster, and most stay empty.
fn expected_series(max: usize) -> usize {
    if max > MANY_SERIES { max } else { max / 16 }
}

impl SeriesName {
    fn below(outer: &ScopeName, prefix: &str) -> Self {
        let mut labels = String::new();
        outer.tags.iter().for_each(|(name, value)| push_label(&mut labels, name, value));
        let dotted = if outer.dotted.is_empty() { String::new() } else { format!("{}{prefix}", outer.dotted) };
        Self { dotted, family: format!("{}{}", outer.family, sanitized(prefix)), labels }
    }

    fn is_of(&self, series: &ScopeCore) -> bool {
        (&*self.labels, &*self.family, &*self.dotted) == (&*series.labels, &*series.family, &*series.dotted)
    }
}

impl ScopeCore {
    fn is_idle(&self) -> bool {
        self.lifetime.as_ref().is_some_and(Lifetime::is_idle)
    }
}
