//! `interceptionMode: NONE`: nothing of a workload is captured. It calls its proxy at 127.0.0.1, and is called at the ports that
//! its Sidecar names; both are mutual TLS of the mesh.

use std::sync::PoisonError;

use evenkeel_testkit::Signal;

use super::user::User;
use super::{MACHINE, PATIENCE, state, up_with};

/// Tells its clients as whom the proxy knows them, and where they come from.
const SERVER: &str = "import http.server as h, sys
class Web(h.BaseHTTPRequestHandler):
    def do_GET(self):
        text = '%s from %s' % (self.headers.get('x-forwarded-client-cert', 'nobody'), self.client_address[0])
        self.send_response(200)
        self.send_header('content-length', str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *a): pass
h.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Web).serve_forever()
";

/// Asks for a URL with a `Host`.
const CLIENT: &str = "
import sys, urllib.request as r, urllib.error as e
request = r.Request(sys.argv[1], headers={'host': sys.argv[2]})
try:
    with r.urlopen(request, timeout=20) as response:
        print(response.status, response.read().decode())
except e.HTTPError as error:
    print(error.code)
except OSError:
    print('closed')
";

fn workload(name: &str, annotations: &str, listens: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 8080, targetPort: 8000}}]}}\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}}}\n      \
         annotations:\n        local.evenkeel.dev/run: exec python3 server.py {listens}\n{annotations}    \
         spec: {{serviceAccountName: {name}, containers: [{{name: main, ports: [{{containerPort: 8000}}]}}]}}\n---\n\
         apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}}}\n"
    )
}

fn objects() -> String {
    let none = "        sidecar.istio.io/interceptionMode: NONE\n";
    let sidecar = "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: free}\nspec:\n  \
                   workloadSelector: {labels: {app: free}}\n  \
                   ingress: [{port: {number: 8000, protocol: HTTP, name: http}, defaultEndpoint: '127.0.0.1:8001'}]\n  \
                   egress: [{hosts: ['*/*']}]\n";
    let strict = "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: istio-system}\n\
                  spec: {mtls: {mode: STRICT}}\n";
    [workload("free", none, "127.0.0.1 8001"), workload("web", "", "'' 8000"), sidecar.into(), strict.into()].concat()
}

#[test]
fn a_workload_that_nothing_captures_calls_and_is_called_at_bound_ports() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let mut up = up_with(&user, folder.path(), (SERVER, &objects()), 2);
    let state = user.state.path().display().to_string();
    let check = |client: &str, url: &str, host: &str, expected: &[&str]| {
        let mut exec = user.evenkeel(&["exec", client, "--state", &state, "--", "python3", "-c", CLIENT, url, host]);
        let output = exec.output().expect("exec runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        for part in expected {
            assert!(said.contains(part), "{client} {url} {host}: {output:?}\n{}", up.output());
        }
    };
    let by = |name: &str| format!("URI=spiffe://cluster.local/ns/default/sa/{name}");
    check("free", "http://127.0.0.1:8080/", "web", &["200", &by("free")]);
    check("free", "http://127.0.0.1:8080/", "web.default.svc.cluster.local", &["200", &by("free")]);
    // What is not known has nowhere to go: there is no original destination.
    check("free", "http://127.0.0.1:8080/", "unknown.example", &["502"]);
    check("web", "http://free:8080/", "free", &["200", &by("web"), "from 127.0.0.1"]);
    // Past its proxy there is no certificate, which the other side demands.
    check("free", "http://web:8080/", "web", &["closed"]);
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
