//! Compares the output of `mtls`, `prove` and `authz check` for a running mesh with the bytes on the wire and the calls that
//! get through.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLockReadGuard};

use evenkeel_testkit::{Process, Signal, eventually};
use serde_json::Value;

use super::processes::Running;
use super::user::{User, is_root};
use super::{MACHINE, PATIENCE, wait_ready};

/// Answers 200 to everything.
const SERVE: &str = "exec python3 -c \"
import http.server as h
class Handler(h.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        self.rfile.read(int(self.headers.get('content-length') or 0))
        self.send_response(200)
        self.send_header('content-length', '2')
        self.end_headers()
        if self.command != 'HEAD': self.wfile.write(b'ok')
    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer
    def log_message(self, *a): pass
h.ThreadingHTTPServer(('', 8000), Handler).serve_forever()
\"";

const MESH: &str = "\
apiVersion: v1
kind: Service
metadata: {name: api}
spec: {clusterIP: None, selector: {app: api}, ports: [{name: http, port: 8000}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: plain, namespace: plain}
spec: {host: api.default.svc.cluster.local, trafficPolicy: {tls: {mode: DISABLE}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: api}
spec:
  selector: {matchLabels: {app: api}}
  rules:
    - to: [{operation: {methods: [GET, PUT], paths: [/ok, '/deep/{*}/end']}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: never}
spec:
  selector: {matchLabels: {app: api}}
  action: DENY
  rules:
    - to: [{operation: {methods: [GET], paths: [/ok]}}]
      when: [{key: 'request.headers[x-pass]', notValues: ['let-*']}]
---
";

const STRICT: &str = "\
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: api, namespace: default}
spec: {selector: {matchLabels: {app: api}}, mtls: {mode: STRICT}}
";

/// The same workload behind an address of its own, which `up` translates for clients without a sidecar.
const VIRTUAL: &str = "\
apiVersion: v1
kind: Service
metadata: {name: virtual}
spec: {selector: {app: api}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
";

/// The clients, with their namespaces.
const CLIENTS: [(&str, &str); 4] = [("web", "default"), ("dis", "plain"), ("old", "default"), ("aside", "default")];

fn workload(name: &str, namespace: &str, annotations: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}}}\n      \
         annotations:\n        local.evenkeel.dev/run: {SERVE:?}\n{annotations}    \
         spec: {{serviceAccountName: {name}, containers: [{{name: main, ports: [{{containerPort: 8000}}]}}]}}\n---\n"
    )
}

struct Mesh {
    user: User,
    up: Process,
    folder: tempfile::TempDir,
    _among_others: RwLockReadGuard<'static, ()>,
}

impl Mesh {
    fn start() -> Self {
        let among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        let (user, folder) = (User::present(), super::state());
        let text = [
            MESH.to_owned(),
            VIRTUAL.to_owned(),
            workload("api", "default", ""),
            workload("web", "default", ""),
            workload("dis", "plain", ""),
            workload("old", "default", "        sidecar.istio.io/inject: \"false\"\n"),
            workload("aside", "default", "        traffic.sidecar.istio.io/excludeOutboundPorts: \"8000\"\n"),
        ];
        std::fs::write(folder.path().join("mesh.yaml"), text.concat()).expect("our own folder");
        let mut command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(user.state.path());
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, 5);
        Self { user, up, folder, _among_others: among_others }
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let (command, more) = arguments.split_first().expect("a command");
        let mut all = vec![*command];
        let split = more.iter().position(|word| *word == "--").unwrap_or(more.len());
        let state = self.user.state.path().display().to_string();
        all.extend(&more[..split]);
        all.extend(["--state", &state]);
        all.extend(&more[split..]);
        let output = self.user.evenkeel(&all).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
    }

    fn json(&self, arguments: &[&str], status: i32) -> Value {
        let (code, text) = self.run(&[arguments, &["-o", "json"]].concat());
        assert_eq!(code, Some(status), "{arguments:?}: {text}");
        serde_json::from_str(&text).unwrap_or_else(|wrong| panic!("{arguments:?}: {wrong}: {text}"))
    }

    /// The status that a workload gets; `000`: no answer.
    fn call(&self, (name, namespace): (&str, &str), curl: &[&str]) -> String {
        let fixed =
            ["exec", name, "-n", namespace, "--", "curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"];
        let (_, text) = self.run(&[&fixed[..], curl].concat());
        text.lines().next().unwrap_or_default().get(..3).unwrap_or_default().to_owned()
    }

    /// The status that the command gets which a proof prints.
    fn fire(&self, curl: &str) -> String {
        let binary = self.user.binary.display();
        let state = self.user.state.path().display();
        let (before, after) = curl.split_once(" -- curl ").expect("a command inside a workload");
        let before = before.strip_prefix("evenkeel exec ").expect("a command inside a workload");
        let line =
            format!("{binary} exec {before} --state {state} -- curl -o /dev/null -w '%{{http_code}}' -m 20 {after}");
        let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn end(mut self) {
        self.up.signal(Signal::SIGINT);
        assert!(self.up.wait_for_exit(PATIENCE).success(), "{}", self.up.output());
        drop(self.folder);
    }
}

/// Captures packets in the network namespace of a workload's replica.
struct Capture {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Capture {
    fn of(mesh: &Mesh, workload: &str) -> Self {
        let agent = Running::all_of(mesh.user.state.path()).into_iter().find(|process| process.is_agent_of(workload));
        let agent = agent.expect("its agent runs").pid.to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &agent, "--net"]);
        if !is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        let script = mesh.folder.path().join("capture.py");
        std::fs::write(&script, include_str!("capture.py")).expect("our own folder");
        let mut child = command
            .arg("python3")
            .arg(script)
            .arg("8000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter is there");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("it says something");
        assert_eq!(line, "capturing\n");
        Self { child, lines }
    }

    fn end(mut self) -> Vec<Value> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.lines.read_to_string(&mut text).expect("it says what it has seen");
        assert!(self.child.wait().expect("it ends").success());
        serde_json::from_str(&text).unwrap_or_else(|wrong| panic!("{wrong}: {text}"))
    }
}

/// The edges to a server, as `CLIENT SECURED CONNECTIONS`.
fn edges<'j>(ledger: &'j Value, server: &str) -> Vec<&'j Value> {
    let all = ledger["edges"].as_array().expect("a list");
    all.iter().filter(|edge| edge["server"]["name"] == server && edge["port"] == 8000).collect()
}

fn connections<'j>(edges: impl Iterator<Item = &'j Value>) -> u64 {
    edges.map(|edge| edge["connections"].as_u64().expect("a number")).sum()
}

#[test]
fn the_ledger_the_wire_and_the_proofs_agree() {
    let mesh = Mesh::start();
    let capture = Capture::of(&mesh, "api");
    let allowed = ["-H", "x-pass: let-me", "http://api:8000/ok"];
    let full = ["-H", "x-pass: let-me", "http://api.default:8000/ok"];
    for client in CLIENTS {
        eventually("an answer", || {
            (mesh.call(client, if client.1 == "default" { &allowed } else { &full }) == "200").then_some(())
        });
    }
    // The address of a Service is not that of its client's bridge.
    let by_address = ["-H", "x-pass: let-me", "http://virtual/ok"];
    eventually("an answer by the Service's address", || (mesh.call(CLIENTS[2], &by_address) == "200").then_some(()));
    let seen = capture.end();

    the_ledger_says_what_was_on_the_wire(&mesh, &seen);
    a_witness_gets_through_and_nothing_else(&mesh);
    exactly_those_break_of_whom_it_was_said(&mesh, allowed, full);
    mesh.end();
}

fn the_ledger_says_what_was_on_the_wire(mesh: &Mesh, seen: &[Value]) {
    let ledger = mesh.json(&["mtls"], 0);
    let to_api = edges(&ledger, "api.default");
    let is_plain = |edge: &&&Value| edge["plaintext"] == true;
    let told = |edge: &Value| edge["client"]["name"].as_str().unwrap_or_default().to_owned();
    let mut plain: Vec<String> = to_api.iter().filter(is_plain).map(|edge| told(edge)).collect();
    plain.sort();
    assert_eq!(plain, ["aside.default", "dis.plain", "old.default"], "{ledger:#}");
    let on_wire = |tls: bool| seen.iter().filter(|one| one["tls"] == tls).count() as u64;
    assert_eq!(
        connections(to_api.iter().copied().filter(|edge| edge["plaintext"] == true)),
        on_wire(false),
        "{seen:#?}\n{ledger:#}"
    );
    assert_eq!(
        connections(to_api.iter().copied().filter(|edge| edge["plaintext"] == false)),
        on_wire(true),
        "{seen:#?}\n{ledger:#}"
    );
    let secured: Vec<&&Value> = to_api.iter().filter(|edge| edge["plaintext"] == false).collect();
    let [secured] = secured.as_slice() else { panic!("{ledger:#}") };
    assert_eq!(secured["client"]["identity"], "spiffe://cluster.local/ns/default/sa/web");
    assert_eq!(secured["server"]["identity"], "spiffe://cluster.local/ns/default/sa/api");
    assert_eq!((&secured["seenBy"], &secured["disagreement"]), (&"both".into(), &Value::Null), "{ledger:#}");
    assert_eq!(secured["tls"]["group"], "X25519MLKEM768", "{ledger:#}");
    for one in seen.iter().filter(|one| one["tls"] == true) {
        assert_eq!(one["version"], secured["tls"]["version"], "{one}");
        assert_eq!(one["group"], 0x11ec, "X25519MLKEM768: {one}");
        assert_eq!(one["sni"], "outbound_.8000_._.api.default.svc.cluster.local", "{one}");
    }
    assert!(
        seen.iter()
            .filter(|one| one["tls"] == false)
            .all(|one| one["begins"].as_str().is_some_and(|text| text.starts_with("GET /ok")))
    );
    let (status, text) = mesh.run(&["mtls", "--fail-on-plaintext"]);
    assert!(status == Some(2) && text.contains("✗ in plain text"), "{text}");
    let (status, text) = mesh.run(&["mtls", "--workload", "web.default", "--fail-on-plaintext"]);
    assert!(status == Some(0) && text.contains("✓ nothing in plain text"), "{text}");
}

/// A proof's witness gets through, and what is proven unreachable does not; what holds is in the proxy.
fn a_witness_gets_through_and_nothing_else(mesh: &Mesh) {
    let proof = mesh.json(&["prove", "--from", "web.default", "--to", "api.default"], 1);
    let curl = proof["witness"]["curl"].as_str().expect("a witness");
    assert_eq!(mesh.fire(curl), "200", "{proof:#}");
    let deep = mesh.json(&["prove", "--from", "dis.plain", "--to", "api.default", "--method", "PUT"], 1);
    assert_eq!(mesh.fire(deep["witness"]["curl"].as_str().expect("a witness")), "200", "{deep:#}");
    for (method, path) in
        [("POST", "/ok"), ("GET", "/OK"), ("PUT", "/deep/a/b/end"), ("GET", "/okay"), ("DELETE", "/deep/a/end")]
    {
        let proof = mesh
            .json(&["prove", "--from", "web.default", "--to", "api.default", "--method", method, "--path", path], 0);
        assert!(proof["reasons"][0]["sources"][0]["line"].is_number(), "{proof:#}");
        for more in ["x-pass: let-me", "x-pass: no", "x-other: 1"] {
            let url = format!("http://api:8000{path}");
            assert_eq!(
                mesh.call(("web", "default"), &["--path-as-is", "-X", method, "-H", more, &url]),
                "403",
                "{method} {path} {more}"
            );
        }
    }
    let (status, text) = mesh.run(&["prove", "--from", "web.default", "--to", "api.default", "--expect", "reachable"]);
    assert_eq!(status, Some(0), "{text}");

    // What holds at the workload, and in its proxy.
    let check = mesh.json(&["authz", "check", "api.default", "--proxy"], 0);
    assert_eq!(check["running"]["agrees"], true, "{check:#}");
    assert_eq!(check["policies"][0]["action"], "DENY", "{check:#}");
}

/// The clients that break when PeerAuthentication becomes STRICT. `allowed` and `full` are calls that the policies let pass.
fn exactly_those_break_of_whom_it_was_said(mesh: &Mesh, allowed: [&str; 3], full: [&str; 3]) {
    let found = mesh.json(&["mtls", "api.default", "--what-if", "strict"], 2);
    let breaks: Vec<(&str, &str)> = found["breaks"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (one["client"].as_str().expect("a name"), one["knownFrom"].as_str().expect("a word")))
        .collect();
    assert_eq!(breaks, [("aside.default", "both"), ("dis.plain", "both"), ("old.default", "both")], "{found:#}");
    let file = mesh.folder.path().join("strict.change");
    std::fs::write(&file, STRICT).expect("our own folder");
    let (status, text) = mesh.run(&["apply", "-f", &file.display().to_string(), "--wait"]);
    assert_eq!(status, Some(0), "{text}");
    for client in CLIENTS {
        let url = if client.1 == "default" { &allowed } else { &full };
        let wanted =
            if breaks.iter().any(|(name, _)| *name == format!("{}.{}", client.0, client.1)) { "no" } else { "200" };
        // A connection that was open before is closed behind the request that is on it.
        eventually(&format!("{wanted} for {client:?}"), || {
            let status = mesh.call(client, url);
            ((status == "200") == (wanted == "200")).then_some(())
        });
    }
    what_was_refused_is_told_with_its_client(mesh);
    let proof = mesh.json(&["prove", "--from", "old.default", "--to", "api.default"], 0);
    assert!(proof["reasons"][0]["text"].as_str().is_some_and(|text| text.contains("only mutual TLS")), "{proof:#}");
}

/// The workloads whose plain text STRICT refuses are listed by their names.
fn what_was_refused_is_told_with_its_client(mesh: &Mesh) {
    let ledger = mesh.json(&["mtls"], 0);
    let refused = |edge: &&&Value| edge["refused"].as_u64().is_some_and(|count| count > 0);
    let name = |edge: &&Value| edge["client"]["name"].as_str().unwrap_or_default().to_owned();
    let mut clients: Vec<String> = edges(&ledger, "api.default").iter().filter(refused).map(name).collect();
    clients.sort();
    assert_eq!(clients, ["aside.default", "dis.plain", "old.default"], "{ledger:#}");
    let (_, text) = mesh.run(&["mtls"]);
    for client in clients {
        let line = format!("✗ refused: {client} → api.default:8000: ");
        assert!(text.lines().any(|own| own.starts_with(&line) && own.ends_with("in plain text")), "{client}: {text}");
    }
}
