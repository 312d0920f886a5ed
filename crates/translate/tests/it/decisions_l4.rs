//! Decisions of a VirtualService's TCP and TLS routes, and which of several VirtualServices of a host is used.

use crate::calls::{Arrival, HTTP, Mesh, virtual_service};

const TCP: Arrival = Arrival { listener: "10.96.0.1_9000", to: "10.96.0.1:9000", ..HTTP };
const TLS: Arrival = Arrival { listener: "10.96.0.1_9443", to: "10.96.0.1:9443", ..HTTP };

#[test]
fn tcp_routes() {
    let check = |conditions: &str, arrival: Arrival, matches: bool| {
        let mesh = Mesh::routed(&format!(
            "tcp: [{{match: [{conditions}], route: [{{destination: {{host: ratings, port: {{number: 9000}}}}}}]}}]"
        ));
        let to = if matches { "ratings.shop:9000" } else { "reviews.shop:9000" };
        assert_eq!(mesh.client().decide(arrival, ""), to, "{conditions}");
    };
    check("", TCP, true);
    check("{port: 9000}", TCP, true);
    check("{port: 9001}", TCP, false);
    check("{destinationSubnets: [10.96.0.0/16]}", TCP, true);
    check("{destinationSubnets: [10.97.0.0/16]}", TCP, false);
    check("{destinationSubnets: [10.97.0.0/16, 10.96.0.1]}", TCP, true);
    check("{sourceSubnet: 10.244.0.0/24}", TCP, true);
    check("{sourceSubnet: 10.245.0.0/24}", TCP, false);
    check("{sourceLabels: {app: client}}", TCP, true);
    check("{sourceLabels: {app: other}}", TCP, false);
    check("{sourceNamespace: shop}", TCP, true);
    check("{sourceNamespace: stock}", TCP, false);
    check("{gateways: [front]}", TCP, false);
    // A port whose protocol is detected takes TCP routes for what is not HTTP.
    let auto = Arrival { listener: "10.96.0.1_7000", to: "10.96.0.1:7000", ..HTTP };
    let mesh =
        Mesh::routed("tcp: [{match: [{port: 7000}], route: [{destination: {host: ratings, port: {number: 9000}}}]}]");
    assert_eq!(mesh.client().decide(auto, ""), "ratings.shop:9000");
    assert_eq!(mesh.client().decide(auto, "GET reviews:7000 /"), "reviews:7000/ to reviews.shop:7000");
}

#[test]
fn tls_routes() {
    let check = |conditions: &str, sni: &'static str, expected: &str| {
        let mesh = Mesh::routed(&format!(
            "tls: [{{match: [{{sniHosts: [reviews]{conditions}}}], route: [{{destination: {{host: ratings, port: {{number: 9000}}}}}}]}}]"
        ));
        let got = mesh.client().decide(Arrival { sni: Some(sni), ..TLS }, "");
        assert_eq!(got, expected, "{conditions} {sni}");
    };
    let ratings = "ratings.shop:9000";
    check("", "reviews", ratings);
    // The outbound policy decides about other names, which here lets them pass to where they were meant for.
    check("", "other.example.com", "PassthroughCluster");
    check(", port: 9443", "reviews", ratings);
    check(", port: 1", "reviews", "reviews.shop:9443");
    check(", destinationSubnets: [10.96.0.0/24]", "reviews", ratings);
    check(", destinationSubnets: [10.97.0.0/24]", "reviews", "PassthroughCluster");
    check(", sourceLabels: {app: client}", "reviews", ratings);
    check(", sourceLabels: {app: other}", "reviews", "reviews.shop:9443");
}

#[test]
fn without_an_allowed_name_tls_is_closed_under_registry_only() {
    let sidecar = "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}, egress: [{hosts: ['*/*']}]}
---
";
    let routes = "hosts: [reviews]\ntls: [{match: [{sniHosts: [reviews]}], route: [{destination: {host: reviews, port: {number: 9443}}}]}]";
    let mesh = Mesh::new(&format!("{sidecar}{}", virtual_service("reviews", "shop", routes)));
    let call = |sni| mesh.client().decide(Arrival { sni: Some(sni), ..TLS }, "");
    assert_eq!(call("reviews"), "reviews.shop:9443");
    assert_eq!(call("other.example.com"), "BlackHoleCluster");
}

#[test]
fn at_a_gateway() {
    let check = |spec: &str, arrival: Arrival, expected: &str| {
        let spec = format!("gateways: [front]\n{spec}");
        let mesh = Mesh::new(&virtual_service("edge", "shop", &spec));
        assert_eq!(mesh.proxy("router edge-0.shop").decide(arrival, ""), expected, "{spec}");
    };
    let to = "route: [{destination: {host: ratings, port: {number: 9000}}}]";
    let tcp = Arrival { listener: "0.0.0.0_9000", to: "10.1.2.3:9000", ..HTTP };
    let tls = Arrival { listener: "0.0.0.0_9443", to: "10.1.2.3:9443", sni: Some("a.example.com"), ..HTTP };
    let routes =
        |of: &str, conditions: &str| format!("hosts: [a.example.com]\n{of}: [{{match: [{{{conditions}}}], {to}}}]");
    check(&routes("tcp", "port: 9000"), tcp, "ratings.shop:9000");
    check(&routes("tcp", "destinationSubnets: [10.1.0.0/16]"), tcp, "ratings.shop:9000");
    check(&routes("tcp", "destinationSubnets: [10.2.0.0/16]"), tcp, "closed");
    check(&routes("tcp", "sourceSubnet: 10.244.0.0/16"), tcp, "ratings.shop:9000");
    check(&routes("tcp", "sourceSubnet: 10.245.0.0/16"), tcp, "closed");
    check(&routes("tls", "sniHosts: [a.example.com]"), tls, "ratings.shop:9000");
    check(&routes("tls", "sniHosts: [a.example.com], destinationSubnets: [10.1.0.0/16]"), tls, "ratings.shop:9000");
    check(&routes("tls", "sniHosts: [a.example.com], destinationSubnets: [10.2.0.0/16]"), tls, "closed");
}

#[test]
fn http_and_tcp_routes_of_one_host_live_side_by_side() {
    let http = "hosts: [reviews]\nhttp: [{route: [{destination: {host: ratings}}]}]";
    let tcp = "hosts: [reviews]\ntcp: [{match: [{port: 9000}], route: [{destination: {host: ratings, port: {number: 9000}}}]}]";
    for all in [[("a", http), ("b", tcp)], [("a", tcp), ("b", http)]] {
        let all = all.map(|(name, spec)| virtual_service(name, "shop", spec));
        let mesh = Mesh::new(&all.concat());
        assert!(mesh.codes.is_empty(), "{:?}", mesh.codes);
        assert_eq!(mesh.client().http("GET reviews /"), "reviews/ to ratings.shop:80");
        assert_eq!(mesh.client().decide(TCP, ""), "ratings.shop:9000");
    }
}

#[test]
fn one_that_is_not_exported_here_does_not_count() {
    let spec = |export: &str, to: &str| {
        format!(
            "hosts: [reviews.shop.svc.cluster.local]\nexportTo: [{export}]\nhttp: [{{route: [{{destination: {{host: {to}.svc.cluster.local}}}}]}}]"
        )
    };
    // The first is for `stock` only; the second for both namespaces. They overlap in `stock`.
    let all = [
        virtual_service("a", "stock", &spec("stock", "ledger.stock")),
        virtual_service("b", "shop", &spec("'*'", "ratings.shop")),
    ];
    let mesh = Mesh::new(&all.concat());
    assert_eq!(mesh.codes, ["duplicate-host"]);
    let host = "GET reviews.shop.svc.cluster.local /";
    let at = "reviews.shop.svc.cluster.local/ to";
    assert_eq!(mesh.client().http(host), format!("{at} ratings.shop:80"));
    assert_eq!(mesh.proxy("sidecar ledger-0.stock").http(host), format!("{at} ledger.stock:80"));
}

#[test]
fn the_first_one_with_a_route_for_the_port_routes_it() {
    let spec = |port: u16, to: &str| {
        format!(
            "hosts: [reviews]\nhttp: [{{match: [{{port: {port}}}], route: [{{destination: {{host: {to}, port: {{number: 80}}}}}}]}}]"
        )
    };
    let all =
        [virtual_service("a", "shop", &spec(8080, "ratings")), virtual_service("b", "shop", &spec(80, "ratings"))];
    let mesh = Mesh::new(&all.concat());
    assert_eq!(mesh.client().http("GET reviews /"), "reviews/ to ratings.shop:80");
    let alone = Mesh::routed("http: [{match: [{port: 8080}], route: [{destination: {host: ratings}}]}]");
    assert_eq!(alone.client().http("GET reviews /"), "reviews/ to reviews.shop:80");
}

#[test]
fn hosts_without_a_service_are_called_on_the_ports_of_the_others() {
    let spec =
        "hosts: [reviews, www.example.com]\nhttp: [{route: [{destination: {host: ratings, port: {number: 80}}}]}]";
    let sidecar = "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec: {egress: [{hosts: [./reviews.shop.svc.cluster.local]}]}
---
";
    for sidecar in ["", sidecar] {
        let mesh = Mesh::new(&format!("{sidecar}{}", virtual_service("both", "shop", spec)));
        let proxy = mesh.client();
        assert_eq!(proxy.http("GET www.example.com /"), "www.example.com/ to ratings.shop:80");
        let alt = Arrival { listener: "0.0.0.0_8080", to: "192.0.2.1:8080", ..HTTP };
        assert_eq!(proxy.decide(alt, "GET www.example.com:8080 /"), "www.example.com:8080/ to ratings.shop:80");
    }
    let alone = Mesh::new(&virtual_service("one", "shop", &spec.replace("reviews, ", "")));
    assert_eq!(alone.client().http("GET www.example.com /"), "www.example.com/ to ratings.shop:80");
}
