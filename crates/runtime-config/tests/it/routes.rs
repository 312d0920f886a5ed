//! Virtual hosts and routes: golden tables of Envoy's semantics.

use evenkeel_runtime_config::RouteTable;
use evenkeel_runtime_config::route::RouteAction;
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::view::PlainRequest;
use std::sync::Arc;

use crate::input;

/// A route table, brought in the way the proxy does.
fn table(text: &str) -> Arc<RouteTable> {
    let mut builder = input::builder();
    let name = "t";
    builder.set_listener(&input::listener(&rds_listener(name))).unwrap_or_else(|e| panic!("{e}"));
    builder.set_route(&input::route(&format!("name: {name}\n{text}"))).unwrap_or_else(|e| panic!("{e}"));
    builder.build().routes[name].clone()
}

pub fn rds_listener(route: &str) -> String {
    format!(
        "name: l
address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
filter_chains:
- filters:
  - name: hcm
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: s
      rds: {{ route_config_name: {route}, config_source: {{ ads: {{}}, resource_api_version: V3 }} }}
      http_filters:
      - name: router
        typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
"
    )
}

fn hosts(ignore_port: bool, hosts: &[(&str, &[&str])]) -> Arc<RouteTable> {
    let mut text = format!("ignore_port_in_host_matching: {ignore_port}\nvirtual_hosts:\n");
    for (name, domains) in hosts {
        text += &format!("- {{ name: {name}, domains: {domains:?}, routes: [] }}\n");
    }
    table(&text)
}

#[test]
fn virtual_hosts_by_exact_suffix_prefix_any() {
    let table = hosts(
        false,
        &[
            ("exact", &["foo.com", "Foo.com:8080", "[2001:db8::1]:80"]),
            ("suffix", &["*.foo.com"]),
            ("longer", &["*.bar.foo.com"]),
            ("dash", &["*-bar.foo.com"]),
            ("prefix", &["www.*"]),
            ("longer-prefix", &["www.foo.*"]),
            ("any", &["*"]),
        ],
    );
    for (authority, expected) in [
        ("foo.com", "exact"),
        ("FOO.COM", "exact"),
        ("foo.com:8080", "exact"),
        ("foo.com:8081", "any"),
        ("[2001:DB8::1]:80", "exact"),
        ("a.foo.com", "suffix"),
        ("A.Foo.Com", "suffix"),
        ("a.b.foo.com", "suffix"),
        ("a.bar.foo.com", "longer"),
        ("a-bar.foo.com", "dash"),
        // The wildcard stands for at least one character.
        (".foo.com", "any"),
        ("www.foo.com", "suffix"),
        ("www.example.org", "prefix"),
        ("www.foo.org", "longer-prefix"),
        ("www.", "any"),
        ("other.org", "any"),
        ("", "any"),
    ] {
        let found = table.find_virtual_host(authority.as_bytes()).map(|host| &*host.name);
        assert_eq!(found, Some(expected), "{authority:?}");
    }
    let long = format!("{}.foo.com", "a".repeat(300));
    assert_eq!(table.find_virtual_host(long.as_bytes()).map(|host| &*host.name), Some("suffix"));
    assert_eq!(table.find_virtual_host(&[0xff; 10]).map(|host| &*host.name), Some("any"));
}

#[test]
fn the_port_is_left_aside_when_asked() {
    let table = hosts(true, &[("a", &["a.com"]), ("v6", &["[2001:db8::1]"])]);
    for (authority, expected) in [
        ("a.com:80", Some("a")),
        ("a.com", Some("a")),
        ("a.com:http", None),
        ("[2001:db8::1]:80", Some("v6")),
        ("[2001:db8::1]", Some("v6")),
        ("b.com:80", None),
    ] {
        let found = table.find_virtual_host(authority.as_bytes()).map(|host| &*host.name);
        assert_eq!(found, expected, "{authority:?}");
    }
}

/// Which of the routes (named by their position) serves the request.
fn select(table: &RouteTable, request: &PlainRequest, random: u64) -> Option<String> {
    match table.select(request, random) {
        RouteSelection::Route(_, route) => Some(route.name.to_string()),
        _ => None,
    }
}

fn one_host(matches: &[&str]) -> Arc<RouteTable> {
    let mut text = String::from("virtual_hosts:\n- name: h\n  domains: [\"*\"]\n  routes:\n");
    for (index, matched) in matches.iter().enumerate() {
        text += &format!("  - {{ name: \"{index}\", match: {matched}, direct_response: {{ status: 200 }} }}\n");
    }
    table(&text)
}

#[test]
fn paths_leave_query_and_fragment_aside() {
    for (matched, path, expected) in [
        ("{ prefix: / }", "/", true),
        ("{ prefix: /api }", "/api/x", true),
        ("{ prefix: /api }", "/apix", true),
        ("{ prefix: /api }", "/API", false),
        ("{ prefix: /api, case_sensitive: false }", "/API/x", true),
        ("{ prefix: \"/a?b\" }", "/a?b", false),
        ("{ path: /x }", "/x", true),
        ("{ path: /x }", "/x?y=1", true),
        ("{ path: /x }", "/x#frag", true),
        ("{ path: /x }", "/x/", false),
        ("{ path: /x, case_sensitive: false }", "/X", true),
        ("{ path_separated_prefix: /api }", "/api", true),
        ("{ path_separated_prefix: /api }", "/api?q", true),
        ("{ path_separated_prefix: /api }", "/api/v1", true),
        ("{ path_separated_prefix: /api }", "/apiv1", false),
        ("{ safe_regex: { regex: \"/v[0-9]+\" } }", "/v12?z", true),
        ("{ safe_regex: { regex: \"/v[0-9]+\" } }", "/v12/x", false),
        ("{ safe_regex: { regex: \"/a|/b\" } }", "/bb", false),
        ("{ safe_regex: { regex: \"/é.\" } }", "/éx", true),
    ] {
        let found = select(&one_host(&[matched]), &PlainRequest::new("GET", "h", path), 0);
        assert_eq!(found.is_some(), expected, "{matched} {path}");
    }
}

#[test]
fn headers_and_query_parameters() {
    let header = |value: &str| format!("{{ prefix: /, headers: [{{ name: X-A, {value} }}] }}");
    let query = |value: &str| format!("{{ prefix: /, query_parameters: [{{ name: q, {value} }}] }}");
    let plain = PlainRequest::new("GET", "h", "/");
    let with = |value: &str| plain.clone().with_header("x-a", value);
    let at = |path: &str| PlainRequest::new("GET", "h", path);
    for (matched, request, expected) in [
        (header("string_match: { exact: v }"), with("v"), true),
        (header("string_match: { exact: v }"), with("V"), false),
        (header("string_match: { exact: V, ignore_case: true }"), with("v"), true),
        (header("string_match: { prefix: ab }"), with("abc"), true),
        (header("string_match: { suffix: bc }"), with("abc"), true),
        (header("string_match: { contains: B, ignore_case: true }"), with("abc"), true),
        (header("string_match: { safe_regex: { regex: a.c } }"), with("abc"), true),
        (header("string_match: { safe_regex: { regex: a.c } }"), with("abcd"), false),
        (header("string_match: { exact: \"1,2\" }"), with("1").with_header("x-a", "2"), false),
        (header("string_match: { exact: \"2\" }"), with("1").with_header("x-a", "2"), true),
        (header("string_match: { exact: \"2\" }, invert_match: true"), with("1").with_header("x-a", "2"), false),
        (header("string_match: { exact: \"3\" }, invert_match: true"), with("1").with_header("x-a", "2"), true),
        (header("range_match: { start: 2, end: 3 }"), with("1").with_header("x-a", "2"), true),
        (header("present_match: true"), with(""), true),
        (header("present_match: true"), plain.clone(), false),
        (header("present_match: false"), plain.clone(), true),
        (header("invert_match: true"), plain.clone(), true),
        (header("range_match: { start: -10, end: 0 }"), with("-1"), true),
        (header("range_match: { start: -10, end: 0 }"), with("0"), false),
        (header("range_match: { start: 0, end: 10 }"), with("1x"), false),
        (header("string_match: { exact: v }, invert_match: true"), with("w"), true),
        // An absent header matches no value, inverted or not, unless it counts as empty.
        (header("string_match: { exact: v }, invert_match: true"), plain.clone(), false),
        (
            header("string_match: { exact: v }, invert_match: true, treat_missing_header_as_empty: true"),
            plain.clone(),
            true,
        ),
        (header("exact_match: v"), with("v"), true),
        (header("safe_regex_match: { regex: v+ }"), with("vv"), true),
        (query("string_match: { exact: \"1\" }"), at("/?q=1"), true),
        (query("string_match: { exact: \"1\" }"), at("/?p=2&q=1&q=3"), true),
        (query("string_match: { exact: \"3\" }"), at("/?q=1&q=3"), false),
        (query("string_match: { exact: \"\" }"), at("/?q"), true),
        (query("string_match: { exact: \"a b\" }"), at("/?q=a%20b"), false),
        (query("present_match: true"), at("/?q=1"), true),
        (query("present_match: true"), at("/?qq=1"), false),
        ("{ prefix: /, headers: [{ name: Host, string_match: { exact: h } }] }".into(), at("/"), true),
        ("{ prefix: /, headers: [{ name: \":method\", string_match: { exact: POST } }] }".into(), at("/"), false),
        ("{ prefix: /, headers: [{ name: \":authority\", string_match: { exact: h } }] }".into(), at("/"), true),
        ("{ prefix: /, grpc: {} }".into(), plain.clone().with_header("content-type", "application/grpc+proto"), true),
        ("{ prefix: /, grpc: {} }".into(), plain.clone().with_header("content-type", "application/grpc-web"), false),
    ] {
        let found = select(&one_host(&[&matched]), &request, 0);
        assert_eq!(found.is_some(), expected, "{matched} {request:?}");
    }
}

#[test]
fn the_first_route_that_matches_wins_and_fractions_let_the_rest_through() {
    let table = one_host(&[
        "{ prefix: /, runtime_fraction: { default_value: { numerator: 25, denominator: HUNDRED } } }",
        "{ prefix: / }",
    ]);
    let request = PlainRequest::new("GET", "h", "/");
    let first =
        (0..1_000_000u64).step_by(1000).filter(|r| select(&table, &request, *r).as_deref() == Some("0")).count();
    assert_eq!(first, 250);
}

#[test]
fn weights_share_requests_exactly() {
    let table = table(
        "virtual_hosts:
- name: h
  domains: [\"*\"]
  routes:
  - match: { prefix: / }
    route:
      weighted_clusters:
        clusters:
        - { name: v1, weight: 90 }
        - { name: off, weight: 0 }
        - { name: v2, weight: 10 }
",
    );
    let request = PlainRequest::new("GET", "h", "/");
    let RouteSelection::Route(_, route) = table.select(&request, 7) else { panic!("no route") };
    let RouteAction::Forward(action) = &route.action else { panic!("{:?}", route.action) };
    let share = |name: &str| (0..1000).filter(|r| action.pick_cluster(*r).is_some_and(|c| &*c.cluster == name)).count();
    assert_eq!((share("v1"), share("off"), share("v2")), (900, 0, 100));
}

#[test]
fn tls_can_be_required() {
    let table = table(
        "virtual_hosts:
- { name: all, domains: [all], require_tls: ALL, routes: [{ match: { prefix: / }, direct_response: { status: 200 } }] }
- { name: ext, domains: [ext], require_tls: EXTERNAL_ONLY, routes: [{ match: { prefix: / }, direct_response: { status: 200 } }] }
",
    );
    let check = |request: &PlainRequest, redirected: bool| {
        let got = matches!(table.select(request, 0), RouteSelection::TlsRedirect(_));
        assert_eq!(got, redirected, "{request:?}");
    };
    let mut secure = PlainRequest::new("GET", "all", "/");
    check(&secure, true);
    secure.scheme = "https".into();
    check(&secure, false);
    check(&PlainRequest::new("GET", "ext", "/"), true);
    check(&PlainRequest::new("GET", "ext", "/").with_header("x-envoy-internal", "true"), false);
}
