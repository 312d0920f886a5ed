//! `evenkeel migrate check` and `evenkeel migrate routes`.

use std::process::Command;

const MESH: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: db, namespace: data}
spec:
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: main}]}}
";

const JUDGE: &str = "---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: judge, namespace: data}
spec: {url: 'oci://plugins.test/judge', phase: AUTHN}
";

#[track_caller]
fn check(text: &str, arguments: &[&str], status: i32, expected: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("mesh.yaml");
    std::fs::write(&file, text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let output = command.args(["migrate", "check", "-f"]).arg(&file).args(arguments).output().expect("it runs");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}");
    // In this order.
    let mut rest = &*text;
    for part in expected {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is not in\n{rest}\nof\n{text}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn namespaces_move_one_by_one() {
    let label = "kubectl label namespace shop --overwrite istio.io/rev=canary istio-injection-";
    check(
        MESH,
        &["--revision", "canary"],
        0,
        &["nothing differs", "1. data: 1 workload:", "2. shop: 1 workload:", label],
    );
}

#[test]
fn what_protects_and_does_not_work_blocks_its_namespace() {
    let text = [MESH, JUDGE].concat();
    check(
        &text,
        &[],
        2,
        &["1. shop:", "nothing differs", "2. data:", "to change first", "judge", "change what blocks it first"],
    );
    check(&text, &["-o", "json"], 2, &["\"steps\": [", "\"blocked\": false", "\"blocked\": true", "\"blocks\": true"]);
}

const ROUTES: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [web], http: [{timeout: 3s, route: [{destination: {host: web}}]}]}
";

#[test]
fn routes_are_printed_and_what_remains_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("mesh.yaml");
    let run = |text: &str, arguments: &[&str]| {
        std::fs::write(&file, text).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output = command.args(["migrate", "routes", "-f"]).arg(&file).args(arguments).output().expect("it runs");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, routes, said) = run(ROUTES, &[]);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        routes.starts_with("---\n") && routes.contains("kind: HTTPRoute") && routes.contains("request: 3s"),
        "{routes}"
    );
    assert!(said.contains("replaced: VirtualService shop/web"), "{said}");
    let (status, routes, said) = run(&ROUTES.replace("timeout: 3s", "fault: {abort: {httpStatus: 500}}"), &[]);
    assert!(status == Some(0) && routes.contains("HTTPRoute"), "a fault without a share is none: {said}");
    let fault = ROUTES.replace("timeout: 3s", "fault: {abort: {httpStatus: 500, percentage: {value: 1}}}");
    let (status, routes, said) = run(&fault, &[]);
    assert_eq!((status, routes.as_str()), (Some(2), ""), "{said}");
    assert!(said.contains("mesh.yaml:9:") && said.contains("`fault`") && said.contains("remains: "), "{said}");
    let (status, routes, _) = run(ROUTES, &["-o", "json"]);
    let read: serde_json::Value = serde_json::from_str(&routes).expect("JSON");
    assert_eq!((status, &read["documents"][0]["kind"]), (Some(0), &"HTTPRoute".into()));
    assert_eq!(read["replaced"][0]["name"], "web");
}
