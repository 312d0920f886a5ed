//! The dynamic forward proxy: Evenkeel resolves hosts, answers failures and logs them as Envoy does.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::dns::{Answer, Dns, SERVFAIL};
use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, free_ports, wait};

use super::proxy::Program;
use super::web::{self, ROUTER, access_log};

/// How long something may take that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
const TYPES: &str = "type.googleapis.com/envoy.extensions";
/// Caches, each with a listener of its own: their settings.
const CACHES: [(&str, &str); 4] = [
    ("plain", ""),
    ("small", "max_hosts: 1, "),
    ("busy", "dns_cache_circuit_breaker: { max_pending_requests: 0 }, "),
    ("guarded", "resolved_address_filter: { ranges: [ { address_prefix: 127.0.0.0, prefix_len: 8 } ] }, "),
];
/// Calls in order: the cache, the host (`PORT` is the backend's), and further header lines.
const CALLS: [(usize, &str, &str); 14] = [
    (0, "a.example.com:PORT", ""),
    (0, "A.Example.Com:PORT", ""),
    (0, "none.example.com:PORT", ""),
    (0, "none.example.com:PORT", ""),
    (0, "broken.example.com:PORT", ""),
    (0, "silent.example.com:PORT", ""),
    (0, "127.0.0.1:PORT", ""),
    (0, "a.example.com:1", ""),
    (0, "none.example.com", "x-host: a.example.com:PORT\r\n"),
    (1, "a.example.com:PORT", ""),
    (1, "b.example.com:PORT", ""),
    (2, "a.example.com:PORT", ""),
    (3, "a.example.com:PORT", ""),
    (3, "127.0.0.1:PORT", ""),
];

#[test]
fn evenkeel_and_envoy_resolve_alike() {
    let backend = Backend::start(|request| Reply::text(request.header("host").unwrap_or_default().to_owned()));
    let dns = Dns::start();
    for name in ["a.example.com", "b.example.com"] {
        dns.answer(name, Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 60));
    }
    dns.answer("broken.example.com", Answer::Error(SERVFAIL));
    dns.answer("silent.example.com", Answer::Silence);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [admin, ports @ ..] = free_ports::<5>();
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("log"));
    std::fs::write(&file, bootstrap(&dns, ports, admin, &log)).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, ports[0]);
        let seen = story(ports, backend.address().port()) + &logged(&log);
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy);
    std::fs::remove_file(&log).expect("a log was written");
    let evenkeel = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}\n\nEnvoy's:\n{envoy}", difference.unwrap_or_default());
    for part in ["DF dns_resolution_failure", "dns_cache_overflow", "pending_request_overflow", "200 - via_upstream"] {
        assert!(envoy.contains(part), "{part} is not in {envoy}");
    }
}

fn bootstrap(dns: &Dns, ports: [u16; 4], admin: u16, log: &Path) -> String {
    let (mut listeners, mut clusters) = (String::new(), Vec::new());
    let log = access_log(log, &["%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %REQ(:AUTHORITY)%"]);
    for ((name, settings), port) in CACHES.into_iter().zip(ports) {
        let server = dns.address.port();
        let cache = format!(
            "{{ name: {name}, dns_lookup_family: V4_ONLY, dns_query_timeout: 1s, {settings}typed_dns_resolver_config: {{ name: \
             envoy.network.dns_resolver.cares, typed_config: {{ \"@type\": \
             {TYPES}.network.dns_resolver.cares.v3.CaresDnsResolverConfig, resolvers: [ {{ socket_address: {{ address: \
             127.0.0.1, port_value: {server} }} }} ] }} }} }}"
        );
        let rewritten = format!(
            "              - {{ match: {{ prefix: /, headers: [ {{ name: x-host, present_match: true }} ] }}, route: {{ cluster: {name} }}, \
             typed_per_filter_config: {{ names: {{ \"@type\": {TYPES}.filters.http.dynamic_forward_proxy.v3.PerRouteConfig, \
             host_rewrite_header: x-host }} }} }}\n"
        );
        let routes = format!("{rewritten}              - {{ match: {{ prefix: / }}, route: {{ cluster: {name} }} }}\n");
        let filter = format!(
            "{{ name: names, typed_config: {{ \"@type\": {TYPES}.filters.http.dynamic_forward_proxy.v3.FilterConfig, \
             dns_cache_config: {cache} }} }}"
        );
        let manager =
            format!("          {log}\n          http_filters: [ {filter}, {ROUTER} ]\n{}", web::one_host(&routes));
        listeners.push_str(&web::http_listener(name, port, &manager));
        clusters.push(format!(
            "{{ name: {name}, connect_timeout: 1s, lb_policy: CLUSTER_PROVIDED, cluster_type: {{ name: \
             envoy.clusters.dynamic_forward_proxy, typed_config: {{ \"@type\": \
             {TYPES}.clusters.dynamic_forward_proxy.v3.ClusterConfig, dns_cache_config: {cache} }} }} }}"
        ));
    }
    web::scene(admin, &listeners, &clusters)
}

/// What the calls came to.
fn story(ports: [u16; 4], backend: u16) -> String {
    let mut seen = String::new();
    for (cache, host, more) in CALLS {
        let fill_in = |text: &str| text.replace("PORT", &backend.to_string());
        let mut connection = Connection::open((Ipv4Addr::LOCALHOST, ports[cache]).into()).expect("the proxy listens");
        let response = connection.get(&fill_in(host), "/", &fill_in(more)).expect("a response");
        let body = response.text().replace(&backend.to_string(), "PORT");
        writeln!(seen, "{} {host} {more:?}: {} {body}", CACHES[cache].0, response.status).expect("a string");
    }
    seen
}

/// The log's lines in alphabetical order, without what a resolver says in its own words.
fn logged(log: &Path) -> String {
    let complete = || {
        let text = std::fs::read_to_string(log).ok()?;
        (text.lines().count() >= CALLS.len()).then_some(text)
    };
    let text = wait::poll(PATIENCE, complete).unwrap_or_else(|| std::fs::read_to_string(log).unwrap_or_default());
    let line = |line: &str| match line.split_once("dns_resolution_failure{") {
        Some((before, reason)) if !reason.starts_with("resolve_timeout") && !reason.starts_with("address_denied") => {
            format!("{before}dns_resolution_failure{{…\n")
        }
        _ => line.split(' ').take(3).collect::<Vec<_>>().join(" ") + "\n",
    };
    // Each call has a connection of its own, and workers write their logs one after the other.
    let mut lines: Vec<String> = text.lines().map(line).collect();
    lines.sort();
    lines.concat()
}
