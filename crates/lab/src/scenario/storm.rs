//! All proxies connect at once. Setting the stage is the storm; what is left is to see that it calms down.

use std::time::Duration;

use crate::error::LabError;
use crate::results::Results;
use crate::testbed::Testbed;

/// How long the server is watched after the last proxy is configured.
const CALM: Duration = Duration::from_secs(1);

pub async fn play(mut testbed: Testbed) -> Result<Results, LabError> {
    let begin = testbed.mark()?;
    testbed.pause(CALM).await?;
    let cost = testbed.cost_since(begin)?;
    Ok(testbed.results("storm", cost))
}
