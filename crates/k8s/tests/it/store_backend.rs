//! A store in a cluster does what one in a directory does, and survives an outage of the API server.

use std::path::Path;

use evenkeel_k8s::store_backend::{KubernetesStore, MAX_VALUE_BYTES};
use evenkeel_store::{Readers, Store};
use evenkeel_testkit::kubernetes::ApiServer;

use crate::backend;
use crate::fixture::config;

async fn store(server: &ApiServer, namespace: &str, local: &Path) -> Store {
    let config = config(&server.kubeconfig()).await;
    Store::new(KubernetesStore::new(config, namespace, local).expect("a store"))
}

#[tokio::test]
async fn a_namespace_is_a_backend() {
    let server = ApiServer::shared();
    let namespace = server.namespace("system");
    let local = tempfile::tempdir().expect("a directory");
    let one = store(server, &namespace, local.path()).await;
    let other = store(server, &namespace, local.path()).await;
    backend::check_all(&one, &other);
    let elsewhere = store(server, &server.namespace("system"), local.path()).await;
    one.put("only/here", b"1", Readers::All).expect("put");
    assert_eq!(elsewhere.get("only/here").expect("no error"), None, "another namespace is another store");
    let error = one.put("large", &vec![0; MAX_VALUE_BYTES + 1], Readers::Owner).expect_err("too large").to_string();
    assert!(error.contains("`large` has 1000001 bytes"), "{error}");
    one.put("large", &vec![0; MAX_VALUE_BYTES], Readers::Owner).expect("put");
    let secrets = server.kubectl(&["get", "secrets,configmaps", "-n", &namespace, "-l", "evenkeel.dev/state"]);
    assert!(secrets.contains("evenkeel-large-") && secrets.contains("evenkeel-only-here-"), "{secrets}");
    let error = one.begin_log("logs/a", b"", evenkeel_store::Begin::New).expect_err("no log").to_string();
    assert!(error.contains("the cluster keeps no logs"), "{error}");
}

#[tokio::test]
async fn without_the_api_server_there_is_an_error_and_afterwards_everything_is_there() {
    let server = ApiServer::start();
    let namespace = server.namespace("system");
    let local = tempfile::tempdir().expect("a directory");
    let store = store(&server, &namespace, local.path()).await;
    store.put("a", b"1", Readers::Owner).expect("put");
    server.kill();
    store.get("a").expect_err("nobody answers");
    store.put("a", b"2", Readers::Owner).expect_err("nobody answers");
    store.lease("a").expect_err("nobody answers");
    server.restart();
    assert_eq!(store.text("a").expect("a value").as_deref(), Some("1"));
    drop(store.lease("a").expect("a lease"));
}
