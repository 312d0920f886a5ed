//! Zone-aware routing: Evenkeel and Envoy divide requests among the zones of a cluster in the same way, and count the same
//! kinds of decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::{Backend, Connection, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

/// A cluster: its hosts by zone, its settings, and the requests of 100 that each zone gets.
struct Row {
    name: &'static str,
    hosts: &'static [(&'static str, usize)],
    settings: &'static str,
    expected: &'static [(&'static str, usize)],
    /// The statistics that count anything.
    counted: &'static [&'static str],
}

/// The proxies by zone; the one that is tested is in `a`.
const LOCAL: [(&str, usize); 3] = [("a", 2), ("b", 2), ("c", 1)];
const REQUESTS: usize = 800;
/// The difference from the expected share that chance may make, in percent of all requests.
const TOLERANCE: usize = 7;

const MIN_1: &str = "common_lb_config: { zone_aware_lb_config: { min_cluster_size: 1 } }";
const DIRECT: &str = "lb_zone_routing_all_directly";
const SAMPLED: &str = "lb_zone_routing_sampled";
const CROSS: &str = "lb_zone_routing_cross_zone";

const ROWS: &[Row] = &[
    Row {
        name: "enough-here",
        hosts: &[("a", 2), ("b", 1), ("c", 1)],
        settings: MIN_1,
        expected: &[("a", 100)],
        counted: &[DIRECT],
    },
    Row {
        name: "too-few-here",
        hosts: &[("a", 1), ("b", 2), ("c", 1)],
        settings: MIN_1,
        expected: &[("a", 62), ("b", 25), ("c", 13)],
        counted: &[SAMPLED, CROSS],
    },
    Row {
        name: "none-here",
        hosts: &[("b", 2), ("c", 2)],
        settings: MIN_1,
        expected: &[("b", 25), ("c", 75)],
        counted: &[CROSS],
    },
    Row { name: "one-zone", hosts: &[("a", 3)], settings: MIN_1, expected: &[("a", 100)], counted: &[] },
    Row {
        name: "too-small-by-default",
        hosts: &[("a", 1), ("b", 1)],
        settings: "lb_policy: ROUND_ROBIN",
        expected: &[("a", 50), ("b", 50)],
        counted: &["lb_zone_cluster_too_small"],
    },
    Row {
        name: "large-enough-by-default",
        hosts: &[("a", 3), ("b", 3)],
        settings: "lb_policy: LEAST_REQUEST",
        expected: &[("a", 100)],
        counted: &[DIRECT],
    },
    Row {
        name: "switched-off",
        hosts: &[("a", 1), ("b", 1)],
        settings: "common_lb_config: { zone_aware_lb_config: { min_cluster_size: 1, routing_enabled: { value: 0 } } }",
        expected: &[("a", 50), ("b", 50)],
        counted: &[],
    },
    Row {
        name: "for-some-requests",
        hosts: &[("a", 1), ("b", 1)],
        settings: "lb_policy: RANDOM, common_lb_config: { zone_aware_lb_config: { min_cluster_size: 1, routing_enabled: { value: 40 } } }",
        expected: &[("a", 70), ("b", 30)],
        counted: &[DIRECT],
    },
    Row {
        // As many as zones need by default: Envoy counts `lb_zone_cluster_too_small` even where weights decide.
        name: "by-weights-of-localities-instead",
        hosts: &[("a", 3), ("b", 3)],
        settings: "common_lb_config: { locality_weighted_lb_config: {} }",
        expected: &[("a", 50), ("b", 50)],
        counted: &[],
    },
    Row {
        name: "forced",
        hosts: &[("a", 1), ("b", 4)],
        settings: "load_balancing_policy: { policies: [ { typed_extension_config: { name: rr, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin, locality_lb_config: { zone_aware_lb_config: { min_cluster_size: 1, force_local_zone: { min_size: 1 } } } } } } ] }",
        expected: &[("a", 100)],
        counted: &[DIRECT],
    },
    Row {
        name: "by-weight",
        hosts: &[("a", 1), ("b", 4)],
        settings: "load_balancing_policy: { policies: [ { typed_extension_config: { name: lr, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest, locality_lb_config: { zone_aware_lb_config: { min_cluster_size: 1, locality_basis: HEALTHY_HOSTS_WEIGHT } } } } } ] }",
        expected: &[("a", 100)],
        counted: &[DIRECT],
    },
    Row {
        name: "by-hash-instead",
        hosts: &[("a", 1), ("b", 1)],
        settings: "lb_policy: MAGLEV",
        expected: &[("a", 50), ("b", 50)],
        counted: &[],
    },
];

#[test]
fn evenkeel_and_envoy_divide_requests_among_zones_alike() {
    let backends: Vec<Backend> = (0..6).map(|name| Backend::start(move |_| Reply::text(name.to_string()))).collect();
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(&backends, port, admin)).expect("a writable folder");
    for program in [Program::Envoy, Program::Evenkeel] {
        let mut process = web::start(program, &file, admin, port);
        for row in ROWS {
            let seen = shares(row, port);
            let zones: BTreeSet<&str> = row.hosts.iter().map(|(zone, _)| *zone).collect();
            for zone in zones {
                let wanted = row.expected.iter().find(|(name, _)| *name == zone).map_or(0, |(_, share)| *share);
                let share = seen.get(zone).copied().unwrap_or(0) * 100 / REQUESTS;
                let close = share.abs_diff(wanted) <= if matches!(wanted, 0 | 100) { 0 } else { TOLERANCE };
                assert!(close, "{program:?} {}: zone {zone} got {share} %, not {wanted}: {seen:?}", row.name);
            }
            let counted: BTreeSet<&str> = row.counted.iter().copied().collect();
            assert_eq!(
                counts(row.name, admin),
                counted.into_iter().map(str::to_owned).collect(),
                "{program:?} {}",
                row.name
            );
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    }
}

/// The zones of a row's hosts, in the order of the backends.
fn zones(row: &Row) -> Vec<&'static str> {
    row.hosts.iter().flat_map(|(zone, count)| std::iter::repeat_n(*zone, *count)).collect()
}

/// Requests by zone.
fn shares(row: &Row, port: u16) -> BTreeMap<&'static str, usize> {
    let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("a connection");
    let zones = zones(row);
    let mut seen = BTreeMap::new();
    for _ in 0..REQUESTS {
        let response = client.get("a.test", &format!("/{}/", row.name), "").expect("an answer");
        let host: usize = response.text().parse().expect("a backend's number");
        *seen.entry(zones[host]).or_default() += 1;
    }
    seen
}

/// The statistics of zone-aware routing that are not 0, besides how often the division was computed. A local
/// cluster in panic is counted at each request; Envoy has been seen to count a few without that.
fn counts(cluster: &str, admin: u16) -> BTreeSet<String> {
    let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, admin))).expect("an admin port");
    let stats = client.get("admin", "/stats", "").expect("statistics").text();
    let prefix = format!("cluster.{cluster}.");
    let named = stats.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once(": "));
    named
        .filter(|(name, value)| {
            let count: usize = value.parse().unwrap_or_default();
            name.starts_with("lb_zone") && count > 0 || *name == "lb_local_cluster_not_ok" && count > REQUESTS / 10
        })
        .map(|(name, _)| name.to_owned())
        .collect()
}

fn bootstrap(backends: &[Backend], port: u16, admin: u16) -> String {
    let cluster = |name: &str, settings: &str, groups: &[(&str, usize)]| {
        let mut ports = backends.iter().map(|backend| backend.address().port());
        let localities: Vec<String> = groups
            .iter()
            .map(|(zone, count)| {
                // By weight, the one host of `a` counts like the four of `b`.
                let more = if (name, *zone) == ("by-weight", "a") { ", load_balancing_weight: 4" } else { "" };
                let hosts: Vec<String> = ports.by_ref().take(*count).map(|port| endpoint(port, more)).collect();
                format!(
                    "{{ locality: {{ region: r, zone: {zone} }}, load_balancing_weight: 1, lb_endpoints: [ {} ] }}",
                    hosts.join(", ")
                )
            })
            .collect();
        format!(
            "{{ name: {name}, type: STATIC, {settings}, load_assignment: {{ cluster_name: {name}, endpoints: [ {} ] }} }}",
            localities.join(", ")
        )
    };
    let mut clusters = vec![cluster("local", "connect_timeout: 1s", &LOCAL)];
    clusters.extend(ROWS.iter().map(|row| cluster(row.name, row.settings, row.hosts)));
    let route = |row: &Row| format!("{{ match: {{ prefix: /{0}/ }}, route: {{ cluster: {0} }} }}", row.name);
    let routes: Vec<String> = ROWS.iter().map(route).collect();
    let node = "node: { id: node, cluster: node, locality: { region: r, zone: a } }\ncluster_manager: { local_cluster_name: local }\n";
    format!("{node}{}", web::bootstrap(port, admin, &[], &routes, &clusters))
}
