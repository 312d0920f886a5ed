//! What proxies tell each other, and whom they believe.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_http::{Headers, ResponseHead};
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::peer::Peer;
use evenkeel_runtime_config::peer_metadata::{MarkedRequests, PeerMetadata};
use evenkeel_runtime_config::view::{PeerIdentity, PlainRequest};

use super::known::{DOWNSTREAM, UPSTREAM};
use crate::http::fixture::Fixture;
use crate::{Body, ClusterScope, StateObject};

const ID: &str = "x-envoy-peer-metadata-id";
const METADATA: &str = "x-envoy-peer-metadata";

fn peer(workload: &str, namespace: &str) -> Peer {
    Peer::new(workload, namespace, "Kubernetes", &[("app".to_owned(), workload.to_owned())].into())
}

fn header(workload: &str, namespace: &str) -> String {
    BASE64_STANDARD.encode(peer(workload, namespace).headers("").metadata)
}

fn fixture(marks_requests: Option<MarkedRequests>) -> Fixture {
    let is_server = marks_requests.is_none();
    Fixture::new(HttpFilterConfig::PeerMetadata(Arc::new(PeerMetadata {
        reads_requests: is_server,
        reads_responses: !is_server,
        marks_responses: is_server,
        marks_requests,
        own: peer("own", "shop").headers("sidecar~10.0.0.1~own-0.shop~shop.svc.cluster.local"),
    })))
}

fn named(name: &str, headers: &Headers) -> Option<String> {
    headers.find(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
}

fn workload(fixture: &Fixture, key: &str) -> Option<String> {
    fixture.info.object(key).and_then(StateObject::peer).map(|peer| peer.workload.to_string())
}

#[test]
fn a_server_believes_clients_whose_certificate_agrees() {
    let check = |identity: Option<&str>, value: &str, expected: Option<&str>| {
        let mut server = fixture(None);
        server.request(&PlainRequest::new("GET", "web", "/").with_header(ID, "a").with_header(METADATA, value));
        let uri_sans = identity.iter().map(|uri| (*uri).to_owned()).collect();
        server.connection.peer = identity.map(|_| Arc::new(PeerIdentity { uri_sans, ..PeerIdentity::default() }));
        server.ask(Body::Empty);
        assert_eq!(workload(&server, DOWNSTREAM).as_deref(), expected, "{identity:?} {value}");
        assert_eq!((named(ID, &server.head.headers), named(METADATA, &server.head.headers)), (None, None));
        // The response has headers if the request had.
        let response = server.answer(ResponseHead::default(), false);
        let own = header("own", "shop").len();
        assert!(named(METADATA, &response.headers).is_some_and(|value| value.len() > own / 2));
        assert!(named(ID, &response.headers).is_some_and(|id| id.starts_with("sidecar~")));
    };
    let shop = "spiffe://cluster.local/ns/shop/sa/web";
    check(Some(shop), &header("web", "shop"), Some("web"));
    check(Some(shop), header("web", "shop").trim_end_matches('='), Some("web"));
    check(Some("spiffe://other.test/web"), &header("web", "shop"), Some("web"));
    check(Some("spiffe://cluster.local/ns/other/sa/web"), &header("web", "shop"), None);
    check(None, &header("web", "shop"), None);
    for lies in ["", "lies", "bGllcw==", &"A".repeat(20_000)] {
        check(Some(shop), lies, None);
    }
}

#[test]
fn a_response_says_nothing_to_those_who_did_not_ask() {
    let mut server = fixture(None);
    server.request(&PlainRequest::new("GET", "web", "/"));
    server.ask(Body::Empty);
    let response = server.answer(ResponseHead::default(), false);
    assert_eq!((named(ID, &response.headers), named(METADATA, &response.headers)), (None, None));
}

#[test]
fn a_client_replaces_what_its_workload_says() {
    let check = |marks: MarkedRequests, cluster: &str, external: bool, expected: bool| {
        let mut client = fixture(Some(marks));
        client.cluster = cluster.into();
        let scope = ClusterScope::new(Arc::clone(&client.registry), cluster).outside(external);
        client.cluster_scope = scope.into();
        client.request(&PlainRequest::new("GET", "web", "/").with_header(ID, "lies").with_header(METADATA, "lies"));
        client.ask(Body::Empty);
        let found = named(METADATA, &client.head.headers);
        assert_ne!(found.as_deref(), Some("lies"));
        assert_eq!(found.is_some(), expected, "{marks:?} {cluster} {external}");
        assert_eq!(named(ID, &client.head.headers).is_some(), expected, "{marks:?} {cluster} {external}");
    };
    check(MarkedRequests::All, "c", true, true);
    check(MarkedRequests::InMesh, "c", false, true);
    check(MarkedRequests::InMesh, "c", true, false);
    check(MarkedRequests::InMesh, "PassthroughCluster", false, false);
}

#[test]
fn responses_say_who_has_answered() {
    let check = |local: bool, value: &str, expected: Option<&str>| {
        let mut client = fixture(Some(MarkedRequests::All));
        client.request(&PlainRequest::new("GET", "web", "/"));
        client.ask(Body::Empty);
        let mut response = ResponseHead::default();
        response.headers.append(METADATA.as_bytes(), value.as_bytes());
        let response = client.answer(response, local);
        assert_eq!(named(METADATA, &response.headers), None);
        assert_eq!(workload(&client, UPSTREAM).as_deref(), expected, "{local} {value}");
    };
    check(false, &header("web", "shop"), Some("web"));
    check(true, &header("web", "shop"), None);
    check(false, "lies", None);
}

#[test]
fn logs_have_the_parts_by_name() {
    let mut client = fixture(Some(MarkedRequests::All));
    client.request(&PlainRequest::new("GET", "web", "/"));
    client.ask(Body::Empty);
    let mut response = ResponseHead::default();
    response.headers.append(METADATA.as_bytes(), header("web", "shop").as_bytes());
    client.answer(response, false);
    let object = client.info.object(UPSTREAM).unwrap();
    let mut text = Vec::new();
    assert!(object.write(crate::Form::Typed, &mut text));
    let expected = r#"{"workload":"web","namespace":"shop","cluster":"Kubernetes","service":"web","app":"web"}"#;
    let found: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(found, serde_json::from_str::<serde_json::Value>(expected).unwrap());
    let mut field = Vec::new();
    assert!(object.field("app", &mut field) && !object.field("other", &mut Vec::new()));
    assert_eq!(field, b"web");
}
