//! Objects come, change and go, and what no proxy can see changes nothing.

use std::time::Duration;

use evenkeel_api::Kind;
use evenkeel_control::source::LiveSource as _;
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};

use crate::mesh::{Mesh, pod, ready, service, set_ready};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn objects_come_change_and_go() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let shop = server.namespace("shop");
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: a}}\n---\n";
    server.apply(&[node, &service(&shop, "a", 80), &pod(&shop, "a-0", "a")].concat());
    set_ready(&server, &shop, "a-0", "10.1.0.1", true);
    let mut mesh = Mesh::start(&server.kubeconfig()).await;
    let [a, b] = ["a", "b"].map(|name| format!("{name}.{shop}.svc.cluster.local"));
    assert_eq!((ready(&mesh.snapshot, &a), ready(&mesh.snapshot, &b)), (Some(1), None), "there from the start");
    let pod_name = (shop.as_str().into(), "a-0".into());
    let locality =
        |mesh: &Mesh| mesh.snapshot.workload(&pod_name.0, &pod_name.1).map(|found| found.locality.to_string());
    assert_eq!(locality(&mesh).as_deref(), Some("r/a"), "it is where its Node is");

    server.apply(&[service(&shop, "b", 80), pod(&shop, "b-0", "b")].concat());
    set_ready(&server, &shop, "b-0", "10.1.0.2", true);
    mesh.until("b has an endpoint", |snapshot| ready(snapshot, &b) == Some(1)).await;
    set_ready(&server, &shop, "b-0", "10.1.0.2", false);
    mesh.until("b has none", |snapshot| ready(snapshot, &b) == Some(0)).await;
    // A Service without a selector has the endpoints of its slices.
    let slice = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: s, namespace: {shop}}}\nspec: {{ports: [{{name: http, port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: s-1, namespace: {shop}, labels: {{kubernetes.io/service-name: s}}}}\naddressType: IPv4\n\
         ports: [{{name: http, port: 8080}}]\nendpoints: [{{addresses: [10.2.0.1]}}, {{addresses: [10.2.0.2], conditions: {{ready: false}}}}]\n"
    );
    server.apply(&slice);
    let s = format!("s.{shop}.svc.cluster.local");
    mesh.until("s has an endpoint", |snapshot| ready(snapshot, &s) == Some(1)).await;
    let route = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: r, namespace: {shop}}}\n\
         spec: {{hosts: [a], http: [{{route: [{{destination: {{host: b}}}}]}}]}}\n"
    );
    server.apply(&route);
    mesh.until("a route", |snapshot| snapshot.route_sets.len() == 1).await;
    // A policy of a kind that is not supported closes what it would have judged, as from a file.
    server.apply(&format!(
        "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {{name: p, namespace: {shop}}}\n\
         spec: {{url: 'oci://x', phase: AUTHZ}}\n"
    ));
    mesh.until("a stand-in", |snapshot| snapshot.authorization_policies.len() == 1).await;
    server.kubectl(&["delete", "wasmplugin", "p", "-n", &shop]);
    mesh.until("no stand-in", |snapshot| snapshot.authorization_policies.is_empty()).await;

    server.apply(&service(&shop, "a", 81));
    mesh.until("another port", |snapshot| {
        snapshot.services_of(&a).first().is_some_and(|service| service.ports.iter().any(|port| port.number == 81))
    })
    .await;
    server.kubectl(&["delete", "virtualservice", "r", "-n", &shop]);
    server.kubectl(&["delete", "service", "b", "-n", &shop]);
    mesh.until("b and the route are gone", |snapshot| ready(snapshot, &b).is_none() && snapshot.route_sets.is_empty())
        .await;
    server.kubectl(&["label", "node", "n1", "--overwrite", "topology.kubernetes.io/zone=z"]);
    mesh.until("the Node has moved", |snapshot| {
        snapshot.workload(&pod_name.0, &pod_name.1).is_some_and(|found| &*found.locality == "r/z")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_no_proxy_can_see_changes_nothing() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let shop = server.namespace("shop");
    let route = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: r, namespace: {shop}}}\n\
         spec: {{hosts: [a], http: [{{route: [{{destination: {{host: a}}}}]}}]}}\n"
    );
    server.apply(&[service(&shop, "a", 80), pod(&shop, "a-0", "a"), route].concat());
    set_ready(&server, &shop, "a-0", "10.1.0.1", true);
    let mut mesh = Mesh::start(&server.kubeconfig()).await;
    mesh.source.unchanged();
    let before = mesh.snapshot.clone();
    let patch = |kind: &str, name: &str, subresource: &[&str], patch: &str| {
        server.kubectl(&[&["patch", kind, name, "-n", &shop, "--type=merge", "-p", patch], subresource].concat());
    };
    let status = ["--subresource=status"];
    let restarted =
        r#"{"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"Initialized","status":"True"}]}}"#;
    patch("pod", "a-0", &status, restarted);
    server.kubectl(&["set", "image", "pod/a-0", "main=y", "-n", &shop]);
    mesh.until_unchanged(Kind::Pod, 2).await;
    let condition = r#"{"status":{"conditions":[{"type":"X","status":"True","reason":"X","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#;
    patch("service", "a", &status, condition);
    patch("service", "a", &[], r#"{"metadata":{"finalizers":["example.com/x"]}}"#);
    mesh.until_unchanged(Kind::Service, 2).await;
    patch("virtualservice", "r", &status, r#"{"status":{"observedGeneration":1}}"#);
    mesh.until_unchanged(Kind::VirtualService, 1).await;
    mesh.during(Duration::from_millis(500)).await;
    assert_eq!(mesh.events, 0, "nobody was told");
    // A label is an object's own, and may be selected; the snapshot stays as it is where nothing does.
    patch("service", "a", &[], r#"{"metadata":{"annotations":{"note":"x"}}}"#);
    mesh.during(Duration::from_secs(1)).await;
    assert_eq!(mesh.snapshot.services, before.services);
    patch("service", "a", &[], r#"{"metadata":{"finalizers":null}}"#);
}
