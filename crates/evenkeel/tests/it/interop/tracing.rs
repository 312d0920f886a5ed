//! Tracing: the same calls through Envoy and Evenkeel give the same spans, and upstreams get the same context. A collector
//! that is down or silent delays nothing.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, Request, Signal, free_port, free_ports, wait};

use super::proxy::Program;
use super::tracing_collectors::{Span, Spans, grpc_collector, http_collector};
use super::tracing_rows::{Row, rows};
use super::web::{self, HTTP2, ROUTER, cluster, endpoint};

/// How long spans may take to arrive: proxies send a few only every five seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A listener: name, direction, settings of `tracing`, further settings of the connection manager.
type Listener = (&'static str, &'static str, String, &'static str);

fn listeners() -> Vec<Listener> {
    let zipkin = |more: &str| {
        format!(
            "provider: {{ name: z, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.trace.v3.ZipkinConfig, \
             collector_cluster: zipkin, collector_endpoint: /api/v2/spans, collector_endpoint_version: HTTP_JSON{more} }} }}"
        )
    };
    let otel = |service: &str| {
        format!(
            "provider: {{ name: o, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig, \
             service_name: web, {service} }} }}"
        )
    };
    let otlp = otel("grpc_service: { envoy_grpc: { cluster_name: otel }, timeout: 5s }");
    let by_http =
        otel("http_service: { http_uri: { uri: \"http://zipkin/v1/traces\", cluster: zipkin, timeout: 5s } }");
    let spawn = |provider: &str| format!("{provider}, spawn_upstream_span: true");
    let never = |provider: &str| format!("{provider}, random_sampling: {{ value: 0 }}");
    vec![
        ("in", "INBOUND", zipkin(""), ""),
        ("out", "OUTBOUND", zipkin(""), ""),
        ("default", "UNSPECIFIED", String::new(), ""),
        ("spawn", "OUTBOUND", spawn(&zipkin("")), ""),
        ("child", "INBOUND", zipkin(""), CHILD),
        ("split", "OUTBOUND", zipkin(", split_spans_for_request: true"), CHILD),
        ("unshared", "INBOUND", zipkin(", shared_span_context: false, trace_id_128bit: true"), ""),
        ("never", "INBOUND", never(&zipkin("")), ""),
        ("edge", "INBOUND", never(&zipkin("")), "use_remote_address: true, preserve_external_request_id: true,"),
        ("chance", "INBOUND", zipkin(""), NO_ID),
        ("unpacked", "INBOUND", zipkin(""), UNPACKED),
        ("both", "INBOUND", zipkin(BOTH), ""),
        ("otel-in", "INBOUND", otlp.clone(), ""),
        ("otel-out", "OUTBOUND", otlp.clone(), ""),
        ("otel-spawn", "OUTBOUND", spawn(&otlp), ""),
        ("otel-never", "INBOUND", never(&otlp), ""),
        ("otel-http", "INBOUND", by_http, ""),
    ]
}

const BOTH: &str = ", trace_context_option: USE_B3_WITH_W3C_PROPAGATION, collector_service: { http_uri: \
                    { uri: \"http://zipkin/api/v2/spans\", cluster: zipkin, timeout: 5s } }";
const CHILD: &str = "child";
const NO_ID: &str = "request_id_extension: { typed_config: { \"@type\": type.googleapis.com/envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig, \
                     use_request_id_for_trace_sampling: false } },";
const UNPACKED: &str = "request_id_extension: { typed_config: { \"@type\": type.googleapis.com/envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig, \
                        pack_trace_reason: false } },";

const TAGS: &str = "custom_tags: [ { tag: t, literal: { value: manager } }, { tag: row, request_header: { name: ROW } }, \
                    { tag: d, environment: { name: EVENKEEL_NO_SUCH_VARIABLE, default_value: default } }, \
                    { tag: absent, request_header: { name: x-absent } }, \
                    { tag: format, value: \"%REQ(:METHOD)% %PROTOCOL% %REQ(x-absent)%.\" }, { tag: nothing, value: \"%REQ(x-absent)%\" }, \
                    { tag: number, metadata: { kind: { route: {} }, metadata_key: { key: team, path: [ { key: number } ] } } }, \
                    { tag: list, metadata: { kind: { route: {} }, metadata_key: { key: team, path: [ { key: list } ] }, default_value: none } } ]";

const ROUTES: &[&str] = &[
    "{ match: { prefix: /decorated }, route: { cluster: a }, decorator: { operation: op } }",
    "{ match: { prefix: /quiet }, route: { cluster: a }, decorator: { operation: op, propagate: false } }",
    "{ match: { prefix: /direct }, direct_response: { status: 204 } }",
    "{ match: { prefix: /missing }, route: { cluster: no-cluster } }",
    "{ match: { prefix: /fails }, route: { cluster: a, retry_policy: { retry_on: 5xx, num_retries: 1, \
     retry_back_off: { base_interval: 0.001s } } } }",
    "{ match: { prefix: /closed }, route: { cluster: closed, retry_policy: { retry_on: connect-failure, num_retries: 1, \
     retry_back_off: { base_interval: 0.001s } } } }",
    "{ match: { prefix: /empty }, route: { cluster: empty } }",
    "{ match: { prefix: /slow }, route: { cluster: silent, timeout: 0.2s } }",
    "{ match: { prefix: /per-try }, route: { cluster: silent, timeout: 5s, retry_policy: { retry_on: 5xx, num_retries: 1, \
     per_try_timeout: 0.1s, retry_back_off: { base_interval: 0.001s } } } }",
    "{ match: { prefix: /never }, route: { cluster: a }, tracing: { random_sampling: { numerator: 0 } } }",
    "{ match: { prefix: /tags }, route: { cluster: a }, metadata: { filter_metadata: { team: { number: 2.5, list: [ 1, a ] } } }, \
     tracing: { custom_tags: [ { tag: t, literal: { value: route } } ] } }",
    "{ match: { prefix: /rewritten }, route: { cluster: a, prefix_rewrite: /plain, host_rewrite_literal: other.test } }",
    "{ match: { prefix: /redirect }, redirect: { path_redirect: /x } }",
    "{ match: { prefix: /grpc }, route: { cluster: a } }",
    "{ match: { prefix: /renamed }, route: { cluster: a } }",
    "{ match: { prefix: /plain }, route: { cluster: a } }",
];

/// What the upstream and collectors are reached by.
struct Ports {
    upstream: u16,
    zipkin: u16,
    otel: u16,
    closed: u16,
    silent: u16,
}

fn bootstrap(ports: &[u16], admin: u16, to: &Ports) -> String {
    let routes: String = ROUTES.iter().map(|route| format!("              - {route}\n")).collect();
    let mut text = String::new();
    for ((name, direction, provider, more), port) in listeners().iter().zip(ports) {
        let router =
            if *more == CHILD { ROUTER.replace("Router }", "Router, start_child_span: true }") } else { ROUTER.into() };
        let more = more.trim_end_matches(',');
        let more = if more.is_empty() || more == CHILD { String::new() } else { yaml_lines(more) };
        let comma = if provider.is_empty() { "" } else { ", " };
        let manager = format!(
            "          tracing: {{ {provider}{comma}{TAGS} }}\n{more}          http_filters: [ {router} ]\n{}",
            web::one_host(&routes)
                .replace("            name: r\n", "            name: r\n            validate_clusters: false\n")
        );
        let listener = web::http_listener(name, *port, &manager);
        text +=
            &listener.replace("    filter_chains:", &format!("    traffic_direction: {direction}\n    filter_chains:"));
    }
    let clusters = [
        cluster("a", &endpoint(to.upstream, ""), "alt_stat_name: alt,"),
        cluster("zipkin", &endpoint(to.zipkin, ""), ""),
        cluster("otel", &endpoint(to.otel, ""), HTTP2),
        cluster("closed", &endpoint(to.closed, ""), ""),
        cluster("empty", "", ""),
        cluster("silent", &endpoint(to.silent, ""), ""),
    ];
    // The listener without a provider has the bootstrap's.
    format!(
        "node: {{ id: me, cluster: web, locality: {{ zone: z1 }} }}\n\
         tracing: {{ http: {{ name: z, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.trace.v3.ZipkinConfig, \
         collector_cluster: zipkin, collector_endpoint: /api/v2/default, collector_endpoint_version: HTTP_JSON }} }} }}\n{}",
        web::scene(admin, &text, &clusters)
    )
}

/// Settings in flow style, as lines of a connection manager.
fn yaml_lines(settings: &str) -> String {
    if settings.contains('{') {
        return format!("          {settings}\n");
    }
    settings.split(", ").map(|setting| format!("          {setting}\n")).collect()
}

/// Answers with the context that it got.
fn upstream(request: &Request) -> Reply {
    let is_of_trace = |name: &str| {
        ["x-b3-", "b3", "trace", "x-request-id", "x-envoy-decorator"].iter().any(|start| name.starts_with(start))
    };
    let mut lines: Vec<_> = request
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .filter(|(name, _)| is_of_trace(name))
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect();
    lines.sort();
    let mut fields = Vec::new();
    let mut field = |name: &str, value: &str| fields.push((name.to_owned(), value.to_owned()));
    if request.target.starts_with("/grpc") {
        field("content-type", "application/grpc");
        field("grpc-status", request.header("x-status").unwrap_or("0"));
        field("grpc-message", "said");
    }
    if request.target.starts_with("/renamed") {
        field("x-envoy-decorator-operation", "from-upstream");
    }
    let status = if request.target.starts_with("/fails") { 503 } else { 200 };
    Reply::Fixed(status, fields, lines.concat().into_bytes())
}

#[test]
fn evenkeel_and_envoy_trace_alike() {
    let spans = Spans::default();
    let (backend, collector) = (Backend::start(upstream), http_collector(&spans));
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let to = Ports {
        upstream: backend.address().port(),
        zipkin: collector.address().port(),
        otel: grpc_collector(&spans),
        closed: free_port(),
        silent: silent.local_addr().expect("a bound socket").port(),
    };
    let ports: [u16; 18] = free_ports();
    let (admin, ports) = ports.split_last().expect("some ports");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(ports, *admin, &to)).expect("a writable folder");
    let rows = rows();
    let expected: usize = rows.iter().map(|row| row.spans).sum();
    let run = |program: Program| {
        spans.lock().expect("no test panicked").clear();
        let mut process = web::start(program, &file, *admin, ports[0]);
        let mut stories: Vec<_> = rows.iter().enumerate().map(|(index, row)| ask(index, row, ports)).collect();
        let all = || Some(spans.lock().expect("no test panicked").clone()).filter(|spans| spans.len() >= expected);
        let came = wait::poll(PATIENCE, all).unwrap_or_else(|| spans.lock().expect("no test panicked").clone());
        for (index, story) in stories.iter_mut().enumerate() {
            let row = index.to_string();
            let mut spans: Vec<_> = came.iter().filter(|span| span.tags.get("row") == Some(&row)).collect();
            spans.sort_by_key(|span| (span.kind.clone(), span.tags.get("retry.count").cloned(), span.name.clone()));
            spans.into_iter().for_each(|span| told(span, story));
        }
        let counted = counted(*admin);
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        let stories: Vec<_> = stories.into_iter().map(|story| without_chance(&story)).collect();
        (stories, came.len(), counted)
    };
    let (envoy, of_envoy, envoys_counts) = run(Program::Envoy);
    let (evenkeel, of_evenkeel, counts) = run(Program::Evenkeel);
    let differences: Vec<_> = envoy
        .iter()
        .zip(&evenkeel)
        .filter_map(|(envoy, evenkeel)| {
            let title = envoy.lines().next().unwrap_or_default();
            first_difference(envoy, evenkeel).map(|difference| format!("{title}\n{difference}"))
        })
        .collect();
    let (count, all) = (differences.len(), envoy.len());
    assert!(differences.is_empty(), "{count} of {all} differ; - Envoy, + Evenkeel\n{}", differences.join("\n"));
    assert_eq!((of_envoy, of_evenkeel), (expected, expected), "spans of both, and as many as the rows say");
    let difference = first_difference(&envoys_counts, &counts);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
    for part in
        ["canceled", "error.reason", "grpc.status_code", "from-upstream", "op", "number", "tracestate: a=b", "b3: "]
    {
        assert!(envoy.iter().any(|story| story.contains(part)), "{part} is not in Envoy's");
    }
}

/// A call, and what came back: the status, the name of the operation, and what the upstream got.
fn ask(index: usize, row: &Row, ports: &[u16]) -> String {
    let listeners = listeners();
    let at = listeners.iter().position(|(name, ..)| *name == row.listener).expect("a listener");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[at]));
    let mut head = format!("GET {} HTTP/1.1\r\nhost: web.test\r\nrow: {index}\r\n", row.path);
    row.headers.iter().for_each(|(name, value)| _ = write!(head, "{name}: {value}\r\n"));
    let mut client = Connection::open(address).expect("the listener accepts");
    client.send(head + "\r\n").expect("an open connection");
    let answer = client.response().expect("an answer");
    let mut story = format!("{index} {} {} {:?}\n", row.listener, row.path, row.headers);
    let operation = answer.header("x-envoy-decorator-operation").unwrap_or("-");
    _ = writeln!(story, "  {} operation={operation}", answer.status);
    answer.text().lines().for_each(|line| _ = writeln!(story, "  | {line}"));
    story
}

fn told(span: &Span, story: &mut String) {
    let Span { way, kind, name, ids: [trace, parent, id], more, tags } = span;
    _ = writeln!(story, "  {way} {kind} {name:?} trace={trace} parent={parent} id={id} {more}");
    for (name, value) in tags {
        _ = writeln!(story, "    {name}={value}");
    }
}

/// Ids by the order in which they come, except those that the row has sent; of UUIDs, only why the request is traced.
fn without_chance(story: &str) -> String {
    let (title, rest) = story.split_once('\n').unwrap_or((story, ""));
    let mut known: Vec<String> = Vec::new();
    let mut text = format!("{title}\n");
    let is_id = |word: &str| matches!(word.len(), 16 | 32) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    for line in rest.lines() {
        let mut words = Vec::new();
        let uuid = |line: &str| line.split([' ', '=']).next_back().filter(|word| word.len() == 36).map(str::to_owned);
        if let Some(id) = uuid(line).filter(|_| line.contains("x-request-id")) {
            let said = if title.contains(&id[..8]) { "own" } else { "new" };
            text += &format!("{} {said} {}\n", &line[..line.len() - 36], &id[14..15]);
            continue;
        }
        for word in line.split_inclusive([' ', '=', '-', '"']) {
            let (id, end) = word.split_at(word.trim_end_matches([' ', '=', '-', '"']).len());
            if !is_id(id) || title.contains(id) {
                words.push(word.to_owned());
                continue;
            }
            // A trace id of 128 bits may have the span's id as its lower half.
            let place = known.iter().position(|other| other == id).unwrap_or_else(|| {
                known.push(id.to_owned());
                known.len() - 1
            });
            words.push(format!("ID{place}{end}"));
        }
        text += &format!("{}\n", words.concat());
    }
    text
}

/// Counters of tracing that are not zero. How often the timer was due is chance, as is how spans are divided into reports.
fn counted(admin: u16) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let text =
        Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("an answer").text();
    let chance = ["timer_flushed", "reports_sent"];
    let wanted = |line: &&str| {
        line.contains("tracing") && !line.ends_with(": 0") && !chance.iter().any(|part| line.contains(part))
    };
    let lines: BTreeSet<_> = text.lines().filter(wanted).collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

/// A proxy with one listener that sends its spans to this port.
fn one_listener(collector: u16, upstream: u16, [port, admin]: [u16; 2]) -> String {
    let provider = "tracing: { provider: { name: z, typed_config: { \"@type\": type.googleapis.com/envoy.config.trace.v3.ZipkinConfig, \
                    collector_cluster: zipkin, collector_endpoint: /api/v2/spans, collector_endpoint_version: HTTP_JSON } } }";
    let manager = format!(
        "          {provider}\n          http_filters: [ {ROUTER} ]\n{}",
        web::one_host("              - { match: { prefix: / }, route: { cluster: a } }\n")
    );
    let clusters = [cluster("a", &endpoint(upstream, ""), ""), cluster("zipkin", &endpoint(collector, ""), "")];
    web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
}

fn stat(admin: u16, name: &str) -> u64 {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let text =
        Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("an answer").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok());
    line.unwrap_or_default()
}

/// Requests are answered as if there were no collector, and what does not fit into the buffers is counted.
#[test]
fn a_dead_or_silent_collector_delays_nothing() {
    const REQUESTS: u64 = 1_500;
    let backend = Backend::start(|_| Reply::text("hello"));
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let silent = silent.local_addr().map(|address| (silent, address.port())).expect("a bound socket");
    for (collector, is_silent) in [(free_port(), false), (silent.1, true)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (file, ports) = (folder.path().join("bootstrap.yaml"), free_ports::<2>());
        std::fs::write(&file, one_listener(collector, backend.address().port(), ports)).expect("a writable folder");
        let mut process = web::start(Program::Evenkeel, &file, ports[1], ports[0]);
        let mut client = Connection::open((Ipv4Addr::LOCALHOST, ports[0]).into()).expect("the listener accepts");
        for _ in 0..REQUESTS {
            assert_eq!(client.get("x.test", "/", "").expect("an answer").status, 200);
        }
        let lost = || stat(ports[1], "tracing.zipkin.spans_dropped");
        if is_silent {
            // 16 reports of 5 spans are under way, and 1,024 spans wait.
            wait::eventually("spans that are dropped", || (lost() > 0).then_some(()));
            assert!(stat(ports[1], "tracing.zipkin.spans_sent") < REQUESTS);
        } else {
            wait::eventually("spans that nobody takes", || (lost() >= REQUESTS - 10).then_some(()));
            assert!(stat(ports[1], "tracing.zipkin.reports_dropped") > 0);
        }
        assert_eq!(stat(ports[1], "http.http.tracing.random_sampling"), REQUESTS);
        assert!(process.exited().is_none(), "it ended; it printed:\n{}", process.output());
    }
}

/// The last spans are sent when the proxy ends.
#[test]
fn a_proxy_that_ends_sends_its_last_spans() {
    let spans = Spans::default();
    let (backend, collector) = (Backend::start(|_| Reply::text("hello")), http_collector(&spans));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, ports) = (folder.path().join("bootstrap.yaml"), free_ports::<2>());
    let text = one_listener(collector.address().port(), backend.address().port(), ports);
    std::fs::write(&file, text).expect("a writable folder");
    let mut process = web::start(Program::Evenkeel, &file, ports[1], ports[0]);
    let mut client = Connection::open((Ipv4Addr::LOCALHOST, ports[0]).into()).expect("the listener accepts");
    assert_eq!(client.get("x.test", "/", "Connection: close\r\n").expect("an answer").status, 200);
    process.signal(Signal::SIGTERM);
    let came = wait::eventually("the span", || spans.lock().expect("no test panicked").first().cloned());
    assert_eq!(came.name, "x.test");
}
