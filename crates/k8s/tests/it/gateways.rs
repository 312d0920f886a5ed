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
    parameters("deployment: 'spec: {replicas: 3}', horizontalPodAutoscaler: 'spec: {minReplicas: 2, maxReplicas: 5}'");
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
    cluster.gateway("edge", annotations, "");
    until(async || cluster.get("hpa", "edge-istio").is_null()).await;
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
