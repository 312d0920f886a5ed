//! `evenkeel proxy` and Envoy, started one after the other from the same bootstrap file, give the same answers to a table of
//! exchanges. The rows are data: `routing`, `messages`, `malformed`, `upstream` and `security`.

mod access_log_losses;
mod access_log_service;
mod addresses;
mod back_off;
mod buffer;
mod collector;
mod compression;
mod conditions;
mod cors;
mod early_replies;
mod exchange;
mod ext_authz;
mod ext_authz_limits;
mod ext_authz_rows;
mod ext_authz_tcp;
mod faults;
mod flags;
mod flags_http2;
mod forward_proxy;
mod grpc_health;
mod grpc_stats;
mod grpc_web;
mod handshakes;
mod hashing;
mod header_formats;
mod heads;
mod health;
mod health_checks;
mod histogram_buckets;
mod hostile;
mod hosts;
mod http2;
mod jwt;
mod load_reports;
mod local_ratelimit;
mod local_replies;
mod malformed;
mod messages;
mod mirroring;
mod network_filters;
mod operators;
mod otlp_http;
mod outliers;
mod paths;
mod proxy;
mod proxy_headers;
mod query_mutations;
mod ratelimit;
mod retries;
mod retry_hosts;
mod route_stats;
mod routing;
mod schemes;
mod security;
mod sessions;
mod stats_matcher;
mod stats_sinks;
mod stats_tags;
mod times;
mod tracing;
mod tracing_collectors;
mod tracing_rows;
mod tunnels;
mod tunnels_http2;
mod upstream;
mod upstream_filters;
mod web;
mod zones;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::wait;

use exchange::Case;
use proxy::{Program, Scene};

/// Whether a line of `/stats` is about Evenkeel's tables of series, which Envoy does not have.
fn is_own(line: &str) -> bool {
    line.starts_with("metric_series.")
}

/// How long a program may take to write its log.
const LOG_PATIENCE: Duration = Duration::from_secs(5);
/// Rows that run at the same time.
const THREADS: usize = 16;

#[test]
fn evenkeel_and_envoy_answer_alike() {
    let well_formed =
        [routing::cases(), messages::cases(), upstream::cases(), security::cases(), buffer::cases()].concat();
    let over_http2 = http2::again(&well_formed);
    let cases: Vec<Case> = [well_formed, malformed::cases(), over_http2, http2::cases()].concat();
    let names: BTreeSet<_> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len(), "two rows have the same name");

    let scene = Scene::new();
    // Each kind of end that a connection or request of these listeners can have.
    let logged = |log: &BTreeSet<String>| LOGGED.iter().all(|text| log.iter().any(|line| line.contains(text)));
    let (envoy, envoys_log) = outcomes(&scene, Program::Envoy, &cases, logged);
    let (evenkeel, log) = outcomes(&scene, Program::Evenkeel, &cases, |log| *log == envoys_log);

    let mut failures = Vec::new();
    for ((case, envoy), evenkeel) in cases.iter().zip(&envoy).zip(&evenkeel) {
        if let Some(failure) = judge(case, envoy, evenkeel) {
            failures.push(failure);
        }
    }
    if let Some(difference) = first_difference(&lines(&envoys_log), &lines(&log)) {
        failures.push(format!("access logs: - Envoy, + Evenkeel\n{difference}"));
    }
    let (failed, all) = (failures.len(), cases.len());
    assert!(failures.is_empty(), "{failed} of {all} rows failed\n\n{}", failures.join("\n"));
}

/// What the access log of a program has when it is complete.
const LOGGED: [&str; 6] = [
    "tcp - ",
    "tcp-refused UF",
    "tcp-rbac - rbac_access_denied_matched_policy[loopback]",
    "rbac_access_denied_matched_policy[none]",
    "rbac_access_denied_matched_policy[no-deletes]",
    "request_payload_too_large",
];

fn lines(log: &BTreeSet<String>) -> String {
    log.iter().map(String::as_str).collect()
}

/// What the rows came to, and the kinds of lines in the access log once these are complete.
fn outcomes(
    scene: &Scene,
    program: Program,
    cases: &[Case],
    complete: impl Fn(&BTreeSet<String>) -> bool,
) -> (Vec<String>, BTreeSet<String>) {
    let mut process = scene.start(program);
    // Many rows wait for a close that comes only after a second: run them side by side.
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(index) else { return done };
            done.push((index, case.run(scene)));
        }
    };
    let mut outcomes: Vec<(usize, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a row does not panic")).collect()
    });
    outcomes.sort();
    assert!(process.exited().is_none(), "{program:?} ended during the table; it printed:\n{}", process.output());
    let log = wait::poll(LOG_PATIENCE, || Some(scene.log()).filter(&complete)).unwrap_or_else(|| scene.log());
    scene.forget_log();
    (outcomes.into_iter().map(|(_, outcome)| outcome).collect(), log)
}

fn judge(case: &Case, envoy: &str, evenkeel: &str) -> Option<String> {
    let name = case.name;
    if !envoy.contains(case.expect) {
        return Some(format!("{name}: Envoy did not do what the row is about ({:?}), but:\n{envoy}", case.expect));
    }
    match case.known {
        None => first_difference(envoy, evenkeel).map(|difference| {
            format!("{name}: - Envoy, + Evenkeel\n{difference}\nEvenkeel's whole answer:\n{evenkeel}")
        }),
        Some(known) if !evenkeel.contains(known.evenkeel) => {
            Some(format!("{name}: known to differ ({}), but not like this:\n{evenkeel}", known.reason))
        }
        Some(known) if envoy == evenkeel => {
            Some(format!("{name}: does not differ any more ({}): remove the note from the row", known.reason))
        }
        Some(_) => None,
    }
}
