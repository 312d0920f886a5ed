//! Istio's sample of external authorization, unchanged: the manifest of the server, the providers of the documentation, and
//! its policy.

use std::fs;
use std::net::SocketAddr;
use std::sync::PoisonError;

use evenkeel_testkit::authz::authz_server;
use evenkeel_testkit::{Connection, Process, Signal, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, state, url, wait_ready};

/// `samples/extauthz/ext-authz.yaml`, without its comments.
const SAMPLE: &str = r#"
apiVersion: v1
kind: Service
metadata:
  name: ext-authz
  labels:
    app: ext-authz
spec:
  ports:
  - name: http
    port: 8000
    targetPort: 8000
  - name: grpc
    port: 9000
    targetPort: 9000
  selector:
    app: ext-authz
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: ext-authz
spec:
  replicas: 1
  selector:
    matchLabels:
      app: ext-authz
  template:
    metadata:
      labels:
        app: ext-authz
        sidecar.istio.io/inject: "false" # do not inject the sidecar
    spec:
      containers:
      - image: registry.istio.io/testing/ext-authz:latest
        imagePullPolicy: Always
        name: ext-authz
        ports:
        - containerPort: 8000
        - containerPort: 9000
"#;

/// What the documentation adds to the mesh's settings.
const SETTINGS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: "sample-ext-authz-grpc"
      envoyExtAuthzGrpc:
        service: "ext-authz.default.svc.cluster.local"
        port: "9000"
    - name: "sample-ext-authz-http"
      envoyExtAuthzHttp:
        service: "ext-authz.default.svc.cluster.local"
        port: "8000"
        includeRequestHeadersInCheck: ["x-ext-authz"]
"#;

pub(super) const HTTPBIN: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: httpbin}
spec: {selector: {app: httpbin}, ports: [{name: http, port: 8000, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: httpbin}
spec:
  selector: {matchLabels: {app: httpbin}}
  template:
    metadata: {labels: {app: httpbin}}
    spec: {containers: [{name: httpbin, image: docker.io/mccutchen/go-httpbin:v2.15.0, ports: [{containerPort: 8080}]}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: httpbin}
spec: {hosts: ['*'], gateways: [gateway], http: [{route: [{destination: {host: httpbin}}]}]}
"#;

pub(super) const APPLICATION: &str = r#"{static_resources: {listeners: [{name: web, address: {socket_address: {address: 0.0.0.0, port_value: 8080}}, filter_chains: [{filters: [{name: hcm, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: web, route_config: {name: local, virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]}]}, http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}]}}"#;

fn policy(provider: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: ext-authz}}\nspec:\n  \
         selector: {{matchLabels: {{app: httpbin}}}}\n  action: CUSTOM\n  provider: {{name: {provider}}}\n  \
         rules: [{{to: [{{operation: {{paths: [\"/headers\"]}}}}]}}]\n"
    )
}

#[test]
fn istios_sample_of_external_authorization_works_unchanged() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let program = |name: &str| folder.path().join(name);
    fs::copy(env!("CARGO_BIN_EXE_evenkeel"), program("evenkeel")).expect("the binary can be copied");
    fs::copy(authz_server(), program("authz")).expect("the server can be copied");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("our own folder");
    let [evenkeel, authz, application] =
        ["evenkeel", "authz", "application.txt"].map(program).map(|path| path.display().to_string());
    write("ext-authz.yaml", SAMPLE);
    write("settings.yaml", SETTINGS);
    write("httpbin.yaml", HTTPBIN);
    write("policy.yaml", &policy("sample-ext-authz-http"));
    write("application.txt", APPLICATION);
    write(
        "evenkeel.yaml",
        &format!(
            "workloads:\n  ext-authz: {{command: 'exec {authz} -log'}}\n  \
             httpbin: {{command: 'exec {evenkeel} proxy --config-yaml \"$(cat {application})\"'}}\n"
        ),
    );
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path()).args(["--gateway-port", "0"]);
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 2);
    let url = url(&mut up);
    let gateway: SocketAddr = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
    let status = |path: &str, header: &str| {
        let mut client = Connection::open(gateway).ok()?;
        client.get("httpbin", path, header).ok().map(|answer| answer.status)
    };
    // Of a path that is not judged, of one without and with what the server wants.
    let is = |what: &str, expected: [u16; 3]| {
        eventually(what, || {
            let seen = [
                status("/ip", ""),
                status("/headers", "x-ext-authz: deny\r\n"),
                status("/headers", "x-ext-authz: allow\r\n"),
            ];
            (seen == expected.map(Some)).then_some(())
        });
    };
    is("a decision by HTTP", [200, 403, 200]);
    write("policy.yaml", &policy("sample-ext-authz-grpc"));
    is("a decision by gRPC", [200, 403, 200]);
    write("policy.yaml", &policy("nobody"));
    is("no provider, no request", [200, 403, 403]);
    write("policy.yaml", &policy("sample-ext-authz-grpc"));
    is("a decision again", [200, 403, 200]);
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
