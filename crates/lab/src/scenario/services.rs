//! One service after the other: how long until all proxies have it, and until the gateway serves it.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::ticks::Ticks;
use crate::changes::{ChangeId, ChangeKind};
use crate::error::LabError;
use crate::proxy::Scope;
use crate::results::Results;
use crate::stage::Stage;

/// Most first uses measured: one needs about as long as one change.
const MAX_FIRST_USES: usize = 50;
/// What belongs to the last change may still be on its way when it has arrived everywhere.
const SETTLE: Duration = Duration::from_millis(200);

/// A service the gateway does not serve yet.
struct Expected {
    id: ChangeId,
    since: Instant,
    answer: oneshot::Receiver<Instant>,
}

pub async fn play(mut stage: Stage) -> Result<Results, LabError> {
    let (changes, interval) = (stage.options.changes, stage.options.interval);
    stage.pause(SETTLE).await?;
    let begin = stage.mark()?;
    stage.progress.begin("adding services", changes as u64);
    let mut added = Vec::with_capacity(changes);
    let mut expected: Vec<Expected> = Vec::new();
    let mut ticks = Ticks::new(interval);
    for number in 0..changes {
        ticks.next(&mut stage, |stage| collect(stage, &mut expected)).await?;
        let service = stage.first_free_service() + number;
        let endpoints = stage.endpoints_of_new(service);
        let since = Instant::now();
        let id = stage.change(ChangeKind::AddService, service, None, &endpoints)?;
        if let Some(gateway) = &stage.gateway {
            let answer = gateway.first_answer(stage.mesh.host(service));
            expected.push(Expected { id, since, answer });
        }
        added.push((id, service));
        stage.progress.at(number as u64 + 1);
    }
    stage.wait_settled().await?;
    stage
        .wait("the gateway does not serve an added service", |stage| {
            collect(stage, &mut expected);
            expected.is_empty()
        })
        .await?;
    stage.pause(SETTLE).await?;
    let cost = stage.cost_since(begin)?;
    if stage.options.scope == Scope::Learned {
        first_uses(&mut stage, &added).await?;
    }
    Ok(stage.results("services", cost))
}

/// Takes note of the services the gateway has begun to serve.
fn collect(stage: &mut Stage, expected: &mut Vec<Expected>) {
    expected.retain_mut(|one| match one.answer.try_recv() {
        Ok(at) => {
            stage.note_ready(one.id, at.saturating_duration_since(one.since));
            false
        }
        // A gateway that has ended is reported by whoever waits.
        Err(_) => true,
    });
}

/// One workload after the other calls a service that no proxy has been told of.
async fn first_uses(stage: &mut Stage, added: &[(ChangeId, usize)]) -> Result<(), LabError> {
    let sidecars = stage.options.proxies;
    stage.progress.begin("first uses", added.len().min(MAX_FIRST_USES) as u64);
    for (number, (id, service)) in added.iter().take(MAX_FIRST_USES).enumerate() {
        let (proxy, host) = (number % sidecars, stage.mesh.host(*service));
        let since = Instant::now();
        stage.fleet.first_use(proxy, &host);
        stage.wait("a proxy did not get what it asked for", |stage| stage.fleet.can_call(proxy, &host)).await?;
        stage.note_first_use(*id, since.elapsed());
        stage.progress.at(number as u64 + 1);
    }
    Ok(())
}
