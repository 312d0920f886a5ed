//! Routes that attach to default Gateways without naming them (GEP-3793).

use crate::calls::{Arrival, Mesh, object_of};

/// The API version of the Gateway API's kinds.
const API: &str = "gateway.networking.k8s.io/v1";

/// A Gateway of the namespace `shop` with its proxy.
fn gateway(name: &str, address: &str, fields: &str, listeners: &str) -> String {
    let pod = format!(
        "apiVersion: v1\nkind: Pod\n\
         metadata: {{name: {name}-0, namespace: shop, labels: {{gateway.networking.k8s.io/gateway-name: {name}}}}}\n\
         spec: {{containers: [{{name: proxy}}]}}\nstatus: {{podIP: {address}, conditions: [{{type: Ready, status: \"True\"}}]}}\n---\n"
    );
    let spec = format!("gatewayClassName: istio\n{fields}\nlisteners: [{listeners}]");
    pod + &object_of(API, "Gateway", name, "shop", &spec)
}

const PLAIN: &str = "{name: http, port: 80, protocol: HTTP}";
const BY_DEFAULT: &str = "defaultScope: All";

fn route(kind: &str, namespace: &str, fields: &str) -> String {
    object_of(API, kind, "r", namespace, &format!("{fields}\nrules: [{{backendRefs: [{{name: ratings, port: 80}}]}}]"))
}

fn at(listener: &'static str, to: &'static str) -> Arrival {
    Arrival { listener, to, from: "10.9.9.9:4000", sni: None, random: 0 }
}

/// `gate`, which may be a default Gateway, and `other`, which is none.
fn check(gate: &str, route: &str, expected: [&str; 2], codes: &[&str]) {
    let other = gateway("other", "10.244.1.2", "defaultScope: None", PLAIN);
    let mesh = Mesh::new(&(gateway("gate", "10.244.1.1", gate, PLAIN) + &other + route));
    let decide = |proxy: &str, to| mesh.proxy(proxy).decide(at("0.0.0.0_80", to), "GET a.test /");
    let got = [decide("router gate-0.shop", "10.244.1.1:80"), decide("router other-0.shop", "10.244.1.2:80")];
    assert_eq!(got, expected, "{gate}\n{route}");
    assert_eq!(mesh.codes, codes, "{gate}\n{route}");
}

const RATINGS: &str = "a.test/ to ratings.shop:80";

#[test]
fn a_route_attaches_to_default_gateways() {
    let all = "useDefaultGateways: All";
    check(BY_DEFAULT, &route("HTTPRoute", "shop", all), [RATINGS, "404"], &[]);
    check(BY_DEFAULT, &route("GRPCRoute", "shop", all), [RATINGS, "404"], &[]);
    check(BY_DEFAULT, &route("HTTPRoute", "shop", "useDefaultGateways: None"), ["404", "404"], &[]);
    check(BY_DEFAULT, &route("HTTPRoute", "shop", ""), ["404", "404"], &[]);
    check("", &route("HTTPRoute", "shop", all), ["404", "404"], &["missing-gateway"]);
    check("defaultScope: None", &route("HTTPRoute", "shop", all), ["404", "404"], &["missing-gateway"]);
    // With parents of its own it applies at both, and once where it names a default Gateway.
    let named = |name: &str| format!("{all}\nparentRefs: [{{name: {name}}}]");
    check(BY_DEFAULT, &route("HTTPRoute", "shop", &named("other")), [RATINGS, RATINGS], &[]);
    check(BY_DEFAULT, &route("HTTPRoute", "shop", &named("gate")), [RATINGS, "404"], &[]);
    // Who may attach does not change.
    check(BY_DEFAULT, &route("HTTPRoute", "stock", all), ["404", "404"], &["missing-gateway", "missing-service"]);
}

/// A route at a default Gateway needs the grants of one at a Gateway, also beside a Service as its parent.
#[test]
fn backends_of_other_namespaces_need_grants() {
    let route = |parents: &str| {
        let backends = "rules: [{backendRefs: [{name: ledger, namespace: stock, port: 80}]}]";
        object_of(API, "HTTPRoute", "r", "shop", &format!("useDefaultGateways: All\n{parents}{backends}"))
    };
    let service = "parentRefs: [{group: '', kind: Service, name: reviews}]\n";
    check(BY_DEFAULT, &route(""), ["500 no cluster", "404"], &["missing-grant"]);
    check(BY_DEFAULT, &route(service), ["500 no cluster", "404"], &["missing-grant"]);
}

#[test]
fn routes_of_connections_and_datagrams_attach_too() {
    let listeners = "{name: tcp, port: 9000, protocol: TCP}, \
                     {name: tls, port: 8443, protocol: TLS, hostname: '*.test', tls: {mode: Passthrough}}, \
                     {name: udp, port: 53, protocol: UDP}";
    let check = |kind: &str, fields: &str, listener: &'static str, to: &'static str, sni| {
        let backends = "rules: [{backendRefs: [{name: ratings, port: 9000}]}]";
        let spec = format!("useDefaultGateways: All\n{fields}{backends}");
        let route = object_of(API, kind, "r", "shop", &spec);
        let mesh = Mesh::new(&(gateway("gate", "10.244.1.1", BY_DEFAULT, listeners) + &route));
        let got = mesh.proxy("router gate-0.shop").decide(Arrival { sni, ..at(listener, to) }, "");
        assert!(got.ends_with("ratings.shop:9000"), "{kind}: {got} {:?}", mesh.codes);
    };
    check("TCPRoute", "", "0.0.0.0_9000", "10.244.1.1:9000", None);
    check("TLSRoute", "hostnames: [a.test]\n", "0.0.0.0_8443", "10.244.1.1:8443", Some("a.test"));
    let dns = "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: shop}\n\
               spec: {selector: {app: ratings}, ports: [{name: dns, port: 53, protocol: UDP}]}\n---\n";
    let spec = "useDefaultGateways: All\nrules: [{backendRefs: [{name: dns, port: 53}]}]";
    let route = object_of(API, "UDPRoute", "r", "shop", spec);
    let mesh = Mesh::new(&(gateway("gate", "10.244.1.1", BY_DEFAULT, listeners) + dns + &route));
    assert!(mesh.codes.is_empty(), "{:?}", mesh.codes);
    let cluster = "udp|53||gate-istio-autogenerated-k8s-gateway-udp.shop";
    let proxy = mesh.proxy("router gate-0.shop");
    assert!(proxy.names("CDS").contains(&cluster), "{:?}", proxy.names("CDS"));
    assert!(!proxy.endpoints(cluster).is_empty());
}
