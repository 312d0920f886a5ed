//! A Sidecar's `HTTP_PROXY` and Unix sockets in a live proxy that the control plane configures, and in `explain`.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::{Backend, Process, eventually, free_port};
use serde_json::Value;

use crate::mesh::{Plane, host};

/// Without mutual TLS, and so without agents that have certificates.
const MESH: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: '{enableAutoMtls: false}'}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: v1
kind: Pod
metadata: {name: client-0, namespace: shop, labels: {app: client}}
spec: {serviceAccountName: client, containers: [{name: main}]}
status: {podIP: 10.244.0.1, phase: Running, conditions: [{type: Ready, status: 'True'}]}
";

const BOOTSTRAP: &str = r#"
node:
  id: sidecar~10.244.0.1~client-0.shop~shop.svc.cluster.local
  metadata:
    NAMESPACE: shop
    SERVICE_ACCOUNT: client
    EVENKEEL: {SCOPE: SCOPE_OF_PROXY, LISTENERS: [virtualInbound, virtualOutbound]}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: xds}}]
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
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
"#;

/// The client's proxy.
fn start(plane: &Plane, folder: &Path, scope: &str) -> Process {
    let text = BOOTSTRAP.replace("SCOPE_OF_PROXY", scope).replace("XDS_PORT", &plane.grpc.to_string());
    let path = folder.join("bootstrap.yaml");
    std::fs::write(&path, text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let mut process = Process::spawn(command.args(["proxy", "--concurrency", "1", "-c"]).arg(path));
    process.wait_for_line("state=\"LIVE\"");
    process
}

fn sidecar(port: u16, socket: &Path) -> String {
    format!(
        "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec:
  egress:
    - {{port: {{number: {port}, protocol: HTTP_PROXY}}, captureMode: NONE, hosts: ['./*']}}
    - {{port: {{protocol: HTTP}}, bind: 'unix://{}', hosts: ['./one.test']}}
    - {{hosts: ['~/*']}}
",
        socket.display()
    )
}

/// Status, and the backend that has answered.
fn answer(mut stream: impl std::io::Read + std::io::Write, head: &str) -> Option<(u16, String)> {
    stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    let backend = text.lines().find_map(|line| line.strip_prefix("x-backend: ")).unwrap_or_default();
    Some((status, backend.to_owned()))
}

#[test]
fn requests_of_any_port_go_through_it() {
    let backends = ["one", "two"].map(Backend::echo);
    let [one, two] = [backends[0].address(), backends[1].address()];
    let folder = tempfile::tempdir().expect("a folder");
    let (port, socket) = (free_port(), folder.path().join("egress.sock"));
    let plane = Plane::new();
    plane.write("mesh", MESH);
    let other_port = host("two", two).replace("number: 80", "number: 8080");
    plane.write("hosts", &format!("{}---\n{other_port}", host("one", one)));
    plane.write("sidecar", &sidecar(port, &socket));
    let _control = plane.start();
    for scope in ["full", "learned"] {
        let proxy = start(&plane, folder.path(), scope);
        let local = SocketAddr::from(([127, 0, 0, 1], port));
        let by_port = |head: &str| answer(TcpStream::connect(local).ok()?, head);
        let by_socket = |head: &str| answer(UnixStream::connect(&socket).ok()?, head);
        let check = |what: &str, found: &dyn Fn() -> Option<(u16, String)>, expected: (u16, &str)| {
            let (status, backend) = expected;
            let reached = eventually(&format!("{scope} {what}"), || found().filter(|(status, _)| *status != 503));
            assert_eq!(reached, (status, backend.to_owned()), "{scope} {what}");
        };
        let absolute = |url: &str, host: &str| format!("GET http://{url}/ HTTP/1.1\r\nhost: {host}");
        check("absolute form", &|| by_port(&absolute("one.test", "one.test")), (200, "one"));
        // The target counts, not the header.
        check("another host", &|| by_port(&absolute("two.test:8080", "one.test")), (200, "two"));
        check("origin form", &|| by_port("GET / HTTP/1.1\r\nhost: two.test:8080"), (200, "two"));
        check("another port", &|| by_port(&absolute("two.test:81", "two.test")), (502, ""));
        check("an unknown host", &|| by_port(&absolute("three.test", "three.test")), (502, ""));
        // It makes no tunnels, as Istio's.
        check("CONNECT", &|| by_port("CONNECT one.test:80 HTTP/1.1\r\nhost: one.test:80"), (404, ""));
        check("the socket", &|| by_socket("GET / HTTP/1.1\r\nhost: one.test"), (200, "one"));
        check("what it does not import", &|| by_socket("GET / HTTP/1.1\r\nhost: two.test:8080"), (502, ""));
        drop(proxy);
    }
    let told = explained(&plane.config(), port, "two.test:8080");
    assert_eq!(told["outcome"], "forward", "{told}");
    assert!(told.to_string().contains(&two.to_string()), "{told}");
    assert_eq!(explained(&plane.config(), port, "three.test")["status"], 502);
    // The same of the socket, named as curl and as the Sidecar do.
    let path = socket.display().to_string();
    for named in [path.clone(), format!("unix://{path}")] {
        let told = explained_by(&plane.config(), &["--unix-socket", &named, "--url", "http://one.test/"]);
        assert_eq!(
            (&told["outcome"], &told["listener"]),
            (&"forward".into(), &format!("unix://{path}_0").into()),
            "{told}"
        );
        assert_eq!(told["call"]["address"], *path, "{told}");
        assert!(told.to_string().contains(&one.to_string()), "{told}");
    }
    let told = explained_by(&plane.config(), &["--unix-socket", &path, "--url", "http://two.test:8080/"]);
    assert_eq!(told["status"], 502, "{told}");
    let told = explained_by(&plane.config(), &["--unix-socket", "/not/there.sock", "--url", "http://one.test/"]);
    assert_eq!(
        (&told["outcome"], &told["reason"]),
        (&"reset".into(), &"nothing listens on /not/there.sock".into()),
        "{told}"
    );
}

fn explained(config: &Path, port: u16, host: &str) -> Value {
    explained_by(config, &["--url", &format!("http://127.0.0.1:{port}/"), "-H", &format!("host: {host}")])
}

fn explained_by(config: &Path, call: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("explain").arg("-f").arg(config).args(["-o", "json", "--from", "client-0.shop"]);
    command.args(call);
    let output = command.output().expect("it runs");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}
