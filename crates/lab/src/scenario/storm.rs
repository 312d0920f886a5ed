//! Connects all proxies at once. Setting up the testbed does this already; this scenario only observes the time
//! afterwards.

use std::time::Duration;

use crate::error::LabError;
use crate::results::Results;
use crate::testbed::Testbed;

/// How long the server is observed after the last proxy is configured.
const CALM: Duration = Duration::from_secs(1);

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    let begin = testbed.mark()?;
    testbed.pause(CALM).await?;
    let cost = testbed.cost_since(begin)?;
    Ok(testbed.results("storm", cost))
}
