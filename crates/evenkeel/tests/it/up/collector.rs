//! A real collector of OpenTelemetry gets what a mesh tells: one call is one trace, with its retries, by OTLP and by Zipkin; logs and
//! metrics come by OTLP. A mirrored request is logged, and no part of the trace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::PoisonError;
use std::time::Duration;

use evenkeel_testkit::wait::{poll, within};
use evenkeel_testkit::{Process, Signal, otel_collector};
use serde_json::Value;

use super::proxy_settings::inside;
use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

/// How long the spans of a call may take, if its proxies have the settings.
const SOON: Duration = Duration::from_secs(5);

/// Answers each path with 503 the first time, if it says so.
const SERVER: &str = "import http.server
SEEN = set()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        fails = 'flaky' in self.path and self.path not in SEEN
        SEEN.add(self.path)
        self.send_response(503 if fails else 200)
        self.send_header('content-length', '6')
        self.end_headers()
        self.wfile.write(b'served')
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('', 8000), Handler).serve_forever()
";

/// Calls a URL within a trace, in the form of W3C and of B3.
const CLIENT: &str = "import sys, urllib.request
url, trace = sys.argv[1:]
headers = {'traceparent': f'00-{trace}-00000000000000aa-01', 'x-b3-traceid': trace, 'x-b3-spanid': '00000000000000aa', 'x-b3-sampled': '1'}
print(urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20).read().decode())
";

const COLLECTOR: &str = "
receivers:
  otlp: {protocols: {grpc: {endpoint: '0.0.0.0:4317'}}}
  zipkin: {endpoint: '0.0.0.0:9411'}
exporters:
  file: {path: /tmp/telemetry.json}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp, zipkin], exporters: [file]}
    logs: {receivers: [otlp], exporters: [file]}
    metrics: {receivers: [otlp], exporters: [file]}
";

fn settings(provider: &str) -> String {
    format!(
        "apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data:
  mesh: |
    defaultProviders: {{tracing: [{provider}], accessLogging: [logs]}}
    extensionProviders:
    - {{name: otlp, opentelemetry: {{service: collector.default.svc.cluster.local, port: 4317}}}}
    - {{name: zipkin, zipkin: {{service: collector.default.svc.cluster.local, port: 9411}}}}
    - {{name: logs, envoyOtelAls: {{service: collector.default.svc.cluster.local, port: 4317, logFormat: {{text: 'of %REQ(:PATH)%'}}}}}}
    defaultConfig:
      tracing: {{sampling: 100}}
      proxyMetadata: {{OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: 'http://replicas.default.svc.cluster.local:4317'}}
"
    )
}

const OBJECTS: &str = "apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Service
metadata: {name: shadow}
spec: {selector: {app: shadow}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Service
metadata: {name: collector}
spec: {selector: {app: collector}, ports: [{name: grpc-otlp, port: 4317}, {name: http-zipkin, port: 9411}]}
---
apiVersion: v1
kind: Service
metadata: {name: replicas}
spec: {clusterIP: None, selector: {app: collector}, ports: [{name: grpc-otlp, port: 4317}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web}
spec:
  hosts: [web]
  http:
  - route: [{destination: {host: web}}]
    mirror: {host: shadow}
    retries: {attempts: 2, retryOn: 5xx}
";

fn workload(name: &str, labels: &str, run: &str) -> String {
    // The port of the program, which is ready when it accepts connections there.
    let port = if labels.is_empty() { 8000 } else { 4317 };
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}{labels}}}\n      \
         annotations:\n        local.evenkeel.dev/run: {run}\n    \
         spec: {{containers: [{{name: main, ports: [{{containerPort: {port}}}]}}]}}\n"
    )
}

#[test]
fn a_call_is_one_trace_in_a_real_collector() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it can be written");
    fs::copy(otel_collector(), folder.path().join("otel-collector")).expect("it can be copied");
    write("server.py", SERVER);
    write("client.py", CLIENT);
    // No object of the mesh, and not read as one.
    write("collector.conf", COLLECTOR);
    write("settings.yaml", &settings("otlp"));
    let outside = ", sidecar.istio.io/inject: 'false'";
    let collector = "exec ./otel-collector --config file:collector.conf";
    let workloads = ["client", "web", "shadow"].map(|name| workload(name, "", "exec python3 server.py")).concat();
    write("objects.yaml", &(OBJECTS.to_owned() + &workloads + &workload("collector", outside, collector)));
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 4);
    let run = |workload: &str, command: &[&str]| inside(&user, user.state.path(), workload, command);
    let received = || run("collector", &["cat", "/tmp/telemetry.json"]);
    for (provider, digit) in [("otlp", 'a'), ("zipkin", 'b')] {
        write("settings.yaml", &settings(provider));
        let mut calls = 0;
        let spans = within(PATIENCE, provider, || {
            // Until proxies have the settings, calls are told elsewhere.
            calls += 1;
            let trace = format!("{digit}{calls:031x}");
            let url = format!("http://web/flaky-{trace}");
            assert!(run("client", &["python3", "client.py", &url, &trace]).contains("served"), "{}", up.output());
            poll(SOON, || Some(spans_of(&received(), &trace)).filter(|spans| is_whole(spans)))
        });
        assert_tree(&spans);
    }
    within(PATIENCE, "logs and metrics", || {
        let received = received();
        let has = |signal: &str, texts: &[&str]| {
            received.lines().any(|line| line.contains(signal) && texts.iter().all(|text| line.contains(text)))
        };
        // A line of the client's proxy, of each try at the server's, and of the mirror's.
        let of_first = received.matches(&format!("of /flaky-a{:031x}\"", 1)).count();
        let all = of_first == 4
            && has("resourceMetrics", &["istio_requests_total", "service.instance.id", "\"asInt\""])
            && has("resourceMetrics", &["istio_request_duration_milliseconds", "\"explicitBounds\""]);
        all.then_some(())
    });
    up.signal(Signal::SIGINT);
}

/// A span as the collector has written it.
#[derive(Debug, Clone)]
struct Span {
    id: String,
    parent: String,
    service: String,
    /// `SpanKind`: 2 is of a server, 3 of a client.
    kind: u64,
    status: String,
}

/// The spans of a trace, each once.
fn spans_of(received: &str, trace: &str) -> Vec<Span> {
    let mut spans = BTreeMap::new();
    for line in received.lines().filter(|line| line.contains(trace)) {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        for of_resource in line["resourceSpans"].as_array().into_iter().flatten() {
            let service = attribute(&of_resource["resource"]["attributes"], "service.name");
            let scopes = of_resource["scopeSpans"].as_array().into_iter().flatten();
            let all = scopes.flat_map(|scope| scope["spans"].as_array().into_iter().flatten());
            for span in all.filter(|span| span["traceId"] == trace) {
                let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
                let span = Span {
                    id: text("spanId"),
                    parent: text("parentSpanId"),
                    service: service.clone(),
                    kind: span["kind"].as_u64().unwrap_or_default(),
                    status: attribute(&span["attributes"], "http.status_code"),
                };
                spans.insert((span.id.clone(), span.kind), span);
            }
        }
    }
    spans.into_values().collect()
}

fn attribute(attributes: &Value, name: &str) -> String {
    let found = attributes.as_array().into_iter().flatten().find(|attribute| attribute["key"] == name);
    let value = found.map(|attribute| &attribute["value"]);
    let value = value.and_then(|value| value["stringValue"].as_str().or_else(|| value["intValue"].as_str()));
    value.unwrap_or_default().to_owned()
}

/// Whether the spans of all proxies on the way have come: one of the client's, two tries at the server. As in Istio, mirrored requests
/// have none (`trace_sampled: false`).
fn is_whole(spans: &[Span]) -> bool {
    let servers =
        |service: &str| spans.iter().filter(|span| span.service.starts_with(service) && span.kind == 2).count();
    servers("web") == 2 && spans.iter().any(|span| span.service.starts_with("client"))
}

/// All spans are below one, which is below the caller's.
fn assert_tree(spans: &[Span]) {
    assert!(!spans.iter().any(|span| span.service.starts_with("shadow")), "{spans:#?}");
    let ids: BTreeSet<&str> = spans.iter().map(|span| span.id.as_str()).collect();
    let roots: Vec<_> = spans.iter().filter(|span| !ids.contains(span.parent.as_str())).collect();
    assert!(roots.len() == 1 && roots[0].parent == "00000000000000aa", "{spans:#?}");
    assert!(roots[0].service.starts_with("client"), "{spans:#?}");
    let mut of_web: Vec<_> = spans.iter().filter(|span| span.service.starts_with("web") && span.kind == 2).collect();
    of_web.sort_by(|one, other| one.status.cmp(&other.status));
    let statuses: Vec<_> = of_web.iter().map(|span| span.status.as_str()).collect();
    assert_eq!(statuses, ["200", "503"], "{spans:#?}");
}
