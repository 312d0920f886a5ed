//! Replaces the endpoints of one service after the other. Each new endpoint is added before an old one is removed.

use super::ticks::Ticks;
use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::mesh;
use crate::results::Results;
use crate::testbed::Testbed;

/// The number of additions and removals that replace the two endpoints of a service.
const STEPS: usize = 4;

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    let (changes, services) = (testbed.options.changes, testbed.options.services);
    testbed.progress.begin("replacing endpoints", changes as u64);
    let begin = testbed.mark()?;
    let mut ticks = Ticks::new(testbed.options.interval);
    let mut endpoints = Vec::new();
    for number in 0..changes {
        ticks.next(&mut testbed, |_| ()).await?;
        let (round, step) = (number / STEPS, number % STEPS);
        let service = round % services;
        if step == 0 && round < services {
            endpoints = mesh::first_endpoints(service).to_vec();
        } else if step == 0 {
            endpoints = (0..2).map(|index| mesh::further_endpoint((round - services) * 2 + index)).collect();
        }
        let (kind, address) = match step % 2 {
            0 => {
                let new = mesh::further_endpoint(round * 2 + step / 2);
                endpoints.push(new);
                (ChangeKind::AddEndpoint, new)
            }
            _ => (ChangeKind::RemoveEndpoint, endpoints.remove(0)),
        };
        testbed.change(kind, service, Some(address), &endpoints)?;
        testbed.progress.at(number as u64 + 1);
    }
    testbed.wait_settled().await?;
    let cost = testbed.cost_since(begin)?;
    Ok(testbed.results("rollout", cost))
}
