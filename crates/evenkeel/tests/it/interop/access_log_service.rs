//! Entries of access log services: those of Evenkeel and Envoy are compared field by field, except for times, ports and ids.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::wait::{self, PATIENCE};
use evenkeel_testkit::{Backend, Connection, Identity, Reply, TcpEcho, TestCa, free_port, free_ports};
use evenkeel_xds::Schema;
use evenkeel_xds::json::to_json;
use evenkeel_xds::pb::envoy::service::accesslog::v3::stream_access_logs_message::LogEntries;
use serde_json::{Value, json};

use super::collector::{Collector, Stream};
use super::proxy::Program;
use super::web::{self, HTTP2, cluster, endpoint};

const GRPC: &str = "type.googleapis.com/envoy.extensions.access_loggers.grpc.v3";
const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
const GRPC_STATS: &str = "type.googleapis.com/envoy.extensions.filters.http.grpc_stats.v3.FilterConfig";
/// Without the header that says how long the upstream took: its length would differ.
const ROUTER: &str = "{ name: r, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router, \
                      suppress_envoy_headers: true } }";
const INSPECTOR: &str = "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
const TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";

/// Sizes on the wire and the session's id, which Evenkeel does not know; and a finger print that neither was told to take.
const UNKNOWN: [&str; 9] = [
    "upstream_header_bytes_sent",
    "upstream_header_bytes_received",
    "downstream_header_bytes_sent",
    "downstream_header_bytes_received",
    "downstream_wire_bytes_sent",
    "downstream_wire_bytes_received",
    "upstream_wire_bytes_sent",
    "upstream_wire_bytes_received",
    "tls_session_id",
];

/// Where a request goes, the first line of it, more of its head, and its body.
const REQUESTS: [(&str, &str, &str, &str); 9] = [
    ("http", "GET /ok", "user-agent: ua\r\nreferer: http://r\r\nx-more: 1\r\nx-more: 2\r\n", ""),
    ("http", "POST /echo", "content-length: 4\r\nx-forwarded-for: 10.1.1.1\r\n", "body"),
    ("http", "GET /direct", "x-request-id: 11111111-1111-4111-8111-111111111111\r\n", ""),
    ("http", "GET /missing?a=b", "", ""),
    ("http", "GET /down", "", ""),
    ("http", "GET /rewritten/x", "", ""),
    ("http", "POST /grpc.S/M", "content-type: application/grpc\r\ncontent-length: 5\r\n", "\0\0\0\0\0"),
    ("http", "OPTIONS /ok?options", "", ""),
    ("tls", "GET /ok?tls", "", ""),
];
/// Entries of the table, those of failures twice, and of four TCP connections, one of which two logs have.
const ENTRIES: usize = REQUESTS.len() + 3 + 5;

struct Scene {
    folder: tempfile::TempDir,
    ca: TestCa,
    client: Identity,
    backend: Backend,
    echo: TcpEcho,
    collector: Collector,
    ports: [u16; 6],
}

#[test]
fn evenkeel_and_envoy_report_alike() {
    let scene = Scene::new();
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| scene.run(program));
    let difference = first_difference(&envoy, &evenkeel);
    assert!(
        difference.is_none(),
        "- Envoy, + Evenkeel\n{}\n\nEnvoy's:\n{envoy}\n\nEvenkeel's:\n{evenkeel}",
        difference.unwrap_or_default()
    );
    for part in [
        "no_route_found",
        "upstream_connection_failure",
        "spiffe://mesh/web",
        "filter_state_objects",
        "shadow_engine_result",
        "TcpConnectionEnd",
        "x-team",
    ] {
        assert!(envoy.contains(part), "{part} is not in {envoy}");
    }
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ca = TestCa::new();
        ca.for_server("spiffe://mesh/server", "web.test").write(folder.path(), "server");
        std::fs::write(folder.path().join("root.pem"), ca.root_pem()).expect("a writable folder");
        let client = ca.for_spiffe("spiffe://mesh/web");
        let backend = Backend::start(|_| {
            let headers = [("x-answer", "1"), ("x-answer", "2"), ("x-plain", "p")];
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Reply::Fixed(200, headers, b"backend".to_vec())
        });
        let (echo, collector) = (TcpEcho::start(), Collector::start());
        Self { folder, ca, client, backend, echo, collector, ports: free_ports() }
    }

    /// Everything that the service has learned, in a fixed order.
    fn run(&self, program: Program) -> String {
        let [admin, http, tls, tcp, tcp_down, tcp_tls] = self.ports;
        let file = self.folder.path().join("bootstrap.yaml");
        std::fs::write(&file, self.bootstrap()).expect("a writable folder");
        self.collector.forget();
        let process = web::start(program, &file, admin, admin);
        for (listener, line, more, body) in REQUESTS {
            let mut client = match listener {
                "tls" => self.open_tls(tls),
                _ => open(http),
            };
            let request = format!("{line} HTTP/1.1\r\nhost: web.test\r\n{more}\r\n{body}");
            client.send(request).expect("it is open");
            client.response().unwrap_or_else(|error| panic!("{program:?} {line}: {error}"));
        }
        for mut client in [open(tcp), self.open_tls(tcp_tls)] {
            client.send("ping").expect("it is open");
            assert_eq!(client.read_exact(4).expect("an echo"), b"ping");
        }
        for _ in 0..2 {
            // Its end is the upstream's failure.
            let mut client = open(tcp_down);
            _ = client.send("ping").and_then(|()| client.read_exact(1));
        }
        // Where one is missing, the comparison says which.
        _ = wait::poll(PATIENCE, || (self.collector.entries() >= ENTRIES).then_some(()));
        drop(process);
        self.story(&self.collector.streams())
    }

    fn open_tls(&self, port: u16) -> Connection {
        let client = TlsClient {
            server_name: "web.test",
            root_pem: self.ca.root_pem(),
            identity: Some(&self.client),
            ..TlsClient::default()
        };
        client.open((Ipv4Addr::LOCALHOST, port).into()).expect("a handshake")
    }

    fn story(&self, streams: &[Stream]) -> String {
        let schema = Schema::acquire();
        let mut entries = BTreeMap::<String, Vec<Value>>::new();
        for stream in streams {
            let identifier = stream.logs[0].identifier.as_ref().expect("the first message of a stream says who");
            let node = identifier.node.as_ref().expect("a node");
            assert_eq!((&*node.id, &*node.cluster), ("me", "us"));
            assert!(stream.logs[1..].iter().all(|message| message.identifier.is_none()), "later ones need not");
            let said: Vec<_> = stream.metadata.iter().filter(|(name, _)| name.starts_with("x-team")).collect();
            let all = entries.entry(identifier.log_name.clone()).or_default();
            for message in &stream.logs {
                let jsons: Vec<Value> = match &message.log_entries {
                    Some(LogEntries::HttpLogs(logs)) => {
                        logs.log_entry.iter().map(|entry| to_json(&schema, entry)).collect()
                    }
                    Some(LogEntries::TcpLogs(logs)) => {
                        logs.log_entry.iter().map(|entry| to_json(&schema, entry)).collect()
                    }
                    None => Vec::new(),
                };
                all.extend(jsons.into_iter().map(|json| json!({ "call": said, "entry": self.plain("", &json) })));
            }
        }
        let text = |entry: &Value| serde_json::to_string_pretty(entry).expect("JSON");
        let mut story = String::new();
        for (name, entries) in entries {
            let mut entries: Vec<_> = entries.iter().map(text).collect();
            entries.sort_by_key(|entry| {
                let path = entry.lines().find(|line| line.trim_start().starts_with("\"path\"")).unwrap_or_default();
                (path.to_owned(), entry.clone())
            });
            entries.iter().for_each(|entry| story += &format!("{name}: {entry}\n"));
        }
        story
    }

    /// Fields in order, without what differs between any two runs.
    fn plain(&self, name: &str, json: &Value) -> Value {
        match json {
            Value::Object(fields) => {
                let fields: BTreeMap<_, _> =
                    fields.iter().filter(|(name, _)| !UNKNOWN.contains(&name.as_str())).collect();
                fields.into_iter().map(|(name, field)| (name.clone(), self.plain(name, field))).collect()
            }
            Value::Array(items) => items.iter().map(|item| self.plain("", item)).collect(),
            Value::String(_) if name.ends_with("_time") || name.starts_with("time_to") || name == "duration" => {
                "a time".into()
            }
            Value::String(_) if matches!(name, "stream_id" | "request_id" | "policy") => "an id".into(),
            Value::Number(port) if name == "port_value" => {
                let known = self
                    .ports
                    .iter()
                    .chain([&self.backend.address().port()])
                    .any(|known| port.as_u64() == Some((*known).into()));
                if known { json.clone() } else { "a port".into() }
            }
            other => other.clone(),
        }
    }

    fn bootstrap(&self) -> String {
        let [admin, http, tls, tcp, tcp_down, tcp_tls] = self.ports;
        let main = log(
            "http",
            "main",
            "",
            "additional_request_headers_to_log: [ X-More, x-none ], additional_response_headers_to_log: [ x-answer ]",
        );
        let failures = log(
            "http",
            "failures",
            "filter: { status_code_filter: { comparison: { op: GE, value: { default_value: 400, runtime_key: k } } } }, ",
            "",
        );
        let manager = format!(
            "          access_log: [ {main}, {failures} ]\n          http_filters: [ {} {} {ROUTER} ]\n{}",
            format_args!("{{ name: envoy.filters.http.grpc_stats, typed_config: {{ \"@type\": {GRPC_STATS}, emit_filter_state: true }} }},"),
            format_args!(
                "{{ name: envoy.filters.http.rbac, typed_config: {{ \"@type\": {RBAC}, shadow_rules: {{ policies: {{ p: {{ permissions: [ {{ any: true }} ], principals: [ {{ any: true }} ] }} }} }} }} }},"
            ),
            web::one_host(
                "              - { match: { prefix: /direct }, direct_response: { status: 418, body: { inline_string: tea } } }
              - { name: down, match: { prefix: /down }, route: { cluster: down } }
              - { name: rewritten, match: { prefix: /rewritten }, route: { cluster: a, prefix_rewrite: /new } }
              - { name: all, match: { safe_regex: { regex: '/(ok|echo|grpc.S/M)?' } }, route: { cluster: a } }
"
            )
        );
        let filter = web::http_filter(&manager);
        let tcp_log = |name| format!("access_log: [ {} ]", log("tcp", name, "", ""));
        let of_listener = format!("    {}\n", tcp_log("listener"));
        let mut listeners = web::listener("http", http, &filter);
        listeners += &secure(&web::listener("tls", tls, &filter), self.folder.path());
        let plain = web::tcp_listener("tcp", tcp, &format!("cluster: echo, {}", tcp_log("tcp")));
        listeners += &plain.replacen("    filter_chains:\n", &format!("{of_listener}    filter_chains:\n"), 1);
        listeners += &web::tcp_listener("tcp-down", tcp_down, &format!("cluster: down, {}", tcp_log("tcp-down")));
        let with_tls = web::tcp_listener("tcp-tls", tcp_tls, &format!("cluster: echo, {}", tcp_log("tcp-tls")));
        listeners += &secure(&with_tls, self.folder.path());
        let clusters = [
            cluster("a", &endpoint(self.backend.address().port(), ""), ""),
            cluster("echo", &endpoint(self.echo.address().port(), ""), ""),
            cluster("down", &endpoint(free_port(), ""), ""),
            cluster("als", &endpoint(self.collector.port, ""), HTTP2),
        ];
        format!("node: {{ id: me, cluster: us }}\n{}", web::scene(admin, &listeners, &clusters))
    }
}

/// An access log of kind `http` or `tcp`.
fn log(kind: &str, name: &str, filter: &str, more: &str) -> String {
    let message = if kind == "http" { "HttpGrpcAccessLogConfig" } else { "TcpGrpcAccessLogConfig" };
    format!(
        "{{ name: {name}, {filter}typed_config: {{ \"@type\": {GRPC}.{message}, common_config: {{ log_name: {name}, \
         transport_api_version: V3, buffer_flush_interval: 0.05s, \
         grpc_service: {{ envoy_grpc: {{ cluster_name: als }}, initial_metadata: [ {{ key: x-team, value: blue }} ] }}, \
         filter_state_objects_to_log: [ envoy.filters.http.grpc_stats, none ], custom_tags: [ {{ tag: t, literal: {{ value: v }} }}, \
         {{ tag: more, request_header: {{ name: x-more, default_value: none }} }} ] }}, {more} }} }}"
    )
}

/// The same listener behind TLS with the client's certificate.
fn secure(listener: &str, folder: &Path) -> String {
    let folder = folder.display();
    let socket = format!(
        "    - transport_socket: {{ name: tls, typed_config: {{ \"@type\": {TLS}, require_client_certificate: true, common_tls_context: {{ \
         tls_certificates: [ {{ certificate_chain: {{ filename: {folder}/server-cert.pem }}, private_key: {{ filename: {folder}/server-key.pem }} }} ], \
         validation_context: {{ trusted_ca: {{ filename: {folder}/root.pem }} }} }} }} }}\n      filters:\n"
    );
    let inspector = format!(
        "    listener_filters: [ {{ name: i, typed_config: {{ \"@type\": {INSPECTOR} }} }} ]\n    filter_chains:\n"
    );
    listener.replacen("    filter_chains:\n", &inspector, 1).replacen("    - filters:\n", &socket, 1)
}

fn open(port: u16) -> Connection {
    Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("it accepts")
}
