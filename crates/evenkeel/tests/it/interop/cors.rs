//! Requests from other origins: Evenkeel sends browsers the same headers as Envoy, also in local replies.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, free_port, free_ports};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

const PATHS: &[&str] = &[
    "/host",
    "/route",
    "/regex",
    "/any",
    "/star-methods",
    "/credentials",
    "/no-credentials",
    "/private",
    "/answers-all",
    "/shadow",
    "/off",
    "/never",
    "/denied",
    "/nobody",
    "/direct",
    "/redirect",
    "/switched-off",
    "/weighted",
    "/own-headers",
    "/nowhere",
];

const ORIGINS: &[&str] = &["", "Origin: http://a.test\r\n", "Origin: https://b.test\r\n", "Origin: \r\n"];

const REQUESTS: &[(&str, &str)] = &[
    ("GET", ""),
    ("OPTIONS", ""),
    ("OPTIONS", "Access-Control-Request-Method: PUT\r\n"),
    (
        "OPTIONS",
        "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a,x-b\r\nAccess-Control-Request-Private-Network: true\r\n",
    ),
];

#[test]
fn evenkeel_and_envoy_say_the_same_to_other_origins() {
    let backend = Backend::start(|request| {
        let own = vec![("access-control-allow-origin".to_owned(), "http://own".to_owned())];
        if request.target.starts_with("/own-headers") {
            Reply::Fixed(200, own, b"own".to_vec())
        } else {
            Reply::text("backend")
        }
    });
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(backend.address().port(), port, admin)).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        let mut seen = String::new();
        for path in PATHS {
            for (origin, (method, headers)) in
                ORIGINS.iter().flat_map(|origin| REQUESTS.iter().map(move |row| (origin, row)))
            {
                seen += &ask(port, &format!("{method} {path} HTTP/1.1\r\nHost: x.test\r\n{origin}{headers}\r\n"));
            }
        }
        seen += &statistics(admin);
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy);
    let evenkeel = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
    for part in
        ["access-control-allow-origin: http://a.test", "access-control-allow-private-network: true", "origin_invalid"]
    {
        assert!(envoy.contains(part), "{part} is not in {envoy}");
    }
}

/// Status, fields that matter, and body of the answer.
fn ask(port: u16, request: &str) -> String {
    let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("the listener accepts");
    client.send(request).expect("an open connection");
    let answer = client.response().expect("an answer");
    let wanted = |name: &str| name.starts_with("access-control-") || name == "content-length" || name == "location";
    let fields: BTreeSet<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let asked = request.replace("\r\n", " | ");
    format!("{asked}\n    {} {} {fields:?}\n", answer.status, answer.text())
}

fn statistics(admin: u16) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let text =
        Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("an answer").text();
    let lines: BTreeSet<_> = text.lines().filter(|line| line.contains(".cors.")).collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

fn bootstrap(backend: u16, port: u16, admin: u16) -> String {
    let message = "\"@type\": type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy";
    let says = |policy: &str| format!("typed_per_filter_config: {{ c: {{ {message}, {policy} }} }}");
    let route = |path: &str, policy: &str| {
        let policy = if policy.is_empty() { String::new() } else { format!(", {}", says(policy)) };
        format!("              - {{ match: {{ path: {path} }}, route: {{ cluster: a }}{policy} }}\n")
    };
    let to = |path: &str, action: &str, policy: &str| {
        format!("              - {{ match: {{ path: {path} }}, {action}, {} }}\n", says(policy))
    };
    let a = "allow_origin_string_match: [ { exact: \"http://a.test\" } ]";
    let share = |field: &str, numerator: u32| format!("{field}: {{ default_value: {{ numerator: {numerator} }} }}");
    let everything =
        format!("{a}, allow_methods: \"GET, PUT\", allow_headers: x-a, expose_headers: x-e, max_age: \"600\"");
    let routes = [
        route("/host", ""),
        route("/route", &everything),
        route("/regex", "allow_origin_string_match: [ { prefix: \"http://c\" }, { safe_regex: { regex: \"https?://[ab].test\" } } ]"),
        route("/any", "allow_origin_string_match: [ { exact: \"*\" } ]"),
        route("/star-methods", &format!("{a}, allow_methods: \"*\", allow_headers: \"*\"")),
        route("/credentials", &format!("{a}, allow_credentials: true")),
        route("/no-credentials", &format!("{a}, allow_credentials: false")),
        route("/private", &format!("{a}, allow_private_network_access: true")),
        route("/answers-all", &format!("{everything}, forward_not_matching_preflights: false")),
        route("/shadow", &format!("{a}, {}, {}", share("filter_enabled", 0), share("shadow_enabled", 100))),
        route("/off", &format!("{a}, {}", share("filter_enabled", 0))),
        route("/never", "allow_methods: GET"),
        route("/denied", &everything),
        to("/nobody", "route: { cluster: nobody }", &everything),
        to("/direct", "direct_response: { status: 200, body: { inline_string: direct } }", &everything),
        to("/redirect", "redirect: { path_redirect: /elsewhere }", &everything),
        "              - { match: { path: /switched-off }, route: { cluster: a }, typed_per_filter_config: { c: { \"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true } } }\n".to_owned(),
        format!("              - {{ match: {{ path: /weighted }}, route: {{ weighted_clusters: {{ clusters: [ {{ name: a, weight: 1, {} }} ] }} }}, {} }}\n", says("expose_headers: x-cluster"), says(&everything)),
        route("/own-headers", &everything),
    ];
    // The virtual host allows b, and exposes a header where a route does not say.
    let host = says(
        "allow_origin_string_match: [ { exact: \"https://b.test\" } ], expose_headers: x-host, allow_credentials: true",
    );
    let rules = "rules: { action: DENY, policies: { p: { permissions: [ { url_path: { path: { exact: /denied } } } ], principals: [ { any: true } ] } } }";
    let one_host = web::one_host(&routes.concat())
        .replace("              domains:", &format!("              {host}\n              domains:"));
    let manager = format!(
        "          http_filters:
          - {{ name: c, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors }} }}
          - {{ name: d, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC, {rules} }} }}
          - {}
{one_host}",
        web::ROUTER
    );
    let clusters = [cluster("a", &endpoint(backend, ""), ""), cluster("nobody", &endpoint(free_port(), ""), "")];
    web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
}
