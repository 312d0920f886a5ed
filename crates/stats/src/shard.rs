//! One writer's part of a scope: its cells.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::exemplar::Slot;
use crate::histogram::HistogramSnapshot;
use crate::layout::Shape;

/// The first status that is counted, and how many are.
pub(crate) const FIRST_STATUS: u16 = 100;
pub(crate) const STATUSES: usize = 500;

/// Cells that one writer writes and everybody may read.
pub(crate) struct Shard {
    pub(crate) counters: Box<[AtomicU64]>,
    pub(crate) gauges: Box<[AtomicU64]>,
    /// A row of [`Shape::stride`] cells for each histogram.
    pub(crate) histograms: Box<[AtomicU64]>,
    /// By status, from [`FIRST_STATUS`]; made by the writer when the first status is counted.
    statuses: OnceLock<Box<[AtomicU64]>>,
    /// As the histograms' cells; made by the writer when the first exemplar comes.
    exemplars: OnceLock<Box<[Slot]>>,
    /// A writer holds it.
    pub(crate) taken: AtomicBool,
}

impl Shard {
    pub(crate) fn new(shape: &Shape) -> Self {
        Self {
            counters: zeros(shape.counters.len()),
            gauges: zeros(shape.gauges.len()),
            histograms: zeros(shape.histograms.len() * shape.stride),
            statuses: OnceLock::new(),
            exemplars: OnceLock::new(),
            taken: AtomicBool::new(true),
        }
    }

    /// Cells by status, for the one writer: nobody else makes them, so it never waits.
    #[inline]
    pub(crate) fn statuses_to_write(&self) -> &[AtomicU64] {
        self.statuses.get_or_init(|| zeros(STATUSES))
    }

    /// Slots for exemplars, for the one writer.
    pub(crate) fn exemplars_to_write(&self) -> &[Slot] {
        self.exemplars.get_or_init(|| self.histograms.iter().map(|_| Slot::default()).collect())
    }

    pub(crate) fn has_statuses(&self) -> bool {
        self.statuses.get().is_some()
    }

    pub(crate) fn status(&self, at: usize) -> u64 {
        self.statuses.get().and_then(|cells| cells.get(at)).map_or(0, |cell| cell.load(Relaxed))
    }

    /// Adds a histogram's values.
    pub(crate) fn add_histogram(&self, at: usize, shape: &Shape, snapshot: &mut HistogramSnapshot) {
        let row = at * shape.stride..(at + 1) * shape.stride;
        snapshot.add(self.histograms.get(row.clone()).unwrap_or_default());
        let exemplars = self.exemplars.get().and_then(|slots| slots.get(row)).unwrap_or_default();
        for (bucket, slot) in exemplars.iter().enumerate() {
            if let Some(taken) = slot.take() {
                snapshot.add_exemplar(bucket, taken);
            }
        }
    }

    /// Differs from what it was when anything was counted or recorded since. The sums of histograms are left out: their bits do
    /// not add up to anything.
    pub(crate) fn activity(&self, shape: &Shape) -> u64 {
        let sum = |cells: &[AtomicU64]| cells.iter().fold(0, |sum: u64, cell| sum.wrapping_add(cell.load(Relaxed)));
        let rows = self.histograms.chunks(shape.stride).filter_map(<[_]>::split_last);
        let statuses = self.statuses.get().map_or(0, |cells| sum(cells));
        rows.fold(sum(&self.counters).wrapping_add(statuses), |all, (_, buckets)| all.wrapping_add(sum(buckets)))
    }
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Counts in a cell that has one writer.
#[inline]
pub(crate) fn bump(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
}
