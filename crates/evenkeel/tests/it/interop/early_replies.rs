//! Replies to requests that no request filter has seen: response filters see them in Evenkeel as in Envoy.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Connection, free_ports};

use super::proxy::Program;
use super::web;

/// Requests that are refused for what they are, and one that is not.
fn requests() -> Vec<(&'static str, String)> {
    let of = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n");
    let host = "Host: x.test\r\n";
    let many: String = (0..9).map(|number| format!("a{number}: b\r\n")).collect();
    vec![
        ("none", of("GET / HTTP/1.1", host)),
        ("no route", of("GET / HTTP/1.1", "Host: y.test\r\n")),
        ("escaped slash", of("GET /a%2fb HTTP/1.1", host)),
        ("no host", of("GET / HTTP/1.1", "")),
        ("underscore", of("GET / HTTP/1.1", &format!("{host}a_b: c\r\n"))),
        ("no slash", of("GET ab HTTP/1.1", host)),
        ("method", of("G\u{1}T / HTTP/1.1", host)),
        ("many fields", of("GET / HTTP/1.1", &format!("{host}{many}"))),
        ("large field", of("GET / HTTP/1.1", &format!("{host}a: {}\r\n", "b".repeat(3000)))),
        ("HTTP/1.0", of("GET / HTTP/1.0", host)),
        ("content length", of("POST / HTTP/1.1", &format!("{host}Content-Length: x\r\n"))),
    ]
}

#[test]
fn response_filters_see_replies_to_requests_that_were_refused_before_them() {
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(port, admin)).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        let mut seen = String::new();
        for (name, request) in requests() {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let mut client = Connection::open(address).expect("the listener accepts");
            client.send(&request).expect("an open connection");
            let answer = client.response().expect("an answer");
            let is_filtered = answer.headers.iter().any(|(name, value)| name == "x-seen" && value == "local");
            _ = writeln!(seen, "{name}: {} filtered: {is_filtered}", answer.status);
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy);
    let evenkeel = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
    assert!(!envoy.contains("filtered: false"), "{envoy}");
}

fn bootstrap(port: u16, admin: u16) -> String {
    format!(
        r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}
static_resources:
  listeners:
  - name: web
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: web
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          normalize_path: true
          path_with_escaped_slashes_action: REJECT_REQUEST
          common_http_protocol_options: {{headers_with_underscores_action: REJECT_REQUEST, max_headers_count: 5}}
          max_request_headers_kb: 1
          route_config: {{virtual_hosts: [{{name: x, domains: [x.test], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200, body: {{inline_string: found}}}}}}]}}]}}
          http_filters:
          - name: mutation
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
              mutations: {{response_mutations: [{{append: {{header: {{key: x-seen, value: local}}}}}}]}}
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
"#
    )
}
