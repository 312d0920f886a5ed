//! A WorkloadGroup with a command: its workload registers itself, and gets requests while it is healthy.

use std::fs;
use std::process::Command;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, deployment, settings, state, wait_ready};

/// The group, and the Service that selects its workloads.
const GROUP: &str = r#"apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: vm}
spec:
  metadata: {labels: {app: vm}}
  template: {serviceAccount: vm, ports: {http: 8000}}
  probe: {httpGet: {path: /healthy, port: 8000}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: vm}
spec: {selector: {app: vm}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict}
spec: {mtls: {mode: STRICT}}
"#;

/// It is healthy while the file `ill` is not there.
const COMMAND: &str = r#"exec python3 -c '
import os
from http.server import *
class Machine(BaseHTTPRequestHandler):
    def do_GET(self):
        ill = os.path.exists(os.environ["EVENKEEL_DATA_DIR"] + "/ill")
        self.send_response(503 if ill and self.path == "/healthy" else 200)
        self.end_headers()
        self.wfile.write(b"a machine\n")
HTTPServer(("0.0.0.0", 8000), Machine).serve_forever()
'"#;

#[test]
fn a_workload_of_a_group_gets_requests_while_it_is_registered_and_healthy() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it can be written");
    write("group.yaml", GROUP);
    write("evenkeel.yaml", &format!("workloads:\n  vm: {{command: {COMMAND:?}}}\n"));
    write("client.yaml", &deployment("client", 1, "exec sleep 100000").replace("ports: [{containerPort: 8000}]", ""));
    write("mesh.yaml", &settings("rootNamespace: istio-system"));
    let mut up = user.evenkeel(&["up"]);
    let mut up = Process::spawn(up.arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 2);
    let evenkeel = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let (first, rest) = arguments.split_first().expect("a command");
        let output = command.arg(first).arg("--state").arg(user.state.path()).args(rest).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let call = || evenkeel(&["exec", "client", "--", "curl", "-s", "-m", "5", "-w", "%{http_code}", "http://vm/"]).1;
    let eventually_is = |expected: &str| {
        let same = || (call() == expected).then_some(());
        eventually(&format!("the answer {expected:?}"), same);
    };
    eventually_is("a machine\n200");

    let (_, pods) = evenkeel(&["proxy-status"]);
    assert!(pods.contains("vm-"), "{pods}");
    let exec = |command: &str| evenkeel(&["exec", "vm", "--", "sh", "-c", command]);
    let (status, said) = exec("touch $EVENKEEL_DATA_DIR/ill");
    assert_eq!(status, Some(0), "{said}");
    eventually("no healthy workload", || call().ends_with("503").then_some(()));
    eventually("its status", || {
        let (status, said) = evenkeel(&["proxy-status"]);
        (status == Some(1) && said.contains("workloadentry/vm-") && said.contains(" is not ready")).then_some(())
    });
    exec("rm $EVENKEEL_DATA_DIR/ill");
    eventually_is("a machine\n200");

    // Without its group it is nothing; with it again, it is what it was.
    fs::rename(folder.path().join("group.yaml"), folder.path().join("group.txt")).expect("it can be renamed");
    eventually("nobody there", || (!call().ends_with("200")).then_some(()));
    fs::rename(folder.path().join("group.txt"), folder.path().join("group.yaml")).expect("it can be renamed");
    eventually_is("a machine\n200");

    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
    let registered = user.state.path().join("control/registered");
    assert!(!registered.exists(), "what was registered ends with the run");
}
