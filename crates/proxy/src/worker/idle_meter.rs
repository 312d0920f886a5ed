//! Whether a worker still finds time to wait.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeMetrics};

/// Time between two looks; what was seen holds until the next.
const LOOK: Duration = Duration::from_millis(50);
/// Share of the time, in percent, from which on a worker that is never idle.
const BUSY_PERCENT: u32 = 75;

/// How much of the time this thread's reactor did not wait for events. Time in which the system ran something else counts as
/// busy: work waits in line then as well.
pub(super) struct IdleMeter {
    metrics: RuntimeMetrics,
    looked: Cell<Instant>,
    busy: Cell<Duration>,
    never: Cell<bool>,
}

impl IdleMeter {
    /// Of the runtime this is called in.
    pub(super) fn new() -> Self {
        let metrics = Handle::current().metrics();
        let busy = metrics.worker_total_busy_duration(0);
        Self { metrics, looked: Cell::new(Instant::now()), busy: Cell::new(busy), never: Cell::new(false) }
    }

    /// The thread hardly waited lately.
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
