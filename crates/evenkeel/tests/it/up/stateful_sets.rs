//! Replicas with stable names are started and stopped one by one, as in a cluster.

use std::fs;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, state};

/// Each writes down when it starts, with its version, and when it ends. It is ready a moment after its start.
const RUN: &str = r#"cd "$EVENKEEL_DATA_DIR"
trap 'echo "end $POD_NAME" >> order; exit' TERM
echo "start $POD_NAME $VERSION" >> order
sleep 0.3; touch "ready-$POD_NAME-$VERSION"
while :; do sleep 0.05; done
"#;

fn manifest(replicas: u32, version: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  serviceName: db
  replicas: {replicas}
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      containers:
        - name: db
          env: [{{name: VERSION, value: {version}}}]
          readinessProbe: {{exec: {{command: [sh, -c, 'test -e \"$EVENKEEL_DATA_DIR/ready-$POD_NAME-$VERSION\"']}}, periodSeconds: 1}}
"
    )
}

#[test]
fn replicas_change_and_go_one_by_one_from_the_highest() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("our own folder");
    write(
        "evenkeel.yaml",
        &format!("workloads:\n  db:\n    command: |\n{}", RUN.replace("\n", "\n      ").replacen("cd", "      cd", 1)),
    );
    write("db.yaml", &manifest(3, "one"));
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    let order = user.state.path().join("data/default.default/order");
    let mut seen = 0;
    let mut check = |expected: &[&str]| {
        let all = eventually(&format!("{expected:?}"), || {
            let text = fs::read_to_string(&order).unwrap_or_default();
            let all: Vec<String> = text.lines().skip(seen).map(str::to_owned).collect();
            (all.len() >= expected.len()).then_some(all)
        });
        assert_eq!(all, expected);
        seen += expected.len();
    };
    check(&["start db-0 one", "start db-1 one", "start db-2 one"]);
    super::wait_ready(&mut up, 3);
    write("db.yaml", &manifest(3, "two"));
    check(&["end db-2", "start db-2 two", "end db-1", "start db-1 two", "end db-0", "start db-0 two"]);
    write("db.yaml", &manifest(1, "two"));
    check(&["end db-2", "end db-1"]);
    // More, and another template, at once: first the new one.
    write("db.yaml", &manifest(2, "three"));
    check(&["start db-1 three", "end db-0", "start db-0 three"]);
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
