//! The statuses of the Gateway API's objects: one line for each condition.

use std::path::Path;
use std::sync::Arc;

use evenkeel_model::gateway_api_status::{ListenerStatus, RouteParentStatus};
use evenkeel_model::{AddressBook, Builder, Condition, GatewayApiStatus, MeshConfig};
use evenkeel_testkit::{TestCa, objects};

/// A Service with a Pod, which routes name as their backend.
const WEB: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                   spec: {selector: {app: web}, ports: [{name: http, port: 80}]}\n---\n";
/// A Gateway with a listener for a domain.
const EDGE: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\n\
                    spec:\n  gatewayClassName: istio\n  listeners:\n  \
                    - {name: http, port: 80, protocol: HTTP, hostname: '*.example.com'}\n---\n";
/// A Pod that serves it.
const EDGE_POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: edge-0, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: edge}}\n\
                        spec: {containers: [{name: istio-proxy}]}\nstatus: {podIP: 10.1.0.1, phase: Running}\n---\n";

fn gateway(listeners: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: shop}}\n\
         spec: {{gatewayClassName: istio, listeners: [{listeners}]}}\n---\n"
    )
}

fn service_of_edge(spec: &str, status: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: edge-istio, namespace: shop}}\n\
         spec: {{selector: {{gateway.networking.k8s.io/gateway-name: edge}}, ports: [{{name: http, port: 80}}], {spec}}}\n\
         status: {{{status}}}\n---\n"
    )
}

fn route(namespace: &str, parent: &str, spec: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: web, namespace: {namespace}}}\n\
         spec: {{parentRefs: [{parent}], {spec}}}\n---\n"
    )
}

fn shown(of: &Condition) -> String {
    format!("{}={} {}", of.kind, if of.holds { "True" } else { "False" }, of.reason)
}

/// Each condition of each status, and what else it has, in lines.
fn lines(text: &str) -> Vec<String> {
    let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.into())]);
    assert!(!found.has_errors(), "{found}\n{text}");
    let mut builder = Builder::new(MeshConfig::default(), AddressBook::default());
    builder.apply_files([(Path::new("mesh.yaml").into(), objects.into_iter().map(Arc::new).collect())]);
    let all = builder.gateway_api_statuses();
    all.flat_map(|(key, status)| of_status(status).into_iter().map(|line| format!("{}{line}", key.kind))).collect()
}

fn of_listener(listener: &ListenerStatus) -> Vec<String> {
    let mut all = lines_of(format!(" {}", listener.name), &listener.conditions);
    let (routes, kinds) = (listener.attached_routes, listener.supported_kinds.join(" "));
    all.push(format!(" {}: {routes} of {kinds}", listener.name));
    all
}

fn lines_of(of: String, conditions: &[Condition]) -> Vec<String> {
    conditions.iter().map(|condition| format!("{of}: {}", shown(condition))).collect()
}

fn of_status(status: &GatewayApiStatus) -> Vec<String> {
    let lines = lines_of;
    match status {
        GatewayApiStatus::Class(class) => lines(String::new(), &class.conditions),
        GatewayApiStatus::Gateway(gateway) => {
            let mut all = lines(String::new(), &gateway.conditions);
            all.extend(gateway.listeners.iter().flat_map(of_listener));
            all.extend(gateway.addresses.iter().map(|at| format!(": {} {}", at.kind, at.value)));
            all.push(format!(": {} sets", gateway.attached_listener_sets));
            all
        }
        GatewayApiStatus::ListenerSet(set) => {
            let mut all = lines(String::new(), &set.conditions);
            all.extend(set.listeners.iter().flat_map(of_listener));
            all
        }
        GatewayApiStatus::Policy(policy) => {
            let ancestors = policy.ancestors.iter();
            ancestors
                .flat_map(|at| lines(format!(" at {} by {}", at.name, at.controller), &policy.conditions))
                .collect()
        }
        GatewayApiStatus::Route(route) => {
            let parent = |own: &RouteParentStatus| {
                let section = own.parent.section_name.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
                lines(format!(" at {}{section} by {}", own.parent.name, own.controller), &own.conditions)
            };
            route.parents.iter().flat_map(parent).collect()
        }
    }
}

/// Checks that among the lines about `what` are these, and that there are no others with their conditions.
fn check(text: &str, expected: &[&str]) {
    let lines = lines(text);
    for line in expected {
        assert!(lines.iter().any(|other| other == line), "not `{line}` in {lines:#?}\n{text}");
    }
}

const AT_EDGE: &str = "HTTPRoute at edge by istio.io/gateway-controller";

#[test]
fn a_class_is_accepted_by_its_controller() {
    let class = |controller: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: mine}}\n\
             spec: {{controllerName: {controller}}}\n"
        )
    };
    check(&class("istio.io/gateway-controller"), &["GatewayClass: Accepted=True Accepted"]);
    check(&class("evenkeel.dev/gateway-controller"), &["GatewayClass: Accepted=True Accepted"]);
    assert!(lines(&class("example.com/other")).is_empty(), "it is another controller's");
}

#[test]
fn a_gateway_is_programmed_where_clients_reach_it() {
    let with = |service: &str| format!("{EDGE}{EDGE_POD}{service}");
    check(EDGE, &["Gateway: Accepted=True Accepted", "Gateway: Programmed=False AddressNotUsable"]);
    check(&with(""), &["Gateway: Programmed=True Programmed"]);
    let service = service_of_edge("type: ClusterIP, clusterIP: 10.96.0.7", "");
    let host = "Gateway: Hostname edge-istio.shop.svc.cluster.local";
    check(&with(&service), &["Gateway: Programmed=True Programmed", host]);
    check(&format!("{EDGE}{service}"), &["Gateway: Programmed=False AddressNotAssigned"]);
    let by_address = EDGE
        .replace("namespace: shop}", "namespace: shop, annotations: {networking.istio.io/address-type: IPAddress}}");
    check(&format!("{by_address}{EDGE_POD}{service}"), &["Gateway: IPAddress 10.96.0.7"]);
    let pending = service_of_edge("type: LoadBalancer", "");
    check(&with(&pending), &["Gateway: Programmed=False AddressNotAssigned"]);
    let balanced =
        service_of_edge("type: LoadBalancer", "loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: lb.example.com}]}");
    let addresses = ["Gateway: IPAddress 192.0.2.1", "Gateway: Hostname lb.example.com"];
    check(&with(&balanced), &addresses);
    let named = EDGE.replace("  listeners", "  addresses: [{type: Hostname, value: web}]\n  listeners");
    let pod = EDGE_POD.replace("gateway.networking.k8s.io/gateway-name: edge", "app: web");
    check(&format!("{named}{pod}{WEB}"), &["Gateway: Hostname web.shop.svc.cluster.local"]);
    check(&named, &["Gateway: Programmed=False AddressNotUsable"]);
    assert!(lines(&EDGE.replace("istio", "other")).is_empty(), "it has no class of ours");
}

#[test]
fn listeners_say_what_is_wrong_with_them() {
    let ca = TestCa::new();
    let secret = |namespace: &str| objects::tls_secret(&ca, namespace, "cert", "a");
    let tls = |reference: &str| {
        gateway(&format!("{{name: a, port: 443, protocol: HTTPS, tls: {{certificateRefs: [{reference}]}}}}"))
    };
    let good = [
        "Gateway a: Accepted=True Accepted",
        "Gateway a: Conflicted=False NoConflicts",
        "Gateway a: ResolvedRefs=True ResolvedRefs",
        "Gateway a: Programmed=True Programmed",
        "Gateway a: 0 of HTTPRoute GRPCRoute",
    ];
    check(&gateway("{name: a, port: 80, protocol: HTTP}"), &good);
    check(&format!("{}---\n{}", tls("{name: cert}"), secret("shop")), &good);
    let unusable = |reason: &str| [format!("Gateway a: ResolvedRefs=False {reason}"), good[0].to_owned()];
    let check_unusable = |text: &str, reason: &str| {
        let lines = unusable(reason);
        check(text, &[&lines[0], &lines[1], "Gateway a: Programmed=False Invalid", "Gateway: Accepted=True Accepted"]);
    };
    check_unusable(&tls("{name: cert}"), "InvalidCertificateRef");
    check_unusable(&tls("{name: cert, kind: ConfigMap}"), "InvalidCertificateRef");
    let elsewhere = "{name: cert, namespace: keys}";
    check_unusable(&format!("{}---\n{}", tls(elsewhere), secret("keys")), "RefNotPermitted");
    let grant = "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: keys}\n\
                 spec: {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}], to: [{group: '', kind: Secret}]}\n---\n";
    check(&format!("{}---\n{grant}{}", tls(elsewhere), secret("keys")), &good);
    let kinds =
        |kinds: &str| gateway(&format!("{{name: a, port: 80, protocol: HTTP, allowedRoutes: {{kinds: [{kinds}]}}}}"));
    let unknown = ["Gateway a: ResolvedRefs=False InvalidRouteKinds", "Gateway a: 0 of HTTPRoute"];
    check(&kinds("{kind: HTTPRoute}, {kind: TCPRoute}"), &unknown);
    check(&kinds("{kind: HTTPRoute}"), &["Gateway a: 0 of HTTPRoute", good[2]]);
    let unsupported = ["Gateway a: Accepted=False UnsupportedProtocol", "Gateway: Accepted=False ListenersNotValid"];
    check(&gateway("{name: a, port: 53, protocol: example.com/SCTP}"), &unsupported);
    let shared = gateway("{name: a, port: 80, protocol: UDP}, {name: b, port: 80, protocol: HTTP}");
    check(&shared, &["Gateway a: Conflicted=False NoConflicts", "Gateway b: Programmed=True Programmed"]);
    check(&shared, &["Gateway a: 0 of UDPRoute", "Gateway a: Programmed=True Programmed"]);
    let two = "{name: a, port: 53, protocol: example.com/SCTP}, {name: b, port: 80, protocol: HTTP}";
    check(&gateway(two), &["Gateway: Accepted=True ListenersNotValid", "Gateway b: Programmed=True Programmed"]);
    let conflict = gateway("{name: a, port: 80, protocol: HTTP}, {name: b, port: 80, protocol: TCP}");
    let conflicting = [
        good[1],
        "Gateway b: Conflicted=True ProtocolConflict",
        "Gateway b: Accepted=False ProtocolConflict",
        "Gateway b: Programmed=False ProtocolConflict",
    ];
    check(&conflict, &conflicting);
}

#[test]
fn routes_say_what_each_parent_makes_of_them() {
    let (to_web, host) = ("rules: [{backendRefs: [{name: web, port: 80}]}]", "hostnames: [a.example.com], ");
    let at = |parent: &str, spec: &str| format!("{EDGE}{EDGE_POD}{WEB}{}", route("shop", parent, spec));
    let check_route = |text: &str, condition: &str, attached: usize| {
        let attached = format!("Gateway http: {attached} of HTTPRoute GRPCRoute");
        check(text, &[&format!("{AT_EDGE}: {condition}"), &attached]);
    };
    let good = at("{name: edge}", &format!("{host}{to_web}"));
    check_route(&good, "Accepted=True Accepted", 1);
    check_route(&good, "ResolvedRefs=True ResolvedRefs", 1);
    let other_host = at("{name: edge}", &format!("hostnames: [a.example.org], {to_web}"));
    check_route(&other_host, "Accepted=False NoMatchingListenerHostname", 0);
    let elsewhere = format!("{EDGE}{WEB}{}", route("other", "{name: edge, namespace: shop}", to_web));
    check_route(&elsewhere, "Accepted=False NotAllowedByListeners", 0);
    let no_section = at("{name: edge, sectionName: none}", to_web);
    check(&no_section, &["HTTPRoute at edge/none by istio.io/gateway-controller: Accepted=False NoMatchingParent"]);
    check_route(&at("{name: edge, port: 81}", to_web), "Accepted=False NoMatchingParent", 0);
    let filter = "rules: [{filters: [{type: ExtensionRef, extensionRef: {group: a.example, kind: F, name: f}}], \
                  backendRefs: [{name: web, port: 80}]}]";
    check_route(&at("{name: edge}", filter), "Accepted=False UnsupportedValue", 0);
    let backend = |reference: &str| at("{name: edge}", &format!("rules: [{{backendRefs: [{reference}]}}]"));
    check_route(&backend("{name: none, port: 80}"), "ResolvedRefs=False BackendNotFound", 1);
    check_route(&backend("{name: web, port: 81}"), "ResolvedRefs=False BackendNotFound", 1);
    check_route(&backend("{name: web, port: 80, namespace: other}"), "ResolvedRefs=False RefNotPermitted", 1);
    check_route(&backend("{name: web, port: 80, group: a.example, kind: X}"), "ResolvedRefs=False InvalidKind", 1);
    // Parents of others, and those that nobody knows, are not reported.
    let others = at("{name: none}, {name: edge}, {name: x, group: a.example, kind: X}", to_web);
    let parents = lines(&others).iter().filter(|line| line.starts_with("HTTPRoute")).count();
    assert_eq!(parents, 2, "only the two conditions at `edge`: {:#?}", lines(&others));
    let in_mesh = at("{name: web, group: '', kind: Service}", to_web);
    check(&in_mesh, &["HTTPRoute at web by istio.io/gateway-controller: Accepted=True Accepted"]);
    let service = |parent: &str| {
        format!(
            "{EDGE}{EDGE_POD}{WEB}{}",
            route("other", parent, "rules: [{backendRefs: [{name: web, namespace: shop, port: 80}]}]")
        )
    };
    let of_consumer = service("{name: web, namespace: shop, group: '', kind: Service}");
    check(&of_consumer, &["HTTPRoute at web by istio.io/gateway-controller: ResolvedRefs=True ResolvedRefs"]);
    let of_both = service("{name: web, namespace: shop, group: '', kind: Service}, {name: edge, namespace: shop}");
    check(&of_both, &["HTTPRoute at web by istio.io/gateway-controller: ResolvedRefs=False RefNotPermitted"]);
    let absent = at("{name: none, group: '', kind: Service}", to_web);
    check(&absent, &["HTTPRoute at none by istio.io/gateway-controller: Accepted=False NoMatchingParent"]);
}

#[test]
fn default_gateways_claim_routes_that_do_not_name_them() {
    let edge = |scope: &str| EDGE.replace("spec:\n", &format!("spec:\n  {scope}\n"));
    let by_default = |namespace: &str, rest: &str| {
        route(
            namespace,
            "",
            &format!("useDefaultGateways: All, {rest}rules: [{{backendRefs: [{{name: web, port: 80}}]}}]"),
        )
    };
    let mesh = |scope: &str, route: &str| format!("{}{EDGE_POD}{WEB}{route}", edge(scope));
    let taken = mesh("defaultScope: All", &by_default("shop", "hostnames: [a.example.com], "));
    let is_default = "Gateway: DefaultGateway=True DefaultGateway";
    check(
        &taken,
        &[&format!("{AT_EDGE}: Accepted=True Accepted"), "Gateway http: 1 of HTTPRoute GRPCRoute", is_default],
    );
    let check_unclaimed = |text: &str| {
        let lines = lines(text);
        assert!(!lines.iter().any(|line| line.starts_with("HTTPRoute")), "{lines:#?}");
        assert!(lines.iter().any(|line| line == "Gateway http: 0 of HTTPRoute GRPCRoute"), "{lines:#?}");
    };
    check_unclaimed(&mesh("defaultScope: All", &by_default("shop", "hostnames: [a.example.org], ")));
    check_unclaimed(&mesh("defaultScope: All", &by_default("other", "")));
    check_unclaimed(&mesh("defaultScope: None", &by_default("shop", "")));
    assert!(!lines(&mesh("defaultScope: None", "")).iter().any(|line| line.contains("DefaultGateway")));
}

#[test]
fn routes_of_every_kind_have_a_status() {
    let of_kind = |kind: &str, version: &str, protocol: &str, hosts: &str| {
        format!(
            "{}{WEB}apiVersion: gateway.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: r, namespace: shop}}\n\
             spec: {{parentRefs: [{{name: edge}}], {hosts}rules: [{{backendRefs: [{{name: web, port: 80}}]}}]}}\n",
            gateway(&format!("{{name: a, port: 90, {protocol}}}"))
        )
    };
    let check_kind = |kind: &str, version: &str, protocol: &str, hosts: &str| {
        let accepted = format!("{kind} at edge by istio.io/gateway-controller: Accepted=True Accepted");
        let text = of_kind(kind, version, protocol, hosts);
        check(&text, &[&accepted]);
        assert!(lines(&text).iter().any(|line| line.starts_with("Gateway a: 1 of")), "{:#?}", lines(&text));
    };
    check_kind("GRPCRoute", "v1", "protocol: HTTP", "");
    check_kind("TLSRoute", "v1", "protocol: TLS, tls: {mode: Passthrough}", "hostnames: [a.example.com], ");
    check_kind("TCPRoute", "v1alpha2", "protocol: TCP", "");
    check_kind("UDPRoute", "v1", "protocol: UDP", "");
}

#[test]
fn a_route_of_datagrams_needs_ports_of_udp_and_gateways() {
    let dns = "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: shop}\n\
               spec: {selector: {app: web}, ports: [{name: u, port: 53, protocol: UDP}, {name: t, port: 54}]}\n---\n";
    let at = |parent: &str, backend: &str| {
        format!(
            "{}{dns}apiVersion: gateway.networking.k8s.io/v1\nkind: UDPRoute\nmetadata: {{name: r, namespace: shop}}\n\
             spec: {{parentRefs: [{{{parent}}}], rules: [{{backendRefs: [{{name: dns, {backend}}}]}}]}}\n",
            gateway("{name: a, port: 53, protocol: UDP}, {name: b, port: 80, protocol: HTTP}")
        )
    };
    let at_edge = |condition: &str| format!("UDPRoute at edge by istio.io/gateway-controller: {condition}");
    let check_at_edge = |backend: &str, condition: &str| check(&at("name: edge", backend), &[&at_edge(condition)]);
    check_at_edge("port: 53", "Accepted=True Accepted");
    check_at_edge("port: 53", "ResolvedRefs=True ResolvedRefs");
    check_at_edge("port: 54", "ResolvedRefs=False BackendNotFound");
    check_at_edge("port: 53, namespace: other", "ResolvedRefs=False RefNotPermitted");
    check(&at("name: edge", "port: 53"), &["Gateway a: 1 of UDPRoute", "Gateway b: 0 of HTTPRoute GRPCRoute"]);
    let in_mesh = lines(&at("name: dns, group: '', kind: Service", "port: 53"));
    assert!(!in_mesh.iter().any(|line| line.starts_with("UDPRoute")), "{in_mesh:#?}");
}

#[test]
fn listener_sets_say_which_of_their_listeners_are_served() {
    let edge = |allowed: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: shop}}\n\
             spec: {{gatewayClassName: istio, {allowed}listeners: [{{name: own, port: 80, protocol: HTTP, hostname: a.example.com}}]}}\n\
             ---\n{EDGE_POD}"
        )
    };
    let set = |listeners: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: more, namespace: shop}}\n\
             spec: {{parentRef: {{name: edge}}, listeners: [{listeners}]}}\n---\n"
        )
    };
    let taken = edge("allowedListeners: {namespaces: {from: Same}}, ");
    let (good, same_host, other_protocol) = (
        "{name: b, port: 80, protocol: HTTP, hostname: b.example.com}",
        "{name: c, port: 80, protocol: HTTP, hostname: a.example.com}",
        "{name: c, port: 80, protocol: TCP}",
    );
    let accepted =
        ["ListenerSet: Accepted=True Accepted", "ListenerSet: Programmed=True Programmed", "Gateway: 1 sets"];
    check(&format!("{taken}{}", set(good)), &accepted);
    let to_set = route("shop", "{kind: ListenerSet, name: more}", "rules: [{backendRefs: [{name: web, port: 80}]}]");
    let attached = ["ListenerSet b: 1 of HTTPRoute GRPCRoute", "ListenerSet b: Programmed=True Programmed"];
    check(&format!("{taken}{WEB}{}{to_set}", set(good)), &attached);
    for (conflicting, reason) in [(same_host, "HostnameConflict"), (other_protocol, "ProtocolConflict")] {
        let lines = [("Accepted", "False"), ("Conflicted", "True"), ("Programmed", "False")];
        let lines = lines.map(|(kind, holds)| format!("ListenerSet c: {kind}={holds} {reason}"));
        let mut expected: Vec<&str> = lines.iter().map(String::as_str).collect();
        let partly = ["ListenerSet: Accepted=True ListenersNotValid", "ListenerSet b: Accepted=True Accepted"];
        expected.extend(partly);
        check(&format!("{taken}{}", set(&format!("{good}, {conflicting}"))), &expected);
        let all = ["Accepted", "Programmed"].map(|kind| format!("ListenerSet: {kind}=False ListenersNotValid"));
        check(&format!("{taken}{}", set(conflicting)), &[&all[0], &all[1], "Gateway: 0 sets"]);
    }
    let refused =
        ["ListenerSet: Accepted=False NotAllowed", "ListenerSet: Programmed=False NotAllowed", "Gateway: 0 sets"];
    check(&format!("{}{}", edge(""), set(good)), &refused);
    assert!(lines(&set(good)).is_empty(), "nobody knows whose Gateway that would be");
}

#[test]
fn policies_for_tls_to_backends_say_whether_they_apply() {
    let to_web = format!(
        "{EDGE}{EDGE_POD}{WEB}{}",
        route("shop", "{name: edge}", "rules: [{backendRefs: [{name: web, port: 80}]}]")
    );
    let policy = |name: &str, target: &str, roots: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{targetRefs: [{{group: '', kind: Service, name: web{target}}}], \
             validation: {{hostname: web.example, {roots}}}}}\n---\n"
        )
    };
    let with = |text: &str, conditions: [&str; 2]| {
        let lines = conditions.map(|of| format!("BackendTLSPolicy at edge by istio.io/gateway-controller: {of}"));
        check(&format!("{to_web}{text}"), &[&lines[0], &lines[1]]);
    };
    let (accepted, resolved) = ("Accepted=True Accepted", "ResolvedRefs=True ResolvedRefs");
    let (system, none) = ("wellKnownCACertificates: System", "Accepted=False NoValidCACertificate");
    with(&policy("a", "", system), [accepted, resolved]);
    let map = |kind: &str| format!("caCertificateRefs: [{{group: '', kind: {kind}, name: roots}}]");
    with(&policy("a", "", &map("ConfigMap")), [none, "ResolvedRefs=False InvalidCACertificateRef"]);
    with(&policy("a", "", &map("Secret")), [none, "ResolvedRefs=False InvalidKind"]);
    let both = format!("{}{}", policy("a", "", system), policy("b", "", system));
    with(&both, ["Accepted=False Conflicted", accepted]);
    let of_port = format!("{}{}", policy("a", "", system), policy("b", ", sectionName: http", system));
    let conflicts = lines(&format!("{to_web}{of_port}")).iter().filter(|line| line.contains("Conflicted")).count();
    assert_eq!(conflicts, 1, "only the listener's: one for all ports and one for a single port apply both");
    let unreached = format!("{WEB}{}", policy("a", "", system));
    assert!(lines(&unreached).is_empty(), "no Gateway leads there");
}
