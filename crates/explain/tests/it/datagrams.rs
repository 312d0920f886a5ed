//! Questions about datagrams: the route, the backends with their shares, and why datagrams are dropped.

use evenkeel_explain::Question;

use crate::mesh::{question, world};

const GATEWAY: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: net}
spec:
  gatewayClassName: istio
  listeners: [{name: dns, port: 53, protocol: UDP}, {name: web, port: 8080, protocol: HTTP}]
---
apiVersion: v1
kind: Pod
metadata: {name: edge-0, namespace: net, labels: {gateway.networking.k8s.io/gateway-name: edge}, annotations: {inject.istio.io/templates: gateway}}
spec: {containers: [{name: proxy}]}
status: {podIP: 10.244.9.1, conditions: [{type: Ready, status: \"True\"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: old-0, namespace: net, labels: {app: old}}
spec: {containers: [{name: dns}]}
status: {podIP: 10.244.9.2, conditions: [{type: Ready, status: \"True\"}]}
---
apiVersion: v1
kind: Service
metadata: {name: edge-istio, namespace: net}
spec: {clusterIP: 10.96.9.1, selector: {gateway.networking.k8s.io/gateway-name: edge}, ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: old, namespace: net}
spec: {clusterIP: 10.96.9.2, selector: {app: old}, ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: new, namespace: net}
spec: {clusterIP: 10.96.9.3, selector: {app: new}, ports: [{name: dns, port: 53, protocol: UDP}]}
---
";

fn route(name: &str, created: &str, backends: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: UDPRoute\n\
         metadata: {{name: {name}, namespace: net, creationTimestamp: \"{created}\"}}\n\
         spec:\n  parentRefs: [{{name: edge}}]\n  rules:\n  - backendRefs: [{backends}]\n---\n"
    )
}

const OLD: &str = "2024-01-01T00:00:00Z";
const NEW: &str = "2025-01-01T00:00:00Z";
const SHARES: &str = "{name: old, port: 53, weight: 3}, {name: new, port: 53, weight: 1}";

/// The answer in a line: outcome, route, shares, reason.
fn short(more: &str, text: &str, random: u64) -> String {
    let world = world(&format!("{GATEWAY}{more}"));
    let answer = match world.ask(&Question { random, ..question(text) }) {
        Ok(answer) => answer,
        Err(error) => return error.to_string(),
    };
    let hop = answer.hops.first();
    let source = hop.and_then(|hop| hop.route.as_ref()).and_then(|route| route.source.as_ref());
    let route = source.map(|source| format!("{}@{}", source.object, source.line.unwrap_or_default()));
    let clusters = hop.map(|hop| hop.clusters.as_slice()).unwrap_or_default();
    let shares = clusters.iter().map(|one| {
        let endpoints: Vec<&str> = one.endpoints.iter().map(|endpoint| endpoint.address.as_str()).collect();
        format!("{}{} {} {endpoints:?}", if one.chosen { "*" } else { "" }, one.name, one.weight)
    });
    let shares = shares.collect::<Vec<_>>().join(", ");
    format!(
        "{} | {} | {shares} | {}",
        answer.verdict.outcome.as_str(),
        route.unwrap_or_default(),
        answer.verdict.reason
    )
}

fn check(more: &str, text: &str, random: u64, expected: &str) {
    assert_eq!(short(more, text, random), expected, "{text} {random}\n{more}");
}

const TO_OLD: &str = "old.net.svc.cluster.local:53";
const TO_NEW: &str = "new.net.svc.cluster.local:53";
const OUTSIDE: &str = "outside udp dns.example.com:53";

#[test]
fn datagrams_follow_the_route_of_the_listener() {
    let routes = route("first", OLD, SHARES) + &route("second", NEW, "{name: new, port: 53}");
    let at = "UDPRoute net/first@41";
    let stays = format!("a new session goes to {TO_OLD}, and stays there");
    check(&routes, OUTSIDE, 0, &format!("forward | {at} | *{TO_OLD} 3 [\"10.244.9.2:53\"], {TO_NEW} 1 [] | {stays}"));
    check(
        &routes,
        OUTSIDE,
        3,
        &format!(
            "drop | {at} | {TO_OLD} 3 [\"10.244.9.2:53\"], *{TO_NEW} 1 [] | \
             {TO_NEW} has no ready endpoint: its share (25.0 % of new sessions) is dropped"
        ),
    );
    // A workload reaches the gateway by its Service.
    let one = route("first", OLD, "{name: old, port: 53}");
    let forwarded = format!("forward | {at} | *{TO_OLD} 1 [\"10.244.9.2:53\"] | {stays}");
    check(&one, "web.shop udp edge-istio.net:53", 0, &forwarded);
    check(&one, "web.shop udp old.net:53", 0, "forward |  |  | they reach 10.244.9.2:53 without a proxy");
    let none = "the Service net/new has no ready endpoint on its port 53 of UDP";
    check(&one, "web.shop udp new.net:53", 0, &format!("drop |  |  | {none}"));
}

#[test]
fn it_says_why_datagrams_are_dropped() {
    let counter = "udp.udp_0.0.0.0_53.downstream_sess_no_route";
    check("", OUTSIDE, 0, &format!("drop |  |  | no UDPRoute attaches to the listener; {counter} counts"));
    // The port of HTTP is none of UDP, and the other way round.
    let other = short("", "outside udp a:8080", 0);
    assert!(other.starts_with("no gateway listens on port 8080; Gateways listen on 53"), "{other}");
    let tcp = short("", "outside tcp a:53", 0);
    assert!(tcp.starts_with("no gateway listens on port 53"), "{tcp}");
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: guard, namespace: net}\n\
                  spec: {selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: edge}}, action: DENY, rules: [{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}]}\n---\n";
    let guarded = short(&(route("first", OLD, "{name: old, port: 53}") + policy), OUTSIDE, 0);
    assert!(guarded.starts_with("drop | UDPRoute net/first@"), "{guarded}");
    assert!(guarded.ends_with("not datagrams: AuthorizationPolicy net/guard"), "{guarded}");
    let refused = short(&route("first", OLD, "{name: old, namespace: other, port: 53}"), OUTSIDE, 0);
    assert!(refused.contains("may not be a backend of the route: its share (100.0 %"), "{refused}");
    // A Service that selects no Pods, whose proxies would judge.
    let by_hand = "apiVersion: v1\nkind: Service\nmetadata: {name: by-hand, namespace: net}\n\
                   spec: {clusterIP: 10.96.9.4, ports: [{name: dns, port: 53, protocol: UDP}]}\n---\n\
                   apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                   metadata: {name: by-hand, namespace: net, labels: {kubernetes.io/service-name: by-hand}}\naddressType: IPv4\n\
                   ports: [{name: dns, port: 53, protocol: UDP}]\nendpoints: [{addresses: [10.3.0.1]}]\n---\n";
    let judged = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: names, namespace: net}\n\
                  spec: {targetRefs: [{kind: Service, name: by-hand}], rules: [{}]}\n---\n";
    let to_it = route("first", OLD, "{name: by-hand, port: 53}") + by_hand;
    let open = short(&to_it, OUTSIDE, 0);
    assert!(open.contains("[\"10.3.0.1:53\"] | a new session goes to by-hand.net"), "{open}");
    let closed = short(&(to_it + judged), OUTSIDE, 0);
    let reason = "is closed by AuthorizationPolicy net/names, which judges no datagrams: its share (100.0 %";
    assert!(closed.contains(reason), "{closed}");
    let no_port = short(&route("first", OLD, "{name: old, port: 54}"), OUTSIDE, 0);
    assert!(no_port.contains("has no such port of UDP"), "{no_port}");
}

#[test]
fn people_read_this_of_datagrams() {
    let routes = route("first", OLD, SHARES) + &route("second", NEW, "{name: new, port: 53}");
    let answer = world(&format!("{GATEWAY}{routes}")).ask(&question(OUTSIDE)).expect("an answer");
    let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    evenkeel_testkit::golden::check(folder.join("udp.txt"), &answer.to_text(false));
}
