//! When the steps of a scenario are due.

use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::testbed::Testbed;

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
