//! Scopes, their shards, and the one writer of each shard.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::histogram::{Histogram, HistogramSnapshot};
use crate::layout::Layout;
use crate::registry::{Carried, Sample, Value};

const FIRST_STATUS: usize = 100;
const STATUSES: usize = 500;

/// How a scope's metrics are called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScopeName {
    /// What stands before the metric's name in `/stats`: `cluster.NAME.`.
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
}

/// Characters Prometheus refuses in a metric's name become `_`.
pub(crate) fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == ':' { c } else { '_' }).collect()
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
        write!(f, "Scope({})", self.core.name.dotted)
    }
}

impl<L: Layout> Scope<L> {
    /// A scope no registry reports, for numbers shown elsewhere.
    pub fn detached() -> Self {
        Self::from_core(Arc::new(ScopeCore::new::<L>(ScopeName::default())))
    }

    pub(crate) fn from_core(core: Arc<ScopeCore>) -> Self {
        Self { core, layout: PhantomData }
    }

    pub(crate) fn core(&self) -> &Arc<ScopeCore> {
        &self.core
    }

    /// A shard of one's own. Its counts stay in the scope after the writer is dropped; the next writer goes on from them.
    pub fn writer(&self) -> Writer<L> {
        let mut shards = self.core.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let free = shards.iter().find(|shard| !shard.taken.swap(true, Ordering::AcqRel));
        let shard = if let Some(shard) = free {
            Arc::clone(shard)
        } else {
            let shard = Arc::new(Shard::new(&self.core));
            shards.push(Arc::clone(&shard));
            shard
        };
        Writer { shard, scope: self.clone(), one_thread: PhantomData }
    }

    /// A counter's value over all shards.
    pub fn counter(&self, counter: L::Counter) -> u64 {
        self.core.sum(|shard| &shard.counters, counter.into())
    }

    /// A gauge's value over all shards.
    pub fn gauge(&self, gauge: L::Gauge) -> i64 {
        self.core.sum(|shard| &shard.gauges, gauge.into()) as i64
    }
}

/// The one writer of a shard. It may move between threads but not be shared.
pub struct Writer<L> {
    shard: Arc<Shard>,
    scope: Scope<L>,
    one_thread: PhantomData<Cell<()>>,
}

impl<L> fmt::Debug for Writer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({})", self.scope.core.name.dotted)
    }
}

impl<L: Layout> Writer<L> {
    /// Counts one.
    #[inline]
    pub fn inc(&self, counter: L::Counter) {
        self.add(counter, 1);
    }

    /// Counts `amount`.
    #[inline]
    pub fn add(&self, counter: L::Counter, amount: u64) {
        bump(&self.shard.counters[counter.into()], amount);
    }

    /// Moves a gauge.
    #[inline]
    pub fn shift(&self, gauge: L::Gauge, by: i64) {
        bump(&self.shard.gauges[gauge.into()], by as u64);
    }

    /// Sets this shard's part of a gauge.
    #[inline]
    pub fn set(&self, gauge: L::Gauge, value: i64) {
        self.shard.gauges[gauge.into()].store(value as u64, Ordering::Relaxed);
    }

    /// Records a value, in the histogram's unit.
    #[inline]
    pub fn record(&self, histogram: L::Histogram, value: u64) {
        self.shard.histograms[histogram.into()].record(value);
    }

    /// Counts one answer with this HTTP status; statuses outside 100–599 are not counted.
    #[inline]
    pub fn status(&self, status: u16) {
        let statuses = self.shard.statuses.get_or_init(|| (0..STATUSES).map(|_| AtomicU64::new(0)).collect());
        if let Some(counter) = usize::from(status).checked_sub(FIRST_STATUS).and_then(|at| statuses.get(at)) {
            bump(counter, 1);
        }
    }

    /// The scope written to.
    pub fn scope(&self) -> &Scope<L> {
        &self.scope
    }
}

impl<L> Drop for Writer<L> {
    fn drop(&mut self) {
        self.shard.taken.store(false, Ordering::Release);
    }
}

#[inline]
fn bump(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// One thread's part of a scope.
struct Shard {
    counters: Box<[AtomicU64]>,
    gauges: Box<[AtomicU64]>,
    histograms: Box<[Histogram]>,
    /// By status, from 100; made when the first status is counted.
    statuses: OnceLock<Box<[AtomicU64]>>,
    /// A writer holds it.
    taken: AtomicBool,
}

impl Shard {
    fn new(scope: &ScopeCore) -> Self {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            counters: zeros(scope.counters.len()),
            gauges: zeros(scope.gauges.len()),
            histograms: scope.histograms.iter().map(|_| Histogram::default()).collect(),
            statuses: OnceLock::new(),
            taken: AtomicBool::new(true),
        }
    }
}

/// A scope without its type.
pub(crate) struct ScopeCore {
    pub(crate) name: ScopeName,
    counters: &'static [&'static str],
    gauges: &'static [&'static str],
    histograms: &'static [&'static str],
    status_prefix: Option<&'static str>,
    once_counted: bool,
    shards: Mutex<Vec<Arc<Shard>>>,
}

impl ScopeCore {
    pub(crate) fn new<L: Layout>(name: ScopeName) -> Self {
        Self {
            name,
            counters: L::COUNTERS,
            gauges: L::GAUGES,
            histograms: L::HISTOGRAMS,
            status_prefix: L::STATUS_PREFIX,
            once_counted: L::ONCE_COUNTED,
            shards: Mutex::default(),
        }
    }

    /// Whether the scope has the metrics of `L`.
    pub(crate) fn has_layout<L: Layout>(&self) -> bool {
        std::ptr::eq(self.counters, L::COUNTERS) || self.counters == L::COUNTERS
    }

    fn sum(&self, part: impl Fn(&Shard) -> &[AtomicU64], at: usize) -> u64 {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.iter().fold(0, |sum, shard| sum.wrapping_add(part(shard)[at].load(Ordering::Relaxed)))
    }

    /// Appends every metric's current value.
    pub(crate) fn samples(&self, carried: &Carried, out: &mut Vec<Sample>) {
        let first = out.len();
        for (at, name) in self.counters.iter().enumerate() {
            out.push(self.sample(name, Value::Counter(self.sum(|shard| &shard.counters, at))));
        }
        for (at, name) in self.gauges.iter().enumerate() {
            out.push(self.sample(name, Value::Gauge(self.sum(|shard| &shard.gauges, at) as i64)));
        }
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, name) in self.histograms.iter().enumerate() {
            let mut snapshot = HistogramSnapshot::default();
            shards.iter().for_each(|shard| shard.histograms[at].add_to(&mut snapshot));
            out.push(self.sample(name, Value::Histogram(Box::new(snapshot))));
        }
        if let Some(prefix) = self.status_prefix {
            for at in 0..STATUSES {
                let statuses = shards.iter().filter_map(|shard| shard.statuses.get());
                let count = statuses.fold(0u64, |sum, cells| sum.wrapping_add(cells[at].load(Ordering::Relaxed)));
                let metric = || format!("{prefix}{}", at + FIRST_STATUS);
                if count > 0 || !carried.is_empty() && carried.counter(&format!("{}{}", self.name.dotted, metric())) > 0
                {
                    out.push(self.sample(&metric(), Value::Counter(count)));
                }
            }
        }
        if !carried.is_empty() {
            for sample in out.iter_mut().skip(first) {
                match &mut sample.value {
                    Value::Counter(value) => *value = value.wrapping_add(carried.counter(&sample.name)),
                    Value::Gauge(value) => *value = value.wrapping_add(carried.gauge(&sample.name)),
                    Value::Histogram(_) => {}
                }
            }
        }
        if self.once_counted {
            let all = out.split_off(first);
            out.extend(all.into_iter().filter(|sample| !sample.value.is_zero()));
        }
    }

    /// Takes the tags out of a metric's own name as Envoy's extractors do: `…_rq_503` and `…_rq_5xx`.
    fn sample(&self, metric: &str, value: Value) -> Sample {
        let mut tags = self.name.tags.clone();
        let mut base = metric.to_owned();
        if let Some((stem, last)) = metric.rsplit_once('_') {
            let digits = last.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 3 && last.len() == 3 {
                tags.push(("envoy_response_code", last.to_owned()));
                stem.clone_into(&mut base);
            } else if digits == 1 && last.ends_with("xx") && last.len() == 3 {
                tags.push(("envoy_response_code_class", last[..1].to_owned()));
                base = format!("{stem}_xx");
            }
        }
        Sample {
            name: format!("{}{metric}", self.name.dotted),
            family: format!("{}{}", self.name.family, sanitized(&base)),
            tags,
            value,
        }
    }
}
