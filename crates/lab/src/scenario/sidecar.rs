//! A real sidecar in a large mesh, whose workload calls a few services.

use std::time::{Duration, Instant};

use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::process::Usage;
use crate::real_proxy::{BACKENDS, Place, Ports};
use crate::results::{Results, Sidecar, ms, round};
use crate::stage::Stage;
use crate::statistics::Spread;

/// What belongs to its start, or to the last request, is over after this: a proxy gives memory back a second after the last
/// change, but not within five seconds of the last time.
const SETTLE: Duration = Duration::from_secs(8);

pub async fn play(mut stage: Stage) -> Result<Results, LabError> {
    let ports = Ports::choose()?;
    let begin = stage.mark()?;
    stage.mesh.set_endpoint_port(ports.backend_port());
    let first = stage.first_free_service();
    let services = first..first + stage.options.used;
    for service in services.clone() {
        stage.change(ChangeKind::AddService, service, None, &BACKENDS)?;
    }
    stage.wait_settled().await?;
    stage.progress.begin("starting the sidecar", 0);
    let mut sidecar = stage.start_proxy(Place::Sidecar, ports)?;
    stage.pause(SETTLE).await?;
    sidecar.check()?;
    let before = sidecar.usage()?;

    stage.progress.begin("calling services", services.len() as u64);
    let mut times = Vec::with_capacity(services.len());
    for service in services.clone() {
        let since = Instant::now();
        let mut answer = sidecar.first_answer(stage.mesh.host(service));
        let mut at = None;
        let waited = stage
            .wait("the sidecar does not answer", |_| answer.try_recv().is_ok_and(|when| at.replace(when).is_none()))
            .await;
        if matches!(waited, Err(LabError::Stalled { .. })) {
            return Err(sidecar.failure("does not answer"));
        }
        waited?;
        times.extend(at.map(|at| ms(at.saturating_duration_since(since))));
        stage.progress.at(times.len() as u64);
    }
    stage.pause(SETTLE).await?;
    let after = sidecar.usage()?;
    let cost = stage.cost_since(begin)?;
    let mut results = stage.results("sidecar", cost);
    let resident = |usage: Usage| round(usage.resident_mib);
    results.sidecar = Some(Sidecar {
        used: times.len(),
        first_answer_ms: Spread::of(times),
        before_mib: resident(before),
        after_mib: resident(after),
    });
    Ok(results)
}
