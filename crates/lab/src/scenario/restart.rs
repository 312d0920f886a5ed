//! Kills the control plane while endpoints change and starts it again, to measure what it sends again and what is
//! missing.

use std::time::{Duration, Instant};

use super::ticks::Ticks;
use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::mesh;
use crate::results::{Restart, Results, ms};
use crate::testbed::Testbed;

/// The number of changes made while the control plane is down.
const WHILE_AWAY: usize = 5;
/// Resources that are needlessly sent again may arrive after the changed ones.
const SETTLE: Duration = Duration::from_secs(1);

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    let before = testbed.options.changes / 2;
    let after = testbed.options.changes - before;
    let begin = testbed.mark()?;
    let mut changed = 0;
    change_endpoints(&mut testbed, before, &mut changed).await?;
    testbed.wait_settled().await?;

    testbed.progress.begin("restarting the control plane", 0);
    testbed.gateway = None;
    let (totals, killed) = (testbed.fleet.totals(), Instant::now());
    testbed.server.kill();
    for _ in 0..WHILE_AWAY {
        change_endpoint(&mut testbed, &mut changed)?;
    }
    let away = testbed.options.pause;
    // There is no server process to measure in this time.
    tokio::time::sleep(away.saturating_sub(killed.elapsed())).await;
    let started = testbed.server.start()?;
    let away_ms = ms(started.saturating_duration_since(killed));
    testbed.server.ready(testbed.options.patience).await?;
    testbed.wait("the proxies do not come back", |testbed| testbed.fleet.connected() == testbed.fleet.len()).await?;
    let reconnected_ms = ms(started.elapsed());
    testbed.wait_settled().await?;
    let caught_up_ms = ms(started.elapsed());
    testbed.pause(SETTLE).await?;
    let sent = testbed.fleet.totals().since(totals);

    change_endpoints(&mut testbed, after, &mut changed).await?;
    testbed.wait_settled().await?;
    // The CPU time of the new server process starts at 0, so the difference from the first process is meaningless.
    let mut cost = testbed.cost_since(begin)?;
    (cost.cpu_s, cost.cpu_ms_per_change) = (None, None);
    let mut results = testbed.results("restart", cost);
    results.restart = Some(Restart {
        away_ms,
        reconnected_ms,
        caught_up_ms,
        changes_while_away: WHILE_AWAY,
        bytes: sent.bytes,
        resources: sent.resources,
        resources_again: sent.resources_again,
        removed: sent.removed,
    });
    Ok(results)
}

async fn change_endpoints(testbed: &mut Testbed, count: usize, changed: &mut usize) -> Result<(), LabError> {
    testbed.progress.begin("changing endpoints", count as u64);
    let mut ticks = Ticks::new(testbed.options.interval);
    for number in 0..count {
        ticks.next(testbed, |_| ()).await?;
        change_endpoint(testbed, changed)?;
        testbed.progress.at(number as u64 + 1);
    }
    Ok(())
}

/// Adds a third endpoint to the next service. Every service gets one before any service changes twice.
fn change_endpoint(testbed: &mut Testbed, changed: &mut usize) -> Result<(), LabError> {
    let service = *changed % testbed.options.services;
    let new = mesh::further_endpoint(*changed);
    *changed += 1;
    let [first, second] = mesh::first_endpoints(service);
    testbed.change(ChangeKind::AddEndpoint, service, Some(new), &[first, second, new])?;
    Ok(())
}
