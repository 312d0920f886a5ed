//! A bootstrap that excludes statistics excludes the same ones from Evenkeel's pages as from Envoy's.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

#[test]
fn evenkeel_and_envoy_leave_out_the_same_statistics() {
    let backend = Backend::start(|_| Reply::text("backend"));
    // Whether the requests of cluster `a` are among what is shown.
    for (matcher, shows_requests) in [
        ("inclusion_list: { patterns: [{ prefix: cluster.a.upstream_rq }, { suffix: .downstream_rq_total }] }", true),
        (
            "inclusion_list: { patterns: [{ safe_regex: { regex: 'cluster\\.[ab]\\.upstream_cx_to.*' } }, { exact: server.live }] }",
            false,
        ),
        ("exclusion_list: { patterns: [{ prefix: cluster.b }, { contains: _RQ_, ignore_case: true }] }", false),
        ("reject_all: true", false),
        ("reject_all: false", true),
    ] {
        let [port, admin] = free_ports::<2>();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("bootstrap.yaml");
        let routes = [
            "{ match: { path: /b }, route: { cluster: b } }".to_owned(),
            "{ match: { prefix: / }, route: { cluster: a } }".to_owned(),
        ];
        let clusters = ["a", "b"].map(|name| cluster(name, &endpoint(backend.address().port(), ""), ""));
        let bootstrap = web::bootstrap(port, admin, &[], &routes, &clusters);
        let text = format!("{bootstrap}\nstats_config: {{ stats_matcher: {{ {matcher} }} }}\n");
        std::fs::write(&file, text).expect("a writable folder");
        let run = |program| {
            let mut process = web::start(program, &file, admin, port);
            for path in ["/", "/b"] {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let mut client = Connection::open(address).expect("the listener accepts");
                assert_eq!(client.get("x.test", path, "").expect("an answer").status, 200);
            }
            let pages = ["/stats", "/stats/prometheus"].map(|path| shown(admin, path));
            assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
            pages
        };
        let (envoy, evenkeel) = (run(Program::Envoy), run(Program::Evenkeel));
        for (envoy, evenkeel) in envoy.iter().zip(&evenkeel) {
            let difference = first_difference(envoy, evenkeel);
            assert!(difference.is_none(), "{matcher}: - Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
        }
        assert_eq!(envoy[0].contains("cluster.a.upstream_rq_total: 1\n"), shows_requests, "{matcher}:\n{}", envoy[0]);
    }
}

/// The statistics that both programs have, and what they count of requests.
fn shown(admin: u16, path: &str) -> String {
    const COMMON: [&str; 6] = [
        "upstream_rq_total",
        "upstream_rq_completed",
        "upstream_cx_total",
        "downstream_rq_total",
        "downstream_cx_total",
        "server_live",
    ];
    const SCENE: [&str; 5] = ["cluster.", "envoy_cluster_name=", "http.http.", "prefix=\"http\"", "server"];
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let page = Connection::open(address).and_then(|mut client| client.get("admin", path, "")).expect("an answer");
    let text = page.text();
    let values = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    let common = values.filter(|(name, _)| {
        let metric = name.split(['{', ':']).next().unwrap_or_default().replace("server.live", "server_live");
        !name.contains("external")
            && COMMON.iter().any(|common| metric.ends_with(common))
            && SCENE.iter().any(|part| name.contains(part))
    });
    // How often the programs were asked whether they are ready is none of this.
    let line = |(name, value): (&str, &str)| {
        format!("{} {}\n", name.replace("{}", ""), if name.contains("_rq_") { value } else { "" })
    };
    common.map(line).collect::<BTreeSet<_>>().into_iter().collect()
}
