//! TLS that a Sidecar's ingress port terminates for clients outside the mesh.

use evenkeel_base::Diagnostic;
use serde_json::Value;

use crate::decisions_mesh::{built, resource};

/// The Sidecar of `web`, with this TLS on the port 8080, and a PeerAuthentication of this mode for the port.
fn objects(protocol: &str, tls: &str, mode: &str) -> String {
    format!(
        "---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: web, namespace: shop}}
spec:
  workloadSelector: {{labels: {{app: web}}}}
  ingress:
  - port: {{number: 8080, protocol: {protocol}, name: in}}
    defaultEndpoint: 127.0.0.1:9080
    tls: {{{tls}}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: web, namespace: shop}}
spec: {{selector: {{matchLabels: {{app: web}}}}, mtls: {{mode: STRICT}}, portLevelMtls: {{8080: {{mode: {mode}}}}}}}
"
    )
}

const SIMPLE: &str = "mode: SIMPLE, serverCertificate: /certs/tls.crt, privateKey: /certs/tls.key";
const MUTUAL: &str =
    "mode: MUTUAL, serverCertificate: /certs/tls.crt, privateKey: /certs/tls.key, caCertificates: /certs/ca.crt";

/// The chains for the port 8080: `TRANSPORT FILTER`, the certificate, and whether clients must have one.
fn chains(objects: &str) -> Vec<String> {
    let listener = resource("", objects, "sidecar web-0.shop", "LDS", "virtualInbound");
    let all = listener["filter_chains"].as_array().expect("chains");
    let of_port = all.iter().filter(|chain| chain["filter_chain_match"]["destination_port"] == 8080);
    let shown = |chain: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let tls = &chain["transport_socket"]["typed_config"];
        let certificate = &tls["common_tls_context"]["tls_certificates"][0]["certificate_chain"]["filename"];
        let filters = chain["filters"].as_array().expect("filters");
        let last = text(&filters[filters.len() - 1]["name"]).replace("envoy.filters.network.", "");
        let required = tls["require_client_certificate"].as_bool().unwrap_or(false);
        format!("{} {last} {} {required}", text(&chain["filter_chain_match"]["transport_protocol"]), text(certificate))
    };
    of_port.map(shown).collect()
}

#[test]
fn it_applies_where_mutual_tls_is_off() {
    let check = |protocol: &str, tls: &str, mode: &str, expected: &[&str]| {
        assert_eq!(chains(&objects(protocol, tls, mode)), expected, "{protocol} {mode} {tls}");
    };
    check("HTTPS", SIMPLE, "DISABLE", &["tls http_connection_manager /certs/tls.crt false"]);
    check("TLS", SIMPLE, "DISABLE", &["tls tcp_proxy /certs/tls.crt false"]);
    check("HTTPS", MUTUAL, "DISABLE", &["tls http_connection_manager /certs/tls.crt true"]);
    let optional = MUTUAL.replace("MUTUAL", "OPTIONAL_MUTUAL");
    check("HTTPS", &optional, "DISABLE", &["tls http_connection_manager /certs/tls.crt false"]);
    // Mutual TLS of the mesh takes precedence.
    check("HTTPS", SIMPLE, "STRICT", &["tls http_connection_manager - true"]);
    let cluster = resource("", &objects("HTTPS", SIMPLE, "DISABLE"), "sidecar web-0.shop", "CDS", "inbound|8080||");
    assert!(cluster.to_string().contains("9080"), "{cluster}");
}

#[test]
fn what_has_no_effect_or_is_wrong_is_named() {
    let check = |protocol: &str, tls: &str, mode: &str, code: &str, part: &str| {
        let (_, found) = built("", &objects(protocol, tls, mode));
        let is_it = |f: &&Diagnostic| f.code == code && f.message.contains(part) && f.span.line > 0;
        assert!(found.iter().any(|f| is_it(&f)), "{protocol} {tls} {mode}: {found}");
    };
    check("HTTPS", SIMPLE, "STRICT", "no-effect", "must set its mode to DISABLE");
    check("HTTPS", SIMPLE, "PERMISSIVE", "no-effect", "must set its mode to DISABLE");
    check("HTTP", SIMPLE, "DISABLE", "conflict", "does not use TLS");
    check("HTTPS", "mode: PASSTHROUGH", "DISABLE", "bad-value", "only terminate TLS");
    check("HTTPS", "mode: ISTIO_MUTUAL", "DISABLE", "bad-value", "only terminate TLS");
    check("HTTPS", "mode: SIMPLE, credentialName: web", "DISABLE", "conflict", "to gateways only");
    check("HTTPS", "mode: SIMPLE", "DISABLE", "missing-field", "");
    let (_, found) = built("", &objects("HTTPS", SIMPLE, "DISABLE"));
    assert!(found.iter().all(|finding| finding.code != "no-effect"), "{found}");
}
