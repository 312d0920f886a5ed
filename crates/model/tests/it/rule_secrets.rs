//! Findings about the Secrets that DestinationRules name.

use evenkeel_testkit::{TestCa, objects};

use crate::gateway_secrets::{POD, findings};

const GATEWAY: &str = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: shop}\n\
                       spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n---\n";

#[test]
fn a_secret_that_a_rule_cannot_use_is_named() {
    let ca = TestCa::new();
    let check = |selector: &str, tls: &str, secrets: &[String], expected: &[&str]| {
        let rule = format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: r, namespace: shop}}\n\
             spec: {{host: a.example.com, {selector}trafficPolicy: {{{tls}}}}}\n"
        );
        let found = findings(&format!("{POD}{GATEWAY}{rule}{}", secrets.concat()));
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with("mesh.yaml:") && found.contains(expected), "{found}\nnot: {expected}");
        }
    };
    let selector = "workloadSelector: {matchLabels: {app: web}}, ";
    let (simple, mutual) = ("tls: {mode: SIMPLE, credentialName: c}", "tls: {mode: MUTUAL, credentialName: c}");
    let good = |namespace: &str| objects::tls_secret(&ca, namespace, "c", "a");
    let roots = |namespace: &str| objects::secret(namespace, "c", &[("ca.crt", &ca.root_pem())]);

    check(selector, mutual, &[good("shop")], &[]);
    check(selector, simple, &[roots("shop")], &[]);
    check(selector, simple, &[], &["there is no Secret `c` in namespace shop, where the selected workloads run"]);
    check(selector, simple, &[good("ingress")], &["there is one in namespace ingress; copy it to shop"]);
    check(selector, mutual, &[roots("shop")], &["it has neither `tls.crt` and `tls.key`"]);
    check(selector, simple, &[objects::secret("shop", "c", &[("x", "y")])], &["it has neither `ca.crt` nor `cacert`"]);
    // Only gateways use it.
    check("", mutual, &[good("ingress")], &[]);
    check("", mutual, &[good("shop")], &["there is one in namespace shop; copy it to ingress"]);
    // Each place where it is written.
    check(
        selector,
        "portLevelSettings: [{port: {number: 443}, tls: {mode: SIMPLE, credentialName: d}}]",
        &[],
        &["no Secret `d`"],
    );
    check(
        selector,
        &format!("{simple}, portLevelSettings: [{{port: {{number: 443}}, {simple}}}]"),
        &[],
        &["no Secret `c`"],
    );
    check(selector, "tls: {mode: SIMPLE, credentialName: 'kubernetes://c'}", &[good("shop")], &[]);
    check(selector, "tls: {mode: ISTIO_MUTUAL}", &[], &[]);
}
