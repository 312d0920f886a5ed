//! Client-side weighted round robin: from the same load reports Evenkeel and Envoy compute the same weights, and choose hosts by
//! them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::wait::{PATIENCE, poll};
use evenkeel_testkit::{Backend, Connection, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

/// A cluster: its settings, the reports of its hosts, and the weights that follow.
struct Row {
    name: &'static str,
    settings: &'static str,
    hosts: &'static [Report],
    weights: &'static [u32],
}

/// Header and value of a report.
type Report = (Place, &'static str, &'static str);

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Head,
    Trailers,
}

use Place::{Head, Trailers};

const TEXT: &str = "endpoint-load-metrics";
const BINARY: &str = "endpoint-load-metrics-bin";
/// No report.
const NONE: Report = (Head, "x-other", "1");

const fn text(value: &'static str) -> Report {
    (Head, TEXT, value)
}

const ROWS: &[Row] = &[
    Row {
        name: "formats",
        settings: "",
        hosts: &[
            text("TEXT application_utilization=0.5, rps_fractional:100"),
            text("JSON {\"applicationUtilization\": 0.25, \"rps_fractional\": 100}"),
            // cpu_utilization 0.5, rps_fractional 100, eps 2, named_metrics.rif 4
            (Head, BINARY, "CQAAAAAAAOA/MQAAAAAAAFlAOQAAAAAAAABAQg4KA3JpZhEAAAAAAAAQQA=="),
            text("BIN CQAAAAAAAOA/MQAAAAAAAFlAOQAAAAAAAABAQg4KA3JpZhEAAAAAAAAQQA=="),
        ],
        weights: &[200, 400, 200, 200],
    },
    Row {
        name: "what-counts-as-utilization",
        settings: "metric_names_for_computing_utilization: [ named_metrics.foo, utilization.disk, unknown, mem_utilization ]",
        hosts: &[
            text("TEXT rps_fractional=100,application_utilization=0.5,named_metrics.foo=0.2,utilization.disk=0.4"),
            text("TEXT rps_fractional=100,application_utilization=0.5,named_metrics.bar=0.1"),
            text("TEXT rps_fractional=100,cpu_utilization=0.1"),
            text("TEXT rps_fractional=100,cpu_utilization=0.1,mem_utilization=0.8"),
        ],
        weights: &[250, 200, 1000, 125],
    },
    Row {
        name: "all-of-a-map",
        settings: "metric_names_for_computing_utilization: [ \"named_metrics.*\" ]",
        hosts: &[
            text("TEXT rps_fractional=100,named_metrics.foo=0.2,named_metrics.bar=0.5"),
            text("TEXT rps_fractional=100,application_utilization=1"),
        ],
        weights: &[200, 100],
    },
    Row {
        name: "errors",
        settings: "error_utilization_penalty: 2",
        hosts: &[
            text("TEXT rps_fractional=1000,application_utilization=0.5,eps=100"),
            text("TEXT rps_fractional=1000,application_utilization=0.5"),
        ],
        weights: &[1428, 2000],
    },
    Row {
        name: "without-a-valid-report",
        settings: "",
        hosts: &[
            text("TEXT rps_fractional=100,application_utilization=1"),
            text("TEXT rps_fractional=100,application_utilization=0.25"),
            text("TEXT rps_fractional=100,application_utilization=0.5"),
            NONE,
            text("TEXT application_utilization=0.5"),
            text("TEXT rps_fractional=100"),
            text("rps_fractional=100,application_utilization=0.5"),
            text("TEXT rps_fractional=100,application_utilization=much"),
            text("TEXT rps_fractional=100,application_utilization=-0.1"),
            text("TEXT rps_fractional=100,rps_fractional=100,application_utilization=0.1"),
            text("TEXT rps_fractional=100,load=0.1,application_utilization=0.1"),
            text("TEXT rps_fractional=100,application_utilization=inf"),
            text("JSON {\"rps_fractional\": 100, \"application_utilization\": 0.1, \"load\": 1}"),
            (Head, BINARY, "%%%"),
            (Head, BINARY, ""),
        ],
        weights: &[100, 400, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200],
    },
    Row { name: "nobody-reports", settings: "", hosts: &[NONE, NONE], weights: &[1, 1] },
    Row {
        name: "in-trailers",
        settings: "",
        hosts: &[
            (Trailers, TEXT, "TEXT rps_fractional=100,application_utilization=0.25"),
            text("TEXT rps_fractional=100,application_utilization=0.5"),
        ],
        weights: &[400, 200],
    },
    Row {
        name: "too-soon",
        settings: "blackout_period: 300s",
        hosts: &[text("TEXT rps_fractional=100,application_utilization=0.25"), NONE],
        weights: &[1, 1],
    },
];

/// Requests whose division among hosts is compared with the weights.
const REQUESTS: usize = 400;

#[test]
fn evenkeel_and_envoy_weigh_hosts_alike() {
    let rows: Vec<Vec<Backend>> = ROWS.iter().map(|row| row.hosts.iter().enumerate().map(backend).collect()).collect();
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(&rows, port, admin)).expect("a writable folder");
    for program in [Program::Envoy, Program::Evenkeel] {
        let mut process = web::start(program, &file, admin, port);
        for (row, backends) in ROWS.iter().zip(&rows) {
            let weights: Vec<u32> = poll(PATIENCE, || {
                // Every host reports, from both workers.
                (0..2).for_each(|_| _ = requests(row, port, 2 * row.hosts.len()));
                Some(weights(row, backends, admin)).filter(|weights| weights == row.weights)
            })
            .unwrap_or_else(|| weights(row, backends, admin));
            assert_eq!(weights, row.weights, "{program:?} {}", row.name);
            // A worker takes new weights from time to time only.
            let fair = poll(PATIENCE, || unfair(row, &requests(row, port, REQUESTS)).is_none().then_some(()));
            assert!(fair.is_some(), "{program:?} {}: {:?}", row.name, unfair(row, &requests(row, port, REQUESTS)));
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    }
}

fn backend((number, (place, name, value)): (usize, &Report)) -> Backend {
    let (place, name, value) = (*place, *name, *value);
    Backend::start(move |_| match place {
        Head => Reply::Fixed(200, vec![(name.into(), value.into())], number.to_string().into_bytes()),
        Trailers => Reply::Raw(
            format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: {name}\r\nconnection: close\r\n\r\n\
                 1\r\n{number}\r\n0\r\n{name}: {value}\r\n\r\n"
            )
            .into_bytes(),
        ),
    })
}

/// How many requests of `count` on one connection each host got.
fn requests(row: &Row, port: u16, count: usize) -> BTreeMap<usize, usize> {
    let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("a connection");
    let mut seen = BTreeMap::new();
    for _ in 0..count {
        let response = client.get("a.test", &format!("/{}/", row.name), "").expect("an answer");
        *seen.entry(response.text().parse().expect("a backend's number")).or_default() += 1;
    }
    seen
}

/// The host, if any, whose count of requests is far from what its weight says, with both counts.
fn unfair(row: &Row, seen: &BTreeMap<usize, usize>) -> Option<(usize, usize, usize)> {
    let total = row.weights.iter().sum::<u32>() as usize;
    row.weights.iter().enumerate().find_map(|(host, weight)| {
        let (count, fair) = (seen.get(&host).copied().unwrap_or(0), REQUESTS * *weight as usize / total);
        (count.abs_diff(fair) > 8).then_some((host, count, fair))
    })
}

/// The hosts' weights, as `/clusters` shows them.
fn weights(row: &Row, backends: &[Backend], admin: u16) -> Vec<u32> {
    let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, admin))).expect("an admin port");
    let text = client.get("admin", "/clusters", "").expect("clusters").text();
    let weight = |backend: &Backend| {
        let prefix = format!("{}::{}::weight::", row.name, backend.address());
        text.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok()).unwrap_or_default()
    };
    backends.iter().map(weight).collect()
}

fn bootstrap(rows: &[Vec<Backend>], port: u16, admin: u16) -> String {
    let clusters: Vec<String> = ROWS
        .iter()
        .zip(rows)
        .map(|(row, backends)| {
            let hosts: Vec<String> =
                backends.iter().map(|backend| endpoint(backend.address().port(), "")).collect();
            let mut settings = row.settings.to_owned();
            if !settings.contains("blackout") {
                settings = format!("blackout_period: 0s, {settings}");
            }
            let more = format!(
                "typed_extension_protocol_options: {{ envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \"@type\": \
                 type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {{ \
                 http_protocol_options: {{ enable_trailers: true }} }} }} }}, \
                 load_balancing_policy: {{ policies: [ {{ typed_extension_config: {{ name: w, typed_config: {{ \"@type\": \
                 type.googleapis.com/envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin, \
                 weight_update_period: 0.1s, {settings} }} }} }} ] }},"
            );
            web::cluster(row.name, &hosts.join(", "), &more)
        })
        .collect();
    let route = |row: &Row| format!("{{ match: {{ prefix: /{0}/ }}, route: {{ cluster: {0} }} }}", row.name);
    let routes: Vec<String> = ROWS.iter().map(route).collect();
    web::bootstrap(port, admin, &[], &routes, &clusters)
}
