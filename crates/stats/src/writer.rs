//! Handles to count with: a [`Writer`] for one thread, a [`SharedWriter`] for several.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::exemplar::Exemplar;
use crate::histogram;
use crate::layout::{Layout, Shaped};
use crate::scope::Scope;
use crate::shard::{FIRST_STATUS, Shard, bump};

/// A shard held by a writer. Its counts stay in the scope when it is released.
struct TakenShard<L> {
    shard: Arc<Shard>,
    scope: Scope<L>,
}

impl<L> Drop for TakenShard<L> {
    fn drop(&mut self) {
        let core = self.scope.core();
        core.free.fetch_add(1, Relaxed);
        self.shard.taken.store(false, Release);
        if let Some(lifetime) = &core.lifetime {
            lifetime.leave();
        }
    }
}

impl<L: Layout> Scope<L> {
    /// Takes a shard and returns its writer. The counts stay in the scope after the writer is dropped, and the next writer of
    /// the shard adds to them.
    pub fn writer(&self) -> Writer<L> {
        Writer::new(self.clone(), self.core().shard())
    }
}

/// The only writer of a shard: counting is a plain load and store. It may move between threads but cannot be shared.
pub struct Writer<L> {
    taken: TakenShard<L>,
    one_thread: PhantomData<Cell<()>>,
}

impl<L> fmt::Debug for Writer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({:?})", self.taken.scope)
    }
}

impl<L: Layout> Writer<L> {
    pub(crate) fn new(scope: Scope<L>, shard: Arc<Shard>) -> Self {
        Self { taken: TakenShard { shard, scope }, one_thread: PhantomData }
    }

    /// Counts one.
    #[inline]
    pub fn inc(&self, counter: L::Counter) {
        self.add(counter, 1);
    }

    /// Counts `amount`.
    #[inline]
    pub fn add(&self, counter: L::Counter, amount: u64) {
        bump(&self.taken.shard.counters[counter.into()], amount);
    }

    /// Sets this shard's part of a counter that holds a time, see [`Scope::latest`].
    #[inline]
    pub fn set_time(&self, counter: L::Counter, time: u64) {
        self.taken.shard.counters[counter.into()].store(time, Relaxed);
    }

    /// Changes a gauge by `by`.
    #[inline]
    pub fn shift(&self, gauge: L::Gauge, by: i64) {
        bump(&self.taken.shard.gauges[gauge.into()], by as u64);
    }

    /// Sets this shard's part of a gauge.
    #[inline]
    pub fn set(&self, gauge: L::Gauge, value: i64) {
        self.taken.shard.gauges[gauge.into()].store(value as u64, Relaxed);
    }

    /// Records a value, in the histogram's unit.
    #[inline]
    pub fn record(&self, histogram: L::Histogram, value: u64) {
        self.record_in(histogram.into(), value as f64);
    }

    /// Records a value, and returns the index of its bucket.
    #[inline]
    fn record_in(&self, at: usize, value: f64) -> usize {
        let shard = &*self.taken.shard;
        if shard.is_apart.load(Relaxed) {
            return shard.record_apart(at, value);
        }
        // With the layout's own buckets the bounds are known at compile time.
        let row = &shard.histograms[at * L::STRIDE..][..L::STRIDE];
        histogram::record(row, L::HISTOGRAMS[at].bounds, value)
    }

    /// Records a value with its exemplar.
    #[inline]
    pub fn record_traced(&self, histogram: L::Histogram, value: u64, exemplar: &Exemplar) {
        let (at, value) = (histogram.into(), value as f64);
        let bucket = self.record_in(at, value);
        if let Some(slot) = self.taken.shard.exemplar_to_write(at, bucket) {
            slot.put(exemplar, value);
        }
    }

    /// Records a value, with its exemplar if it has one.
    #[inline]
    pub fn record_with(&self, histogram: L::Histogram, value: u64, exemplar: Option<&Exemplar>) {
        match exemplar {
            None => self.record(histogram, value),
            Some(exemplar) => self.record_traced(histogram, value, exemplar),
        }
    }

    /// Counts one response with this HTTP status; statuses outside 100–599 are not counted.
    #[inline]
    pub fn status(&self, status: u16) {
        let statuses = self.taken.shard.statuses_to_write();
        if let Some(counter) = status.checked_sub(FIRST_STATUS).and_then(|at| statuses.get(usize::from(at))) {
            bump(counter, 1);
        }
    }

    /// Returns the scope.
    pub fn scope(&self) -> &Scope<L> {
        &self.taken.scope
    }
}

/// A writer for several threads: each operation is an atomic read-modify-write. Not for the request path.
pub struct SharedWriter<L> {
    taken: TakenShard<L>,
}

impl<L> fmt::Debug for SharedWriter<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWriter({:?})", self.taken.scope)
    }
}

impl<L: Layout> SharedWriter<L> {
    /// Lets several threads use a writer.
    pub fn of(writer: Writer<L>) -> Self {
        Self { taken: writer.taken }
    }

    /// Counts one.
    pub fn inc(&self, counter: L::Counter) {
        self.add(counter, 1);
    }

    /// Counts `amount`.
    pub fn add(&self, counter: L::Counter, amount: u64) {
        self.taken.shard.counters[counter.into()].fetch_add(amount, Relaxed);
    }

    /// Sets a counter to a total that is counted elsewhere.
    pub fn set_total(&self, counter: L::Counter, total: u64) {
        self.taken.shard.counters[counter.into()].store(total, Relaxed);
    }

    /// Changes a gauge by `by`.
    pub fn shift(&self, gauge: L::Gauge, by: i64) {
        self.taken.shard.gauges[gauge.into()].fetch_add(by as u64, Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, gauge: L::Gauge, value: i64) {
        self.taken.shard.gauges[gauge.into()].store(value as u64, Relaxed);
    }

    /// Records the same value `times` times, in the histogram's unit.
    pub fn record(&self, histogram: L::Histogram, value: f64, times: u64) {
        let (row, bounds) = self.taken.shard.histogram(histogram.into());
        histogram::merge(row, [(histogram::bucket_of(bounds, value), times)].into_iter(), value * times as f64);
    }

    /// Adds values that were recorded elsewhere: the counts of the layout's buckets and beyond the last, and their sum. If
    /// the scope has other buckets, values count at the upper bound of the bucket that they were in.
    pub fn merge(&self, histogram: L::Histogram, counts: &[u64], sum: f64) {
        let at = histogram.into();
        let (row, bounds) = self.taken.shard.histogram(at);
        let counted = L::HISTOGRAMS[at].bounds;
        let uppers = counted.iter().copied().chain([f64::INFINITY]);
        let counts = uppers.zip(counts).map(|(upper, count)| (histogram::bucket_of(bounds, upper), *count));
        histogram::merge(row, counts, sum);
    }

    /// Returns the scope.
    pub fn scope(&self) -> &Scope<L> {
        &self.taken.scope
    }
}
