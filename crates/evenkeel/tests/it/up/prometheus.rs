//! A real Prometheus scrapes a running mesh and the control plane, and answers what dashboards and alert rules ask.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::sync::PoisonError;

use evenkeel_testkit::wait::{poll, within};
use evenkeel_testkit::{Connection, Process, Signal, free_port, workspace};
use serde_json::Value;

use super::user::User;
use super::{MACHINE, PATIENCE, state, url, wait_ready};

/// Answers with the status in the path on port 8000, and takes connections on port 8001.
const SERVER: &str = "import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        self.send_response(int(self.path.strip('/') or 200))
        self.send_header('content-length', '5')
        self.end_headers()
        self.wfile.write(b'hello')
    def log_message(self, *_):
        pass
tcp = http.server.ThreadingHTTPServer(('', 8001), Handler)
threading.Thread(target=tcp.serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(('', 8000), Handler).serve_forever()
";

/// Calls all services for ever.
const CLIENT: &str = "import time, urllib.request
while True:
    for url in ['http://web/', 'http://web/503', 'http://web/404', 'http://web:9000/', 'http://plain/', 'http://plain:9000/']:
        try:
            urllib.request.urlopen(url, timeout=5).read()
        except OSError:
            pass
    time.sleep(0.1)
";

const GATEWAY: &str = "---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  selector: {istio: ingressgateway}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web}
spec: {hosts: ['*'], gateways: [gateway], http: [{route: [{destination: {host: web, port: {number: 80}}}]}]}
";

fn service(name: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  selector: {{app: {name}}}\n  \
         ports: [{{name: http, port: 80, targetPort: 8000}}, {{name: tcp, port: 9000, targetPort: 8001}}]\n"
    )
}

fn workload(name: &str, program: &str, labels: &str, ports: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      \
         labels: {{app: {name}, version: v1{labels}}}\n      \
         annotations: {{local.evenkeel.dev/run: exec python3 {program}}}\n    \
         spec: {{containers: [{{name: main{ports}}}]}}\n"
    )
}

/// Two servers and two clients; one of each is outside the mesh.
fn objects() -> String {
    let ports = ", ports: [{containerPort: 8000}, {containerPort: 8001}]";
    let outside = ", sidecar.istio.io/inject: 'false'";
    [
        service("web"),
        service("plain"),
        workload("web", "server.py", "", ports),
        workload("plain", "server.py", outside, ports),
        workload("client", "client.py", "", ""),
        workload("outside", "client.py", outside, ""),
        GATEWAY.to_owned(),
        MESH.to_owned(),
    ]
    .concat()
}

const CLIENT_SIDE: &str = "reporter=\"source\"";
const SERVER_SIDE: &str = "reporter=\"destination\"";
const ENCRYPTED: &str = "reporter=\"destination\",connection_security_policy=\"mutual_tls\"";
const CLEAR: &str = "reporter=\"destination\",connection_security_policy!=\"mutual_tls\"";
const WORKLOADS: &[&str] =
    &["source_workload", "source_workload_namespace", "destination_workload", "destination_workload_namespace"];
const SERVICE: &[&str] = &["destination_service", "destination_service_name", "destination_service_namespace"];
const SOURCE: &[&str] = &["source_workload", "source_workload_namespace", "source_app", "source_canonical_service"];

/// What Istio's dashboards, Kiali and alert rules ask for: a metric, the series of it, and the labels that the sum keeps. Each has
/// series in this mesh.
const PROMISED: &[(&str, &str, &[&str])] = &[
    // Mesh, services, workloads.
    ("istio_requests_total", CLIENT_SIDE, WORKLOADS),
    ("istio_requests_total", CLIENT_SIDE, SERVICE),
    ("istio_requests_total", CLIENT_SIDE, SOURCE),
    ("istio_requests_total", SERVER_SIDE, WORKLOADS),
    ("istio_requests_total", SERVER_SIDE, SERVICE),
    ("istio_requests_total", "response_code=~\"4..\"", &["response_code", "response_flags"]),
    ("istio_requests_total", "response_code=~\"5..\"", &["response_code", "response_flags"]),
    ("istio_requests_total", ENCRYPTED, &["source_principal", "destination_principal"]),
    ("istio_requests_total", CLEAR, &["destination_workload", "response_code"]),
    ("istio_requests_total", "reporter=\"source\",destination_principal=~\"spiffe.*\"", &["destination_service"]),
    ("istio_requests_total", "reporter=\"source\",destination_principal!~\"spiffe.*\"", &["destination_service"]),
    ("istio_requests_total", CLIENT_SIDE, &["source_cluster", "destination_cluster", "request_protocol"]),
    ("istio_requests_total", "source_workload=\"istio-ingressgateway\"", &["destination_service"]),
    ("istio_request_duration_milliseconds_bucket", CLIENT_SIDE, &["destination_service"]),
    ("istio_request_duration_milliseconds_bucket", ENCRYPTED, &["destination_workload"]),
    ("istio_request_duration_milliseconds_bucket", CLEAR, &["destination_workload"]),
    ("istio_request_bytes_bucket", CLIENT_SIDE, &["destination_service"]),
    ("istio_request_bytes_bucket", ENCRYPTED, &["destination_workload"]),
    ("istio_request_bytes_sum", CLIENT_SIDE, &["source_workload"]),
    ("istio_response_bytes_bucket", CLIENT_SIDE, &["destination_service"]),
    ("istio_response_bytes_bucket", CLEAR, &["destination_workload"]),
    ("istio_response_bytes_sum", "source_workload=\"istio-ingressgateway\"", &["source_workload"]),
    ("istio_tcp_sent_bytes_total", CLIENT_SIDE, &["destination_service", "source_workload"]),
    ("istio_tcp_sent_bytes_total", ENCRYPTED, &["destination_service", "destination_workload"]),
    ("istio_tcp_sent_bytes_total", CLEAR, &["destination_service", "destination_workload"]),
    ("istio_tcp_received_bytes_total", CLIENT_SIDE, &["destination_service", "source_workload"]),
    ("istio_tcp_received_bytes_total", ENCRYPTED, &["destination_service", "destination_workload"]),
    ("istio_tcp_received_bytes_total", CLEAR, &["destination_service", "destination_workload"]),
    ("istio_tcp_connections_opened_total", CLIENT_SIDE, &["destination_service"]),
    ("istio_tcp_connections_closed_total", SERVER_SIDE, &["destination_workload"]),
    ("istio_build", "component=\"proxy\"", &["tag"]),
    // Control plane.
    ("istio_build", "component=\"pilot\"", &["tag"]),
    ("pilot_xds", "", &[]),
    ("pilot_xds_pushes", "", &["type"]),
    ("pilot_push_triggers", "", &["type"]),
    ("pilot_total_xds_internal_errors", "", &[]),
    ("pilot_total_xds_rejects", "", &["type"]),
    ("pilot_k8s_cfg_events", "", &["type", "event"]),
    ("pilot_k8s_reg_events", "", &["type", "event"]),
    ("pilot_inbound_updates", "", &["type"]),
    ("pilot_proxy_convergence_time_bucket", "", &[]),
    ("pilot_xds_push_time_bucket", "", &["type"]),
    ("pilot_xds_config_size_bytes_bucket", "", &["type"]),
    ("pilot_debounce_time_bucket", "", &[]),
    ("pilot_services", "", &[]),
    ("pilot_virt_services", "", &[]),
    ("pilot_eds_no_instances", "", &[]),
    ("pilot_endpoint_not_ready", "", &[]),
    ("citadel_server_csr_count", "", &[]),
    ("citadel_server_success_cert_issuance_count", "", &[]),
    ("citadel_server_root_cert_expiry_timestamp", "", &[]),
    ("citadel_server_root_cert_expiry_seconds", "", &[]),
    ("sidecar_injection_success_total", "", &[]),
    ("sidecar_injection_failure_total", "", &[]),
    ("istiod_uptime_seconds", "app=\"istiod\"", &[]),
    ("process_cpu_seconds_total", "app=\"istiod\"", &[]),
    ("process_resident_memory_bytes", "app=\"istiod\"", &[]),
    ("process_virtual_memory_bytes", "app=\"istiod\"", &[]),
    ("process_open_fds", "app=\"istiod\"", &[]),
    ("process_max_fds", "app=\"istiod\"", &[]),
    ("process_start_time_seconds", "app=\"istiod\"", &[]),
];

/// Queries of native histograms: they name the histogram itself.
const NATIVE: [&str; 3] = [
    "histogram_quantile(0.9, sum by (destination_service) (istio_request_duration_milliseconds{reporter=\"source\"}))",
    "histogram_count(sum(istio_response_bytes{reporter=\"destination\"})) > 0",
    "histogram_sum(sum(istio_request_bytes)) > 0",
];

/// Every request is traced; nobody understands the spans.
const MESH: &str = "---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    defaultProviders: {tracing: [nobody]}
    extensionProviders: [{name: nobody, opentelemetry: {service: plain.default.svc.cluster.local, port: 9000}}]
    defaultConfig: {tracing: {sampling: 100}}
";

/// Parts of queries of Istio's dashboards that have no answer in this mesh, and why.
const EMPTY: &[(&str, &str)] = &[
    ("go_", "the control plane has no Go runtime; process_* has its memory, CPU time and files"),
    ("container_", "the kubelet reports containers"),
    ("envoy_wasm_", "no proxy runs a Wasm module"),
    ("galley_validation_", "counted when the webhook judges an object of a cluster"),
    ("cluster_name=\"xds-grpc\"", "the label of clusters is Envoy's, envoy_cluster_name"),
    ("connection_security_policy=\"mutual_tls\"", "at the client it is unknown, in Istio too"),
];

/// A Prometheus that scrapes the mesh.
struct Prometheus {
    process: Process,
    address: String,
    _data: tempfile::TempDir,
}

impl Prometheus {
    /// Starts it with the list of targets that `up` prints.
    fn start(targets: &str, feature: &str) -> Self {
        let data = state();
        let (file, address) = (data.path().join("prometheus.yml"), format!("127.0.0.1:{}", free_port()));
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- job_name: evenkeel\n  \
             http_sd_configs: [{{url: '{targets}', refresh_interval: 1s}}]\n"
        );
        fs::write(&file, config).expect("it can be written");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", data.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}")).args(["--log.level=warn"]);
        command.arg(format!("--enable-feature={feature}"));
        let mut process = Process::spawn(&mut command);
        process.wait_for_port(address.parse().expect("an address"));
        Self { process, address, _data: data }
    }

    /// The series of a query.
    fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let answer = self.get(&format!("/api/v1/query?query={}", escaped(query)))?;
        answer["data"]["result"].as_array().cloned().ok_or_else(|| answer.to_string())
    }

    /// The answer of the API.
    fn get(&self, path: &str) -> Result<Value, String> {
        let mut connection = Connection::open(self.address.parse().expect("an address")).map_err(|e| e.to_string())?;
        let response = connection.get(&self.address, path, "").map_err(|error| error.to_string())?;
        serde_json::from_str(&response.text()).map_err(|error| error.to_string())
    }

    /// Whether a series of this metric has an exemplar with a trace.
    fn has_exemplar(&self, metric: &str) -> bool {
        let path = format!("/api/v1/query_exemplars?query={metric}&start=0&end=9999999999");
        let answer = self.get(&path).unwrap_or_default();
        let exemplar = answer.pointer("/data/0/exemplars/0/labels/trace_id").and_then(Value::as_str);
        exemplar.is_some_and(|trace| trace.len() == 32)
    }

    fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        self.process.wait_for_exit(PATIENCE);
    }

    /// Whether a query has series, all with these labels, and a number somewhere.
    fn answers(&self, query: &str, labels: &[&str]) -> bool {
        let series = self.query(query).unwrap_or_default();
        let has_labels = |one: &Value| labels.iter().all(|label| one["metric"][label].is_string());
        let is_number = |one: &Value| one["value"][1].as_str().is_some_and(|value| value != "NaN");
        series.iter().all(has_labels) && series.iter().any(is_number)
    }
}

fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        let _ = write!(all, "%{byte:02X}");
        all
    })
}

/// The query of a row of [`PROMISED`].
fn sum_of(metric: &str, selector: &str, labels: &[&str]) -> String {
    let labels = labels.join(",");
    if metric.ends_with("_bucket") {
        let by = if labels.is_empty() { "le".to_owned() } else { format!("le,{labels}") };
        return format!("histogram_quantile(0.9, sum by ({by}) ({metric}{{{selector}}}))");
    }
    format!("sum by ({labels}) ({metric}{{{selector}}})")
}

/// Waits until all queries are answered, while requests arrive at the gateway.
fn assert_answered(prometheus: &Prometheus, gateway: &str, queries: &[(String, Vec<&str>)]) {
    let mut missing = Vec::new();
    let address = gateway.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let all = poll(PATIENCE, || {
        let mut connection = Connection::open(address.parse().expect("an address")).ok()?;
        connection.get("web", "/", "").ok()?;
        missing = queries.iter().filter(|(query, labels)| !prometheus.answers(query, labels)).collect();
        missing.is_empty().then_some(())
    });
    assert!(all.is_some(), "no series:\n{}", missing.iter().map(|(query, _)| format!("{query}\n")).collect::<String>());
}

/// The queries of Istio's own dashboards, if they lie beside the repository.
fn panels() -> Vec<(String, Vec<&'static str>)> {
    let folder = workspace::root().join("../shared/reference/grafana");
    let Ok(files) = fs::read_dir(&folder) else {
        // Whoever has them beside the checkout has their queries run, too.
        let _ = writeln!(std::io::stderr(), "skipped: Istio's dashboards are not at {}", folder.display());
        return Vec::new();
    };
    let mut queries = Vec::new();
    for file in files {
        let text = fs::read_to_string(file.expect("it can be read").path()).expect("a file");
        expressions(&serde_json::from_str(&text).expect("JSON"), &mut queries);
    }
    let is_listed = |query: &String| EMPTY.iter().any(|(part, _)| query.contains(part) && !query.contains(SERVER_SIDE));
    queries.iter().filter(|query| !is_listed(query)).map(|query| (query.clone(), Vec::new())).collect()
}

/// Collects what a dashboard's panels and variables ask, with values for its variables.
fn expressions(dashboard: &Value, found: &mut Vec<String>) {
    for (name, value) in dashboard.as_object().into_iter().flatten() {
        match value.as_str() {
            Some(query) if name == "expr" || query.starts_with("query_result(") => {
                let query =
                    query.strip_prefix("query_result(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(query);
                let query = query
                    .replace("$__rate_interval", "1m")
                    .replace("\"$service\"", "\"web.default.svc.cluster.local\"");
                let query = query.replace("=\"$workload\"", "=\"web\"").replace("$qrep", "source|destination");
                let mut parts = query.split('$');
                let mut filled = parts.next().unwrap_or_default().to_owned();
                for part in parts {
                    filled.push_str(".*");
                    filled.push_str(part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_'));
                }
                found.push(filled);
            }
            _ => expressions(value, found),
        }
    }
    dashboard.as_array().into_iter().flatten().for_each(|item| expressions(item, found));
}

#[test]
fn prometheus_answers_what_dashboards_ask() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    for (name, text) in [("server.py", SERVER), ("client.py", CLIENT), ("objects.yaml", &*objects())] {
        fs::write(folder.path().join(name), text).expect("it can be written");
    }
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path()).args(["--gateway-port", "0", "--with-prometheus"]);
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 5);
    let gateway = url(&mut up);
    let line = up.wait_for_line("/targets");
    let targets = line.split_once("http://").expect("a URL").1.trim();
    let targets = format!("http://{targets}");
    let prometheus = Prometheus::start(&targets, "exemplar-storage");
    let row = |&(metric, selector, labels): &(&str, &str, &[&'static str])| {
        (sum_of(metric, selector, labels), labels.to_vec())
    };
    let mut queries: Vec<_> = PROMISED.iter().map(row).collect();
    queries.extend(panels());
    assert_answered(&prometheus, &gateway, &queries);
    let metric = "istio_request_duration_milliseconds_bucket";
    within(PATIENCE, "an exemplar", || prometheus.has_exemplar(metric).then_some(()));
    prometheus.stop();
    let natively = Prometheus::start(&targets, "native-histograms");
    let of_histograms = NATIVE.map(|query| (query.to_owned(), Vec::new()));
    assert_answered(&natively, &gateway, &of_histograms);
    natively.stop();
    let line = up.wait_for_line("Prometheus: http://");
    let own: std::net::SocketAddr =
        line.split_once("http://").expect("a URL").1.trim_matches('/').parse().expect("an address");
    let get = |path: &str| Connection::open(own).and_then(|mut page| page.get(&own.to_string(), path, "")).ok();
    within(PATIENCE, "the mesh's own Prometheus", || {
        let scraped = get("/api/v1/query?query=pilot_xds")?.text();
        scraped.contains("\"app\":\"istiod\"").then_some(())
    });
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
    assert!(get("/").is_none(), "Prometheus has not ended with the mesh");
    assert!(!user.state.path().join("prometheus").exists(), "its files are left");
}

#[test]
fn without_prometheus_it_is_said_how_to_install_it() {
    let (user, folder) = (User::present(), state());
    fs::write(folder.path().join("objects.yaml"), objects()).expect("it can be written");
    let mut command = user.evenkeel(&["up", "--with-prometheus"]);
    // `ip` and `nft` are found in the system's directories, too.
    command
        .arg(folder.path())
        .arg("--state")
        .arg(user.state.path())
        .args(["--gateway-port", "0"])
        .env("PATH", "/nowhere");
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("apt-get install prometheus"), "{text}");
}
