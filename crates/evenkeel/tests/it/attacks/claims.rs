//! What a client says of its own request, at a proxy that takes others' headers (it is no edge): recent requests, logs and traces show what
//! was asked for.

use std::net::SocketAddr;
use std::process::Command;

use evenkeel_testkit::{Backend, Connection, Process, Reply, eventually, free_ports};
use serde_json::Value;

use crate::mesh::page;

/// Headers with which proxies tell each other about requests, and others that programs read so, with a client's lies. (Two are not among
/// them, because traces show what callers say in these: `x-envoy-decorator-operation` and `x-envoy-downstream-service-cluster`.)
const CLAIMS: &str = "x-envoy-original-path: /lies\r\nx-envoy-original-host: lies.test\r\nx-envoy-original-url: http://lies.test/lies\r\n\
    x-envoy-original-dst-host: lies:80\r\nx-envoy-peer-metadata: lies\r\n\
    x-envoy-peer-metadata-id: lies\r\nx-envoy-downstream-service-node: lies\r\nx-envoy-upstream-alt-stat-name: lies\r\n\
    x-envoy-ip-tags: lies\r\nx-envoy-external-address: lies\r\nx-envoy-attempt-count: lies\r\nx-envoy-internal: lies\r\n\
    x-evenkeel-hops: lies\r\nx-evenkeel-original-path: /lies\r\nx-original-url: /lies\r\nx-rewrite-url: /lies\r\n\
    x-forwarded-host: lies.test\r\nx-forwarded-uri: /lies\r\nx-forwarded-path: /lies\r\nx-forwarded-prefix: /lies\r\n\
    x-forwarded-port: lies\r\nx-forwarded-method: LIES\r\nx-http-method-override: LIES\r\nforwarded: for=lies\r\nx-real-ip: lies\r\n\
    via: 1.1 lies\r\nx-istio-attributes: lies\r\nx_envoy_original_path: /lies\r\n";

/// A proxy with a collector of spans.
struct Scene {
    folder: tempfile::TempDir,
    spans: Backend,
    _backend: Backend,
    _proxy: Process,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Scene {
    fn new() -> Self {
        let (folder, spans) = (
            tempfile::tempdir().expect("a temporary folder"),
            Backend::start(|_| Reply::Fixed(202, Vec::new(), Vec::new())),
        );
        let (backend, [port, admin]) =
            (Backend::echo("back"), free_ports().map(|port| SocketAddr::from(([127, 0, 0, 1], port))));
        let file = folder.path().join("bootstrap.yaml");
        let log = folder.path().join("access.log");
        let text = BOOTSTRAP
            .replace("LOG", &log.display().to_string())
            .replace("ADMIN", &admin.port().to_string())
            .replace("LISTENER", &port.port().to_string())
            .replace("BACKEND", &backend.address().port().to_string())
            .replace("SPANS", &spans.address().port().to_string());
        std::fs::write(&file, text).expect("a writable folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let mut proxy = Process::spawn(command.args(["proxy", "--concurrency", "1", "-c"]).arg(file));
        proxy.wait_for_port(port);
        Self { folder, spans, _backend: backend, _proxy: proxy, address: port, admin }
    }

    /// The tags of the span whose URL ends so.
    fn span(&self, url: &str) -> Option<Value> {
        let bodies = self.spans.requests().into_iter().filter_map(|request| serde_json::from_slice(&request.body).ok());
        let spans = bodies.flat_map(|body: Value| body.as_array().cloned().unwrap_or_default());
        spans.into_iter().find(|span| span["tags"]["http.url"].as_str().is_some_and(|own| own.ends_with(url)))
    }
}

const BOOTSTRAP: &str = "\
admin: {address: {socket_address: {address: 127.0.0.1, port_value: ADMIN}}}
static_resources:
  listeners:
  - name: inner
    address: {socket_address: {address: 127.0.0.1, port_value: LISTENER}}
    traffic_direction: INBOUND
    filter_chains:
    - filters:
      - name: http
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          access_log:
          - {name: file, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: LOG}}
          tracing: {provider: {name: z, typed_config: {\"@type\": type.googleapis.com/envoy.config.trace.v3.ZipkinConfig, collector_cluster: spans, collector_endpoint: /api/v2/spans, collector_endpoint_version: HTTP_JSON}}}
          route_config:
            virtual_hosts:
            - name: v
              domains: ['*']
              routes:
              - {match: {prefix: /moved/}, route: {cluster: back, prefix_rewrite: /rewritten/}}
              - {match: {prefix: /fails}, direct_response: {status: 503}}
              - {match: {prefix: /}, route: {cluster: back}}
          http_filters: [{name: r, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
  clusters:
  - {name: back, type: STATIC, load_assignment: {cluster_name: back, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: BACKEND}}}}]}]}}
  - {name: spans, type: STATIC, load_assignment: {cluster_name: spans, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: SPANS}}}}]}]}}
";

#[test]
fn what_a_client_says_of_its_request_is_no_fact() {
    let scene = Scene::new();
    // Served as it is, with a path that the proxy replaces, and refused.
    for (path, status) in [("/asked/a", 200), ("/moved/b", 200), ("/fails/c", 503)] {
        let mut connection = Connection::open(scene.address).expect("it accepts");
        let response = connection.get("a.test", path, CLAIMS).expect("an answer");
        assert_eq!(response.status, status, "{path}");
        let line = eventually(&format!("{path} in the log"), || {
            let log = std::fs::read_to_string(scene.folder.path().join("access.log")).ok()?;
            log.lines().find(|line| line.contains(&format!("\"GET {path} HTTP/1.1\" {status}"))).map(str::to_owned)
        });
        assert!(!line.to_ascii_lowercase().contains("lies"), "{line}");
        let span = eventually(&format!("a span of {path}"), || scene.span(path));
        assert!(!span.to_string().to_ascii_lowercase().contains("lies"), "{span:#}");
        // The sample may not have it; a request that failed is always there.
        let requests: Value = serde_json::from_str(&page(scene.admin, "/requests")).expect("JSON");
        let all = requests["requests"].as_array().expect("a list");
        let is_it = |request: &&Value| request["call"]["request"]["path"] == path;
        let mut request = all.iter().find(is_it).unwrap_or_else(|| panic!("{path} in {requests:#}")).clone();
        // Its headers are those that the client sent.
        request["call"]["request"]["headers"].take();
        assert!(!request.to_string().to_ascii_lowercase().contains("lies"), "{request:#}");
        let mut explain = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output =
            explain.args(["explain", "--last", "--admin", &scene.admin.to_string()]).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.lines().next().is_some_and(|first| first.ends_with(path)), "{output:?}");
        // What is left of them are the headers that were received.
        for line in text.lines().filter(|line| line.to_ascii_lowercase().contains("lies")) {
            let header = line.trim_start_matches("headers").trim();
            assert!(CLAIMS.lines().any(|claim| claim == header), "{line}: {output:?}");
        }
    }
}
