//! OTLP over HTTP: a real collector of OpenTelemetry takes the metrics, spans and log records of both proxies.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::{Connection, Process, eventually, free_ports, otel_collector};
use serde_json::Value;

use super::proxy::Program;
use super::web::{self, ROUTER, endpoint};

const REQUESTS: u64 = 3;

fn bootstrap([port, admin, collector]: [u16; 3]) -> String {
    let http = |path: &str| {
        format!(
            "http_service: {{ http_uri: {{ uri: \"http://collector.test{path}\", cluster: collector, timeout: 3s }}, \
             request_headers_to_add: [ {{ header: {{ key: x-team, value: blue }} }} ] }}"
        )
    };
    let sink = format!(
        "stats_flush_interval: 0.2s\nstats_sinks: [ {{ name: s, typed_config: {{ \"@type\": \
         type.googleapis.com/envoy.extensions.stat_sinks.open_telemetry.v3.SinkConfig, prefix: mesh, {} }} }} ]",
        http("/v1/metrics")
    );
    let tracing = format!(
        "          tracing: {{ provider: {{ name: t, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig, \
         service_name: web, {} }} }} }}\n",
        http("/v1/traces")
    );
    let route =
        "              - { match: { prefix: / }, direct_response: { status: 200, body: { inline_string: ok } } }\n";
    let log = format!(
        "          access_log: [ {{ name: l, typed_config: {{ \"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig, log_name: mine, \
         buffer_flush_interval: 0.1s, body: {{ string_value: \"%REQ(:METHOD)% %REQ(:PATH)%\" }}, {} }} }} ]\n",
        http("/v1/logs")
    );
    let manager = format!("{tracing}{log}          http_filters: [ {ROUTER} ]\n{}", web::one_host(route));
    let clusters = [web::cluster("collector", &endpoint(collector, ""), "")];
    format!(
        "node: {{ id: me, cluster: us }}\n{sink}\n{}",
        web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
    )
}

fn collector(folder: &Path, port: u16) -> Process {
    let file = folder.join("telemetry.json");
    let config = format!(
        "receivers:\n  otlp: {{protocols: {{http: {{endpoint: '127.0.0.1:{port}'}}}}}}\nexporters:\n  file: {{path: {}}}\nservice:\n  \
         telemetry: {{metrics: {{level: none}}}}\n  pipelines:\n    traces: {{receivers: [otlp], exporters: [file]}}\n    \
         metrics: {{receivers: [otlp], exporters: [file]}}\n    logs: {{receivers: [otlp], exporters: [file]}}\n",
        file.display()
    );
    let path = folder.join("collector.yaml");
    std::fs::write(&path, config).expect("a writable folder");
    let mut process =
        Process::spawn(Command::new(otel_collector()).arg("--config").arg(format!("file:{}", path.display())));
    process.wait_for_port((Ipv4Addr::LOCALHOST, port).into());
    process
}

/// The greatest value of a metric's first series in what the collector has written.
fn value_of(received: &str, metric: &str) -> u64 {
    let mut values = Vec::new();
    for line in received.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let scopes =
            line["resourceMetrics"].as_array().into_iter().flatten().flat_map(|of| of["scopeMetrics"].as_array());
        let metrics = scopes.flatten().flat_map(|scope| scope["metrics"].as_array()).flatten();
        let points = metrics.filter(|one| one["name"] == metric).flat_map(|one| one["sum"]["dataPoints"].as_array());
        values.extend(points.flatten().filter_map(|point| point["asInt"].as_str()?.parse::<u64>().ok()));
    }
    values.into_iter().max().unwrap_or_default()
}

fn check(program: Program) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ports @ [port, admin, collects] = free_ports::<3>();
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(ports)).expect("a writable folder");
    let mut collector = collector(folder.path(), collects);
    let mut proxy = web::start(program, &file, admin, port);
    for _ in 0..REQUESTS {
        let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("a connection");
        assert_eq!(client.get("a.test", "/log", "x-client-trace-id: 1\r\n").expect("an answer").text(), "ok");
    }
    let read = || std::fs::read_to_string(folder.path().join("telemetry.json")).unwrap_or_default();
    eventually("metrics, spans and records in the collector", || {
        let received = read();
        assert!(proxy.exited().is_none(), "{program:?} ended: {}", proxy.output());
        let counted = value_of(&received, "mesh.http.downstream_rq_total") >= REQUESTS;
        let logged = received.matches("\"GET /log\"").count() as u64 == REQUESTS;
        (counted && logged && received.contains("resourceSpans") && received.contains("\"service.name\"")).then_some(())
    });
    assert!(collector.exited().is_none(), "the collector ended: {}", collector.output());
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let stats = Connection::open(admin).and_then(|mut client| client.get("localhost", "/stats?filter=dropped", ""));
    let stats = stats.expect("statistics").text();
    let dropped = |name: &str| stats.lines().filter(|line| line.contains(name)).collect::<Vec<_>>();
    let names: &[&str] = match program {
        Program::Envoy => &["access_log.logs_dropped"],
        Program::Evenkeel => &["grpc_access_log.logs_dropped", "open_telemetry_dropped", "spans_dropped"],
    };
    for name in names {
        let lines = dropped(name);
        assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with(": 0")), "{program:?} {name}:\n{stats}");
    }
}

#[test]
fn a_real_collector_takes_metrics_spans_and_logs_of_evenkeel_and_envoy() {
    check(Program::Envoy);
    check(Program::Evenkeel);
}
