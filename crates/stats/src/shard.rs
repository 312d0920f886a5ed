//! Shards: the cells of one writer of a scope.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::exemplar::Slot;
use crate::histogram::{self, HistogramSnapshot};
use crate::layout::Shape;
use crate::native::{NativeBuckets, NativeCells};

/// The lowest HTTP status that is counted, and the number of statuses.
pub(crate) const FIRST_STATUS: u16 = 100;
pub(crate) const STATUSES: usize = 500;

/// The cells that one writer writes and all threads may read.
pub(crate) struct Shard {
    /// The shape of the scope.
    shape: &'static Shape,
    pub(crate) counters: Box<[AtomicU64]>,
    pub(crate) gauges: Box<[AtomicU64]>,
    /// A row of [`Shape::stride`] cells for each histogram.
    pub(crate) histograms: Box<[AtomicU64]>,
    /// Whether values are recorded by [`Self::record_apart`]: one flag for both reasons, because each recorded value needs it.
    pub(crate) is_apart: AtomicBool,
    /// Whether values are counted in native buckets, too.
    is_native: AtomicBool,
    /// Counters by status, from [`FIRST_STATUS`]; created by the writer when the first status is counted.
    statuses: OnceLock<Box<[AtomicU64]>>,
    /// Exemplars by histogram and bucket; created by the writer with the first exemplar.
    exemplars: OnceLock<Box<[Slot]>>,
    /// Native buckets by histogram; created by the writer with the first value after they were asked for.
    natives: OnceLock<Box<[NativeCells]>>,
    /// Whether a writer holds the shard.
    pub(crate) taken: AtomicBool,
}

impl Shard {
    pub(crate) fn new(shape: &'static Shape) -> Self {
        Self {
            shape,
            counters: zeros(shape.counters.len()),
            gauges: zeros(shape.gauges.len()),
            histograms: zeros(shape.histograms.len() * shape.stride),
            is_apart: AtomicBool::new(shape.is_chosen),
            is_native: AtomicBool::new(false),
            natives: OnceLock::new(),
            statuses: OnceLock::new(),
            exemplars: OnceLock::new(),
            taken: AtomicBool::new(true),
        }
    }

    /// Returns the counters by status, for the writer. No other thread creates them, so this never waits.
    #[inline]
    pub(crate) fn statuses_to_write(&self) -> &[AtomicU64] {
        self.statuses.get_or_init(|| zeros(STATUSES))
    }

    /// Returns the cells of a histogram, and the bounds of its buckets.
    pub(crate) fn histogram(&self, at: usize) -> (&[AtomicU64], &'static [f64]) {
        let stride = self.shape.stride;
        (&self.histograms[at * stride..][..stride], self.shape.histograms[at].bounds)
    }

    /// Records a value in a histogram whose buckets the configuration sets, or that has native ones. Returns the index of its bucket.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_apart(&self, at: usize, value: f64) -> usize {
        let (row, bounds) = self.histogram(at);
        // Created before the value is in the classic buckets, which they begin with.
        let native = self.is_native.load(Relaxed).then(|| self.natives_to_write().get(at)).flatten();
        let bucket = histogram::record(row, bounds, value);
        if let Some(native) = native {
            native.add(value, 1);
        }
        bucket
    }

    /// From now on, values are counted in native buckets, too.
    pub(crate) fn count_natively(&self) {
        self.is_native.store(true, Relaxed);
        self.is_apart.store(true, Relaxed);
    }

    /// Returns the native buckets, for the writer. They begin with what the classic ones have counted.
    fn natives_to_write(&self) -> &[NativeCells] {
        let seeded = |at| {
            let (row, bounds) = self.histogram(at);
            NativeCells::seeded(bounds, row)
        };
        self.natives.get_or_init(|| (0..self.shape.histograms.len()).map(seeded).collect())
    }

    /// Adds a histogram's native buckets.
    pub(crate) fn add_native(&self, at: usize, buckets: &mut NativeBuckets) {
        match self.natives.get().and_then(|natives| natives.get(at)) {
            Some(native) => buckets.add_cells(native),
            None => {
                let (row, bounds) = self.histogram(at);
                buckets.add_classic(bounds, row);
            }
        }
    }

    /// Returns the exemplar slot of a histogram's bucket, for the writer.
    #[inline]
    pub(crate) fn exemplar_to_write(&self, at: usize, bucket: usize) -> Option<&Slot> {
        let slots = self.exemplars.get_or_init(|| self.histograms.iter().map(|_| Slot::default()).collect());
        slots.get(at * self.shape.stride + bucket)
    }

    pub(crate) fn has_statuses(&self) -> bool {
        self.statuses.get().is_some()
    }

    pub(crate) fn status(&self, at: usize) -> u64 {
        self.statuses.get().and_then(|cells| cells.get(at)).map_or(0, |cell| cell.load(Relaxed))
    }

    /// Adds a histogram's values to the snapshot.
    pub(crate) fn add_histogram(&self, at: usize, snapshot: &mut HistogramSnapshot) {
        let row = at * self.shape.stride..(at + 1) * self.shape.stride;
        snapshot.add(self.histograms.get(row.clone()).unwrap_or_default());
        let exemplars = self.exemplars.get().and_then(|slots| slots.get(row)).unwrap_or_default();
        for (bucket, slot) in exemplars.iter().enumerate() {
            if let Some(taken) = slot.take() {
                snapshot.add_exemplar(bucket, taken);
            }
        }
    }

    /// Returns a value that changes when anything is counted or recorded. The sums of histograms are left out, because the
    /// bits of a float cannot be added up.
    pub(crate) fn activity(&self) -> u64 {
        let sum = |cells: &[AtomicU64]| cells.iter().fold(0, |sum: u64, cell| sum.wrapping_add(cell.load(Relaxed)));
        let rows = self.histograms.chunks(self.shape.stride).filter_map(<[_]>::split_last);
        let statuses = self.statuses.get().map_or(0, |cells| sum(cells));
        rows.fold(sum(&self.counters).wrapping_add(statuses), |all, (_, buckets)| all.wrapping_add(sum(buckets)))
    }
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Adds `amount` to a cell that has one writer.
#[inline]
pub(crate) fn bump(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
}
