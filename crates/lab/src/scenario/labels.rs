//! Changes labels of services, which no proxy can see, as tools of GitOps do all day.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ticks::Ticks;
use crate::error::LabError;
use crate::mesh;
use crate::results::{Labels, Lists, Results, round};
use crate::testbed::Testbed;

/// Work of the start may still go on when all proxies are configured; that of the last change, when it is written.
const SETTLE: Duration = Duration::from_secs(1);
/// Requests to the API server that wait for an answer. More would only wait in the lab.
const MOST_UNWRITTEN: usize = 256;

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    let (changes, services) = (testbed.options.changes, testbed.options.services);
    testbed.pause(SETTLE).await?;
    let (begin, lists) = (testbed.mark()?, testbed.lists().await?);
    testbed.progress.begin("changing labels", changes as u64);
    let mut ticks = Ticks::new(testbed.options.interval);
    for number in 0..changes {
        ticks.next(&mut testbed, |_| ()).await?;
        testbed.wait("the API server does not answer", |testbed| testbed.mesh.unwritten() < MOST_UNWRITTEN).await?;
        let service = number % services;
        testbed.mesh.relabel(service, &mesh::first_endpoints(service), number)?;
        testbed.progress.at(number as u64 + 1);
    }
    testbed.wait_written().await?;
    testbed.pause(SETTLE).await?;
    let cost = testbed.cost_since(begin)?;
    let lists = testbed.lists().await?.zip(lists).map(|(now, then)| added(now, &then));
    let per_change = |cpu: f64| round(cpu * 1000.0 / changes.max(1) as f64);
    let labels = Labels { changes, bytes: cost.bytes, cpu_ms_per_change: cost.cpu_s.map(per_change), lists };
    Ok(Results { labels: Some(labels), ..testbed.results("labels", cost) })
}

/// What was counted since, without what was not.
fn added(now: BTreeMap<String, f64>, then: &BTreeMap<String, f64>) -> Vec<Lists> {
    let since = now.into_iter().map(|(resource, count)| {
        let before = then.get(&resource).copied().unwrap_or_default();
        Lists { resource, count: count - before }
    });
    since.filter(|lists| lists.count > 0.0).collect()
}
