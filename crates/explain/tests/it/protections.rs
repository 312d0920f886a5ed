//! The protection of workloads.

use crate::mesh::world;

#[track_caller]
fn check(workload: &str, namespace: &str, more: &str, expected: &[&str]) {
    let world = world(more);
    let found = world.find(workload, Some(namespace)).expect("a workload");
    let text = world.protection(&found).to_text();
    let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in expected {
        let (wanted, part) = part.strip_prefix("no: ").map_or((true, *part), |part| (false, part));
        assert_eq!(squeezed.contains(part), wanted, "{part:?}\n{text}");
    }
}

const MORE: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: mesh, namespace: istio-system}
spec:
  action: DENY
  rules:
    - from: [{source: {notNamespaces: [shop], ipBlocks: [10.0.0.0/8]}}]
      when: [{key: 'request.headers[x-a]', notValues: [b]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tried, namespace: shop, annotations: {istio.io/dry-run: 'true'}}
spec: {rules: [{to: [{operation: {ports: ['9080']}}]}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: reviews, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, portLevelMtls: {9081: {mode: PERMISSIVE}}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, jwtRules: [{issuer: me, audiences: [shop], jwks: '{\"keys\": []}'}]}
";

#[test]
fn policies_are_told_in_order_with_their_places() {
    check(
        "reviews-v1",
        "shop",
        "",
        &[
            "reviews-v1.shop sidecar spiffe://cluster.local/ns/shop/sa/reviews",
            "9080 http shop/reviews:80 STRICT PeerAuthentication shop/strict, mesh.yaml:140",
            "DENY AuthorizationPolicy shop/no-admin workload 1 mesh.yaml:154 ALLOW AuthorizationPolicy shop/readers workload 2",
            "port 9080, other ports connections need a certificate of the mesh refused: any caller to paths \"/admin*\"",
            "allowed: callers with principals \"cluster.local/ns/other/sa/web\"",
            "allowed: callers with namespaces \"shop\" or \"istio-system\" to methods \"GET\" or \"HEAD\"",
            "not protected nothing that these objects could protect",
        ],
    );
    check(
        "reviews-v1",
        "shop",
        MORE,
        &[
            "9081 auto PERMISSIVE PeerAuthentication shop/reviews, more.yaml",
            "DENY AuthorizationPolicy istio-system/mesh mesh 1",
            "refused: callers with none of the namespaces \"shop\" and ipBlocks \"10.0.0.0/8\" when request.headers[x-a] is not \"b\"",
            "ALLOW (dry run) AuthorizationPolicy shop/tried namespace 1",
            "no: allowed: any caller to ports",
            "✗ port 9081 accepts plain text (PERMISSIVE)",
            "✗ AuthorizationPolicy shop/tried is not enforced",
            "(tokens) RequestAuthentication shop/tokens",
            "✗ a request without a token passes",
        ],
    );
}

#[test]
fn what_is_not_protected_is_told() {
    check(
        "legacy",
        "shop",
        "",
        &["legacy.shop no proxy", "✗ the workload has no proxy of the mesh", "no policy applies"],
    );
    check(
        "db",
        "data",
        "",
        &[
            "5432 tcp data/db:5432 PERMISSIVE (default)",
            "✗ port 5432 accepts plain text (PERMISSIVE)",
            "✗ no ALLOW policy applies",
            "allowed: everything else",
        ],
    );
    // On a port without requests a rule about requests allows nothing, and refuses more.
    check(
        "db",
        "data",
        "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: a, namespace: data}
spec: {rules: [{to: [{operation: {methods: [GET]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: d, namespace: data}
spec: {action: DENY, rules: [{from: [{source: {namespaces: [x]}}], to: [{operation: {paths: [/a]}}]}]}
",
        &[
            "allowed: nothing, because no ALLOW rule can match",
            "refused: callers with namespaces \"x\" to paths \"/a\" (without what needs HTTP: more is refused)",
            "✗ rule 0 of AuthorizationPolicy data/a allows any caller",
        ],
    );
    // A refused policy is told as what stands in for it.
    let refused = "\
apiVersion: v1
kind: Pod
metadata: {name: open-0, namespace: shop, labels: {app: open}, annotations: {traffic.sidecar.istio.io/excludeInboundPorts: '7'}}
spec: {containers: [{name: open, ports: [{containerPort: 7}]}]}
status: {phase: Running, podIP: 10.0.9.9, podIPs: [{ip: 10.0.9.9}]}
";
    check(
        "open-0",
        "shop",
        refused,
        &[
            "7 auto STRICT (not captured)",
            "anyone: connections do not pass the proxy",
            "✗ port 7 does not pass the proxy",
        ],
    );
}

#[test]
fn what_is_for_a_gateway_is_told_of_its_pods_alone() {
    let policies = "\
apiVersion: v1
kind: Pod
metadata: {name: edge-0, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: edge}}
spec: {containers: [{name: proxy, ports: [{containerPort: 7}]}]}
status: {phase: Running, podIP: 10.0.9.9, podIPs: [{ip: 10.0.9.9}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: at-edge, namespace: shop}
spec: {action: DENY, rules: [{}], targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: edge-tokens, namespace: shop}
spec: {jwtRules: [{issuer: me, jwks: '{\"keys\": []}'}], targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]}
";
    check(
        "edge-0",
        "shop",
        policies,
        &["DENY AuthorizationPolicy shop/at-edge workload", "RequestAuthentication shop/edge-tokens workload"],
    );
    check("reviews-v1", "shop", policies, &["no: shop/at-edge", "no: shop/edge-tokens"]);
}

#[test]
fn closed_services_are_listed_with_their_policies() {
    let closed = "\
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec: {clusterIP: 10.96.7.7, ports: [{name: http, port: 80}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: at-waypoint, namespace: shop}
spec: {targetRefs: [{kind: Service, group: '', name: far}], rules: [{}]}
";
    let row = "closed to its calls, because there are no waypoints ✗ Service shop/far, more.yaml:3 AuthorizationPolicy \
               shop/at-waypoint, more.yaml:8";
    check("reviews-v1", "shop", closed, &[row]);
    check("reviews-v1", "shop", "", &["no: closed to its calls"]);
}

#[test]
fn the_keys_of_the_answer_are_stable() {
    let world = world(MORE);
    let found = world.find("reviews-v1", Some("shop")).expect("a workload");
    let json = serde_json::to_value(world.protection(&found)).expect("JSON");
    let keys =
        |json: &serde_json::Value| -> Vec<String> { json.as_object().expect("an object").keys().cloned().collect() };
    assert_eq!(
        keys(&json),
        [
            "workload",
            "namespace",
            "pods",
            "identity",
            "proxy",
            "ports",
            "requestAuthentications",
            "policies",
            "closedServices",
            "notProtected",
            "running"
        ]
    );
    assert_eq!(
        keys(&json["ports"][0]),
        ["port", "protocol", "service", "captured", "mutualTls", "source", "whoMayCall"]
    );
    assert_eq!(
        keys(&json["policies"][0]),
        ["order", "action", "source", "scope", "dryRun", "refused", "provider", "rules", "notes"]
    );
    assert_eq!(keys(&json["policies"][0]["rules"][0]), ["source", "text", "callers", "needsHttp", "ports"]);
    assert_eq!(keys(&json["requestAuthentications"][0]), ["source", "scope", "issuers", "notes"]);
    let names = world.rule_names(&found);
    assert!(names.contains("ns[shop]-policy[no-admin]-rule[0]"), "{names:?}");
}
