//! Changes the VirtualService of one service after the other.

use std::time::Duration;

use super::ticks::Ticks;
use crate::error::LabError;
use crate::results::Results;
use crate::testbed::Testbed;

/// Work of the start may still go on when all proxies are configured.
const SETTLE: Duration = Duration::from_millis(200);

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    let (changes, services) = (testbed.options.changes, testbed.options.services);
    testbed.pause(SETTLE).await?;
    let begin = testbed.mark()?;
    testbed.progress.begin("changing routes", changes as u64);
    let mut ticks = Ticks::new(testbed.options.interval);
    for number in 0..changes {
        ticks.next(&mut testbed, |_| ()).await?;
        testbed.change_routes(number % services, number)?;
        testbed.progress.at(number as u64 + 1);
    }
    testbed.wait_settled().await?;
    let cost = testbed.cost_since(begin)?;
    Ok(testbed.results("routes", cost))
}
