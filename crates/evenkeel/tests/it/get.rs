//! `evenkeel get KINDS`: objects of files with the status that the control plane would write.

use std::process::Command;

const MESH: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: edge-0, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: edge}}
spec: {containers: [{name: istio-proxy}]}
status: {podIP: 10.1.0.1, phase: Running}
---
apiVersion: v1
kind: Service
metadata: {name: edge-istio, namespace: shop}
spec: {selector: {gateway.networking.k8s.io/gateway-name: edge}, ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP, hostname: '*.example.com'}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: edge}]
  hostnames: [shop.example.com, web.example.com]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: stray, namespace: shop, generation: 3}
spec: {parentRefs: [{name: edge}], hostnames: [shop.example.org], rules: [{backendRefs: [{name: web, port: 80}]}]}
status:
  parents:
  - parentRef: {name: other}
    controllerName: example.com/controller
    conditions: [{type: Accepted, status: 'True'}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: old}
spec: {selector: {app: old}, servers: [{hosts: [old.test], port: {name: http, number: 80, protocol: HTTP}}]}
";

/// The parts are in the output, in this order.
#[track_caller]
fn check(line: &str, status: i32, expected: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("mesh.yaml");
    std::fs::write(&file, MESH).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let output = command.arg("get").args(line.split(' ')).arg("-f").arg(&file).output().expect("it runs");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(status), "{line}: {text}");
    let mut rest = &*text;
    for part in expected {
        let at = rest.find(part).unwrap_or_else(|| panic!("{line}: {part:?} is not in\n{rest}\nof\n{text}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn tables_show_addresses_hostnames_and_whether_objects_are_accepted() {
    let gateway = "edge   shop        True         edge-istio.shop.svc.cluster.local\n";
    check("gtw -n shop", 0, &["NAME   NAMESPACE   PROGRAMMED   ADDRESS\n", gateway]);
    let routes = [
        "NAME    NAMESPACE   HOSTNAMES                          ACCEPTED\n",
        "stray   shop        shop.example.org                   False\n",
        "web     shop        shop.example.com,web.example.com   True\n",
    ];
    check("httproutes -A", 0, &routes);
    let both = ["httproute.gateway.networking.k8s.io/web ", "\n\nNAME ", "gateway.networking.istio.io/old   default\n"];
    check("httproute,gw -A", 0, &both);
    check("gateways", 0, &["no objects of these kinds in the namespace default (-A: in all)\n"]);
    check(
        "gateways edge edges -n shop",
        1,
        &[gateway, "no object of these kinds has the name edges in the namespace shop"],
    );
    check("gatways", 1, &["no kind has the name gatways; did you mean `gateways`?"]);
}

#[test]
fn whole_objects_have_their_status() {
    let yaml = ["kind: List\n", "attachedRoutes: 1\n", "reason: ", "parentRef:", "name: edge\n"];
    check("gateways,httproutes -A -o yaml", 0, &yaml);
    let stray = [
        "\"kind\": \"HTTPRoute\"",
        "\"controllerName\": \"example.com/controller\"",
        "\"reason\": \"NoMatchingListenerHostname\"",
        "\"observedGeneration\": 3",
    ];
    check("httproute stray -n shop -o json", 0, &stray);
    check("services web -n shop -o json", 0, &["\"kind\": \"Service\""]);
}

#[test]
fn a_status_has_no_time_that_nobody_knows() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("mesh.yaml");
    std::fs::write(&file, MESH).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let output = command.args(["get", "gateway", "edge", "-n", "shop", "-o", "json", "-f"]).arg(&file).output();
    let text = String::from_utf8(output.expect("it runs").stdout).expect("text");
    let gateway: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(gateway["status"]["conditions"][0]["type"], "Accepted");
    assert!(!text.contains("lastTransitionTime") && !text.contains("observedGeneration"), "{text}");
}
