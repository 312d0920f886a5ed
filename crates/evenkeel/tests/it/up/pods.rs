//! Settings of a Pod's template besides its command: variables, files, probes, an orderly end, and stable names.

use std::fs;
use std::path::Path;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, state};

const MANIFEST: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {MODE: fast}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
data: {token: c2VjcmV0}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers:
        - name: db
          envFrom: [{configMapRef: {name: settings}, prefix: FROM_}]
          env:
            - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: keys, key: token}}}
            - {name: NONE, valueFrom: {secretKeyRef: {name: keys, key: none, optional: true}}}
            - {name: BOTH, value: "$(NAME)-$(TOKEN)"}
          readinessProbe: {exec: {command: [sh, -c, 'test -e "$EVENKEEL_DATA_DIR/go-$POD_NAME"']}, periodSeconds: 1}
          livenessProbe: {exec: {command: [sh, -c, 'test -e "$EVENKEEL_DATA_DIR/$POD_NAME.live"']}, periodSeconds: 1, failureThreshold: 1, initialDelaySeconds: 1}
          lifecycle: {preStop: {exec: {command: [sh, -c, 'echo hook >> "$EVENKEEL_DATA_DIR/$POD_NAME.end"']}}}
          volumeMounts: [{name: settings, mountPath: MOUNT}]
      volumes: [{name: settings, configMap: {name: settings}}]
"#;

const COMMANDS: &str = r#"
workloads:
  db:
    command: |
      cd "$EVENKEEL_DATA_DIR"
      trap 'echo end >> "$POD_NAME.end"; exit' TERM
      touch "$POD_NAME.live"
      env > "$POD_NAME.new"; mv "$POD_NAME.new" "$POD_NAME.env"
      while :; do sleep 0.05; done
"#;

#[test]
fn a_stateful_set_has_its_variables_files_probes_order_and_end() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder, mount) = (User::present(), state(), state());
    let manifest = MANIFEST.replace("MOUNT", &mount.path().display().to_string());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("our own folder");
    write("db.yaml", &manifest);
    write("evenkeel.yaml", COMMANDS);
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    // Of its identity.
    let data = user.state.path().join("data/default.default");
    let there = |name: &str| eventually(name, || data.join(name).exists().then_some(()));

    // One after the other.
    there("db-0.env");
    assert!(!data.join("db-1.env").exists());
    fs::write(data.join("go-db-0"), "").expect("the replicas' folder");
    there("db-1.env");
    fs::write(data.join("go-db-1"), "").expect("the replicas' folder");
    super::wait_ready(&mut up, 2);
    let env = fs::read_to_string(data.join("db-1.env")).expect("it is there");
    for line in ["FROM_MODE=fast", "NAME=db-1", "TOKEN=secret", "BOTH=db-1-secret", "HOSTNAME=db-1"] {
        assert!(env.lines().any(|other| other == line), "{line:?} is not in\n{env}");
    }
    assert!(!env.contains("NONE="), "{env}");

    // Files, which follow the ConfigMap and cannot be written to.
    let inside = |script: &str| {
        let state = user.state.path().display().to_string();
        let output = user.evenkeel(&["exec", "db-0", "--state", &state, "--", "sh", "-c", script]).output();
        String::from_utf8_lossy(&output.expect("exec runs").stdout).into_owned()
    };
    let read = format!("cat {0}/MODE; echo; touch {0}/more && echo written", mount.path().display());
    assert_eq!(inside(&read), "fast\n");
    write("db.yaml", &manifest.replace("{MODE: fast}", "{MODE: slow}"));
    eventually("the new text", || (inside(&read) == "slow\n").then_some(()));
    assert!(is_empty(mount.path()), "the machine's own directory is as it was");

    // Not alive: started again.
    fs::remove_file(data.join("db-1.live")).expect("it is there");
    up.wait_for_line("restarted  db-1");
    there("db-1.live");

    // An end in order.
    let _ = fs::remove_file(data.join("db-0.end"));
    write("db.yaml", "");
    eventually("both ends", || {
        let said = fs::read_to_string(data.join("db-0.end")).unwrap_or_default();
        (said == "hook\nend\n").then_some(())
    });
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

fn is_empty(folder: &Path) -> bool {
    super::entries(folder).is_empty()
}
