//! When the steps of a scenario are due.

use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::stage::Stage;

/// Steps at even times: one that comes late does not move those after it.
pub struct Ticks {
    start: Instant,
    interval: Duration,
    count: u32,
}

impl Ticks {
    /// From now on.
    pub fn new(interval: Duration) -> Self {
        Self { start: Instant::now(), interval, count: 0 }
    }

    /// Waits for the next one.
    pub async fn next(&mut self, stage: &mut Stage, mut meanwhile: impl FnMut(&mut Stage)) -> Result<(), LabError> {
        let due = self.start + self.interval.saturating_mul(self.count);
        self.count += 1;
        stage
            .wait("time stands still", |stage| {
                meanwhile(stage);
                Instant::now() >= due
            })
            .await
    }
}
