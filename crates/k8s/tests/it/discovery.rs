//! Kinds that come and go while the source runs, and kinds that RBAC forbids.

use std::time::Duration;

use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};

use crate::mesh::{Mesh, PATIENCE, begin, ready, service};

fn route(namespace: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: r, namespace: {namespace}}}\n\
         spec: {{hosts: [a], http: [{{route: [{{destination: {{host: a}}}}]}}]}}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn definitions_come_go_and_change_version() {
    let server = ApiServer::start();
    let shop = server.namespace("shop");
    server.apply(&service(&shop, "a", 80));
    let mut mesh = Mesh::start(&server.kubeconfig()).await;
    assert!(ready(&mesh.snapshot, &format!("a.{shop}.svc.cluster.local")).is_some(), "without Istio's kinds");

    server.install(CustomResources::Istio);
    server.apply(&route(&shop));
    mesh.until("the route", |snapshot| snapshot.route_sets.len() == 1).await;
    // The version that is watched is no longer served.
    let name = "virtualservices.networking.istio.io";
    let patch = r#"[{"op":"test","path":"/spec/versions/0/name","value":"v1"},{"op":"replace","path":"/spec/versions/0/served","value":false}]"#;
    server.kubectl(&["patch", "crd", name, "--type=json", "-p", patch]);
    mesh.during(Duration::from_secs(8)).await;
    assert_eq!(mesh.snapshot.route_sets.len(), 1, "it stays");
    let moved = r#"{"spec":{"hosts":["a","b"]}}"#;
    server.kubectl(&[
        "patch",
        "virtualservices.v1beta1.networking.istio.io",
        "r",
        "-n",
        &shop,
        "--type=merge",
        "-p",
        moved,
    ]);
    mesh.until("a change in the other version", |snapshot| snapshot.route_sets.iter().any(|set| set.hosts.len() == 2))
        .await;
    // While the server starts again, it may not know the kind for a moment. That is no removal.
    let events = mesh.events;
    server.restart();
    mesh.during(Duration::from_secs(5)).await;
    assert_eq!((mesh.events, mesh.snapshot.route_sets.len()), (events, 1));

    server.kubectl(&["delete", "crd", name]);
    mesh.until("no route", |snapshot| snapshot.route_sets.is_empty()).await;
    server.install(CustomResources::Istio);
    server.apply(&route(&shop));
    mesh.until("the route again", |snapshot| snapshot.route_sets.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_rbac_forbids_is_left_out_if_the_mesh_works_without() {
    let server = ApiServer::start();
    let shop = server.namespace("shop");
    server.service_account(&shop, "reader");
    server.apply(&service(&shop, "a", 80));
    let role = |resources: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: reader}}\nrules:\n\
             - {{apiGroups: ['', discovery.k8s.io, networking.k8s.io], resources: [{resources}], verbs: [get, list, watch]}}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: reader}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}}\n\
             subjects: [{{kind: ServiceAccount, name: reader, namespace: {shop}}}]\n"
        )
    };
    let rules_of_istio = role("'*'").replace("name: reader}", "name: istio}").replace("name: reader,", "name: istio,");
    let rules_of_istio = rules_of_istio.replace(
        "['', discovery.k8s.io, networking.k8s.io]",
        "[networking.istio.io, security.istio.io, telemetry.istio.io, extensions.istio.io]",
    );
    let rules_of_istio = rules_of_istio
        .replace("subjects: [{kind: ServiceAccount, name: istio", "subjects: [{kind: ServiceAccount, name: reader");
    // Neither Secrets nor Nodes nor definitions of kinds.
    server.apply(&role(
        "services, endpointslices, pods, namespaces, serviceaccounts, configmaps, ingresses, ingressclasses",
    ));
    let kubeconfig = server.kubeconfig_of(&shop, "reader");
    // Istio's kinds may be about to be served, and without its policies more would pass.
    let (watching, _source) = begin(&kubeconfig).await;
    let mut progress = watching.progress();
    let waits = progress.wait_for(|progress| {
        let missing = progress.missing.get("AuthorizationPolicy.security.istio.io");
        progress.missing.len() < 40
            && missing.is_some_and(|reason| reason.contains("RBAC forbids to list CustomResourceDefinitions"))
    });
    assert!(tokio::time::timeout(PATIENCE, waits).await.is_ok(), "{:?}", watching.progress().borrow());
    assert!(!watching.progress().borrow().is_synced);
    server.install(CustomResources::Istio);
    server.apply(&rules_of_istio);
    let mesh = Mesh::start(&kubeconfig).await;
    assert!(ready(&mesh.snapshot, &format!("a.{shop}.svc.cluster.local")).is_some());
}
