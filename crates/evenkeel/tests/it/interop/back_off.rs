//! The wait before a retry: Evenkeel and Envoy wait alike. Pauses are random, so their distributions are compared.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_testkit::{Backend, Connection, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

/// A retry policy, what the host says with each 503, and the least pause it may have.
struct Row {
    name: &'static str,
    policy: &'static str,
    retries: usize,
    says: Option<(&'static str, &'static str)>,
    least: Duration,
}

const ROWS: [Row; 4] = [
    Row {
        name: "doubles",
        policy: "num_retries: 3, retry_back_off: { base_interval: 0.5s }",
        retries: 3,
        says: None,
        least: Duration::ZERO,
    },
    Row {
        name: "limited",
        policy: "num_retries: 3, retry_back_off: { base_interval: 0.5s, max_interval: 0.75s }",
        retries: 3,
        says: None,
        least: Duration::ZERO,
    },
    Row {
        name: "asked-for",
        policy: "num_retries: 1, rate_limited_retry_back_off: { reset_headers: [ { name: retry-after, format: SECONDS } ] }",
        retries: 1,
        says: Some(("retry-after", "1")),
        least: Duration::from_secs(1),
    },
    Row {
        name: "asked-for-too-much",
        policy: "num_retries: 2, retry_back_off: { base_interval: 0.5s }, rate_limited_retry_back_off: { max_interval: 5s, \
                 reset_headers: [ { name: retry-after, format: SECONDS } ] }",
        retries: 2,
        says: Some(("retry-after", "60")),
        least: Duration::ZERO,
    },
];

/// Requests of each row.
const REQUESTS: usize = 60;
/// Requests of a program that wait at the same time.
const THREADS: usize = 80;
/// Two samples of one distribution are that far apart in one of a million runs (Kolmogorov and Smirnov:
/// `sqrt(-ln(1e-6 / 2) / REQUESTS)`).
const MOST_APART: f64 = 0.49;

/// By how much a pause may look shorter than it was, because the request before it was noted late.
const NOTED_LATE: Duration = Duration::from_millis(100);

/// When which request came.
type Seen = Mutex<HashMap<String, Vec<Instant>>>;

/// Pauses by row and retry, in order of length.
type Pauses = Vec<Vec<Vec<Duration>>>;

#[test]
fn evenkeel_and_envoy_wait_alike_before_retries() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [envoy, evenkeel] = std::thread::scope(|scope| {
        let folder = folder.path();
        let runs = [Program::Envoy, Program::Evenkeel]
            .map(|program| scope.spawn(move || pauses(program, &folder.join(format!("{program:?}.yaml")))));
        runs.map(|run| run.join().expect("every request was answered"))
    });
    for ((row, envoy), evenkeel) in ROWS.iter().zip(&envoy).zip(&evenkeel) {
        for (retry, (envoy, evenkeel)) in envoy.iter().zip(evenkeel).enumerate() {
            let what = format!("{}, retry {}", row.name, retry + 1);
            let shortest = evenkeel.first().zip(envoy.first()).map(|(ours, theirs)| *ours.min(theirs));
            assert!(shortest.map(|shortest| shortest + NOTED_LATE) >= Some(row.least), "{what}: {shortest:?}");
            let apart = apart(envoy, evenkeel);
            assert!(apart <= MOST_APART, "{what}: {apart:.2} apart\nEnvoy {envoy:?}\nEvenkeel {evenkeel:?}");
        }
    }
}

fn pauses(program: Program, file: &std::path::Path) -> Pauses {
    let seen = Arc::new(Seen::default());
    let recorder = Arc::clone(&seen);
    let backend = Backend::start(move |request| {
        let now = Instant::now();
        recorder.lock().expect("nobody panicked").entry(request.target.clone()).or_default().push(now);
        let row = ROWS.iter().find(|row| request.target.starts_with(&format!("/{}/", row.name)));
        let says = row.and_then(|row| row.says).map(|(name, value)| (name.to_owned(), value.to_owned()));
        Reply::Fixed(503, says.into_iter().collect(), Vec::new())
    });
    let [port, admin] = free_ports::<2>();
    std::fs::write(file, bootstrap(backend.address(), port, admin)).expect("a writable folder");
    let mut process = web::start(program, file, admin, port);
    let target = |row: &Row, request: usize| format!("/{}/{request}", row.name);
    let targets: Vec<String> =
        (0..REQUESTS).flat_map(|request| ROWS.iter().map(move |row| target(row, request))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                    let answer = Connection::open(address).and_then(|mut client| client.get("a.test", target, ""));
                    assert_eq!(answer.expect("an answer").status, 503);
                }
            });
        }
    });
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    let seen = seen.lock().expect("nobody panicked");
    let of_retry = |row: &Row, retry: usize| {
        let pause = |request| {
            let tries = &seen[&target(row, request)];
            assert_eq!(tries.len(), row.retries + 1, "{program:?}, {}", row.name);
            tries[retry + 1] - tries[retry]
        };
        let mut pauses: Vec<_> = (0..REQUESTS).map(pause).collect();
        pauses.sort();
        pauses
    };
    ROWS.iter().map(|row| (0..row.retries).map(|retry| of_retry(row, retry)).collect()).collect()
}

/// The largest difference between the shares of two sorted samples that are no longer than some time.
fn apart(one: &[Duration], other: &[Duration]) -> f64 {
    let share = |sample: &[Duration], limit: Duration| {
        sample.partition_point(|pause| *pause <= limit) as f64 / sample.len() as f64
    };
    let limits = one.iter().chain(other);
    limits.map(|limit| (share(one, *limit) - share(other, *limit)).abs()).fold(0.0, f64::max)
}

fn bootstrap(backend: SocketAddr, port: u16, admin: u16) -> String {
    let route = |row: &Row| {
        let (name, policy) = (row.name, row.policy);
        format!(
            "{{ match: {{ prefix: /{name}/ }}, route: {{ cluster: c, timeout: 60s, retry_policy: {{ retry_on: 5xx, {policy} }} }} }}"
        )
    };
    let many = 1_000_000;
    let breakers = format!(
        "circuit_breakers: {{ thresholds: [ {{ max_retries: {many}, max_connections: {many}, max_requests: {many}, \
         max_pending_requests: {many} }} ] }},"
    );
    let cluster = web::cluster("c", &endpoint(backend.port(), ""), &breakers);
    web::bootstrap(port, admin, &[], &ROWS.iter().map(route).collect::<Vec<_>>(), &[cluster])
}

#[test]
fn samples_are_as_far_apart_as_their_shares_differ() {
    let sample = |millis: &[u64]| millis.iter().copied().map(Duration::from_millis).collect::<Vec<_>>();
    let check = |one: &[u64], other: &[u64], expected: f64| {
        assert!((apart(&sample(one), &sample(other)) - expected).abs() < 1e-9, "{one:?}, {other:?}");
    };
    check(&[1, 2, 3, 4], &[1, 2, 3, 4], 0.0);
    check(&[1, 2, 3, 4], &[5, 6, 7, 8], 1.0);
    check(&[1, 2, 3, 4], &[1, 2, 5, 6], 0.5);
}
