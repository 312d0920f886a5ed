//! Limits of requests without a service: what passes, what is refused and how, what responses and statistics say. Evenkeel and Envoy do the
//! same.

use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::{Connection, free_ports};

use super::proxy::Program;
use super::web::{self, ROUTER};

/// Requests in order: what they are, with the headers.
const REQUESTS: &[(&str, &str)] = &[
    ("/p", "x-user: a\r\n"),
    ("/p", "x-user: a\r\n"),
    ("/p", "x-user: b\r\n"),
    ("/p", "x-user: b\r\n"),
    ("/p", ""),
    ("/p", "content-type: application/grpc\r\nte: trailers\r\n"),
    ("/shadow", ""),
    ("/shadow", ""),
    ("/off", ""),
    ("/off", ""),
    ("/status", ""),
    ("/status", ""),
    ("/status", "content-type: application/grpc\r\nte: trailers\r\n"),
    ("/match", "x-kind: slow\r\n"),
    ("/match", "x-kind: slow\r\n"),
    ("/match", "x-kind: fast\r\n"),
    ("/match", "x-kind: fast\r\n"),
    ("/of-route?user=a", ""),
    ("/of-route?user=a", ""),
    ("/of-route?user=b", ""),
    ("/of-host", ""),
    ("/of-host", ""),
    ("/both", ""),
    ("/both", ""),
    ("/ignores-host", ""),
    ("/ignores-host", ""),
    ("/stage", ""),
    ("/stage", ""),
];

const TYPE: &str = "\"@type\": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
const ALL: &str =
    "filter_enabled: { default_value: { numerator: 100 } }, filter_enforced: { default_value: { numerator: 100 } }";

fn bucket(tokens: u32) -> String {
    format!("token_bucket: {{ max_tokens: {tokens}, tokens_per_fill: {tokens}, fill_interval: 3600s }}")
}

fn bootstrap(port: u16, admin: u16) -> String {
    let filter = format!(
        "{{ name: rl, typed_config: {{ {TYPE}, stat_prefix: mine, {}, {ALL}, \
         response_headers_to_add: [ {{ header: {{ key: x-local, value: \"%REQ(:PATH)%\" }} }} ], enable_x_ratelimit_headers: DRAFT_VERSION_03, \
         rate_limits: [ {{ actions: [ {{ request_headers: {{ header_name: x-user, descriptor_key: user }} }} ] }} ], \
         descriptors: [ {{ entries: [ {{ key: user, value: a }} ], {} }} ] }} }}",
        bucket(2),
        bucket(1)
    );
    let route = |path: &str, config: &str| {
        format!(
            "              - {{ match: {{ path: {path} }}, direct_response: {{ status: 200, body: {{ inline_string: ok }} }}, typed_per_filter_config: \
             {{ rl: {{ {TYPE}, {config} }} }} }}\n"
        )
    };
    let forwarding = |path: &str, limits: &str, config: &str| {
        format!(
            "              - {{ match: {{ path: {path} }}, route: {{ cluster: self, prefix_rewrite: /served, {limits} }}, typed_per_filter_config: \
             {{ rl: {{ {TYPE}, {config} }} }} }}\n"
        )
    };
    // A descriptor's own bucket beside a large one.
    let own = |prefix: &str, key: &str, value: &str, more: &str| {
        format!(
            "stat_prefix: {prefix}, {}, {ALL}, {more} descriptors: [ {{ entries: [ {{ key: {key}, value: {value} }} ], {} }} ]",
            bucket(100),
            bucket(1)
        )
    };
    let descriptor = "rate_limits: [ { actions: [ { generic_key: { descriptor_value: x } }, { header_value_match: { descriptor_value: slow, \
                      headers: [ { name: x-kind, string_match: { exact: slow } } ] } } ] } ], descriptors: [ { entries: [ { key: generic_key, \
                      value: x }, { key: header_match, value: slow } ], ";
    let routes = [
        route(
            "/shadow",
            &format!("stat_prefix: shadow, {}, filter_enabled: {{ default_value: {{ numerator: 100 }} }}", bucket(1)),
        ),
        route("/off", &format!("stat_prefix: none, {}", bucket(1))),
        route(
            "/status",
            &format!(
                "stat_prefix: status, {}, {ALL}, status: {{ code: 503 }}, rate_limited_as_resource_exhausted: true",
                bucket(1)
            ),
        ),
        route("/match", &format!("stat_prefix: match, {}, {ALL}, {descriptor}{} }} ]", bucket(100), bucket(1))),
        route("/served", &format!("stat_prefix: none, {}", bucket(1))),
        forwarding(
            "/of-route",
            "rate_limits: [ { actions: [ { query_parameters: { query_parameter_name: user, descriptor_key: user } } ] } ]",
            &own("of-route", "user", "a", ""),
        ),
        forwarding("/of-host", "", &own("of-host", "masked_remote_address", "127.0.0.0/8", "")),
        forwarding(
            "/both",
            "rate_limits: [ { actions: [ { generic_key: { descriptor_value: other } } ] } ]",
            &own("both", "masked_remote_address", "127.0.0.0/8", "vh_rate_limits: INCLUDE,"),
        ),
        forwarding(
            "/ignores-host",
            "",
            &own("ignores-host", "masked_remote_address", "127.0.0.0/8", "vh_rate_limits: IGNORE,"),
        ),
        forwarding(
            "/stage",
            "rate_limits: [ { stage: 2, actions: [ { source_cluster: {} }, { query_parameter_value_match: { descriptor_value: none, \
             expect_match: false, query_parameters: [ { name: user, present_match: true } ] } } ] } ]",
            &own("stage", "source_cluster", "mine", "stage: 2,")
                .replace("value: mine }", "value: mine }, { key: query_match, value: none }"),
        ),
        "              - { match: { prefix: / }, direct_response: { status: 200, body: { inline_string: ok } } }\n"
            .to_owned(),
    ];
    let manager = format!("          http_filters: [ {filter}, {ROUTER} ]\n{}", web::one_host(&routes.concat()));
    let limits = "domains: [\"*\"]\n              rate_limits: [ { actions: [ { masked_remote_address: { v4_prefix_mask_len: 8 } } ] } ]";
    let manager = manager.replace("domains: [\"*\"]", limits);
    let clusters = [web::cluster("self", &web::endpoint(port, ""), "")];
    format!(
        "node: {{ id: me, cluster: mine }}\n{}",
        web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
    )
}

/// The responses of a program, and its statistics.
fn story(program: Program) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [port, admin] = free_ports::<2>();
    std::fs::write(&file, bootstrap(port, admin)).expect("a writable folder");
    let _process = web::start(program, &file, admin, port);
    let get = |port: u16, path: &str, headers: &str| {
        // The admin port refuses names of other machines.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Connection::open(address).and_then(|mut client| client.get("localhost", path, headers)).expect("an answer")
    };
    let mut shown_lines = Vec::new();
    for (path, headers) in REQUESTS {
        let response = get(port, path, headers);
        let shown = [
            "x-local",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "grpc-status",
            "grpc-message",
        ];
        let headers: Vec<_> =
            shown.iter().filter_map(|name| Some(format!("{name}: {}", response.header(name)?))).collect();
        let body = String::from_utf8_lossy(&response.body).into_owned();
        shown_lines.push(format!("{path} {} {headers:?} {body}", response.status));
    }
    let stats = get(admin, "/stats", "connection: close\r\n");
    let stats = String::from_utf8_lossy(&stats.body).into_owned();
    let mut lines: Vec<_> =
        stats.lines().filter(|line| line.contains("http_local_rate_limit.")).map(str::to_owned).collect();
    // Envoy has those of routes before any request, and this one never counts.
    lines.retain(|line| !line.starts_with("none."));
    lines.sort();
    shown_lines.extend(lines);
    shown_lines
}

#[test]
fn evenkeel_and_envoy_limit_alike() {
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(story);
    assert!(envoy.iter().any(|line| line.contains("429")), "{envoy:#?}");
    assert_eq!(evenkeel, envoy);
}
