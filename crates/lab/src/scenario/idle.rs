//! Nothing happens: what the control plane costs at rest.

use std::time::Duration;

use crate::error::LabError;
use crate::results::Results;
use crate::testbed::Testbed;

/// What belongs to the start is over after this.
const SETTLE: Duration = Duration::from_secs(1);

pub async fn play(mut testbed: Testbed) -> Result<Results, LabError> {
    testbed.pause(SETTLE).await?;
    testbed.progress.begin("at rest", 0);
    let begin = testbed.mark()?;
    testbed.pause(testbed.options.pause).await?;
    let cost = testbed.cost_since(begin)?;
    Ok(testbed.results("idle", cost))
}
