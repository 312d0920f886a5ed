//! What the command line of `up` says and no file does is known to the commands that answer for the running mesh: the ports of
//! this machine, the trust domain, and whether refused objects are left out.

use std::fs;
use std::process::Command;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};
use serde_json::Value;

use super::agreement::program;
use super::user::User;
use super::{MACHINE, PATIENCE, deployment, state, wait_ready};

const MESH: &str = "---
apiVersion: v1
kind: Service
metadata: {name: api}
spec: {selector: {app: api}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: api}
spec:
  selector: {matchLabels: {app: api}}
  rules:
    - from: [{source: {principals: [example.test/ns/default/sa/default]}}]
    - from: [{source: {principals: ['example.test/ns/istio-system/*']}}]
      to: [{operation: {paths: [/open]}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [shop.test]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge}
spec: {hosts: [shop.test], gateways: [edge], http: [{route: [{destination: {host: api}}]}]}
";

/// Another port, which opens while the mesh runs.
const LATER: &str = "apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: later}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: later}
spec: {hosts: ['*'], gateways: [later], http: [{directResponse: {status: 418}}]}
";

/// Refused, and so it closes the workload unless it is left out.
const REFUSED: &str = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: refused}
spec: {selector: {matchLabels: {app: api}}, action: DENNY}
";

struct Mesh {
    user: User,
    up: Process,
    folder: tempfile::TempDir,
}

impl Mesh {
    fn start() -> Self {
        let (user, folder) = (User::present(), state());
        let serve = format!(
            "exec {} proxy --config-yaml '{}'",
            program(folder.path()),
            super::agreement::answering("api", &[8000])
        );
        let text = deployment("web", 1, "exec python3 -m http.server --bind 0.0.0.0 8000")
            + "---\n"
            + &deployment("api", 1, &serve)
            + MESH;
        fs::write(folder.path().join("mesh.yaml"), text).expect("our own folder");
        let mut command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(user.state.path());
        command.args([
            "--gateway-port",
            "80=0",
            "--gateway-port",
            "81=0",
            "--trust-domain",
            "example.test",
            "--leave-out-refused",
        ]);
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, 3);
        Self { user, up, folder }
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut command = self.user.evenkeel(arguments);
        let output = command.arg("--state").arg(self.user.state.path()).args(["-o", "json"]).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|wrong| panic!("{arguments:?}: {wrong}: {said}"))
    }

    /// The status that is told of a call; 200 if a program answers.
    fn told(&self, arguments: &[&str]) -> u64 {
        let answer = self.json(&[&["explain"], arguments].concat());
        match (answer["status"].as_u64(), answer["outcome"].as_str()) {
            (Some(status), _) => status,
            (None, Some("forward")) => 200,
            _ => panic!("{arguments:?}: {answer:#}"),
        }
    }

    /// The address of the machine that leads to the Gateway's port.
    fn at(&self, number: u16) -> String {
        eventually("a port of the machine", || {
            let text = fs::read(self.user.state.path().join("ports.json")).ok()?;
            let ports: Value = serde_json::from_slice(&text).ok()?;
            let port = ports.as_array()?.iter().find(|port| port["number"] == number)?;
            port["address"].as_str().map(str::to_owned)
        })
    }
}

/// The status that a command with curl gets.
fn fired(curl: &str) -> u64 {
    let rest = curl.strip_prefix("curl ").expect("curl");
    let line = format!("curl --noproxy '*' -o /dev/null -w '%{{http_code}}' -m 20 {rest}");
    let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
    String::from_utf8_lossy(&output.stdout).parse().unwrap_or_default()
}

#[test]
fn commands_know_the_options_of_the_running_mesh() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mut mesh = Mesh::start();
    let edge = mesh.at(80);
    let check = |mesh: &Mesh, path: &str, expected: u64| {
        let url = format!("http://{edge}{path}");
        let curl = format!("curl -H 'Host: shop.test' {url}");
        eventually(&format!("{expected} at {url}"), || (fired(&curl) == expected).then_some(()));
        assert_eq!(mesh.told(&["--from-outside", "--url", &url, "-H", "Host: shop.test"]), expected, "{url}");
        // By the Gateway's own port, as clients elsewhere call it.
        assert_eq!(mesh.told(&["--from-outside", "--url", &format!("http://shop.test{path}")]), expected, "{path}");
    };
    check(&mesh, "/open", 200);
    check(&mesh, "/else", 403);
    assert_eq!(mesh.told(&["--from", "web.default", "--url", "http://api/else"]), 200);
    // What is proven open is open with the command that is printed.
    let proof = mesh.json(&["prove", "--from", "outside", "--to", "api.default"]);
    let curl = proof["witness"]["curl"].as_str().unwrap_or_else(|| panic!("{proof:#}"));
    assert!(curl.contains(&edge), "{curl}");
    assert_eq!(fired(curl), 200, "{curl}");
    assert_eq!(proof["witness"]["authority"], "shop.test", "{proof:#}");

    // A port that opens later.
    fs::write(mesh.folder.path().join("later.yaml"), LATER).expect("our own folder");
    let later = format!("http://{}/", mesh.at(81));
    eventually("an answer of the port", || (fired(&format!("curl {later}")) == 418).then_some(()));
    assert_eq!(mesh.told(&["--from-outside", "--url", &later]), 418);

    // A refused policy is left out, as the option says.
    fs::write(mesh.folder.path().join("refused.yaml"), REFUSED).expect("our own folder");
    mesh.up.wait_for_line("DENNY");
    check(&mesh, "/open", 200);
    check(&mesh, "/else", 403);
    mesh.up.signal(Signal::SIGINT);
    assert!(mesh.up.wait_for_exit(PATIENCE).success(), "{}", mesh.up.output());
}
