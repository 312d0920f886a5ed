//! `evenkeel bench throughput`: requests per second and CPU time by sidecars, workers, balance, and features.

use crate::load::Load;
use crate::plan::{Cell, Experiment, Extent, Plan};
use crate::setup::{Proxy, Setup, Sidecars};

/// The table of sidecars, workers and balance.
pub const MATRIX: &str = "Sidecars, workers, balance";
/// The table of features.
const FEATURES: &str = "Features, sidecars on both sides, 2 workers";
/// Connections of the load.
const CONNECTIONS: u32 = 32;
/// The numbers of workers of the published measurements; 0: all cores.
const WORKERS: [u32; 5] = [1, 2, 4, 6, 0];
/// Workers where only features differ.
const FEATURES_WORKERS: u32 = 2;

/// The cells.
pub fn plan(extent: Extent) -> Plan {
    let mut cells = vec![Cell::new(MATRIX, "no sidecar", Setup::direct(), Load::saturating(CONNECTIONS))];
    for sidecars in [Sidecars::Client, Sidecars::Server, Sidecars::Both] {
        for workers in workers(extent, sidecars) {
            for (proxy, exact_balance) in [(Proxy::Evenkeel, false), (Proxy::Envoy, false), (Proxy::Envoy, true)] {
                let setup = Setup { sidecars, exact_balance, ..Setup::pair(proxy, workers) };
                if extent.quick && exact_balance && (sidecars != Sidecars::Both || workers == 1) {
                    continue;
                }
                cells.push(Cell::new(MATRIX, name(&setup), setup, Load::saturating(CONNECTIONS)));
            }
        }
    }
    for proxy in [Proxy::Evenkeel, Proxy::Envoy] {
        for setup in features(proxy, extent) {
            cells.push(Cell::new(FEATURES, feature_name(&setup), setup, Load::saturating(CONNECTIONS)));
        }
    }
    Plan {
        experiment: Experiment::Throughput,
        cells,
        rounds: if extent.quick { 2 } else { 5 },
        seconds: if extent.quick { 0.6 } else { 3.0 },
        notes: notes(extent),
    }
}

fn workers(extent: Extent, sidecars: Sidecars) -> Vec<u32> {
    match (extent.quick, sidecars) {
        (false, _) => WORKERS.to_vec(),
        (true, Sidecars::Both) => vec![1, 2],
        (true, _) => vec![2],
    }
}

fn name(setup: &Setup) -> String {
    let workers = match setup.workers {
        0 => "all cores".to_owned(),
        1 => "1 worker".to_owned(),
        more => format!("{more} workers"),
    };
    let balance = if setup.exact_balance { ", exact balance" } else { "" };
    format!("{}, {}, {workers}{balance}", setup.sidecars.label(), setup.proxy.label())
}

/// Each feature alone switched off and all of them; every combination if that is asked for.
fn features(proxy: Proxy, extent: Extent) -> Vec<Setup> {
    let pair = Setup::pair(proxy, FEATURES_WORKERS);
    let all = (0..8_u8).map(|bits| Setup {
        mutual_tls: bits & 1 == 0,
        access_log: bits & 2 == 0,
        telemetry: bits & 4 == 0,
        ..pair.clone()
    });
    // A stock Envoy has no statistics of Istio that could be switched off.
    let has_statistics = proxy == Proxy::Evenkeel;
    let is_shown = |bits: u8| (has_statistics || bits & 4 == 0) && (extent.full || bits.count_ones() <= 1);
    all.zip(0..8_u8).filter(|(_, bits)| is_shown(*bits)).map(|(setup, _)| setup).collect()
}

fn feature_name(setup: &Setup) -> String {
    let off: Vec<&str> =
        [(setup.mutual_tls, "mutual TLS"), (setup.access_log, "access log"), (setup.telemetry, "telemetry")]
            .into_iter()
            .filter_map(|(is_on, name)| (!is_on).then_some(name))
            .collect();
    let without = if off.is_empty() { "all on".to_owned() } else { format!("without {}", off.join(", ")) };
    format!("{}, {without}", setup.proxy.label())
}

fn notes(extent: Extent) -> Vec<String> {
    let cores = extent.cores;
    vec![
        "Evenkeel always balances connections, so it has no row without balance. A stock Envoy has no statistics of Istio."
            .to_owned(),
        format!(
            "Client, server and sidecars share the {cores} cores of this machine, so requests/s are those of all of them together; \
             CPU µs/request is what a sidecar costs. Rows with more workers than cores show evenness, not speed."
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_different_and_cover_the_published_combinations() {
        let check = |quick: bool, full: bool, matrix: usize, features: usize| {
            let plan = plan(Extent { quick, full, cores: 2 });
            let rows = |table: &str| plan.cells.iter().filter(|cell| cell.table == table).count();
            assert_eq!((rows(MATRIX), rows(FEATURES)), (matrix, features));
            let mut names: Vec<&str> = plan.cells.iter().map(|cell| cell.row.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), plan.cells.len());
        };
        check(true, false, 10, 7);
        check(false, false, 46, 7);
        check(false, true, 46, 12);
    }
}
