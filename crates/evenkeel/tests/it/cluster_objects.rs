//! Commands that read a cluster.

use std::process::Command;

use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};

fn route(namespace: &str, gateway: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: {namespace}}}\n\
         spec: {{hosts: [web], gateways: [{gateway}], http: [{{route: [{{destination: {{host: web}}}}]}}]}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: {namespace}}}\nspec: {{ports: [{{name: http, port: 80}}]}}\n---\n"
    )
}

#[test]
fn commands_read_a_cluster_as_they_read_files() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let [wrong, right] = ["wrong", "right"].map(|name| server.namespace(name));
    server.apply(&[route(&wrong, "absent"), route(&right, "mesh")].concat());
    let home = tempfile::tempdir().expect("a directory");
    let kubeconfig = server.kubeconfig();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(arguments).env("HOME", home.path()).env("KUBECONFIG", &kubeconfig).env_remove("XDG_STATE_HOME");
        let output = command.output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let check = |arguments: &[&str], status: i32, expected: &[&str], absent: &[&str]| {
        let (code, text) = run(arguments);
        assert_eq!(code, Some(status), "{arguments:?}: {text}");
        expected.iter().for_each(|part| assert!(text.contains(part), "{arguments:?}: {part}: {text}"));
        absent.iter().for_each(|part| assert!(!text.contains(part), "{arguments:?}: {part}: {text}"));
    };
    let found = [&*format!("VirtualService {wrong}/web"), "IST0101"];
    // Without files and without a running mesh, the cluster is that of kubectl.
    check(&["analyze", "-A"], 79, &found, &[]);
    check(&["analyze", "-n", &wrong], 79, &found, &[]);
    check(&["analyze", "-n", &right], 0, &[], &found);
    check(&["analyze"], 0, &[], &found);
    check(&["analyze", "--context", "absent"], 1, &["absent"], &[]);
    let file = kubeconfig.to_str().expect("a path");
    let host = format!("web.{right}.svc.cluster.local");
    check(&["effective", &host, "--kubeconfig", file], 0, &[&host], &[]);
    check(&["effective", &host, "--kubeconfig", file, "-f", "."], 1, &["either files or a cluster"], &[]);
    let archive = home.path().join("report.tar.gz");
    server.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: login, namespace: {right}}}\nstringData: {{word: swordfish}}\n"
    ));
    let archive_name = archive.to_str().expect("a path");
    check(&["bug-report", "--kubeconfig", file, "-n", &right, "-o", archive_name], 0, &["report.tar.gz: "], &[]);
    let unpacked = Command::new("tar").args(["-xzOf", archive_name]).output().expect("tar");
    let unpacked = String::from_utf8_lossy(&unpacked.stdout);
    for part in ["IST0101", "VirtualService", "\"word\": \"[redacted]\"", "passed, "] {
        assert!(unpacked.contains(part), "{part}: {unpacked}");
    }
    assert!(!unpacked.contains("swordfish") && !unpacked.contains("c3dvcmRmaXNo"), "{unpacked}");
    let nowhere = home.path().join("nowhere");
    std::fs::write(
        &nowhere,
        std::fs::read_to_string(&kubeconfig).expect("a file").replace(&server.address().to_string(), "127.0.0.1:1"),
    )
    .expect("a file");
    check(
        &["analyze", "-A", "--kubeconfig", nowhere.to_str().expect("a path")],
        1,
        &["the API server cannot be read"],
        &[],
    );
}
