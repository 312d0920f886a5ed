//! Findings about the Secrets that Gateways name.

use evenkeel_model::{AddressBook, MeshConfig};
use evenkeel_testkit::{TestCa, objects};

pub const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: edge-0, namespace: ingress, labels: {istio: edge}}\n\
                   spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.4.1, phase: Running}\n---\n";

pub fn findings(text: &str) -> Vec<String> {
    let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.into())]);
    assert!(!found.has_errors(), "{found}\n{text}");
    let built = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default()).1;
    let about = built.iter().filter(|finding| ["missing-secret", "bad-credential"].contains(&finding.code));
    about
        .map(|finding| {
            format!(
                "{}: [{}] {} ({})",
                finding.span,
                finding.code,
                finding.message,
                finding.help.clone().unwrap_or_default()
            )
        })
        .collect()
}

#[test]
fn a_missing_or_broken_secret_is_named() {
    let ca = TestCa::new();
    let (one, two) = (ca.for_dns(&["a"]), ca.for_dns(&["b"]));
    let root = ca.root_pem();
    let check = |pods: &str, tls: &str, secrets: &[String], expected: &[&str]| {
        let gateway = format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
             spec: {{selector: {{istio: edge}}, servers: [{{port: {{number: 443, name: https, protocol: HTTPS}}, \
             hosts: ['*'], tls: {{{tls}}}}}]}}\n"
        );
        let found = findings(&format!("{pods}{gateway}{}", secrets.concat()));
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with("mesh.yaml:") && found.contains(expected), "{found}\nnot: {expected}");
            assert!(!found.contains("PRIVATE KEY") || found.contains("BEGIN PRIVATE KEY` section"), "{found}");
        }
    };
    let good = |namespace: &str, name: &str| objects::tls_secret(&ca, namespace, name, "a");
    let with = |texts: &[(&str, &str)]| objects::secret("ingress", "c", texts);
    let (simple, mutual) = ("mode: SIMPLE, credentialName: c", "mode: MUTUAL, credentialName: c");

    check(POD, simple, &[good("ingress", "c")], &[]);
    check(POD, mutual, &[good("ingress", "c")], &[]);
    check(
        POD,
        simple,
        &[],
        &["[missing-secret] there is no Secret `c` in namespace ingress, where the gateway proxies run"],
    );
    check(POD, simple, &[good("shop", "c")], &["there is one in namespace shop; copy it to ingress"]);
    check(
        POD,
        "mode: SIMPLE, credentialName: shop/c",
        &[good("shop", "c")],
        &["never sent to gateway proxies in namespace ingress"],
    );
    check(POD, "mode: SIMPLE, credentialName: ingress/c", &[good("ingress", "c")], &[]);
    // Nothing is known of the gateway proxies, as in the files of an application.
    check("", simple, &[good("shop", "c")], &[]);
    check("", simple, &[], &["there is no Secret `c`: handshakes"]);
    check(POD, "mode: SIMPLE, credentialNames: [c, d]", &[good("ingress", "c")], &["no Secret `d`"]);

    check(
        POD,
        simple,
        &[with(&[])],
        &["it has neither `tls.crt` and `tls.key` nor `cert` and `key`, but nothing at all"],
    );
    check(POD, simple, &[with(&[("token", "x"), ("tls.crt", &one.cert_pem)])], &["but `tls.crt`, `token`"]);
    check(POD, simple, &[with(&[("tls.crt", ""), ("tls.key", "")])], &["`tls.crt` or `tls.key` is empty"]);
    check(POD, simple, &[with(&[("cert", &one.cert_pem), ("key", &one.key_pem)])], &[]);
    check(
        POD,
        simple,
        &[with(&[("tls.crt", &one.cert_pem), ("tls.key", &two.key_pem)])],
        &["tls.key does not belong to the first certificate of tls.crt"],
    );
    check(
        POD,
        simple,
        &[with(&[("tls.crt", "x"), ("tls.key", &one.key_pem)])],
        &["tls.crt holds no `BEGIN CERTIFICATE` section"],
    );

    let pair = [("tls.crt", one.cert_pem.as_str()), ("tls.key", one.key_pem.as_str())];
    check(POD, mutual, &[with(&pair)], &["it has neither `ca.crt` nor `cacert`"]);
    let own_roots = objects::secret("ingress", "c-cacert", &[("cacert", &root)]);
    check(POD, mutual, &[with(&pair), own_roots], &[]);
    let bad_roots = objects::secret("ingress", "c-cacert", &[("ca.crt", "x")]);
    check(
        POD,
        mutual,
        &[good("ingress", "c"), bad_roots],
        &["[bad-credential] Secret ingress/c-cacert cannot be used: ca.crt holds no"],
    );
    let bad_list = objects::secret("ingress", "c-cacert", &[("ca.crt", &root), ("ca.crl", "x")]);
    check(POD, mutual, &[good("ingress", "c"), bad_list], &["ca.crl: "]);
    check(POD, "mode: MUTUAL, credentialName: c, caCertCredentialName: r", &[good("ingress", "c")], &["no Secret `r`"]);
}

/// Keys stay out of everything that is printed.
#[test]
fn keys_are_not_printed() {
    let text = objects::tls_secret(&TestCa::new(), "ingress", "c", "a");
    let (objects, _) = evenkeel_api::load(&[("mesh.yaml".into(), text.as_str().into())]);
    let (snapshot, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    assert!(snapshot.credentials.iter().next().is_some_and(|credential| credential.certificate.is_ok()));
    assert!(!format!("{snapshot:?}").contains("PRIVATE KEY"));
    assert!(!format!("{objects:?}").contains("PRIVATE KEY"), "{objects:?}");
}

#[test]
fn the_secrets_of_an_ingress_are_those_of_the_gateway_proxies() {
    let ca = TestCa::new();
    let pod = POD.replace("istio: edge", "istio: ingressgateway");
    let ingress = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: istio}\n\
                   spec: {controller: istio.io/ingress-controller}\n---\n\
                   apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: front, namespace: shop}\n\
                   spec: {ingressClassName: istio, tls: [{hosts: [a], secretName: c}], rules: [{host: a}]}\n";
    let check = |namespace: &str, expected: &[&str]| {
        let secret = objects::tls_secret(&ca, namespace, "c", "a");
        let found = findings(&format!("{pod}{ingress}{secret}"));
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found}\nnot: {expected}");
        }
    };
    check("ingress", &[]);
    check("shop", &["there is one in namespace shop; copy it to ingress"]);
}
