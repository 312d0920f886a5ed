//! `evenkeel bench latency`: calls without a mesh, with one, and with authorization; chains of services.

use crate::load::Load;
use crate::plan::{Cell, Experiment, Extent, Plan};
use crate::setup::{Proxy, Setup};

/// Calls of a batch.
const BATCH: u32 = 10;
/// Milliseconds between two batches, as in the published measurements.
const PAUSE_MS: u32 = 10;
/// The longest chain.
const CHAIN: usize = 8;
/// Workers of each sidecar.
const WORKERS: u32 = 2;

/// The cells.
pub fn plan(extent: Extent) -> Plan {
    let mut cells = Vec::new();
    for method in ["GET", "POST"] {
        let table = format!("{method}, batches of {BATCH} every {PAUSE_MS} ms");
        let mut add = |row: String, setup: Setup| {
            cells.push(Cell::new(&table, row, setup, Load::batches(method, BATCH, PAUSE_MS)));
        };
        add("direct".to_owned(), Setup::direct());
        for proxy in [Proxy::Evenkeel, Proxy::Envoy] {
            let (mesh, label) = (Setup::pair(proxy, WORKERS), proxy.label());
            add(format!("{label}, mesh"), mesh.clone());
            add(format!("{label}, mesh with authorization"), Setup { authorization: true, ..mesh });
        }
    }
    for services in lengths(extent) {
        let load = Load { entry: CHAIN - services + 1, ..Load::batches("GET", 1, PAUSE_MS) };
        let mut add = |row: String, setup: Setup| {
            let setup = Setup { services: CHAIN, ..setup };
            cells.push(Cell::new("Chain of services, one GET at a time", row, setup, load.clone()));
        };
        add(format!("{services}, direct"), Setup::direct());
        for proxy in [Proxy::Evenkeel, Proxy::Envoy] {
            add(format!("{services}, {}", proxy.label()), Setup::pair(proxy, WORKERS));
        }
    }
    let notes = vec![
        "A call that is due while its connection waits for a response is left out, so that a batch begins after the pause."
            .to_owned(),
        "The services of a chain forward bytes, so that the chain adds only sidecars and connections.".to_owned(),
    ];
    Plan {
        experiment: Experiment::Latency,
        cells,
        rounds: if extent.quick { 2 } else { 5 },
        seconds: seconds(extent),
        notes,
    }
}

fn lengths(extent: Extent) -> Vec<usize> {
    if extent.quick { vec![1, CHAIN] } else { (1..=CHAIN).collect() }
}

fn seconds(extent: Extent) -> f64 {
    if extent.quick { 0.5 } else { 5.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_entered_so_that_the_rest_has_the_length() {
        let plan = plan(Extent { quick: false, full: false, cores: 2 });
        let chains: Vec<&Cell> = plan.cells.iter().filter(|cell| cell.setup.services == CHAIN).collect();
        assert_eq!(chains.len(), CHAIN * 3);
        assert_eq!((chains[0].load.entry, chains[chains.len() - 1].load.entry), (CHAIN, 1));
    }
}
