//! The certificate authority changes while the mesh serves: no caller notices.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::envoy::with_envoy;
use super::load::under_load;
use super::mesh::Mesh;
use super::user::User;

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

#[test]
fn roots_and_intermediates_change_under_load_without_a_failure() {
    check(User::present());
}

#[test]
fn roots_and_intermediates_change_under_load_with_envoy_as_a_sidecar() {
    check(with_envoy("capitals-info.yaml"));
}
