//! `evenkeel describe`.

use std::process::Command;

const MESH: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, ports: [{containerPort: 8000}]}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [web], http: [{route: [{destination: {host: web, subset: absent}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: other, namespace: shop}
spec: {hosts: [other.test], gateways: [absent], http: [{route: [{destination: {host: nowhere}}]}]}
";

#[test]
fn a_service_and_a_pod_are_described_with_the_findings_about_what_touches_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("mesh.yaml");
    std::fs::write(&file, MESH).expect("a file");
    let file = file.to_str().expect("a path");
    let check = |arguments: &[&str], status: i32, expected: &[&str], absent: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output = command.arg("describe").args(arguments).args(["-f", file]).output().expect("it runs");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        expected.iter().for_each(|part| assert!(text.contains(part), "{arguments:?}: {part}: {text}"));
        absent.iter().for_each(|part| assert!(!text.contains(part), "{arguments:?}: {part}: {text}"));
    };
    let service = ["Service shop/web", "VirtualService shop/web", "== what protects web.shop", "subset", "absent"];
    check(&["service", "web.shop"], 0, &service, &["nowhere"]);
    check(&["svc", "web", "-n", "shop"], 0, &service, &["nowhere"]);
    check(&["service", "web.shop", "-o", "json"], 0, &["\"findings\": [", "\"code\": ", "absent"], &["nowhere"]);
    check(&["pod", "web", "-n", "shop"], 0, &["how clients reach web.shop", "web.shop  sidecar"], &["nowhere"]);
    check(&["pod", "wep.shop"], 1, &["did you mean `web.shop`?"], &[]);
    check(&["service", "wep.shop"], 1, &["nothing in these files is about the host `wep.shop`"], &[]);
}
