//! Why a proxy does not get a secret that it requests, as in the control plane's log.

use evenkeel_model::{AddressBook, MeshConfig};
use evenkeel_testkit::{TestCa, objects};
use evenkeel_translate::{ProxyView, secrets};

use crate::scenario::view_of;

#[test]
fn each_reason_is_named() {
    let ca = TestCa::new();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: edge-0, namespace: ingress, labels: {istio: edge}}\n\
               spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.4.1, phase: Running}\n---\n";
    let text = pod.to_owned()
        + &objects::tls_secret(&ca, "ingress", "good", "a")
        + &objects::secret("ingress", "empty", &[("x", "y")])
        + &objects::tls_secret(&ca, "shop", "theirs", "a");
    let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.as_str().into())]);
    assert!(!found.has_errors(), "{found}");
    let snapshot = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default()).0;
    let check = |authenticated: bool, secret: &str, expected: &str| {
        let view = ProxyView { authenticated, ..view_of("router edge-0.ingress", &snapshot) };
        let reason = secrets::refusal(&view, &snapshot, secret).to_string();
        assert!(reason.contains(expected) && !reason.contains("PRIVATE"), "{secret}: {reason}");
    };
    check(true, "default", "names `kubernetes://NAME` only");
    check(false, "kubernetes://good", "proved its namespace");
    check(true, "kubernetes://shop/theirs", "in the namespace `shop`");
    check(true, "kubernetes://theirs", "there is no Secret `ingress/theirs`");
    check(true, "kubernetes://none-cacert", "there is no Secret `ingress/none`");
    check(true, "kubernetes://empty", "it has neither `tls.crt` and `tls.key`");
    check(true, "kubernetes://empty-cacert", "it has neither `ca.crt` nor `cacert`");
    check(true, "kubernetes://ingress/good", "no Gateway or DestinationRule");
    check(true, "kubernetes://", "there is no Secret `ingress/`");
}
