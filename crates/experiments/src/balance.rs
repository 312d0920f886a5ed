//! `evenkeel bench balance`: connections, requests and CPU time by worker, for many connections and a hot one among them.

use crate::load::Load;
use crate::plan::{Cell, Experiment, Extent, Plan};
use crate::setup::{Proxy, Setup};

/// Connections, as in the published reports.
const CONNECTIONS: u32 = 10_000;
const QUICK_CONNECTIONS: u32 = 400;
/// Calls a second of all connections together: each connection calls now and then.
const RATE: u32 = 1_000;
/// Calls at a time on the hot HTTP/2 connection.
const HOT_STREAMS: u32 = 50;
/// Workers: more than the cores of a small machine, so that there is something to spread.
const WORKERS: u32 = 4;

/// The cells.
pub fn plan(extent: Extent) -> Plan {
    let connections = if extent.quick { QUICK_CONNECTIONS } else { CONNECTIONS };
    let many = Load { rate: Some(RATE), ..Load::saturating(connections) };
    let hot = Load { hot_streams: HOT_STREAMS, ..many.clone() };
    let all = format!("{connections} connections, {WORKERS} workers");
    let with_hot = format!("{connections} connections and a hot HTTP/2 connection, {WORKERS} workers");
    let mut cells = Vec::new();
    for (table, load) in [(&*all, many), (&*with_hot, hot)] {
        for (proxy, exact_balance) in [(Proxy::Evenkeel, false), (Proxy::Envoy, false), (Proxy::Envoy, true)] {
            let setup = Setup { exact_balance, ..Setup::pair(proxy, WORKERS) };
            let row = if exact_balance { "Envoy, exact balance" } else { proxy.label() };
            cells.push(Cell::new(table, row, setup, load.clone()));
        }
    }
    let notes = vec![
        "Between two sidecars of Evenkeel calls share a few HTTP/2 connections, so the server's sidecar has few connections; its \
         requests and its busy time show the balance there. Envoy does not count requests by worker."
            .to_owned(),
        "The counts are of connections that were opened during the measurement, wherever they moved afterwards.".to_owned(),
    ];
    Plan {
        experiment: Experiment::Balance,
        cells,
        rounds: if extent.quick { 2 } else { 3 },
        // Every connection calls at least twice.
        seconds: if extent.quick { 1.0 } else { 25.0 },
        notes,
    }
}
