//! `interceptionMode: TPROXY`: a program sees its clients' addresses, over HTTP and TCP, over mutual TLS and in plain text; and its
//! clients get its answers. Redirected connections come from the sidecar, as before.

use std::sync::PoisonError;

use evenkeel_testkit::{Signal, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, state, up_with};

/// Tells its clients their addresses: over HTTP with the length of what they have sent, over TCP before they say a word.
const SERVER: &str = "import http.server as h, socketserver as s, threading
class Web(h.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        sent = self.rfile.read(int(self.headers['content-length']))
        text = '%s %d' % (self.client_address[0], len(sent))
        self.send_response(200)
        self.send_header('content-length', str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *a): pass
class Bytes(s.BaseRequestHandler):
    def handle(self):
        self.request.sendall(self.client_address[0].encode())
s.ThreadingTCPServer.allow_reuse_address = True
threading.Thread(target=s.ThreadingTCPServer(('', 8001), Bytes).serve_forever, daemon=True).start()
h.ThreadingHTTPServer(('', 8000), Web).serve_forever()
";

/// Asks each server in each way, and says what addresses they have seen: `own` is the client's.
const CLIENT: &str = "
import http.client, socket, sys
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect((sys.argv[1], 80))
own = probe.getsockname()[0]
shown = lambda address: 'own' if address == own else address
def web(server, connection=None):
    connection = connection or http.client.HTTPConnection(server, 80, timeout=20)
    connection.request('POST', '/', b'x' * 1000000, {'x-forwarded-for': '6.6.6.6'})
    response = connection.getresponse()
    text = response.read().decode()
    address, _, length = text.partition(' ')
    return '%d %s %s' % (response.status, shown(address), length)
def tcp(server):
    with socket.create_connection((server, 9000), timeout=20) as stream:
        return shown(stream.recv(100).decode())
for server in sys.argv[1:]:
    print(server, web(server), web(server), tcp(server), sep=', ')
";

fn workload(name: &str, annotations: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80, targetPort: 8000}}, {{name: tcp, port: 9000, targetPort: 8001}}]}}\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}}}\n      \
         annotations:\n        local.evenkeel.dev/run: exec python3 server.py\n{annotations}    \
         spec: {{containers: [{{name: main, ports: [{{containerPort: 8000}}, {{containerPort: 8001}}]}}]}}\n"
    )
}

const SERVERS: [&str; 3] = ["annotated", "configured", "redirected"];

fn objects() -> String {
    let annotation = "        sidecar.istio.io/interceptionMode: TPROXY\n";
    [
        workload("annotated", annotation),
        workload("configured", "        proxy.istio.io/config: '{interceptionMode: TPROXY}'\n"),
        workload("redirected", ""),
        workload("one", ""),
        workload("plain", "        sidecar.istio.io/inject: \"false\"\n"),
    ]
    .concat()
}

#[test]
fn a_program_behind_tproxy_sees_its_clients_addresses_and_answers_them() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let mut up = up_with(&user, folder.path(), (SERVER, &objects()), 5);
    let state = user.state.path().display().to_string();
    let ask = |client: &str, servers: &[&str]| {
        let mut exec = user.evenkeel(&["exec", client, "--state", &state, "--", "python3", "-c", CLIENT]);
        let output = exec.args(servers).output().expect("exec runs");
        (String::from_utf8_lossy(&output.stdout).into_owned(), format!("{output:?}"))
    };
    let seen = |client: &str, server: &str| match (client, server) {
        (_, "redirected") => "127.0.0.6",
        _ => "own",
    };
    let expected = |client: &str, servers: &[&str]| -> String {
        let line = |server: &&str| {
            let address = seen(client, server);
            format!("{server}, 200 {address} 1000000, 200 {address} 1000000, {address}\n")
        };
        servers.iter().map(line).collect()
    };
    // One client after the other: connections that were made for the first do not serve the second. The last one calls itself.
    for (client, servers) in [("one", &SERVERS[..]), ("plain", &SERVERS), ("one", &SERVERS), ("annotated", &SERVERS)] {
        // A Pod is ready a little before the proxies of others know of it.
        let known = || Some(ask(client, servers)).filter(|(found, _)| !found.contains("no healthy upstream"));
        let (found, output) = eventually("endpoints of all servers", known);
        assert_eq!(found, expected(client, servers), "{client}: {output}\n{}", up.output());
    }
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
