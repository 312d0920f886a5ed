//! Streams of both protocols: what proxies get, and what debug pages show of them.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use evenkeel_xds::ResourceType;
use evenkeel_xds::client::{ConnectionError, Protocol};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tonic::Code;

use crate::fixture::{Plane, Proxy, cluster, node, plain_channel, pod, service};

#[tokio::test]
async fn both_protocols_get_everything_and_the_next_edit() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut proxy = plane.client(protocol, "client").await;
        proxy.until_held(ResourceType::Cluster, &cluster("a")).await;
        proxy.until_held(ResourceType::Listener, "0.0.0.0_80").await;
        proxy.until_held(ResourceType::Listener, "virtualInbound").await;

        let added = format!("new-{}", if protocol == Protocol::Delta { "delta" } else { "sotw" });
        plane.write(&format!("{added}.yaml"), &service(&added));
        proxy.until_held(ResourceType::Cluster, &cluster(&added)).await;
    }
}

#[tokio::test]
async fn endpoints_follow_pods() {
    let files = [("a.yaml", service("a")), ("pods.yaml", pod("a", "10.244.0.2"))];
    let plane = Plane::start(&files).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.want_endpoints(&[&cluster("a")]).await;
    let addresses = |text: &'static str| {
        move |update: &evenkeel_xds::client::Update| {
            let endpoints = update.added.iter().filter(|_| update.kind == ResourceType::Endpoint);
            let found = endpoints.filter(|r| String::from_utf8_lossy(&r.any.value).contains(text)).count();
            (found > 0).then_some(())
        }
    };
    proxy.until(addresses("10.244.0.2")).await;
    plane.write("pods.yaml", &format!("{}---\n{}", pod("a", "10.244.0.2"), pod("b", "10.244.0.3")));
    plane.write("pods.yaml", &pod("a", "10.244.0.77"));
    proxy.until(addresses("10.244.0.77")).await;
    plane.until("/debug/endpointz", |page| page.contains("10.244.0.77").then_some(())).await;
}

#[tokio::test]
async fn a_refusal_is_recorded_with_its_reason_and_place() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    let refused = proxy.step(Some("this build has no taste for it")).await.expect("an update");
    assert_eq!(refused.kind, ResourceType::Cluster);
    let page = plane.until("/debug/syncz", |page| page.contains("no taste").then(|| page.to_owned())).await;
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(page["proxies"][0]["live"], false);
    let nack = &page["proxies"][0]["types"][0]["nack"];
    let origins: Vec<&str> =
        nack["resources"].as_array().expect("resources").iter().filter_map(|r| r["origin"].as_str()).collect();
    assert!(origins.iter().any(|o| o.contains("a.yaml:3:")), "{nack}");
    let metrics = plane.page("/metrics").await;
    assert!(metrics.contains("pilot_total_xds_rejects{type=\"cds\"} 1\n"), "{metrics}");
    // It is offered again after a second, whether or not the client takes it: how often depends on how long this took.
    assert!(!metrics.contains("pilot_xds_pushes{type=\"cds\"} 0\n"), "{metrics}");
    assert!(metrics.contains("pilot_xds_pushes{type=\"cds\"} "), "{metrics}");
}

#[tokio::test]
async fn a_proxy_is_live_when_it_has_accepted_everything() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Listener, "0.0.0.0_80").await;
    plane.until("/debug/syncz", |page| page.contains("\"live\": true").then_some(())).await;
    let dump = plane.json("/debug/config_dump?proxyID=client-0.shop").await;
    assert!(dump["CDS"].as_array().expect("clusters").iter().any(|c| c["name"] == cluster("a")), "{dump}");
    assert!(plane.page("/debug/config_dump?proxyID=nobody").await.contains("client-0.shop"));
    assert!(plane.page("/metrics").await.contains("pilot_xds 1\n"));
    drop(proxy);
    plane.until("/metrics", |page| page.contains("pilot_xds 0\n").then_some(())).await;
}

#[tokio::test]
async fn a_node_that_makes_no_sense_is_refused() {
    let plane = Plane::start(&[]).await;
    let bad = Node { id: "nonsense".to_owned(), ..node("shop", "a") };
    let channel = plain_channel(plane.addresses.grpc).await;
    let error = match Proxy::open(channel, Protocol::Delta, bad).await {
        Ok(mut proxy) => proxy.step(None).await.expect_err("a refusal"),
        Err(error) => error,
    };
    let ConnectionError::Status(status) = error else { panic!("{error}") };
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("`nonsense` is not `sidecar~IP~POD.NAMESPACE~DOMAIN`"), "{status}");
}

#[tokio::test]
async fn garbage_on_a_port_disturbs_nobody() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Cluster, &cluster("a")).await;
    let addresses = plane.addresses;
    let mut held = Vec::new();
    for address in [addresses.grpc, addresses.secure_grpc, addresses.http] {
        for bytes in
            [&b"\x00\xff garbage \r\n\r\n"[..], b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff"]
        {
            held.push(send(address, bytes));
        }
    }
    plane.write("b.yaml", &service("b"));
    proxy.until_held(ResourceType::Cluster, &cluster("b")).await;
    assert_eq!(plane.page("/ready").await, "ready\n");
    plane.client(Protocol::Sotw, "client").await.until_held(ResourceType::Cluster, &cluster("b")).await;
    drop(held);
}

/// Sends bytes and leaves the connection open.
fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.write_all(bytes).expect("sent bytes");
    stream
}
