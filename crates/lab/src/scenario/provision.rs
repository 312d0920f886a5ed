//! Adds services, as users provision them, and removes them again; measures the real gateway's memory, too.

use std::time::Duration;

use super::services::{self, Added};
use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::real_proxy::RealProxy;
use crate::results::{Provision, Results, round};
use crate::testbed::Testbed;

/// The time that the gateway gets to return memory.
const SETTLE: Duration = Duration::from_secs(5);

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    testbed.pause(SETTLE).await?;
    let before_mib = resident(&testbed)?;
    let begin = testbed.mark()?;
    let added = services::add(&mut testbed).await?;
    let cost = testbed.cost_since(begin)?;
    testbed.pause(SETTLE).await?;
    let with_all_mib = resident(&testbed)?;
    let count = added.len();
    testbed.progress.begin("removing services", count as u64);
    for (number, Added { service, .. }) in added.into_iter().enumerate() {
        testbed.change(ChangeKind::RemoveService, service, None, &[])?;
        testbed.progress.at(number as u64 + 1);
    }
    testbed.wait_settled().await?;
    testbed.pause(SETTLE).await?;
    let after_mib = resident(&testbed)?;
    let mut results = testbed.results("provision", cost);
    let kib_per_service = round((with_all_mib - before_mib) * 1024.0 / count.max(1) as f64);
    results.provision = Some(Provision { before_mib, with_all_mib, after_mib, kib_per_service });
    Ok(results)
}

/// The gateway's memory.
fn resident(testbed: &Testbed) -> Result<f64, LabError> {
    let gateway = testbed.gateway.as_ref().map(RealProxy::usage).transpose()?;
    Ok(round(gateway.map_or(0.0, |usage| usage.resident_mib)))
}
