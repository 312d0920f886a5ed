//! Removes most services, to measure whether the control plane releases their memory.

use std::time::Duration;

use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::process::Usage;
use crate::results::{Results, Shrink, round};
use crate::testbed::Testbed;

/// The time that the server gets to settle and to return memory.
const SETTLE: Duration = Duration::from_secs(10);

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    let (kept, services) = (testbed.options.keep, testbed.options.services);
    if kept >= services {
        return Err(LabError::Usage("--keep has to be less than --services".to_owned()));
    }
    testbed.pause(SETTLE).await?;
    let full_mib = resident(&testbed)?;
    let begin = testbed.mark()?;
    testbed.progress.begin("removing services", (services - kept) as u64);
    for service in kept..services {
        testbed.change(ChangeKind::RemoveService, service, None, &[])?;
        testbed.progress.at((service - kept + 1) as u64);
    }
    testbed.wait_settled().await?;
    testbed.pause(SETTLE).await?;
    let cost = testbed.cost_since(begin)?;
    let shrunk_mib = resident(&testbed)?;
    // The results are taken before the fleet is replaced.
    let mut results = testbed.results("shrink", cost);
    testbed.start_over(kept).await?;
    testbed.pause(SETTLE).await?;
    let fresh_mib = resident(&testbed)?;
    results.shrink = Some(Shrink { kept, full_mib, shrunk_mib, fresh_mib });
    Ok(results)
}

fn resident(testbed: &Testbed) -> Result<f64, LabError> {
    Ok(round(testbed.server.usage()?.map_or(0.0, |Usage { resident_mib, .. }| resident_mib)))
}
