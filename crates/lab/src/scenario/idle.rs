//! Nothing happens: what the control plane costs at rest.

use std::time::Duration;

use crate::error::LabError;
use crate::results::Results;
use crate::stage::Stage;

/// What belongs to the start is over after this.
const SETTLE: Duration = Duration::from_secs(1);

pub async fn play(mut stage: Stage) -> Result<Results, LabError> {
    stage.pause(SETTLE).await?;
    stage.progress.begin("at rest", 0);
    let begin = stage.mark()?;
    stage.pause(stage.options.pause).await?;
    let cost = stage.cost_since(begin)?;
    Ok(stage.results("idle", cost))
}
