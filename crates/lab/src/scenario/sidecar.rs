//! Runs a real sidecar in a large mesh, whose workload calls a few services.

use std::time::{Duration, Instant};

use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::process::Usage;
use crate::real_proxy::{Ports, ProxyKind};
use crate::results::{Results, Sidecar, ms, round};
use crate::testbed::Testbed;
use evenkeel_measure::Distribution;

/// Work of the start or of the last request ends within this time. A proxy returns memory one second after the last
/// change, and at most every five seconds.
const SETTLE: Duration = Duration::from_secs(8);

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    let ports = Ports::choose(testbed.backends)?;
    let begin = testbed.mark()?;
    testbed.mesh.set_endpoint_port(ports.backend_port());
    let first = testbed.first_free_service();
    let services = first..first + testbed.options.used;
    for service in services.clone() {
        let backends = testbed.backends;
        testbed.change(ChangeKind::AddService, service, None, &backends)?;
    }
    testbed.wait_settled().await?;
    testbed.progress.begin("starting the sidecar", 0);
    let mut sidecar = testbed.start_proxy(ProxyKind::Sidecar, ports)?;
    testbed.pause(SETTLE).await?;
    sidecar.check()?;
    let before = sidecar.usage()?;

    testbed.progress.begin("calling services", services.len() as u64);
    let mut times = Vec::with_capacity(services.len());
    for service in services.clone() {
        let since = Instant::now();
        let mut answer = sidecar.first_answer(testbed.mesh.host(service));
        let mut at = None;
        let waited = testbed
            .wait("the sidecar does not answer", |_| answer.try_recv().is_ok_and(|when| at.replace(when).is_none()))
            .await;
        if matches!(waited, Err(LabError::Stalled { .. })) {
            return Err(sidecar.failure("does not answer"));
        }
        waited?;
        times.extend(at.map(|at| ms(at.saturating_duration_since(since))));
        testbed.progress.at(times.len() as u64);
    }
    testbed.pause(SETTLE).await?;
    let after = sidecar.usage()?;
    let cost = testbed.cost_since(begin)?;
    let mut results = testbed.results("sidecar", cost);
    let resident = |usage: Usage| round(usage.resident_mib);
    results.sidecar = Some(Sidecar {
        used: times.len(),
        first_answer_ms: Distribution::of(times),
        before_mib: resident(before),
        after_mib: resident(after),
    });
    Ok(results)
}
