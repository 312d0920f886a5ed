//! Objects of a real API server as commands use them.

use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::{ApplyOptions, Change, Cluster, ClusterError, ObjectKind, Permission, Selection};
use evenkeel_testkit::kubernetes::ApiServer;
use serde_json::{Value, json};

const CONFIG_MAP: ObjectKind<'_> = ObjectKind { api_version: "v1", kind: "ConfigMap" };

async fn cluster(server: &ApiServer) -> Cluster {
    let options = ClusterOptions { kubeconfig: Some(server.kubeconfig()), context: None };
    Cluster::of(&options).await.expect("a cluster")
}

fn map(namespace: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": namespace, "labels": {"of": "test"}},
        "data": {"key": value}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_applied_listed_and_deleted() {
    let server = ApiServer::shared();
    let (cluster, namespace) = (cluster(server).await, server.namespace("cluster"));
    let as_ = |manager: &str| ApplyOptions { manager: manager.to_owned(), dry_run: false, force: false };
    let apply = async |value: &str, options: ApplyOptions| cluster.apply(&map(&namespace, value), &options).await;
    let dry = ApplyOptions { dry_run: true, ..as_("one") };
    assert_eq!(apply("1", dry).await.expect("applied"), Change::Created);
    let get = async || cluster.get(CONFIG_MAP, Some(&namespace), "a").await.expect("an answer");
    assert_eq!(get().await, None);
    assert_eq!(apply("1", as_("one")).await.expect("applied"), Change::Created);
    assert_eq!(apply("1", as_("one")).await.expect("applied"), Change::Unchanged);
    assert_eq!(apply("2", as_("one")).await.expect("applied"), Change::Configured);
    let conflict = apply("3", as_("other")).await.expect_err("the field is of another manager");
    assert!(matches!(conflict, ClusterError::Refused { code: 409, .. }), "{conflict}");
    let force = ApplyOptions { force: true, ..as_("other") };
    assert_eq!(apply("3", force).await.expect("applied"), Change::Configured);
    assert_eq!(get().await.expect("an object")["data"]["key"], "3");

    let selection = Selection { namespace: Some(&namespace), labels: "of=test" };
    let listed = cluster.list(CONFIG_MAP, selection).await.expect("a list");
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["kind"], &listed[0]["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    let unknown = ObjectKind { api_version: "nobody.dev/v1", kind: "Nothing" };
    assert_eq!(cluster.list(unknown, Selection::default()).await.expect("no kind"), Vec::<Value>::new());
    assert!(cluster.delete(&listed[0]).await.expect("deleted"));
    assert!(!cluster.delete(&listed[0]).await.expect("absent"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_says_who_may_do_what_and_what_time_it_is() {
    let server = ApiServer::shared();
    let namespace = server.namespace("rights");
    let admin = cluster(server).await;
    let kubeconfig = server.kubeconfig_of(&namespace, "default");
    let nobody = Cluster::of(&ClusterOptions { kubeconfig: Some(kubeconfig), context: None }).await.expect("a cluster");
    let right = Permission { verb: "create", group: "apps", resource: "deployments", namespace: Some(&namespace) };
    assert!(admin.may(&right).await.expect("a verdict"));
    assert!(!nobody.may(&right).await.expect("a verdict"));
    assert!(admin.version().await.expect("a version").starts_with("v1."));
    let clock = admin.clock().await.expect("an answer").expect("a date");
    let apart = clock.elapsed().unwrap_or_else(|ahead| ahead.duration());
    assert!(apart.as_secs() < 60, "{apart:?}");
}
