//! Which clients would break without plain text.

use evenkeel_explain::mtls::Target;

use crate::mesh::world;

#[track_caller]
fn check(target: &Target, more: &str, expected: &[&str]) {
    let found = world(more).what_if_strict(target, None);
    let told: Vec<String> = found
        .breaks
        .iter()
        .map(|one| {
            let source = one.source.as_ref().map(|source| format!(" ({})", source.object)).unwrap_or_default();
            format!("{} → {}:{} {}{source}", one.client, one.server, one.port, one.reason)
        })
        .collect();
    assert_eq!(told, expected, "{}", found.to_text());
}

#[test]
fn clients_that_send_plain_text_break() {
    let no_sidecar = "it has no sidecar, so it sends plain text";
    let rule = "its DestinationRule does not use mutual TLS of the mesh (DestinationRule data/plain)";
    let of_db = |client: &str, why: &str| format!("{client} → db.data:5432 {why}");
    // The Service data/hidden leads to this port, too; sidecars call its address with mutual TLS if that is required.
    let hidden = format!("legacy.shop → db.data:80 {no_sidecar}");
    let all = [
        hidden.clone(),
        of_db("legacy.shop", no_sidecar),
        of_db("reviews-v1.shop", rule),
        of_db("reviews-v2.shop", rule),
        of_db("web.shop", rule),
    ];
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    check(&Target::Namespace("data".to_owned()), "", &all);
    check(&Target::Workload("db".to_owned(), "data".to_owned()), "", &all);
    // It is STRICT already.
    check(&Target::Namespace("shop".to_owned()), "", &[]);
    // A rule that is not there any more is no reason.
    let mutual = "\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: of-client, namespace: shop}
spec: {host: db.data.svc.cluster.local, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}
";
    check(&Target::Namespace("data".to_owned()), mutual, &[&hidden, &of_db("legacy.shop", no_sidecar)]);
    // What becomes STRICT has exceptions of its own.
    let exception = "\
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: db, namespace: data}
spec: {selector: {matchLabels: {app: db}}, portLevelMtls: {5432: {mode: PERMISSIVE}}}
";
    check(&Target::Namespace("data".to_owned()), exception, &[&hidden]);
}
