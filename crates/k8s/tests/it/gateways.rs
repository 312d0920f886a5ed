//! Gateways that are deployed from their objects, in a real API server.

use std::time::Duration;

use evenkeel_k8s::gateways::{DeploymentOptions, GatewayDeployments, MANAGER};
use evenkeel_k8s::lease::{Candidate, LeaseTimes};
use evenkeel_k8s::status::StatusQueue;
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::fixture::{admin, until};

/// A control plane, as far as it deploys Gateways. It ends with this value.
async fn start(server: &ApiServer, namespace: &str) -> JoinSet<()> {
    let client = admin(server).await;
    let candidate = Candidate::new(client.clone(), namespace, "evenkeel-status", "a", LeaseTimes::default());
    let options = DeploymentOptions { root: namespace.to_owned(), revision: "default".to_owned() };
    let gateways = GatewayDeployments::new(client, candidate.leadership(), options, StatusQueue::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(candidate.run(std::future::pending()));
    tasks.spawn(gateways.run());
    tasks
}

struct Cluster<'a> {
    server: &'a ApiServer,
    namespace: &'a str,
}

impl Cluster<'_> {
    /// An object; null if there is none.
    fn get(&self, kind: &str, name: &str) -> Value {
        let flags = ["--namespace", self.namespace, "--output=json", "--show-managed-fields", "--ignore-not-found"];
        let text = self.server.kubectl(&[&["get", kind, name][..], &flags].concat());
        if text.trim().is_empty() { Value::Null } else { serde_json::from_str(&text).expect("JSON") }
    }

    fn gateway(&self, name: &str, metadata: &str, spec: &str) {
        self.server.apply(&format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
             metadata: {{name: {name}, namespace: {}{metadata}}}\n\
             spec: {{gatewayClassName: istio, listeners: [{{name: http, port: 80, protocol: HTTP}}]{spec}}}\n",
            self.namespace
        ));
    }

    /// `True Deployed`: the condition about the deployment.
    fn deployed(&self, gateway: &str) -> String {
        let object = self.get("gateways.gateway.networking.k8s.io", gateway);
        let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let of = all.into_iter().find(|condition| condition["type"] == "evenkeel.dev/Deployed").unwrap_or_default();
        let text = |name: &str| of[name].as_str().unwrap_or_default().to_owned();
        format!("{} {}", text("status"), text("reason"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deployed_follows_its_gateway() {
    let server = ApiServer::start();
    server.install(CustomResources::GatewayApi);
    let shop = server.namespace("shop");
    let cluster = Cluster { server: &server, namespace: &shop };
    let parameters = |data: &str| {
        server.apply(&format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: parameters, namespace: {shop}}}\ndata: {{{data}}}\n"
        ));
    };
    parameters(
        "deployment: 'spec: {replicas: 3}', horizontalPodAutoscaler: 'spec: {minReplicas: 2, maxReplicas: 5}', \
         podDisruptionBudget: 'spec: {minAvailable: 1}'",
    );
    let of_class = "labels: {gateway.istio.io/defaults-for-class: istio}";
    server.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: of-class, namespace: {shop}, {of_class}}}\n\
         data: {{service: 'metadata: {{annotations: {{by: class}}}}', deployment: 'spec: {{replicas: 9}}'}}\n"
    ));
    let asks = ", infrastructure: {labels: {team: a}, parametersRef: {group: '', kind: ConfigMap, name: parameters}}";
    let annotations = ", annotations: {networking.istio.io/service-type: ClusterIP}";
    cluster.gateway("edge", annotations, asks);
    let _tasks = start(&server, &shop).await;

    until(async || cluster.deployed("edge") == "True Deployed").await;
    let deployment = cluster.get("deployment", "edge-istio");
    assert_eq!((&deployment["spec"]["replicas"], &deployment["metadata"]["labels"]["team"]), (&3.into(), &"a".into()));
    let uid = cluster.get("gateways.gateway.networking.k8s.io", "edge")["metadata"]["uid"].clone();
    assert_eq!(deployment["metadata"]["ownerReferences"][0]["uid"], uid, "{deployment:#}");
    let managers = deployment["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    assert!(managers.iter().any(|of| of["manager"] == MANAGER && of["operation"] == "Apply"), "{managers:?}");
    let pod = &deployment["spec"]["template"];
    assert_eq!(pod["metadata"]["annotations"]["inject.istio.io/templates"], "gateway", "{pod:#}");
    assert_eq!(pod["spec"]["serviceAccountName"], "edge-istio", "{pod:#}");
    let service = cluster.get("service", "edge-istio");
    let spec = &service["spec"];
    assert_eq!((&spec["type"], &spec["ports"][1]["port"]), (&"ClusterIP".into(), &80.into()), "{service:#}");
    assert_eq!(service["metadata"]["annotations"]["by"], "class", "{service:#}");
    assert_eq!(cluster.get("hpa", "edge-istio")["spec"]["maxReplicas"], 5);
    assert!(cluster.get("serviceaccount", "edge-istio").is_object());
    assert!(cluster.get("gatewayclass", "istio").is_object(), "istiod creates its class, too");

    // Nothing is written while nothing changes.
    let version = |kind: &str| cluster.get(kind, "edge-istio")["metadata"]["resourceVersion"].clone();
    let before = (version("deployment"), version("service"), cluster.get("gateways.gateway.networking.k8s.io", "edge"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = (version("deployment"), version("service"), cluster.get("gateways.gateway.networking.k8s.io", "edge"));
    assert_eq!(before, after);

    // What is deleted comes back, and what is not asked for any more goes.
    server.kubectl(&["delete", "deployment", "edge-istio", "-n", &shop, "--wait=false"]);
    until(async || cluster.get("deployment", "edge-istio")["metadata"]["uid"] != deployment["metadata"]["uid"]).await;
    until(async || cluster.get("deployment", "edge-istio").is_object()).await;
    for kind in ["hpa", "pdb"] {
        let before = cluster.get(kind, "edge-istio")["metadata"]["uid"].clone();
        server.kubectl(&["delete", kind, "edge-istio", "-n", &shop]);
        let is_new = |object: &Value| object.is_object() && object["metadata"]["uid"] != before;
        until(async || is_new(&cluster.get(kind, "edge-istio"))).await;
    }
    // What is edited becomes what it was.
    let edits = [
        ("hpa", r#"{"spec": {"maxReplicas": 50}}"#, "maxReplicas", 5),
        ("pdb", r#"{"spec": {"minAvailable": 7}}"#, "minAvailable", 1),
    ];
    for (kind, edit, field, expected) in edits {
        server.kubectl(&["patch", kind, "edge-istio", "-n", &shop, "--type=merge", "-p", edit]);
        until(async || cluster.get(kind, "edge-istio")["spec"][field] == expected).await;
    }
    cluster.gateway("edge", annotations, "");
    until(async || cluster.get("hpa", "edge-istio").is_null()).await;
    until(async || cluster.get("pdb", "edge-istio").is_null()).await;
    until(async || cluster.get("deployment", "edge-istio")["spec"]["replicas"] == 9).await;
    cluster.gateway("edge", annotations, ", addresses: [{type: Hostname, value: other}]");
    for kind in ["deployment", "service", "serviceaccount"] {
        until(async || cluster.get(kind, "edge-istio").is_null()).await;
    }
    until(async || cluster.deployed("edge") == " ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_others_is_left_alone_and_bad_parameters_are_named() {
    let server = ApiServer::start();
    server.install(CustomResources::GatewayApi);
    let shop = server.namespace("shop");
    let cluster = Cluster { server: &server, namespace: &shop };
    server.apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: taken-istio, namespace: {shop}}}\nspec: {{ports: [{{port: 1}}]}}\n---\n\
         apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: bad, namespace: {shop}}}\ndata: {{deployment: 'spec: {{replica: 3}}'}}\n"
    ));
    let before = cluster.get("service", "taken-istio");
    cluster.gateway("taken", "", "");
    cluster.gateway("wrong", "", ", infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: bad}}");
    cluster.gateway("lost", "", ", infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: none}}");
    cluster.gateway("canary", ", labels: {istio.io/rev: canary}", "");
    let _tasks = start(&server, &shop).await;
    until(async || cluster.deployed("taken") == "False NotOwned").await;
    until(async || cluster.deployed("wrong") == "False InvalidParameters").await;
    until(async || cluster.deployed("lost") == "False InvalidParameters").await;
    assert_eq!(cluster.get("service", "taken-istio"), before);
    assert!(cluster.get("deployment", "wrong-istio").is_null());
    assert!(cluster.get("deployment", "canary-istio").is_null(), "it is for another revision");
    assert_eq!(cluster.deployed("canary"), " ");
    // With the Service gone, the Gateway gets its own.
    server.kubectl(&["delete", "service", "taken-istio", "-n", &shop]);
    cluster.gateway("taken", ", annotations: {again: now}", "");
    until(async || cluster.deployed("taken") == "True Deployed").await;
    assert_eq!(cluster.get("service", "taken-istio")["spec"]["type"], "LoadBalancer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_has_the_ports_of_the_listener_sets_that_the_gateway_takes() {
    let server = ApiServer::start();
    server.install(CustomResources::GatewayApi);
    let shop = server.namespace("shop");
    let other = server.namespace("other");
    let cluster = Cluster { server: &server, namespace: &shop };
    let set = |namespace: &str, name: &str, port: u16| {
        server.apply(&format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{parentRef: {{name: edge, namespace: {shop}}}, listeners: [{{name: http, port: {port}, protocol: HTTP}}]}}\n"
        ));
    };
    let ports = || -> Vec<u64> {
        let service = cluster.get("service", "edge-istio");
        let all = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
        // Two ListenerSets of one second have the order of their namespaces.
        let mut ports: Vec<u64> = all.iter().filter_map(|port| port["port"].as_u64()).collect();
        ports.sort_unstable();
        ports
    };
    let selector = |label: &str| {
        format!(
            ", allowedListeners: {{namespaces: {{from: Selector, selector: {{matchLabels: {{kubernetes.io/metadata.name: {label}}}}}}}}}"
        )
    };
    cluster.gateway("edge", "", ", allowedListeners: {namespaces: {from: Same}}");
    set(&shop, "own", 8080);
    set(&other, "theirs", 9090);
    let _tasks = start(&server, &shop).await;
    until(async || ports() == [80, 8080, 15021]).await;
    set(&shop, "own", 8081);
    until(async || ports() == [80, 8081, 15021]).await;
    cluster.gateway("edge", "", ", allowedListeners: {namespaces: {from: All}}");
    until(async || ports() == [80, 8081, 9090, 15021]).await;
    cluster.gateway("edge", "", &selector(&other));
    until(async || ports() == [80, 9090, 15021]).await;
    server.kubectl(&["delete", "listenerset", "theirs", "-n", &other]);
    until(async || ports() == [80, 15021]).await;
    cluster.gateway("edge", "", &selector(&shop));
    until(async || ports() == [80, 8081, 15021]).await;
    cluster.gateway("edge", "", "");
    until(async || ports() == [80, 15021]).await;
}
