//! What tools say where something that protects is not supported.

use evenkeel_explain::prove::Reachability;
use evenkeel_explain::{Claim, Party};

use crate::mesh::{ask, world};

const PLUGIN: &str = "\
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: auth, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, url: 'oci://r.test/auth:1', phase: AUTHN}
";
/// One of a cluster's network, which the mesh does not enforce.
const NETWORK: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: readers, namespace: shop}
spec: {podSelector: {matchLabels: {app: reviews}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}
";
const WAYPOINT: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: way, namespace: shop}
spec: {targetRefs: [{kind: Service, name: reviews}], rules: [{}]}
";

/// That the caller gets through to the workload, with this method or any.
fn claim(method: Option<&str>) -> Claim {
    Claim {
        from: Party::parse("web.shop"),
        to: Party::parse("reviews-v1.shop"),
        path: None,
        method: method.map(str::to_owned),
        port: None,
        host: None,
        without_jwt: true,
    }
}

#[test]
fn every_tool_says_what_is_unknown() {
    let check = |more: &str, what: &str, closes: bool| {
        let world = world(more);
        let instead = if closes { "what it would judge is refused" } else { "nothing enforces it here" };
        let unknown = format!("unknown: {what} is not supported; {instead}");

        let answer = ask(&world, "web.shop GET http://reviews/x").expect("an answer");
        let text = answer.to_text(false);
        let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed.contains(&unknown), "{unknown}\n{text}");
        assert_eq!(text.contains("403"), closes, "{text}");

        let proof = world.prove(&claim(None)).expect("an answer");
        assert_eq!(proof.verdict, Reachability::Undecided, "{}", proof.to_text());
        assert!(proof.notes.contains(&unknown), "{}", proof.to_text());

        let found = world.find("reviews-v1", Some("shop")).expect("a workload");
        let text = world.protection(&found).to_text();
        assert!(text.contains(&format!("note: {unknown}")), "{text}");
        assert!(text.lines().any(|line| line.starts_with("unknown") && line.contains(what)), "{text}");
        assert_eq!(text.contains("the calls that it would refuse pass"), !closes, "{text}");
    };
    check(PLUGIN, "WasmPlugin shop/auth", true);
    check(NETWORK, "NetworkPolicy shop/readers", false);
    check(WAYPOINT, "the waypoint of AuthorizationPolicy shop/way", true);
}

/// What nothing gets through to anyway is known, whatever else would refuse it.
#[test]
fn what_others_refuse_too_is_known() {
    let verdict = |more: &str| world(more).prove(&claim(Some("DELETE"))).expect("an answer").verdict;
    assert_eq!(verdict(""), Reachability::Unreachable);
    assert_eq!(verdict(PLUGIN), Reachability::Unreachable);
    assert_eq!(verdict(NETWORK), Reachability::Unreachable);
}

/// A plugin is for what a workload sends as well, unless it says otherwise.
#[test]
fn what_the_caller_sends_is_unknown_too() {
    let of_callers = PLUGIN.replace("app: reviews", "app: web");
    let check = |plugin: &str, text: &[&str], verdict: Reachability| {
        let world = world(plugin);
        let answer = ask(&world, "web.shop GET http://reviews/x").expect("an answer").to_text(false);
        let squeezed = answer.split_whitespace().collect::<Vec<_>>().join(" ");
        text.iter().for_each(|part| assert!(squeezed.contains(part), "{part}\n{answer}"));
        let proof = world.prove(&claim(None)).expect("an answer");
        assert_eq!(proof.verdict, verdict, "{}", proof.to_text());
        let unknown = "unknown: WasmPlugin shop/auth is not supported; what it would judge is refused";
        assert_eq!(
            proof.notes.iter().any(|note| note == unknown),
            verdict == Reachability::Undecided,
            "{}",
            proof.to_text()
        );
        // Who may call the server does not depend on it.
        let found = world.find("reviews-v1", Some("shop")).expect("a workload");
        assert!(!world.protection(&found).to_text().contains("WasmPlugin"));
        let found = world.find("web", Some("shop")).expect("a workload");
        let protection = world.protection(&found).to_text();
        assert!(protection.contains(&format!("note: {unknown}")), "{protection}");
        protection
    };
    let refused =
        ["403", "denied by ns[shop]-policy[WasmPlugin/auth]", "unknown: WasmPlugin shop/auth is not supported"];
    check(&of_callers, &refused, Reachability::Undecided);
    let of_clients = format!("{}, match: [{{mode: CLIENT}}]}}\n", of_callers.trim_end().trim_end_matches('}'));
    let protection = check(&of_clients, &refused, Reachability::Undecided);
    assert!(!protection.contains("so what it might judge is refused"), "who may call: {protection}");
    check(&of_clients.replace("CLIENT", "SERVER"), &["forwarded"], Reachability::Reachable);
}

/// Clients refuse calls to a service that no workload of the mesh is behind: nothing else could judge them.
#[test]
fn calls_to_a_service_without_workloads_are_refused_and_unknown() {
    let entry = "\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far, namespace: shop}
spec: {hosts: [far.test], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 203.0.113.9}]}
";
    let policy = "\
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: far, namespace: shop}
spec: {targetRefs: [{kind: ServiceEntry, group: networking.istio.io, name: far}], rules: [{}]}
";
    let claim = || Claim {
        to: Party::parse("outside"),
        host: Some("far.test".to_owned()),
        port: Some(80),
        ..claim(Some("GET"))
    };
    let check = |mesh: &str, parts: &[&str], verdict: Reachability| {
        let world = world(mesh);
        let answer = ask(&world, "web.shop GET http://far.test/x").expect("an answer").to_text(false);
        let squeezed = answer.split_whitespace().collect::<Vec<_>>().join(" ");
        parts.iter().for_each(|part| assert!(squeezed.contains(part), "{part}\n{answer}"));
        let proof = world.prove(&claim()).expect("an answer");
        assert_eq!(proof.verdict, verdict, "{}", proof.to_text());
        proof
    };
    check(entry, &["forwarded to far.test:80"], Reachability::Reachable);
    let unknown = "unknown: AuthorizationPolicy shop/far is not supported; what it would judge is refused";
    let parts = [
        "503",
        unknown,
        "from AuthorizationPolicy shop/far, more.yaml:8",
        "AuthorizationPolicy shop/far closes far.test:80",
    ];
    let proof = check(&format!("{entry}{policy}"), &parts, Reachability::Undecided);
    assert!(proof.notes.iter().any(|note| note == unknown), "{}", proof.to_text());
    // The policy is at no workload: it is with what is closed to the client's calls.
    let world = world(&format!("{entry}{policy}"));
    let found = world.find("web", Some("shop")).expect("a workload");
    let protection = world.protection(&found);
    assert!(protection.policies.is_empty());
    let closed = protection.closed_services.iter().map(|closed| (closed.service.position(), closed.policy.position()));
    assert_eq!(closed.collect::<Vec<_>>(), [(Some("more.yaml:4".to_owned()), Some("more.yaml:8".to_owned()))]);
}
