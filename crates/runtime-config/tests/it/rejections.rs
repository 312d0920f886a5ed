//! Invalid resources: each error is reported with its path, and the active configuration stays.

use crate::input;

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const TCP: &str = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
const SNI_CLUSTER: &str = "type.googleapis.com/envoy.extensions.filters.network.sni_cluster.v3.SniCluster";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const ORIGINAL_SRC: &str = "type.googleapis.com/envoy.extensions.filters.listener.original_src.v3.OriginalSrc";
const GRPC_STATS: &str = "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig";
const ADDRESS: &str = "address: { socket_address: { address: 127.0.0.1, port_value: 80 } }";

/// The problems of one resource, one line each.
fn problems(resource: &evenkeel_xds::Any) -> Vec<String> {
    match input::set(&mut input::builder(), resource) {
        Ok(()) => Vec::new(),
        Err(rejection) => rejection.problems.iter().map(ToString::to_string).collect(),
    }
}

fn tcp_filter(cluster: &str) -> String {
    format!("{{ name: tcp, typed_config: {{ \"@type\": {TCP}, stat_prefix: s, {cluster} }} }}")
}

fn listener(rest: &str) -> Vec<String> {
    problems(&input::listener(&format!("name: l\n{ADDRESS}\n{rest}")))
}

fn chain(filters: &str) -> Vec<String> {
    listener(&format!("filter_chains: [{{ filters: [{filters}] }}]"))
}

fn hcm(rest: &str) -> Vec<String> {
    chain(&format!("{{ name: hcm, typed_config: {{ \"@type\": {HCM}, {rest} }} }}"))
}

fn assert_problems(what: &str, got: Vec<String>, expected: &[&str]) {
    let matches = got.len() == expected.len() && got.iter().zip(expected).all(|(got, want)| got.starts_with(want));
    assert!(matches, "{what}\ngot      {got:#?}\nexpected {expected:#?}");
}

#[test]
fn listeners() {
    let ok = tcp_filter("cluster: c");
    let (free, other) = (ADDRESS.replace("80", "0"), ADDRESS.replace("127.0.0.1", "127.0.0.2").replace("80", "0"));
    let twice = format!("filter_chains: [{{ name: a, filters: [{ok}] }}, {{ name: b, filters: [{ok}] }}]");
    for (rest, expected) in [
        ("", vec!["filter_chains: must not be empty"]),
        (
            &format!(
                "filter_chains: [{{ filters: [{ok}] }}]\nadditional_addresses: [ {{ {ADDRESS} }}, {{ address: {{ pipe: {{ path: /p }} }} }} ]"
            ),
            vec![
                "additional_addresses[0].address: 127.0.0.1:80 is there already",
                "additional_addresses[1].address: must be one of TCP",
            ],
        ),
        (
            &format!(
                "filter_chains: [{{ filters: [{ok}] }}]\nadditional_addresses: [ {{ {free} }}, {{ {other} }}, {{ {free} }} ]"
            ),
            vec![
                "additional_addresses[2].address: 127.0.0.1:0 is there already: only one port at an IP address may be any free one",
            ],
        ),
        ("filter_chains: [{ filters: [] }]", vec!["filter_chains[0].filters: must end with"]),
        (
            &format!("filter_chains: [{{ filters: [{}] }}]", tcp_filter("weighted_clusters: { clusters: [] }")),
            vec!["filter_chains[0].filters[0].typed_config.weighted_clusters.clusters: weights must add up"],
        ),
        (
            &format!(
                "filter_chains: [{{ filters: [{}] }}]",
                tcp_filter("cluster: c, tunneling_config: { hostname: \"\" }")
            ),
            vec!["filter_chains[0].filters[0].typed_config.tunneling_config.hostname: "],
        ),
        (
            &format!(
                "filter_chains: [{{ filters: [{}] }}]",
                tcp_filter("cluster: c, tunneling_config: { hostname: \"a:1\", post_path: /x }")
            ),
            vec!["filter_chains[0].filters[0].typed_config.tunneling_config.post_path: is of use only with use_post"],
        ),
        (
            &format!(
                "filter_chains: [{{ filters: [{}] }}]",
                tcp_filter(
                    "cluster: c, tunneling_config: { hostname: \"a:1\", headers_to_add: [{ header: { key: host, value: b } }] }"
                )
            ),
            vec!["filter_chains[0].filters[0].typed_config.tunneling_config.headers_to_add[0].header.key: "],
        ),
        (
            &format!("filter_chains: [{{ filters: [{{ name: sni, typed_config: {{ \"@type\": {SNI_CLUSTER} }} }}] }}]"),
            vec!["filter_chains[0].filters[0].typed_config: cannot be the last network filter"],
        ),
        (&twice, vec!["filter_chains[1].filter_chain_match: matches the same connections as filter_chains[0] (\"a\")"]),
        (
            &format!("filter_chains: [{{ filter_chain_match: {{ server_names: [\"a.*\"] }}, filters: [{ok}] }}]"),
            vec!["filter_chains[0].filter_chain_match.server_names[0]: \"a.*\": a server name is exact or"],
        ),
        (
            &format!("filter_chains: [{{ filter_chain_match: {{ destination_port: 70000 }}, filters: [{ok}] }}]"),
            vec!["filter_chains[0].filter_chain_match.destination_port: 70000 is beyond 65535"],
        ),
        (
            &format!(
                "filter_chains: [{{ filter_chain_match: {{ prefix_ranges: [{{ address_prefix: 10.0.0.0, prefix_len: 33 }}] }}, filters: [{ok}] }}]"
            ),
            vec!["filter_chains[0].filter_chain_match.prefix_ranges[0].prefix_len: 33 is too long for 10.0.0.0"],
        ),
        (
            &format!("enable_mptcp: true\nfilter_chains: [{{ filters: [{ok}], use_proxy_proto: true }}]"),
            vec!["filter_chains[0].use_proxy_proto: not supported", "enable_mptcp: not supported"],
        ),
        (
            &format!(
                "listener_filters: [{{ name: s, typed_config: {{ \"@type\": {ORIGINAL_SRC}, mark: 7, bind_port: true }} }}]\nfilter_chains: [{{ \
                 filters: [{ok}] }}]"
            ),
            vec!["listener_filters[0].typed_config.bind_port: not supported"],
        ),
        (
            &format!(
                "transparent: true\nlistener_filters: [{{ name: t, filter_disabled: {{ any_match: true }}, typed_config: {{ \"@type\": \
                 {ORIGINAL_SRC} }} }}]\nfilter_chains: [{{ filters: [{ok}] }}]"
            ),
            vec!["listener_filters[0].filter_disabled: is not supported on original_src"],
        ),
        (
            &format!("filter_chains: [{{ filters: [{ok}, {ok}] }}]"),
            vec!["filter_chains[0].filters[0].typed_config: must be the last network filter"],
        ),
    ] {
        assert_problems(rest, listener(rest), &expected);
    }
}

#[test]
fn connection_managers() {
    let router = format!("http_filters: [{{ name: r, typed_config: {{ \"@type\": {ROUTER} }} }}]");
    let lua = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua";
    let at = "filter_chains[0].filters[0].typed_config";
    let grpc_stats = |config: &str| {
        format!("{{ name: g, typed_config: {{ \"@type\": type.googleapis.com/{GRPC_STATS}, {config} }} }}")
    };
    let filters = |filters: &[String]| {
        let router = format!("{{ name: r, typed_config: {{ \"@type\": {ROUTER} }} }}");
        format!("stat_prefix: s, route_config: {{}}, http_filters: [{}, {router}]", filters.join(", "))
    };
    for (rest, expected) in [
        (format!("stat_prefix: s, {router}"), vec![format!("{at}: one of rds, route_config is required")]),
        (
            "stat_prefix: s, route_config: {}".into(),
            vec![format!("{at}.http_filters: the last one must be envoy.filters.http.router")],
        ),
        (
            format!("stat_prefix: s, route_config: {{}}, internal_address_config: {{}}, codec_type: HTTP2, {router}"),
            vec![format!("{at}.internal_address_config: not supported")],
        ),
        (
            format!(
                "stat_prefix: s, route_config: {{}}, http_filters: [{{ name: f, typed_config: {{ \"@type\": {lua} }} }}]"
            ),
            vec![format!(
                "{at}.http_filters[0].typed_config: extension envoy.extensions.filters.http.lua.v3.Lua is not supported"
            )],
        ),
        (
            filters(&[grpc_stats(
                "individual_method_stats_allowlist: { services: [{ method_names: [m] }, { name: s }] }",
            )]),
            vec![
                format!(
                    "{at}.http_filters[0].typed_config.individual_method_stats_allowlist.services[0].name: must not be empty"
                ),
                format!(
                    "{at}.http_filters[0].typed_config.individual_method_stats_allowlist.services[1].method_names: must not be empty"
                ),
            ],
        ),
        (
            filters(&[grpc_stats(""), grpc_stats("")]),
            vec![format!("{at}.http_filters: {GRPC_STATS} may be there once")],
        ),
        (
            format!("stat_prefix: s, rds: {{ route_config_name: r }}, {router}"),
            vec![format!("{at}.rds.config_source: is required")],
        ),
    ] {
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        assert_problems(&rest, hcm(&rest), &expected);
    }
}

/// A route's match, the rest of the route, and what is said of it, behind the route's own path.
type BadRoute = (&'static str, &'static str, &'static [&'static str]);

const BAD_ROUTES: [BadRoute; 15] = [
    ("{}", "route: { cluster: c }", &[".match: one of prefix, path"]),
    (
        "{ safe_regex: { regex: \"a(\" } }",
        "route: { cluster: c }",
        &[".match.safe_regex.regex: invalid regular expression: missing closing `)`"],
    ),
    (
        "{ safe_regex: { regex: \"a)|(b\" } }",
        "route: { cluster: c }",
        &[".match.safe_regex.regex: invalid regular expression"],
    ),
    (
        "{ safe_regex: { regex: '\\pL{1000}' } }",
        "route: { cluster: c }",
        &[".match.safe_regex.regex: the regular expression needs more than"],
    ),
    ("{ prefix: / }", "route: {}", &[".route: one of cluster, weighted_clusters"]),
    (
        "{ prefix: / }",
        "route: { weighted_clusters: { clusters: [{ name: a, weight: 0 }] } }",
        &[".route.weighted_clusters.clusters: weights add up to 0"],
    ),
    (
        "{ prefix: / }",
        "route: { weighted_clusters: { clusters: [{ name: a, weight: 4294967295 }, { name: b, weight: 1 }] } }",
        &[".route.weighted_clusters.clusters: weights add up to 4294967296"],
    ),
    (
        "{ prefix: / }",
        "route: { cluster: c, timeout: -1s, retry_policy: { retry_on: \"5xx,never\" } }",
        &[
            ".route.retry_policy.retry_on: \"never\" is no supported retry condition",
            ".route.timeout: must lie between 0 s and",
        ],
    ),
    ("{ prefix: / }", "route: { cluster: c, timeout: -1s }", &[".route.timeout: must lie"]),
    (
        "{ prefix: / }",
        "route: { cluster: c, regex_rewrite: { pattern: { regex: a }, substitution: \"\\\\1\" } }",
        &[".route.regex_rewrite.substitution: \\1 names a group the pattern does not have"],
    ),
    (
        "{ prefix: / }",
        "route: { cluster: c, request_mirror_policies: [ {}, { cluster: c, cluster_header: x }, { cluster: c, runtime_fraction: {} }, { cluster: c, request_headers_mutations: [ {}, { remove: \":path\" }, { \
         remove_on_match: {} } ] } ] }",
        &[
            ".route.request_mirror_policies[0]: one of cluster, cluster_header is required",
            ".route.request_mirror_policies[1].cluster_header: cannot stand beside cluster",
            ".route.request_mirror_policies[2].runtime_fraction.default_value: is required",
            ".route.request_mirror_policies[3].request_headers_mutations[0]: one of remove, append, remove_on_match is required",
            ".route.request_mirror_policies[3].request_headers_mutations[1].remove: \":path\" cannot be edited",
            ".route.request_mirror_policies[3].request_headers_mutations[2].remove_on_match.key_matcher: is required",
        ],
    ),
    (
        "{ prefix: / }",
        "direct_response: { status: 99 }",
        &[".direct_response.status: 99 does not lie between 200 and 599"],
    ),
    (
        "{ prefix: / }",
        "route: { cluster: c }, request_headers_to_add: [{ header: { key: \"a b\", value: x } }, { header: { key: a, value: \"%NO%\" } }]",
        &[
            ".request_headers_to_add[0].header.key: \"a b\" is no header name",
            ".request_headers_to_add[1].header.value: at byte 0: there is no operator %NO%",
        ],
    ),
    (
        "{ prefix: / }",
        "route: { cluster: c }, request_headers_to_add: [{ header: { key: Host, value: x } }], response_headers_to_remove: [\":status\"]",
        &[
            ".request_headers_to_add[0].header.key: \"host\" cannot be edited",
            ".response_headers_to_remove[0]: \":status\" cannot be edited",
        ],
    ),
    ("{ prefix: / }", "name: n", &[": one of route, redirect, direct_response"]),
];

/// A table of one route.
fn table_of(matched: &str, rest: &str) -> String {
    format!("name: r\nvirtual_hosts: [{{ name: h, domains: [\"*\"], routes: [{{ match: {matched}, {rest} }}] }}]")
}

#[test]
fn routes() {
    for (matched, rest, expected) in BAD_ROUTES {
        let text = table_of(matched, rest);
        let expected: Vec<String> =
            expected.iter().map(|problem| format!("virtual_hosts[0].routes[0]{problem}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        assert_problems(&text, problems(&input::route(&text)), &expected);
    }
}

#[test]
fn route_tables() {
    let long = format!("direct_response: {{ status: 200, body: {{ inline_string: {} }} }}", "x".repeat(4097));
    let unknown = format!("validate_clusters: true\n{}", table_of("{ prefix: / }", "route: { cluster: c }"));
    let clashing = "name: r\nvirtual_hosts: [{ name: a, domains: [x, X] }, { name: a, domains: [] }, \
                    { name: c, domains: [\"a*b\", \"*\", \"\"] }, { name: d, domains: [\"*\"] }]";
    for (text, expected) in [
        ("virtual_hosts: []", &["name: must not be empty"][..]),
        (
            clashing,
            &[
                "virtual_hosts[0].domains[1]: \"X\": the domain is listed twice",
                "virtual_hosts[1].name: \"a\" is also the name of virtual_hosts[0]",
                "virtual_hosts[1].domains: must not be empty",
                "virtual_hosts[2].domains[0]: \"a*b\": a domain may have one",
                "virtual_hosts[2].domains[2]: \"\": a domain must not be empty",
                "virtual_hosts[3].domains[0]: \"*\": the domain is listed twice",
            ],
        ),
        (&table_of("{ prefix: / }", &long), &["virtual_hosts[0].routes[0].direct_response.body: 4097 bytes exceed"]),
        (&unknown, &["virtual_hosts[0].routes[0].route.cluster: there is no cluster \"c\""]),
    ] {
        assert_problems(text, problems(&input::route(text)), expected);
    }
}

#[test]
fn clusters_and_endpoints() {
    let http2 = "typed_extension_protocol_options: { envoy.extensions.upstreams.http.v3.HttpProtocolOptions: { \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: { http2_protocol_options: {} } } }";
    for (text, expected) in [
        ("type: STATIC", vec!["name: must not be empty"]),
        ("name: c\ntype: EDS", vec!["eds_cluster_config: is required"]),
        ("name: c\nlb_policy: CLUSTER_PROVIDED", vec!["lb_policy: CLUSTER_PROVIDED goes with type ORIGINAL_DST"]),
        ("name: c\ntype: ORIGINAL_DST", vec!["lb_policy: CLUSTER_PROVIDED goes with type ORIGINAL_DST"]),
        (
            "name: c\nclose_connections_on_host_health_failure: true",
            vec!["close_connections_on_host_health_failure: not supported"],
        ),
        ("name: c\nconnect_timeout: 0s", vec!["connect_timeout: must be longer than 0 s"]),
        (
            "name: c\nlb_policy: LEAST_REQUEST\nleast_request_lb_config: { choice_count: 1 }",
            vec!["least_request_lb_config.choice_count: must be at least 2"],
        ),
        (
            "name: c\ncircuit_breakers: { thresholds: [{ retry_budget: { budget_percent: { value: 101 } } }], per_host_thresholds: [{ max_requests: 1 }] }",
            vec![
                "circuit_breakers.thresholds[0].retry_budget.budget_percent.value: must lie between 0 and 100",
                "circuit_breakers.per_host_thresholds[0]: only max_connections is supported here",
            ],
        ),
        (
            "name: c\noutlier_detection: { interval: 0s, max_ejection_percent: 101, base_ejection_time: 30s, max_ejection_time: 20s }",
            vec![
                "outlier_detection.max_ejection_time: must not be shorter than base_ejection_time",
                "outlier_detection.interval: must be longer than 0 s",
                "outlier_detection.max_ejection_percent: 101 is more than 100",
            ],
        ),
        (
            "name: c\ndns_failure_refresh_rate: { base_interval: 5s, max_interval: 1s }",
            vec!["dns_failure_refresh_rate: must satisfy 1 ms <= base_interval <= max_interval"],
        ),
        (
            &format!(
                "name: c\n{}",
                http2.replace("http2_protocol_options: {}", "http_protocol_options: { accept_http_10: true }")
            ),
            vec![
                "typed_extension_protocol_options[\"envoy.extensions.upstreams.http.v3.HttpProtocolOptions\"].explicit_http_config.http_protocol_options: only enable_trailers and header_key_format with preserve_case are supported towards endpoints",
            ],
        ),
        (
            "name: c\nload_assignment: { endpoints: [{ priority: 1, lb_endpoints: [{ endpoint: { address: { socket_address: { address: not.an.ip, port_value: 1 } } } }] }] }",
            vec![
                "load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address: \"not.an.ip\" is not an IP address",
            ],
        ),
        (
            "name: c\nload_assignment: { endpoints: [{ priority: 1, lb_endpoints: [{ load_balancing_weight: 0, endpoint: {} }] }] }",
            vec!["load_assignment.endpoints[0].lb_endpoints[0].load_balancing_weight: must be at least 1"],
        ),
        (
            "name: c\ntransport_socket: { name: t, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext } }",
            vec![
                "transport_socket.typed_config: envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext does not belong here",
            ],
        ),
        (
            "name: c\ntransport_socket: { name: t, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: { validation_context: { match_typed_subject_alt_names: [{ san_type: DNS, matcher: { exact: a } }] } } } }",
            vec!["transport_socket.typed_config.common_tls_context.validation_context.trusted_ca: is required"],
        ),
        (
            "name: c\ntransport_socket: { name: t, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: { validation_context: { trusted_ca: { inline_string: x }, trust_chain_verification: ACCEPT_UNTRUSTED } } } }",
            vec![
                "transport_socket.typed_config.common_tls_context: ACCEPT_UNTRUSTED in trust_chain_verification is supported only for",
            ],
        ),
        (
            "name: c\ntransport_socket: { name: t, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: { validation_context: { trust_chain_verification: ACCEPT_UNTRUSTED } } } }",
            vec!["transport_socket.typed_config.common_tls_context.validation_context.trusted_ca: is required"],
        ),
    ] {
        assert_problems(text, problems(&input::cluster(text)), &expected);
    }
    assert_problems("", problems(&input::endpoints("endpoints: []")), &["cluster_name: must not be empty"]);
}

#[test]
fn health_checks() {
    for (text, expected) in [
        (
            "name: c\nhealth_checks: [{ timeout: 1s, interval: 0s, unhealthy_threshold: 0, healthy_threshold: 1 }]",
            vec![
                "health_checks[0]: one of http_health_check, tcp_health_check, grpc_health_check is required",
                "health_checks[0].interval: must be longer than 0 s",
                "health_checks[0].unhealthy_threshold: must be at least 1",
            ],
        ),
        (
            "name: c\nhealth_checks: [{ name: a, http_health_check: { path: a, method: CONNECT } }, { name: b, tcp_health_check: { send: { text: \"0x1\" } }, timeout: 1s, interval: 1s, unhealthy_threshold: 1, healthy_threshold: 1 }]",
            vec![
                "health_checks[0].http_health_check.path: must start with / and hold no blanks",
                "health_checks[0].timeout: is required",
                "health_checks[0].interval: is required",
                "health_checks[0].unhealthy_threshold: is required",
                "health_checks[0].healthy_threshold: is required",
                "health_checks[1].tcp_health_check.send.text: must be an even number of hexadecimal digits",
            ],
        ),
        (
            "name: c\nhealth_checks: [{ tcp_health_check: {}, timeout: 1s, interval: 1s, unhealthy_threshold: 1, healthy_threshold: 1 }, { name: a, tcp_health_check: {}, timeout: 1s, interval: 1s, unhealthy_threshold: 1, healthy_threshold: 1 }, { name: a, tcp_health_check: {}, timeout: 1s, interval: 1s, unhealthy_threshold: 1, healthy_threshold: 1 }]",
            vec![
                "health_checks[0].name: is required where there are several",
                "health_checks[2].name: another is called \"a\" already",
            ],
        ),
    ] {
        assert_problems(text, problems(&input::cluster(text)), &expected);
    }
}

#[test]
fn rbac_in_a_network_filter_cannot_look_at_requests() {
    let rbac = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";
    let filter = format!(
        "{{ name: rbac, typed_config: {{ \"@type\": {rbac}, stat_prefix: tcp., rules: {{ action: DENY, policies: {{ p: {{ permissions: [{{ url_path: {{ path: {{ exact: /a }} }} }}], principals: [] }} }} }} }} }}, {}",
        tcp_filter("cluster: c")
    );
    let at = "filter_chains[0].filters[0].typed_config.rules.policies[\"p\"]";
    assert_problems(
        &filter,
        chain(&filter),
        &[
            &format!("{at}.principals: must not be empty"),
            &format!("{at}.permissions[0].url_path: looks at a request; a network filter sees none"),
        ],
    );
}

#[test]
fn a_rejection_is_one_line_for_operators() {
    let cluster = input::cluster(
        "name: \"outbound|80||a\"\nupstream_config: { name: u }\nclose_connections_on_host_health_failure: true",
    );
    let rejection = input::builder().set_cluster(&cluster).unwrap_err();
    assert_eq!(
        rejection.to_string(),
        "Cluster \"outbound|80||a\": close_connections_on_host_health_failure: not supported; upstream_config: not supported"
    );
    let garbage = evenkeel_xds::Any { value: vec![0xff; 7], ..cluster };
    let rejection = input::builder().set_cluster(&garbage).unwrap_err().to_string();
    assert!(rejection.starts_with("Cluster \"\": malformed envoy.config.cluster.v3.Cluster: "), "{rejection}");
    assert!(!rejection.contains('\n'));
}

#[test]
fn a_rejected_resource_leaves_the_one_before_it() {
    let mut builder = input::builder();
    builder.set_cluster(&input::cluster("name: c\nalt_stat_name: first")).unwrap();
    let before = builder.build();
    builder
        .set_cluster(&input::cluster("name: c\nalt_stat_name: second\nclose_connections_on_host_health_failure: true"))
        .unwrap_err();
    let after = builder.build();
    assert!(std::sync::Arc::ptr_eq(&before, &after));
    assert_eq!(&*after.clusters["c"].stat_name, "first");
}
