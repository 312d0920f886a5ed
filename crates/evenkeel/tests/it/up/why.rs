//! `evenkeel why`: each cause happens to a request of a real mesh, and is named.

use std::fmt::Write as _;
use std::sync::PoisonError;

use evenkeel_testkit::jwt::Signer;
use evenkeel_testkit::{Process, Signal, eventually};
use serde_json::Value;

use super::user::User;
use super::{MACHINE, PATIENCE, deployment, state, up_with};

const PROGRAM: &str = include_str!("why.py");

/// The limits, the routes and the policies that decide; each on lines of its own.
const RULES: &str = r#"---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server}
spec:
  hosts: [server]
  http:
  - {name: route-timeout, match: [{uri: {exact: /slow-route}}], timeout: 0.2s, route: [{destination: {host: server}}]}
  - name: try-timeout
    match: [{uri: {exact: /slow-try}}]
    retries: {attempts: 1, perTryTimeout: 0.2s, retryOn: 5xx}
    route: [{destination: {host: server}}]
  - name: abort
    match: [{uri: {exact: /abort}}]
    fault: {abort: {httpStatus: 503, percentage: {value: 100}}}
    route: [{destination: {host: server}}]
  - name: delay
    match: [{uri: {exact: /delay}}]
    fault: {delay: {fixedDelay: 0.4s, percentage: {value: 100}}}
    route: [{destination: {host: server}}]
  - name: rest
    match: [{uri: {regex: "/(slow|reset|error|large|secret|token|slow-leave)"}}]
    retries: {attempts: 0}
    route: [{destination: {host: server}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: narrow}
spec:
  host: narrow
  trafficPolicy:
    connectionPool:
      tcp:
        maxConnections: 1
      http: {http1MaxPendingRequests: 1}
    # HTTP/1.1: a connection carries one request at a time.
    tls: {mode: DISABLE}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: flaky}
spec:
  host: flaky
  trafficPolicy:
    outlierDetection: {consecutive5xxErrors: 1, interval: 1s, baseEjectionTime: 120s, maxEjectionPercent: 100}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: wrongtls}
spec: {host: wrongtls, trafficPolicy: {tls: {mode: SIMPLE}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-secrets}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{to: [{operation: {paths: [/secret]}}]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens}
spec:
  selector: {matchLabels: {app: server}}
  jwtRules: [{issuer: nobody, jwks: '{"keys": [KEY]}'}]
"#;

fn objects() -> String {
    let mut all = String::new();
    for (name, port) in [("server", 8000), ("silent", 8999), ("narrow", 8000), ("flaky", 8000), ("wrongtls", 8000)] {
        let _ = writeln!(
            all,
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{selector: {{app: server}}, ports: \
             [{{name: http, port: 8000, targetPort: {port}}}]}}\n---"
        );
    }
    let server = deployment("server", 1, "exec python3 server.py serve");
    let client = deployment("client", 1, "exec python3 server.py serve");
    let rules = RULES.replace("KEY", &Signer::ed25519("nobody").jwk());
    format!("{all}{server}---\n{client}{rules}")
}

/// What is asked, and the answer: cause, whose fault it is, and words of the sentence.
struct Row {
    id: &'static str,
    to: &'static str,
    cause: Value,
    fault: &'static str,
    words: &'static [&'static str],
}

fn row(to: &'static str, cause: &str, fault: &'static str, words: &'static [&'static str]) -> Row {
    let cause = match cause.split_once(' ') {
        Some((slow, kind)) => serde_json::json!({ slow: kind }),
        None => cause.into(),
    };
    Row { id: "", to, cause, fault, words }
}

/// One call for each cause.
fn rows() -> Vec<Row> {
    let mut rows = vec![
        row("server:8000/slow", "slow endpoint", "server", &["the server's application (server-", " of "]),
        row(
            "silent:8000/",
            "connectionRefused",
            "server",
            &["the server's application (server-", "does not listen", ":8999 refused the connection"],
        ),
        row("server:8000/reset", "connectionReset", "server", &["closed or reset the connection before it answered"]),
        row("server:8000/error", "serverError", "server", &["the server's application (server-", "answered 500"]),
        row(
            "server:8000/slow-route",
            "routeTimeout",
            "server",
            &["objects.yaml:", "ended after ", "the server's application"],
        ),
        row("server:8000/slow-try", "tryTimeout", "server", &["objects.yaml:", "in each of 2 tries"]),
        row(
            "server:8000/abort",
            "faultInjected",
            "configuration",
            &["answered 503: a fault is injected", "objects.yaml:"],
        ),
        row("server:8000/delay", "slow filter", "configuration", &["delayed it by 4", "objects.yaml:"]),
        row(
            "server:8000/nowhere",
            "noRoute",
            "configuration",
            &["no route of the client's proxy", "GET server:8000/nowhere"],
        ),
        row(
            "server:8000/secret",
            "deniedByPolicy",
            "configuration",
            &["AuthorizationPolicy default/no-secrets, ", "denies spiffe://cluster.local/ns/default/sa/"],
        ),
        row("server:8000/token", "invalidToken", "client", &["the server's proxy (server-", "refused its token: "]),
        row(
            "server:8000/large",
            "slow clientReads",
            "client",
            &["the client took ", "to read the response of the client's proxy"],
        ),
        row("wrongtls:8000/", "tlsFailure", "network", &["the TLS handshake of the client's proxy", "failed"]),
        row("server:8000/slow-leave", "clientLeft", "client", &["the client left after ", "the server's application"]),
    ];
    let ids = (0..rows.len()).map(|n| &*format!("{n:08x}-0000-4000-8000-000000000000").leak());
    rows.iter_mut().zip(ids).for_each(|(row, id)| row.id = id);
    rows
}

/// A mesh with a client and a server.
pub(super) struct Mesh {
    pub(super) user: User,
    pub(super) up: Process,
    _folder: tempfile::TempDir,
}

impl Mesh {
    pub(super) fn new() -> Self {
        let (user, folder) = (User::present(), state());
        let up = up_with(&user, folder.path(), (PROGRAM, &objects()), 2);
        Self { user, up, _folder: folder }
    }

    /// The client makes these calls.
    pub(super) fn call(&self, calls: &[&str]) -> String {
        let state = self.user.state.path().display().to_string();
        let exec = ["exec", "client", "--state", &state, "--", "python3", "server.py"];
        let output = self.user.evenkeel(&[&exec[..], calls].concat()).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    fn why(&self, arguments: &[&str]) -> Option<Value> {
        let arguments = [&["why"], arguments, &["-o", "json"]].concat();
        let output = self.user.evenkeel(&arguments).arg("--state").arg(self.user.state.path()).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Why a request failed, or was slow, once its proxies have kept it.
    #[track_caller]
    fn judged(&self, id: &str) -> Value {
        eventually("a record of the request", || {
            self.why(&[id]).filter(|why| why["cause"].is_string() || why["cause"].is_object())
        })
    }
}

#[test]
fn each_cause_is_named_with_whose_fault_it_is() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mut mesh = Mesh::new();
    eventually("an answer of the server", || {
        mesh.call(&["ready-00-0000-4000-8000-000000000000 server:8000/error"]).contains(" 500 ").then_some(())
    });
    let rows = rows();
    let calls: Vec<String> = rows.iter().map(|row| format!("{} {}", row.id, row.to)).collect();
    let seen = mesh.call(&calls.iter().map(String::as_str).collect::<Vec<_>>());
    let mut wrong = String::new();
    for row in &rows {
        let why = mesh.judged(row.id);
        let sentence = why["sentence"].as_str().unwrap_or_default();
        let is_told = row.words.iter().all(|words| sentence.contains(words));
        if !is_told || why["cause"] != row.cause || why["fault"] != row.fault {
            let _ = writeln!(wrong, "{}: {} by {}: {sentence}", row.to, why["cause"], why["fault"]);
        }
    }
    assert!(wrong.is_empty(), "{wrong}\n{seen}");
    // The first request to a service is held until the client's proxy has its configuration.
    let held = mesh.judged(rows[1].id);
    let phases = held["hops"][0]["request"]["phases"].as_array().expect("phases");
    assert!(phases.iter().any(|phase| phase["kind"] == "configuration"), "{held:#}");
    limits_are_named(&mesh);
    ejected_hosts_are_named(&mesh);
    all_are_grouped(&mesh);
    mesh.up.signal(Signal::SIGINT);
    assert!(mesh.up.wait_for_exit(PATIENCE).success(), "{}", mesh.up.output());
}

/// Of three calls at once, one has the only connection, one waits for it, and one is refused.
fn limits_are_named(mesh: &Mesh) {
    let ids = ["narrow-0", "narrow-1", "narrow-2"].map(|id| format!("{id}-0000-4000-8000-000000000000"));
    let paths = ["slow", "", ""];
    let calls = [0, 1, 2].map(|n: usize| format!("{} narrow:8000/{}", ids[n], paths[n]));
    let first = "narrow-x-0000-4000-8000-000000000000 narrow:8000/";
    assert!(mesh.call(&[first]).contains(" 200 "), "the configuration is there");
    let seen = mesh.call(&["at-once", &calls[0], &calls[1], &calls[2]]);
    let check = |id: &str, cause: &Value, words: &str| {
        let why = mesh.judged(id);
        assert_eq!(why["cause"], *cause, "{why:#}\n{seen}");
        assert!(why["sentence"].as_str().is_some_and(|sentence| sentence.contains(words)), "{why:#}\n{seen}");
        assert!(why["source"]["line"].is_number(), "{why:#}");
    };
    let pool = serde_json::json!({"slow": "pool"});
    check(&ids[1], &pool, "for a connection: the limit `maxConnections: 1` (DestinationRule default/narrow, ");
    let pending = "the limit `http1MaxPendingRequests: 1` (DestinationRule default/narrow, ";
    check(&ids[2], &"circuitBreaker".into(), pending);
}

fn ejected_hosts_are_named(mesh: &Mesh) {
    let ids = ["flaky-0", "flaky-1"].map(|id| format!("{id}-0000-4000-8000-000000000000"));
    let seen = mesh.call(&[&format!("{} flaky:8000/error", ids[0]), &format!("{} flaky:8000/", ids[1])]);
    let none = mesh.judged(&ids[1]);
    assert_eq!(none["cause"], "noHealthyEndpoint", "{none:#}\n{seen}");
    let sentence = none["sentence"].as_str().unwrap_or_default();
    assert!(sentence.contains("no endpoint: 1 of 1 of ") && sentence.contains(" is ejected since "), "{none:#}");
}

fn all_are_grouped(mesh: &Mesh) {
    let all = mesh.why(&["--slower-than", "300ms"]).expect("an answer");
    let groups = all["groups"].as_array().expect("groups");
    let has = |cause: &Value| groups.iter().any(|group| group["cause"] == *cause);
    for row in rows() {
        assert!(has(&row.cause), "{}: {all:#}", row.cause);
    }
    let refused = groups.iter().find(|group| group["cause"] == "connectionRefused");
    assert!(refused.is_some_and(|group| group["at"] == "server.default" && group["count"] == 1), "{all:#}");
}
