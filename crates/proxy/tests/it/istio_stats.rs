//! Istio's metrics of requests and connections, as Prometheus gets them.

use std::io::{Read, Write};
use std::net::SocketAddr;

use evenkeel_testkit::{Backend, Connection, Reply, TcpEcho, eventually};

use crate::harness::{Proxy, static_bootstrap};

const NETWORK: &str = "type.googleapis.com/envoy.extensions.filters.network";
const NODE: &str = "node: {id: a, cluster: b, metadata: {WORKLOAD_NAME: web-v1, NAMESPACE: shop, CLUSTER_ID: Kubernetes, \
                    LABELS: {app: web, version: v1}}}\n";

/// A listener of this direction for requests, or for connections.
fn listener(direction: &str, is_http: bool, settings: &str) -> String {
    let stats = format!(
        "{{name: istio.stats, typed_config: {{\"@type\": type.googleapis.com/stats.PluginConfig, {settings}}}}}"
    );
    let filters = if is_http {
        format!(
            "- {{name: hcm, typed_config: {{\"@type\": {NETWORK}.http_connection_manager.v3.HttpConnectionManager, stat_prefix: l, \
             route_config: {{name: r, virtual_hosts: [{{name: v, domains: [\"*\"], routes: [{{match: {{prefix: /}}, \
             route: {{cluster: backend}}}}]}}]}}, http_filters: [{stats}, {{name: router, typed_config: {{\"@type\": \
             type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]}}}}"
        )
    } else {
        format!(
            "- {stats}\n  - {{name: tcp, typed_config: {{\"@type\": {NETWORK}.tcp_proxy.v3.TcpProxy, stat_prefix: l, cluster: backend}}}}"
        )
    };
    format!(
        "name: l\ntraffic_direction: {direction}\naddress: {{socket_address: {{address: 127.0.7.1, port_value: 0}}}}\n\
         filter_chains:\n- filters:\n  {filters}"
    )
}

/// A cluster with metadata as istiod writes it.
fn cluster(host: SocketAddr) -> String {
    format!(
        "{{name: backend, type: STATIC, connect_timeout: 5s, metadata: {{filter_metadata: {{istio: {{services: [{{host: \
         reviews.shop.svc.cluster.local, name: reviews, namespace: shop}}]}}}}}}, load_assignment: {{cluster_name: backend, endpoints: \
         [{{lb_endpoints: [{{metadata: {{filter_metadata: {{istio: {{workload: reviews-v2;other;reviews;v2;Kubernetes}}}}}}, endpoint: \
         {{address: {{socket_address: {{address: {}, port_value: {}}}}}}}}}]}}]}}}}",
        host.ip(),
        host.port()
    )
}

fn proxy(listener: &str, backend: SocketAddr) -> Proxy {
    let proxy = Proxy::start(&format!("{NODE}{}", static_bootstrap(listener, &[cluster(backend)])));
    proxy.wait_live();
    proxy
}

/// The line of a metric, once it has this value.
pub fn line_of(proxy: &Proxy, metric: &str, value: &str) -> String {
    eventually(&format!("{metric} to be {value}"), || {
        let page = proxy.get("/stats/prometheus").text();
        let is_it = |line: &&str| line.starts_with(&format!("{metric}{{")) && line.ends_with(&format!(" {value}"));
        page.lines().find(is_it).map(str::to_owned)
    })
}

#[track_caller]
pub fn assert_labels(line: &str, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert!(line.contains(&format!("{name}=\"{value}\"")), "{name}=\"{value}\": {line}");
    }
}

#[test]
fn requests_are_counted_by_both_sides() {
    let backend = Backend::start(|_| Reply::text("hello"));
    let check = |direction: &str, settings: &str, expected: &[(&str, &str)]| {
        let proxy = proxy(&listener(direction, true, settings), backend.address());
        let mut client = Connection::open(proxy.listener("l")).expect("it accepts");
        for _ in 0..2 {
            assert_eq!(client.get("reviews:9080", "/", "").expect("an answer").text(), "hello");
        }
        assert_labels(&line_of(&proxy, "istio_build", "1"), &[("component", "proxy")]);
        let line = line_of(&proxy, "istio_requests_total", "2");
        assert_labels(&line, expected);
        for histogram in ["request_duration_milliseconds", "request_bytes", "response_bytes"] {
            line_of(&proxy, &format!("istio_{histogram}_count"), "2");
        }
        assert!(!proxy.get("/stats/prometheus").text().contains("istio_tcp"), "{direction}");
    };
    let client = [
        ("reporter", "source"),
        ("source_workload", "web-v1"),
        ("source_app", "web"),
        ("source_canonical_revision", "v1"),
        ("destination_workload", "reviews-v2"),
        ("destination_workload_namespace", "other"),
        ("destination_canonical_service", "reviews"),
        ("destination_version", "unknown"),
        ("destination_service", "reviews.shop.svc.cluster.local"),
        ("destination_service_name", "reviews"),
        ("destination_service_namespace", "shop"),
        ("request_protocol", "http"),
        ("response_code", "200"),
        ("response_flags", "-"),
        ("connection_security_policy", "unknown"),
    ];
    check("OUTBOUND", "", &client);
    let server = [
        ("reporter", "destination"),
        ("source_workload", "unknown"),
        ("source_principal", "unknown"),
        ("destination_workload", "web-v1"),
        ("destination_canonical_service", "web"),
        ("destination_service", "reviews.shop.svc.cluster.local"),
        ("connection_security_policy", "none"),
    ];
    check("INBOUND", "disable_host_header_fallback: true", &server);
}

#[test]
fn metrics_and_labels_can_be_left_out() {
    let backend = Backend::start(|_| Reply::text("hello"));
    let settings = "metrics: [{name: request_bytes, drop: true}, {name: requests_total, tags_to_remove: [source_app, response_flags]}]";
    let proxy = proxy(&listener("OUTBOUND", true, settings), backend.address());
    let mut client = Connection::open(proxy.listener("l")).expect("it accepts");
    client.get("a", "/", "").expect("an answer");
    let line = line_of(&proxy, "istio_requests_total", "1");
    assert!(!line.contains("source_app") && !line.contains("response_flags"), "{line}");
    assert_labels(
        &line_of(&proxy, "istio_response_bytes_count", "1"),
        &[("source_app", "web"), ("response_flags", "-")],
    );
    assert!(!proxy.get("/stats/prometheus").text().contains("istio_request_bytes"));
}

#[test]
fn connections_are_reported_while_they_live_and_when_they_end() {
    let echo = TcpEcho::start();
    let proxy = proxy(&listener("OUTBOUND", false, "tcp_reporting_duration: 0.1s"), echo.address());
    let mut client = Connection::socket(proxy.listener("l")).expect("it accepts");
    let opened = line_of(&proxy, "istio_tcp_connections_opened_total", "1");
    let expected = [("reporter", "source"), ("destination_workload", "reviews-v2"), ("request_protocol", "tcp")];
    assert_labels(&opened, &expected);
    assert!(!opened.contains("response_code"), "{opened}");
    let mut exchange = || {
        client.write_all(b"12345").expect("the proxy reads");
        client.read_exact(&mut [0; 5]).expect("an echo");
    };
    exchange();
    line_of(&proxy, "istio_tcp_received_bytes_total", "5");
    exchange();
    line_of(&proxy, "istio_tcp_sent_bytes_total", "10");
    assert!(!proxy.get("/stats/prometheus").text().contains("istio_tcp_connections_closed_total"));
    drop(client);
    line_of(&proxy, "istio_tcp_connections_closed_total", "1");
    line_of(&proxy, "istio_tcp_received_bytes_total", "10");
}
