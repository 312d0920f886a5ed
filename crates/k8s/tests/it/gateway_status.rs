//! Statuses of the Gateway API's objects in a real API server, from its objects to what is written into them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_control::source::feed::ObjectSource;
use evenkeel_control::source::{Extent, LiveSource as _};
use evenkeel_k8s::gateways::{DeploymentOptions, GatewayDeployments};
use evenkeel_k8s::lease::{Candidate, LeaseTimes};
use evenkeel_k8s::ownership::Ownership;
use evenkeel_k8s::status::{StatusQueue, StatusWriter};
use evenkeel_model::{AddressBook, Builder, MeshConfig, Source as _};
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use futures_util::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, WatchEvent, WatchParams};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::fixture::{admin, until};
use crate::mesh::start;

const GROUP: &str = "gateway.networking.k8s.io";
/// Routes that change all the time.
const ROUTES: usize = 200;
/// How often each of them changes.
const CHANGES: usize = 2;

/// A control plane, as far as it reads objects, writes statuses and deploys Gateways. It ends with this value.
struct Plane {
    _tasks: JoinSet<()>,
}

impl Plane {
    async fn start(server: &ApiServer, namespace: &str) -> Self {
        Self::with(server, namespace, false).await
    }

    /// `deploys`: Gateways, too.
    async fn with(server: &ApiServer, namespace: &str, deploys: bool) -> Self {
        let (client, queue) = (admin(server).await, StatusQueue::default());
        let (watching, source) = start(&server.kubeconfig()).await;
        let candidate = Candidate::new(client.clone(), namespace, "evenkeel-status", "a", LeaseTimes::default());
        let writer = StatusWriter::new(
            queue.clone(),
            candidate.leadership(),
            "evenkeel-status",
            Ownership::new(client.clone(), "default"),
        );
        let mut tasks = JoinSet::new();
        let options = DeploymentOptions { root: namespace.to_owned(), revision: "default".to_owned() };
        let gateways = GatewayDeployments::new(client, candidate.leadership(), options, queue.clone());
        tasks.spawn(candidate.run(std::future::pending()));
        tasks.spawn(writer.run());
        if deploys {
            tasks.spawn(gateways.run());
        }
        tasks.spawn(async move {
            let _watching = watching;
            follow(source.with_statuses(Box::new(queue))).await
        });
        Self { _tasks: tasks }
    }
}

/// Builds the model of each change, and queues the statuses that are others.
async fn follow(mut source: ObjectSource) {
    let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
    source.first();
    loop {
        let built = builder.apply(source.tell());
        built.write_statuses(&mut [&mut source]);
        source.changed().await.expect("the source goes on");
        source.refresh(Extent::All).await;
    }
}

fn get(server: &ApiServer, kind: &str, namespace: &str, name: &str) -> Value {
    let kind = format!("{kind}.{GROUP}");
    let text =
        server.kubectl(&["get", &kind, name, "--namespace", namespace, "--output=json", "--show-managed-fields"]);
    serde_json::from_str(&text).expect("JSON")
}

fn patch(server: &ApiServer, kind: &str, namespace: &str, name: &str, status: &str) {
    let kind = format!("{kind}.{GROUP}");
    let flags = ["--subresource=status", "--type=merge", "--field-manager=other", "-p", status];
    server.kubectl(&[&["patch", &kind, name, "-n", namespace][..], &flags].concat());
}

/// `True Accepted 1`: status, reason and generation of a condition.
fn condition(list: &Value, kind: &str) -> String {
    let all = list["conditions"].as_array().cloned().unwrap_or_default();
    let of = all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |name: &str| of[name].as_str().unwrap_or("-").to_owned();
    format!("{} {} {}", text("status"), text("reason"), of["observedGeneration"])
}

fn edge(namespace: &str, listeners: &str) -> String {
    format!(
        "apiVersion: {GROUP}/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: {namespace}}}\n\
         spec: {{gatewayClassName: istio, listeners: [{listeners}]}}\n---\n"
    )
}

fn route(namespace: &str, name: &str, backend: &str) -> String {
    format!(
        "apiVersion: {GROUP}/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{parentRefs: [{{name: edge}}, {{name: other}}], hostnames: [{name}.example.com], \
         rules: [{{backendRefs: [{{name: {backend}, port: 80}}]}}]}}\n---\n"
    )
}

fn service(namespace: &str, name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{selector: {{gateway.networking.k8s.io/gateway-name: edge}}, ports: [{{name: http, port: 80}}]}}\n---\n"
    )
}

/// A class, and a Gateway that a Service and a Pod serve.
fn served(namespace: &str) -> String {
    format!(
        "apiVersion: {GROUP}/v1\nkind: GatewayClass\nmetadata: {{name: istio}}\n\
         spec: {{controllerName: istio.io/gateway-controller}}\n---\n{}{}{}\
         apiVersion: v1\nkind: Pod\nmetadata: {{name: edge-0, namespace: {namespace}, labels: {{{GROUP}/gateway-name: edge}}}}\n\
         spec: {{nodeName: n1, containers: [{{name: istio-proxy, image: x}}]}}\n---\n",
        edge(namespace, "{name: http, port: 80, protocol: HTTP}"),
        service(namespace, "edge-istio"),
        service(namespace, "web"),
    )
}

/// The suite of the Gateway API calls it `GatewayInvalidParametersRef`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_follows_what_becomes_of_its_deployment() {
    let server = ApiServer::start();
    server.install(CustomResources::GatewayApi);
    let shop = server.namespace("shop");
    let gateway = |name: &str| {
        server.apply(&format!(
            "apiVersion: {GROUP}/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: {shop}}}\n\
             spec: {{gatewayClassName: istio, listeners: [{{name: http, port: 80, protocol: HTTP}}], \
             infrastructure: {{parametersRef: {{group: '', kind: ConfigMap, name: {name}}}}}}}\n"
        ));
    };
    server.kubectl(&["create", "configmap", "right", "-n", &shop]);
    let _plane = Plane::with(&server, &shop, true).await;
    let accepted = |expected: &'static str| {
        let (server, shop) = (&server, &shop);
        until(async move || condition(&get(server, "gateway", shop, "edge")["status"], "Accepted") == expected)
    };
    gateway("none");
    accepted("False InvalidParameters 1").await;
    gateway("right");
    accepted("True Accepted 2").await;
    gateway("lost");
    accepted("False InvalidParameters 3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_are_written_beside_those_of_other_controllers() {
    let server = ApiServer::start();
    server.install(CustomResources::GatewayApi);
    let shop = server.namespace("shop");
    server.apply(&format!("{}{}", served(&shop), route(&shop, "web", "web")));
    let condition_of_other = r#"{"type":"Reconciled","status":"True","reason":"Other","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}"#;
    let parent_of_other = format!(
        r#"{{"status":{{"parents":[{{"parentRef":{{"name":"other"}},"controllerName":"example.com/c","conditions":[{condition_of_other}]}}]}}}}"#
    );
    patch(&server, "httproute", &shop, "web", &parent_of_other);
    patch(&server, "gateway", &shop, "edge", &format!(r#"{{"status":{{"conditions":[{condition_of_other}]}}}}"#));
    let _plane = Plane::start(&server, &shop).await;

    let gateway = || get(&server, "gateway", &shop, "edge")["status"].clone();
    until(async || condition(&gateway(), "Programmed") == "True Programmed 1").await;
    until(async || gateway()["listeners"][0]["attachedRoutes"] == 1).await;
    let written = gateway();
    assert_eq!(condition(&written, "Reconciled"), "True Other null", "{written}");
    assert_eq!(written["addresses"][0]["value"], format!("edge-istio.{shop}.svc.cluster.local"), "{written}");
    assert_eq!(condition(&written["listeners"][0], "Accepted"), "True Accepted 1", "{written}");
    let class: Value = get(&server, "gatewayclass", "", "istio")["status"].clone();
    assert_eq!(condition(&class, "Accepted"), "True Accepted 1", "{class}");
    assert_eq!(condition(&class, "SupportedVersion"), "True SupportedVersion 1", "{class}");
    assert!(class["supportedFeatures"].as_array().is_some_and(|all| all.len() > 10), "{class}");
    let read = || get(&server, "httproute", &shop, "web");
    until(async || read()["status"]["parents"].as_array().is_some_and(|all| all.len() == 2)).await;
    let parents = read()["status"]["parents"].clone();
    assert_eq!(condition(&parents[0], "Reconciled"), "True Other null", "{parents}");
    assert_eq!(parents[1]["controllerName"], "istio.io/gateway-controller", "{parents}");
    assert_eq!(condition(&parents[1], "ResolvedRefs"), "True ResolvedRefs 1", "{parents}");

    // Nothing is written while nothing changes.
    let before = (get(&server, "gateway", &shop, "edge"), read());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(before, (get(&server, "gateway", &shop, "edge"), read()));

    // The other controller writes its parent again, and loses ours: they come back with the next change.
    patch(&server, "httproute", &shop, "web", &parent_of_other);
    server.apply(&route(&shop, "web", "none"));
    until(async || condition(&read()["status"]["parents"][1], "ResolvedRefs") == "False BackendNotFound 2").await;
    assert_eq!(condition(&read()["status"]["parents"][0], "Reconciled"), "True Other null");
    server.apply(&edge(&shop, "{name: tcp, port: 90, protocol: TCP}"));
    until(async || condition(&gateway(), "Programmed") == "True Programmed 2").await;
    until(async || condition(&read()["status"]["parents"][1], "Accepted") == "False NotAllowedByListeners 2").await;
    let listeners = gateway()["listeners"].clone();
    assert_eq!((listeners.as_array().map(Vec::len), &listeners[0]["name"]), (Some(1), &"tcp".into()), "{listeners}");
}

/// Counts the changes of routes.
async fn count_changes(server: &ApiServer, namespace: &str, count: Arc<AtomicUsize>) -> tokio::task::JoinHandle<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", "HTTPRoute"));
    let api: Api<DynamicObject> = Api::namespaced_with(admin(server).await, namespace, &resource);
    let from = api.list(&Default::default()).await.expect("a list").metadata.resource_version.expect("a version");
    tokio::spawn(async move {
        let mut events = api.watch(&WatchParams::default(), &from).await.expect("a watch").boxed();
        while let Some(Ok(event)) = events.next().await {
            count.fetch_add(usize::from(matches!(event, WatchEvent::Modified(_))), Ordering::Relaxed);
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_routes_that_change_end_with_their_statuses_in_few_writes() {
    let server = ApiServer::start();
    server.install(CustomResources::GatewayApi);
    let shop = server.namespace("shop");
    server.apply(&served(&shop));
    let changes = Arc::new(AtomicUsize::new(0));
    let counting = count_changes(&server, &shop, changes.clone()).await;
    let _plane = Plane::start(&server, &shop).await;
    let all = |backend: &str| (0..ROUTES).map(|at| route(&shop, &format!("r{at}"), backend)).collect::<String>();
    for backend in ["web", "none", "web"] {
        server.apply(&all(backend));
    }
    let kind = format!("httproutes.{GROUP}");
    let is_done = async || {
        let text = server.kubectl(&["get", &kind, "--namespace", &shop, "--output=json"]);
        let routes: Value = serde_json::from_str(&text).expect("JSON");
        let routes = routes["items"].as_array().cloned().unwrap_or_default();
        let expected = format!("True ResolvedRefs {}", CHANGES + 1);
        routes.len() == ROUTES
            && routes.iter().all(|of| condition(&of["status"]["parents"][0], "ResolvedRefs") == expected)
    };
    until(is_done).await;
    until(async || get(&server, "gateway", &shop, "edge")["status"]["listeners"][0]["attachedRoutes"] == ROUTES).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(is_done().await, "an older status has come later");
    let writes = changes.load(Ordering::Relaxed) - ROUTES * CHANGES;
    assert!((ROUTES..=ROUTES * (CHANGES + 1)).contains(&writes), "{writes} writes for {ROUTES} routes");
    counting.abort();
}

/// Routes that two controllers write into.
const SHARED: usize = 60;

/// Another controller, which writes its own parent into each route again and again, and keeps the others' as it has read them.
async fn write_as_another(server: &ApiServer, namespace: &str, rounds: usize) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", "HTTPRoute"));
    let api: Api<DynamicObject> = Api::namespaced_with(admin(server).await, namespace, &resource);
    let is_own = |parent: &Value| parent["controllerName"] == "example.com/c";
    for round in 0..rounds {
        for at in 0..SHARED {
            loop {
                let mut route = api.get(&format!("r{at}")).await.expect("the route");
                let mut parents = route.data["status"]["parents"].as_array().cloned().unwrap_or_default();
                parents.retain(|parent| !is_own(parent));
                parents.push(serde_json::json!({
                    "parentRef": {"name": "other"},
                    "controllerName": "example.com/c",
                    "conditions": [{"type": "Accepted", "status": "True", "reason": "Other", "message": round.to_string(),
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                }));
                route.data["status"] = serde_json::json!({ "parents": parents });
                match api.replace_status(&format!("r{at}"), &Default::default(), &route).await {
                    Ok(_) => break,
                    Err(kube::Error::Api(status)) if status.is_conflict() => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_controllers_keep_each_others_conditions_while_routes_change() {
    const ROUNDS: usize = 3;
    let server = ApiServer::start();
    server.install(CustomResources::GatewayApi);
    let shop = server.namespace("shop");
    server.apply(&served(&shop));
    let all = |backend: &str| (0..SHARED).map(|at| route(&shop, &format!("r{at}"), backend)).collect::<String>();
    server.apply(&all("web"));
    let _plane = Plane::start(&server, &shop).await;
    let change = async {
        for backend in ["none", "web", "none", "web"] {
            let text = all(backend);
            tokio::task::block_in_place(|| server.apply(&text));
        }
    };
    tokio::join!(change, write_as_another(&server, &shop, ROUNDS));
    let kind = format!("httproutes.{GROUP}");
    let last = (ROUNDS - 1).to_string();
    let has_both = |route: &Value| {
        let parents = route["status"]["parents"].as_array().cloned().unwrap_or_default();
        let of = |controller: &str| parents.iter().find(|parent| parent["controllerName"] == controller);
        let generation = &route["metadata"]["generation"];
        let ours = of("istio.io/gateway-controller").map(|parent| condition(parent, "ResolvedRefs"));
        let theirs = of("example.com/c").map(|parent| parent["conditions"][0]["message"].clone());
        parents.len() == 2
            && ours == Some(format!("True ResolvedRefs {generation}"))
            && theirs == Some(last.clone().into())
    };
    until(async || {
        let text = server.kubectl(&["get", &kind, "--namespace", &shop, "--output=json"]);
        let routes: Value = serde_json::from_str(&text).expect("JSON");
        let routes = routes["items"].as_array().cloned().unwrap_or_default();
        routes.len() == SHARED && routes.iter().all(has_both)
    })
    .await;
}
