//! Retries: their number, conditions, time limits and budget. Evenkeel sends its upstreams as many requests as Envoy does,
//! gives the client the same response, and counts the same.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use evenkeel_testkit::{Backend, Connection, Reply, Request, eventually, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

/// One request: the route's retry policy, its cluster's circuit breakers, more headers, and what the host answers in turn.
struct Row {
    name: &'static str,
    policy: &'static str,
    breakers: &'static str,
    headers: &'static str,
    answers: &'static [Answer],
}

#[derive(Clone, Copy)]
enum Answer {
    Status(u16),
    /// 503 with this header.
    Saying(&'static str, &'static str),
    /// After longer than a try may take.
    Late,
    Closes,
}

use Answer::{Closes, Late, Saying, Status};

const FAST: &str = "retry_back_off: { base_interval: 0.002s, max_interval: 0.01s }";
const RESET_AFTER: &str = "retry_on: 5xx, num_retries: 1, rate_limited_retry_back_off: { reset_headers: [ { name: retry-after, \
                           format: SECONDS } ], max_interval: 2s }";

const fn row(name: &'static str, policy: &'static str, answers: &'static [Answer]) -> Row {
    Row { name, policy, breakers: "", headers: "", answers }
}

/// The rows. The last answer is given again and again.
const ROWS: &[Row] = &[
    row("no-policy", "", &[Status(503)]),
    row("until-it-works", "retry_on: 5xx, num_retries: 3", &[Status(503), Status(500), Status(200)]),
    row("limit", "retry_on: 5xx, num_retries: 2", &[Status(503)]),
    row("one-by-default", "retry_on: 5xx", &[Status(503)]),
    row("none", "retry_on: 5xx, num_retries: 0", &[Status(503)]),
    row("gateway-error", "retry_on: gateway-error, num_retries: 2", &[Status(502), Status(500), Status(200)]),
    row("conflict", "retry_on: retriable-4xx, num_retries: 2", &[Status(409), Status(404), Status(200)]),
    row(
        "codes",
        "retry_on: retriable-status-codes, retriable_status_codes: [418], num_retries: 2",
        &[Status(418), Status(503), Status(200)],
    ),
    row("closes", "retry_on: reset, num_retries: 2", &[Closes]),
    row("closes-then-answers", "retry_on: reset, num_retries: 2", &[Closes, Status(200)]),
    row("per-try", "retry_on: gateway-error, num_retries: 2, per_try_timeout: 0.1s", &[Late, Late, Status(200)]),
    row("per-try-limit", "retry_on: gateway-error, num_retries: 1, per_try_timeout: 0.1s", &[Late]),
    row("per-try-not-covered", "retry_on: connect-failure, num_retries: 1, per_try_timeout: 0.1s", &[Late]),
    row("per-try-idle", "retry_on: gateway-error, num_retries: 1, per_try_idle_timeout: 0.1s", &[Late, Status(200)]),
    row("asked-to-wait", RESET_AFTER, &[Saying("retry-after", "1"), Status(200)]),
    row("asked-to-wait-too-long", RESET_AFTER, &[Saying("retry-after", "100"), Status(200)]),
    row("rate-limited", "retry_on: 5xx, num_retries: 2", &[Saying("x-envoy-ratelimited", "true"), Status(200)]),
    row(
        "rate-limited-covered",
        "retry_on: envoy-ratelimited, num_retries: 2",
        &[Saying("x-envoy-ratelimited", "true"), Status(200)],
    ),
    Row {
        name: "asked-by-header",
        policy: "",
        breakers: "",
        headers: "x-envoy-retry-on: 5xx\r\nx-envoy-max-retries: 2\r\n",
        answers: &[Status(503)],
    },
    Row {
        name: "asked-for-time-by-header",
        policy: "retry_on: gateway-error, num_retries: 1",
        breakers: "",
        headers: "x-envoy-upstream-rq-per-try-timeout-ms: 100\r\n",
        answers: &[Late, Status(200)],
    },
    Row {
        name: "no-retries-at-a-time",
        policy: "retry_on: 5xx, num_retries: 2",
        breakers: "circuit_breakers: { thresholds: [ { max_retries: 0 } ] },",
        headers: "",
        answers: &[Status(503)],
    },
    Row {
        name: "one-retry-at-a-time",
        policy: "retry_on: 5xx, num_retries: 3",
        breakers: "circuit_breakers: { thresholds: [ { max_retries: 1 } ] },",
        headers: "",
        answers: &[Status(503)],
    },
    Row {
        name: "whole-budget-closes",
        policy: "retry_on: reset, num_retries: 2",
        breakers: "circuit_breakers: { thresholds: [ { retry_budget: { budget_percent: { value: 100 }, min_retry_concurrency: 0 } } ] },",
        headers: "",
        answers: &[Closes],
    },
    Row {
        name: "no-budget",
        policy: "retry_on: 5xx, num_retries: 2",
        breakers: "circuit_breakers: { thresholds: [ { retry_budget: { budget_percent: { value: 0 }, min_retry_concurrency: 0 } } ] },",
        headers: "",
        answers: &[Status(503)],
    },
    Row {
        name: "budget-of-one",
        policy: "retry_on: 5xx, num_retries: 2",
        breakers: "circuit_breakers: { thresholds: [ { retry_budget: { budget_percent: { value: 0 }, min_retry_concurrency: 1 } } ] },",
        headers: "",
        answers: &[Status(503)],
    },
    Row {
        name: "budget-by-default",
        policy: "retry_on: 5xx, num_retries: 2",
        breakers: "circuit_breakers: { thresholds: [ { retry_budget: {} } ] },",
        headers: "",
        answers: &[Status(503)],
    },
    Row {
        name: "whole-budget",
        policy: "retry_on: 5xx, num_retries: 2",
        breakers: "circuit_breakers: { thresholds: [ { retry_budget: { budget_percent: { value: 100 }, min_retry_concurrency: 0 } } ] },",
        headers: "",
        answers: &[Status(503)],
    },
];

/// Of each route.
const TIMEOUT_MS: u32 = 5000;

const COUNTERS: [&str; 10] = [
    "upstream_rq_total",
    "upstream_rq_retry",
    "upstream_rq_retry_success",
    "upstream_rq_retry_overflow",
    "upstream_rq_retry_limit_exceeded",
    "upstream_rq_retry_backoff_exponential",
    "upstream_rq_retry_backoff_ratelimited",
    "upstream_rq_per_try_timeout",
    "upstream_rq_per_try_idle_timeout",
    "upstream_rq_timeout",
];

#[test]
fn evenkeel_and_envoy_try_again_alike() {
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let run = |program| {
        let asked = Mutex::new(BTreeMap::new());
        let backend = Backend::start(move |request| answer(request, &asked));
        std::fs::write(&file, bootstrap(backend.address(), port, admin)).expect("a writable folder");
        let mut process = web::start(program, &file, admin, port);
        let seen: Vec<_> = ROWS.iter().map(|row| look(row, port, admin, &backend)).collect();
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let (envoy, evenkeel) = (run(Program::Envoy), run(Program::Evenkeel));
    let differences: Vec<_> = envoy.iter().zip(&evenkeel).filter(|(envoy, evenkeel)| envoy != evenkeel).collect();
    assert!(differences.is_empty(), "Envoy, Evenkeel: {differences:#?}");
    // The rows do what they are named after.
    let tries: BTreeMap<_, _> = ROWS.iter().map(|row| row.name).zip(envoy.iter().map(|seen| seen.1.len())).collect();
    for (name, expected) in [("limit", 3), ("per-try", 3), ("no-budget", 1), ("budget-of-one", 3), ("none", 1)] {
        assert_eq!(tries[name], expected, "{name}");
    }
}

fn answer(request: &Request, asked: &Mutex<BTreeMap<String, usize>>) -> Reply {
    let Some(row) = ROWS.iter().find(|row| request.target == format!("/{}", row.name)) else {
        return Reply::Fixed(404, Vec::new(), Vec::new());
    };
    let mut asked = asked.lock().expect("nobody panicked");
    let number = asked.entry(request.target.clone()).or_insert(0);
    let answer = row.answers[(*number).min(row.answers.len() - 1)];
    *number += 1;
    match answer {
        Status(status) => Reply::Fixed(status, Vec::new(), Vec::new()),
        Saying(name, value) => Reply::Fixed(503, vec![(name.to_owned(), value.to_owned())], Vec::new()),
        Late => Reply::After(Duration::from_millis(600), Box::new(Reply::text("late"))),
        Closes => Reply::Close,
    }
}

/// What the client got, which tries the host saw, and what was counted.
type Seen = (String, Vec<String>, Vec<String>);

fn look(row: &Row, port: u16, admin: u16, backend: &Backend) -> Seen {
    let ask = |port: u16, path: &str, headers: &str| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Connection::open(address).and_then(|mut client| client.get("localhost", path, headers)).expect("an answer")
    };
    let path = format!("/{}", row.name);
    let response = ask(port, &path, row.headers);
    let mut said: Vec<_> = response.headers.iter().filter(|(name, _)| name.contains("x-envoy-over")).collect();
    said.sort();
    let answer = format!("{}: {} {:?} {said:?}", row.name, response.status, response.text());
    let header = |request: &Request, name: &str| request.header(name).unwrap_or("-").to_owned();
    let tries = backend.requests().into_iter().filter(|request| request.target == path).map(|request| {
        let (number, time) =
            (header(&request, "x-envoy-attempt-count"), header(&request, "x-envoy-expected-rq-timeout-ms"));
        // What is left of the whole request's time differs from run to run.
        let varies = number != "1" && time.parse().is_ok_and(|millis: u32| (1000..=TIMEOUT_MS).contains(&millis));
        format!("{number} {}", if varies { "what is left" } else { &time })
    });
    let tries: Vec<_> = tries.collect();
    // Counters are added up now and then.
    let counted = eventually("all tries to be counted", || {
        let stats = ask(admin, "/stats", "").text();
        let value = |counter: &str| {
            let name = format!("cluster.{}.{counter}: ", row.name);
            stats.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("0").to_owned()
        };
        let counted: Vec<_> = COUNTERS.iter().map(|counter| format!("{counter} {}", value(counter))).collect();
        (counted.first().map(String::as_str) == Some(format!("upstream_rq_total {}", tries.len()).as_str()))
            .then_some(counted)
    });
    (answer, tries, counted)
}

fn bootstrap(backend: SocketAddr, port: u16, admin: u16) -> String {
    let policy = |row: &Row| match row.policy {
        "" => String::new(),
        policy if policy.contains("rate_limited_retry") => format!(", retry_policy: {{ {policy} }}"),
        policy => format!(", retry_policy: {{ {policy}, {FAST} }}"),
    };
    let route = |row: &Row| {
        let (name, policy, seconds) = (row.name, policy(row), TIMEOUT_MS / 1000);
        format!("{{ match: {{ path: /{name} }}, route: {{ cluster: {name}, timeout: {seconds}s{policy} }} }}")
    };
    let cluster = |row: &Row| web::cluster(row.name, &endpoint(backend.port(), ""), row.breakers);
    let routes: Vec<String> = ROWS.iter().map(route).collect();
    let clusters: Vec<String> = ROWS.iter().map(cluster).collect();
    web::bootstrap(port, admin, &[], &routes, &clusters)
}
