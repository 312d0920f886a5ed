//! Configurations whose destinations are the proxy's own listeners, or its admin port: a loop ends after a few rounds, and nobody reaches
//! through the proxy what only the proxy's own user may reach.

use std::io::Read as _;
use std::net::SocketAddr;

use evenkeel_testkit::dns::{Answer, Dns};
use evenkeel_testkit::{Backend, Connection, Reply, eventually, free_port};

use crate::dynamic_forward_proxy::{cache, cluster};
use crate::harness::{Proxy, get, http_listener_at, protocol, stat, static_bootstrap, static_cluster};

/// More rounds than a loop may make ([`evenkeel_upstream::own::MAX_HOPS`]), with some that are not noticed.
const FEW: u64 = 30;

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn forwarding(name: &str, port: u16, to: &str) -> String {
    let routes = format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, \
         route: {{cluster: {to}, timeout: 10s}}}}]}}]}}"
    );
    http_listener_at(at(port), name, &routes, "")
}

fn relaying(name: &str, port: u16, to: &str) -> String {
    format!(
        "name: {name}\naddress: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}\nfilter_chains:\n- filters:\n  - \
         name: envoy.filters.network.tcp_proxy\n    typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: {name}, cluster: {to}}}\n"
    )
}

/// With two listeners.
fn bootstrap([one, other]: [&str; 2], clusters: &[String]) -> String {
    let indented = other.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!("{}  -\n{indented}", static_bootstrap(one, clusters))
}

fn start(bootstrap: &str) -> Proxy {
    let proxy = Proxy::start(bootstrap);
    proxy.wait_live();
    proxy
}

#[test]
fn a_request_that_comes_back_ends_after_a_few_rounds() {
    for http in ["http_protocol_options: {}", "http2_protocol_options: {}"] {
        let options = protocol(&format!("explicit_http_config: {{{http}}}"));
        let port = free_port();
        let proxy =
            start(&static_bootstrap(&forwarding("web", port, "self"), &[static_cluster("self", at(port), &options)]));
        for _ in 0..3 {
            let answer = get(at(port), "/");
            assert_eq!(
                (answer.status, answer.text()),
                (508, "the request comes back to the proxy that forwards it".to_owned()),
                "{http}"
            );
        }
        let rounds = stat(&proxy, "http.web.downstream_rq_total")[0];
        assert!(rounds <= 3 * FEW, "{http}: {rounds} requests of three");
    }
}

#[test]
fn a_connection_that_comes_back_ends_after_a_few_rounds() {
    let port = free_port();
    let proxy = start(&static_bootstrap(&relaying("tcp", port, "self"), &[static_cluster("self", at(port), "")]));
    let mut client = Connection::socket(at(port)).expect("it accepts");
    // A reset is an end as well.
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    drop(client);
    eventually("the end of all rounds", || (stat(&proxy, "tcp.tcp.downstream_cx_active") == [0]).then_some(()));
    let rounds = stat(&proxy, "tcp.tcp.downstream_cx_total")[0];
    assert!(rounds <= FEW, "{rounds} connections of one");
}

/// Over a listener that knows nothing of requests, under the address of all interfaces.
#[test]
fn a_loop_over_several_listeners_ends_too() {
    let [web, tcp] = [free_port(), free_port()];
    let everywhere = SocketAddr::from(([0, 0, 0, 0], tcp));
    let clusters = [static_cluster("tcp", everywhere, ""), static_cluster("web", at(web), "")];
    let proxy = start(&bootstrap([&forwarding("web", web, "tcp"), &relaying("tcp", tcp, "web")], &clusters));
    assert_eq!(get(at(web), "/").status, 508);
    assert!(stat(&proxy, "http.web.downstream_rq_total")[0] <= FEW);
}

/// A sidecar that calls its own workload, and gateways behind each other.
#[test]
fn a_request_may_pass_the_proxy_twice() {
    let backend = Backend::start(|request| Reply::text(request.header("x-evenkeel-hops").unwrap_or("none").to_owned()));
    let [web, inner] = [free_port(), free_port()];
    let clusters = [static_cluster("inner", at(inner), ""), static_cluster("backend", backend.address(), "")];
    let proxy =
        start(&bootstrap([&forwarding("web", web, "inner"), &forwarding("inner", inner, "backend")], &clusters));
    for _ in 0..3 {
        assert_eq!(get(at(web), "/").text(), "1");
        // Nobody else's connections count, whatever the client says.
        let mut client = Connection::open(at(inner)).expect("it accepts");
        assert_eq!(client.get("a", "/", "").expect("an answer").text(), "none");
        assert_eq!(client.get("a", "/", "x-evenkeel-hops: 99\r\n").expect("an answer").status, 200);
    }
    drop(proxy);
}

fn with_admin_port(bootstrap: &str, port: u16) -> String {
    bootstrap.replacen("port_value: 0", &format!("port_value: {port}"), 1)
}

/// A route of a tenant may lead to any address that its configuration names.
#[test]
fn the_admin_port_is_closed_to_what_comes_through_the_proxy() {
    for spelling in ["127.0.0.1", "0.0.0.0", "\"::ffff:127.0.0.1\""] {
        let [admin, web, tcp] = [free_port(), free_port(), free_port()];
        let cluster = static_cluster("admin", at(admin), "").replace("127.0.0.1", spelling);
        let listeners = [&*forwarding("web", web, "admin"), &relaying("tcp", tcp, "admin")];
        let proxy = start(&with_admin_port(&bootstrap(listeners, &[cluster]), admin));
        for port in [web, tcp] {
            let ask = |method: &str, path: &str| {
                let mut client = Connection::open(at(port)).expect("it accepts");
                let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
                client.send(head).expect("it reads");
                client.response().expect("an answer").status
            };
            for (method, path, expected) in [
                ("POST", "/quitquitquit", 403),
                ("POST", "/healthcheck/fail", 403),
                ("POST", "/logging?level=trace", 403),
                ("GET", "/config_dump", 403),
                ("GET", "/requests", 403),
                ("GET", "/", 403),
                // For Prometheus and probes.
                ("GET", "/stats/prometheus", 200),
                ("GET", "/ready", 200),
            ] {
                assert_eq!(ask(method, path), expected, "{method} {path} at {spelling}");
            }
        }
        assert!(!proxy.has_ended());
        assert_eq!(proxy.get("/config_dump").status, 200, "the user's own");
    }
}

#[test]
fn no_name_leads_to_the_admin_port() {
    let dns = Dns::start();
    dns.answer("localhost", Answer::Addresses(vec![[127, 0, 0, 1].into()], 60));
    dns.answer("admin.example.com", Answer::Addresses(vec![[127, 0, 0, 1].into()], 60));
    let [admin, web] = [free_port(), free_port()];
    let filter = format!(
        "http_filters:\n      - name: names\n        typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.filters.http.dynamic_forward_proxy.v3.FilterConfig, dns_cache_config: {}}}",
        cache(&dns, "")
    );
    let listener = forwarding("web", web, "any").replace("http_filters:", &filter);
    let proxy = start(&with_admin_port(&static_bootstrap(&listener, &[cluster(&cache(&dns, ""))]), admin));
    for host in
        ["127.0.0.1", "localhost", "admin.example.com", "0.0.0.0", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]"]
    {
        for port in [admin, web] {
            let mut client = Connection::open(at(web)).expect("it accepts");
            let answer = client.get(&format!("{host}:{port}"), "/config_dump", "").expect("an answer");
            assert_eq!((answer.status, answer.text()), (503, "DNS resolution failure".into()), "{host}:{port}");
        }
    }
    drop(proxy);
}
