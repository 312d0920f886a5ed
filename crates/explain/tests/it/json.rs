//! The JSON form: its keys are stable.

use crate::mesh::{ask, world};

/// The keys that docs/explain.md promises.
const KEYS: [&str; 25] = [
    "call",
    "outcome",
    "status",
    "responseFlag",
    "details",
    "location",
    "reason",
    "arrives",
    "listener",
    "filterChain",
    "peerAuthentication",
    "virtualHost",
    "route",
    "considered",
    "policies",
    "clusters",
    "rewrites",
    "timeout",
    "retries",
    "mirrors",
    "transport",
    "filters",
    "running",
    "notes",
    "hops",
];

#[test]
fn the_keys_are_those_of_the_documentation() {
    let world = world("");
    for question in ["web.shop GET http://reviews/", "web.shop tcp db.data:5432", "legacy.shop GET http://legacy/"] {
        let json = ask(&world, question).expect("an answer").to_json();
        let keys: Vec<&str> = json.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS, "{question}");
    }
}

#[test]
fn values_are_found_under_their_keys() {
    let world = world("");
    let check = |question: &str, pointer: &str, expected: serde_json::Value| {
        let json = ask(&world, question).expect("an answer").to_json();
        assert_eq!(json.pointer(pointer), Some(&expected), "{question} {pointer}\n{json:#}");
    };
    let jason = "web.shop GET http://reviews/beta/x?y=1 end-user:jason";
    check(jason, "/route/source/object", "VirtualService shop/reviews".into());
    check(jason, "/route/source/file", "mesh.yaml".into());
    check(jason, "/route/source/line", 99.into());
    check(jason, "/timeout", "5s".into());
    check(jason, "/retries/attempts", 3.into());
    check(jason, "/retries/perTryTimeout", "2s".into());
    check(jason, "/rewrites/path", "/v2/x?y=1".into());
    check(jason, "/rewrites/headers/0", "request: remove x-debug".into());
    check(jason, "/rewrites/headers/1", "request: add x-beta: 1".into());
    check(jason, "/clusters/0/endpoints/0/workload", "reviews-v2-0.shop".into());
    check(jason, "/transport/mode", "mtls".into());
    check(jason, "/transport/identity", "spiffe://cluster.local/ns/shop/sa/web".into());
    check(jason, "/considered/0/reason", "sourceNamespace is shop, must be \"data\"".into());
    check(jason, "/considered/1/later", true.into());
    let other = "web.shop GET http://reviews/beta/x";
    check(other, "/considered/1/reason", "header end-user is absent, must be \"jason\"".into());
    check(other, "/clusters/1/weight", 25.into());
    let denied = "web.shop DELETE http://reviews/x";
    check(denied, "/outcome", "deny".into());
    check(denied, "/hops/0/outcome", "forward".into());
    check(denied, "/policies/1/matches", false.into());
    check(denied, "/policies/1/missing/0/field", "to[0].operation.methods".into());
    check(denied, "/policies/1/missing/0/got", "\"DELETE\"".into());
    check(denied, "/policies/1/source/line", 150.into());
    check(denied, "/hops/1/peerAuthentication/source/line", 140.into());
    check("web.shop GET http://reviews/old", "/location", "http://reviews/new".into());
    check("web.shop tcp db.data:5432", "/transport/source/line", 135.into());
    check("web.shop tcp db.data:5432", "/transport/mode", "plaintext".into());
}
