//! Priorities, health and panic: whichever hosts fail their checks, Evenkeel and Envoy use the same ones.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_testkit::{Backend, Connection, Reply, envoy_validate, eventually, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

/// Requests of one look: a host that gets a share is among those that answer.
const REQUESTS: usize = 100;

/// Who fails its checks, and who then answers: of a cluster that panics when less than half is left of a priority, and of one
/// that never does.
struct State {
    failing: &'static [&'static str],
    answering: [&'static [&'static str]; 2],
}

const HOSTS: [&str; 4] = ["near 1", "near 2", "far 1", "far 2"];

const STATES: [State; 8] = [
    state(&[], &["near 1", "near 2"]),
    // More than the overprovisioning factor makes up for: both priorities share.
    state(&["near 1"], &["far 1", "far 2", "near 2"]),
    state(&["near 1", "near 2"], &["far 1", "far 2"]),
    state(&["near 1", "near 2", "far 1"], &["far 2"]),
    // Nobody is left.
    State { failing: &HOSTS, answering: [&["far 1", "far 2", "near 1", "near 2"], &["503 no healthy upstream"]] },
    state(&["near 2", "far 1", "far 2"], &["near 1"]),
    state(&["near 1", "far 1"], &["far 2", "near 2"]),
    state(&["far 1", "far 2"], &["near 1", "near 2"]),
];

const fn state(failing: &'static [&'static str], answering: &'static [&'static str]) -> State {
    State { failing, answering: [answering; 2] }
}

struct Host {
    backend: Backend,
    fails: Arc<AtomicBool>,
}

impl Host {
    fn start(name: &'static str) -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let failing = Arc::clone(&fails);
        let backend = Backend::start(move |request| match request.target.as_str() {
            "/healthz" if failing.load(Ordering::SeqCst) => Reply::Fixed(503, Vec::new(), Vec::new()),
            _ => Reply::text(name),
        });
        Self { backend, fails }
    }
}

#[test]
fn evenkeel_and_envoy_ask_the_same_hosts_whoever_is_ill() {
    let hosts = HOSTS.map(Host::start);
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(&hosts, port, admin)).expect("a writable folder");
    for program in [Program::Envoy, Program::Evenkeel] {
        let mut process = web::start(program, &file, admin, port);
        for State { failing, answering } in &STATES {
            hosts
                .iter()
                .zip(HOSTS)
                .for_each(|(host, name)| host.fails.store(failing.contains(&name), Ordering::SeqCst));
            for (cluster, expected) in CLUSTERS.iter().zip(answering) {
                hosts.iter().zip(HOSTS).for_each(|(host, name)| {
                    wait_flags(admin, cluster, host, failing.contains(&name));
                });
                // Workers hear of it a little later.
                eventually(&format!("{program:?}: {expected:?} to answer for {cluster}, {failing:?} fail"), || {
                    answers(port, cluster).iter().eq(*expected).then_some(())
                });
            }
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    }
}

/// One that panics when less than half is left, and one that never does.
const CLUSTERS: [&str; 2] = ["panics", "stays-calm"];

fn ask(port: u16, path: &str) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let response =
        Connection::open(address).and_then(|mut client| client.get("localhost", path, "")).expect("an answer");
    if response.status == 200 { response.text() } else { format!("{} {}", response.status, response.text()) }
}

fn answers(port: u16, cluster: &str) -> BTreeSet<String> {
    (0..REQUESTS).map(|_| ask(port, &format!("/{cluster}"))).collect()
}

fn wait_flags(admin: u16, cluster: &str, host: &Host, fails: bool) {
    let flags = if fails { "/failed_active_hc" } else { "healthy" };
    let line = format!("{cluster}::{}::health_flags::{flags}", host.backend.address());
    eventually(&line, || ask(admin, "/clusters").lines().any(|has| has == line).then_some(()));
}

fn bootstrap(hosts: &[Host; 4], port: u16, admin: u16) -> String {
    let endpoint = |host: &Host| endpoint(host.backend.address().port(), "");
    let [near, far] = [&hosts[..2], &hosts[2..]].map(|hosts| hosts.iter().map(endpoint).collect::<Vec<_>>().join(", "));
    let checks = "[ { timeout: 5s, interval: 0.05s, no_traffic_interval: 0.05s, unhealthy_threshold: 1, healthy_threshold: 1, http_health_check: { path: /healthz } } ]";
    let cluster = |name: &str, panic: u32| {
        format!(
            "{{ name: {name}, type: STATIC, common_lb_config: {{ healthy_panic_threshold: {{ value: {panic} }} }}, health_checks: {checks}, \
             load_assignment: {{ cluster_name: {name}, endpoints: [ {{ priority: 0, lb_endpoints: [{near}] }}, {{ priority: 1, lb_endpoints: [{far}] }} ] }} }}"
        )
    };
    let clusters = [cluster(CLUSTERS[0], 50), cluster(CLUSTERS[1], 0)];
    let routes = CLUSTERS.map(|name| format!("{{ match: {{ path: /{name} }}, route: {{ cluster: {name} }} }}"));
    web::bootstrap(port, admin, &[], &routes, &clusters)
}

#[test]
fn neither_takes_several_checks_without_names_of_their_own() {
    let check = |name: &str| {
        format!(
            "{{ timeout: 1s, interval: 1s, unhealthy_threshold: 1, healthy_threshold: 1, tcp_health_check: {{}}{name} }}"
        )
    };
    let with = |checks: &str| {
        let cluster = web::cluster("c", &endpoint(9, ""), &format!("health_checks: [ {checks} ],"));
        web::bootstrap(1, 2, &[], &[], &[cluster])
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    for (names, refused) in [
        (&[""][..], None),
        (&[", name: a"], None),
        (&[", name: a", ", name: b"], None),
        (&["", ""], Some(("health_checks[0].name: is required where there are several", "is missing a name"))),
        (
            &[", name: a", ", name: a"],
            Some(("health_checks[1].name: another is called \"a\" already", "duplicate health check name")),
        ),
    ] {
        let text = with(&names.iter().map(|name| check(name)).collect::<Vec<_>>().join(", "));
        std::fs::write(&file, &text).expect("a writable folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output = command.args(["proxy", "--mode", "validate", "-c"]).arg(&file).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), refused.is_none(), "{said}");
        let envoy = envoy_validate(&text);
        assert_eq!(envoy.is_ok(), refused.is_none(), "{envoy:?}");
        if let Some((ours, envoys)) = refused {
            assert!(said.contains(ours), "{said}");
            assert!(envoy.is_err_and(|said| said.contains(envoys)), "{envoys}");
        }
    }
}
