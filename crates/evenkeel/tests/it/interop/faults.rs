//! Faults: Evenkeel delays, aborts and slows down the same requests as Envoy, and counts and logs them alike.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{Backend, Connection, Reply, free_ports, wait};

use super::proxy::Program;
use super::web::{self, ROUTER, cluster, endpoint};

/// How long statistics and log may take to be complete.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long requests are delayed, in milliseconds.
const DELAY: u64 = 150;

/// How much too early a timer may fire: Envoy's do.
const EARLY: Duration = Duration::from_millis(10);

/// A path, headers of the request, and how long the answer takes at least.
type Row = (&'static str, &'static str, Duration);

const fn at_once(path: &'static str, headers: &'static str) -> Row {
    (path, headers, Duration::ZERO)
}

const fn late(path: &'static str, headers: &'static str) -> Row {
    (path, headers, Duration::from_millis(DELAY))
}

const GRPC: &str = "content-type: application/grpc\r\n";

const ROWS: &[Row] = &[
    at_once("/none", ""),
    at_once("/abort", ""),
    at_once("/abort?grpc", GRPC),
    at_once("/abort?from", "x-envoy-downstream-service-cluster: shop\r\n"),
    at_once("/never", ""),
    at_once("/unset", ""),
    at_once("/million", ""),
    at_once("/grpc-status", ""),
    at_once("/grpc-status?grpc", GRPC),
    at_once("/header", ""),
    at_once("/header?http", "x-envoy-fault-abort-request: 429\r\n"),
    at_once("/header?grpc", "content-type: application/grpc\r\nx-envoy-fault-abort-grpc-request: 5\r\n"),
    at_once("/header?odd", "x-envoy-fault-abort-request: 99\r\n"),
    at_once("/header?none", "x-envoy-fault-abort-request: 503\r\nx-envoy-fault-abort-request-percentage: 0\r\n"),
    at_once("/header?all", "x-envoy-fault-abort-request: 503\r\nx-envoy-fault-abort-request-percentage: 500\r\n"),
    late("/header?late", "x-envoy-fault-delay-request: 150\r\n"),
    late("/header?both", "x-envoy-fault-delay-request: 150\r\nx-envoy-fault-abort-request: 418\r\n"),
    at_once("/header?soon", "x-envoy-fault-delay-request: soon\r\n"),
    late("/late", ""),
    late("/late?from", "x-envoy-downstream-service-cluster: shop\r\n"),
    late("/both", ""),
    at_once("/match", ""),
    at_once("/match?yes", "x-break: yes\r\n"),
    at_once("/node", ""),
    at_once("/node?two", "x-envoy-downstream-service-node: two\r\n"),
    at_once("/cluster", ""),
    at_once("/other-cluster", ""),
    at_once("/weighted", ""),
    at_once("/full", ""),
    at_once("/direct", ""),
    at_once("/edited", ""),
    at_once("/off", ""),
    // 1,000 bytes at 1 KiB a second, of which 51 go at once.
    ("/slow", "", Duration::from_millis(850)),
    ("/slow-header", "x-envoy-fault-throughput-response: 2\r\n", Duration::from_millis(400)),
    at_once("/slow-header?none", ""),
    at_once("/slow-abort", ""),
    at_once("/nowhere", ""),
    // What a request suffers does not lift its limits.
    ("/idle", "", Duration::from_millis(100)),
];

/// Answers in the rows' order, statistics, and lines of the log.
type Seen = [BTreeSet<String>; 3];

#[test]
fn evenkeel_and_envoy_inject_the_same_faults() {
    let backend = Backend::start(|_| Reply::text("a".repeat(1000)));
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    std::fs::write(&file, bootstrap(backend.address().port(), port, admin, &log)).expect("a writable folder");
    let run = |program, expected: Option<&Seen>| {
        let mut process = web::start(program, &file, admin, port);
        let answers: BTreeSet<String> = ROWS.iter().map(|row| ask(program, port, row)).collect();
        leave(port);
        let look = || [answers.clone(), statistics(admin), logged(&log)];
        let complete = |seen: &Seen| match expected {
            Some(expected) => seen == expected,
            // A fault of a client that left may be active for a moment longer.
            None => seen[2].len() == ROWS.len() + 1 && seen[1].contains("http.http.fault.active_faults: 0"),
        };
        let seen = wait::poll(PATIENCE, || Some(look()).filter(&complete)).unwrap_or_else(look);
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        drop(process);
        std::fs::remove_file(&log).expect("a log was written");
        seen
    };
    let envoy = run(Program::Envoy, None);
    let evenkeel = run(Program::Evenkeel, Some(&envoy));
    for (envoy, evenkeel) in envoy.iter().zip(&evenkeel) {
        let lines = |seen: &BTreeSet<String>| seen.iter().map(|line| format!("{line}\n")).collect::<String>();
        let difference = first_difference(&lines(envoy), &lines(evenkeel));
        assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
    }
    let happened = |part: &str| envoy.iter().flatten().any(|line| line.contains(part));
    for part in [
        "/both 418 DI,FI fault_filter_abort {\"team\":\"blue\"} blue",
        "http.http.fault.shop.aborts_injected: 1",
        "http.http.fault.response_rl_injected: 3",
    ] {
        assert!(happened(part), "{part} is not in {envoy:#?}");
    }
}

fn ask(program: Program, port: u16, (path, headers, least): &Row) -> String {
    let began = Instant::now();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let answer = Connection::open(address).and_then(|mut client| client.get("a.test", path, headers));
    let answer = answer.expect("an answer");
    assert!(began.elapsed() + EARLY >= *least, "{program:?} {path}: after {:?}", began.elapsed());
    let named = ["content-type", "grpc-status", "grpc-message", "x-edited"];
    let fields: Vec<_> = named.iter().filter_map(|name| Some(format!("{name}: {}", answer.header(name)?))).collect();
    let text = answer.text();
    let body = if text.len() == 1000 { "the backend's" } else { &text };
    format!("{path}: {} {fields:?} {body}", answer.status)
}

/// A client that does not wait until its request has suffered.
fn leave(port: u16) {
    let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("the listener accepts");
    client.send("GET /later HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("an open connection");
    assert_eq!(client.ending(Duration::from_millis(100)).ok(), Some(Ending::Open), "it is held back");
}

fn statistics(admin: u16) -> BTreeSet<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let get = |path: &str| {
        Connection::open(address).and_then(|mut client| client.get("admin", path, "")).expect("an answer").text()
    };
    let plain = get("/stats");
    let prometheus = get("/stats/prometheus");
    let plain = plain.lines().filter(|line| line.contains(".fault.") && !super::is_own(line));
    let by_cluster = prometheus.lines().filter(|line| line.contains("envoy_fault_downstream_cluster"));
    plain.chain(by_cluster).map(in_order).collect()
}

/// A line with its labels, if it has any, in alphabetical order.
fn in_order(line: &str) -> String {
    let Some((name, rest)) = line.split_once('{') else { return line.to_owned() };
    let (labels, value) = rest.split_once('}').unwrap_or((rest, ""));
    let mut labels: Vec<_> = labels.split(',').collect();
    labels.sort_unstable();
    format!("{name}{{{}}}{value}", labels.join(","))
}

fn logged(log: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn bootstrap(backend: u16, port: u16, admin: u16, log: &Path) -> String {
    let message = "\"@type\": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault";
    let route = |path: &str, action: &str, fault: &str| {
        let fault = match fault {
            "" => String::new(),
            fault => format!(", typed_per_filter_config: {{ f: {{ {message}, {fault} }} }}"),
        };
        format!("              - {{ match: {{ path: {path} }}, {action}{fault} }}\n")
    };
    let to_a = "route: { cluster: a }";
    let abort = "abort: { http_status: 418, percentage: { numerator: 100 } }";
    let delay = format!("delay: {{ fixed_delay: 0.{DELAY}s, percentage: {{ numerator: 100 }} }}");
    let by_header = "abort: { header_abort: {}, percentage: { numerator: 100 } }, delay: { header_delay: {}, percentage: { numerator: 1000000, denominator: MILLION } }";
    let slow = "response_rate_limit: { fixed_limit: { limit_kbps: 1 }, percentage: { numerator: 100 } }";
    let metadata = "filter_metadata: { team: blue }";
    let routes = [
        route("/none", to_a, ""),
        route("/abort", to_a, abort),
        route("/never", to_a, "abort: { http_status: 418, percentage: { numerator: 0 } }"),
        route("/unset", to_a, "abort: { http_status: 418 }"),
        route(
            "/million",
            to_a,
            "abort: { http_status: 503, percentage: { numerator: 1000000, denominator: MILLION } }",
        ),
        route(
            "/grpc-status",
            to_a,
            "abort: { grpc_status: 14, percentage: { numerator: 10000, denominator: TEN_THOUSAND } }",
        ),
        route("/header", to_a, by_header),
        route("/late", to_a, &delay),
        route("/both", to_a, &format!("{delay}, {abort}, {metadata}")),
        route(
            "/match",
            to_a,
            &format!("{abort}, headers: [ {{ name: x-break, string_match: {{ exact: \"yes\" }} }} ]"),
        ),
        route(
            "/node",
            to_a,
            &format!("{abort}, downstream_nodes: [ one, two ], disable_downstream_cluster_stats: true"),
        ),
        route("/cluster", to_a, &format!("{abort}, upstream_cluster: a")),
        route("/other-cluster", to_a, &format!("{abort}, upstream_cluster: b")),
        route(
            "/weighted",
            "route: { weighted_clusters: { clusters: [ { name: a, weight: 0 }, { name: b, weight: 1 } ] } }",
            &format!("{abort}, upstream_cluster: b"),
        ),
        route("/full", to_a, &format!("{abort}, max_active_faults: 0")),
        route("/direct", "direct_response: { status: 200, body: { inline_string: direct } }", abort),
        route(
            "/edited",
            "route: { cluster: a }, response_headers_to_add: [ { header: { key: x-edited, value: \"yes\" } } ]",
            abort,
        ),
        format!(
            "              - {{ match: {{ path: /off }}, {to_a}, typed_per_filter_config: {{ f: {{ \"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true }} }} }}\n"
        ),
        route("/slow", to_a, slow),
        route("/later", to_a, "delay: { fixed_delay: 30s, percentage: { numerator: 100 } }"),
        route(
            "/idle",
            "route: { cluster: a, idle_timeout: 0.1s }",
            "delay: { fixed_delay: 30s, percentage: { numerator: 100 } }",
        ),
        route("/slow-header", to_a, "response_rate_limit: { header_limit: {}, percentage: { numerator: 100 } }"),
        route("/slow-abort", to_a, &format!("{slow}, {abort}")),
    ];
    let log = web::access_log(
        log,
        &[
            "%REQ(:PATH)% %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %DYNAMIC_METADATA(f)% %DYNAMIC_METADATA(f:team)%",
        ],
    );
    let everywhere = "abort: { http_status: 503, percentage: { numerator: 100 } }, headers: [ { name: x-everywhere } ]";
    let manager = format!(
        "          {log}
          http_filters:
          - {{ name: f, typed_config: {{ {message}, {everywhere} }} }}
          - {ROUTER}
{}",
        web::one_host(&routes.concat())
    );
    let clusters = [cluster("a", &endpoint(backend, ""), ""), cluster("b", &endpoint(backend, ""), "")];
    web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
}
