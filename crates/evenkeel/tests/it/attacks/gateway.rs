//! A gateway with policies in front of a server that reports the requests it gets.

use std::net::SocketAddr;
use std::path::PathBuf;

use evenkeel_testkit::{Backend, Connection, Process, Reply, Request, TestCa, eventually, free_port, objects};

use crate::gateway_secrets::{Program, start_with};
use crate::mesh::{Plane, host};

/// The processes.
pub struct Gateway {
    plane: Plane,
    pub backend: Backend,
    /// Where it takes plain HTTP, from anybody.
    pub address: SocketAddr,
    admin: SocketAddr,
    pub process: Process,
    _control: Process,
    folder: tempfile::TempDir,
}

/// What may not get through, in Istio's words.
const POLICIES: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: ingress}
spec:
  selector: {matchLabels: {istio: edge}}
  action: DENY
  rules:
  - to: [{operation: {paths: [/admin, /admin/*, '/v1/items:delete']}}]
  - to: [{operation: {hosts: [admin.test, '*.admin.test']}}]
  - to: [{operation: {methods: [DELETE]}}]
";

impl Gateway {
    pub fn new() -> Self {
        Self::with("gatewayTopology: {}")
    }

    /// With these settings of its proxy.
    pub fn with(config: &str) -> Self {
        let (plane, folder) = (Plane::new(), tempfile::tempdir().expect("a temporary folder"));
        let backend = Backend::start(|request: &Request| {
            let lines: String = request.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
            Reply::text(format!("{} {}\n{lines}", request.method, request.target))
        });
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let gateway = format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
             spec: {{selector: {{istio: edge}}, servers: [{{port: {{number: {}, name: http, protocol: HTTP}}, hosts: ['*']}}]}}\n---\n\
             apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v, namespace: shop}}\n\
             spec: {{hosts: ['*'], gateways: [g], http: [{{route: [{{destination: {{host: back.test}}}}]}}]}}\n",
            address.port()
        );
        plane.write("gateway", &gateway);
        plane.write("back", &host("back", backend.address()));
        plane.write("policies", POLICIES);
        let log = folder.path().join("access.log");
        plane.write("mesh", &mesh(&log, "BASE", config));
        let control = plane.start();
        let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let more =
            format!("admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}\n", admin.port());
        let process = start_with(&plane, folder.path(), "ingress", Program::Evenkeel, &more);
        let gateway = Self { plane, backend, address, admin, process, _control: control, folder };
        gateway.wait_for("/public", Some("/public"));
        gateway
    }

    /// Has the mesh normalize paths in this way, and waits until a path arrives as this one, or is refused by a policy.
    pub fn normalizes(&self, mode: &str, path: &str, arrives: Option<&str>) {
        self.plane.write("mesh", &mesh(&self.log_file(), mode, "gatewayTopology: {}"));
        self.wait_for(path, arrives);
    }

    /// Has requests for `evil.test` go to this server, and waits until one does.
    pub fn sends_to(&self, server: &Backend) {
        let route = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: evil, namespace: shop}\n\
                     spec: {hosts: [evil.test], gateways: [g], http: [{route: [{destination: {host: evil.test}}]}]}\n";
        self.plane.write("evil", &format!("{}---\n{route}", host("evil", server.address())));
        eventually("a request at the server", || {
            let mut connection = Connection::open(self.address).ok()?;
            let _ = connection.get("evil.test", "/", "Connection: close\r\n");
            (!server.requests().is_empty()).then_some(())
        });
    }

    /// Opens a port where only clients with a certificate of this authority are served.
    pub fn asks_for_certificates(&self, ca: &TestCa) -> SocketAddr {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let gateway = format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: m, namespace: shop}}\n\
             spec: {{selector: {{istio: edge}}, servers: [{{port: {{number: {}, name: https, protocol: HTTPS}}, hosts: [a.test], \
             tls: {{mode: MUTUAL, credentialName: m}}}}]}}\n---\n\
             apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: m, namespace: shop}}\n\
             spec: {{hosts: [a.test], gateways: [m], http: [{{route: [{{destination: {{host: back.test}}}}]}}]}}\n",
            address.port()
        );
        self.plane.write("mutual", &(gateway + &objects::tls_secret(ca, "ingress", "m", "a.test")));
        address
    }

    /// Has these policies beside those that it begins with.
    pub fn has_policies(&self, policies: &str) {
        self.plane.write("policies", &format!("{POLICIES}{policies}"));
    }

    /// The statistics of the gateway.
    pub fn stats(&self) -> String {
        let mut connection = Connection::open(self.admin).expect("an admin port");
        connection.get("localhost", "/stats", "Connection: close\r\n").expect("statistics").text()
    }

    fn wait_for(&self, path: &str, arrives: Option<&str>) {
        eventually(&format!("{path} as {arrives:?}"), || {
            let response = Connection::open(self.address).ok()?.get("a.test", path, "Connection: close\r\n").ok()?;
            let done = match arrives {
                Some(arrives) => response.text().starts_with(&format!("GET {arrives}\n")),
                None => response.status == 403,
            };
            done.then_some(())
        });
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("access.log")
    }

    /// The access log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Waits for a line of the access log that has all of these words.
    pub fn logs(&self, words: &[&str]) {
        eventually(&format!("a line with {words:?}"), || {
            self.log().lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
        });
    }

    /// Somebody else is served as before.
    pub fn serves_others(&self) {
        let mut connection = Connection::open(self.address).expect("it accepts");
        let response = connection.get("a.test", "/public", "Connection: close\r\n").expect("it answers");
        assert_eq!(response.status, 200, "{response:?}");
    }
}

fn mesh(log: &std::path::Path, mode: &str, config: &str) -> String {
    let log = log.display();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\n\
         data:\n  mesh: |\n    outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}\n    accessLogFile: {log}\n    \
         accessLogFormat: \"%REQ(:METHOD)% %REQ(:PATH)% %REQ(:AUTHORITY)% %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% \
         hint=%DYNAMIC_METADATA(envoy.common:access_log_hint)% %DYNAMIC_METADATA(envoy.filters.http.rbac)%\\n\"\n    \
         pathNormalization: {{normalization: {mode}}}\n    defaultConfig: {{{config}}}\n"
    )
}
