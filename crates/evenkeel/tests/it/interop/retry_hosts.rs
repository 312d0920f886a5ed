//! The host of a retry: not one that was tried, not one with metadata that the policy names, not one of a priority that was
//! tried. Evenkeel and Envoy choose alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use evenkeel_testkit::{Backend, Connection, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

/// Requests of each row. Without what the row is about some of them would go elsewhere with certainty, for hosts are chosen at random.
const REQUESTS: usize = 40;
/// Of each request: one try and two retries.
const TRIES: usize = 3;

/// The first two are of priority 0, the others of priority 1 where a row has priorities. The last is a canary.
const HOSTS: [&str; 4] = ["a", "b", "c", "d"];

struct Row {
    name: &'static str,
    policy: &'static str,
    priorities: bool,
    /// Whether hosts may be tried in this order.
    allows: fn(&[&str]) -> bool,
}

/// So often that chance never ends it.
const ATTEMPTS: &str = "host_selection_retry_max_attempts: 200";

const ROWS: [Row; 4] = [
    Row { name: "anywhere", policy: "", priorities: false, allows: |_| true },
    Row {
        name: "previous-hosts",
        policy: "retry_host_predicate: [ { name: p, typed_config: { \"@type\": \
                 type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate } } ]",
        priorities: false,
        allows: |tried| tried.iter().collect::<BTreeSet<_>>().len() == tried.len(),
    },
    Row {
        name: "no-canaries",
        policy: "retry_host_predicate: [ { name: o, typed_config: { \"@type\": \
                 type.googleapis.com/envoy.extensions.retry.host.omit_host_metadata.v3.OmitHostMetadataConfig, \
                 metadata_match: { filter_metadata: { envoy.lb: { canary: \"yes\" } } } } } ]",
        priorities: false,
        allows: |tried| !tried[1..].contains(&"d"),
    },
    Row {
        name: "previous-priorities",
        policy: "retry_priority: { name: p, typed_config: { \"@type\": \
                 type.googleapis.com/envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig, \
                 update_frequency: 2 } }",
        priorities: true,
        // Two tries each.
        allows: |tried| tried.iter().map(|host| ["c", "d"].contains(host)).eq([false, false, true]),
    },
];

/// Hosts in the order in which a request tried them, by its path.
type Tried = Mutex<BTreeMap<String, Vec<&'static str>>>;

#[test]
fn evenkeel_and_envoy_try_again_elsewhere() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    for program in [Program::Envoy, Program::Evenkeel] {
        let tried = Arc::new(Tried::default());
        let hosts = HOSTS.map(|name| {
            let tried = Arc::clone(&tried);
            Backend::start(move |request| {
                tried.lock().expect("nobody panicked").entry(request.target.clone()).or_default().push(name);
                Reply::Fixed(503, Vec::new(), Vec::new())
            })
        });
        let [port, admin] = free_ports::<2>();
        std::fs::write(&file, bootstrap(&hosts, port, admin)).expect("a writable folder");
        let mut process = web::start(program, &file, admin, port);
        for (row, number) in ROWS.iter().flat_map(|row| (0..REQUESTS).map(move |number| (row, number))) {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let path = format!("/{}/{number}", row.name);
            let answer = Connection::open(address).and_then(|mut client| client.get("a.test", &path, ""));
            assert_eq!(answer.expect("an answer").status, 503);
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        check(program, &tried.lock().expect("nobody panicked"));
    }
}

fn check(program: Program, tried: &BTreeMap<String, Vec<&'static str>>) {
    let of = |row: &Row| {
        let prefix = format!("/{}/", row.name);
        tried.iter().filter(move |(path, _)| path.starts_with(&prefix)).map(|(_, hosts)| hosts).collect::<Vec<_>>()
    };
    for row in &ROWS {
        let all = of(row);
        assert_eq!(all.len(), REQUESTS, "{program:?}, {}", row.name);
        for hosts in all {
            assert!(hosts.len() == TRIES && (row.allows)(hosts), "{program:?}, {}: {hosts:?}", row.name);
        }
    }
    // Or the rows would prove nothing.
    for row in &ROWS[1..] {
        assert!(of(&ROWS[0]).iter().any(|hosts| !(row.allows)(hosts)), "{program:?}, {}", row.name);
    }
}

fn bootstrap(hosts: &[Backend; 4], port: u16, admin: u16) -> String {
    let endpoints = hosts.iter().zip(HOSTS).map(|(host, name)| {
        let canary =
            if name == "d" { ", metadata: { filter_metadata: { envoy.lb: { canary: \"yes\" } } }" } else { "" };
        endpoint(host.address().port(), canary)
    });
    let endpoints: Vec<_> = endpoints.collect();
    let cluster = |row: &Row| {
        let groups = if row.priorities {
            let [near, far] = [&endpoints[..2], &endpoints[2..]].map(|part| part.join(", "));
            format!("{{ priority: 0, lb_endpoints: [ {near} ] }}, {{ priority: 1, lb_endpoints: [ {far} ] }}")
        } else {
            format!("{{ lb_endpoints: [ {} ] }}", endpoints.join(", "))
        };
        let name = row.name;
        format!(
            "{{ name: {name}, type: STATIC, lb_policy: RANDOM, load_assignment: {{ cluster_name: {name}, endpoints: [ {groups} ] }} }}"
        )
    };
    let route = |row: &Row| {
        let name = row.name;
        let policy = if row.policy.is_empty() { String::new() } else { format!(", {}, {ATTEMPTS}", row.policy) };
        format!(
            "{{ match: {{ prefix: /{name}/ }}, route: {{ cluster: {name}, retry_policy: {{ retry_on: 5xx, num_retries: {}, \
             retry_back_off: {{ base_interval: 0.002s, max_interval: 0.01s }}{policy} }} }} }}",
            TRIES - 1
        )
    };
    web::bootstrap(port, admin, &[], &ROWS.each_ref().map(route), &ROWS.each_ref().map(cluster))
}
