//! The schedule of a scenario's steps.

use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::testbed::Testbed;

/// Steps at a fixed interval. A late step does not delay the following ones.
pub struct Ticks {
    start: Instant,
    interval: Duration,
    count: u32,
}

impl Ticks {
    /// Starts the schedule now.
    pub fn new(interval: Duration) -> Self {
        Self { start: Instant::now(), interval, count: 0 }
    }

    /// Waits until the next step is due.
    pub async fn next(
        &mut self,
        testbed: &mut Testbed,
        mut meanwhile: impl FnMut(&mut Testbed),
    ) -> Result<(), LabError> {
        let due = self.start + self.interval.saturating_mul(self.count);
        self.count += 1;
        testbed
            .wait("time stands still", |testbed| {
                meanwhile(testbed);
                Instant::now() >= due
            })
            .await
    }
}
