//! Series whose labels come from traffic, such as one per pair of services: their number is limited, and unused ones expire.

use std::borrow::Borrow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use crate::layout::{Layout, Shape, Shaped};
use crate::lifetime::Lifetime;
use crate::list::Index;
use crate::scope::{Scope, ScopeCore, ScopeName, push_label};
use crate::writer::{SharedWriter, Writer};

/// Label of the series that counts everything beyond the limit.
const OVERFLOW: &str = "overflow=\"true\"";

crate::layout! {
    /// `metric_series.NAME.`: the series of one [`Families`].
    pub mod metric_series {
        counters {
            /// Times a series was requested and not created, because the limit was reached: it is counted in overflow="true".
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
    /// The prefix of each metric's name.
    pub prefix: &'static str,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Maximum number of series; further ones are counted together in one whose only label is `overflow="true"`.
    pub max_series: usize,
    /// A series expires when nothing was counted in it for this long and all its gauges are zero.
    pub expire_after: Option<Duration>,
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
        let mut labels = LabelValues::new(self.core.options.labels);
        values.iter().for_each(|value| labels.push(value));
        self.core.writer(&labels.text, true)
    }

    /// Returns a writer of the series that counts everything beyond the limit.
    pub fn overflow(&self) -> Writer<L> {
        // This series does not count toward the limit, so it can always be created.
        self.core.writer(OVERFLOW, false).unwrap_or_else(|| Scope::detached().writer())
    }

    /// Like [`series`](Self::series), for several threads; beyond the limit a writer of the overflow series. The series is
    /// looked up with each call.
    pub fn shared(&self, values: &[&str]) -> SharedWriter<L> {
        SharedWriter::of(self.series(values).unwrap_or_else(|| self.overflow()))
    }

    /// Creates the handles of one worker, which finds its series by keys of its choice.
    pub fn handles<K: Hash + Eq>(&self) -> SeriesHandles<K, L> {
        SeriesHandles {
            families: self.clone(),
            known: RefCell::default(),
            overflow: OnceCell::new(),
            seen: Cell::new(self.core.expired.load(Relaxed)),
        }
    }
}

/// The series that one worker has looked up, by a key that is cheap to compute: the labels are only needed when the key is
/// new.
pub struct SeriesHandles<K, L> {
    families: Families<L>,
    known: RefCell<HashMap<K, Rc<Writer<L>>>>,
    overflow: OnceCell<Rc<Writer<L>>>,
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
        let mut labels = LabelValues::new(core.options.labels);
        values(&mut labels);
        let Some(series) = core.writer(&labels.text, true).map(Rc::new) else {
            return Rc::clone(self.overflow.get_or_init(|| Rc::new(self.families.overflow())));
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
    text: String,
}

impl LabelValues {
    fn new(names: &'static [&'static str]) -> Self {
        Self { names: names.iter(), text: String::new() }
    }

    /// Adds the value of the next label; values beyond the last label are ignored.
    pub fn push(&mut self, value: &str) {
        if let Some(name) = self.names.next() {
            push_label(&mut self.text, name, value);
        }
    }
}

/// [`Families`] without the type of their layout.
pub(crate) struct FamiliesCore {
    pub(crate) options: FamiliesOptions,
    shape: &'static Shape,
    new_series: fn(&ScopeName) -> ScopeCore,
    series: Index<Arc<ScopeCore>>,
    /// Number of series that count toward the limit.
    kept: AtomicUsize,
    /// Increases when series expire, so that workers check which of theirs have.
    expired: AtomicU64,
    /// Times are measured from here.
    start: Instant,
    own: SharedWriter<metric_series::Stats>,
}

impl FamiliesCore {
    pub(crate) fn new<L: Layout>(
        options: FamiliesOptions,
        shape: &'static Shape,
        own: Scope<metric_series::Stats>,
    ) -> Self {
        let own = SharedWriter::of(own.writer());
        own.set(metric_series::Gauge::limit, i64::try_from(options.max_series).unwrap_or(i64::MAX));
        Self {
            options,
            shape,
            new_series: ScopeCore::new::<L>,
            series: Index::for_about(options.max_series),
            kept: AtomicUsize::new(0),
            expired: AtomicU64::new(0),
            start: Instant::now(),
            own,
        }
    }

    pub(crate) fn is<L: Layout>(&self, options: &FamiliesOptions) -> bool {
        self.options.name == options.name && self.shape.same(L::SHAPE)
    }

    fn writer<L: Layout>(&self, labels: &str, limited: bool) -> Option<Writer<L>> {
        let hash = self.series.hash((labels, ""));
        // Joining fails when the series has just ended.
        let joined = |series: &Arc<ScopeCore>| {
            let lifetime = series.lifetime.as_ref().filter(|_| *series.labels == *labels)?;
            lifetime.join().then(|| Arc::clone(series))
        };
        let known = self.series.find(hash, joined);
        if known.is_none() && limited && !self.reserve() {
            self.own.inc(metric_series::Counter::refused_total);
            return None;
        }
        let series = known.unwrap_or_else(|| self.insert(hash, labels, limited, joined));
        let shard = series.shard();
        Some(Writer::new(Scope::from_core(series), shard))
    }

    /// Adds a series; if `limited`, its place within the limit has been taken already.
    fn insert(
        &self,
        hash: u64,
        labels: &str,
        limited: bool,
        joined: impl Fn(&Arc<ScopeCore>) -> Option<Arc<ScopeCore>>,
    ) -> Arc<ScopeCore> {
        let name = ScopeName::labelled(self.options.prefix, Vec::new());
        let lifetime = Lifetime::new(limited);
        let new = Arc::new((self.new_series)(&name).shaped(self.shape).limited(labels, lifetime));
        match self.series.find_or_insert(hash, joined, || Arc::clone(&new)) {
            Ok(known) => {
                if limited {
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

    /// Adds the series that are reported to `all`.
    pub(crate) fn reported(&self, all: &mut Vec<Arc<ScopeCore>>) {
        self.own.set(metric_series::Gauge::kept, i64::try_from(self.kept.load(Relaxed)).unwrap_or(i64::MAX));
        self.series.for_each(|series| {
            let lifetime = series.lifetime.as_ref();
            if lifetime.is_none_or(|lifetime| lifetime.is_reported(series.activity())) {
                all.push(Arc::clone(series));
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
            let removed =
                self.series.remove(self.series.hash((&series.labels, "")), |known| Arc::ptr_eq(known, &series));
            if series.lifetime.as_ref().is_some_and(|lifetime| lifetime.limited) {
                self.kept.fetch_sub(removed, AcqRel);
            }
        }
        self.own.add(metric_series::Counter::expired_total, expired);
        self.expired.fetch_add(expired, Relaxed);
    }
}

impl ScopeCore {
    fn is_idle(&self) -> bool {
        self.lifetime.as_ref().is_some_and(Lifetime::is_idle)
    }
}
