//! Several health checks of a cluster: Evenkeel and Envoy give a host the same health, whichever check it fails, and count
//! alike.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_testkit::{Backend, Connection, Reply, eventually, free_ports};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

/// Paths that fail now.
static FAILING: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Which of the two checks fail; whether requests get there, and the gauges `healthy` of all checks, of the first and the second.
const STATES: [([bool; 2], bool, [u64; 3]); 6] = [
    ([false, false], true, [1, 1, 1]),
    ([true, false], false, [0, 0, 1]),
    ([true, true], false, [0, 0, 0]),
    ([false, true], false, [0, 1, 0]),
    ([false, false], true, [1, 1, 1]),
    ([false, true], false, [0, 1, 0]),
];

#[test]
fn evenkeel_and_envoy_ask_a_host_that_passes_all_its_checks() {
    let host = Backend::start(|request| {
        let failing = ["/first", "/second"]
            .iter()
            .zip(&FAILING)
            .any(|(path, fails)| request.target == *path && fails.load(Ordering::SeqCst));
        if failing { Reply::Fixed(503, Vec::new(), Vec::new()) } else { Reply::text("well") }
    });
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(host.address().port(), port, admin)).expect("a writable folder");
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| {
        let mut process = web::start(program, &file, admin, port);
        for (failing, well, gauges) in &STATES {
            FAILING.iter().zip(failing).for_each(|(path, fails)| path.store(*fails, Ordering::SeqCst));
            let flags = if *well { "healthy" } else { "/failed_active_hc" };
            let line = format!("two::{}::health_flags::{flags}", host.address());
            let what = format!("{program:?} with {failing:?} failing");
            eventually(&format!("{what}: {line}"), || {
                get(admin, "/clusters").1.lines().any(|has| has == line).then_some(())
            });
            let names = ["", "name.first.", "name.second."];
            eventually(&format!("{what}: {gauges:?} healthy"), || {
                let stats = get(admin, "/stats?filter=health_check").1;
                let has = |(name, value): (&&str, &u64)| {
                    stats.lines().any(|line| line == format!("cluster.two.health_check.{name}healthy: {value}"))
                };
                names.iter().zip(gauges).all(has).then_some(())
            });
            let expected = if *well { (200, "well") } else { (503, "no healthy upstream") };
            // Workers hear of it a little later.
            eventually(&format!("{what}: {expected:?}"), || {
                let (status, text) = get(port, "/");
                ((status, text.as_str()) == expected).then_some(())
            });
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        counted(admin)
    });
    assert_eq!(envoy, evenkeel, "Envoy, Evenkeel");
    assert!(envoy.iter().any(|line| line.contains("envoy_health_check_name=\"only\"")), "{envoy:#?}");
}

/// Names of all that is counted of checks, and their labels.
fn counted(admin: u16) -> BTreeSet<String> {
    let name = |line: &str| line.rsplit_once(' ').map(|(name, _)| name.to_owned());
    let stats = get(admin, "/stats?filter=health_check").1;
    let prometheus = get(admin, "/stats/prometheus?filter=health_check").1;
    let samples = prometheus.lines().filter(|line| line.starts_with("envoy_cluster_health_check")).filter_map(|line| {
        let (metric, rest) = line.split_once('{')?;
        let mut labels: Vec<_> = rest.split_once('}')?.0.split(',').collect();
        labels.sort_unstable();
        Some(format!("{metric} {}", labels.join(" ")))
    });
    stats.lines().filter(|line| line.starts_with("cluster.")).filter_map(name).chain(samples).collect()
}

fn get(port: u16, path: &str) -> (u16, String) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let response =
        Connection::open(address).and_then(|mut client| client.get("localhost", path, "")).expect("an answer");
    (response.status, response.text())
}

fn bootstrap(host: u16, port: u16, admin: u16) -> String {
    let check = |name: &str, kind: &str| {
        let name = if name.is_empty() { String::new() } else { format!("name: {name}, ") };
        format!(
            "{{ {name}timeout: 5s, interval: 0.05s, no_traffic_interval: 0.05s, unhealthy_threshold: 1, healthy_threshold: 1, {kind} }}"
        )
    };
    let checked = |name: &str, checks: &[String]| {
        let more = "common_lb_config: { healthy_panic_threshold: { value: 0 } },";
        cluster(name, &endpoint(host, ""), &format!("{more} health_checks: [ {} ],", checks.join(", ")))
    };
    let http = |path: &str| format!("http_health_check: {{ path: {path} }}");
    let tcp = "tcp_health_check: {}";
    let clusters = [
        checked("two", &[check("first", &http("/first")), check("second", &http("/second"))]),
        checked("kinds", &[check("http", &http("/")), check("tcp", tcp)]),
        checked("named", &[check("only", tcp)]),
        checked("unnamed", &[check("", tcp)]),
    ];
    web::bootstrap(port, admin, &[], &["{ match: { prefix: / }, route: { cluster: two } }".to_owned()], &clusters)
}
