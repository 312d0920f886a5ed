//! Routes with a `stat_prefix` are counted as Envoy counts them.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, eventually, free_port, free_ports};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

#[test]
fn evenkeel_and_envoy_count_routes_alike() {
    let backend = Backend::start(|request| match request.target.as_str() {
        "/fails" => Reply::Fixed(503, Vec::new(), Vec::new()),
        "/gone" => Reply::Fixed(404, Vec::new(), Vec::new()),
        _ => Reply::text("backend"),
    });
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let retried = "retry_policy: { retry_on: 5xx, num_retries: 2, retry_back_off: { base_interval: 0.001s } }";
    let routes = [
        format!("{{ match: {{ path: /fails }}, route: {{ cluster: a, {retried} }}, stat_prefix: retried }}"),
        "{ match: { path: /nobody }, route: { cluster: none }, stat_prefix: nobody }".to_owned(),
        "{ match: { path: /direct }, direct_response: { status: 204 }, stat_prefix: direct }".to_owned(),
        "{ match: { path: /plain }, route: { cluster: a } }".to_owned(),
        "{ match: { prefix: / }, route: { cluster: a }, stat_prefix: \"a:b.c\" }".to_owned(),
    ];
    let clusters =
        [cluster("a", &endpoint(backend.address().port(), ""), ""), cluster("none", &endpoint(free_port(), ""), "")];
    std::fs::write(&file, web::bootstrap(port, admin, &[], &routes, &clusters)).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        for path in ["/fails", "/nobody", "/direct", "/plain", "/", "/gone", "/"] {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let mut client = Connection::open(address).expect("the listener accepts");
            client.get("x.test", path, "").expect("an answer");
        }
        // A request is counted after its client has the answer.
        let seen = eventually("the count of the last request", || {
            Some(counted(admin)).filter(|seen| seen.contains("route.a:b.c.upstream_rq_completed: 3\n"))
        });
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy);
    let evenkeel = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}\n{envoy}\n{evenkeel}", difference.unwrap_or_default());
    assert!(envoy.contains("vhost.all.route.retried.upstream_rq_retry: 2\n"), "{envoy}");
}

/// Counters that are not zero.
fn counted(admin: u16) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let get = |path| Connection::open(address).and_then(|mut client| client.get("admin", path, "")).expect("an answer");
    let text = get("/stats").text();
    let is_counted = |line: &&str| line.starts_with("vhost.") && !line.ends_with(": 0") && !line.contains("rq_time:");
    let lines: BTreeSet<_> = text.lines().filter(is_counted).collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}
