//! The control plane is killed while endpoints change, and started again: what is sent again, what is missing.

use std::time::{Duration, Instant};

use super::ticks::Ticks;
use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::mesh;
use crate::results::{Restart, Results, ms};
use crate::stage::Stage;

/// Changes made while the control plane is away.
const WHILE_AWAY: usize = 5;
/// What is needlessly sent again may come after what changed.
const SETTLE: Duration = Duration::from_secs(1);

pub async fn play(mut stage: Stage) -> Result<Results, LabError> {
    let before = stage.options.changes / 2;
    let after = stage.options.changes - before;
    let begin = stage.mark()?;
    let mut changed = 0;
    change_endpoints(&mut stage, before, &mut changed).await?;
    stage.wait_settled().await?;

    stage.progress.begin("restarting the control plane", 0);
    stage.gateway = None;
    let (totals, killed) = (stage.fleet.totals(), Instant::now());
    stage.server.kill();
    for _ in 0..WHILE_AWAY {
        change_endpoint(&mut stage, &mut changed)?;
    }
    let away = stage.options.pause;
    // Nobody is there to be measured.
    tokio::time::sleep(away.saturating_sub(killed.elapsed())).await;
    let started = stage.server.start()?;
    let away_ms = ms(started.saturating_duration_since(killed));
    stage.server.ready(stage.options.patience).await?;
    stage.wait("the proxies do not come back", |stage| stage.fleet.connected() == stage.fleet.len()).await?;
    let reconnected_ms = ms(started.elapsed());
    stage.wait_settled().await?;
    let caught_up_ms = ms(started.elapsed());
    stage.pause(SETTLE).await?;
    let sent = stage.fleet.totals().since(totals);

    change_endpoints(&mut stage, after, &mut changed).await?;
    stage.wait_settled().await?;
    // The server's clock began anew with its process; what the first one spent is gone with it.
    let mut cost = stage.cost_since(begin)?;
    (cost.cpu_s, cost.cpu_ms_per_change) = (None, None);
    let mut results = stage.results("restart", cost);
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

async fn change_endpoints(stage: &mut Stage, count: usize, changed: &mut usize) -> Result<(), LabError> {
    stage.progress.begin("changing endpoints", count as u64);
    let mut ticks = Ticks::new(stage.options.interval);
    for number in 0..count {
        ticks.next(stage, |_| ()).await?;
        change_endpoint(stage, changed)?;
        stage.progress.at(number as u64 + 1);
    }
    Ok(())
}

/// Gives the next service a third endpoint; all services have a turn before one has a second.
fn change_endpoint(stage: &mut Stage, changed: &mut usize) -> Result<(), LabError> {
    let service = *changed % stage.options.services;
    let new = mesh::further_endpoint(*changed);
    *changed += 1;
    let [first, second] = mesh::first_endpoints(service);
    stage.change(ChangeKind::AddEndpoint, service, Some(new), &[first, second, new])?;
    Ok(())
}
