//! A control plane and its proxies, as processes: directories, ports, and the contents of the admin pages.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testkit::{Connection, Process, eventually, free_ports};
use serde_json::Value;

const MESH: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: \"outboundTrafficPolicy: {mode: REGISTRY_ONLY}\"}
";

/// A host with one endpoint, and with `rules` a VirtualService that says which.
pub fn host(name: &str, endpoint: SocketAddr) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  hosts: [{name}.test]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n  ports: [{{number: 80, name: http, protocol: HTTP}}]\n\
         \x20 endpoints: [{{address: {}, ports: {{http: {}}}}}]\n",
        endpoint.ip(),
        endpoint.port(),
    )
}

/// A control plane's directories and ports.
pub struct Plane {
    folder: tempfile::TempDir,
    pub grpc: u16,
    /// Where proxies with a certificate come in.
    pub secure: u16,
    http: u16,
}

impl Plane {
    pub fn new() -> Self {
        let [grpc, secure, http] = free_ports();
        let plane = Self { folder: tempfile::tempdir().expect("a temporary folder"), grpc, secure, http };
        std::fs::create_dir(plane.config()).expect("a folder");
        plane.write("mesh", MESH);
        plane
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub fn write(&self, name: &str, text: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).expect("a file");
        std::fs::rename(new, self.config().join(format!("{name}.yaml"))).expect("a renamed file");
    }

    pub fn start(&self) -> Process {
        self.start_with(&[])
    }

    /// The same, with more flags.
    pub fn start_with(&self, more: &[&str]) -> Process {
        self.start_as(|command| _ = command.args(more))
    }

    /// The same, with a command that is changed as a whole.
    pub fn start_as(&self, change: impl FnOnce(&mut Command)) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["control-plane", "--secure-grpc-address", &format!("127.0.0.1:{}", self.secure)]);
        command.args(["--grpc-address", &format!("127.0.0.1:{}", self.grpc)]);
        command.args(["--http-address", &format!("127.0.0.1:{}", self.http)]);
        command.arg("--config").arg(self.config()).arg("--state").arg(self.state());
        change(&mut command);
        let mut process = Process::spawn(&mut command);
        process.wait_for_line("control plane ready");
        process
    }

    /// Where its pages are.
    pub fn http(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.http).into()
    }

    /// Takes a file away.
    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.config().join(format!("{name}.yaml"))).expect("it was there");
    }

    /// A debug page, if the control plane is there.
    pub fn json(&self, path: &str) -> Option<Value> {
        let response = Connection::open(([127, 0, 0, 1], self.http).into()).ok()?.get("control", path, "").ok()?;
        serde_json::from_slice(&response.body).ok()
    }

    /// A page as text.
    pub fn page(&self, path: &str) -> String {
        page(([127, 0, 0, 1], self.http).into(), path)
    }

    /// What `evenkeel proxy-status` prints.
    pub fn proxy_status(&self, more: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["proxy-status", "--control-plane", &format!("127.0.0.1:{}", self.http)]).args(more);
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What the control plane says of a proxy, once that has accepted everything it asked for, endpoints included.
    pub fn settled(&self, pod: &str) -> Value {
        eventually(&format!("a settled {pod}"), || {
            let syncz = self.json("/debug/syncz")?;
            let proxy = syncz["proxies"]
                .as_array()?
                .iter()
                .find(|proxy| proxy["proxy"].as_str().is_some_and(|node| node.contains(&format!("~{pod}."))))?;
            let asked = proxy["types"].as_array()?.iter().any(|status| status["type"] == "EDS");
            (asked && proxy["live"] == true).then(|| proxy.clone())
        })
    }

    /// What it remembers of workloads.
    pub fn remembered(&self) -> String {
        std::fs::read_to_string(self.state().join("scope.json")).unwrap_or_default()
    }
}

/// A proxy with one listener for the workload's requests to port 80.
pub struct Proxy {
    pub process: Process,
    pub admin: SocketAddr,
    pub web: SocketAddr,
}

impl Proxy {
    /// With so many workers: a name that one has just been told of, another may still ask for.
    pub fn start(plane: &Plane, folder: &Path, pod: &str, scope: &str, workers: usize) -> Self {
        Self::start_with(plane, folder, pod, scope, workers, &[])
    }

    /// The same with more flags.
    pub fn start_with(plane: &Plane, folder: &Path, pod: &str, scope: &str, workers: usize, more: &[&str]) -> Self {
        Self::start_as(plane, folder, pod, scope, workers, more, |text| text)
    }

    /// The same with a bootstrap file that is changed as a whole.
    pub fn start_as(
        plane: &Plane,
        folder: &Path,
        pod: &str,
        scope: &str,
        workers: usize,
        more: &[&str],
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let on_demand = match scope {
            "learned" => {
                "- {name: od, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand}}"
            }
            _ => "",
        };
        let text = BOOTSTRAP
            .replace("POD", pod)
            .replace("SCOPE_OF_PROXY", scope)
            .replace("ON_DEMAND", on_demand)
            .replace("XDS_PORT", &plane.grpc.to_string());
        let path = folder.join(format!("{pod}.yaml"));
        std::fs::write(&path, change(text)).expect("a file");
        let admin_path = folder.join(format!("{pod}.admin"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command
            .args(["proxy", "--concurrency", &workers.to_string(), "-c"])
            .arg(path)
            .arg("--admin-address-path")
            .arg(&admin_path)
            .args(more);
        let mut process = Process::spawn(&mut command);
        process.wait_for_line("state=\"LIVE\"");
        let admin = eventually("the admin address", || std::fs::read_to_string(&admin_path).ok()?.parse().ok());
        let web = eventually("the listener", || {
            let text = page(admin, "/listeners");
            text.lines().find_map(|line| line.strip_prefix("web::")?.parse().ok())
        });
        Self { process, admin, web }
    }

    /// Status and body of a request.
    pub fn get(&self, host: &str) -> (u16, String) {
        let response = Connection::open(self.web).expect("it accepts").get(host, "/", "").expect("it answers");
        (response.status, response.text())
    }

    pub fn stat(&self, name: &str) -> u64 {
        let text = page(self.admin, "/stats");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Attempts, successes and misses of requests that were held.
    pub fn held(&self) -> [u64; 3] {
        ["attempt", "success", "missing"].map(|what| self.stat(&format!("http.web.on_demand_{what}")))
    }

    /// Updates received, of all types.
    pub fn updates(&self) -> String {
        let text = page(self.admin, "/stats?filter=update_attempt");
        text.lines().fold(String::new(), |mut all, line| {
            _ = writeln!(all, "{line}");
            all
        })
    }
}

pub fn page(admin: SocketAddr, path: &str) -> String {
    Connection::open(admin).expect("it accepts").get("admin", path, "").expect("it answers").text()
}

const BOOTSTRAP: &str = r#"
node:
  id: sidecar~127.0.0.1~POD.shop~shop.svc.cluster.local
  locality: {region: r1, zone: z1}
  metadata: {NAMESPACE: shop, SERVICE_ACCOUNT: client, WORKLOAD_NAME: client, EVENKEEL: {SCOPE: SCOPE_OF_PROXY, REPORT_INTERVAL: 1}}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: xds}}]
  cds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: XDS_PORT}}}}]}]
  listeners:
  - name: web
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          rds: {route_config_name: "80", config_source: {ads: {}, resource_api_version: V3}}
          http_filters:
          ON_DEMAND
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;
