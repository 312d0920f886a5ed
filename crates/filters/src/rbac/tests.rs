//! Tables of rules and requests, and what Envoy would decide.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_base::re2::Regex;
use evenkeel_runtime_config::dynamic_metadata::{MetadataMatcher, ValueMatcher};
use evenkeel_runtime_config::matching::{CidrSet, HeaderMatcher, HeaderValueMatcher};
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::rbac::policy::{OutcomeMetadata, Permission, Policy, Principal};
use evenkeel_runtime_config::rbac::{FieldNames, NetworkRbac, RbacAction, RbacFilter, RbacPerRoute, Rules};
use evenkeel_runtime_config::string_match::StringMatcher;
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity, PlainRequest};
use evenkeel_runtime_config::{hcm, listener};
use evenkeel_testkit::Random;

use super::{Evaluation, Subject, evaluate};
use crate::http::fixture::Fixture;
use crate::network::fixture::{Fixture as NetworkFixture, Nothing};
use crate::{Body, Decision, Reply, network};

const WEB: &str = "spiffe://cluster.local/ns/default/sa/web";

fn connection(peer: Option<&str>) -> ConnectionView {
    ConnectionView {
        tls: peer.is_some(),
        peer: peer.map(|uri| Arc::new(PeerIdentity { uri_sans: vec![uri.into()], ..PeerIdentity::default() })),
        ..ConnectionView::plaintext(address("10.244.1.7:40000"), address("10.244.2.9:8080"))
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn exact(text: &str) -> StringMatcher {
    StringMatcher::Exact { value: text.as_bytes().into(), ignore_case: false }
}

fn prefix(text: &str) -> StringMatcher {
    StringMatcher::Prefix { value: text.as_bytes().into(), ignore_case: false }
}

fn method(name: &str) -> Permission {
    let value = HeaderValueMatcher::String(exact(name));
    Permission::Header(HeaderMatcher { name: ":method".into(), value, invert: false, treat_missing_as_empty: false })
}

fn ranges(net: &str) -> CidrSet {
    CidrSet(vec![net.parse().unwrap()])
}

fn policy(name: &str, permission: Permission, principal: Principal) -> Policy {
    Policy {
        name: name.into(),
        permissions: vec![permission],
        principals: vec![principal],
        metadata: OutcomeMetadata::default(),
    }
}

fn filter(action: RbacAction, policies: Vec<Policy>) -> RbacFilter {
    let rules = Some(Arc::new(Rules::new(action, policies, FieldNames::default())));
    RbacFilter { stat_prefix: "".into(), rules, shadow_rules: None, shadow_stat_prefix: "".into() }
}

fn http(config: RbacFilter) -> Fixture {
    Fixture::new(hcm::HttpFilterConfig::Rbac(Arc::new(config)))
}

/// `None`: the request passes; otherwise the details of the 403 response.
fn ask(mut filter: Fixture, connection: &ConnectionView, request: &PlainRequest) -> Option<String> {
    filter.connection = connection.clone();
    filter.request(request);
    match filter.ask(Body::Empty) {
        Decision::Continue => None,
        Decision::Reply(reply) => {
            assert_eq!(reply, Reply::new(403, "RBAC: access denied", reply.details.clone()));
            Some(reply.details.into())
        }
        other => panic!("{other:?}"),
    }
}

/// As above, with the client's address taken from the connection.
fn decide(config: RbacFilter, connection: &ConnectionView, request: &PlainRequest) -> Option<String> {
    let filter = Fixture { remote: connection.direct_remote.ip(), ..http(config) };
    ask(filter, connection, request)
}

#[test]
fn actions_decide_as_envoy_does() {
    let get = PlainRequest::new("GET", "info:8080", "/capital?of=fr");
    let delete = PlainRequest::new("DELETE", "info:8080", "/capital");
    let web = || Principal::Authenticated(Some(exact(WEB)));
    let reads = || policy("ns[default]-policy[info]-rule[0]", method("GET"), web());
    let stranger = "spiffe://cluster.local/ns/default/sa/other";
    let none = Some("rbac_access_denied_matched_policy[none]".to_owned());
    let named = Some("rbac_access_denied_matched_policy[ns[default]-policy[info]-rule[0]]".to_owned());
    for (action, peer, request, expected) in [
        (RbacAction::Allow, Some(WEB), &get, None),
        (RbacAction::Allow, Some(WEB), &delete, none.clone()),
        (RbacAction::Allow, Some(stranger), &get, none.clone()),
        (RbacAction::Allow, None, &get, none.clone()),
        (RbacAction::Deny, Some(WEB), &get, named),
        (RbacAction::Deny, Some(stranger), &get, None),
        (RbacAction::Log, Some(stranger), &delete, None),
    ] {
        let got = decide(filter(action, vec![reads()]), &connection(peer), request);
        assert_eq!(got, expected, "{action:?} {peer:?} {}", request.method);
    }
    // A policy that matches nothing and only provides the name to report.
    let idle = |action| {
        let never = Permission::Not(Box::new(Permission::Any));
        filter(action, vec![reads(), policy("ns[default]-policy[z]-refused", never, Principal::Any)])
    };
    let refused = Some("rbac_access_denied_matched_policy[ns[default]-policy[z]-refused]".to_owned());
    assert_eq!(decide(idle(RbacAction::Allow), &connection(Some(WEB)), &get), None);
    assert_eq!(decide(idle(RbacAction::Allow), &connection(Some(WEB)), &delete), refused);
    assert_eq!(decide(idle(RbacAction::Deny), &connection(Some(WEB)), &delete), None);
    // ALLOW rules without policies allow nothing, DENY rules everything.
    assert_eq!(decide(filter(RbacAction::Allow, vec![]), &connection(None), &get), none);
    assert_eq!(decide(filter(RbacAction::Deny, vec![]), &connection(None), &get), None);
}

#[test]
fn each_permission_matches_what_it_names() {
    let request = PlainRequest::new("GET", "info", "/a/b?x=1").with_header("x-team", "blue");
    let connection = ConnectionView { server_name: Some("info.example".into()), ..connection(None) };
    let team = |text| {
        let value = HeaderValueMatcher::String(exact(text));
        Permission::Header(HeaderMatcher { name: "x-team".into(), value, invert: false, treat_missing_as_empty: false })
    };
    for (permission, matches) in [
        (Permission::Any, true),
        (team("blue"), true),
        (team("red"), false),
        (Permission::UrlPath(exact("/a/b")), true),
        (Permission::UrlPath(exact("/a/b?x=1")), false),
        (Permission::UrlPath(StringMatcher::Regex(Regex::whole("/a/.").unwrap())), true),
        (Permission::DestinationIp(ranges("10.244.2.0/24")), true),
        (Permission::DestinationIp(ranges("10.244.3.0/24")), false),
        (Permission::DestinationPort(8080), true),
        (Permission::DestinationPort(8081), false),
        (Permission::DestinationPortRange(8000, 8080), false),
        (Permission::DestinationPortRange(8080, 65536), true),
        (Permission::RequestedServerName(prefix("info.")), true),
        (Permission::Not(Box::new(Permission::Any)), false),
        (Permission::And(vec![Permission::Any, team("red")]), false),
        (Permission::Or(vec![team("red"), team("blue")]), true),
    ] {
        let text = format!("{permission:?}");
        let config = filter(RbacAction::Allow, vec![policy("p", permission, Principal::Any)]);
        assert_eq!(decide(config, &connection, &request).is_none(), matches, "{text}");
    }
}

#[test]
fn each_principal_matches_whom_it_names() {
    let request = PlainRequest::new("GET", "info", "/a");
    let authenticated = |matcher| Principal::Authenticated(Some(matcher));
    for (principal, peer, matches) in [
        (Principal::Any, None, true),
        (Principal::Authenticated(None), None, false),
        (Principal::Authenticated(None), Some(WEB), true),
        (authenticated(exact(WEB)), Some(WEB), true),
        (authenticated(prefix("spiffe://cluster.local/ns/default/")), Some(WEB), true),
        (authenticated(prefix("spiffe://cluster.local/ns/other/")), Some(WEB), false),
        (authenticated(exact("")), None, false),
        (Principal::DirectRemoteIp(ranges("10.244.1.0/24")), None, true),
        (Principal::RemoteIp(ranges("10.244.1.0/24")), None, true),
        (Principal::RemoteIp(ranges("192.0.2.0/24")), None, false),
        (Principal::UrlPath(exact("/a")), None, true),
        (Principal::Not(Box::new(authenticated(exact(WEB)))), None, true),
        (Principal::And(vec![Principal::Any, Principal::Authenticated(None)]), None, false),
        (Principal::Or(vec![Principal::Authenticated(None), Principal::Any]), None, true),
    ] {
        let text = format!("{principal:?} {peer:?}");
        let config = filter(RbacAction::Allow, vec![policy("p", Permission::Any, principal)]);
        assert_eq!(decide(config, &connection(peer), &request).is_none(), matches, "{text}");
    }
}

/// The client that the PROXY protocol names is no peer of the socket, and `x-forwarded-for` does not change it.
#[test]
fn an_older_principal_is_the_connections_client() {
    let request = PlainRequest::new("GET", "info", "/a");
    let behind = ConnectionView { remote: "192.0.2.1:1".parse().unwrap(), ..connection(None) };
    for (principal, matches) in [
        (Principal::SourceIp(ranges("192.0.2.0/24")), true),
        (Principal::SourceIp(ranges("10.244.1.0/24")), false),
        (Principal::DirectRemoteIp(ranges("10.244.1.0/24")), true),
    ] {
        let text = format!("{principal:?}");
        let config = filter(RbacAction::Allow, vec![policy("p", Permission::Any, principal)]);
        assert_eq!(decide(config, &behind, &request).is_none(), matches, "{text}");
    }
}

#[test]
fn a_dns_name_is_no_identity() {
    let request = PlainRequest::new("GET", "info", "/a");
    let names = |uris: &[&str], dns: &[&str], subject: &str| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let peer = PeerIdentity {
            uri_sans: owned(uris),
            dns_sans: owned(dns),
            subject: subject.to_owned(),
            ..PeerIdentity::default()
        };
        ConnectionView { peer: Some(Arc::new(peer)), ..connection(Some(WEB)) }
    };
    const PARTNER: &str = "spiffe://partner.example/ns/default/sa/web";
    let by_expression = |text: &str| StringMatcher::Regex(Regex::whole(text).unwrap());
    for (client, matcher, matches) in [
        (names(&[WEB], &[], ""), exact(WEB), true),
        (names(&[PARTNER], &[WEB], ""), exact(WEB), false),
        (names(&[PARTNER], &[WEB], ""), prefix("spiffe://cluster.local/"), false),
        (names(&[PARTNER], &[WEB], ""), by_expression("spiffe://.*/ns/default/.*"), true),
        (names(&[], &[WEB], ""), by_expression("spiffe://.*/ns/default/.*"), false),
        (names(&[], &["a/ns/default/sa/b"], ""), by_expression(".*/ns/default/.*"), false),
        (names(&[PARTNER], &[], "CN=x/ns/default/sa/web"), by_expression("spiffe://.*/ns/default/.*"), true),
        (names(&[], &[], "CN=x/ns/default/sa/web"), by_expression("spiffe://.*/ns/default/.*"), false),
        // What Envoy compares as well.
        (names(&[PARTNER], &["web.example"], ""), exact("web.example"), true),
        (names(&[], &[], "CN=web"), exact("CN=web"), true),
    ] {
        let text = format!("{:?} {matcher:?}", client.peer);
        // Two policies, which are found by their names.
        let both = || {
            let of = |name: &str| policy(name, Permission::Any, Principal::Authenticated(Some(matcher.clone())));
            vec![of("p"), of("q")]
        };
        assert_eq!(decide(filter(RbacAction::Allow, both()), &client, &request).is_none(), matches, "{text}");
        assert_eq!(decide(filter(RbacAction::Deny, both()), &client, &request).is_some(), matches, "{text}");
    }
}

#[test]
fn remote_ip_is_the_client_not_the_socket() {
    let request = PlainRequest::new("GET", "info", "/");
    let principal = Principal::RemoteIp(ranges("192.0.2.0/24"));
    let config = filter(RbacAction::Allow, vec![policy("p", Permission::Any, principal)]);
    let filter = Fixture { remote: "192.0.2.1".parse().unwrap(), ..http(config) };
    assert_eq!(ask(filter, &connection(None), &request), None);
}

#[test]
fn policies_match_in_the_order_given_and_details_have_no_blanks() {
    let policies =
        vec![policy("a policy", Permission::Any, Principal::Any), policy("b", Permission::Any, Principal::Any)];
    let got = decide(filter(RbacAction::Deny, policies), &connection(None), &PlainRequest::new("GET", "i", "/"));
    assert_eq!(got.as_deref(), Some("rbac_access_denied_matched_policy[a_policy]"));
}

#[test]
fn shadow_rules_are_counted_and_decide_nothing() {
    let everyone = |action, kind, prefix: &str| {
        let fields = FieldNames { filter: "envoy.filters.http.rbac", prefix: prefix.into(), kind };
        Arc::new(Rules::new(action, vec![policy("p", Permission::Any, Principal::Any)], fields))
    };
    let config = RbacFilter {
        stat_prefix: "".into(),
        rules: Some(everyone(RbacAction::Allow, "enforced", "")),
        shadow_rules: Some(everyone(RbacAction::Deny, "shadow", "istio_dry_run_deny_")),
        shadow_stat_prefix: "istio_dry_run_deny_".into(),
    };
    let mut filter = http(config);
    assert!(matches!(filter.ask(Body::Empty), Decision::Continue));
    let text = filter.registry.text();
    for line in ["http.inbound.rbac.allowed: 1", "http.inbound.rbac.istio_dry_run_deny_.shadow_denied: 1"] {
        assert!(text.contains(line), "{line} not in\n{text}");
    }
    for (key, expected) in [("engine_result", "denied"), ("effective_policy_id", "p")] {
        let path = [format!("istio_dry_run_deny_shadow_{key}").into()];
        let value = filter.info.metadata.get("envoy.filters.http.rbac", &path);
        assert_eq!(value, Some(&MetadataValue::Text(expected.into())), "{key}");
    }
    // The same for enforced rules, which have no prefix here.
    for (key, expected) in [("engine_result", "allowed"), ("effective_policy_id", "p")] {
        let path = [format!("enforced_{key}").into()];
        let value = filter.info.metadata.get("envoy.filters.http.rbac", &path);
        assert_eq!(value, Some(&MetadataValue::Text(expected.into())), "{key}");
    }
}

#[test]
fn a_route_replaces_the_rules_or_switches_them_off() {
    let deny_all = || filter(RbacAction::Allow, vec![]);
    let allow_all = || filter(RbacAction::Deny, vec![]);
    for (filter, per_route, passes) in [
        (deny_all(), None, false),
        (deny_all(), Some(RbacPerRoute { filter: None }), true),
        (deny_all(), Some(RbacPerRoute { filter: Some(allow_all()) }), true),
        (allow_all(), Some(RbacPerRoute { filter: Some(deny_all()) }), false),
    ] {
        let text = format!("{per_route:?}");
        let filter = match per_route {
            Some(per_route) => http(filter).told(per_route),
            None => http(filter),
        };
        let details = ask(filter, &connection(None), &PlainRequest::new("GET", "i", "/"));
        assert_eq!(details.is_none(), passes, "{text}");
    }
}

#[test]
fn policies_may_go_by_what_filters_have_found_out() {
    let matcher = |key: &str| MetadataMatcher {
        filter: "jwt".into(),
        path: vec![key.into()],
        value: ValueMatcher::String(exact("x")),
        invert: false,
    };
    for (permission, principal, passes) in [
        (Permission::Metadata(matcher("a")), Principal::Any, true),
        (Permission::Metadata(matcher("b")), Principal::Any, false),
        (Permission::Any, Principal::Metadata(matcher("a")), true),
        (Permission::Any, Principal::Metadata(matcher("b")), false),
    ] {
        let text = format!("{permission:?} {principal:?}");
        let mut filter = http(filter(RbacAction::Allow, vec![policy("p", permission, principal)]));
        filter.info.metadata.merge("jwt", &[("a".into(), MetadataValue::Text("x".into()))]);
        assert_eq!(matches!(filter.ask(Body::Empty), Decision::Continue), passes, "{text}");
    }
}

fn network(filter: RbacFilter, continuous: bool) -> NetworkFixture {
    let config = NetworkRbac { filter, continuous, delay_deny: Duration::from_millis(7) };
    NetworkFixture::new([listener::NetworkFilterConfig::Rbac(Arc::new(config))])
}

fn closing(decision: &network::Decision) -> Option<&str> {
    match decision {
        network::Decision::Continue => None,
        network::Decision::Close(close) => {
            assert_eq!(close.after, Duration::from_millis(7));
            Some(&*close.details)
        }
        network::Decision::Pause(_) => panic!("rules do not wait"),
    }
}

#[test]
fn a_network_filter_closes_the_connection_with_the_reason() {
    let web = || Principal::Authenticated(Some(exact(WEB)));
    for continuous in [false, true] {
        let mut config = filter(RbacAction::Allow, vec![policy("web", Permission::DestinationPort(8080), web())]);
        config.stat_prefix = "tcp.".into();
        let mut filter = network(config, continuous);
        assert_eq!((filter.filters.are_immediate(), filter.filters.see_data()), (!continuous, continuous));
        for (peer, details) in [(Some(WEB), None), (None, Some("rbac_access_denied_matched_policy[none]"))] {
            filter.again();
            filter.connection = connection(peer);
            assert_eq!(closing(&filter.open()), details);
            if peer.is_some() && continuous {
                assert_eq!(closing(&filter.data(&mut b"x".to_vec(), false)), None);
                assert_eq!(closing(&filter.data(&mut b"y".to_vec(), false)), None);
            }
        }
        let text = filter.registry.text();
        let allowed = if continuous { "tcp.rbac.allowed: 2" } else { "tcp.rbac.allowed: 1" };
        for line in [allowed, "tcp.rbac.denied: 1"] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}

/// Other filters derive metadata from what the client sends.
#[test]
fn network_rules_over_metadata_wait_for_the_first_bytes() {
    let found = || MetadataMatcher {
        filter: "parser".into(),
        path: vec!["statement".into()],
        value: ValueMatcher::String(exact("drop")),
        invert: false,
    };
    for (continuous, second) in [(false, None), (true, Some("rbac_access_denied_matched_policy[p]"))] {
        for (first, details) in [("select", None), ("drop", Some("rbac_access_denied_matched_policy[p]"))] {
            let rules = vec![policy("p", Permission::Metadata(found()), Principal::Any)];
            let mut filter = network(filter(RbacAction::Deny, rules), continuous);
            assert_eq!(closing(&filter.open()), None);
            let mut say = |statement: &str| {
                let fields = [("statement".into(), MetadataValue::Text(statement.into()))];
                filter.state.facts.metadata.merge("parser", &fields);
                let decision = filter.data(&mut b"x".to_vec(), false);
                closing(&decision).map(str::to_owned)
            };
            assert_eq!(say(first).as_deref(), details, "{first}, {continuous}");
            if details.is_none() {
                assert_eq!(say("drop").as_deref(), second, "{continuous}");
            }
        }
    }
}

#[test]
fn shadow_rules_of_a_network_filter_leave_what_they_would_have_decided() {
    let mut config = filter(RbacAction::Allow, vec![]);
    config.rules = None;
    let fields = FieldNames { filter: "envoy.filters.network.rbac", prefix: "dry_".into(), kind: "shadow" };
    config.shadow_rules = Some(Arc::new(Rules::new(RbacAction::Allow, vec![], fields)));
    let mut filter = network(config, false);
    let (facts, admitted) = filter.filters.admit(&connection(None), &Nothing, Instant::now());
    admitted.expect("shadow rules refuse nothing");
    let result = facts.metadata.get("envoy.filters.network.rbac", &["dry_shadow_engine_result".into()]);
    assert_eq!(result, Some(&MetadataValue::Text("denied".into())));
    assert_eq!(closing(&filter.open()), None);
}

/// The index must never change a decision: compares generated sets of policies with trying each policy in turn.
#[test]
fn a_large_set_decides_as_its_policies_do_one_by_one() {
    const NAMES: [&str; 4] = ["spiffe://a/ns/x/sa/1", "spiffe://a/ns/x/sa/2", "spiffe://a/ns/y/sa/1", ""];
    const PATHS: [&str; 5] = ["/", "/a", "/a/b", "/b/", ""];
    let mut random = Random::new(7);
    for _ in 0..300 {
        let policies = |random: &mut Random| -> Vec<Policy> {
            (0..random.below(12))
                .map(|number| Policy {
                    name: format!("p{number:02}").into(),
                    permissions: (0..=random.below(2)).map(|_| permission(random, &PATHS, 2)).collect(),
                    principals: (0..=random.below(2)).map(|_| principal(random, &NAMES, 2)).collect(),
                    metadata: OutcomeMetadata::default(),
                })
                .collect()
        };
        let rules = Rules::new(RbacAction::Allow, policies(&mut random), FieldNames::default());
        for name in NAMES.iter().map(Some).chain([None]) {
            for path in PATHS {
                let request = PlainRequest::new("GET", "info", &format!("{path}?q=1"));
                let connection = connection(name.copied());
                let subject = Subject {
                    connection: &connection,
                    remote: connection.direct_remote.ip(),
                    request: Some(&request),
                    metadata: None,
                };
                let one_by_one = rules
                    .policies()
                    .iter()
                    .find(|policy| Evaluation::of(&subject).matches(policy, rules.action == RbacAction::Allow));
                let one_by_one = one_by_one.or_else(|| rules.idle());
                let indexed = evaluate(&rules, &subject).policy;
                assert_eq!(
                    indexed.map(|policy| &policy.name),
                    one_by_one.map(|policy| &policy.name),
                    "{name:?} {path} {rules:#?}"
                );
            }
        }
    }
}

fn permission(random: &mut Random, paths: &[&str], depth: u32) -> Permission {
    let many = |random: &mut Random| (0..=random.below(2)).map(|_| permission(random, paths, depth - 1)).collect();
    match random.below(if depth == 0 { 5 } else { 8 }) {
        0 => Permission::Any,
        1 => Permission::UrlPath(exact(random.pick(paths))),
        2 => Permission::UrlPath(prefix(random.pick(paths))),
        3 => method(random.pick(&["GET", "POST"])),
        4 => Permission::UrlPath(StringMatcher::Suffix {
            value: random.pick(paths).as_bytes().into(),
            ignore_case: false,
        }),
        5 => Permission::And(many(random)),
        6 => Permission::Or(many(random)),
        _ => Permission::Not(Box::new(permission(random, paths, depth - 1))),
    }
}

fn principal(random: &mut Random, names: &[&str], depth: u32) -> Principal {
    let many = |random: &mut Random| (0..=random.below(2)).map(|_| principal(random, names, depth - 1)).collect();
    match random.below(if depth == 0 { 4 } else { 7 }) {
        0 => Principal::Any,
        1 => Principal::Authenticated(Some(exact(random.pick(names)))),
        2 => Principal::Authenticated(Some(prefix("spiffe://a/ns/x/"))),
        3 => Principal::UrlPath(prefix("/a")),
        4 => Principal::And(many(random)),
        5 => Principal::Or(many(random)),
        _ => Principal::Not(Box::new(principal(random, names, depth - 1))),
    }
}

/// A server may take any of a header's values.
#[test]
fn of_several_values_all_have_to_be_allowed_and_none_refused() {
    let matcher = |text: &str, invert| {
        let value = HeaderValueMatcher::String(exact(text));
        Permission::Header(HeaderMatcher { name: "x-role".into(), value, invert, treat_missing_as_empty: false })
    };
    let not = |text: &str| Permission::Not(Box::new(matcher(text, false)));
    let passes = |action, permission: Permission, roles: &[&str]| {
        let request = PlainRequest::new("GET", "info", "/");
        let request = roles.iter().fold(request, |request, role| request.with_header("x-role", role));
        let rules = filter(action, vec![policy("p", permission, Principal::Any)]);
        decide(rules, &connection(None), &request).is_none()
    };
    let (allow, deny) = (RbacAction::Allow, RbacAction::Deny);
    for (action, permission, roles, expected) in [
        (allow, matcher("a", false), &["a"][..], true),
        (allow, matcher("a", false), &["a", "a"], true),
        (allow, matcher("a", false), &["a", "b"], false),
        (allow, matcher("a", false), &["b", "a"], false),
        (allow, matcher("a", false), &[], false),
        (allow, not("b"), &["a"], true),
        (allow, not("b"), &["a", "b"], false),
        (allow, not("b"), &[], true),
        (allow, matcher("b", true), &["a"], true),
        (allow, matcher("b", true), &["a", "b"], false),
        (deny, matcher("b", false), &["a"], true),
        (deny, matcher("b", false), &["a", "b"], false),
        (deny, matcher("b", false), &["b", "a"], false),
        (deny, not("a"), &["a"], true),
        (deny, not("a"), &["a", "a"], true),
        (deny, not("a"), &["a", "b"], false),
        (deny, not("a"), &["b", "a"], false),
        (deny, not("a"), &[], false),
        (deny, matcher("a", true), &["a"], true),
        (deny, matcher("a", true), &["a", "b"], false),
    ] {
        let row = format!("{action:?} {permission:?} {roles:?}");
        assert_eq!(passes(action, permission, roles), expected, "{row}");
    }
}
