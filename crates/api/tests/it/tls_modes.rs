//! Fields of TLS settings that a mode does not use: each has a finding, so that nothing that looks like a check is passed
//! over in silence.

use evenkeel_base::Severity;

/// The fields besides `mode` that have a finding, for settings in which all of these are given.
fn noted(kind: &str, before: &str, mode: &str, fields: &[(&str, &str)]) -> Vec<String> {
    let settings = |(name, value): &(&str, &str)| format!("{name}: {value}");
    let all = fields.iter().map(settings).collect::<Vec<_>>().join(", ");
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {before} {{mode: {mode}, {all}}}{}\n",
        match kind {
            "Gateway" => "}]}",
            _ => "}}",
        }
    );
    let (_, found) = evenkeel_api::load(&[("a.yaml".into(), text.as_str().into())]);
    let mut names: Vec<String> = Vec::new();
    for finding in found.iter().filter(|finding| finding.severity != Severity::Info) {
        let name = finding.message.rsplit('`').nth(1).unwrap_or_default();
        let severity = if finding.severity == Severity::Error { "!" } else { "" };
        names.push(format!("{severity}{name}"));
    }
    names.sort();
    names
}

const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const KEY: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

#[test]
fn a_servers_mode_uses_a_field_or_a_finding_names_it() {
    let hash = format!("['{HASH}']");
    let key = format!("['{KEY}']");
    let clients = [
        ("subjectAltNames", "['spiffe://cluster.local/ns/a/sa/b']"),
        ("verifyCertificateSpki", key.as_str()),
        ("verifyCertificateHash", hash.as_str()),
        ("caCrl", "/ca.crl"),
    ];
    let handshake = [
        ("minProtocolVersion", "TLSV1_3"),
        ("maxProtocolVersion", "TLSV1_3"),
        ("cipherSuites", "[ECDHE-RSA-AES128-GCM-SHA256]"),
        ("ecdhCurves", "[P-256]"),
    ];
    let before = "{selector: {a: b}, servers: [{hosts: ['*'], port: {number: 443, name: x, protocol: TLS}, tls:";
    let check = |mode: &str, more: &[(&str, &str)], expected: &[&str]| {
        let fields = [&clients[..], &handshake[..], more].concat();
        assert_eq!(noted("Gateway", before, mode, &fields), expected, "{mode}");
    };
    let every = [
        "caCrl",
        "cipherSuites",
        "credentialName",
        "ecdhCurves",
        "maxProtocolVersion",
        "minProtocolVersion",
        "subjectAltNames",
        "verifyCertificateHash",
        "verifyCertificateSpki",
    ];
    let secret = [("credentialName", "c")];
    check("PASSTHROUGH", &secret, &every);
    check("AUTO_PASSTHROUGH", &secret, &every);
    check("SIMPLE", &secret, &["caCrl", "subjectAltNames", "verifyCertificateHash", "verifyCertificateSpki"]);
    check("MUTUAL", &secret, &[]);
    check("OPTIONAL_MUTUAL", &secret, &[]);
    check("ISTIO_MUTUAL", &[], &[]);
    check("ISTIO_MUTUAL", &secret, &["!credentialName"]);
}

#[test]
fn a_clients_mode_uses_a_field_or_a_finding_names_it() {
    let fields = [
        ("clientCertificate", "/c.crt"),
        ("privateKey", "/c.key"),
        ("caCertificates", "/ca.crt"),
        ("subjectAltNames", "[a.test]"),
        ("sni", "a.test"),
        ("insecureSkipVerify", "true"),
        ("caCrl", "/ca.crl"),
    ];
    let before = "{host: a.test, trafficPolicy: {tls:";
    let check = |mode: &str, fields: &[(&str, &str)], expected: &[&str]| {
        assert_eq!(noted("DestinationRule", before, mode, fields), expected, "{mode}");
    };
    let every =
        ["caCertificates", "caCrl", "clientCertificate", "insecureSkipVerify", "privateKey", "sni", "subjectAltNames"];
    check("DISABLE", &fields, &every);
    check("DISABLE", &[("credentialName", "c")], &["credentialName"]);
    check("SIMPLE", &fields, &["caCertificates", "caCrl", "clientCertificate", "privateKey", "subjectAltNames"]);
    check("MUTUAL", &fields, &["caCertificates", "caCrl", "subjectAltNames"]);
    check("ISTIO_MUTUAL", &fields[3..], &["insecureSkipVerify"]);
    check("ISTIO_MUTUAL", &fields[..1], &["!clientCertificate"]);
}
