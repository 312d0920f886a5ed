//! TLS from a gateway of the Gateway API to a backend, as a BackendTLSPolicy asks for it.

use std::fs;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, TestCa, eventually, free_port, objects};

use super::mesh::{get, served};
use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

/// A server that answers over TLS only, with the server name that the client has sent.
const SERVER: &str = "\
import http.server, os, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        certificate = bool(self.connection.getpeercert())
        body = ('certificate ' + str(certificate) + ', name ' + str(self.connection.name)).encode()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
folder = os.environ['EVENKEEL_VOLUME_V']
context.load_cert_chain(folder + '/cert.pem', folder + '/key.pem')
context.verify_mode = ssl.CERT_OPTIONAL
context.load_verify_locations(folder + '/root.pem')
def note(socket, name, _):
    socket.name = name
context.sni_callback = note
server = http.server.ThreadingHTTPServer(('0.0.0.0', 8000), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
";

const MESH: &str = "\
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gate}
spec: {gatewayClassName: istio, listeners: [{name: http, port: PORT, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: web, port: 80}]}]}
";

fn config_map(name: &str, entries: &[(&str, &str)]) -> String {
    let entry = |(key, text): &(&str, &str)| {
        format!("  {key}: |\n{}", text.lines().map(|line| format!("    {line}\n")).collect::<String>())
    };
    let entries: String = entries.iter().map(entry).collect();
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n{entries}---\n")
}

fn policy(validation: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: web}}\nspec:\n  \
         targetRefs: [{{group: '', kind: Service, name: web}}]\n  validation: {validation}\n"
    )
}

#[test]
fn a_gateway_calls_a_backend_by_tls_and_only_one_that_it_trusts() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder, port) = (User::present(), state(), free_port());
    let authority = TestCa::new();
    let (root, server, own) =
        (authority.root_pem(), authority.for_dns(&["web.test"]), authority.for_dns(&["gate.test"]));
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it can be written");
    let files =
        [("cert.pem", &*server.cert_pem), ("key.pem", &server.key_pem), ("root.pem", &*root), ("server.py", SERVER)];
    let web = super::deployment("web", 1, "exec python3 $EVENKEEL_VOLUME_V/server.py")
        .replace("annotations:\n", "annotations:\n        sidecar.istio.io/inject: \"false\"\n")
        .replace("spec: {containers: [{name: main,", "spec: {volumes: [{name: v, configMap: {name: server}}], containers: [{name: main, volumeMounts: [{name: v, mountPath: /etc/server}],");
    let maps = config_map("server", &files)
        + &config_map("ca", &[("ca.crt", &root)])
        + &config_map("other", &[("ca.crt", &TestCa::new().root_pem())]);
    write("web.yaml", &(maps.clone() + &web + &MESH.replace("PORT", &port.to_string())));
    let of = |map: &str, hostname: &str| {
        policy(&format!("{{hostname: {hostname}, caCertificateRefs: [{{group: '', kind: ConfigMap, name: {map}}}]}}"))
    };
    write("policy.yaml", &of("ca", "web.test"));
    let mut command = user.evenkeel(&["up"]);
    let mut up = Process::spawn(command.arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 2);
    let url = format!("http://127.0.0.1:{port}/");
    assert!(served(&url, "/").ends_with("name web.test"));
    let refused = |text: &str| {
        write("policy.yaml", text);
        eventually("a refusal", || get(&url, "/").starts_with("HTTP/1.1 503").then_some(()));
        // And back, so that the next refusal is its own.
        write("policy.yaml", &of("ca", "web.test"));
        assert!(served(&url, "/").ends_with("name web.test"));
    };
    // Another authority, another name, and no roots at all.
    refused(&of("other", "web.test"));
    refused(&of("ca", "other.test"));
    refused(&of("none", "web.test"));
    refused(&policy("{hostname: web.test, wellKnownCACertificates: System}"));
    // The name is sent, and another one is verified.
    write(
        "policy.yaml",
        &of("ca", "sent.test").replace(
            "hostname: sent.test",
            "hostname: sent.test, subjectAltNames: [{type: Hostname, hostname: web.test}]",
        ),
    );
    eventually("the other name", || get(&url, "/").ends_with("name sent.test").then_some(()));
    assert!(get(&url, "/").ends_with("certificate False, name sent.test"));
    // The Gateway has a certificate of its own for backends.
    let pair = [("tls.crt", own.cert_pem.as_str()), ("tls.key", own.key_pem.as_str())];
    let gate = MESH.replace("PORT", &port.to_string()).replace(
        "gatewayClassName: istio,",
        "gatewayClassName: istio, tls: {backend: {clientCertificateRef: {name: gate}}},",
    );
    write("web.yaml", &(maps + &web + &gate + "---\n" + &objects::secret("default", "gate", &pair)));
    eventually("a certificate", || get(&url, "/").ends_with("certificate True, name sent.test").then_some(()));
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
