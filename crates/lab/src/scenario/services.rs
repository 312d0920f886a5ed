//! Adds one service after the other, and measures when all proxies have it and when the gateway serves it.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::ticks::Ticks;
use crate::changes::{ChangeId, ChangeKind};
use crate::error::LabError;
use crate::proxy::Scope;
use crate::results::Results;
use crate::testbed::Testbed;

/// The most first uses to measure. Each takes about as long as one change.
const MAX_FIRST_USES: usize = 50;
/// Work of the last change may still go on when all proxies have acknowledged it.
const SETTLE: Duration = Duration::from_millis(200);

/// A service that the gateway does not serve yet.
struct Expected {
    id: ChangeId,
    since: Instant,
    answer: oneshot::Receiver<Instant>,
}

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    testbed.pause(SETTLE).await?;
    let begin = testbed.mark()?;
    let added = add(&mut testbed).await?;
    testbed.pause(SETTLE).await?;
    let cost = testbed.cost_since(begin)?;
    if testbed.options.scope == Scope::Learned {
        first_uses(&mut testbed, &added).await?;
    }
    Ok(testbed.results("services", cost))
}

/// An added service.
pub struct Added {
    id: ChangeId,
    /// Its number.
    pub service: usize,
}

/// Adds the services, and waits until all proxies have them and the gateway serves them.
pub async fn add(testbed: &mut Testbed) -> Result<Vec<Added>, LabError> {
    let (changes, interval) = (testbed.options.changes, testbed.options.interval);
    testbed.progress.begin("adding services", changes as u64);
    let mut added = Vec::with_capacity(changes);
    let mut expected: Vec<Expected> = Vec::new();
    let mut ticks = Ticks::new(interval);
    for number in 0..changes {
        ticks.next(testbed, |testbed| collect(testbed, &mut expected)).await?;
        let service = testbed.first_free_service() + number;
        let endpoints = testbed.endpoints_of_new(service);
        let since = Instant::now();
        let id = testbed.change(ChangeKind::AddService, service, None, &endpoints)?;
        if let Some(gateway) = &testbed.gateway {
            let answer = gateway.first_answer(testbed.mesh.host(service));
            expected.push(Expected { id, since, answer });
        }
        added.push(Added { id, service });
        testbed.progress.at(number as u64 + 1);
    }
    testbed.wait_settled().await?;
    testbed
        .wait("the gateway does not serve an added service", |testbed| {
            collect(testbed, &mut expected);
            expected.is_empty()
        })
        .await?;
    Ok(added)
}

/// Records the services that the gateway has begun to serve.
fn collect(testbed: &mut Testbed, expected: &mut Vec<Expected>) {
    expected.retain_mut(|one| match one.answer.try_recv() {
        Ok(at) => {
            testbed.note_ready(one.id, at.saturating_duration_since(one.since));
            false
        }
        // If the gateway has ended, the waiting function reports it.
        Err(_) => true,
    });
}

/// One workload after the other calls a service that no proxy holds yet.
async fn first_uses(testbed: &mut Testbed, added: &[Added]) -> Result<(), LabError> {
    let sidecars = testbed.options.proxies;
    testbed.progress.begin("first uses", added.len().min(MAX_FIRST_USES) as u64);
    for (number, Added { id, service }) in added.iter().take(MAX_FIRST_USES).enumerate() {
        let (proxy, host) = (number % sidecars, testbed.mesh.host(*service));
        let since = Instant::now();
        testbed.fleet.first_use(proxy, &host);
        testbed.wait("a proxy did not get what it asked for", |testbed| testbed.fleet.can_call(proxy, &host)).await?;
        testbed.note_first_use(*id, since.elapsed());
        testbed.progress.at(number as u64 + 1);
    }
    Ok(())
}
