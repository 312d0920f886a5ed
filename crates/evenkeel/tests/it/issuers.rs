//! Commands that read files use the same variable as the control plane for who fetches the keys of issuers.

use std::process::Command;

use evenkeel_testkit::objects;

const AUTHENTICATION: &str = "\
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: jwt, namespace: shop}
spec: {jwtRules: [{issuer: me, jwksUri: 'https://issuer.test/keys'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec: {containers: [{name: main, ports: [{containerPort: 8000}]}]}
status: {podIP: 10.244.0.1, phase: Running, conditions: [{type: Ready, status: 'True'}]}
---
";

#[test]
fn who_fetches_keys_is_said_to_all_commands_alike() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("mesh.yaml"), format!("{AUTHENTICATION}{}", objects::GATEWAY)).expect("a file");
    let run = |arguments: &[&str], fetching: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(arguments).env("PILOT_JWT_ENABLE_REMOTE_JWKS", fetching);
        let output = command.output().expect("it runs");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (output.status.code(), text)
    };
    let files = folder.path().display().to_string();
    let call = ["explain", "-f", &files, "--from", "web-0.shop", "--url", "http://web.shop/"];
    let proof = ["prove", "-f", &files, "--from", "outside", "--to", "web-0.shop"];
    let (check, holds) = (["authz", "check", "web-0.shop", "-f", &files], ["effective", "-f", &files, "web.shop"]);
    let commands: [&[&str]; 6] = [&["validate", &files], &["analyze", "-f", &files], &call, &proof, &check, &holds];
    for command in commands {
        let (_, own) = run(command, "istiod");
        assert!(!own.contains("no service of the mesh has the host and port"), "{command:?}: {own}");
        let (status, text) = run(command, "sometimes");
        assert!(
            matches!(status, Some(1 | 2)) && text.contains("PILOT_JWT_ENABLE_REMOTE_JWKS: `sometimes` is none of"),
            "{command:?}: {status:?} {text}"
        );
    }
    // Proxies that fetch need a service of the mesh.
    for command in commands.into_iter().take(2) {
        let (_, text) = run(command, "envoy");
        assert!(text.contains("no service of the mesh has the host and port of https://issuer.test/keys"), "{text}");
    }
}
