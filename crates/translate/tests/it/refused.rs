//! Refused security objects: what they would have judged is closed, and the rest is open as before.

use evenkeel_base::Severity;
use evenkeel_model::{AddressBook, MeshConfig};
use evenkeel_xds::ResourceType;

use crate::decisions::{Client, PLAIN_HTTP, mesh, outcome};
use crate::own_proxy::compile;
use crate::scenario::{translate, view_of};

pub const MESH: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web}]}
status: {podIP: 10.244.0.3, phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: other-0, namespace: shop, labels: {app: other}}
spec: {containers: [{name: other}]}
status: {podIP: 10.244.0.3, phase: Running}
";

fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{{spec}}}\n"
    )
}

/// How calls with and without an identity end at a Pod of `shop`, and at which warnings that they are closed.
fn calls(policies: &str, pod: &str, requests: &[(&Client, &str)]) -> (Vec<String>, usize) {
    let text = format!("{MESH}{policies}");
    let (objects, _) = evenkeel_api::load(&[("mesh.yaml".into(), text.as_str().into())]);
    let (snapshot, found) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    let (config, refused) = compile(&translate(&view_of(&format!("sidecar {pod}.shop"), &snapshot), &snapshot));
    assert!(refused.is_empty(), "{refused:?}");
    let ends = requests
        .iter()
        .map(|(client, request)| outcome(&config, "virtualInbound", client, "10.244.0.3:8080", request, 0));
    let told = found.iter().filter(|finding| finding.code == "closed" && finding.severity == Severity::Warning).count();
    (ends.collect(), told)
}

const SELECTOR: &str = "selector: {matchLabels: {app: web}}";
const OPEN: &str = "inbound|8080|| web/x";

#[track_caller]
fn check(policies: &str, expected: &[&str], told: usize) {
    let (web, api) = (mesh("shop/sa/web"), mesh("shop/sa/api"));
    let requests = [(&web, "GET web /x"), (&api, "GET web /x"), (&api, "GET web /admin")];
    let (ends, closed) = calls(policies, "web-0", &requests);
    assert_eq!(
        (ends.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), closed),
        (expected, told),
        "{policies}"
    );
}

#[test]
fn a_policy_that_is_refused_leaves_nothing_open() {
    let denied = "denied by ns[shop]-policy[web]-refused";
    let admin = "inbound|8080|| web/admin";
    check("", &[OPEN, OPEN, admin], 0);
    let allow = "rules: [{from: [{source: {requestPrincipalz: ['*']}}]}]";
    check(&policy("web", &format!("{SELECTOR}, {allow}")), &[denied, denied, denied], 1);
    // Others that allow something go on doing so.
    let sound = policy(
        "sound",
        &format!("{SELECTOR}, rules: [{{from: [{{source: {{principals: [cluster.local/ns/shop/sa/web]}}}}]}}]"),
    );
    let both = policy("web", &format!("{SELECTOR}, {allow}")) + &sound;
    check(&both, &[OPEN, denied, denied], 1);
    check(&sound, &[OPEN, "denied by default", "denied by default"], 0);
    // A DENY policy keeps what can be read of it.
    let first = "denied by ns[shop]-policy[web]-refused-rule[0]";
    let paths = "to: [{operation: {paths: [/admin]}}]";
    let deny =
        format!("{SELECTOR}, action: DENY, rules: [{{from: [{{source: {{notRequestPrincipalz: ['*']}}}}], {paths}}}]");
    check(&policy("web", &deny), &[OPEN, OPEN, first], 1);
    check(&policy("web", &deny.replace("DENY", "CUSTOM")), &[OPEN, OPEN, first], 1);
    check(&policy("web", &deny.replace("rules", "rulez")), &[first, first, first], 1);
    check(&policy("web", &deny.replace("DENY", "DENNY")), &[first, first, first], 1);
    // A text that is not YAML: its namespace.
    let broken = policy("web", &deny).replace("['*']", "['*'");
    let name = "denied by ns[shop]-policy[mesh.yaml:17]-refused-rule[0]";
    check(&broken, &[name, name, name], 1);
}

#[test]
fn whom_it_does_not_select_it_leaves_alone() {
    let refused = policy("web", &format!("{SELECTOR}, action: DENNY"));
    let (web, plain) = (mesh("shop/sa/web"), PLAIN_HTTP);
    let requests = [(&web, "GET other /x"), (&plain, "GET other /x")];
    let (ends, _) = calls(&refused, "other-0", &requests);
    assert_eq!(ends, ["InboundPassthroughCluster other/x"; 2]);
}

#[test]
fn a_policy_whose_name_is_taken_closes_what_it_selects() {
    let one = policy("web", "selector: {matchLabels: {app: other}}, rules: [{}]");
    let two = policy("web", &format!("{SELECTOR}, rules: [{{from: [{{source: {{namespaces: [shop]}}}}]}}]"));
    let denied = "denied by ns[shop]-policy[web]-refused";
    check(&format!("{one}{two}"), &[denied, denied, denied], 1);
    // The same twice is the same.
    let (ends, told) = calls(&format!("{two}{two}"), "web-0", &[(&mesh("shop/sa/web"), "GET web /x")]);
    assert_eq!((ends, told), (vec![OPEN.to_owned()], 0));
}

#[test]
fn a_peer_authentication_that_is_refused_takes_mutual_tls_only() {
    let peers = |name: &str, spec: &str| policy(name, spec).replace("AuthorizationPolicy", "PeerAuthentication");
    let check = |policies: &str, pod: &str, expected: &str| {
        assert_eq!(calls(policies, pod, &[(&PLAIN_HTTP, "GET web /x")]).0, [expected], "{policies}");
    };
    let refused = peers("strict", &format!("{SELECTOR}, mtls: {{mode: STRICKT}}"));
    check("", "web-0", OPEN);
    check(&refused, "web-0", "closed");
    check(&refused, "other-0", "InboundPassthroughCluster web/x");
    // Whatever others say.
    let others = peers("a", &format!("{SELECTOR}, mtls: {{mode: PERMISSIVE}}")) + &peers("b", "mtls: {mode: DISABLE}");
    check(&format!("{others}{refused}"), "web-0", "closed");
    check(&format!("{others}{}", refused.replace("selector", "selctor")), "other-0", "closed");
}

/// How the Pod `web-0` reaches what no service describes, as bytes and as requests, and at which warnings.
fn way_out(sidecars: &str) -> (String, usize) {
    let text = format!("{MESH}{sidecars}");
    let (objects, _) = evenkeel_api::load(&[("mesh.yaml".into(), text.as_str().into())]);
    let (snapshot, found) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    let (config, refused) = compile(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot));
    assert!(refused.is_empty(), "{refused:?}");
    let bytes = outcome(&config, "virtualOutbound", &PLAIN_HTTP, "192.0.2.1:9000", "", 0);
    let request = outcome(&config, "0.0.0.0_80", &PLAIN_HTTP, "192.0.2.1:80", "GET example.com /", 0);
    (format!("{bytes}, {request}"), found.iter().filter(|finding| finding.code == "closed").count())
}

#[test]
fn a_sidecar_that_is_refused_does_not_open_the_way_out() {
    let sidecar = |name: &str, namespace: &str, spec: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
        )
    };
    let (open, closed) = ("PassthroughCluster, PassthroughCluster example.com/", "BlackHoleCluster, 502");
    let check = |sidecars: &str, expected: &str, told: usize| {
        assert_eq!(way_out(sidecars), (expected.to_owned(), told), "{sidecars}");
    };
    let only = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}";
    check("", open, 0);
    check(&sidecar("a", "shop", only), closed, 0);
    let broken = format!("{only}, egres: []");
    check(&sidecar("a", "shop", &broken), closed, 1);
    check(&sidecar("a", "shop", "outboundTrafficPolicy: {mode: ALLOW_ANY}, egres: []"), open, 0);
    // Whatever others say of the same workloads.
    let any = sidecar("b", "shop", "workloadSelector: {labels: {app: web}}, outboundTrafficPolicy: {mode: ALLOW_ANY}");
    check(&any, open, 0);
    check(&format!("{any}{}", sidecar("a", "shop", &broken)), closed, 1);
    // The ignored one of two with one name.
    check(&format!("{any}{}", sidecar("b", "shop", only)), closed, 1);
    // Of other workloads, of another namespace, of all that have none of their own.
    check(&sidecar("a", "shop", &format!("workloadSelector: {{labels: {{app: x}}}}, {broken}")), open, 1);
    check(&sidecar("a", "other", &broken), open, 1);
    check(&sidecar("a", "istio-system", &broken), closed, 1);
    check(&format!("{any}{}", sidecar("a", "istio-system", &broken)), open, 1);
    // A text that is not YAML.
    check(&sidecar("a", "shop", only).replace("}}", "}"), closed, 1);
}

#[test]
fn a_gateway_that_is_refused_is_not_served() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: edge-0, namespace: shop, labels: {istio: edge}}\n\
               spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.4.1, phase: Running}\n";
    let gateway = |name: &str, port: u16, more: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{selector: {{istio: edge}}, servers: [{{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ['*']{more}}}]}}\n"
        )
    };
    let listeners = |text: &str| {
        let (objects, _) = evenkeel_api::load(&[("mesh.yaml".into(), text.into())]);
        let (snapshot, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
        let set = translate(&view_of("router edge-0.shop", &snapshot), &snapshot);
        set.of(ResourceType::Listener).keys().map(ToString::to_string).collect::<Vec<_>>()
    };
    let sound = format!("{pod}{}{}", gateway("a", 8080, ""), gateway("b", 8081, ""));
    assert_eq!(listeners(&sound), ["0.0.0.0_8080", "0.0.0.0_8081"]);
    let refused = format!("{pod}{}{}", gateway("a", 8080, ""), gateway("b", 8081, ", tls: {mode: SIMPEL}"));
    assert_eq!(listeners(&refused), ["0.0.0.0_8080"]);
}
