//! Conditions of filters (`ExtensionWithMatcher`), the data that policies leave for logs, and the deprecated `cors` of
//! routes, compared with Envoy.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, free_ports, wait};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

/// How long a log may take to be complete.
const PATIENCE: Duration = Duration::from_secs(5);

/// The filters of which each route has one: a name, and its matcher.
const FILTERS: &[(&str, &str)] = &[
    (
        "list",
        "matcher_list: { matchers: [ { predicate: IS(x-a, exact: one), on_match: SKIP }, { predicate: IS(x-a, { prefix: t, ignore_case: true }), on_match: SKIP }, { predicate: IS(x-a, safe_regex: { google_re2: {}, regex: \"[a-c]+\" }), on_match: SKIP }, { predicate: IS(x-a, suffix: z), on_match: SKIP }, { predicate: IS(x-a, contains: \"-\"), on_match: SKIP } ] }",
    ),
    (
        "others",
        "matcher_list: { matchers: [ { predicate: IS(x-a, exact: one), on_match: { matcher: NONE } } ] }, on_no_match: SKIP",
    ),
    (
        "logic",
        "matcher_list: { matchers: [ { predicate: { and_matcher: { predicate: [ IS(x-a, exact: one), { or_matcher: { predicate: [ IS(x-b, exact: one), { not_matcher: IS(x-b, exact: two) } ] } } ] } }, on_match: SKIP } ] }",
    ),
    ("exact", "matcher_tree: { input: HEADER(x-a), exact_match_map: { map: { one: SKIP, two: { matcher: NONE } } } }"),
    (
        "exact-else",
        "matcher_tree: { input: HEADER(x-a), exact_match_map: { map: { two: { matcher: NONE } } } }, on_no_match: SKIP",
    ),
    (
        "prefix",
        "matcher_tree: { input: HEADER(x-a), prefix_match_map: { map: { t: SKIP, tw: { matcher: NONE }, o: { matcher: { matcher_list: { matchers: [ { predicate: IS(x-b, exact: one), on_match: SKIP } ] } } } } } }",
    ),
    ("pseudo", "matcher_tree: { input: HEADER(\":path\"), prefix_match_map: { map: { \"/pseudo?\": SKIP } } }"),
    ("never", "matcher_list: { matchers: [ { predicate: IS(x-never, exact: one), on_match: SKIP } ] }"),
];

/// Header lines.
const HEADERS: &[&str] = &[
    "",
    "x-a: one\r\n",
    "x-a: two\r\n",
    "x-a: Three\r\n",
    "x-a: abc\r\n",
    "x-a: zz\r\n",
    "x-a: a-b\r\n",
    "x-a: one\r\nx-b: one\r\n",
    "x-a: one\r\nx-b: two\r\n",
    "x-a: one\r\nx-a: two\r\n",
    "x-a: \r\n",
    "origin: http://a.test\r\n",
    "origin: http://b.test\r\n",
    "origin: http://c.test\r\n",
];

/// Paths besides those of the filters.
const PATHS: &[&str] = &["/pseudo?a", "/of-route", "/of-route-too", "/denied", "/cors", "/cors-both", "/cors-host"];

#[test]
fn evenkeel_and_envoy_ask_the_same_filters() {
    let backend = Backend::start(|_| Reply::text("backend"));
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    std::fs::write(&file, bootstrap(backend.address().port(), port, admin, &log)).expect("a writable folder");
    let paths: Vec<String> =
        FILTERS.iter().map(|(name, _)| format!("/{name}")).chain(PATHS.iter().map(|path| (*path).to_owned())).collect();
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        let rows = paths.iter().flat_map(|path| HEADERS.iter().map(move |headers| (path, headers)));
        let seen: String = rows.map(|(path, headers)| ask(port, path, headers)).collect();
        let lines = || std::fs::read_to_string(&log).unwrap_or_default();
        let complete = || Some(lines()).filter(|text| text.lines().count() == paths.len() * HEADERS.len());
        let logged = wait::poll(PATIENCE, complete).unwrap_or_else(lines);
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        drop(process);
        std::fs::remove_file(&log).expect("a log was written");
        (seen, logged.lines().map(|line| format!("{line}\n")).collect::<BTreeSet<_>>())
    };
    let (envoy, envoys_log) = run(Program::Envoy);
    let (evenkeel, log) = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
    let lines = |log: &BTreeSet<String>| log.iter().map(String::as_str).collect::<String>();
    let difference = first_difference(&lines(&envoys_log), &lines(&log));
    assert!(difference.is_none(), "logs: - Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
    for (name, _) in FILTERS.iter().filter(|(name, _)| *name != "never") {
        let of = |status: &str| envoy.contains(&format!("/{name} ")) && envoy.contains(status);
        assert!(of(": 200 ") && of(": 599 "), "{name} tells nothing apart");
    }
    assert!(envoys_log.iter().any(|line| line.contains("\"enforced_effective_policy_id\":\"r\"")), "{envoys_log:?}");
}

/// Status and what matters to other origins.
fn ask(port: u16, path: &str, headers: &str) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let answer =
        Connection::open(address).and_then(|mut client| client.get("x.test", path, headers)).expect("an answer");
    let fields: Vec<_> = answer.headers.iter().filter(|(name, _)| name.starts_with("access-control-")).collect();
    format!("{path} {headers:?}: {} {fields:?}\n", answer.status)
}

/// What the matchers' words stand for.
fn spelled(matcher: &str) -> String {
    let header = |name: &str| {
        format!(
            "{{ name: i, typed_config: {{ \"@type\": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: {name} }} }}"
        )
    };
    let mut text = matcher.replace("SKIP", "{ action: { name: s, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.common.matcher.action.v3.SkipFilter } } }");
    // A matcher that leads nowhere.
    text = text.replace("NONE", "{ matcher_list: { matchers: [ { predicate: IS(x-never, exact: one), on_match: { action: { name: s, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.common.matcher.action.v3.SkipFilter } } } } ] } }");
    while let Some(at) = text.find("HEADER(") {
        let end = at + text[at..].find(')').expect("it is closed");
        text = format!("{}{}{}", &text[..at], header(&text[at + "HEADER(".len()..end]), &text[end + 1..]);
    }
    while let Some(at) = text.find("IS(") {
        let end = at + text[at..].find(')').expect("it is closed");
        let (name, value) = text[at + "IS(".len()..end].split_once(", ").expect("a name and a value");
        let value = if value.starts_with('{') { value.to_owned() } else { format!("{{ {value} }}") };
        let predicate = format!("{{ single_predicate: {{ input: {}, value_match: {value} }} }}", header(name));
        text = format!("{}{predicate}{}", &text[..at], &text[end + 1..]);
    }
    text
}

fn bootstrap(backend: u16, port: u16, admin: u16, log: &Path) -> String {
    const ON: &str = "{ \"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, config: {} }";
    const WITH_MATCHER: &str = "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher";
    let abort = "{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault, abort: { http_status: 599, percentage: { numerator: 100 } } }";
    let filters: String = FILTERS
        .iter()
        .map(|(name, matcher)| {
            let matcher = spelled(matcher);
            format!("          - {{ name: {name}, disabled: true, typed_config: {{ \"@type\": {WITH_MATCHER}, extension_config: {{ name: f, typed_config: {abort} }}, xds_matcher: {{ {matcher} }} }} }}\n")
        })
        .collect();
    let to = |path: &str, action: &str, says: &str| {
        format!(
            "              - {{ match: {{ path: {path} }}, route: {{ cluster: a{action} }}, typed_per_filter_config: {{ {says} }} }}\n"
        )
    };
    let per_route = spelled("matcher_list: { matchers: [ { predicate: IS(x-a, exact: two), on_match: SKIP } ] }");
    let per_route = format!("{{ \"@type\": {WITH_MATCHER}PerRoute, xds_matcher: {{ {per_route} }} }}");
    let cors = "cors: { allow_origin_string_match: [ { exact: \"http://a.test\" } ], allow_credentials: true, max_age: \"60\" }";
    let policy = "{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy, allow_origin_string_match: [ { exact: \"http://c.test\" } ] }";
    let routes = [
        FILTERS.iter().map(|(name, _)| to(&format!("/{name}"), "", &format!("{name}: {ON}"))).collect::<String>(),
        to("/of-route", "", &format!("never: {per_route}")),
        to("/of-route-too", "", &format!("list: {per_route}, exact: {ON}")),
        to("/denied", "", ""),
        to("/cors", &format!(", {cors}"), ""),
        to("/cors-both", &format!(", {cors}"), &format!("c: {policy}")),
        to("/cors-host", "", ""),
    ];
    let hosts = web::one_host(&routes.concat()).replace(
        "              domains:",
        "              cors: { allow_origin_string_match: [ { exact: \"http://b.test\" } ], expose_headers: x-host }\n              domains:",
    );
    let rbac = |config: &str| {
        format!("{{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC, {config} }}")
    };
    let denies = rbac(
        "rules_stat_prefix: own_, shadow_rules_stat_prefix: dry_, rules: { action: DENY, policies: { p: { permissions: [ { url_path: { path: { exact: /denied } } } ], principals: [ { any: true } ] } } }, shadow_rules: { action: ALLOW, policies: { q: { permissions: [ { any: true } ], principals: [ { any: true } ] } } }",
    );
    let allows = rbac(
        "rules: { action: ALLOW, policies: { r: { permissions: [ { any: true } ], principals: [ { any: true } ] } } }",
    );
    let log = web::access_log(log, &["%REQ(:PATH)% %RESPONSE_CODE% %DYNAMIC_METADATA(envoy.filters.http.rbac)%"]);
    let manager = format!(
        "          {log}
          http_filters:
          - {{ name: c, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors }} }}
          - {{ name: d, typed_config: {denies} }}
          - {{ name: e, typed_config: {allows} }}
{filters}          - {}
{hosts}",
        web::ROUTER
    );
    web::scene(admin, &web::http_listener("l", port, &manager), &[cluster("a", &endpoint(backend, ""), "")])
}
