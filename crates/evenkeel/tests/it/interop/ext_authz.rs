//! External authorization: beside Envoy, with a server that is built on Envoy's published API.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{AuthzServer, Backend, Connection, free_port, free_ports, wait};
use serde_json::Value;
use tokio::net::TcpStream;

use super::ext_authz_rows::{How, Row, rows};
use super::proxy::Program;
use super::web::{self, HTTP2, ROUTER, cluster, endpoint};

/// How long the log may take to be complete.
const PATIENCE: Duration = Duration::from_secs(5);
const EXT_AUTHZ: &str = "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz";
const PER_ROUTE: &str = "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute";

const GRPC: &str = "transport_api_version: V3, grpc_service: { envoy_grpc: { cluster_name: authz }, timeout: 0.4s }";
/// Headers of the call, in format strings.
const FORMATTED: &str = "{ key: x-plain, value: \"100%%\" }, { key: x-protocol, value: \"%PROTOCOL%\" }, \
                         { key: x-host, value: \"%REQ(:AUTHORITY)%\" }, { key: x-mode, value: \"%REQ(authz-mode)%-%REQ(none)%\" }, \
                         { key: x-client, value: \"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%\" }, \
                         { key: x-cluster, value: \"%UPSTREAM_CLUSTER%\" }, { key: x-route, value: \"[%ROUTE_NAME%]\" }, \
                         { key: x-code, value: \"%RESPONSE_CODE%\" }, { key: x-flags, value: \"%RESPONSE_FLAGS%\" }, \
                         { key: x-short, value: \"%REQ(x-ext-authz):3%\" }, { key: x-bytes, value: \"%BYTES_RECEIVED%\" }";
const ALLOWED: &str =
    "patterns: [ { exact: x-ext-authz }, { prefix: authz- }, { prefix: x-pass-, ignore_case: true } ]";

/// A listener's name, and its filter's configuration.
fn filters() -> Vec<(&'static str, String)> {
    let http = |more: &str, cluster: &str| {
        format!(
            "http_service: {{ server_uri: {{ uri: http://a, cluster: {cluster}, timeout: 0.4s }}, \
             authorization_request: {{ headers_to_add: [ {{ key: x-from-proxy, value: \"yes\" }} ] }}, {more} }}, \
             allowed_headers: {{ {ALLOWED} }}, disallowed_headers: {{ patterns: [ {{ exact: x-pass-secret }} ] }}"
        )
    };
    let lists = "path_prefix: /check, authorization_response: { \
                 allowed_upstream_headers: { patterns: [ { prefix: x-up- } ] }, \
                 allowed_upstream_headers_to_append: { patterns: [ { prefix: x-add- } ] }, \
                 allowed_client_headers: { patterns: [ { prefix: x-client- } ] }, \
                 allowed_client_headers_on_success: { patterns: [ { exact: x-client-ok } ] }, \
                 dynamic_metadata_from_headers: { patterns: [ { prefix: x-meta- } ] } }";
    let when = "filter_enabled_metadata: { filter: envoy.filters.http.rbac, \
                path: [ { key: istio_ext_authz_shadow_effective_policy_id } ], \
                value: { string_match: { prefix: istio-ext-authz } } }, \
                metadata_context_namespaces: [ envoy.filters.http.rbac, none ]";
    vec![
        ("grpc", format!("{GRPC}, emit_filter_state_stats: true, filter_metadata: {{ team: blue, level: 2 }}")),
        (
            "strict",
            format!(
                "{GRPC}, validate_mutations: true, status_on_error: {{ code: 503 }}, clear_route_cache: true, \
                 with_request_body: {{ max_request_bytes: 10, pack_as_bytes: true }}, \
                 decoder_header_mutation_rules: {{ disallow_expression: {{ regex: \"x-secret.*\" }} }}"
            ),
        ),
        ("open", format!("{GRPC}, failure_mode_allow: true, failure_mode_allow_header_add: true")),
        ("gone", GRPC.replace("authz", "gone")),
        ("gone-open", format!("{}, failure_mode_allow: true", GRPC.replace("authz", "gone"))),
        ("missing", GRPC.replace("authz", "missing")),
        ("http", http(lists, "authz-http")),
        ("http-all", http("path_prefix: \"\"", "authz-http")),
        ("http-open", format!("{}, failure_mode_allow: true", http("path_prefix: \"\"", "authz-http"))),
        ("http-override", http("path_override: /fixed", "authz-http")),
        (
            "http-partial",
            format!(
                "{}, with_request_body: {{ max_request_bytes: 10, allow_partial_message: true }}",
                http("path_prefix: \"\"", "authz-http")
            ),
        ),
        ("partial", format!("{GRPC}, with_request_body: {{ max_request_bytes: 10, allow_partial_message: true }}")),
        ("large", format!("{}, with_request_body: {{ max_request_bytes: 8000000 }}", GRPC.replace("0.4s", "10s"))),
        ("metadata", format!("{GRPC}, {when}")),
        ("denies", format!("{GRPC}, {when}, deny_at_disable: {{ runtime_key: k, default_value: true }}")),
        ("never", format!("{GRPC}, filter_enabled: {{ default_value: {{ numerator: 0 }} }}")),
        (
            "formatted",
            format!(
                "transport_api_version: V3, grpc_service: {{ envoy_grpc: {{ cluster_name: authz }}, timeout: 0.4s, \
                 initial_metadata: [ {FORMATTED} ] }}"
            ),
        ),
        (
            "told",
            format!(
                "{GRPC}, stat_prefix: waf, encode_raw_headers: true, \
                 allowed_headers: {{ patterns: [ {{ prefix: x- }}, {{ prefix: authz- }} ] }}, \
                 disallowed_headers: {{ patterns: [ {{ exact: x-not }}, {{ exact: x-request-id }} ] }}, \
                 route_metadata_context_namespaces: [ team ], enable_dynamic_metadata_ingestion: false, \
                 max_denied_response_body_bytes: 10, include_peer_certificate: true, include_tls_session: true"
            ),
        ),
    ]
}

#[test]
fn evenkeel_and_envoy_ask_and_obey_alike() {
    let mut server = AuthzServer::start();
    let backends = [Backend::echo("a"), Backend::echo("b")];
    let ports: [u16; 19] = free_ports();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    let upstreams = [backends[0].address().port(), backends[1].address().port(), server.grpc(), server.http()];
    std::fs::write(&file, bootstrap(upstreams, &ports, &log)).expect("a writable folder");
    let rows = rows();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    let mut run = |program: Program| {
        let mut process = web::start(program, &file, ports[18], ports[0]);
        let mut seen: Vec<String> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let port = ports[filters().iter().position(|(name, _)| *name == row.port).expect("a listener")];
            let mut story = format!("{index} {} {} {} {:?}\n", row.port, row.method, row.path, row.headers);
            story += &ask(port, index, row);
            seen.push(story);
        }
        // A call that is given up comes to an end beside those that follow.
        let (given_up, asked): (Vec<_>, Vec<_>) =
            server.all_questions().into_iter().partition(|line| line.starts_with("cancelled"));
        // Whether the one after a connection that the server has broken arrives is a matter of chance.
        let asked = asked.iter().filter(|line| !(line.starts_with("http") && line.contains("authz-mode")));
        seen.extend(asked.chain(&given_up).map(|line| format!("asked: {}", question(line))));
        let complete = |log: &String| log.lines().count() >= rows.len();
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let lines = wait::poll(PATIENCE, || Some(read()).filter(complete)).unwrap_or_else(read);
        let mut lines: Vec<_> = lines.lines().map(str::to_owned).collect();
        lines.sort_by_key(|line| line.split(' ').next().and_then(|row| row.parse::<usize>().ok()));
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen.extend(lines);
        seen.push(counted(ports[18]));
        drop(process);
        std::fs::remove_file(&log).expect("a log was written");
        seen
    };
    let envoy = run(Program::Envoy);
    let evenkeel = run(Program::Evenkeel);
    let pairs = envoy.iter().zip(&evenkeel);
    let differences: Vec<_> = pairs
        .filter_map(|(envoy, evenkeel)| {
            let title = envoy.lines().next().unwrap_or_default();
            first_difference(envoy, evenkeel).map(|difference| format!("{title}\n{difference}"))
        })
        .collect();
    let (count, all) = (differences.len(), envoy.len());
    assert!(differences.is_empty(), "{count} of {all} differ; - Envoy, + Evenkeel\n{}", differences.join("\n"));
    assert_eq!(envoy.len(), evenkeel.len());
    for part in ["401", "x-envoy-auth-partial-body", "ext_authz_denied", "UAEX", "http.http.ext_authz.waf."] {
        assert!(envoy.iter().any(|story| story.contains(part)), "{part} is not in Envoy's");
    }
}

/// A call about a request that nobody waits for any more is given up, long before its time is up.
#[test]
fn a_client_that_leaves_ends_the_call() {
    for program in [Program::Envoy, Program::Evenkeel] {
        let mut server = AuthzServer::start();
        let ports: [u16; 19] = free_ports();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
        let upstreams = [free_port(), free_port(), server.grpc(), server.http()];
        let patient = bootstrap(upstreams, &ports, &log).replace("timeout: 0.4s", "timeout: 600s");
        std::fs::write(&file, patient).expect("a writable folder");
        let mut process = web::start(program, &file, ports[18], ports[0]);
        for name in ["grpc", "http"] {
            let port = ports[filters().iter().position(|(own, _)| *own == name).expect("a listener")];
            let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("the listener accepts");
            let head = "GET / HTTP/1.1\r\nHost: x.test\r\nx-ext-authz: allow\r\nauthz-mode: hang\r\n\r\n";
            client.send(head).expect("an open connection");
            assert!(server.wait_for("hang").is_some(), "{program:?} does not ask over {name}");
            drop(client);
            assert!(server.wait_for("cancelled").is_some(), "{program:?} does not give up over {name}");
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    }
}

/// What came back, chance left out.
fn ask(port: u16, index: usize, row: &Row) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let row_header = index.to_string();
    if row.how == How::Http2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
        return runtime.block_on(ask_http2(address, &row_header, row)).unwrap_or_else(|error| format!("  {error}\n"));
    }
    let mut client = Connection::open(address).expect("the listener accepts");
    let mut head = format!("{} {} HTTP/1.1\r\nHost: x.test\r\nrow: {row_header}\r\n", row.method, row.path);
    row.headers.iter().for_each(|(name, value)| _ = write!(head, "{name}: {value}\r\n"));
    let body = match row.how {
        How::Chunks(bytes) => {
            head += "transfer-encoding: chunked\r\n";
            let pieces = row.body.as_bytes().chunks(bytes);
            pieces
                .map(|piece| format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)))
                .collect::<String>()
                + "0\r\n\r\n"
        }
        _ => {
            if !row.body.is_empty() || row.method == "POST" {
                head += &format!("content-length: {}\r\n", row.body.len());
            }
            row.body.to_owned()
        }
    };
    client.send(head + "\r\n" + &body).expect("an open connection");
    let answer = if row.method == "HEAD" { client.head_response() } else { client.response() };
    let Ok(answer) = answer else { return "  no answer\n".into() };
    let fields = answer.headers.iter().map(|(name, value)| (name.to_lowercase(), value.clone()));
    told(answer.status, fields, &answer.text())
}

fn told(status: u16, fields: impl Iterator<Item = (String, String)>, body: &str) -> String {
    // The echo is as long as what it tells.
    let dull = ["date", "x-envoy-upstream-service-time", "content-length"];
    let mut fields: Vec<_> = fields
        .filter(|(name, _)| !dull.contains(&name.as_str()))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    fields.sort();
    // Evenkeel announces the length of a body that it has collected.
    let different = ["x-request-id", "x-envoy-expected", "content-length", "transfer-encoding"];
    let chance = |line: &&str| !different.iter().any(|start| line.starts_with(start));
    let mut story = format!("  {status} {fields:?}\n");
    body.lines().filter(chance).for_each(|line| _ = writeln!(story, "  | {line}"));
    story
}

async fn ask_http2(address: SocketAddr, index: &str, row: &Row) -> Result<String, h2::Error> {
    let socket = TcpStream::connect(address).await.expect("the listener accepts");
    let (mut sender, connection) = h2::client::handshake(socket).await?;
    let driving = tokio::spawn(connection);
    let mut request = http::Request::builder().method(row.method).uri(format!("http://x.test{}", row.path));
    for (name, value) in row.headers.iter().chain([&("row", index)]) {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("a request");
    let (response, mut stream) = sender.send_request(request, row.body.is_empty())?;
    if !row.body.is_empty() {
        stream.send_data(Bytes::from_static(row.body.as_bytes()), true)?;
    }
    let response = response.await?;
    let status = response.status().as_u16();
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let fields: Vec<_> = response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let mut body = response.into_body();
    let mut received = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        received.extend_from_slice(&piece);
    }
    drop(sender);
    driving.abort();
    Ok(told(status, fields.into_iter(), &String::from_utf8_lossy(&received)))
}

/// A question without what is different each time.
pub fn question(line: &str) -> String {
    let Some((kind, rest)) = line.split_once(' ') else { return line.to_owned() };
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    let Some(Ok(mut value)) = values.next() else { return line.to_owned() };
    let metadata = rest.get(values.byte_offset()..).unwrap_or_default();
    for path in [
        "/attributes/request/time",
        "/attributes/request/http/id",
        "/attributes/request/http/size",
        "/attributes/source/address/socketAddress/portValue",
    ] {
        if let Some(place) = value.pointer_mut(path) {
            *place = Value::from("some");
        }
    }
    for path in ["/attributes/request/http/headers", "/headers"] {
        if let Some(Value::Object(headers)) = value.pointer_mut(path) {
            headers.retain(|name, _| !["x-request-id", "authz-answer", "content-length"].contains(&name.as_str()));
            // The asking proxy's own address: Envoy names one of the machine's interfaces, Evenkeel the one that it calls from.
            headers.entry("x-forwarded-for").and_modify(|value| *value = Value::from("some"));
        }
    }
    // Evenkeel announces how long its message is.
    let same = |word: &&str| !word.starts_with("x-request-id") && !word.starts_with("content-length");
    let own = |word| if str::starts_with(word, "x-forwarded-for") { "x-forwarded-for=some" } else { word };
    let metadata: Vec<_> = metadata.split(' ').filter(same).map(own).collect();
    format!("{kind} {value} {}", metadata.join(" "))
}

fn counted(admin: u16) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let text =
        Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("an answer").text();
    let wanted = |line: &&str| {
        let of_cluster = line.starts_with("cluster.a.upstream_rq_") && line.chars().any(|c| c.is_ascii_digit());
        let codes = of_cluster && ["_2", "_3", "_4", "_5", "completed"].iter().any(|part| line.contains(part));
        (line.contains("ext_authz") || codes) && !line.ends_with(": 0") && !super::is_own(line)
    };
    let lines: BTreeSet<_> = text.lines().filter(wanted).collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

fn bootstrap(upstreams: [u16; 4], ports: &[u16; 19], log: &Path) -> String {
    let [a, b, grpc, http] = upstreams;
    let log = web::access_log(
        log,
        &["%REQ(ROW)% %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% \
           %DYNAMIC_METADATA(envoy.filters.http.ext_authz:who)% %DYNAMIC_METADATA(envoy.filters.http.ext_authz:level)% \
           %DYNAMIC_METADATA(envoy.filters.http.ext_authz:tags)% %DYNAMIC_METADATA(envoy.filters.http.ext_authz:why)% \
           %DYNAMIC_METADATA(envoy.filters.http.ext_authz:x-meta-who)% %FILTER_STATE(a)%"],
    );
    let per_route = |config: &str| format!("typed_per_filter_config: {{ a: {{ \"@type\": {PER_ROUTE}, {config} }} }}");
    let by_http = "check_settings: { http_service: { server_uri: { uri: http://a, cluster: authz-http, timeout: 0.4s }, \
                   authorization_request: { allowed_headers: { patterns: [ { exact: x-ext-authz } ] } } } }";
    let route = |prefix: &str, more: &str| {
        format!("              - {{ match: {{ prefix: {prefix} }}, route: {{ cluster: a }}{more} }}\n")
    };
    let routes = [
        "              - { match: { prefix: /, headers: [ { name: x-to, string_match: { exact: b } } ] }, route: { cluster: b } }\n".to_owned(),
        "              - { match: { prefix: /direct }, direct_response: { status: 200, body: { inline_string: direct } } }\n".to_owned(),
        route("/off", &format!(", {}", per_route("disabled: true"))),
        route("/extended", &format!(", {}", per_route("check_settings: { context_extensions: { a: route, b: two } }"))),
        route("/no-body", &format!(", {}", per_route("check_settings: { disable_request_body_buffering: true }"))),
        route("/more-body", &format!(", {}", per_route("check_settings: { with_request_body: { max_request_bytes: 20 } }"))),
        route("/by-http", &format!(", {}", per_route(by_http))),
        route("/route-metadata", ", metadata: { filter_metadata: { team: { color: blue }, other: { a: b } } }"),
        "              - { match: { prefix: /nowhere-but-here }, route: { cluster: b } }\n".to_owned(),
        "              - { match: { safe_regex: { regex: \"/(no[^w].*|[^n].*)?\" } }, route: { cluster: a } }\n".to_owned(),
    ]
    .concat();
    let shadow = "{ name: s, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC, \
                  shadow_rules_stat_prefix: istio_ext_authz_, shadow_rules: { action: DENY, policies: { \
                  \"istio-ext-authz-ns[a]-policy[p]-rule[0]\": { permissions: [ { url_path: { path: { prefix: /judged } } } ], \
                  principals: [ { any: true } ] } } } } }, ";
    let listeners: String = filters()
        .iter()
        .zip(ports)
        .map(|((name, config), port)| {
            let before = if matches!(*name, "metadata" | "denies") { shadow } else { "" };
            let filter = format!("{{ name: a, typed_config: {{ \"@type\": {EXT_AUTHZ}, {config} }} }}");
            let manager = format!(
                "          {log}\n          http_filters: [ {before}{filter}, {ROUTER} ]\n{}",
                web::one_host(&routes)
            );
            web::http_listener(name, *port, &manager)
        })
        .collect();
    let clusters = [
        cluster("a", &endpoint(a, ""), ""),
        cluster("b", &endpoint(b, ""), ""),
        cluster("authz", &endpoint(grpc, ""), HTTP2),
        cluster("gone", &endpoint(free_port(), ""), HTTP2),
        cluster("authz-http", &endpoint(http, ""), ""),
    ];
    web::scene(ports[18], &listeners, &clusters)
}
