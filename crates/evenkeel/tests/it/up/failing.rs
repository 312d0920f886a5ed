//! A program that keeps crashing, and one that never becomes ready: where this is reported.

use std::fs;
use std::process::Command;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, deployment, state};

/// Its answer says what is missing.
const NEVER: &str = r#"exec python3 -c '
from http.server import *
class Never(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503)
        self.end_headers()
        self.wfile.write(b"no database\\n")
HTTPServer(("0.0.0.0", 8000), Never).serve_forever()
'"#;

#[test]
fn what_ends_again_and_again_or_is_never_ready_is_shown_with_its_reason() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it can be written");
    let crash = "cd $EVENKEEL_DATA_DIR; n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n; echo run $n; sleep 0.5; exit 7";
    write("crash.yaml", &deployment("crash", 1, crash));
    let probed = deployment("never", 1, NEVER)
        .replace("ports: [{containerPort: 8000}]", "readinessProbe: {httpGet: {port: 8000, path: /}}");
    write("never.yaml", &probed);
    let mut up = user.evenkeel(&["up"]);
    let mut up = Process::spawn(up.arg(folder.path()).arg("--state").arg(user.state.path()));
    let evenkeel = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output = command.args(arguments).arg("--state").arg(user.state.path()).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    up.wait_for_line("(restarts: 2): exited with status 7");
    let (status, said) = evenkeel(&["proxy-status", "crash"]);
    assert!(status == Some(1) && said.contains(": its program keeps ending: restarts: "), "{said}");
    assert!(said.contains("exited with status 7"), "{said}");
    eventually("the log of the run before", || {
        let (_, before) = evenkeel(&["logs", "crash", "--previous"]);
        let (_, all) = evenkeel(&["logs", "crash"]);
        let mut runs = all.lines().rev();
        // Between the two another run may have begun.
        (before.lines().count() == 1 && before.starts_with("run ") && runs.any(|run| run == before.trim_end()))
            .then_some(())
    });
    up.wait_for_line("not ready  never-");
    let line = up.wait_for_line("GET :8000/ answers 503: no database");
    assert!(line.starts_with("not ready  never-") && line.contains(" for 10 s: "), "{line}");
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
