//! Exchanges written out message by message, in short form: `CDS +a +b -c`.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;

use super::{Announcement, MAX_NAME_BYTES, MAX_NAMES_PER_TYPE, REOFFER_FIRST, RequestError, delta, sotw};
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
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
    sent_at(stream, Duration::ZERO)
}

fn sent_at(stream: &mut delta::Stream, now: Duration) -> (Vec<String>, Vec<DeltaDiscoveryResponse>) {
    let decode = |response: super::Response| DeltaDiscoveryResponse::decode(&*response.encode_to_vec()).unwrap();
    let responses: Vec<_> = std::iter::from_fn(|| stream.poll_response(now)).map(decode).collect();
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

use ResourceType::{Cluster, Endpoint, Listener, NameTable, Route, Secret, VirtualHost};

#[test]
fn sends_what_is_asked_for_and_says_what_does_not_exist() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(Cluster, "a", "1"), (Endpoint, "a", "1")]));
    stream.on_request(&subscribe(Cluster, &[]), Duration::ZERO).unwrap();
    let (texts, responses) = sent(&mut stream);
    assert_eq!(texts, ["CDS +a"]);
    stream.on_request(&ack(&responses[0]), Duration::ZERO).unwrap();
    stream.on_request(&subscribe(Endpoint, &["a", "ghost"]), Duration::ZERO).unwrap();
    assert_eq!(sent(&mut stream).0, ["EDS +a -ghost"]);
}

#[test]
fn every_type_says_of_a_name_that_there_is_nothing() {
    for kind in ResourceType::ALL {
        for there in [&[][..], &[(kind, "there", "1")]] {
            let mut stream = delta::Stream::new(Announcement::default());
            stream.on_snapshot(&set(1, there));
            stream.on_request(&subscribe(kind, &["9999/gone"]), Duration::ZERO).unwrap();
            let (texts, responses) = sent(&mut stream);
            // Of virtual hosts Envoy wants a resource without content.
            let said = format!("{kind} {}9999/gone", if kind == VirtualHost { '+' } else { '-' });
            assert_eq!(texts, [said.as_str()]);
            assert!(responses[0].resources.iter().all(|resource| resource.resource.is_none()));
            stream.on_request(&ack(&responses[0]), Duration::ZERO).unwrap();
            // Asked again, as by one that has forgotten the answer.
            stream.on_request(&subscribe(kind, &["9999/gone"]), Duration::ZERO).unwrap();
            assert_eq!(sent(&mut stream).0, [said]);
            // State of the world can say it of clusters and listeners, by leaving them out; others get an answer too.
            let mut stream = sotw::Stream::new(Announcement::default());
            stream.on_snapshot(&set(1, there));
            let request = DiscoveryRequest {
                type_url: kind.type_url().into(),
                resource_names: vec!["9999/gone".into()],
                ..Default::default()
            };
            stream.on_request(&request, Duration::ZERO).unwrap();
            let response = stream.poll_response(Duration::ZERO).expect("an answer").encode_to_vec();
            let response = DiscoveryResponse::decode(&*response).unwrap();
            assert!(response.resources.is_empty(), "{kind}");
        }
    }
}

/// A client that learns of a secret too late would continue with a listener without certificate; resources that name the
/// secret now come first.
#[test]
fn a_secret_is_said_to_be_gone_after_what_named_it() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(Listener, "web", "with one"), (Secret, "one", "1")]));
    stream.on_request(&subscribe(Listener, &[]), Duration::ZERO).unwrap();
    let (texts, listeners) = sent(&mut stream);
    assert_eq!(texts, ["LDS +web"]);
    stream.on_request(&subscribe(Secret, &["zero"]), Duration::ZERO).unwrap();
    // The listener names another secret before the client has subscribed to the first.
    stream.on_snapshot(&set(2, &[(Listener, "web", "with two"), (Secret, "two", "1")]));
    stream.on_request(&subscribe(Secret, &["one"]), Duration::ZERO).unwrap();
    assert!(sent(&mut stream).0.is_empty(), "neither is there, but the first listener is not answered yet");
    stream.on_request(&ack(&listeners[0]), Duration::ZERO).unwrap();
    let (texts, listeners) = sent(&mut stream);
    assert_eq!(texts, ["LDS +web"]);
    // Existing resources wait for nobody.
    stream.on_request(&subscribe(Secret, &["two"]), Duration::ZERO).unwrap();
    let (texts, secrets) = sent(&mut stream);
    assert_eq!(texts, ["SDS +two"]);
    stream.on_request(&ack(&secrets[0]), Duration::ZERO).unwrap();
    assert!(sent(&mut stream).0.is_empty());
    stream.on_request(&ack(&listeners[0]), Duration::ZERO).unwrap();
    assert_eq!(sent(&mut stream).0, ["SDS -one -zero"]);
}

/// A client that comes again to a large mesh asks for everything at once, and gRPC's clients refuse more than 4 MiB.
#[test]
fn an_answer_of_more_than_4_mib_is_divided() {
    const LIMIT: usize = 4 * 1024 * 1024;
    let content = "x".repeat(300_000);
    let names: Vec<String> = (0..40).map(|number| format!("c{number:02}")).collect();
    let all: Vec<_> =
        names.iter().flat_map(|name| [Cluster, Endpoint].map(|kind| (kind, name.as_str(), content.as_str()))).collect();
    let large = "y".repeat(LIMIT + 1);
    let all = [&all[..], &[(Cluster, "large", large.as_str())]].concat();
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &all));
    let mut first = subscribe(Cluster, &[]);
    first.initial_resource_versions = [("c00".to_owned(), "old".to_owned())].into();
    stream.on_request(&first, Duration::ZERO).unwrap();
    let (mut added, mut responses) = (Vec::new(), 0);
    while let Some(response) = stream.poll_response(Duration::ZERO) {
        stream.check_invariants();
        let bytes = response.encode_to_vec();
        let response = DeltaDiscoveryResponse::decode(&*bytes).unwrap();
        assert!(bytes.len() <= LIMIT || response.resources.len() == 1, "{} bytes", bytes.len());
        added.extend(response.resources.iter().map(|resource| resource.name.clone()));
        responses += 1;
        assert!(stream.poll_response(Duration::ZERO).is_none(), "one at a time");
        stream.on_request(&ack(&response), Duration::ZERO).unwrap();
    }
    added.sort();
    let mut expected = names.clone();
    expected.push("large".to_owned());
    assert_eq!((added, responses), (expected, 5));

    // Of state of the world, only lists that are not taken for complete.
    let check = |kind: ResourceType, names: &[String], responses: usize| {
        let mut stream = sotw::Stream::new(Announcement::default());
        stream.on_snapshot(&set(1, &all));
        let mut request =
            DiscoveryRequest { type_url: kind.type_url().into(), resource_names: names.to_vec(), ..Default::default() };
        let mut sizes = Vec::new();
        stream.on_request(&request, Duration::ZERO).unwrap();
        while let Some(response) = stream.poll_response(Duration::ZERO) {
            let bytes = response.encode_to_vec();
            sizes.push(bytes.len());
            request.response_nonce = DiscoveryResponse::decode(&*bytes).unwrap().nonce;
            stream.on_request(&request, Duration::ZERO).unwrap();
        }
        assert_eq!(sizes.len(), responses, "{kind}: {sizes:?}");
    };
    check(Endpoint, &names, 4);
    check(Cluster, &[], 1);
}

#[test]
fn an_empty_wildcard_is_answered_once() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[]));
    stream.on_request(&subscribe(Listener, &[]), Duration::ZERO).unwrap();
    let (texts, responses) = sent(&mut stream);
    assert_eq!(texts, ["LDS"]);
    stream.on_request(&ack(&responses[0]), Duration::ZERO).unwrap();
    assert!(sent(&mut stream).0.is_empty());
    assert_eq!(stream.status().settled_generation, 1);
}

#[test]
fn one_push_in_flight_and_the_latest_wins() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_request(&subscribe(Cluster, &[]), Duration::ZERO).unwrap();
    assert!(sent(&mut stream).0.is_empty(), "there is nothing to say before a first set");
    stream.on_snapshot(&set(1, &[(Cluster, "a", "1")]));
    let (_, first) = sent(&mut stream);
    stream.on_snapshot(&set(2, &[(Cluster, "a", "2"), (Cluster, "b", "1")]));
    stream.on_snapshot(&set(3, &[(Cluster, "a", "3")]));
    assert!(sent(&mut stream).0.is_empty());
    stream.on_request(&ack(&first[0]), Duration::ZERO).unwrap();
    let (texts, second) = sent(&mut stream);
    assert_eq!(texts, ["CDS +a"]);
    assert_eq!(second[0].resources[0].resource.as_ref().unwrap().value, b"3");
    assert_eq!(stream.status().settled_generation, 0);
}

#[test]
fn makes_before_it_breaks() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(Cluster, "old", "1"), (Listener, "l", "old")]));
    stream.on_request(&subscribe(Cluster, &[]), Duration::ZERO).unwrap();
    stream.on_request(&subscribe(Listener, &[]), Duration::ZERO).unwrap();
    let mut log = Vec::new();
    let mut answer_all = |stream: &mut delta::Stream| {
        loop {
            let (texts, responses) = sent(stream);
            if responses.is_empty() {
                return std::mem::take(&mut log);
            }
            log.push(texts.join(" | "));
            responses.iter().for_each(|response| stream.on_request(&ack(response), Duration::ZERO).unwrap());
        }
    };
    assert_eq!(answer_all(&mut stream), ["CDS +old", "LDS +l"]);
    stream.on_snapshot(&set(2, &[(Cluster, "new", "1"), (Listener, "l", "new")]));
    assert_eq!(answer_all(&mut stream), ["CDS +new", "LDS +l", "CDS -old"]);
}

#[test]
fn a_refusal_is_kept_with_its_reason_and_not_repeated() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(Route, "80", "1")]));
    stream.on_request(&subscribe(Route, &["80"]), Duration::ZERO).unwrap();
    let (_, responses) = sent(&mut stream);
    let mut nack = ack(&responses[0]);
    nack.error_detail =
        Some(rpc::Status { code: 13, message: "no such cluster\n and no timeout\r\n".into(), details: vec![] });
    stream.on_request(&nack, Duration::ZERO).unwrap();
    assert!(sent(&mut stream).0.is_empty());
    let status = stream.status();
    let refused = status.types[0].nack.as_ref().unwrap();
    let said = "no such cluster; and no timeout";
    assert_eq!((refused.message.as_str(), refused.resources[0].name.as_str()), (said, "80"));
    assert!(!status.is_live(1));
    stream.on_snapshot(&set(2, &[(Route, "80", "2")]));
    let (texts, responses) = sent(&mut stream);
    assert_eq!(texts, ["RDS +80"]);
    stream.on_request(&ack(&responses[0]), Duration::ZERO).unwrap();
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
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&resources);
    stream.on_request(&request, Duration::ZERO).unwrap();
    assert_eq!(sent(&mut stream).0, ["CDS +b -c"]);
}

#[test]
fn a_type_we_do_not_have_is_named() {
    let mut request = subscribe(Cluster, &[]);
    request.type_url = "type.googleapis.com/example.Unknown".into();
    let error = delta::Stream::new(Announcement::default()).on_request(&request, Duration::ZERO).unwrap_err();
    assert_eq!(error.to_string(), "unknown resource type \"type.googleapis.com/example.Unknown\"");
}

fn refuse(response: &DeltaDiscoveryResponse, message: &str) -> DeltaDiscoveryRequest {
    let error = rpc::Status { code: 13, message: message.into(), details: vec![] };
    DeltaDiscoveryRequest { error_detail: Some(error), ..ack(response) }
}

/// Answers everything, refusing whatever holds a bad resource, until nothing more comes; gives what was sent.
fn settle(stream: &mut delta::Stream, now: Duration, bad: &[&str], message: &str) -> Vec<String> {
    let mut log = Vec::new();
    loop {
        let (texts, responses) = sent_at(stream, now);
        if responses.is_empty() {
            return log;
        }
        log.extend(texts);
        for response in &responses {
            let refused = response.resources.iter().any(|resource| bad.contains(&resource.name.as_str()));
            let answer = if refused { refuse(response, message) } else { ack(response) };
            stream.on_request(&answer, now).unwrap();
        }
    }
}

fn refused_names(stream: &delta::Stream) -> Vec<String> {
    let status = stream.status();
    let nack = status.types[0].nack.as_ref();
    nack.map(|nack| nack.resources.iter().map(|r| r.name.clone()).collect()).unwrap_or_default()
}

#[test]
fn a_named_culprit_is_held_back_and_the_rest_sent_again() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(Cluster, "a", "1"), (Cluster, "b", "1"), (Cluster, "c", "1")]));
    stream.on_request(&subscribe(Cluster, &[]), Duration::ZERO).unwrap();
    let log = settle(&mut stream, Duration::ZERO, &["b"], "Error adding/updating cluster(s) b: no such thing");
    assert_eq!(log, ["CDS +a +b +c", "CDS +a +c"]);
    assert_eq!(refused_names(&stream), ["b"]);
    assert_eq!(stream.status().settled_generation, 1);
    // Others change meanwhile; the bad one waits.
    stream.on_snapshot(&set(2, &[(Cluster, "a", "2"), (Cluster, "b", "1"), (Cluster, "c", "1")]));
    assert_eq!(settle(&mut stream, Duration::ZERO, &["b"], ""), ["CDS +a"]);
    // It changes, so it is sent at once.
    stream.on_snapshot(&set(3, &[(Cluster, "a", "2"), (Cluster, "b", "2"), (Cluster, "c", "1")]));
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["CDS +b"]);
    assert!(stream.status().is_live(3));
    // Bad again, and back to what the client holds: it is told, so that it does not show a refusal for ever.
    stream.on_snapshot(&set(4, &[(Cluster, "a", "2"), (Cluster, "b", "3"), (Cluster, "c", "1")]));
    assert_eq!(settle(&mut stream, Duration::ZERO, &["b"], "b is bad"), ["CDS +b"]);
    stream.on_snapshot(&set(5, &[(Cluster, "a", "2"), (Cluster, "b", "2"), (Cluster, "c", "1")]));
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["CDS +b"]);
    assert!(stream.status().is_live(5));
}

#[test]
fn an_unnamed_culprit_is_found_by_halves() {
    let names: Vec<String> = (0..64).map(|index| format!("c{index:02}")).collect();
    let resources: Vec<_> = names.iter().map(|name| (Cluster, name.as_str(), "1")).collect();
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &resources));
    stream.on_request(&subscribe(Cluster, &[]), Duration::ZERO).unwrap();
    let log = settle(&mut stream, Duration::ZERO, &["c17", "c40"], "Proto constraint validation failed");
    assert_eq!(refused_names(&stream), ["c17", "c40"]);
    assert!(log.len() <= 1 + 2 * 2 * 6, "{} responses", log.len());
    assert_eq!(stream.status().settled_generation, 1);
    // And again at growing intervals, by themselves.
    let mut now = Duration::ZERO;
    for wait in [1, 2, 4] {
        assert_eq!(stream.next_timer(now), Some(now + REOFFER_FIRST * wait));
        assert!(sent_at(&mut stream, now + REOFFER_FIRST * wait - Duration::from_millis(1)).0.is_empty());
        now += REOFFER_FIRST * wait;
        let log = settle(&mut stream, now, &["c17", "c40"], "c17 and c40 are bad");
        assert_eq!(log, ["CDS +c17 +c40"]);
    }
    now += REOFFER_FIRST * 8;
    assert_eq!(settle(&mut stream, now, &["c17"], "c17 is bad"), ["CDS +c17 +c40", "CDS +c40"]);
    assert_eq!(refused_names(&stream), ["c17"]);
}

#[test]
fn a_resource_taken_away_while_refused_is_forgotten() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(Cluster, "a", "1"), (Cluster, "b", "1")]));
    stream.on_request(&subscribe(Cluster, &[]), Duration::ZERO).unwrap();
    settle(&mut stream, Duration::ZERO, &["b"], "b is bad");
    stream.on_snapshot(&set(2, &[(Cluster, "a", "1")]));
    settle(&mut stream, Duration::ZERO, &[], "");
    assert_eq!(stream.next_timer(Duration::ZERO), None);
    assert_eq!(stream.status().settled_generation, 2);
}

fn virtual_host(name: &str, content: &str, aliases: &[&str]) -> Arc<Resource> {
    let any = Any { type_url: VirtualHost.type_url().into(), value: content.as_bytes().to_vec() };
    Arc::new(Resource::new(name, &any).with_aliases(aliases.iter().map(|alias| Arc::from(*alias))))
}

#[test]
fn virtual_hosts_are_had_by_what_requests_ask_for() {
    let mut set = ResourceSet::new(1);
    set.insert(VirtualHost, virtual_host("80/web.shop", "1", &["80/web", "80/10.0.0.1"]));
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&Arc::new(set.clone()));
    let settled = |stream: &mut delta::Stream| settle(stream, Duration::ZERO, &[], "");
    stream.on_request(&subscribe(VirtualHost, &["80/web:8080", "80/ghost", "80/x.wild.org"]), Duration::ZERO).unwrap();
    let (texts, responses) = sent(&mut stream);
    assert_eq!(texts, ["VHDS +80/ghost +80/x.wild.org +80/web:8080"]);
    let bodies: Vec<bool> = responses[0].resources.iter().map(|resource| resource.resource.is_some()).collect();
    assert_eq!(bodies, [false, false, true]);
    stream.on_request(&ack(&responses[0]), Duration::ZERO).unwrap();
    // Another answers to it: under its alias, or as the better match.
    set.insert(VirtualHost, virtual_host("80/wild", "1", &["80/*.wild.org"]));
    stream.on_snapshot(&Arc::new(set.clone()));
    assert_eq!(settled(&mut stream), ["VHDS +80/x.wild.org"]);
    set.insert(VirtualHost, virtual_host("80/x", "2", &["80/x.wild.org"]));
    set.insert(VirtualHost, virtual_host("90/other", "1", &["90/web"]));
    stream.on_snapshot(&Arc::new(set.clone()));
    assert_eq!(settled(&mut stream), ["VHDS +80/x.wild.org"]);
    set.remove(VirtualHost, "80/web.shop");
    set.remove(VirtualHost, "80/x");
    stream.on_snapshot(&Arc::new(set.clone()));
    assert_eq!(settled(&mut stream), ["VHDS +80/x.wild.org -80/web:8080"]);
    // Back at a control plane that has the same: nothing is sent.
    let mut request = subscribe(VirtualHost, &["80/x.wild.org"]);
    let version = set.get(VirtualHost, "80/wild").unwrap().version.to_string();
    request.initial_resource_versions = [("80/x.wild.org".into(), version)].into();
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&Arc::new(set));
    stream.on_request(&request, Duration::ZERO).unwrap();
    assert!(sent(&mut stream).0.is_empty());
}

#[test]
fn names_come_and_go_and_what_is_named_is_told_of() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(NameTable, "a.shop", "1"), (NameTable, "b.shop", "1")]));
    stream.on_request(&subscribe(NameTable, &["a.shop"]), Duration::ZERO).unwrap();
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["NDS +a.shop"]);
    stream.on_snapshot(&set(2, &[(NameTable, "a.shop", "1"), (NameTable, "b.shop", "2")]));
    assert!(sent(&mut stream).0.is_empty(), "nobody asked for b.shop");
    stream.on_request(&subscribe(NameTable, &["b.shop", "c.shop"]), Duration::ZERO).unwrap();
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["NDS +b.shop -c.shop"]);
    let unsubscribe = DeltaDiscoveryRequest {
        resource_names_subscribe: Vec::new(),
        resource_names_unsubscribe: vec!["b.shop".into()],
        ..subscribe(NameTable, &[])
    };
    stream.on_request(&unsubscribe, Duration::ZERO).unwrap();
    stream.on_snapshot(&set(3, &[(NameTable, "a.shop", "1"), (NameTable, "b.shop", "3"), (NameTable, "c.shop", "1")]));
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["NDS +c.shop"]);
}

#[test]
fn routes_move_before_the_cluster_goes() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(Cluster, "old", "1"), (Route, "r", "old"), (VirtualHost, "r/h", "old")]));
    for (kind, names) in [(Cluster, &[][..]), (Route, &["r"]), (VirtualHost, &["*"])] {
        stream.on_request(&subscribe(kind, names), Duration::ZERO).unwrap();
    }
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["CDS +old", "RDS +r", "VHDS +r/h"]);
    stream.on_snapshot(&set(2, &[(Cluster, "new", "1"), (Route, "r", "new"), (VirtualHost, "r/h", "new")]));
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["CDS +new", "RDS +r", "VHDS +r/h", "CDS -old"]);
    // A rejected route keeps naming the old cluster: the cluster stays as long as that is so.
    stream.on_snapshot(&set(3, &[(Cluster, "newer", "1"), (Route, "r", "newer"), (VirtualHost, "r/h", "newer")]));
    let log = settle(&mut stream, Duration::ZERO, &["r/h"], "r/h is bad");
    assert_eq!(log, ["CDS +newer", "RDS +r", "VHDS +r/h"]);
    stream.on_snapshot(&set(4, &[(Cluster, "newer", "1"), (Route, "r", "newer"), (VirtualHost, "r/h", "good")]));
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["VHDS +r/h", "CDS -new"]);
}

#[test]
fn a_name_that_went_is_denied_after_the_route_to_it() {
    let mut stream = delta::Stream::new(Announcement::default());
    stream.on_snapshot(&set(1, &[(Cluster, "old", "1"), (VirtualHost, "r/h", "old")]));
    for (kind, names) in [(Cluster, &["other"][..]), (VirtualHost, &["r/h"])] {
        stream.on_request(&subscribe(kind, names), Duration::ZERO).unwrap();
    }
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["VHDS +r/h", "CDS -other"]);
    // The client asks for what its virtual host names while that moves on.
    stream.on_snapshot(&set(2, &[(Cluster, "new", "1"), (VirtualHost, "r/h", "new")]));
    stream.on_request(&subscribe(Cluster, &["old"]), Duration::ZERO).unwrap();
    assert_eq!(settle(&mut stream, Duration::ZERO, &[], ""), ["VHDS +r/h", "CDS -old"]);
}

/// What a state-of-the-world client that wants these names is sent; it accepts everything.
fn listed(stream: &mut sotw::Stream, names: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(response) = stream.poll_response(Duration::ZERO) {
        let response = DiscoveryResponse::decode(&*response.encode_to_vec()).unwrap();
        let kind = ResourceType::from_type_url(&response.type_url).unwrap();
        let content = response.resources.iter().map(|any| format!(" {}", String::from_utf8_lossy(&any.value)));
        all.push(format!("{kind}{}", content.collect::<String>()));
        stream.on_request(&ask(kind, names, &response.nonce), Duration::ZERO).unwrap();
        stream.check_invariants();
    }
    all
}

fn ask(kind: ResourceType, names: &[&str], nonce: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: kind.type_url().into(),
        resource_names: names.iter().map(ToString::to_string).collect(),
        response_nonce: nonce.to_owned(),
        ..Default::default()
    }
}

#[test]
fn named_listeners_and_clusters_are_listed_whole_as_what_is_left_out_is_gone() {
    for (kind, is_whole) in [(Listener, true), (Cluster, true), (Endpoint, false)] {
        let mut stream = sotw::Stream::new(Announcement::default());
        stream.on_snapshot(&set(1, &[(kind, "a", "a1"), (kind, "b", "b1"), (kind, "other", "o1")]));
        let names = ["a", "b", "missing"];
        stream.on_request(&ask(kind, &names, ""), Duration::ZERO).unwrap();
        assert_eq!(listed(&mut stream, &names), [format!("{kind} a1 b1")]);
        stream.on_snapshot(&set(2, &[(kind, "a", "a2"), (kind, "b", "b1"), (kind, "other", "o2")]));
        let expected = if is_whole { format!("{kind} a2 b1") } else { format!("{kind} a2") };
        assert_eq!(listed(&mut stream, &names), [expected]);
        // One that goes is left out; of other types there is no way to say so.
        stream.on_snapshot(&set(3, &[(kind, "b", "b1"), (kind, "other", "o2")]));
        let expected = if is_whole { vec![format!("{kind} b1")] } else { Vec::new() };
        assert_eq!(listed(&mut stream, &names), expected);
        // A resource without a subscription is not sent.
        stream.on_snapshot(&set(4, &[(kind, "b", "b1"), (kind, "other", "o3")]));
        assert_eq!(listed(&mut stream, &names), [""; 0]);
    }
}

#[test]
fn names_are_limited_in_number_and_length() {
    let names = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
    let kind = ResourceType::Endpoint;
    let subscribe = |names: Vec<String>| {
        let delta = DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: names.clone(),
            ..Default::default()
        };
        let sotw =
            DiscoveryRequest { type_url: kind.type_url().to_owned(), resource_names: names, ..Default::default() };
        let delta = delta::Stream::new(Announcement::default()).on_request(&delta, Duration::ZERO);
        let sotw = sotw::Stream::new(Announcement::default()).on_request(&sotw, Duration::ZERO);
        assert_eq!(delta, sotw);
        delta
    };
    assert_eq!(subscribe(names(MAX_NAMES_PER_TYPE)), Ok(()));
    assert_eq!(subscribe(names(MAX_NAMES_PER_TYPE + 1)), Err(RequestError::TooManyNames { kind }));
    assert_eq!(subscribe(vec!["a".repeat(MAX_NAME_BYTES)]), Ok(()));
    let bytes = MAX_NAME_BYTES + 1;
    assert_eq!(subscribe(vec!["a".repeat(bytes)]), Err(RequestError::NameTooLong { kind, bytes }));
}
