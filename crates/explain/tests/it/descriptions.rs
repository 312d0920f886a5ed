//! Services and Pods, described.

use evenkeel_explain::Description;

use crate::mesh::world;

const GATEWAY: &str = "\
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: shop}
spec: {selector: {istio: ingress}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: [shop.test]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: outer, namespace: shop}
spec:
  hosts: [shop.test]
  gateways: [front]
  http:
    - match: [{uri: {prefix: /web}}]
      route: [{destination: {host: web}}]
    - route: [{destination: {host: reviews}}]
";

fn described(kind: &str, name: &str) -> Result<Description, String> {
    let world = world(GATEWAY);
    match kind {
        "service" => world.describe_service(name),
        _ => {
            let workload = world.find(name, None).map_err(|error| error.to_string())?;
            Ok(world.describe_workload(&workload))
        }
    }
}

#[track_caller]
fn check(kind: &str, name: &str, expected: &[&str], absent: &[&str]) {
    let text = described(kind, name).map_or_else(|error| error, |described| described.to_text_within(usize::MAX));
    let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in expected {
        assert!(squeezed.contains(part), "{part:?} is not in\n{text}");
    }
    for part in absent {
        assert!(!squeezed.contains(part), "{part:?} is in\n{text}");
    }
}

#[test]
fn a_service_is_described_with_its_routes_its_gateways_and_its_workloads() {
    check(
        "service",
        "reviews.shop",
        &[
            "Service shop/reviews (mesh.yaml:56) addresses: 10.96.1.2",
            "== how clients reach reviews.shop.svc.cluster.local",
            "http[1] (jason) reviews.shop.svc.cluster.local subset v2, if it matches (VirtualService shop/reviews, mesh.yaml:97)",
            "Gateway shop/front, port 8080, shop.test: http[1] (VirtualService shop/outer, more.yaml:15)",
            "== what protects reviews-v1.shop",
            "== what protects reviews-v2.shop: the same as reviews-v1.shop",
        ],
        &["http[0] (VirtualService shop/outer", "subsets of this Pod"],
    );
    check("service", "empty.shop", &["from outside no rule of a gateway leads to it"], &["== what protects"]);
}

#[test]
fn a_pod_is_described_with_its_services_and_subsets() {
    check(
        "pod",
        "reviews-v2",
        &[
            "Pod shop/reviews-v2-0 does not run; described by its workload's template",
            "== how clients reach reviews.shop.svc.cluster.local",
            "subsets of this Pod v2 (DestinationRule shop/reviews, mesh.yaml:",
            "== what protects reviews-v2.shop",
        ],
        &["Pod v1 (DestinationRule"],
    );
    check("pod", "legacy", &["Service shop/legacy", "no proxy"], &[]);
}

#[test]
fn what_is_unknown_is_said() {
    check("service", "reviws.shop", &["is about the host `reviws.shop`"], &[]);
    check("pod", "reviews-v3.shop", &["there is no workload"], &[]);
}

#[test]
fn findings_about_parts_of_it_touch_it() {
    let described = described("service", "reviews.shop").expect("a service");
    let check = |kind: &'static str, namespace: &str, name: &str, expected: bool| {
        let object = evenkeel_base::ObjectRef {
            group: "",
            kind,
            namespace: namespace.into(),
            name: name.into(),
            source: evenkeel_base::SourceId::files(),
        };
        assert_eq!(described.is_touched_by(&object), expected, "{kind} {namespace}/{name}");
    };
    check("Service", "shop", "reviews", true);
    check("VirtualService", "shop", "outer", true);
    check("DestinationRule", "shop", "reviews", true);
    check("PeerAuthentication", "shop", "strict", true);
    check("Service", "shop", "web", false);
    check("DestinationRule", "data", "reviews", false);
}
