//! Buckets of histograms (`histogram_bucket_settings`): Evenkeel's have the same bounds as Envoy's.

use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::{Backend, Connection, Reply, eventually, free_ports};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

/// A histogram of Evenkeel's and Envoy's, as Prometheus has it.
const TIME: &str = "envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name=\"a\"";

#[test]
fn evenkeel_and_envoy_count_in_the_same_buckets() {
    let backend = Backend::start(|_| Reply::text("backend"));
    let prefix = |prefix: &str, buckets: &str| format!("{{ match: {{ prefix: {prefix} }}, buckets: {buckets} }}");
    for (settings, expected) in [
        (vec![prefix("cluster.a.", "[5, 0.5, 1e6]")], &["0.5", "5", "1000000", "+Inf"][..]),
        // The first that matches counts, and one without buckets does not.
        (vec![prefix("cluster", "[7]"), prefix("cluster.a.", "[5]")], &["7", "+Inf"]),
        (vec![prefix("cluster", "[]"), prefix("cluster.a.", "[5]")], &["5", "+Inf"]),
        (
            vec!["{ match: { safe_regex: { regex: 'cluster\\.[ab]\\..*time' } }, buckets: [1, 2.5] }".to_owned()],
            &["1", "2.5", "+Inf"],
        ),
    ] {
        for program in [Program::Envoy, Program::Evenkeel] {
            assert_eq!(shown(program, &settings.join(", "), &backend), expected, "{program:?}: {settings:?}");
        }
    }
}

/// The bounds of a histogram's buckets.
fn shown(program: Program, settings: &str, backend: &Backend) -> Vec<String> {
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let routes = ["{ match: { prefix: / }, route: { cluster: a } }".to_owned()];
    let clusters = [cluster("a", &endpoint(backend.address().port(), ""), "")];
    let bootstrap = web::bootstrap(port, admin, &[], &routes, &clusters);
    // Envoy shows histograms only after it has flushed them.
    let stats = format!("stats_config: {{ histogram_bucket_settings: [{settings}] }}\nstats_flush_interval: 0.05s\n");
    std::fs::write(&file, format!("{bootstrap}\n{stats}")).expect("a writable folder");
    let _process = web::start(program, &file, admin, port);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut client = Connection::open(address).expect("the listener accepts");
    assert_eq!(client.get("x.test", "/", "").expect("an answer").status, 200);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let bounds = || {
        let page = Connection::open(address).and_then(|mut client| client.get("admin", "/stats/prometheus", ""));
        let page = page.expect("an answer");
        let bound = |line: &str| Some(line.strip_prefix(TIME)?.split("le=\"").nth(1)?.split('"').next()?.to_owned());
        page.text().lines().filter_map(bound).collect::<Vec<_>>()
    };
    eventually("the histogram is on the page", || Some(bounds()).filter(|bounds| !bounds.is_empty()))
}
