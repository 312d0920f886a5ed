//! The effective settings of a host.

use crate::mesh::world;

fn text(host: &str, workload: Option<(&str, &str)>, more: &str) -> String {
    let world = world(more);
    let workload = workload.map(|(name, namespace)| world.find(name, Some(namespace)).expect("a workload"));
    match world.effective(host, workload.as_deref()) {
        Ok(effective) => effective.to_text(),
        Err(error) => error,
    }
}

#[track_caller]
fn check(host: &str, workload: Option<(&str, &str)>, more: &str, expected: &[&str]) {
    let text = text(host, workload, more);
    let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in expected {
        assert!(squeezed.contains(part), "{part:?} is not in\n{text}");
    }
}

/// A DestinationRule of the client's namespace, and one of the host's.
const RULES: &str = "\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: of-client, namespace: shop}
spec: {host: db.data.svc.cluster.local, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}, connectionPool: {tcp: {maxConnections: 7}}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: wide, namespace: shop}
spec: {hosts: ['*.svc.cluster.local'], http: [{route: [{destination: {host: web}}]}]}
";

#[test]
fn rules_are_listed_with_their_lines() {
    check(
        "reviews",
        Some(("web", "shop")),
        "",
        &[
            "reviews.shop.svc.cluster.local for web.shop",
            "address 10.96.1.2",
            "port 80 http, 3 endpoints",
            "http[1] (jason) reviews.shop.svc.cluster.local subset v2, if it matches (VirtualService shop/reviews, mesh.yaml:97)",
            "http[2] (old) redirect 308, if it matches",
            "75 % reviews.shop.svc.cluster.local subset v1, 25 % reviews.shop.svc.cluster.local subset v2",
            "subset v1 labels.version v1 (DestinationRule shop/reviews, mesh.yaml:127)",
            "mutual TLS on port 9080 STRICT (PeerAuthentication shop/strict, mesh.yaml:140)",
            "DENY 1 rules (AuthorizationPolicy shop/no-admin",
        ],
    );
}

#[test]
fn what_lost_is_listed_too() {
    // The client's own namespace comes first; for others the service's.
    check(
        "db.data",
        Some(("web", "shop")),
        RULES,
        &[
            "tls.mode ISTIO_MUTUAL (DestinationRule shop/of-client, more.yaml:4)",
            "lost: DISABLE (DestinationRule data/plain, mesh.yaml:135): shop/of-client applies",
            "connectionPool.tcp.maxConnections 7",
        ],
    );
    check(
        "db.data",
        Some(("db", "data")),
        RULES,
        &[
            "tls.mode DISABLE (DestinationRule data/plain, mesh.yaml:135)",
            "lost: ISTIO_MUTUAL (DestinationRule shop/of-client, more.yaml:4): data/plain applies",
        ],
    );
    check(
        "reviews.shop",
        None,
        RULES,
        &["lost: VirtualService shop/wide (VirtualService shop/wide, more.yaml:8): shop/reviews serves the host first"],
    );
    // Routes for every host are about no host in particular.
    let every = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: all, namespace: shop}\n\
                 spec: {hosts: ['*'], gateways: [edge], http: [{route: [{destination: {host: reviews}}]}]}\n";
    check("nosuch", None, every, &["nothing in these files is about the host `nosuch`"]);
    check("nowhere.example.com", None, "", &["nothing in these files is about the host `nowhere.example.com`"]);
}
