//! Measures whether a worker's thread is ever idle.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeMetrics};

/// Interval of measurements; a result is valid until the next.
const LOOK: Duration = Duration::from_millis(50);
/// Share of the time, in percent, from which a worker counts as never idle.
const BUSY_PERCENT: u32 = 75;

/// Measures how much of the time this thread's reactor was not waiting for events. Time in which the system ran
/// something else counts as busy: work has to wait then as well.
pub(super) struct IdleMeter {
    metrics: RuntimeMetrics,
    looked: Cell<Instant>,
    busy: Cell<Duration>,
    never: Cell<bool>,
}

impl IdleMeter {
    /// A meter of the current runtime.
    pub(super) fn new() -> Self {
        let metrics = Handle::current().metrics();
        let busy = metrics.worker_total_busy_duration(0);
        Self { metrics, looked: Cell::new(Instant::now()), busy: Cell::new(busy), never: Cell::new(false) }
    }

    /// Whether the thread was busy nearly all the time in the last interval.
    pub(super) fn is_never_idle(&self) -> bool {
        let now = Instant::now();
        let elapsed = now.duration_since(self.looked.get());
        if elapsed >= LOOK {
            let busy = self.metrics.worker_total_busy_duration(0);
            let worked = busy.saturating_sub(self.busy.replace(busy));
            self.looked.set(now);
            self.never.set(worked * 100 >= elapsed * BUSY_PERCENT);
        }
        self.never.get()
    }
}
