//! Hosts that are resolved when they are called: ServiceEntries of `DYNAMIC_DNS`, and unknown hosts where the mesh says so.

use evenkeel_testkit::envoy_validate;
use serde_json::Value;

use crate::bootstrap;
use crate::calls::{Arrival, HTTP, Mesh};
use crate::decisions_mesh::resource;
use crate::scenario::as_json;

/// A ServiceEntry for `*.example.com`, and whatever else.
fn entry(more: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: example, namespace: shop}}
spec:
  hosts: ['*.example.com']
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{{number: 80, name: http, protocol: HTTP}}, {{number: 443, name: tls, protocol: TLS}}]
---
{more}"
    )
}

const ANYWHERE: Arrival = Arrival { to: "192.0.2.7:80", ..HTTP };
const TLS: Arrival = Arrival { listener: "0.0.0.0_443", to: "192.0.2.7:443", sni: Some("a.example.com"), ..HTTP };

#[test]
fn wildcards_are_looked_up() {
    let mesh = Mesh::new(&entry(""));
    let client = mesh.client();
    let looked_up = "waits 6s, a.example.com/ to *.example.com:80";
    assert_eq!(client.decide(ANYWHERE, "GET a.example.com /"), looked_up);
    // The domain itself is not under the wildcard.
    assert_eq!(client.decide(ANYWHERE, "GET example.com /"), "example.com/ to PassthroughCluster");
    // An address needs no look-up, and other services none either.
    assert_eq!(client.decide(HTTP, "GET reviews /"), "reviews/ to reviews.shop:80");
    let looked_up = "resolves a.example.com when the connection comes, for port 443, *.example.com:443";
    assert_eq!(client.decide(TLS, ""), looked_up);
    assert_eq!(client.decide(Arrival { sni: Some("example.com"), ..TLS }, ""), "PassthroughCluster");
}

#[test]
fn only_listeners_that_need_it_have_the_filter() {
    let names = |mesh: &Mesh, listener: &str| {
        let client = mesh.client();
        let found = client.resource("LDS", listener).to_string();
        (found.contains("http.dynamic_forward_proxy"), found.contains("sni_dynamic_forward_proxy"))
    };
    assert_eq!(names(&Mesh::new(""), "0.0.0.0_80"), (false, false));
    assert_eq!(names(&Mesh::new(&entry("")), "0.0.0.0_80"), (true, false));
    assert_eq!(names(&Mesh::new(&entry("")), "0.0.0.0_443"), (false, true));
}

/// What chooses among hosts has none to choose from, and proxies refuse its settings beside the cluster's own policy.
#[test]
fn balancers_of_rules_are_left_out() {
    for balancer in [
        "{consistentHash: {httpHeaderName: x-user, ringHash: {minimumRingSize: 7}}}",
        "{consistentHash: {httpHeaderName: x-user, maglev: {tableSize: 11}}}",
        "{simple: ROUND_ROBIN, warmup: {duration: 5s}}",
    ] {
        let rule =
            crate::calls::destination_rule("'*.example.com'", &format!("trafficPolicy: {{loadBalancer: {balancer}}}"));
        let rule = rule.replace("name: '*.example.com'", "name: example");
        let mesh = Mesh::new(&entry(&rule));
        let cluster = mesh.client().resource("CDS", "outbound|80||*.example.com").to_string();
        assert!(cluster.contains("CLUSTER_PROVIDED") && !cluster.contains("_lb_config"), "{balancer}: {cluster}");
    }
}

#[test]
fn rules_say_who_answers() {
    let check = |tls: &str, insecure: Option<bool>, naming: &str| {
        let rule = crate::calls::destination_rule("'*.example.com'", &format!("trafficPolicy: {{tls: {tls}}}"));
        let rule = rule.replace("name: '*.example.com'", "name: example");
        let mesh = Mesh::new(&entry(&rule));
        let client = mesh.client();
        let cluster = client.resource("CDS", "outbound|80||*.example.com");
        let config = &cluster["cluster_type"]["typed_config"];
        assert_eq!(config["allow_insecure_cluster_options"].as_bool(), insecure, "{tls}");
        let options = &cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
            ["upstream_http_protocol_options"];
        assert_eq!(options.to_string(), naming, "{tls}");
    };
    let both = r#"{"auto_sni":true,"auto_san_validation":true}"#;
    check("{mode: DISABLE}", None, both);
    check("{mode: SIMPLE}", None, both);
    check("{mode: SIMPLE, subjectAltNames: [example.com]}", Some(true), r#"{"auto_sni":true}"#);
    check("{mode: SIMPLE, sni: front.example.com}", Some(true), "null");
    check("{mode: ISTIO_MUTUAL}", Some(true), "null");
}

#[test]
fn unknown_hosts_are_looked_up_if_the_mesh_says_so() {
    let settings = "outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS}";
    let sidecar = "sidecar web-0.shop";
    let unknown = |settings: &str| -> Value {
        let table = resource(settings, "", sidecar, "RDS", "80");
        let hosts = table["virtual_hosts"].as_array().expect("virtual hosts");
        let host = hosts.iter().find(|host| host["name"] == "allow_any").expect("the host of all others");
        host["routes"][0]["route"]["cluster"].clone()
    };
    assert_eq!(unknown(settings), "AllowAnyDynamicDNSCluster");
    assert_eq!(unknown(""), "PassthroughCluster");
    let cluster = resource(settings, "", sidecar, "CDS", "AllowAnyDynamicDNSCluster");
    assert_eq!(cluster["lb_policy"], "CLUSTER_PROVIDED");
    // Everything but HTTP goes where it was going, on ports without a service, too.
    let listener = resource(settings, "", sidecar, "LDS", "virtualOutbound").to_string();
    assert!(listener.contains("PassthroughCluster") && listener.contains("AllowAnyDynamicDNSCluster"));
    let listener = resource("", "", sidecar, "LDS", "virtualOutbound").to_string();
    assert!(!listener.contains("AllowAnyDynamicDNSCluster") && !listener.contains("inspector"));
    let listener = resource(settings, "", sidecar, "LDS", "0.0.0.0_80").to_string();
    assert!(listener.contains("dynamic_forward_proxy") && listener.contains("PassthroughCluster"));
    // A Sidecar's own policy takes precedence.
    let own = "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: shop}\nspec: {outboundTrafficPolicy: {mode: ALLOW_ANY}, egress: [{hosts: ['*/*']}]}\n";
    let table = resource(settings, own, sidecar, "RDS", "80").to_string();
    assert!(!table.contains("AllowAnyDynamicDNSCluster"), "{table}");
}

#[test]
fn unknown_hosts_are_called_with_the_tls_of_the_mesh() {
    let check = |tls: &str, insecure: Option<bool>, naming: &str, expected: &[&str]| {
        let settings = format!("outboundTrafficPolicy: {{mode: ALLOW_ANY_DYNAMIC_DNS, tls: {tls}}}");
        let cluster = resource(&settings, "", "sidecar web-0.shop", "CDS", "AllowAnyDynamicDNSCluster");
        let config = &cluster["cluster_type"]["typed_config"];
        assert_eq!(config["allow_insecure_cluster_options"].as_bool(), insecure, "{tls}");
        let options = &cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
            ["upstream_http_protocol_options"];
        assert_eq!(options.to_string(), naming, "{tls}");
        let socket = cluster["transport_socket"].to_string();
        for part in expected {
            assert!(socket.contains(part), "{tls}: {part} not in {socket}");
        }
        assert_eq!(socket == "null", expected.is_empty(), "{tls}: {socket}");
    };
    let both = r#"{"auto_sni":true,"auto_san_validation":true}"#;
    check("{mode: DISABLE}", None, both, &[]);
    check("{mode: SIMPLE}", None, both, &["/etc/ssl/certs/ca-certificates.crt"]);
    check("{mode: SIMPLE, caCertificates: /r.pem}", None, both, &["/r.pem"]);
    check("{mode: SIMPLE, subjectAltNames: [a.test]}", Some(true), r#"{"auto_sni":true}"#, &["a.test"]);
    check("{mode: SIMPLE, sni: front.test}", Some(true), "null", &[r#""sni":"front.test""#]);
    check("{mode: SIMPLE, insecureSkipVerify: true}", Some(true), r#"{"auto_sni":true}"#, &["UpstreamTlsContext"]);
    check("{mode: ISTIO_MUTUAL, subjectAltNames: ['spiffe://x/y']}", Some(true), "null", &["ROOTCA", "spiffe://x/y"]);
}

#[test]
fn what_cannot_be_looked_up_is_named() {
    let check = |spec: &str, code: &str, part: &str| {
        let text = format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: e, namespace: shop}}\nspec: {{resolution: DYNAMIC_DNS, {spec}}}\n"
        );
        let (_, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.as_str().into())]);
        let is_it = |finding: &&evenkeel_base::Diagnostic| {
            finding.code == code && finding.message.contains(part) && finding.span.line == 4
        };
        assert!(found.iter().any(|finding| is_it(&finding)), "{spec}: {found}");
    };
    let ports = "ports: [{number: 80, name: http, protocol: HTTP}]";
    check(&format!("hosts: [a.example.com], {ports}"), "bad-host", "is for wildcards");
    check(&format!("hosts: ['*.example.com'], {ports}, endpoints: [{{address: 10.0.0.1}}]"), "conflict", "not used");
    check("hosts: ['*.example.com'], ports: [{number: 1, name: raw, protocol: TCP}]", "bad-value", "name no host");
}

#[test]
fn envoy_accepts_it() {
    let rule =
        crate::calls::destination_rule("'*.example.com'", "trafficPolicy: {tls: {mode: SIMPLE, sni: a.example.com}}");
    for more in ["", &rule.replace("name: '*.example.com'", "name: example")] {
        let mesh = Mesh::new(&entry(more));
        let resources = as_json(&mesh.resources("sidecar client-0.shop"));
        let text = bootstrap::bootstrap(&resources, false).to_string();
        if let Err(said) = envoy_validate(&text) {
            panic!("{said}");
        }
    }
}
