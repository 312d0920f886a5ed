//! TLS towards backends, as BackendTLSPolicies ask for it, at gateways and at sidecars.

use evenkeel_testkit::TestCa;
use serde_json::Value;

use crate::calls::{Mesh, Proxy, destination_rule, object_of};

/// The API version of the Gateway API's kinds.
const API: &str = "gateway.networking.k8s.io/v1";
/// The cluster of the Service `reviews` on port 80, and on port 9000.
const HTTP: &str = "outbound|80||reviews.shop.svc.cluster.local";
const TCP: &str = "outbound|9000||reviews.shop.svc.cluster.local";
/// A validation by the system's roots.
const SYSTEM: &str = "{hostname: a.test, wellKnownCACertificates: System}";
const OF_SERVICE: &str = "{group: '', kind: Service, name: reviews}";

fn policy(name: &str, targets: &str, validation: &str) -> String {
    object_of(API, "BackendTLSPolicy", name, "shop", &format!("targetRefs: [{targets}]\nvalidation: {validation}"))
}

fn config_map(name: &str, text: &str) -> String {
    let text: String = text.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: shop}}\ndata:\n  ca.crt: |\n{text}---\n"
    )
}

/// How a proxy calls a cluster: the server name, the names that it accepts, and where its roots come from.
fn tls(proxy: &Proxy, cluster: &str) -> String {
    let socket = &proxy.resource("CDS", cluster)["transport_socket"]["typed_config"];
    let Some(sni) = socket["sni"].as_str() else { return "no TLS".to_owned() };
    let common = &socket["common_tls_context"];
    let (plain, combined) = (&common["validation_context"], &common["combined_validation_context"]);
    let context = if plain.is_null() { &combined["default_validation_context"] } else { plain };
    let names = context["match_typed_subject_alt_names"].as_array().into_iter().flatten();
    let names = names.map(|name| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{} {}", text(&name["san_type"]), text(&name["matcher"]["exact"]))
    });
    let roots = match (&context["trusted_ca"], combined["validation_context_sds_secret_config"]["name"].as_str()) {
        (_, Some(secret)) => secret.to_owned(),
        (roots, None) if roots["inline_bytes"].is_string() => "inline".to_owned(),
        (roots, None) => roots["filename"].as_str().unwrap_or("none").to_owned(),
    };
    format!("{sni} [{}] {roots}", names.collect::<Vec<_>>().join(", "))
}

/// Both the gateway and the client of the namespace call the cluster so, and these are the findings.
#[track_caller]
fn check(objects: &str, cluster: &str, expected: &str, codes: &[&str]) {
    let mesh = Mesh::new(objects);
    for proxy in ["router edge-0.shop", "sidecar client-0.shop"] {
        assert_eq!(tls(&mesh.proxy(proxy), cluster), expected, "{proxy}: {objects}");
    }
    assert_eq!(mesh.codes, codes, "{objects}");
}

const OF_SYSTEM: &str = "a.test [DNS a.test] /etc/ssl/certs/ca-certificates.crt";

#[test]
fn names_of_the_certificate() {
    let check = |validation: &str, expected: &str| check(&policy("p", OF_SERVICE, validation), HTTP, expected, &[]);
    check(SYSTEM, OF_SYSTEM);
    // Other names replace the server name.
    check(
        "{hostname: a.test, wellKnownCACertificates: System, subjectAltNames: [{type: Hostname, hostname: '*.b.test'}, {type: URI, uri: 'urn:x:y'}, {type: URI, uri: 'spiffe://d/x'}]}",
        "a.test [DNS *.b.test, URI urn:x:y, URI spiffe://d/x] /etc/ssl/certs/ca-certificates.crt",
    );
}

#[test]
fn roots() {
    let pem = TestCa::new().root_pem();
    let of = |references: &str| {
        let maps = config_map("ca", &pem) + &config_map("bad", "no certificate");
        maps + &policy("p", OF_SERVICE, &format!("{{hostname: a.test, caCertificateRefs: [{references}]}}"))
    };
    let map = |name: &str| format!("{{group: '', kind: ConfigMap, name: {name}}}");
    check(&of(&map("ca")), HTTP, "a.test [DNS a.test] inline", &[]);
    // Roots that cannot be used close: the secret is never delivered.
    let closed = "a.test [DNS a.test] invalid://";
    check(&of(&map("none")), HTTP, closed, &["missing-config-map"]);
    check(&of(&map("bad")), HTTP, closed, &["bad-credential"]);
    check(&of("{group: '', kind: Secret, name: ca}"), HTTP, closed, &["unsupported-value"]);
    check(&of(&format!("{}, {}", map("none"), map("ca"))), HTTP, "a.test [DNS a.test] inline", &["missing-config-map"]);
    let other = "{hostname: a.test, wellKnownCACertificates: b.test/c}";
    check(&policy("p", OF_SERVICE, other), HTTP, closed, &["unsupported-value"]);
}

#[test]
fn targets() {
    let of = |target: &str| policy("p", target, SYSTEM);
    check(&of(OF_SERVICE), TCP, OF_SYSTEM, &[]);
    let http = of("{group: '', kind: Service, name: reviews, sectionName: http}");
    check(&http, HTTP, OF_SYSTEM, &[]);
    check(&http, TCP, "no TLS", &[]);
    check(&of("{group: '', kind: Service, name: none}"), HTTP, "no TLS", &["missing-service"]);
    check(&of("{group: '', kind: Service, name: reviews, sectionName: none}"), HTTP, "no TLS", &["missing-port"]);
    check(&of("{group: a.test, kind: Pool, name: reviews}"), HTTP, "no TLS", &["unsupported-value"]);
    let entry = object_of(
        "networking.istio.io/v1",
        "ServiceEntry",
        "far",
        "shop",
        "hosts: [far.test]\nports: [{number: 443, name: http, protocol: HTTP}]\nresolution: DNS\nsubjectAltNames: [other.test]",
    );
    let of_entry = of("{group: networking.istio.io, kind: ServiceEntry, name: far}");
    check(&(entry + &of_entry), "outbound|443||far.test", OF_SYSTEM, &[]);
}

/// The older policy applies, for each port by itself.
#[test]
fn conflicts() {
    let second = SYSTEM.replace("a.test", "b.test");
    let both = policy("p", OF_SERVICE, SYSTEM) + &policy("q", OF_SERVICE, &second);
    check(&both, HTTP, OF_SYSTEM, &["overridden"]);
    let of_port = OF_SERVICE.replace('}', ", sectionName: http}");
    let both = policy("p", OF_SERVICE, SYSTEM) + &policy("q", &of_port, &second);
    check(&both, HTTP, &OF_SYSTEM.replace("a.test", "b.test"), &[]);
    check(&both, TCP, OF_SYSTEM, &[]);
}

/// Of a DestinationRule everything stays but TLS.
#[test]
fn destination_rules() {
    let rule = "trafficPolicy: {tls: {mode: DISABLE}, connectionPool: {tcp: {maxConnections: 7}}}\n\
                subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {tls: {mode: DISABLE}}}]";
    for target in [OF_SERVICE.to_owned(), OF_SERVICE.replace('}', ", sectionName: http}")] {
        let objects = destination_rule("reviews", rule) + &policy("p", &target, SYSTEM);
        let mesh = Mesh::new(&objects);
        for cluster in [HTTP, "outbound|80|v1|reviews.shop.svc.cluster.local"] {
            let client = mesh.client();
            assert_eq!(tls(&client, cluster), OF_SYSTEM, "{cluster} {target}");
            let limit = &client.resource("CDS", cluster)["circuit_breakers"]["thresholds"][0]["max_connections"];
            assert_eq!(limit, 7, "{cluster} {target}");
        }
        assert_eq!(mesh.codes, ["overridden"]);
    }
    // A client that sees no rule of the namespace gets TLS, too.
    let private =
        destination_rule("reviews", "exportTo: [stock]\ntrafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}");
    check(&(private + &policy("p", OF_SERVICE, SYSTEM)), HTTP, OF_SYSTEM, &[]);
}
