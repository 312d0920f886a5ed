//! `evenkeel bench telemetry`: what statistics of requests cost, in CPU time and latency.

use crate::load::Load;
use crate::plan::{Cell, Experiment, Extent, Plan};
use crate::setup::{Proxy, Setup};

/// Connections of the load.
const CONNECTIONS: u32 = 16;
/// Calls a second of the load that latency is measured with: far from saturation.
const RATE: u32 = 500;
/// Workers of each sidecar.
const WORKERS: u32 = 2;

/// The cells.
pub fn plan(extent: Extent) -> Plan {
    let steady = Load { rate: Some(RATE), ..Load::saturating(CONNECTIONS) };
    let latency = format!("Latency at {RATE} requests/s");
    let mut cells = Vec::new();
    for (table, load) in [("CPU time as fast as possible", Load::saturating(CONNECTIONS)), (&*latency, steady)] {
        let mut add = |row: &str, setup: Setup| cells.push(Cell::new(table, row, setup, load.clone()));
        add("direct", Setup::direct());
        let pair = Setup::pair(Proxy::Evenkeel, WORKERS);
        add("Evenkeel, statistics off", Setup { telemetry: false, ..pair.clone() });
        add("Evenkeel, statistics", pair);
        add("Envoy, its own statistics", Setup::pair(Proxy::Envoy, WORKERS));
    }
    let notes = vec![
        "Evenkeel's statistics are Istio's (istio_requests_total and so on), computed by the proxy itself. A stock Envoy has only \
         its own: Istio's filter for them is not part of it, and neither is a virtual machine for WebAssembly filters of that time."
            .to_owned(),
    ];
    Plan {
        experiment: Experiment::Telemetry,
        cells,
        rounds: if extent.quick { 3 } else { 10 },
        seconds: if extent.quick { 0.6 } else { 3.0 },
        notes,
    }
}
