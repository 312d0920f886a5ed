//! The description of policies never contradicts the decision of the proxy's filter.

use evenkeel_explain::answer::Outcome;

use crate::mesh::{ask, world};

/// Policies for `web`, with every kind of condition.
const POLICIES: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: some, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  rules:
    - from: [{source: {principals: ["cluster.local/ns/shop/sa/rev*"]}}]
      to: [{operation: {methods: [GET], paths: ["/a", "/b/*", "*.png"]}}]
    - from: [{source: {namespaces: [data], notPrincipals: ["*/sa/none"]}}]
      to: [{operation: {notMethods: [DELETE], hosts: ["WEB.shop*"]}}]
    - to: [{operation: {paths: ["/t/{*}/end", "/u/{**}"], ports: ["80"]}}]
      when: [{key: "request.headers[x-key]", values: [one, "two*"], notValues: [two-three]}]
    - when: [{key: source.namespace, values: [shop]}, {key: destination.port, values: ["81"]}]
    - from: [{source: {ipBlocks: [10.244.0.0/30]}}]
      to: [{operation: {methods: [PUT]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: not, namespace: shop}
spec:
  action: DENY
  selector: {matchLabels: {app: web}}
  rules:
    - to: [{operation: {paths: ["/b/secret"]}}]
    - when: [{key: "request.headers[x-evil]", values: ["*"]}]
    - from: [{source: {notNamespaces: [shop, data]}}]
"#;

#[test]
fn the_reasons_agree_with_the_filter() {
    let world = world(POLICIES);
    let (mut denied, mut allowed) = (0, 0);
    for from in ["reviews-v1.shop", "db.data", "web.shop", "legacy.shop"] {
        for method in ["GET", "DELETE", "PUT"] {
            for path in ["/a", "/b/x", "/b/secret", "/c.png", "/t/x/end", "/t/x/y/end", "/u/x/y", "/a/"] {
                for headers in ["", " x-key:one", " x-key:two-two", " x-key:two-three", " x-evil:1"] {
                    let question = format!("{from} {method} http://web.shop{path}{headers}");
                    let answer = ask(&world, &question).expect("an answer");
                    let last = answer.hops.last().expect("a hop");
                    if answer.verdict.outcome == Outcome::Reset {
                        // STRICT refuses who has no sidecar.
                        assert_eq!(from, "legacy.shop");
                        continue;
                    }
                    let matching =
                        |action: &str| last.policies.iter().any(|policy| policy.action == action && policy.matches);
                    let expected =
                        if matching("DENY") || !matching("ALLOW") { Outcome::Deny } else { Outcome::Forward };
                    assert_eq!(answer.verdict.outcome, expected, "{question}\n{}", answer.to_text(false));
                    let decides = last.policies.iter().filter(|policy| policy.decides);
                    assert!(decides.clone().all(|policy| policy.matches && policy.missing.is_empty()), "{question}");
                    match expected {
                        Outcome::Deny => denied += 1,
                        _ => allowed += 1,
                    }
                }
            }
        }
    }
    assert!(denied > 50 && allowed > 20, "{denied} denied, {allowed} allowed");
}
