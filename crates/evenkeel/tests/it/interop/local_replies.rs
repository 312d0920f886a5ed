//! `local_reply_config`: Evenkeel changes its local replies as Envoy does, and leaves responses of upstreams unchanged.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, free_port, free_ports, wait};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

/// How long a log may take to be complete.
const PATIENCE: Duration = Duration::from_secs(5);

/// Method, path and header lines.
const REQUESTS: &[(&str, &str, &str)] = &[
    ("GET", "/up", ""),
    ("GET", "/up503", ""),
    ("GET", "/missing", ""),
    ("HEAD", "/missing", ""),
    ("GET", "/missing", "x-json: 1\r\n"),
    ("GET", "/direct", ""),
    ("GET", "/direct", "x-json: 1\r\n"),
    ("GET", "/typed", ""),
    ("GET", "/empty", ""),
    ("GET", "/redirect", ""),
    ("GET", "/nobody", ""),
    ("GET", "/nobody", "x-json: 1\r\n"),
    ("GET", "/no-host", ""),
    ("GET", "/no-cluster", ""),
    ("GET", "/denied", ""),
    ("GET", "/denied", "x-json: 1\r\n"),
    ("GET", "/denied", "x-and: 1\r\n"),
    ("GET", "/late", ""),
    ("GET", "/cors", "origin: http://a.test\r\n"),
    ("OPTIONS", "/cors", "origin: http://a.test\r\naccess-control-request-method: PUT\r\n"),
    ("POST", "/nobody", "content-type: application/grpc\r\ncontent-length: 0\r\n"),
    ("POST", "/denied", "content-type: application/grpc\r\ncontent-length: 0\r\n"),
    ("POST", "/denied", "content-type: application/grpc\r\ncontent-length: 0\r\nx-json: 1\r\n"),
    ("POST", "/missing", "content-type: application/grpc\r\ncontent-length: 0\r\n"),
    ("POST", "/grpc-own", "content-type: application/grpc\r\ncontent-length: 0\r\n"),
    // Before any filter.
    ("GET", "/../..", ""),
    ("GET", "/up", "bad header: 1\r\n"),
    ("GET", "/up", "transfer-encoding: strange\r\n"),
];

#[test]
fn evenkeel_and_envoy_rewrite_their_own_answers() {
    let backend = Backend::start(|request| match request.target.as_str() {
        "/up503" => Reply::Fixed(503, Vec::new(), b"the backend's".to_vec()),
        "/late" => Reply::After(Duration::from_secs(2), Box::new(Reply::text("late"))),
        _ => Reply::text("backend"),
    });
    let [port, plain, admin] = free_ports::<3>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    let bootstrap = bootstrap(backend.address().port(), [port, plain], admin, &log);
    std::fs::write(&file, bootstrap).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        process.wait_for_port((Ipv4Addr::LOCALHOST, plain).into());
        let mut seen = String::new();
        for port in [port, plain] {
            for request in REQUESTS {
                seen += &ask(port, request);
            }
        }
        let lines = || std::fs::read_to_string(&log).unwrap_or_default();
        let complete = || Some(lines()).filter(|text| text.lines().count() == 2 * REQUESTS.len());
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
    for part in [
        "x-mapped: 404 as NR",
        "content-type: text/html; charset=utf-8",
        "content-type: application/problem+json",
        r#"{\"body\":\"direct\",\"code\":200}\n"#,
        " 451 ",
        "grpc-message",
    ] {
        assert!(envoy.contains(part), "{part} is not in\n{envoy}");
    }
}

/// Status, fields and body of the answer.
fn ask(port: u16, (method, path, headers): &(&str, &str, &str)) -> String {
    let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("the listener accepts");
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: x.test\r\n{headers}\r\n")).expect("an open connection");
    let answer = if *method == "HEAD" { client.head_response() } else { client.response() };
    let answer = answer.expect("an answer");
    let fields: BTreeSet<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| !["date", "server", "x-envoy-upstream-service-time"].contains(&name.as_str()))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    format!("{method} {path} {headers:?}\n    {} {:?} {fields:?}\n", answer.status, answer.text())
}

const MAPPERS: &str = "            mappers:
            - filter: { and_filter: { filters: [ { header_filter: { header: { name: x-and } } }, { status_code_filter: { comparison: { op: GE, value: { default_value: 400, runtime_key: a } } } } ] } }
              status_code: 418
              body: { inline_string: \"both hold\" }
              headers_to_add: [ { header: { key: content-type, value: text/tea }, append_action: OVERWRITE_IF_EXISTS_OR_ADD } ]
            - filter: { header_filter: { header: { name: x-json, string_match: { exact: \"1\" } } } }
              body_format_override: { json_format: { code: \"%RESPONSE_CODE%\", body: \"%LOCAL_REPLY_BODY%\" }, content_type: application/problem+json }
            - filter: { status_code_filter: { comparison: { op: EQ, value: { default_value: 404, runtime_key: b } } } }
              headers_to_add:
              - { header: { key: x-mapped, value: \"%RESPONSE_CODE% as %RESPONSE_FLAGS%\" } }
              - { header: { key: x-level, value: mapper }, append_action: APPEND_IF_EXISTS_OR_ADD }
              body: { inline_string: \"nothing here\" }
              status_code: 451
            - filter: { response_flag_filter: { flags: [ UH ] } }
              status_code: 502
              body_format_override: { text_format_source: { inline_string: \"%LOCAL_REPLY_BODY% of %REQ(:PATH)%, %RESP(x-none)%\" } }
            - filter: { or_filter: { filters: [ { status_code_filter: { comparison: { op: EQ, value: { default_value: 301, runtime_key: c } } } }, { duration_filter: { comparison: { op: GE, value: { default_value: 100000, runtime_key: d } } } } ] } }
              status_code: 302
            - filter: { grpc_status_filter: { statuses: [ PERMISSION_DENIED ] } }
              headers_to_add: [ { header: { key: x-grpc, value: denied } } ]
";

const FORMAT: &str = "            body_format: { text_format_source: { inline_string: \"<%LOCAL_REPLY_BODY%>%RESPONSE_CODE%\\n\" }, content_type: \"text/html; charset=utf-8\" }\n";

fn bootstrap(backend: u16, [port, plain]: [u16; 2], admin: u16, log: &Path) -> String {
    let route = |path: &str, rest: &str| format!("              - {{ match: {{ path: {path} }}, {rest} }}\n");
    let cors = "typed_per_filter_config: { c: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy, allow_origin_string_match: [ { exact: \"http://a.test\" } ] } }";
    let edit = |name: &str, value: &str| {
        format!("response_headers_to_add: [ {{ header: {{ key: {name}, value: {value} }} }} ]")
    };
    let routes = [
        route("/up", "route: { cluster: a }"),
        route("/up503", "route: { cluster: a }"),
        route(
            "/direct",
            &format!(
                "direct_response: {{ status: 200, body: {{ inline_string: direct }} }}, {}",
                edit("x-level", "route")
            ),
        ),
        route(
            "/typed",
            &format!(
                "direct_response: {{ status: 200, body: {{ inline_string: typed }} }}, {}",
                edit("content-type", "text/own")
            ),
        ),
        route("/empty", "direct_response: { status: 202 }"),
        route("/redirect", &format!("redirect: {{ path_redirect: /elsewhere }}, {}", edit("x-level", "route"))),
        route("/nobody", &format!("route: {{ cluster: nobody }}, {}", edit("x-level", "route"))),
        route("/no-host", "route: { cluster: hostless }"),
        route("/no-cluster", "route: { cluster: none }"),
        route("/denied", "route: { cluster: a }"),
        route("/late", "route: { cluster: a, timeout: 0.2s }"),
        route("/cors", &format!("route: {{ cluster: nobody }}, {cors}")),
        route(
            "/grpc-own",
            &format!(
                "direct_response: {{ status: 503, body: {{ inline_string: own }} }}, {}",
                edit("grpc-status", "\"3\"")
            ),
        ),
    ];
    let hosts = web::one_host(&routes.concat())
        .replace("            name: r\n", "            name: r\n            validate_clusters: false\n");
    let rules = "rules: { action: DENY, policies: { p: { permissions: [ { url_path: { path: { exact: /denied } } } ], principals: [ { any: true } ] } } }";
    let log = web::access_log(
        log,
        &[
            "%REQ(:METHOD)% %REQ(:PATH)% %REQ(x-json)% %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_SENT% %RESP(content-type)%",
        ],
    );
    let manager = |local: &str| {
        format!(
            "          {log}
          normalize_path: true
          local_reply_config:
{local}          http_filters:
          - {{ name: c, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors }} }}
          - {{ name: d, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC, {rules} }} }}
          - {}
{hosts}",
            web::ROUTER
        )
    };
    let listeners = [
        web::http_listener("l", port, &manager(&format!("{MAPPERS}{FORMAT}"))),
        web::http_listener("m", plain, &manager(MAPPERS)),
    ];
    let clusters = [
        cluster("a", &endpoint(backend, ""), ""),
        cluster("nobody", &endpoint(free_port(), ""), ""),
        cluster("hostless", "", ""),
    ];
    web::scene(admin, &listeners.concat(), &clusters)
}
