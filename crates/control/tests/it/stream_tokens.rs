//! xDS streams over TLS without a client certificate: a token opens one, for its own workload.

use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use evenkeel_xds::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status};

use crate::certificates::{connect, token};
use crate::fixture::{Plane, node, service};

/// The names of the first response's resources.
async fn clusters(plane: &Plane, token: Option<&str>, node: Node) -> Result<Vec<String>, Status> {
    let first = DeltaDiscoveryRequest {
        node: Some(node),
        type_url: ResourceType::Cluster.type_url().to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    let requests = tokio_stream::once(first).chain(tokio_stream::pending());
    let mut request = Request::new(requests);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("metadata"));
    }
    let mut client = AggregatedDiscoveryServiceClient::new(connect(plane).await);
    let mut responses = client.delta_aggregated_resources(request).await?.into_inner();
    let response = responses.message().await?.ok_or_else(|| Status::unknown("the stream has ended"))?;
    Ok(response.resources.into_iter().map(|resource| resource.name).collect())
}

#[tokio::test]
async fn a_token_opens_a_stream_of_its_own_workload() {
    let plane = Plane::start(&[("db.yaml", service("db"))]).await;
    let good = token(&plane);
    let names = clusters(&plane, Some(&good), node("shop", "client")).await.expect("a stream");
    assert!(names.iter().any(|name| name.contains("db.shop")), "{names:?}");
    // The page says who it is.
    let clients = plane.json("/debug/adsz").await.to_string();
    assert!(clients.contains("spiffe://cluster.local/ns/shop/sa/client"), "{clients}");
    let check = async |token: Option<&str>, node: Node, code: Code, part: &str| {
        let of = node.id.clone();
        let refused = clusters(&plane, token, node).await.expect_err("a refusal");
        assert!(refused.code() == code && refused.message().contains(part), "{of}: {refused}");
    };
    check(Some(&good), node("other", "client"), Code::PermissionDenied, "is of namespace `other`").await;
    check(Some(&good), node("shop", "admin"), Code::PermissionDenied, "says service account `admin`").await;
    check(None, node("shop", "client"), Code::Unauthenticated, "authorization: Bearer TOKEN").await;
    check(Some("not.a.token"), node("shop", "client"), Code::Unauthenticated, "not accepted").await;
    let long = "x".repeat(17_000);
    check(Some(&long), node("shop", "client"), Code::Unauthenticated, "").await;
    let forged = format!("{}x", good.trim_end_matches(|last: char| last.is_ascii_alphanumeric()));
    check(Some(&forged), node("shop", "client"), Code::Unauthenticated, "not accepted").await;
}
