//! The dynamic forward proxy over real sockets and a DNS server of the test's own.

use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::dns::{Answer, Dns, SERVFAIL};
use evenkeel_testkit::tls::{TestCa, TlsClient};
use evenkeel_testkit::{Backend, Connection, Reply, Response, TcpEcho, eventually};

use crate::harness::{Proxy, http_listener_at, stat, static_bootstrap, static_cluster};

const TYPES: &str = "type.googleapis.com/envoy.extensions";

pub fn cache(dns: &Dns, options: &str) -> String {
    let server = dns.address.port();
    format!(
        "{{name: names, dns_lookup_family: V4_ONLY, {options} typed_dns_resolver_config: {{name: cares, typed_config: \
         {{\"@type\": {TYPES}.network.dns_resolver.cares.v3.CaresDnsResolverConfig, resolvers: [{{socket_address: \
         {{address: 127.0.0.1, port_value: {server}}}}}]}}}}}}"
    )
}

pub fn cluster(cache: &str) -> String {
    format!(
        "{{name: any, connect_timeout: 5s, lb_policy: CLUSTER_PROVIDED, cluster_type: {{name: \
         envoy.clusters.dynamic_forward_proxy, typed_config: {{\"@type\": \
         {TYPES}.clusters.dynamic_forward_proxy.v3.ClusterConfig, dns_cache_config: {cache}}}}}}}"
    )
}

/// A proxy that forwards to whatever host is called. `per_route`: the filter's configuration for the path `/rewritten`.
fn http_proxy(cache: &str, per_route: &str) -> Proxy {
    http_proxy_at((Ipv4Addr::new(127, 0, 1, 8), 0).into(), cache, per_route)
}

fn http_proxy_at(address: SocketAddr, cache: &str, per_route: &str) -> Proxy {
    let per_route = match per_route {
        "" => String::new(),
        rewrite => format!(
            "{{match: {{prefix: /rewritten}}, route: {{cluster: any}}, typed_per_filter_config: {{names: {{\"@type\": \
             {TYPES}.filters.http.dynamic_forward_proxy.v3.PerRouteConfig, {rewrite}}}}}}}, "
        ),
    };
    let routes = format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{per_route}{{match: {{prefix: /}}, route: {{cluster: any}}}}]}}]}}"
    );
    let filter = format!(
        "http_filters:\n      - name: names\n        typed_config: {{\"@type\": \
         {TYPES}.filters.http.dynamic_forward_proxy.v3.FilterConfig, dns_cache_config: {cache}}}"
    );
    let listener = http_listener_at(address, "forward", &routes, "").replace("http_filters:", &filter);
    let proxy = Proxy::start(&static_bootstrap(&listener, &[cluster(cache)]));
    proxy.wait_live();
    proxy
}

fn call(proxy: &Proxy, host: &str, path: &str) -> Response {
    let mut connection = Connection::open(proxy.listener("forward")).expect("the proxy listens");
    connection.get(host, path, "").expect("a response")
}

fn answer(proxy: &Proxy, host: &str) -> (u16, String) {
    let response = call(proxy, host, "/");
    (response.status, response.text())
}

fn ok(text: &str) -> (u16, String) {
    (200, text.into())
}

fn no_name() -> (u16, String) {
    (503, "DNS resolution failure".into())
}

#[test]
fn requests_go_to_the_host_they_call() {
    let backend = Backend::start(|request| Reply::text(request.header("host").unwrap_or_default().to_owned()));
    let port = backend.address().port();
    let dns = Dns::start();
    dns.answer("a.example.com", Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 60));
    let proxy = http_proxy(&cache(&dns, ""), "host_rewrite_header: x-host");
    let long = format!("{}.example.com:{port}", "a".repeat(64));
    let huge = format!("{}:{port}", "a.".repeat(20_000));
    for (host, expected) in [
        (format!("a.example.com:{port}"), ok(&format!("a.example.com:{port}"))),
        // Names have no case, and may end with a dot.
        (format!("A.Example.com:{port}"), ok(&format!("A.Example.com:{port}"))),
        (format!("127.0.0.1:{port}"), ok(&format!("127.0.0.1:{port}"))),
        (format!("b.example.com:{port}"), no_name()),
        ("a.example.com:0".into(), no_name()),
        ("a..example.com".into(), no_name()),
        (long, no_name()),
        (huge, no_name()),
    ] {
        assert_eq!(answer(&proxy, &host), expected, "{host:.80}");
    }
    assert_eq!(dns.asked(), 1, "the answer holds");
    let mut connection = Connection::open(proxy.listener("forward")).expect("the proxy listens");
    let rewritten = format!("x-host: a.example.com:{port}\r\n");
    let response = connection.get("b.example.com", "/rewritten", &rewritten).expect("a response");
    assert_eq!((response.status, response.text()), ok(&format!("a.example.com:{port}")));
    assert_eq!(stat(&proxy, "dns_cache.names.dns_query_success"), [1]);
}

#[test]
fn a_host_is_resolved_again_and_what_is_known_stays_in_use() {
    let backend = Backend::start(|_| Reply::text("one"));
    let port = backend.address().port();
    let other = Backend::start_on((Ipv4Addr::new(127, 0, 0, 77), port).into(), |_| Reply::text("two"));
    let dns = Dns::start();
    dns.answer("a.example.com", Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 1));
    let proxy = http_proxy(&cache(&dns, "dns_min_refresh_rate: 1s, dns_refresh_rate: 1s,"), "");
    let host = format!("a.example.com:{port}");
    assert_eq!(answer(&proxy, &host), ok("one"));
    dns.answer("a.example.com", Answer::Error(SERVFAIL));
    let asked = dns.asked();
    eventually("failed resolutions", || (dns.asked() > asked + 1).then_some(()));
    assert_eq!(answer(&proxy, &host), ok("one"));
    dns.answer("a.example.com", Answer::Addresses(vec![Ipv4Addr::new(127, 0, 0, 77)], 1));
    eventually("the other address", || (answer(&proxy, &host) == ok("two")).then_some(()));
    drop(other);
}

#[test]
fn names_that_do_not_exist_shut_nobody_out() {
    let backend = Backend::start(|_| Reply::text("here"));
    let port = backend.address().port();
    let dns = Dns::start();
    for name in ["a.example.com", "b.example.com", "c.example.com"] {
        dns.answer(name, Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 60));
    }
    let proxy = http_proxy(&cache(&dns, "max_hosts: 2,"), "");
    for n in 0..50 {
        assert_eq!(answer(&proxy, &format!("no-{n}.example.com:{port}")), no_name());
    }
    assert_eq!(stat(&proxy, "dns_cache.names.num_hosts"), [2]);
    assert_eq!(answer(&proxy, &format!("a.example.com:{port}")), ok("here"));
    assert_eq!(answer(&proxy, &format!("b.example.com:{port}")), ok("here"));
    // Names that resolve keep their place.
    assert_eq!(answer(&proxy, &format!("c.example.com:{port}")), (503, "DNS cache overflow".into()));
    assert_eq!(stat(&proxy, "dns_cache.names.host_overflow"), [1]);
    assert_eq!(answer(&proxy, &format!("127.0.0.1:{port}")), ok("here"), "an address needs no place");
}

#[test]
fn a_server_that_never_answers_is_waited_for_until_the_limit() {
    let dns = Dns::start();
    dns.answer("slow.example.com", Answer::Silence);
    let limits = "dns_query_timeout: 1s, dns_cache_circuit_breaker: {max_pending_requests: 1},";
    let proxy = http_proxy(&cache(&dns, limits), "");
    let listener = proxy.listener("forward");
    let mut first = Connection::open(listener).expect("the proxy listens");
    first.send("GET / HTTP/1.1\r\nhost: slow.example.com\r\n\r\n").expect("sent");
    eventually("a lookup", || (stat(&proxy, "dns_cache.names.dns_query_attempt") == [1]).then_some(()));
    let overflow = (503, "Dynamic forward proxy pending request overflow".to_owned());
    assert_eq!(answer(&proxy, "other.example.com"), overflow);
    let response = first.response().expect("a response");
    assert_eq!((response.status, response.text()), no_name());
    assert_eq!(stat(&proxy, "dns_cache.names.dns_query_timeout"), [1]);
    // The name is known not to resolve, so nobody waits for it again.
    assert_eq!(answer(&proxy, "slow.example.com"), no_name());
}

#[test]
fn a_client_that_leaves_takes_nothing_with_it() {
    let backend = Backend::start(|_| Reply::text("here"));
    let dns = Dns::start();
    dns.answer("a.example.com", Answer::Silence);
    let proxy = http_proxy(&cache(&dns, "disable_dns_refresh_on_failure: true, dns_query_timeout: 1s,"), "");
    let host = format!("a.example.com:{}", backend.address().port());
    for _ in 0..20 {
        let mut leaving = Connection::open(proxy.listener("forward")).expect("the proxy listens");
        leaving.send(format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")).expect("sent");
    }
    eventually("the lookup's end", || (stat(&proxy, "dns_cache.names.num_hosts") == [0]).then_some(()));
    dns.answer("a.example.com", Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 60));
    assert_eq!(answer(&proxy, &host), ok("here"), "a failure is asked about again");
}

#[test]
fn requests_never_come_back_to_the_proxy_and_refused_addresses_are_not_called() {
    let backend = Backend::start(|_| Reply::text("here"));
    let port = backend.address().port();
    let dns = Dns::start();
    dns.answer("inside.example.com", Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 60));
    let refused = "resolved_address_filter: {ranges: [{address_prefix: 127.0.0.0, prefix_len: 31}]},";
    let proxy = http_proxy(&cache(&dns, refused), "");
    assert_eq!(answer(&proxy, &format!("inside.example.com:{port}")), no_name());
    assert_eq!(answer(&proxy, &format!("127.0.0.1:{port}")), no_name());
    drop(proxy);
    dns.answer("loop.example.com", Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 60));
    for listens in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
        let own = evenkeel_testkit::free_port();
        let proxy = http_proxy_at((listens, own).into(), &cache(&dns, ""), "");
        assert_eq!(answer(&proxy, &format!("loop.example.com:{own}")), no_name());
        assert_eq!(answer(&proxy, &format!("127.0.0.1:{own}")), no_name());
        assert_eq!(answer(&proxy, &format!("loop.example.com:{port}")), ok("here"));
    }
}

/// A listener for TLS by server name, whose connections go to `to`.
fn sni_proxy(cache: &str, port: u16, to: &str, clusters: &[String]) -> Proxy {
    let listener = format!(
        r#"
name: sni
address: {{socket_address: {{address: 127.0.1.9, port_value: 0}}}}
listener_filters:
- name: tls
  typed_config: {{"@type": {TYPES}.filters.listener.tls_inspector.v3.TlsInspector}}
filter_chains:
- filters:
  - name: names
    typed_config: {{"@type": {TYPES}.filters.network.sni_dynamic_forward_proxy.v3.FilterConfig, port_value: {port}, dns_cache_config: {cache}}}
  - name: envoy.filters.network.tcp_proxy
    typed_config: {{"@type": {TYPES}.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: sni, cluster: {to}}}
"#
    );
    let proxy = Proxy::start(&static_bootstrap(&listener, clusters));
    proxy.wait_live();
    proxy
}

#[test]
fn tls_connections_go_to_the_server_they_name() {
    let ca = TestCa::new();
    let server = evenkeel_testkit::tls::TlsServer::new(&ca.for_dns(&["a.example.com"]));
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for socket in listener.incoming().flatten() {
            let mut connection = server.accept(socket);
            let mut head = [0; 1024];
            while connection.read(&mut head).is_ok_and(|count| count > 0) {
                if connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhere").is_err() {
                    break;
                }
            }
        }
    });
    let dns = Dns::start();
    dns.answer("a.example.com", Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 60));
    let cache = cache(&dns, "");
    let proxy = sni_proxy(&cache, port, "any", &[cluster(&cache)]);
    let explained = |server_name: &str| {
        let call = format!(
            r#"{{"listeners": ["sni"], "destination": "127.0.1.9:443", "source": "192.0.2.1:1", "tls": {{{server_name}}}}}"#
        );
        let decision = proxy.explain(&call).1["decision"].clone();
        (decision["outcome"].clone(), decision["byState"].clone(), decision["steps"][1].clone())
    };
    let step = format!("filter \"names\": resolves a.example.com when the connection comes, for port {port}, by state");
    assert_eq!(explained(r#""serverName": "a.example.com""#), ("forward".into(), true.into(), step.into()));
    let step = "filter \"names\": its ClientHello names no host to resolve";
    assert_eq!(explained(""), ("reset".into(), false.into(), step.into()));
    let listener = proxy.listener("sni");
    let open =
        |name: &str| TlsClient { server_name: name, root_pem: ca.root_pem(), ..TlsClient::default() }.open(listener);
    let mut connection = open("a.example.com").expect("a handshake with the server");
    assert_eq!(connection.get("a.example.com", "/", "").expect("a response").text(), "here");
    assert!(open("b.example.com").is_err());
    assert_eq!(stat(&proxy, "cluster.any.upstream_cx_none_healthy"), [1]);
}

/// Only a cluster whose hosts filters resolve needs the name.
#[test]
fn connections_without_a_server_name_go_to_clusters_with_hosts() {
    let (dns, echo) = (Dns::start(), TcpEcho::start());
    let proxy = sni_proxy(&cache(&dns, ""), 443, "echo", &[static_cluster("echo", echo.address(), "")]);
    let call = r#"{"listeners": ["sni"], "destination": "127.0.1.9:443", "source": "192.0.2.1:1"}"#;
    assert_eq!(proxy.explain(call).1["decision"]["outcome"], "forward");
    let mut connection = Connection::open(proxy.listener("sni")).expect("it accepts");
    connection.send("hello").expect("it reads");
    assert_eq!(connection.read_exact(5).expect("an echo"), b"hello");
}
