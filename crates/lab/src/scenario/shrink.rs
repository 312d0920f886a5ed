//! Most services go: does their memory come back?

use std::time::Duration;

use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::process::Usage;
use crate::results::{Results, Shrink, round};
use crate::stage::Stage;

/// Time given to the server to settle and to return memory.
const SETTLE: Duration = Duration::from_secs(10);

pub async fn play(mut stage: Stage) -> Result<Results, LabError> {
    let (kept, services) = (stage.options.keep, stage.options.services);
    if kept >= services {
        return Err(LabError::Usage("--keep has to be less than --services".to_owned()));
    }
    stage.pause(SETTLE).await?;
    let full_mib = resident(&stage)?;
    let begin = stage.mark()?;
    stage.progress.begin("removing services", (services - kept) as u64);
    for service in kept..services {
        stage.change(ChangeKind::RemoveService, service, None, &[])?;
        stage.progress.at((service - kept + 1) as u64);
    }
    stage.wait_settled().await?;
    stage.pause(SETTLE).await?;
    let cost = stage.cost_since(begin)?;
    let shrunk_mib = resident(&stage)?;
    // Before the proxies that went through it are replaced.
    let mut results = stage.results("shrink", cost);
    stage.start_over(kept).await?;
    stage.pause(SETTLE).await?;
    let fresh_mib = resident(&stage)?;
    results.shrink = Some(Shrink { kept, full_mib, shrunk_mib, fresh_mib });
    Ok(results)
}

fn resident(stage: &Stage) -> Result<f64, LabError> {
    Ok(round(stage.server.usage()?.map_or(0.0, |Usage { resident_mib, .. }| resident_mib)))
}
