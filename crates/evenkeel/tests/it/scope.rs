//! A proxy that learns its scope, beside a real control plane: processes, sockets and files as in production.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testkit::{Backend, Connection, Process, eventually, free_ports};

const MESH: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: \"outboundTrafficPolicy: {mode: REGISTRY_ONLY}\"}
";

/// A host with one endpoint, and with `rules` a VirtualService that says which.
fn host(name: &str, endpoint: SocketAddr) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  hosts: [{name}.test]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n  ports: [{{number: 80, name: http, protocol: HTTP}}]\n\
         \x20 endpoints: [{{address: {}, ports: {{http: {}}}}}]\n",
        endpoint.ip(),
        endpoint.port(),
    )
}

/// A control plane's directories and ports.
struct Plane {
    folder: tempfile::TempDir,
    grpc: u16,
    http: u16,
}

impl Plane {
    fn new() -> Self {
        let [grpc, http] = free_ports();
        let plane = Self { folder: tempfile::tempdir().expect("a temporary folder"), grpc, http };
        std::fs::create_dir(plane.config()).expect("a folder");
        plane.write("mesh", MESH);
        plane
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn write(&self, name: &str, text: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).expect("a file");
        std::fs::rename(new, self.config().join(format!("{name}.yaml"))).expect("a renamed file");
    }

    fn start(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["control-plane", "--secure-grpc-address", "127.0.0.1:0"]);
        command.args(["--grpc-address", &format!("127.0.0.1:{}", self.grpc)]);
        command.args(["--http-address", &format!("127.0.0.1:{}", self.http)]);
        command.arg("--config").arg(self.config()).arg("--state").arg(self.state());
        let mut process = Process::spawn(&mut command);
        process.wait_for_line("control plane ready");
        process
    }

    /// What it remembers of workloads.
    fn remembered(&self) -> String {
        std::fs::read_to_string(self.state().join("scope.json")).unwrap_or_default()
    }
}

/// A proxy with one listener for the workload's requests to port 80.
struct Proxy {
    process: Process,
    admin: SocketAddr,
    web: SocketAddr,
}

impl Proxy {
    fn start(plane: &Plane, folder: &Path, pod: &str, scope: &str) -> Self {
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
        std::fs::write(&path, text).expect("a file");
        let admin_path = folder.join(format!("{pod}.admin"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["proxy", "--concurrency", "2", "-c"]).arg(path).arg("--admin-address-path").arg(&admin_path);
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
    fn get(&self, host: &str) -> (u16, String) {
        let response = Connection::open(self.web).expect("it accepts").get(host, "/", "").expect("it answers");
        (response.status, response.text())
    }

    fn stat(&self, name: &str) -> u64 {
        let text = page(self.admin, "/stats");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Attempts, successes and misses of requests that were held.
    fn held(&self) -> [u64; 3] {
        ["attempt", "success", "missing"].map(|what| self.stat(&format!("http.web.on_demand_{what}")))
    }

    /// Updates received, of all types.
    fn updates(&self) -> String {
        let text = page(self.admin, "/stats?filter=update_attempt");
        text.lines().fold(String::new(), |mut all, line| {
            _ = writeln!(all, "{line}");
            all
        })
    }
}

fn page(admin: SocketAddr, path: &str) -> String {
    Connection::open(admin).expect("it accepts").get("admin", path, "").expect("it answers").text()
}

const BOOTSTRAP: &str = r#"
node:
  id: sidecar~127.0.0.1~POD.shop~shop.svc.cluster.local
  metadata: {NAMESPACE: shop, SERVICE_ACCOUNT: client, WORKLOAD_NAME: client, EVENKEEL: {SCOPE: SCOPE_OF_PROXY}}
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

#[test]
fn what_is_used_is_asked_for_once_remembered_and_outlives_the_control_plane() {
    let (a, b) = (Backend::echo("a"), Backend::echo("b"));
    let plane = Plane::new();
    plane.write("a", &host("a", a.address()));
    let control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let proxy = Proxy::start(&plane, folder.path(), "client-0", "learned");
    assert!(!page(proxy.admin, "/config_dump?include_eds").contains("a.test"), "it holds what nobody asked for");

    // The first request to a host waits for it, the second does not.
    assert_eq!(proxy.get("a.test").0, 200, "{}", proxy.process.output());
    assert_eq!(proxy.held(), [1, 1, 0]);
    assert_eq!(proxy.get("a.test").0, 200);
    assert_eq!(proxy.get("A.test:80").0, 200);
    assert_eq!(proxy.held(), [1, 1, 0]);
    // What does not exist is asked for once, and decided by the outbound policy.
    assert_eq!(proxy.get("unknown.test").0, 502);
    assert_eq!(proxy.get("unknown.test").0, 502);
    assert_eq!(proxy.held(), [2, 1, 1]);
    let scope = page(proxy.admin, "/scope");
    assert!(scope.contains("VHDS 80/a.test present") && scope.contains("VHDS 80/unknown.test absent"), "{scope}");

    // A host that nobody uses costs this proxy nothing, and comes when it is used. The other proxy shows when it is there.
    let full = Proxy::start(&plane, folder.path(), "other-0", "full");
    let before = proxy.updates();
    plane.write("b", &host("b", b.address()));
    eventually("the new host in a proxy that holds everything", || (full.get("b.test").0 == 200).then_some(()));
    assert_eq!(proxy.updates(), before);
    assert_eq!(proxy.get("b.test").0, 200);
    assert_eq!(proxy.held(), [3, 2, 1]);
    // What was asked for in vain is told when it comes to be.
    plane.write("unknown", &host("unknown", a.address()));
    eventually("the host that was unknown", || (proxy.get("unknown.test").0 == 200).then_some(()));
    assert_eq!(proxy.held(), [3, 2, 1]);

    // Another replica of the workload begins with what this one uses.
    eventually("the memory", || {
        let text = plane.remembered();
        ["80/a.test", "80/b.test", "80/unknown.test"].iter().all(|name| text.contains(name)).then_some(())
    });
    let second = Proxy::start(&plane, folder.path(), "client-1", "learned");
    assert_eq!(second.stat("on_demand.recalled"), 3);
    assert_eq!((second.get("a.test").0, second.get("b.test").0), (200, 200));
    assert_eq!(second.held(), [0, 0, 0]);

    // Without a control plane, what is known works; what is not is decided by the policy, and does not wait.
    drop(control);
    plane.write("late", &host("late", b.address()));
    eventually("the end of the stream", || (proxy.stat("control_plane.connected_state") == 0).then_some(()));
    assert_eq!((proxy.get("a.test").0, proxy.get("b.test").0), (200, 200));
    assert_eq!(proxy.get("late.test").0, 502);
    assert_eq!(proxy.stat("on_demand.given_up"), 1);
    assert!(page(proxy.admin, "/scope").contains("80/late.test given up"));
    assert!(proxy.process.output().contains("the control plane is away"), "{}", proxy.process.output());
    // It is told when the control plane is back.
    let _control = plane.start();
    eventually("the late host", || (proxy.get("late.test").0 == 200).then_some(()));
}
