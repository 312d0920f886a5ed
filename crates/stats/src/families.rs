//! Scopes whose labels come from traffic: there are only so many of them, and one that nobody touches goes.

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

/// Labels of the one series that takes what comes when there are as many series as there may be.
const OVERFLOW: &str = "overflow=\"true\"";

crate::layout! {
    /// `metric_series.NAME.`: the series of one [`Families`].
    pub mod metric_series {
        counters {
            /// Times a series was asked for and not made, for there were as many as there may be: it is counted in overflow="true".
            refused_total,
            /// Series that are no longer reported, for nobody touched them for some time.
            expired_total,
        }
        gauges {
            /// Series that are kept.
            kept,
            /// As many may be kept.
            limit,
        }
        histograms {}
        statuses None
    }
}

/// What [`Families`] are called, and how many series they may have.
#[derive(Debug, Clone, Copy)]
pub struct FamiliesOptions {
    /// Names them in `evenkeel_metric_series_…{family="NAME"}`.
    pub name: &'static str,
    /// What stands before each metric's name.
    pub prefix: &'static str,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Further ones are counted together in one, whose only label is `overflow="true"`.
    pub max_series: usize,
    /// A series is no longer reported when nothing was counted in it for so long and all its gauges are zero.
    pub expire_after: Option<Duration>,
}

/// The metric families of a layout, one for each of its metrics, whose series have labels that come from traffic. A series is a
/// [`Scope`]: it has a value of each metric. Cloning gives the same families.
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

    /// A writer of the series with these values, in the order of the labels; `None` when there are as many series as there may be.
    pub fn series(&self, values: &[&str]) -> Option<Writer<L>> {
        let mut labels = LabelValues::new(self.core.options.labels);
        values.iter().for_each(|value| labels.push(value));
        self.core.writer(&labels.text, true)
    }

    /// A writer of the series that takes what has none of its own.
    pub fn overflow(&self) -> Writer<L> {
        // Its number is not limited, so there is one.
        self.core.writer(OVERFLOW, false).unwrap_or_else(|| Scope::detached().writer())
    }

    /// The same as one of several threads, of the series or of the one for overflow. It is looked up each time.
    pub fn shared(&self, values: &[&str]) -> SharedWriter<L> {
        SharedWriter::of(self.series(values).unwrap_or_else(|| self.overflow()))
    }

    /// Handles of series that one worker keeps, by keys of its own.
    pub fn handles<K: Hash + Eq>(&self) -> SeriesHandles<K, L> {
        SeriesHandles {
            families: self.clone(),
            known: RefCell::default(),
            overflow: OnceCell::new(),
            seen: Cell::new(self.core.expired.load(Relaxed)),
        }
    }
}

/// Series one worker has looked up, by a key that is cheap to make: the labels are only asked for when the key is new.
pub struct SeriesHandles<K, L> {
    families: Families<L>,
    known: RefCell<HashMap<K, Rc<Writer<L>>>>,
    overflow: OnceCell<Rc<Writer<L>>>,
    /// So many series had expired when it was looked last which of those here did.
    seen: Cell<u64>,
}

impl<K, L> fmt::Debug for SeriesHandles<K, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SeriesHandles({})", self.families.core.options.name)
    }
}

impl<K: Hash + Eq, L: Layout> SeriesHandles<K, L> {
    /// The series of that key; `values` adds the values of its labels if it is not known here.
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
        // Several keys may stand for one series, so this has a limit of its own.
        let mut known = self.known.borrow_mut();
        if known.len() < core.options.max_series {
            known.insert(key.to_owned(), Rc::clone(&series));
        }
        series
    }
}

/// The labels of a series, as they are added.
#[derive(Debug)]
pub struct LabelValues {
    names: std::slice::Iter<'static, &'static str>,
    text: String,
}

impl LabelValues {
    fn new(names: &'static [&'static str]) -> Self {
        Self { names: names.iter(), text: String::new() }
    }

    /// The value of the next label; beyond the last one it is left out.
    pub fn push(&mut self, value: &str) {
        if let Some(name) = self.names.next() {
            push_label(&mut self.text, name, value);
        }
    }
}

/// [`Families`] without their type.
pub(crate) struct FamiliesCore {
    pub(crate) options: FamiliesOptions,
    shape: &'static Shape,
    new_series: fn(&ScopeName) -> ScopeCore,
    series: Index<Arc<ScopeCore>>,
    /// Series that count for the limit.
    kept: AtomicUsize,
    /// Grows when series expire, so that workers look which of theirs did.
    expired: AtomicU64,
    /// Times are told since then.
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
        // Joining fails when the series has just gone.
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

    /// A place for one more series was taken already if `limited`.
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

    /// Series that are reported.
    pub(crate) fn reported(&self, all: &mut Vec<Arc<ScopeCore>>) {
        self.own.set(metric_series::Gauge::kept, i64::try_from(self.kept.load(Relaxed)).unwrap_or(i64::MAX));
        self.series.for_each(|series| {
            let lifetime = series.lifetime.as_ref();
            if lifetime.is_none_or(|lifetime| lifetime.is_reported(series.activity())) {
                all.push(Arc::clone(series));
            }
        });
    }

    /// Lets go of series nobody has touched for long enough.
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
