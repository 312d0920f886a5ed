//! The places of a proxy's own calls: copies of requests take none from the checks that decide about requests.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_proxy::callouts::places::MAX_MIRRORS_PER_WORKER;
use evenkeel_testkit::{Backend, Connection, Reply, cases};

use crate::harness::{Proxy, http_listener, raise_open_files, stat, static_bootstrap, static_cluster};

/// Longer than the test takes.
const NEVER: Duration = Duration::from_secs(120);

fn proxy(main: SocketAddr, mirror: SocketAddr, authorizer: SocketAddr) -> (Proxy, SocketAddr) {
    let unlimited = "circuit_breakers: {thresholds: [{max_connections: 100000, max_requests: 100000, max_pending_requests: 100000}]}";
    let clusters = [("main", main), ("mirror", mirror), ("authorizer", authorizer)];
    let clusters = clusters.map(|(name, address)| static_cluster(name, address, unlimited));
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, route: \
                  {cluster: main, timeout: 0s, request_mirror_policies: [{cluster: mirror}]}}]}]}";
    let filter = "http_filters:\n      - name: authz\n        typed_config: {\"@type\": \
                  type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz, failure_mode_allow: true, http_service: \
                  {server_uri: {uri: http://authorizer, cluster: authorizer, timeout: 30s}}}";
    let listener = http_listener("web", routes, "").replace("http_filters:", filter);
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &clusters), 1);
    proxy.wait_live();
    let web = proxy.listener("web");
    (proxy, web)
}

#[test]
fn hanging_mirrors_open_nothing_that_fails_open() {
    raise_open_files();
    let main = Backend::start(|_| Reply::text("main"));
    let mirror = Backend::start(|_| Reply::After(NEVER, Box::new(Reply::text("mirror"))));
    let authorizer = Backend::start(|request| {
        if request.target.starts_with("/denied") {
            Reply::Fixed(403, Vec::new(), Vec::new())
        } else {
            Reply::text("yes")
        }
    });
    let (proxy, web) = proxy(main.address(), mirror.address(), authorizer.address());
    let mut client = Connection::open(web).expect("it accepts");
    assert_eq!(client.get("a", "/denied", "").expect("an answer").status, 403);
    for _ in 0..cases(MAX_MIRRORS_PER_WORKER, 4200) {
        assert_eq!(client.get("a", "/", "").expect("an answer").text(), "main");
    }
    assert_eq!(client.get("a", "/denied", "").expect("an answer").status, 403);
    let copies = stat(&proxy, "cluster.mirror.upstream_rq_active")[0];
    assert!(copies <= MAX_MIRRORS_PER_WORKER as u64 / 2, "{copies} copies");
}
