//! A proxy that has lost a resource without noticing: the digest of its resources reveals the loss, it gets the resource
//! again, and the divergence is reported.

use evenkeel_xds::ResourceType;
use evenkeel_xds::client::Protocol;
use evenkeel_xds::pb::envoy::config::core::v3::Node;

use crate::fixture::{Plane, Proxy, cluster, node, plain_channel, service};

#[tokio::test]
async fn what_a_proxy_lost_is_found_sent_anew_and_counted() {
    let plane = Plane::start(&[("a.yaml", service("a")), ("b.yaml", service("b"))]).await;
    let ours = Node { user_agent_name: "evenkeel".to_owned(), ..node("shop", "client") };
    let channel = plain_channel(plane.addresses.grpc).await;
    let mut proxy = Proxy::open(channel, Protocol::Delta, ours).await.expect("a stream");
    proxy.lose(&cluster("a")).await;
    proxy.until_held(ResourceType::Listener, "virtualInbound").await;
    // To the control plane all is well.
    plane.until("/debug/syncz", |page| page.contains("\"live\": true").then_some(())).await;
    assert!(!proxy.holds(ResourceType::Cluster, &cluster("a")) && proxy.holds(ResourceType::Cluster, &cluster("b")));
    assert!(!plane.page("/metrics").await.contains("evenkeel_xds_divergences{type=\"cds\"} 1\n"));

    proxy.report().await;
    proxy.until_held(ResourceType::Cluster, &cluster("a")).await;
    let counted = |page: &str| page.contains("evenkeel_xds_divergences{type=\"cds\"} 1\n").then_some(());
    plane.until("/metrics", counted).await;
    let divergence = plane.json("/debug/syncz").await["proxies"][0]["divergence"].clone();
    assert_eq!(divergence, serde_json::json!({"number": 1, "type": "CDS", "names": [cluster("a")]}));

    // Healed: the next report says nothing new.
    proxy.report().await;
    plane.write("c.yaml", &service("c"));
    proxy.until_held(ResourceType::Cluster, &cluster("c")).await;
    counted(&plane.page("/metrics").await).expect("one divergence");
}
