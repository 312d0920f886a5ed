//! The output of `evenkeel mtls` for HTTP/2, TCP, a gateway, and a workload whose sidecar is a stock Envoy.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::PoisonError;
use std::time::Duration;

use evenkeel_testkit::{Process, Signal, envoy, eventually};
use serde_json::Value;

use super::mesh::served;
use super::protocols::{ECHO, GREETER};
use super::user::User;
use super::{MACHINE, PATIENCE, deployment, state, wait_ready};

/// Sends ten bytes through a workload's sidecar, and reads them back.
const CALL_ECHO: &str = "import socket; s = socket.create_connection(('echo', 9000), 10); s.sendall(b'0123456789'); \
                         got = s.recv(10, socket.MSG_WAITALL); print(len(got)); s.close()";

const MESH: &str = "---
apiVersion: v1
kind: Service
metadata: {name: greeter}
spec: {selector: {app: greeter}, ports: [{port: 80, targetPort: 8000, name: http2}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock}
spec: {selector: {app: stock}, ports: [{port: 80, targetPort: 8000, name: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {selector: {app: echo}, ports: [{port: 9000, targetPort: 8000, name: tcp}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  selector: {istio: ingressgateway}
  servers:
    - {port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}
    - {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ['*']}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: ways}
spec:
  hosts: ['*']
  gateways: [gateway]
  http: [{route: [{destination: {host: stock, port: {number: 80}}}]}]
  tcp: [{match: [{port: 9000}], route: [{destination: {host: echo, port: {number: 9000}}}]}]
";

fn write_mesh(folder: &std::path::Path) {
    let binary = folder.join("evenkeel");
    fs::copy(env!("CARGO_BIN_EXE_evenkeel"), &binary).expect("the binary can be copied");
    fs::write(folder.join("echo.py"), ECHO).expect("our own folder");
    let web = deployment("web", 1, "exec python3 -m http.server --bind 0.0.0.0 8000");
    let greeter = deployment("greeter", 1, &format!("exec {} proxy --config-yaml '{GREETER}'", binary.display()));
    let echo = deployment("echo", 1, "exec python3 echo.py");
    let annotations = format!(
        "      annotations:\n        local.evenkeel.dev/proxy: envoy\n        local.evenkeel.dev/envoy-path: {}\n",
        envoy().display()
    );
    let stock = deployment("stock", 1, "exec python3 -m http.server --bind 0.0.0.0 8000")
        .replace("      annotations:\n", &annotations);
    fs::write(folder.join("mesh.yaml"), [web, greeter, echo, stock].join("---\n") + MESH).expect("our own folder");
}

/// Asks the mesh itself.
struct LedgerOf<'m> {
    user: &'m User,
}

impl LedgerOf<'_> {
    fn run(&self, words: &[&str], more: &[&str]) -> String {
        let state = self.user.state.path().display().to_string();
        let all = [words, &["--state", &state], more].concat();
        let output = self.user.evenkeel(&all).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The edges, as `CLIENT SERVER` and what is known of each.
    fn edge(&self, client: &str, server: &str) -> Option<Value> {
        let ledger: Value = serde_json::from_str(&self.run(&["mtls"], &["-o", "json"])).expect("JSON");
        let is_it = |edge: &&Value| edge["client"]["name"] == client && edge["server"]["name"] == server;
        ledger["edges"].as_array().expect("a list").iter().find(is_it).cloned()
    }

    /// Waits for an edge that has carried something, and holds it against what is expected of it.
    fn check(&self, (client, server): (&str, &str), account: &str, seen_by: &str) {
        let edge = eventually(&format!("traffic from {client} to {server}"), || {
            self.edge(client, server).filter(|edge| edge["bytes"].as_u64().is_some_and(|bytes| bytes > 0))
        });
        assert_eq!(edge["plaintext"], false, "{edge:#}");
        assert_eq!(edge["seenBy"], seen_by, "{edge:#}");
        assert_eq!(edge["disagreement"], Value::Null, "{edge:#}");
        assert_eq!(edge["server"]["identity"], "spiffe://cluster.local/ns/default/sa/default", "{edge:#}");
        let own = edge["client"]["identity"].as_str().expect("an identity");
        assert!(own.ends_with(account), "{edge:#}");
        assert_eq!(edge["tls"]["version"], "TLSv1.3", "{edge:#}");
    }
}

/// The addresses of the gateway's ports, in their order.
fn ways_in(up: &mut Process) -> [SocketAddr; 2] {
    up.wait_for_line("Ctrl-C stops everything");
    let of_line =
        |line: &str| line.trim().trim_start_matches("http://").trim_end_matches('/').trim_end_matches(" (TCP)").parse();
    let ways: Vec<SocketAddr> = up.output().lines().filter_map(|line| of_line(line).ok()).take(2).collect();
    ways.try_into().expect("two ways in")
}

/// Ten bytes there and back.
fn echoes(at: SocketAddr) -> Option<()> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"0123456789").ok()?;
    stream.read_exact(&mut [0; 10]).ok()
}

#[test]
fn the_ledger_has_http2_tcp_gateways_and_stock_envoys() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    write_mesh(folder.path());
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(command.args(["--gateway-port", "80=0", "--gateway-port", "9000=0"]));
    wait_ready(&mut up, 5);
    let [http, tcp] = ways_in(&mut up);
    let asked = LedgerOf { user: &user };
    let within = |words: &[&str]| asked.run(&["exec", "web"], &[&["--"], words].concat());

    // HTTP/2 of the program, to a server that speaks nothing else.
    let curl = ["curl", "-s", "-m", "10", "--http2-prior-knowledge", "http://greeter/"];
    eventually("an answer over HTTP/2", || (within(&curl) == "hello").then_some(()));
    asked.check(("web.default", "greeter.default"), "/sa/default", "both");
    // TCP, whose bytes count when the connection ends.
    eventually("an echo", || (within(&["python3", "-c", CALL_ECHO]).trim() == "10").then_some(()));
    asked.check(("web.default", "echo.default"), "/sa/default", "both");
    // A stock Envoy on one side: the other one tells.
    eventually("an answer by way of Envoy", || {
        within(&["curl", "-s", "-m", "10", "http://stock/"]).contains("Directory").then_some(())
    });
    asked.check(("web.default", "stock.default"), "/sa/default", "client");
    // Through the gateway, over HTTP and over TCP.
    eventually("a page through the gateway", || {
        served(&format!("http://{http}"), "/").contains("Directory").then_some(())
    });
    asked.check(
        ("istio-ingressgateway.istio-system", "stock.default"),
        "/sa/istio-ingressgateway-service-account",
        "client",
    );
    eventually("an echo through the gateway", || echoes(tcp));
    asked.check(
        ("istio-ingressgateway.istio-system", "echo.default"),
        "/sa/istio-ingressgateway-service-account",
        "both",
    );

    // Clients outside the mesh are no edges, and their addresses are not kept. What is not known is said.
    let text = asked.run(&["mtls"], &[]);
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with(['✓', '✗', '!'])).collect();
    assert!(rows.len() == 6 && rows[5] == "✓ nothing in plain text", "{text}");
    assert!(text.contains("note: stock-") && text.contains("a stock Envoy does not keep it"), "{text}");
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
