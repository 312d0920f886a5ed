//! The certificate authority changes while the mesh serves: no caller notices.

use std::fs;
use std::path::Path;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal};
use serde_json::Value;

use super::envoy::with_envoy;
use super::load::under_load;
use super::mesh::Mesh;
use super::user::User;
use super::{MACHINE, PATIENCE, deployment, state, wait_ready};

/// The trusted roots in a file.
fn roots(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.split_inclusive("-----END CERTIFICATE-----\n").map(|root| root.trim().to_owned()).collect()
}

fn evenkeel(mesh: &Mesh, arguments: &[&str]) -> String {
    let state = mesh.state().display().to_string();
    let output = mesh.user.evenkeel(&[arguments, &["--state", &state]].concat()).output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out.into_owned()
}

fn check(user: User) {
    let mut mesh = Mesh::of(user);
    let bundle = mesh.state().join("control/trust-bundle.pem");
    let first = roots(&bundle);
    let url = mesh.url.clone();
    let failures = under_load(&url, |account| {
        let rotated = evenkeel(&mesh, &["ca", "rotate", "--root"]);
        let steps = ["is trusted in addition", "signs from now on", "replace their own", "is not trusted any more"];
        let mut rest = &*rotated;
        for step in steps {
            let at = rest.find(step).unwrap_or_else(|| panic!("{step}: {rotated}"));
            rest = &rest[at..];
        }
        account.answers(40);
        let second = roots(&bundle);
        assert!(first.len() == 1 && second.len() == 1 && first != second);

        let rotated = evenkeel(&mesh, &["ca", "rotate"]);
        assert!(rotated.contains("the new intermediate signs"), "{rotated}");
        account.answers(40);
        assert_eq!(roots(&bundle), second);

        evenkeel(&mesh, &["ca", "rotate", "--root"]);
        account.answers(40);
        // A replica that knows nothing but the newest root, among those that have been there from the beginning: connections
        // are made anew in both directions.
        evenkeel(&mesh, &["restart", "capitals-info-v2"]);
        evenkeel(&mesh, &["restart", "capitals-web"]);
        account.answers(40);
    });
    assert_eq!(failures, [""; 0], "{}", mesh.up.output());
    let status: Value = serde_json::from_str(&evenkeel(&mesh, &["ca", "status", "-o", "json"])).expect("JSON");
    assert_eq!(status["state"]["phase"], "steady", "{status:#}");
    assert_eq!(status["state"]["generation"], 12, "{status:#}");
    assert_eq!(status["alarms"], serde_json::json!([]));
    assert!(!mesh.state().join("control/ca-key.pem").exists(), "the first key is deleted");
    mesh.end();
}

/// The certificates of a run that has ended are good for hours: nobody waits for its Pods or its gateway.
#[test]
fn a_rotation_waits_for_no_workload_of_an_earlier_run() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let objects = folder.path().join("objects.yaml");
    let start = |name: &str| {
        let all = format!("{}---\n{GATEWAY}", deployment(name, 1, "exec python3 -m http.server 8000"));
        fs::write(&objects, all).expect("it can be written");
        let mut up = Process::spawn(user.evenkeel(&["up"]).arg(folder.path()).arg("--state").arg(user.state.path()));
        wait_ready(&mut up, 2);
        up
    };
    let mut first = start("earlier");
    first.signal(Signal::SIGINT);
    assert!(first.wait_for_exit(PATIENCE).success(), "{}", first.output());
    let mut second = start("later");
    let state = user.state.path().display().to_string();
    let output = user.evenkeel(&["ca", "rotate", "--root", "--state", &state]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("is not trusted any more"), "{output:?}");
    assert!(!text.contains("earlier"), "{text}");
    second.signal(Signal::SIGINT);
    assert!(second.wait_for_exit(PATIENCE).success(), "{}", second.output());
}

/// A gateway, whose replica is another in each run.
const GATEWAY: &str = "apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}
";

#[test]
fn roots_and_intermediates_change_under_load_without_a_failure() {
    check(User::present());
}

#[test]
fn roots_and_intermediates_change_under_load_with_envoy_as_a_sidecar() {
    check(with_envoy("capitals-info.yaml"));
}
