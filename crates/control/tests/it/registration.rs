//! Workloads that register themselves: which may, what their WorkloadEntry contains, and how long it stays.

use evenkeel_ca::{TokenKey, Workload};
use evenkeel_xds::client::{ConnectionError, Protocol};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::google::protobuf::{Struct, Value, value::Kind};
use std::time::{Duration, SystemTime};
use tonic::Code;

use crate::certificates::{csr, request, tls};
use crate::fixture::{PATIENCE, Plane, Proxy, node, plain_channel, service, tls_channel};

fn group(account: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {{name: vm, namespace: shop}}\n\
         spec: {{metadata: {{labels: {{app: vm}}}}, template: {{serviceAccount: {account}, ports: {{http: 8080}}}}}}\n"
    )
}

/// The node of sidecar `client-0`, of the group.
fn member(namespace: &str, account: &str, has_probe: bool) -> Node {
    let mut node = node(namespace, account);
    let probe = Value { kind: Some(Kind::StructValue(Struct::default())) };
    let config = Struct { fields: [("readinessProbe".to_owned(), probe)].into() };
    let fields = &mut node.metadata.as_mut().expect("metadata").fields;
    fields.insert("AUTO_REGISTER_GROUP".to_owned(), Value { kind: Some(Kind::StringValue("vm".to_owned())) });
    if has_probe {
        fields.insert("PROXY_CONFIG".to_owned(), Value { kind: Some(Kind::StructValue(config)) });
    }
    node
}

/// Connects with a certificate of this identity.
async fn connect(plane: &Plane, namespace: &str, account: &str, has_probe: bool) -> Result<Proxy, ConnectionError> {
    let (key, request_of) = csr(&format!("spiffe://cluster.local/ns/{namespace}/sa/{account}"));
    let workload =
        Workload { namespace: namespace.to_owned(), service_account: account.to_owned(), pod: "client-0".to_owned() };
    let tokens = TokenKey::open(plane.state.path()).expect("the control plane's key");
    let token = tokens.mint(&workload, Duration::from_secs(60), SystemTime::now()).expect("a token");
    let chain = request(plane, request_of, Some(&token)).await.expect("a certificate");
    let channel = tls_channel(plane.addresses.secure_grpc, tls(plane, Some((&chain, &key)))).await;
    let node = member(namespace, account, has_probe);
    let mut proxy = Proxy::open(channel.expect("a connection"), Protocol::Delta, node).await?;
    proxy.step(None).await?;
    Ok(proxy)
}

/// Waits until the only endpoint of the service is ready or not, or until there is none.
async fn until(plane: &Plane, expected: Option<bool>) {
    let is_so = |page: &str| {
        let services: serde_json::Value = serde_json::from_str(page).ok()?;
        let found = services.pointer("/0/endpoints/0");
        let is_ours = found.is_none_or(|found| found["address"] == "10.244.0.9" && found["port"] == 80);
        (is_ours && found.map(|found| found["ready"] == true) == expected).then_some(())
    };
    plane.until("/debug/endpointz", is_so).await;
}

#[tokio::test]
async fn a_workload_is_an_endpoint_while_it_is_connected_and_healthy() {
    let plane = Plane::start(&[("a.yaml", service("vm")), ("group.yaml", group("client"))]).await;
    let proxy = connect(&plane, "shop", "client", true).await.expect("a stream");
    // Nothing is known of its health.
    until(&plane, Some(false)).await;
    proxy.report_health(Ok(())).await;
    until(&plane, Some(true)).await;
    proxy.report_health(Err("the database is gone")).await;
    until(&plane, Some(false)).await;
    proxy.report_health(Ok(())).await;
    until(&plane, Some(true)).await;

    // Its entry goes with the group, and comes back with it.
    std::fs::remove_file(plane.config.path().join("group.yaml")).expect("a removed file");
    until(&plane, None).await;
    plane.write("group.yaml", &group("client"));
    until(&plane, Some(true)).await;

    // A second stream of the workload, that of its agent; the end of one leaves the other.
    let second = connect(&plane, "shop", "client", true).await.expect("a stream");
    drop(proxy);
    plane.until("/metrics", |page| page.contains("pilot_xds 1\n").then_some(())).await;
    until(&plane, Some(true)).await;
    drop(second);
    until(&plane, None).await;
}

#[tokio::test]
async fn an_entry_outlives_its_control_plane() {
    let plane = Plane::start(&[("a.yaml", service("vm")), ("group.yaml", group("client"))]).await;
    let proxy = connect(&plane, "shop", "client", false).await.expect("a stream");
    until(&plane, Some(true)).await;
    let (config, state) = plane.stop().await;
    drop(proxy);
    let plane = Plane::start_in(config, state).await;
    until(&plane, Some(true)).await;
    // It comes back, and from then on it is this one's.
    let proxy = connect(&plane, "shop", "client", false).await.expect("a stream");
    drop(proxy);
    until(&plane, None).await;
}

#[tokio::test]
async fn who_may_not_register_is_refused_and_named() {
    let plane = Plane::start(&[("a.yaml", service("vm")), ("group.yaml", group("vm"))]).await;
    let check = async |namespace: &str, account: &str, expected: &str| {
        let refused = connect(&plane, namespace, account, false).await.err().expect("a refusal");
        let ConnectionError::Status(status) = refused else { panic!("{refused}") };
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(expected), "{status}");
        let node = node(namespace, account).id;
        let page = plane.json("/debug/syncz").await;
        let named = page["not_registered"].as_array().expect("a list").iter().find(|one| one["proxy"] == *node);
        assert!(named.is_some_and(|one| one["reason"].as_str().is_some_and(|it| it.contains(expected))), "{page}");
    };
    check("shop", "client", "whose template has `serviceAccount: vm`").await;
    check("other", "vm", "there is no WorkloadGroup `vm` in the namespace `other`").await;

    let channel = plain_channel(plane.addresses.grpc).await;
    let refused = match Proxy::open(channel, Protocol::Delta, member("shop", "vm", false)).await {
        Ok(mut proxy) => proxy.step(None).await.err(),
        Err(error) => Some(error),
    };
    assert!(refused.is_some_and(|error| error.to_string().contains("needs a certificate")));

    // An entry that somebody wrote is not overwritten.
    let written = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\n\
                   metadata: {name: vm-10.244.0.9, namespace: shop}\nspec: {address: 10.9.9.9, labels: {app: vm}}\n";
    plane.write("entry.yaml", written);
    plane.until("/debug/endpointz", |page| page.contains("10.9.9.9").then_some(())).await;
    check("shop", "vm", "is written in").await;

    std::fs::remove_file(plane.config.path().join("entry.yaml")).expect("a removed file");
    plane.until("/debug/endpointz", |page| (!page.contains("10.9.9.9")).then_some(())).await;
    let registered = tokio::time::timeout(PATIENCE, connect(&plane, "shop", "vm", false)).await;
    let _proxy = registered.expect("in time").expect("a stream");
    until(&plane, Some(true)).await;
    let page = plane.json("/debug/syncz").await;
    let left = page["not_registered"].as_array().expect("a list");
    assert!(left.iter().all(|one| one["proxy"] != *node("shop", "vm").id), "{page}");
}
