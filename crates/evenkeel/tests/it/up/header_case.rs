//! `proxyHeaders.preserveHttp1HeaderCase`: header names keep their letter case from a client to a server and back, through
//! the sidecars of both, with mutual TLS between these.

use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal};

use super::user::User;
use super::{MACHINE, PATIENCE, settings, state, wait_ready};

/// Answers with the head of the request, byte for byte.
const SERVER: &str = "import socket, threading
listener = socket.create_server(('', 8000), backlog=64)
def serve(stream):
    with stream:
        head = b''
        while not head.endswith(b'\\r\\n\\r\\n'):
            piece = stream.recv(1)
            if not piece: return
            head += piece
        stream.sendall(b'HTTP/1.1 200 OK\\r\\nX-BackEnd: 1\\r\\nServer: mine\\r\\nCONTENT-Length: %d\\r\\nConnection: close\\r\\n\\r\\n' % len(head) + head)
while True:
    stream, _ = listener.accept()
    threading.Thread(target=serve, args=(stream,), daemon=True).start()
";

/// Prints what comes back, byte for byte.
const CLIENT: &str = "
import socket, sys
with socket.create_connection((sys.argv[1], 80), timeout=20) as stream:
    stream.sendall(b'GET / HTTP/1.1\\r\\nHOST: %s\\r\\nX-MiXed: 1\\r\\nx-lower: 2\\r\\nConnection: close\\r\\n\\r\\n' % sys.argv[1].encode())
    while piece := stream.recv(4096):
        sys.stdout.write(piece.decode())
";

fn workload(name: &str, annotations: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80, targetPort: 8000}}]}}\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}}}\n      \
         annotations:\n        local.evenkeel.dev/run: exec python3 server.py\n{annotations}    \
         spec: {{containers: [{{name: main, ports: [{{containerPort: 8000}}]}}]}}\n"
    )
}

#[test]
fn names_keep_their_capitals_through_two_sidecars() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let lower = "        proxy.istio.io/config: '{proxyHeaders: {preserveHttp1HeaderCase: false}}'\n";
    let mesh = settings("defaultConfig: {proxyHeaders: {preserveHttp1HeaderCase: true}}") + "---\n";
    let objects = mesh + &workload("client", "") + &workload("server", "") + &workload("lower", lower);
    std::fs::write(folder.path().join("server.py"), SERVER).expect("it can be written");
    std::fs::write(folder.path().join("objects.yaml"), objects).expect("it can be written");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 3);
    let state = user.state.path().display().to_string();
    for (server, kept, lost) in [
        (
            "server",
            &["\nHOST: server\r\n", "\nX-MiXed: 1\r\n", "\nX-BackEnd: 1\r\n"][..],
            &["x-mixed", "x-backend"][..],
        ),
        // Its own sidecar has forgotten what the client's has sent.
        ("lower", &["\nhost: lower\r\n", "\nx-mixed: 1\r\n", "\nx-backend: 1\r\n"], &["X-MiXed", "X-BackEnd"]),
    ] {
        let mut exec = user.evenkeel(&["exec", "client", "--state", &state, "--", "python3", "-c", CLIENT]);
        let output = exec.arg(server).output().expect("exec runs");
        let text = String::from_utf8_lossy(&output.stdout);
        // The proxies' own headers are in lower case. This one tells of mutual TLS.
        for part in kept.iter().chain(&["HTTP/1.1 200 OK", "\nx-lower: 2\r\n", "\nx-forwarded-client-cert: "]) {
            assert!(text.contains(part), "{server}: {part:?} is not in {output:?}\n{}", up.output());
        }
        for part in lost {
            assert!(!text.contains(part), "{server}: {part:?} is in {output:?}\n{}", up.output());
        }
    }
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
