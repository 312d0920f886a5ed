//! The destinations of spans, access logs and statistics of a running mesh's proxies, as set in the mesh's configuration.

use std::fs;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::proxy_settings::inside;
use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

/// Keeps what it is sent: spans at 9411, the bytes of gRPC calls at 9000, and datagrams at 8125. `/spans`, `/logs` and `/statsd` at 8000
/// show it.
const COLLECTOR: &str = "import socket, threading
from http.server import *
KEPT = {'/spans': b'', '/logs': b'', '/statsd': b''}
class Pages(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self, status, body):
        self.send_response(status)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        KEPT['/spans'] += self.rfile.read(int(self.headers['content-length']))
        self.answer(202, b'')
    def do_GET(self):
        self.answer(200, KEPT.get(self.path, b'served'))
    def log_message(self, *_): pass
def grpc(stream):
    stream.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    while more := stream.recv(65536):
        KEPT['/logs'] += more
def streams():
    listener = socket.create_server(('', 9000))
    while True:
        threading.Thread(target=grpc, args=(listener.accept()[0],), daemon=True).start()
def datagrams():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(('127.0.0.1', 8125))
    while True:
        KEPT['/statsd'] = (KEPT['/statsd'] + server.recv(65536) + b'\\n')[-200000:]
for run in (streams, datagrams, ThreadingHTTPServer(('', 9411), Pages).serve_forever):
    threading.Thread(target=run, daemon=True).start()
ThreadingHTTPServer(('', 8000), Pages).serve_forever()
";

const CLIENT: &str = "import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode('latin-1'))
";

const MESH: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    enableEnvoyAccessLogService: true
    defaultConfig:
      statsdUdpAddress: 127.0.0.1:8125
      envoyAccessLogService: {address: 'replicas.default.svc.cluster.local:9000'}
      tracing:
        zipkin: {address: 'replicas.default.svc.cluster.local:9411'}
        sampling: 100
        customTags: {shift: {literal: {value: night}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Service
metadata: {name: collector}
spec: {selector: {app: collector}, ports: [{name: http, port: 9411}]}
---
apiVersion: v1
kind: Service
metadata: {name: replicas}
spec: {clusterIP: None, selector: {app: collector}, ports: [{name: http, port: 9411}, {name: grpc, port: 9000}]}
";

/// The mesh's own provider in place of the proxies' collector.
const PROVIDER: &str = "    defaultProviders: {tracing: [mine]}
    extensionProviders: [{name: mine, zipkin: {service: collector.default.svc.cluster.local, port: 9411}}]
    defaultConfig: {tracing: {sampling: 100, customTags: {shift: {literal: {value: day}}}}}
";

fn workload(name: &str, labels: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}{labels}}}\n      \
         annotations:\n        local.evenkeel.dev/run: exec python3 collector.py\n    \
         spec: {{containers: [{{name: main, ports: [{{containerPort: 8000}}]}}]}}\n"
    )
}

#[test]
fn spans_logs_and_statistics_go_where_the_settings_say() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it can be written");
    write("collector.py", COLLECTOR);
    write("client.py", CLIENT);
    let (settings, services) = MESH.split_once("---\n").expect("two documents");
    write("settings.yaml", settings);
    let outside = ", sidecar.istio.io/inject: 'false'";
    let workloads = workload("client", "") + &workload("web", ", version: v3") + &workload("collector", outside);
    write("objects.yaml", &(services.to_owned() + &workloads));
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 3);
    let get = |workload: &str, url: &str| inside(&user, user.state.path(), workload, &["python3", "client.py", url]);
    let seen = |what: &str, workload: &str, path: &str, expected: &[&str]| {
        eventually(what, || {
            assert!(get("client", "http://web/traced?q=1").contains("served"), "{}", up.output());
            let kept = get(workload, &format!("http://127.0.0.1:8000{path}"));
            expected.iter().all(|text| kept.contains(text)).then_some(())
        });
    };
    // Of both proxies on the way, with the names of the route, of the workload and of the owner.
    let spans = [
        "\"name\":\"web.default.svc.cluster.local:80/*\"",
        "\"kind\":\"CLIENT\"",
        "\"kind\":\"SERVER\"",
        "\"istio.canonical_service\":\"web\"",
        "\"istio.canonical_service\":\"client\"",
        "\"istio.canonical_revision\":\"v3\"",
        "\"shift\":\"night\"",
        "\"http.status_code\":\"200\"",
    ];
    seen("spans", "collector", "/spans", &spans);
    let logs = ["http_envoy_accesslog", "/traced?q=1", "outbound|80||web.default.svc.cluster.local", "inbound|8000||"];
    seen("access logs", "collector", "/logs", &logs);
    seen("statistics", "web", "/statsd", &["envoy.server.live:1|g", "envoy.cluster.inbound_8000__.upstream_rq_total:"]);

    // The mesh's own provider, which needs nothing of a bootstrap.
    write("settings.yaml", &(settings[..settings.find("    enable").expect("settings")].to_owned() + PROVIDER));
    seen("spans of the mesh's provider", "collector", "/spans", &["\"shift\":\"day\""]);
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
