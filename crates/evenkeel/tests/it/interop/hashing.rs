//! Ring hash, Maglev and their cookies: Evenkeel and Envoy choose the same hosts for the same keys. What Envoy chooses is
//! recorded (`BLESS=1`) for the unit test in `upstream/src/balance/golden.rs`.

use std::net::Ipv4Addr;

use evenkeel_testkit::golden::check;
use evenkeel_testkit::{Backend, Connection, Reply, free_ports, workspace};

use super::proxy::Program;
use super::web::{self, endpoint};

/// Balancer, its options, and weights of the hosts; `;` parts localities, whose weight follows `@`.
const SCENES: [&str; 11] = [
    "ring xx_hash 1024 8388608 1,1,1,1",
    "ring murmur_hash_2 1024 8388608 1,1,1,1",
    "ring xx_hash 64 128 1,2,5",
    "ring murmur_hash_2 7 100 3,1,1,4,1",
    "ring xx_hash 1 6 1,1,1,1",
    "ring xx_hash 1000 8388608 1,1@1;2,1@3",
    "maglev 65537 1,1,1,1",
    "maglev 251 1,1,1,1,1,1,1,1",
    "maglev 65537 1,2,5",
    "maglev 2039 7,1,1,3",
    "maglev 251 1,1@1;2,1@3",
];
const KEYS: usize = 256;

#[test]
fn evenkeel_and_envoy_choose_the_same_hosts() {
    let backends: Vec<Backend> = (0..8).map(|name| Backend::start(move |_| Reply::text(name.to_string()))).collect();
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(&backends, port, admin)).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        let seen = (tables(port), cookies(port));
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let (tables, cookies) = run(Program::Envoy);
    check(workspace::root().join("crates/upstream/tests/golden/hash_tables.txt"), &tables);
    assert_eq!(run(Program::Evenkeel), (tables, cookies));
}

fn connection(port: u16) -> Connection {
    Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("a connection")
}

/// Each scene, and for each key the number of the host that got it.
fn tables(port: u16) -> String {
    let mut client = connection(port);
    let mut text = String::new();
    for (number, scene) in SCENES.iter().enumerate() {
        text.push_str(scene);
        text.push('\n');
        for key in 0..KEYS {
            let key = format!("x-key: key-{key}\r\n");
            let response = client.get("a.test", &format!("/s{number}/"), &key).expect("an answer");
            assert_eq!(response.status, 200, "{scene} {key}: {}", response.text());
            text.push_str(&response.text());
        }
        text.push('\n');
    }
    text
}

/// `set-cookie` of each cookie route without its value (it differs between connections), and whether the cookie leads back
/// to the same host.
fn cookies(port: u16) -> Vec<(String, bool)> {
    ["/cookie/", "/session/", "/no-ttl/"]
        .into_iter()
        .map(|path| {
            let first = connection(port).get("a.test", path, "").expect("an answer");
            let Some(set) = first.header("set-cookie") else { return (String::new(), false) };
            let (name, rest) = set.split_once("=\"").expect("a quoted value");
            let (value, attributes) = rest.split_once('"').expect("a quoted value");
            assert_eq!(value.len(), 16, "{set}");
            let again =
                connection(port).get("a.test", path, &format!("cookie: {name}={value}\r\n")).expect("an answer");
            assert_eq!(again.header("set-cookie"), None, "a client with the cookie gets no other");
            (format!("{name}={attributes}"), again.text() == first.text())
        })
        .collect()
}

fn bootstrap(backends: &[Backend], port: u16, admin: u16) -> String {
    let clusters: Vec<String> = (0..).zip(SCENES).map(|(number, scene)| cluster(number, scene, backends)).collect();
    let routes: Vec<String> = (0..SCENES.len())
        .map(|n| route(&format!("/s{n}/"), n, "header: { header_name: x-key }"))
        .chain([
            route("/cookie/", 0, "cookie: { name: user, ttl: 10s, path: /p, attributes: [{ name: SameSite, value: Strict }, { name: Secure }] }"),
            route("/session/", 6, "cookie: { name: session, ttl: 0s }"),
            route("/no-ttl/", 6, "cookie: { name: none }"),
        ])
        .collect();
    web::bootstrap(port, admin, &[], &routes, &clusters)
}

fn route(prefix: &str, cluster: usize, policy: &str) -> String {
    format!("{{ match: {{ prefix: {prefix} }}, route: {{ cluster: s{cluster}, hash_policy: [{{ {policy} }}] }} }}")
}

fn cluster(number: usize, scene: &str, backends: &[Backend]) -> String {
    let words: Vec<&str> = scene.split(' ').collect();
    let options = match words.as_slice() {
        ["ring", function, min, max, _] => format!(
            "lb_policy: RING_HASH, ring_hash_lb_config: {{ hash_function: {}, minimum_ring_size: {min}, maximum_ring_size: {max} }}",
            function.to_uppercase()
        ),
        ["maglev", size, _] => format!("lb_policy: MAGLEV, maglev_lb_config: {{ table_size: {size} }}"),
        other => panic!("{other:?} is no balancer"),
    };
    let weights = words.last().expect("weights at the end");
    let common = if weights.contains('@') { "common_lb_config: { locality_weighted_lb_config: {} }, " } else { "" };
    let mut place = 0;
    let localities: Vec<String> = weights
        .split(';')
        .enumerate()
        .map(|(region, group)| {
            let (hosts, weight) = group.split_once('@').unwrap_or((group, ""));
            let weight = if weight.is_empty() { String::new() } else { format!("load_balancing_weight: {weight}, ") };
            let hosts: Vec<String> = hosts
                .split(',')
                .map(|weight| {
                    let backend = backends[place].address().port();
                    let key = format!("10.1.0.{place}:8080");
                    place += 1;
                    let more = format!(
                        ", load_balancing_weight: {weight}, metadata: {{ filter_metadata: {{ envoy.lb: {{ hash_key: \"{key}\" }} }} }}"
                    );
                    endpoint(backend, &more)
                })
                .collect();
            format!("{{ locality: {{ region: r{region} }}, {weight}lb_endpoints: [{}] }}", hosts.join(", "))
        })
        .collect();
    format!(
        "{{ name: s{number}, type: STATIC, {options}, {common}load_assignment: {{ cluster_name: s{number}, endpoints: [{}] }} }}",
        localities.join(", ")
    )
}
