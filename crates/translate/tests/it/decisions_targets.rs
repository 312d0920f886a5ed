//! Policies for the Pods of Gateways (`targetRefs`), and references that only waypoints use.

use evenkeel_model::{AddressBook, MeshConfig};

use crate::decisions::{PLAIN_HTTP, outcome};
use crate::decisions_services::Mesh;

/// Gateway Pods in two namespaces, of which one has no name of a Gateway, and a sidecar.
const OBJECTS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: edge-0, namespace: shop, labels: {istio: edge, gateway.networking.k8s.io/gateway-name: edge}}
spec: {containers: [{name: proxy}]}
status: {podIP: 10.244.4.1, phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: plain-0, namespace: shop, labels: {istio: edge}}
spec: {containers: [{name: proxy}]}
status: {podIP: 10.244.4.2, phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: far-0, namespace: far, labels: {istio: edge, gateway.networking.k8s.io/gateway-name: edge}}
spec: {containers: [{name: proxy}]}
status: {podIP: 10.244.4.3, phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web, ports: [{containerPort: 8080}]}]}
status: {podIP: 10.244.4.4, phase: Running}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.1.1, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: ['*'], gateways: [edge], http: [{directResponse: {status: 204}}]}
";

fn object(kind: &str, namespace: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: {kind}\nmetadata: {{name: p, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

/// How a call of each ends: of `edge-0`, `plain-0` and `far-0`, which are gateways, and of the sidecar of `web-0`.
fn calls(mesh: &Mesh, request: &str) -> [String; 4] {
    let gateway = |pod: &str, address: &str| {
        let config = mesh.proxy(&mesh.view(&format!("router {pod}")));
        outcome(&config, "0.0.0.0_80", &PLAIN_HTTP, &format!("{address}:80"), request, 0)
    };
    let sidecar = mesh.sidecar("web-0.shop");
    [
        gateway("edge-0.shop", "10.244.4.1"),
        gateway("plain-0.shop", "10.244.4.2"),
        gateway("far-0.far", "10.244.4.3"),
        outcome(&sidecar, "virtualInbound", &PLAIN_HTTP, "10.244.4.4:8080", request, 0),
    ]
}

const OPEN: [&str; 4] = ["204", "204", "204", "inbound|8080|| web/"];
const GATEWAY: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: edge}";

/// Which calls end otherwise than without the policy.
#[track_caller]
fn check(kind: &str, namespace: &str, spec: &str, request: &str, judged: &[usize], denied: &str) {
    let mesh = Mesh::read(&(OBJECTS.to_owned() + &object(kind, namespace, spec)));
    let expected: Vec<&str> = (0..OPEN.len()).map(|at| if judged.contains(&at) { denied } else { OPEN[at] }).collect();
    let ends = calls(&mesh, request).map(|end| end.replace(request.split(' ').nth(2).unwrap_or_default(), "/"));
    assert_eq!(ends.to_vec(), expected, "{namespace}: {spec}");
}

const EDGE: &[usize] = &[0];
const NOBODY: &[usize] = &[];

#[test]
fn policies_for_a_gateway_judge_its_pods_alone() {
    let check = |namespace: &str, whom: &str, judged: &[usize]| {
        let denied = format!("denied by ns[{namespace}]-policy[p]-rule[0]");
        let rules = "rules: [{to: [{operation: {methods: [GET]}}]}]";
        check("AuthorizationPolicy", namespace, &format!("{whom}action: DENY, {rules}"), "GET web /", judged, &denied);
        // Whatever an ALLOW policy does not allow.
        let rules = "rules: [{to: [{operation: {methods: [PUT]}}]}]";
        check("AuthorizationPolicy", namespace, &format!("{whom}{rules}"), "GET web /", judged, "denied by default");
        check("AuthorizationPolicy", namespace, &format!("{whom}{rules}"), "PUT web /", NOBODY, "");
    };
    check("shop", "", &[0, 1, 3]);
    check("shop", &format!("targetRef: {GATEWAY}, "), EDGE);
    check("shop", &format!("targetRefs: [{GATEWAY}], "), EDGE);
    // Any of several.
    check("shop", &format!("targetRefs: [{{kind: Service, name: x}}, {GATEWAY}], "), EDGE);
    check("shop", "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: other}], ", NOBODY);
    // It is a Gateway of the policy's namespace, in the root namespace, too.
    check("far", &format!("targetRefs: [{GATEWAY}], "), &[2]);
    check("istio-system", &format!("targetRefs: [{GATEWAY}], "), NOBODY);
    check("istio-system", "", &[0, 1, 2, 3]);
    check("shop", "targetRefs: [], ", &[0, 1, 3]);
}

/// A sidecar is no waypoint: it closes what the waypoint of its Service would have judged. Whose calls others would have
/// judged is not known (`unsupported.rs`).
#[test]
fn references_for_waypoints_close_what_is_known_of_them() {
    for target in ["{kind: Service, name: web}", "{kind: Service, group: core, name: web}"] {
        let denied = "denied by ns[shop]-policy[p]-refused-rule[0]";
        for rules in ["action: DENY, rules: [{}]", "rules: []"] {
            let spec = format!("targetRefs: [{target}], {rules}");
            check("AuthorizationPolicy", "shop", &spec, "GET web /", &[3], denied);
            check("AuthorizationPolicy", "istio-system", &spec, "GET web /", NOBODY, "");
        }
        let spec = format!("targetRefs: [{target}], jwtRules: [{{issuer: me, jwks: '{{\"keys\": []}}'}}]");
        let denied = "denied by ns[shop]-request-authentication[p]-refused-rule[0]";
        check("RequestAuthentication", "shop", &spec, "GET web /?access_token=x", &[3], denied);
    }
    // There is no such entry.
    let target = "{kind: ServiceEntry, group: networking.istio.io, name: web}";
    for namespace in ["shop", "istio-system"] {
        for rules in ["action: DENY, rules: [{}]", "rules: []"] {
            let spec = format!("targetRefs: [{target}], {rules}");
            check("AuthorizationPolicy", namespace, &spec, "GET web /", NOBODY, "");
        }
        let spec = format!("targetRefs: [{target}], jwtRules: [{{issuer: me, jwks: '{{\"keys\": []}}'}}]");
        check("RequestAuthentication", namespace, &spec, "GET web /?access_token=x", NOBODY, "");
    }
}

/// A RequestAuthentication has the same references: here every token is bad.
#[test]
fn tokens_are_judged_by_the_same_references() {
    let judged = |namespace: &str, whom: &str| -> Vec<usize> {
        let spec = format!("{whom}jwtRules: [{{issuer: me, jwks: '{{\"keys\": []}}'}}]");
        let mesh = Mesh::read(&(OBJECTS.to_owned() + &object("RequestAuthentication", namespace, &spec)));
        let ends = calls(&mesh, "GET web /?access_token=x");
        (0..ends.len()).filter(|at| ends[*at].contains("Jwt_")).collect()
    };
    assert_eq!(judged("shop", ""), [0, 1, 3]);
    assert_eq!(judged("shop", &format!("targetRefs: [{GATEWAY}], ")), [0]);
    assert_eq!(judged("far", &format!("targetRef: {GATEWAY}, ")), [2]);
    assert_eq!(judged("istio-system", &format!("targetRefs: [{GATEWAY}], ")), [0_usize; 0]);
}

/// What cannot be read closes: of its references what is sound, otherwise the whole namespace.
#[test]
fn a_policy_with_a_mistake_closes_what_it_may_be_for() {
    let ends = |spec: &str| {
        let text = OBJECTS.to_owned() + &object("AuthorizationPolicy", "shop", spec);
        let (objects, found) = crate::recorded::load(&[("input.yaml".into(), text.into())]);
        assert!(found.has_errors(), "{spec}");
        let (snapshot, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
        let ends = calls(&Mesh { snapshot, found }, "GET web /");
        (0..ends.len()).filter(|at| ends[*at].starts_with("denied by ns[shop]-policy[p]-refused")).collect::<Vec<_>>()
    };
    let whole = [0, 1, 3];
    assert_eq!(ends(&format!("targetRefs: [{GATEWAY}], action: DENNY")), [0]);
    assert_eq!(ends(&format!("targetRefs: [{GATEWAY}], rules: [{{form: []}}]")), [0]);
    assert_eq!(ends("targetRefs: [{kind: Gateway, name: edge}], action: DENY, rules: [{}]"), whole);
    assert_eq!(ends("targetRefs: [{kind: Deployment, group: apps, name: web}], action: DENY, rules: [{}]"), whole);
    assert_eq!(
        ends(&format!("selector: {{matchLabels: {{app: web}}}}, targetRefs: [{GATEWAY}], action: DENY, rules: [{{}}]")),
        whole
    );
    assert_eq!(ends(&format!("targetRef: {GATEWAY}, targetRefs: [{GATEWAY}], action: DENY, rules: [{{}}]")), whole);
    assert_eq!(ends("targetRefs: [{kind: Service, name: web, namespace: far}], action: DENY, rules: [{}]"), whole);
}

#[test]
fn references_without_effect_are_found() {
    for (spec, code, expected) in [
        ("targetRefs: [{kind: Service, name: gone}]", "no-effect", "Service `gone`: only waypoints look at it"),
        ("targetRefs: [{kind: Service, name: web}]", "closed", "is for a waypoint, which is not supported"),
        (
            "targetRef: {kind: GatewayClass, group: gateway.networking.k8s.io, name: istio-waypoint}",
            "no-effect",
            "judges nothing by its reference to GatewayClass `istio-waypoint`, in Istio neither",
        ),
        (
            "targetRefs: [{kind: GatewayClass, group: gateway.networking.k8s.io, name: cilium}]",
            "no-effect",
            "judges nothing by its reference to GatewayClass `cilium`, in Istio neither",
        ),
        (
            "targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: egde}]",
            "selects-nothing",
            "`gateway.networking.k8s.io/gateway-name: egde`, which no Deployment or Pod has",
        ),
    ] {
        for (kind, rest) in [("AuthorizationPolicy", "rules: [{}]"), ("RequestAuthentication", "jwtRules: []")] {
            let text = OBJECTS.to_owned() + &object(kind, "shop", &format!("{spec}, {rest}"));
            let (objects, _) = crate::recorded::load(&[("mesh.yaml".into(), text.into())]);
            let (_, found) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
            let finding = found.iter().find(|finding| finding.code == code);
            let finding = finding.unwrap_or_else(|| panic!("{kind} {spec}: {found}"));
            assert!(finding.message.contains(expected), "{kind} {spec}: {}", finding.message);
            assert!(finding.span.to_string().starts_with("mesh.yaml:"), "{}", finding.span);
        }
    }
    // One that has Pods is not told.
    let text = OBJECTS.to_owned() + &object("AuthorizationPolicy", "shop", &format!("targetRefs: [{GATEWAY}]"));
    let (objects, _) = crate::recorded::load(&[("mesh.yaml".into(), text.into())]);
    let (_, found) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    assert!(!found.iter().any(|finding| ["no-effect", "selects-nothing"].contains(&finding.code)), "{found}");
}
