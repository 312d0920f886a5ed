//! A Sidecar's `HTTP_PROXY`: an explicit proxy for the workload's requests to any port.

use serde_json::json;

use crate::calls::{Arrival, HTTP, Mesh, virtual_service};

const PROXY: Arrival = Arrival { listener: "127.0.0.1_15080", to: "127.0.0.1:15080", ..HTTP };

/// A Sidecar with a proxy for these hosts, and nothing else that can be called.
fn sidecar(more: &str, hosts: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec:
  {more}
  egress:
    - {{port: {{number: 15080, name: proxy, protocol: HTTP_PROXY}}, captureMode: NONE, hosts: [{hosts}]}}
    - {{hosts: ['~/*']}}
---
"
    )
}

#[test]
fn requests_name_host_and_port() {
    let mesh = Mesh::new(&sidecar("", "'./*'"));
    assert!(mesh.codes.is_empty(), "{:?}", mesh.codes);
    let client = mesh.client();
    let check = |authority: &str, expected: &str| {
        let found = client.decide(PROXY, &format!("GET {authority} /"));
        assert_eq!(found, expected, "{authority}");
    };
    check("reviews", "reviews/ to reviews.shop:80");
    check("reviews:80", "reviews:80/ to reviews.shop:80");
    check("reviews:8080", "reviews:8080/ to reviews.shop:8080");
    check("reviews.shop.svc.cluster.local:8080", "reviews.shop.svc.cluster.local:8080/ to reviews.shop:8080");
    check("10.96.0.1:8080", "10.96.0.1:8080/ to reviews.shop:8080");
    // A port of detected protocol takes HTTP.
    check("reviews:7000", "reviews:7000/ to reviews.shop:7000");
    // Neither other ports, nor bytes, nor what is not imported.
    check("reviews:81", "502");
    check("reviews:9000", "502");
    check("ledger.stock", "502");
    check("nowhere.example.com", "502");
}

#[test]
fn routes_of_what_is_imported_apply() {
    let routes = virtual_service(
        "reviews",
        "shop",
        "hosts: [reviews]\nhttp: [{match: [{port: 8080}], route: [{destination: {host: ratings, port: {number: 80}}}]}]",
    );
    let mesh = Mesh::new(&format!("{}{routes}", sidecar("", "'./*'")));
    assert_eq!(mesh.client().decide(PROXY, "GET reviews:8080 /"), "reviews:8080/ to ratings.shop:80");
    assert_eq!(mesh.client().decide(PROXY, "GET reviews /"), "reviews/ to reviews.shop:80");
    // Of reviews alone, whose routes lead on.
    let mesh = Mesh::new(&format!("{}{routes}", sidecar("", "'./reviews.shop.svc.cluster.local'")));
    assert_eq!(mesh.client().decide(PROXY, "GET reviews:8080 /"), "reviews:8080/ to ratings.shop:80");
    assert_eq!(mesh.client().decide(PROXY, "GET ratings /"), "502");
}

#[test]
fn unknown_hosts_are_refused_or_looked_up() {
    let allows = sidecar("outboundTrafficPolicy: {mode: ALLOW_ANY}", "'./*'");
    // The proxy cannot pass on to where the connection was meant for: that is the proxy itself.
    assert_eq!(Mesh::new(&allows).client().decide(PROXY, "GET nowhere.example.com /"), "502");
    let egress = sidecar(
        "outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: ratings.shop.svc.cluster.local, port: {number: 80}}}",
        "'./*'",
    );
    let found = Mesh::new(&egress).client().decide(PROXY, "GET nowhere.example.com /");
    assert_eq!(found, "nowhere.example.com/ to ratings.shop:80");
}

#[test]
fn the_listener_is_bound_and_compares_ports() {
    let client = Mesh::new(&sidecar("", "'./*'")).client();
    let listener = client.resource("LDS", "127.0.0.1_15080");
    assert_eq!(listener["bind_to_port"], json!(null), "{listener}");
    let table = client.resource("RDS", "15080");
    assert_eq!(table["ignore_port_in_host_matching"], json!(null), "{table}");
    let hosts = table["virtual_hosts"].as_array().expect("virtual hosts");
    let names: Vec<&str> = hosts.iter().filter_map(|host| host["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "ratings.shop.svc.cluster.local:80",
            "reviews.shop.svc.cluster.local:80",
            "reviews.shop.svc.cluster.local:8080",
            "reviews.shop.svc.cluster.local:7000",
            "block_all"
        ]
    );
}

#[test]
fn a_mesh_may_have_a_proxy_in_every_sidecar() {
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'proxyHttpPort: 15080'}\n---\n";
    let mesh = |more: &str| Mesh::new(&format!("{settings}{more}"));
    let checks = |mesh: &Mesh, expected: &[(&str, &str)]| {
        assert!(mesh.codes.is_empty(), "{:?}", mesh.codes);
        let client = mesh.client();
        for (authority, expected) in expected {
            assert_eq!(client.decide(PROXY, &format!("GET {authority} /")), *expected, "{authority}");
        }
    };
    let all = &[
        ("reviews:8080", "reviews:8080/ to reviews.shop:8080"),
        ("reviews", "reviews/ to reviews.shop:80"),
        ("ledger.stock", "ledger.stock/ to ledger.stock:80"),
        ("nowhere.example.com", "502"),
    ];
    checks(&mesh(""), all);
    let written = |egress: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: default, namespace: shop}}\nspec: {{egress: {egress}}}\n---\n"
        )
    };
    // It serves what a Sidecar lets workloads call on the ports that it does not name.
    let own = &[("reviews", "reviews/ to reviews.shop:80"), ("ledger.stock", "502")];
    checks(&mesh(&written("[{hosts: ['./*']}]")), own);
    checks(&mesh(&written("[{port: {number: 9000, protocol: TCP}, hosts: ['*/*']}, {hosts: ['./*']}]")), own);
    let only = "[{port: {number: 15080, protocol: HTTP_PROXY}, captureMode: NONE, hosts: [stock/*]}, {hosts: ['./*']}]";
    checks(&mesh(&written(only)), &[("reviews", "502"), all[2]]);
    // Other calls are as they are without it.
    assert_eq!(mesh("").client().decide(HTTP, "GET reviews /"), "reviews/ to reviews.shop:80");
    let none = mesh(&written("[{port: {number: 80, protocol: HTTP}, hosts: ['*/*']}]"));
    assert!(!none.client().names("LDS").contains(&PROXY.listener));
}

/// A Sidecar with Unix sockets, and nothing else that can be called.
const SOCKETS: &str = "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  egress:
    - {port: {protocol: HTTP}, bind: 'unix:///run/shop.sock', captureMode: NONE, hosts: ['./*']}
    - {port: {number: 0, protocol: TCP}, bind: 'unix://@ratings', hosts: ['./ratings.shop.svc.cluster.local']}
    - {hosts: ['~/*']}
---
";

#[test]
fn unix_sockets_serve_all_ports() {
    let mesh = Mesh::new(SOCKETS);
    assert!(mesh.codes.is_empty(), "{:?}", mesh.codes);
    let client = mesh.client();
    let socket = |listener| Arrival { listener, to: "0.0.0.0:0", from: "0.0.0.0:0", ..HTTP };
    let http = |request: &str| client.decide(socket("unix:///run/shop.sock_0"), request);
    assert_eq!(http("GET reviews:8080 /"), "reviews:8080/ to reviews.shop:8080");
    assert_eq!(http("GET ratings /"), "ratings/ to ratings.shop:80");
    assert_eq!(http("GET ledger.stock /"), "502");
    assert_eq!(client.decide(socket("unix://@ratings_0"), ""), "ratings.shop:9000");
    let address = |listener: &str| client.resource("LDS", listener)["address"].clone();
    assert_eq!(address("unix:///run/shop.sock_0"), json!({"pipe": {"path": "/run/shop.sock"}}));
    assert_eq!(address("unix://@ratings_0"), json!({"pipe": {"path": "@ratings"}}));
}
