//! Changes nothing, to measure the cost of an idle control plane.

use std::time::Duration;

use crate::error::LabError;
use crate::results::Results;
use crate::testbed::Testbed;

/// Work that belongs to the start ends within this time.
const SETTLE: Duration = Duration::from_secs(1);

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    testbed.pause(SETTLE).await?;
    testbed.progress.begin("at rest", 0);
    let begin = testbed.mark()?;
    testbed.pause(testbed.options.pause).await?;
    let cost = testbed.cost_since(begin)?;
    Ok(testbed.results("idle", cost))
}
