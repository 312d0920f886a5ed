//! `spec.tls` of a Gateway: how its clients are verified, and which certificate it shows to backends.

use evenkeel_testkit::{TestCa, objects};
use evenkeel_translate::ClientKind;
use serde_json::Value;

use crate::calls::{Mesh, Proxy, object_of};

/// The API version of the Gateway API's kinds.
const API: &str = "gateway.networking.k8s.io/v1";

/// A Gateway with TLS on two ports, its proxy, the Secret with its certificate, and roots in two namespaces.
fn mesh(tls: &str, more: &str) -> Mesh {
    let authority = TestCa::new();
    let server = authority.for_dns(&["a.test"]);
    let pair = [("tls.crt", server.cert_pem.as_str()), ("tls.key", server.key_pem.as_str())];
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: gate-0, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: gate}}\n\
               spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.1.1, conditions: [{type: Ready, status: \"True\"}]}\n---\n";
    let map = |name: &str, namespace: &str, pem: &str| {
        let lines: String = pem.lines().map(|line| format!("    {line}\n")).collect();
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata:\n  ca.crt: |\n{lines}---\n"
        )
    };
    let listener = |port: u16| {
        format!("{{name: https-{port}, port: {port}, protocol: HTTPS, tls: {{certificateRefs: [{{name: cert}}]}}}}")
    };
    let spec = format!(
        "gatewayClassName: istio\nlisteners: [{{name: http, port: 80, protocol: HTTP}}, {}, {}]\ntls: {{{tls}}}",
        listener(443),
        listener(8443)
    );
    let parts = [
        pod.to_owned(),
        objects::secret("shop", "cert", &pair) + "---\n",
        map("ca", "shop", &authority.root_pem()),
        map("bad", "shop", "none"),
        map("far", "stock", &authority.root_pem()),
        object_of(API, "Gateway", "gate", "shop", &spec),
        more.to_owned(),
    ];
    Mesh::new(&parts.concat())
}

/// The Gateway's proxy, an Envoy.
fn gateway(mesh: &Mesh) -> Proxy {
    mesh.proxy("router gate-0.shop")
}

/// How clients of a port are verified.
fn clients(proxy: &Proxy, port: u16) -> &'static str {
    let name = format!("0.0.0.0_{port}");
    if !proxy.names("LDS").contains(&name.as_str()) {
        return "not served";
    }
    let context = &proxy.resource("LDS", &name)["filter_chains"][0]["transport_socket"]["typed_config"];
    let validation = &context["common_tls_context"]["validation_context"];
    let has_roots = validation.pointer("/trusted_ca/inline_bytes").is_some();
    let verification = validation["trust_chain_verification"].as_str().unwrap_or("VERIFY_TRUST_CHAIN");
    match (has_roots, context["require_client_certificate"] == Value::Bool(true), verification) {
        (true, true, "VERIFY_TRUST_CHAIN") => "verified",
        (true, false, "VERIFY_TRUST_CHAIN") => "verified if there",
        (true, false, "ACCEPT_UNTRUSTED") => "identified if verified",
        (false, false, "VERIFY_TRUST_CHAIN") => "anybody",
        _ => "nobody",
    }
}

const OF_MAP: &str = "validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}";

#[test]
fn clients_of_a_port() {
    let check_with = |tls: &str, more: &str, expected: [&str; 2], codes: &[&str]| {
        let mesh = mesh(tls, more);
        let proxy = gateway(&mesh);
        assert_eq!([443, 8443].map(|port| clients(&proxy, port)), expected, "{tls}");
        assert_eq!(mesh.codes, codes, "{tls}");
    };
    let check = |tls: &str, expected: [&str; 2], codes: &[&str]| check_with(tls, "", expected, codes);
    let default = |validation: &str| format!("frontend: {{default: {{{validation}}}}}");
    let of = |reference: &str| default(&format!("validation: {{caCertificateRefs: [{reference}]}}"));
    check("frontend: {default: {}}", ["anybody", "anybody"], &[]);
    check(&default(OF_MAP), ["verified", "verified"], &[]);
    check(&default(&OF_MAP.replace("]}", "], mode: AllowValidOnly}")), ["verified", "verified"], &[]);
    // A port with settings of its own has none of the others.
    check(
        &format!("frontend: {{default: {{}}, perPort: [{{port: 8443, tls: {{{OF_MAP}}}}}]}}"),
        ["anybody", "verified"],
        &[],
    );
    check(
        &format!("frontend: {{default: {{{OF_MAP}}}, perPort: [{{port: 443, tls: {{}}}}]}}"),
        ["anybody", "verified"],
        &[],
    );
    // Without roots nobody is let in.
    let closed = ["not served", "not served"];
    check(&of("{group: '', kind: ConfigMap, name: none}"), closed, &["missing-config-map"]);
    check(&of("{group: '', kind: ConfigMap, name: bad}"), closed, &["bad-credential"]);
    check(&of("{group: '', kind: Secret, name: cert}"), closed, &["unsupported-value"]);
    let far = of("{group: '', kind: ConfigMap, name: far, namespace: stock}");
    check(&far, closed, &["missing-grant"]);
    let grant = object_of(
        API,
        "ReferenceGrant",
        "g",
        "stock",
        "from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}]\nto: [{group: '', kind: ConfigMap}]",
    );
    check_with(&far, &grant, ["verified", "verified"], &[]);
}

/// With `AllowInsecureFallback` our proxies ask for certificates and take an identity only from those that verify. An Envoy's
/// policies would take it from any, so that it asks for none.
#[test]
fn clients_that_are_not_refused() {
    let check = |validation: &str, client_kind: ClientKind, expected: &str, codes: &[&str]| {
        let mesh = mesh(&format!("frontend: {{default: {{}}, perPort: [{{port: 443, tls: {{{validation}}}}}]}}"), "");
        let proxy = mesh.proxy_of_kind("router gate-0.shop", client_kind);
        assert_eq!(
            [443, 8443].map(|port| clients(&proxy, port)),
            [expected, "anybody"],
            "{validation}, {client_kind:?}"
        );
        assert_eq!(mesh.codes, codes, "{validation}");
    };
    let fallback = OF_MAP.replace("]}", "], mode: AllowInsecureFallback}");
    for kind in [ClientKind::EvenkeelFull, ClientKind::EvenkeelLearned] {
        check(&fallback, kind, "identified if verified", &["unsupported-value"]);
        check(OF_MAP, kind, "verified", &[]);
    }
    check(&fallback, ClientKind::Envoy, "anybody", &["unsupported-value"]);
    check(OF_MAP, ClientKind::Envoy, "verified", &[]);
    // Without roots nobody could be identified.
    let none = fallback.replace("name: ca", "name: none");
    check(&none, ClientKind::EvenkeelFull, "not served", &["missing-config-map", "unsupported-value"]);
}

/// The certificate that the proxy shows to the Service `reviews`.
#[test]
fn certificate_for_backends() {
    let policy = object_of(
        API,
        "BackendTLSPolicy",
        "p",
        "shop",
        "targetRefs: [{group: '', kind: Service, name: reviews}]\nvalidation: {hostname: a.test, wellKnownCACertificates: System}",
    );
    let check = |certificate: &str, more: &str, expected: Option<&str>, codes: &[&str]| {
        let mesh = mesh(&format!("backend: {{clientCertificateRef: {{{certificate}}}}}"), more);
        let cluster = gateway(&mesh);
        let context = cluster
            .resource("CDS", "outbound|80||reviews.shop.svc.cluster.local")
            .pointer("/transport_socket/typed_config/common_tls_context")
            .cloned();
        let secret = context.as_ref().and_then(|of| of["tls_certificate_sds_secret_configs"][0]["name"].as_str());
        assert_eq!(secret, expected, "{certificate}");
        assert_eq!(mesh.codes, codes, "{certificate}");
        // Sidecars have nothing of it.
        let client = mesh.client();
        let context = client.resource("CDS", "outbound|80||reviews.shop.svc.cluster.local").to_string();
        assert!(!context.contains("kubernetes://"), "{context}");
    };
    check("name: cert", &policy, Some("kubernetes://cert"), &[]);
    check("name: cert", "", None, &[]);
    check("name: none", &policy, Some("kubernetes://none"), &["missing-secret"]);
    check("name: cert, namespace: stock", &policy, Some("invalid://"), &["missing-grant"]);
    check("kind: Pair, group: a.test, name: cert", &policy, Some("invalid://"), &["unsupported-value"]);
}
