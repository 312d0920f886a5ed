//! All kinds of outlier detection: Evenkeel and Envoy eject the same hosts, for the same reason.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::wait::{PATIENCE, poll};
use evenkeel_testkit::{Backend, Connection, Reply, Response, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

/// A cluster: its detection, what its hosts do in turn, who is ejected in the end, and what was counted.
struct Row {
    name: &'static str,
    detection: &'static [&'static str],
    hosts: &'static [&'static [Answer]],
    ejected: &'static [usize],
    /// What is not named here and counts ejections that were enforced is 0.
    counted: &'static [(&'static str, u64)],
}

#[derive(Clone, Copy)]
enum Answer {
    Status(u16),
    /// Ends the connection without one.
    Closes,
    /// Ends it in the middle of one.
    BreaksOff,
    /// After longer than the route waits.
    Late,
    /// Nobody listens.
    Refuses,
}

use Answer::{BreaksOff, Closes, Late, Refuses, Status};

const WELL: &[Answer] = &[Status(200)];
/// No failures in a row.
const HALF_ILL: &[Answer] = &[Status(200), Status(500)];
const HALF_CUT: &[Answer] = &[Status(200), Closes];

const ALWAYS: &str = "base_ejection_time: 300s, max_ejection_time: 300s, interval: 1s";
/// Unless a row has it otherwise.
const ALL_MAY_GO: &str = "max_ejection_percent: 100";
/// What is on by default.
const NO_5XX: &str = "enforcing_consecutive_5xx: 0";
const NO_RATE: &str = "enforcing_success_rate: 0";
const NO_LOCAL: &str = "split_external_local_origin_errors: true, enforcing_local_origin_success_rate: 0";
const LOCAL_IN_A_ROW: &str = "consecutive_local_origin_failure: 3, enforcing_consecutive_local_origin_failure: 100";
const NO_LOCAL_IN_A_ROW: &str = "enforcing_consecutive_local_origin_failure: 0";
const RATE: &str = "success_rate_minimum_hosts: 5, success_rate_request_volume: 3";
const SHARE: &str =
    "failure_percentage_minimum_hosts: 2, failure_percentage_request_volume: 3, failure_percentage_threshold: 20";

const fn row(
    name: &'static str,
    detection: &'static [&'static str],
    hosts: &'static [&'static [Answer]],
    ejected: &'static [usize],
    counted: &'static [(&'static str, u64)],
) -> Row {
    Row { name, detection, hosts, ejected, counted }
}

/// One host goes for 5xx in a row.
const ONE_BY_5XX: &[(&str, u64)] = &[("ejections_enforced_total", 1), ("ejections_enforced_consecutive_5xx", 1)];

const ENFORCED: &str = "ejections_enforced_";

const ROWS: &[Row] = &[
    row(
        "5xx",
        &["consecutive_5xx: 3"],
        &[&[Status(500)], WELL],
        &[0],
        &[
            ("ejections_enforced_total", 1),
            ("ejections_enforced_consecutive_5xx", 1),
            ("ejections_detected_consecutive_5xx", 1),
            ("ejections_active", 1),
        ],
    ),
    row(
        "5xx-interrupted",
        &["consecutive_5xx: 3"],
        &[&[Status(500), Status(503), Status(404)], WELL],
        &[],
        &[("ejections_detected_consecutive_5xx", 0)],
    ),
    row("5xx-not-enforced", &["consecutive_5xx: 3", "enforcing_consecutive_5xx: 0"], &[&[Status(500)], WELL], &[], &[]),
    row("5xx-by-closing", &["consecutive_5xx: 3"], &[&[Closes], WELL], &[0], ONE_BY_5XX),
    row("5xx-by-refusing", &["consecutive_5xx: 3"], &[&[Refuses], WELL], &[0], ONE_BY_5XX),
    row("5xx-by-silence", &["consecutive_5xx: 3"], &[&[Late], WELL], &[0], ONE_BY_5XX),
    row("too-few", &["consecutive_5xx: 3", "max_ejection_percent: 10"], &[&[Status(500)], WELL], &[], &[]),
    row(
        "too-few-but-one",
        &["consecutive_5xx: 3", "max_ejection_percent: 10", "always_eject_one_host: true"],
        &[&[Status(500)], WELL],
        &[0],
        ONE_BY_5XX,
    ),
    row(
        "gateway",
        &[
            "enforcing_consecutive_5xx: 0",
            "consecutive_gateway_failure: 3",
            "enforcing_consecutive_gateway_failure: 100",
        ],
        &[&[Status(502), Status(503), Status(504)], &[Status(502), Status(503), Status(500)]],
        &[0],
        &[
            ("ejections_enforced_total", 1),
            ("ejections_enforced_consecutive_gateway_failure", 1),
            ("ejections_detected_consecutive_gateway_failure", 1),
        ],
    ),
    row(
        "local",
        &[NO_5XX, NO_LOCAL, LOCAL_IN_A_ROW],
        &[&[Refuses], &[Status(500)], WELL],
        &[0],
        &[
            ("ejections_enforced_total", 1),
            ("ejections_enforced_consecutive_local_origin_failure", 1),
            ("ejections_detected_consecutive_local_origin_failure", 1),
            ("ejections_active", 1),
        ],
    ),
    row("local-by-silence", &[NO_LOCAL, LOCAL_IN_A_ROW], &[&[Late], WELL], &[], &[]),
    row("local-by-closing", &[NO_LOCAL, LOCAL_IN_A_ROW], &[&[Closes], WELL], &[], &[]),
    row(
        "rate",
        &[NO_5XX, RATE, "enforcing_success_rate: 100"],
        &[WELL, WELL, HALF_ILL, WELL, WELL],
        &[2],
        &[
            ("ejections_enforced_total", 1),
            ("ejections_enforced_success_rate", 1),
            ("ejections_detected_success_rate", 1),
            ("ejections_active", 1),
        ],
    ),
    row("rate-of-four", &[NO_5XX, RATE, "enforcing_success_rate: 100"], &[WELL, WELL, HALF_ILL, WELL], &[], &[]),
    row(
        // An answer that has begun is an answer.
        "rate-by-breaking-off",
        &[NO_5XX, RATE, "enforcing_success_rate: 100"],
        &[WELL, WELL, WELL, &[BreaksOff], WELL],
        &[],
        &[("ejections_detected_success_rate", 0)],
    ),
    row(
        "local-rate-by-breaking-off",
        &[
            "split_external_local_origin_errors: true",
            NO_LOCAL_IN_A_ROW,
            NO_5XX,
            NO_RATE,
            RATE,
            "enforcing_local_origin_success_rate: 100",
        ],
        &[&[BreaksOff], WELL, WELL, WELL, WELL],
        &[],
        &[("ejections_detected_local_origin_success_rate", 0)],
    ),
    row(
        "local-rate",
        &[
            "split_external_local_origin_errors: true",
            NO_LOCAL_IN_A_ROW,
            NO_5XX,
            NO_RATE,
            RATE,
            "enforcing_local_origin_success_rate: 100",
        ],
        &[WELL, HALF_CUT, WELL, WELL, WELL],
        &[1],
        &[
            ("ejections_enforced_total", 1),
            ("ejections_enforced_local_origin_success_rate", 1),
            ("ejections_detected_local_origin_success_rate", 1),
        ],
    ),
    row(
        "share",
        &[NO_5XX, NO_RATE, SHARE, "enforcing_failure_percentage: 100"],
        &[HALF_ILL, WELL],
        &[0],
        &[
            ("ejections_enforced_total", 1),
            ("ejections_enforced_failure_percentage", 1),
            ("ejections_detected_failure_percentage", 1),
        ],
    ),
    row(
        "local-share",
        &[NO_LOCAL, NO_LOCAL_IN_A_ROW, NO_5XX, NO_RATE, SHARE, "enforcing_failure_percentage_local_origin: 100"],
        &[HALF_CUT, HALF_ILL],
        &[0],
        &[
            ("ejections_enforced_total", 1),
            ("ejections_enforced_local_origin_failure_percentage", 1),
            ("ejections_detected_local_origin_failure_percentage", 1),
        ],
    ),
];

/// Requests between two looks.
const BATCH: usize = 20;
/// Looks, at least: some intervals pass, and whoever is to stay has stayed.
const LOOKS: usize = 3;
/// Of those that are to stay the detection must have seen enough.
const LEAST_TIME: Duration = Duration::from_secs(3);

#[test]
fn evenkeel_and_envoy_eject_alike() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runs = [Program::Envoy, Program::Evenkeel].map(|program| {
        let file = folder.path().join(format!("{program:?}.yaml"));
        run(program, &file)
    });
    let failures: Vec<_> = runs.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What is not as the rows have it.
fn run(program: Program, file: &std::path::Path) -> Vec<String> {
    let hosts: Vec<Vec<Host>> =
        ROWS.iter().map(|row| row.hosts.iter().map(|answers| Host::start(answers)).collect()).collect();
    let [port, admin] = free_ports::<2>();
    std::fs::write(file, bootstrap(&hosts, port, admin)).expect("a writable folder");
    let mut process = web::start(program, file, admin, port);
    let failures = std::thread::scope(|scope| {
        let rows = ROWS.iter().zip(&hosts).map(|(row, hosts)| scope.spawn(move || look(row, hosts, port, admin)));
        let rows: Vec<_> = rows.collect();
        rows.into_iter().filter_map(|row| row.join().expect("every request was answered")).collect::<Vec<_>>()
    });
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    failures.into_iter().map(|failure| format!("{program:?}, {failure}")).collect()
}

/// A host, or a port where nobody listens.
struct Host {
    address: SocketAddr,
    _backend: Option<Backend>,
}

impl Host {
    fn start(answers: &'static [Answer]) -> Self {
        if matches!(answers, [Refuses]) {
            let [port] = free_ports::<1>();
            return Self { address: (Ipv4Addr::LOCALHOST, port).into(), _backend: None };
        }
        let asked = AtomicUsize::new(0);
        let backend = Backend::start(move |_| match answers[asked.fetch_add(1, Ordering::SeqCst) % answers.len()] {
            Status(status) => Reply::Fixed(status, Vec::new(), Vec::new()),
            Closes | Refuses => Reply::Close,
            BreaksOff => Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec()),
            Late => Reply::After(Duration::from_millis(300), Box::new(Reply::text("late"))),
        });
        Self { address: backend.address(), _backend: Some(backend) }
    }
}

fn ask(port: u16, path: &str) -> std::io::Result<Response> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    Connection::open(address).and_then(|mut client| client.get("localhost", path, ""))
}

fn get(port: u16, path: &str) -> String {
    ask(port, path).expect("an answer").text()
}

/// Asks until all is as the row has it, and for a while after that.
fn look(row: &Row, hosts: &[Host], port: u16, admin: u16) -> Option<String> {
    let (began, mut looks, mut seen) = (std::time::Instant::now(), 0, None);
    let as_expected = poll(PATIENCE, || {
        // How each is answered is the host's affair.
        (0..BATCH).for_each(|_| _ = ask(port, &format!("/{}", row.name)));
        looks += 1;
        seen = differs(row, hosts, admin);
        (looks >= LOOKS && began.elapsed() >= LEAST_TIME && seen.is_none()).then_some(())
    });
    match as_expected {
        Some(()) => None,
        None => seen,
    }
}

/// In what ejections are not as the row has them.
fn differs(row: &Row, hosts: &[Host], admin: u16) -> Option<String> {
    let flags = get(admin, "/clusters");
    let is_out = |host: &Host| {
        let line = format!("{}::{}::health_flags::/failed_outlier_check", row.name, host.address);
        flags.lines().any(|has| has == line)
    };
    let out: Vec<_> = (0..).zip(hosts).filter(|(_, host)| is_out(host)).map(|(place, _)| place).collect();
    let prefix = format!("cluster.{}.outlier_detection.", row.name);
    let stats = get(admin, "/stats");
    let counted: BTreeMap<&str, u64> = stats
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix)?.split_once(": "))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    let expected: BTreeMap<_, _> = row.counted.iter().copied().collect();
    let wrong = counted.iter().filter(|(name, value)| match expected.get(*name) {
        Some(expected) => expected != *value,
        None => name.starts_with(ENFORCED) && **value > 0,
    });
    let wrong: Vec<_> = wrong.collect();
    let missing: Vec<_> = expected.keys().filter(|name| !counted.contains_key(*name)).collect();
    let fine = out == row.ejected && wrong.is_empty() && missing.is_empty();
    (!fine)
        .then(|| format!("{}: ejected {out:?} for {:?}; counted {wrong:?}; missing {missing:?}", row.name, row.ejected))
}

fn detection(row: &Row) -> String {
    let has_share = row.detection.iter().any(|part| part.starts_with("max_ejection_percent"));
    let rest: &[&str] = if has_share { &[ALWAYS] } else { &[ALWAYS, ALL_MAY_GO] };
    [row.detection, rest].concat().join(", ")
}

fn bootstrap(hosts: &[Vec<Host>], port: u16, admin: u16) -> String {
    let cluster = |(row, hosts): (&Row, &Vec<Host>)| {
        let endpoints: Vec<_> = hosts.iter().map(|host| endpoint(host.address.port(), "")).collect();
        format!(
            "{{ name: {name}, type: STATIC, connect_timeout: 5s, common_lb_config: {{ healthy_panic_threshold: {{ value: 0 }} }}, \
             outlier_detection: {{ {} }}, load_assignment: {{ cluster_name: {name}, endpoints: [ {{ lb_endpoints: [ {} ] }} ] }} }}",
            detection(row),
            endpoints.join(", "),
            name = row.name,
        )
    };
    let clusters: Vec<_> = ROWS.iter().zip(hosts).map(cluster).collect();
    let route = |row: &Row| {
        format!("{{ match: {{ path: /{name} }}, route: {{ cluster: {name}, timeout: 0.1s }} }}", name = row.name)
    };
    let routes: Vec<_> = ROWS.iter().map(route).collect();
    web::bootstrap(port, admin, &[], &routes, &clusters)
}
