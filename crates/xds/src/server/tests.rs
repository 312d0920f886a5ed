//! Exchanges written out message by message, in short form: `CDS +a +b -c`.

use std::sync::Arc;

use super::delta;
use crate::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use crate::pb::google::rpc;
use crate::{Any, Resource, ResourceSet, ResourceType};

fn set(generation: u64, resources: &[(ResourceType, &str, &str)]) -> Arc<ResourceSet> {
    let mut set = ResourceSet::new(generation);
    for (kind, name, content) in resources {
        let any = Any { type_url: kind.type_url().into(), value: content.as_bytes().to_vec() };
        set.insert(*kind, Arc::new(Resource::new(*name, &any)));
    }
    Arc::new(set)
}

fn short(response: &DeltaDiscoveryResponse) -> String {
    let kind = ResourceType::from_type_url(&response.type_url).unwrap();
    let added = response.resources.iter().map(|resource| format!(" +{}", resource.name));
    let removed = response.removed_resources.iter().map(|name| format!(" -{name}"));
    format!("{kind}{}", added.chain(removed).collect::<String>())
}

/// Sends everything due, answers nothing.
fn sent(stream: &mut delta::Stream) -> (Vec<String>, Vec<DeltaDiscoveryResponse>) {
    let responses: Vec<_> = std::iter::from_fn(|| stream.poll_response()).collect();
    stream.check_invariants();
    (responses.iter().map(short).collect(), responses)
}

fn subscribe(kind: ResourceType, names: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: kind.type_url().into(),
        resource_names_subscribe: names.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn ack(response: &DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..Default::default()
    }
}

use ResourceType::{Cluster, Endpoint, Listener, Route};

#[test]
fn sends_what_is_asked_for_and_says_what_does_not_exist() {
    let mut stream = delta::Stream::new();
    stream.on_snapshot(&set(1, &[(Cluster, "a", "1"), (Endpoint, "a", "1")]));
    stream.on_request(&subscribe(Cluster, &[])).unwrap();
    let (texts, responses) = sent(&mut stream);
    assert_eq!(texts, ["CDS +a"]);
    stream.on_request(&ack(&responses[0])).unwrap();
    stream.on_request(&subscribe(Endpoint, &["a", "ghost"])).unwrap();
    assert_eq!(sent(&mut stream).0, ["EDS +a -ghost"]);
}

#[test]
fn an_empty_wildcard_is_answered_once() {
    let mut stream = delta::Stream::new();
    stream.on_snapshot(&set(1, &[]));
    stream.on_request(&subscribe(Listener, &[])).unwrap();
    let (texts, responses) = sent(&mut stream);
    assert_eq!(texts, ["LDS"]);
    stream.on_request(&ack(&responses[0])).unwrap();
    assert!(sent(&mut stream).0.is_empty());
    assert_eq!(stream.status().settled_generation, 1);
}

#[test]
fn one_push_in_flight_and_the_latest_wins() {
    let mut stream = delta::Stream::new();
    stream.on_request(&subscribe(Cluster, &[])).unwrap();
    assert!(sent(&mut stream).0.is_empty(), "there is nothing to say before a first set");
    stream.on_snapshot(&set(1, &[(Cluster, "a", "1")]));
    let (_, first) = sent(&mut stream);
    stream.on_snapshot(&set(2, &[(Cluster, "a", "2"), (Cluster, "b", "1")]));
    stream.on_snapshot(&set(3, &[(Cluster, "a", "3")]));
    assert!(sent(&mut stream).0.is_empty());
    stream.on_request(&ack(&first[0])).unwrap();
    let (texts, second) = sent(&mut stream);
    assert_eq!(texts, ["CDS +a"]);
    assert_eq!(second[0].resources[0].resource.as_ref().unwrap().value, b"3");
    assert_eq!(stream.status().settled_generation, 0);
}

#[test]
fn makes_before_it_breaks() {
    let mut stream = delta::Stream::new();
    stream.on_snapshot(&set(1, &[(Cluster, "old", "1"), (Listener, "l", "old")]));
    stream.on_request(&subscribe(Cluster, &[])).unwrap();
    stream.on_request(&subscribe(Listener, &[])).unwrap();
    let mut log = Vec::new();
    let mut answer_all = |stream: &mut delta::Stream| {
        loop {
            let (texts, responses) = sent(stream);
            if responses.is_empty() {
                return std::mem::take(&mut log);
            }
            log.push(texts.join(" | "));
            responses.iter().for_each(|response| stream.on_request(&ack(response)).unwrap());
        }
    };
    assert_eq!(answer_all(&mut stream), ["CDS +old", "LDS +l"]);
    stream.on_snapshot(&set(2, &[(Cluster, "new", "1"), (Listener, "l", "new")]));
    assert_eq!(answer_all(&mut stream), ["CDS +new", "LDS +l", "CDS -old"]);
}

#[test]
fn a_refusal_is_kept_with_its_reason_and_not_repeated() {
    let mut stream = delta::Stream::new();
    stream.on_snapshot(&set(1, &[(Route, "80", "1")]));
    stream.on_request(&subscribe(Route, &["80"])).unwrap();
    let (_, responses) = sent(&mut stream);
    let mut nack = ack(&responses[0]);
    nack.error_detail = Some(rpc::Status { code: 13, message: "no such cluster".into(), details: vec![] });
    stream.on_request(&nack).unwrap();
    assert!(sent(&mut stream).0.is_empty());
    let status = stream.status();
    let refused = status.types[0].nack.as_ref().unwrap();
    assert_eq!((refused.message.as_str(), refused.resources[0].name.as_str()), ("no such cluster", "80"));
    assert!(!status.is_live(1));
    stream.on_snapshot(&set(2, &[(Route, "80", "2")]));
    let (texts, responses) = sent(&mut stream);
    assert_eq!(texts, ["RDS +80"]);
    stream.on_request(&ack(&responses[0])).unwrap();
    assert!(sent(&mut stream).0.is_empty());
    assert!(stream.status().is_live(2));
}

#[test]
fn a_client_that_comes_back_gets_only_what_changed() {
    let resources = set(1, &[(Cluster, "a", "1"), (Cluster, "b", "1")]);
    let mut request = subscribe(Cluster, &[]);
    let version_of = |name| resources.get(Cluster, name).unwrap().version.to_string();
    request.initial_resource_versions =
        [("a".into(), version_of("a")), ("b".into(), "stale".into()), ("c".into(), "gone".into())].into();
    let mut stream = delta::Stream::new();
    stream.on_snapshot(&resources);
    stream.on_request(&request).unwrap();
    assert_eq!(sent(&mut stream).0, ["CDS +b -c"]);
}

#[test]
fn a_type_we_do_not_have_is_named() {
    let mut request = subscribe(Cluster, &[]);
    request.type_url = "type.googleapis.com/example.Unknown".into();
    let error = delta::Stream::new().on_request(&request).unwrap_err();
    assert_eq!(error.to_string(), "unknown resource type \"type.googleapis.com/example.Unknown\"");
}
