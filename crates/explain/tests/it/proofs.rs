//! Whether any request gets through.

use evenkeel_explain::prove::Reachability;
use evenkeel_explain::{Claim, Party, Proof};

use crate::mesh::world;

fn claim(from: &str, to: &str) -> Claim {
    let (from, to) = (Party::parse(from), Party::parse(to));
    Claim { from, to, path: None, method: None, port: None, host: None, without_jwt: true }
}

#[track_caller]
fn check(claim: &Claim, more: &str, verdict: Reachability, expected: &[&str]) -> Proof {
    let proof = world(more).prove(claim).expect("an answer");
    let text = proof.to_text();
    assert_eq!(proof.verdict, verdict, "{text}");
    let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    expected.iter().for_each(|part| assert!(squeezed.contains(part), "{part:?} is not in\n{text}"));
    proof
}

const REACHABLE: Reachability = Reachability::Reachable;
const UNREACHABLE: Reachability = Reachability::Unreachable;

#[test]
fn what_gets_through_is_shown() {
    let proof = check(
        &claim("web.shop", "reviews-v1.shop"),
        "",
        REACHABLE,
        &[
            "web.shop → reviews-v1.shop ✓ reachable",
            "over mutual TLS allowed by AuthorizationPolicy shop/readers, mesh.yaml:149",
            "evenkeel exec web -n shop -- curl -sS --path-as-is",
            "evenkeel explain --from web.shop --url http://reviews",
        ],
    );
    assert_eq!(proof.witness.expect("one").method, "GET");
    let only =
        Claim { method: Some("HEAD".to_owned()), path: Some("/x".to_owned()), ..claim("web.shop", "reviews-v1.shop") };
    check(&only, "", REACHABLE, &["-X HEAD", "/x"]);
    // Through the gateway, whose route leads there.
    check(
        &claim("outside", "reviews-v1.shop"),
        "",
        REACHABLE,
        &[
            "from outside, through the gateway istio-ingressgateway.istio-system",
            "shop.example.com",
            "explain --from-outside",
        ],
    );
    check(&claim("*", "reviews-v2.shop"), "", REACHABLE, &[]);
    check(&claim("legacy.shop", "db.data"), "", REACHABLE, &["over plain text"]);
    check(&claim("web.shop", "legacy.shop"), "", REACHABLE, &["over plain text"]);
}

#[test]
fn what_does_not_get_through_has_its_reason() {
    let only = |method: &str, path: &str| Claim {
        method: Some(method.to_owned()),
        path: Some(path.to_owned()),
        ..claim("web.shop", "reviews-v1.shop")
    };
    check(
        &only("DELETE", "/x"),
        "",
        UNREACHABLE,
        &[
            "no ALLOW policy of reviews-v1.shop matches any request of web.shop",
            "AuthorizationPolicy shop/readers, mesh.yaml:148",
        ],
    );
    check(
        &only("GET", "/admin/x"),
        "",
        UNREACHABLE,
        &[
            "DENY policies of reviews-v1.shop refuse what ALLOW policies let pass",
            "AuthorizationPolicy shop/no-admin, mesh.yaml:159",
        ],
    );
    check(
        &claim("legacy.shop", "reviews-v1.shop"),
        "",
        UNREACHABLE,
        &["accepts on port 9080 only mutual TLS (STRICT)", "PeerAuthentication shop/strict, mesh.yaml:140"],
    );
    check(&claim("outside", "db.data"), "", UNREACHABLE, &["no route of a gateway leads there"]);
    // The host reaches it, the port does not.
    check(&Claim { port: Some(81), ..claim("web.shop", "db.data") }, "", UNREACHABLE, &[]);
}

#[test]
fn routes_rewrites_and_headers_count() {
    let more = |rules: &str| {
        format!(
            "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: web, namespace: shop}}
spec: {{selector: {{matchLabels: {{app: web}}}}, rules: [{rules}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: web, namespace: shop}}
spec:
  hosts: [web]
  http:
    - match: [{{uri: {{prefix: /in/}}, headers: {{x-a: {{exact: b}}}}}}]
      rewrite: {{uri: /}}
      headers: {{request: {{set: {{x-by: route}}}}}}
      route: [{{destination: {{host: web}}}}]
    - directResponse: {{status: 404}}
"
        )
    };
    let to_web = Claim { host: Some("web".to_owned()), ..claim("reviews-v1.shop", "web.shop") };
    let proof = check(
        &to_web,
        &more("{to: [{operation: {paths: [/secret]}}], when: [{key: 'request.headers[x-by]', values: [route]}]}"),
        REACHABLE,
        &["/in/secret"],
    );
    assert_eq!(proof.witness.expect("one").headers, [("x-a".to_owned(), "b".to_owned())]);
    let never = "{to: [{operation: {paths: [/in/*]}}], when: [{key: 'request.headers[x-by]', values: [route]}]}";
    // Two times `/in/`: one is taken away.
    check(&to_web, &more(never), REACHABLE, &["/in/in/"]);
    check(&Claim { path: Some("/in/x".to_owned()), ..to_web.clone() }, &more(never), UNREACHABLE, &["shop/web"]);
    check(&to_web, &more("{when: [{key: 'request.headers[x-by]', values: [other]}]}"), UNREACHABLE, &["shop/web"]);
}

#[test]
fn the_mesh_ends_somewhere() {
    let only = "\
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: closed, namespace: shop}
spec: {egress: [{hosts: ['./*']}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}
";
    let elsewhere = Claim { host: Some("example.org".to_owned()), ..claim("web.shop", "outside") };
    check(&elsewhere, "", REACHABLE, &[]);
    check(&elsewhere, only, UNREACHABLE, &[]);
    check(&claim("web.shop", "db.data"), only, UNREACHABLE, &[]);
    let error = world("").prove(&claim("webb.shop", "db.data")).expect_err("no such workload").to_string();
    assert!(error.contains("did you mean `web.shop`?"), "{error}");
    let error = world("").prove(&claim("nowhere/*", "db.data")).expect_err("no such namespace").to_string();
    assert!(error.contains("workloads are in"), "{error}");
}

#[test]
fn the_keys_of_the_answer_are_stable() {
    let proof = check(&claim("web.shop", "reviews-v1.shop"), "", REACHABLE, &[]);
    let json = serde_json::to_value(&proof).expect("JSON");
    let keys =
        |json: &serde_json::Value| -> Vec<String> { json.as_object().expect("an object").keys().cloned().collect() };
    assert_eq!(keys(&json), ["from", "to", "verdict", "witness", "reasons", "callPaths", "notes"]);
    assert_eq!(
        keys(&json["witness"]),
        [
            "from",
            "to",
            "kind",
            "method",
            "url",
            "authority",
            "headers",
            "source",
            "transport",
            "allowedBy",
            "provided",
            "curl",
            "explain"
        ]
    );
}

fn policies(web: &[(&str, &str)]) -> String {
    let policy = |(number, (action, rule)): (usize, &(&str, &str))| {
        format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: web{number}, namespace: shop}}\n\
             spec: {{selector: {{matchLabels: {{app: web}}}}, action: {action}, rules: [{rule}]}}\n"
        )
    };
    let tokens = "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: me, namespace: shop}\n\
                  spec: {jwtRules: [{issuer: me, jwksUri: 'https://issuer.test/keys'}]}\n";
    web.iter().enumerate().map(policy).collect::<String>() + tokens
}

const UNDECIDED: Reachability = Reachability::Undecided;

#[test]
fn tokens_are_told_apart_by_what_is_asked_of_them() {
    let to_web = claim("reviews-v1.shop", "web.shop");
    let with = Claim { without_jwt: false, ..to_web.clone() };
    let mine = "{from: [{source: {requestPrincipals: [me/*]}}]}";
    let nobody = "{from: [{source: {notRequestPrincipals: ['*']}}]}";
    let team = "{when: [{key: 'request.auth.claims[team]', values: [red]}]}";
    let not_team = "{when: [{key: 'request.auth.claims[team]', notValues: [red]}]}";
    let get = "{to: [{operation: {methods: [GET]}}]}";
    let (depends, no) = ("it depends on what the issuer signs", "no request gets through");
    for (web, verdict, said) in [
        // A request without a token is one, too.
        (&[("ALLOW", get)][..], REACHABLE, ""),
        (&[("ALLOW", mine), ("ALLOW", get)], REACHABLE, ""),
        (&[("DENY", mine)], REACHABLE, ""),
        (&[("ALLOW", mine)], UNDECIDED, depends),
        (&[("DENY", nobody)], UNDECIDED, depends),
        (&[("ALLOW", team), ("DENY", nobody)], UNDECIDED, depends),
        // What one rule wants, another refuses.
        (&[("ALLOW", mine), ("DENY", mine)], UNREACHABLE, no),
        (&[("ALLOW", team), ("DENY", team)], UNREACHABLE, no),
        (&[("DENY", team), ("DENY", not_team)], UNREACHABLE, no),
    ] {
        let proof = check(&with, &policies(web), verdict, &[said]);
        assert_eq!(proof.to_text().contains(no), verdict == UNREACHABLE, "{}", proof.to_text());
    }
    // Without tokens all of it is decided.
    for web in [&[("ALLOW", mine)][..], &[("DENY", nobody)], &[("ALLOW", team), ("DENY", nobody)]] {
        check(&to_web, &policies(web), UNREACHABLE, &[no]);
    }
}

#[test]
fn what_other_filters_say_is_not_taken_for_a_token() {
    let says = "{when: [{key: 'experimental.envoy.filters.http.ext_authz[who]', values: [ann]}]}";
    for without_jwt in [false, true] {
        let to_web = Claim { without_jwt, ..claim("reviews-v1.shop", "web.shop") };
        let proof = check(&to_web, &policies(&[("ALLOW", says)]), UNDECIDED, &["not decided", "another filter"]);
        assert!(!proof.to_text().contains("no request gets through"), "{}", proof.to_text());
        check(&to_web, &policies(&[("ALLOW", says), ("DENY", says)]), UNREACHABLE, &[]);
    }
}

#[test]
fn a_path_that_a_pattern_rewrites_is_decided_when_it_is_given() {
    let more = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, rules: [{to: [{operation: {paths: [/open/x]}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web]
  http:
    - rewrite: {uriRegexRewrite: {match: '^/([a-z]+)/([a-z]+)$', rewrite: '/\\2/\\1'}}
      route: [{destination: {host: web}}]
";
    let to_web = Claim { host: Some("web".to_owned()), ..claim("reviews-v1.shop", "web.shop") };
    let at = |path: &str| Claim { path: Some(path.to_owned()), ..to_web.clone() };
    check(&at("/x/open"), more, REACHABLE, &["/x/open"]);
    check(&at("/open/x"), more, UNREACHABLE, &["shop/web"]);
    check(&at("/other"), more, UNREACHABLE, &["shop/web"]);
    let any = world(more).prove(&to_web).expect("an answer");
    assert_ne!(any.verdict, UNREACHABLE, "{}", any.to_text());
}
