//! What becomes of Ingresses, and of the annotations of ingress-nginx.

use evenkeel_analyze::routes::{GatewayName, RouteOptions};

use crate::mesh::question;
use crate::migrated::{BASE, Moved, decision, moved_from};

/// The proxy of the Gateway that is written for the class `nginx`.
const PROXY: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: nginx-istio, namespace: shop}
spec:
  selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: nginx}}
  template:
    metadata: {labels: {gateway.networking.k8s.io/gateway-name: nginx}, annotations: {inject.istio.io/templates: gateway}}
    spec: {containers: [{name: proxy}]}
---
";

fn ingress(name: &str, annotations: &str, spec: &str) -> String {
    let prefixed: String = annotations
        .split(';')
        .filter(|text| !text.is_empty())
        .map(|text| format!("    nginx.ingress.kubernetes.io/{text}\n"))
        .collect();
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: {name}\n  namespace: shop\n  annotations:\n    kubernetes.io/ingress.class: nginx\n{prefixed}spec: {spec}\n"
    )
}

fn rule(path: &str, kind: &str, service: &str) -> String {
    format!(
        "{{host: a.test, http: {{paths: [{{path: '{path}', pathType: {kind}, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}]}}}}"
    )
}

/// The mesh without Istio's Gateway, which would serve the port first.
fn moved(text: &str, options: &RouteOptions) -> Moved {
    let base = BASE.rsplit_once("---").expect("several documents").0;
    moved_from(base, &format!("{PROXY}{text}"), options)
}

fn written(text: &str) -> Moved {
    moved(text, &RouteOptions::default())
}

/// What becomes of a call: the outcome, and the cluster with the path.
fn outcome(moved: &Moved, call: &str) -> String {
    let answer = moved.after.ask(&question(call)).expect("an answer");
    let lines = decision(&answer);
    let first = lines.get(1).map(|line| line.split(" authority").next().unwrap_or_default().to_owned());
    format!("{} {}", lines[0].trim_end(), first.unwrap_or_default())
}

#[track_caller]
fn check(text: &str, calls: &[(&str, &str)]) {
    let moved = written(text);
    assert!(moved.written.remaining.iter().all(|object| object.kind != "Ingress"), "{}", moved.written.findings);
    for (call, expected) in calls {
        let found = outcome(&moved, call);
        let documents: String = moved.written.documents.iter().map(|document| format!("{document}\n")).collect();
        assert!(found.contains(expected), "{call}: {found}, not {expected}\n{documents}");
    }
}

#[test]
fn paths_lead_to_their_services() {
    let spec = format!("{{rules: [{}, {}]}}", rule("/a", "Prefix", "a"), rule("/a/x", "Exact", "b"));
    check(
        &ingress("web", "", &spec),
        &[
            ("outside GET http://a.test/a", "|80||a.shop"),
            ("outside GET http://a.test/a/y", "|80||a.shop"),
            ("outside GET http://a.test/ab", "direct Some(404)"),
            ("outside GET http://a.test/a/x", "|80||b.shop"),
            ("outside GET http://b.test/a", "direct Some(404)"),
        ],
    );
}

#[test]
fn rewrites_and_redirects_become_filters() {
    let spec = |path: &str| format!("{{rules: [{}]}}", rule(path, "ImplementationSpecific", "a"));
    check(
        &ingress("web", "rewrite-target: /$2", &spec("/api(/|$)(.*)")),
        &[
            ("outside GET http://a.test/api/x", "path Some(\"/x\")"),
            ("outside GET http://a.test/api", "path Some(\"/\")"),
            ("outside GET http://a.test/apix", "direct Some(404)"),
        ],
    );
    check(
        &ingress("web", "rewrite-target: /fixed", &spec("/api")),
        &[
            ("outside GET http://a.test/api/x", "path Some(\"/fixed\")"),
            ("outside GET http://a.test/APIx", "path Some(\"/fixed\")"),
        ],
    );
    check(
        &ingress("web", "permanent-redirect: https://b.test/new", &spec("/")),
        &[("outside GET http://a.test/x", "redirect Some(301) https://b.test/new")],
    );
    check(
        &ingress("web", "app-root: /app", &spec("/")),
        &[("outside GET http://a.test/", "redirect Some(302) http://a.test/app")],
    );
}

#[test]
fn canaries_are_joined_with_what_they_are_the_canaries_of() {
    let spec = |service: &str| format!("{{rules: [{}]}}", rule("/", "Prefix", service));
    let text = |annotations: &str| [ingress("main", "", &spec("a")), ingress("new", annotations, &spec("b"))].concat();
    check(
        &text("canary: 'true';canary-by-header: x-new;canary-weight: '20'"),
        &[
            ("outside GET http://a.test/ x-new:always", "[\"outbound|80||b.shop"),
            ("outside GET http://a.test/ x-new:never", "[\"outbound|80||a.shop"),
            ("outside GET http://a.test/", "outbound|80||b.shop.svc.cluster.local 20"),
        ],
    );
    let moved = written(&ingress("new", "canary: 'true'", &spec("b")));
    assert!(moved.written.findings.to_string().contains("canary of no other"), "{}", moved.written.findings);
}

#[test]
fn what_protects_is_never_left_out() {
    let spec = format!("{{rules: [{}]}}", rule("/", "Prefix", "a"));
    for (annotation, expected) in [
        ("whitelist-source-range: 10.0.0.0/8", "AuthorizationPolicy"),
        ("auth-url: http://auth.test/", "AuthorizationPolicy"),
        ("auth-type: basic", "RequestAuthentication"),
        ("auth-tls-secret: shop/ca", "frontend"),
        ("limit-rps: '5'", "rate limits"),
        ("configuration-snippet: deny all;", "HTTPRoute"),
        ("backend-protocol: HTTPS", "BackendTLSPolicy"),
        ("no-such-thing: 'true'", "correct its name"),
        ("rewrite-target: /$1/$2", "prefix"),
    ] {
        let moved = written(&ingress("web", annotation, &spec));
        assert!(moved.written.remaining.iter().any(|object| object.kind == "Ingress"), "{annotation}");
        let found = moved.written.findings.iter().find(|finding| finding.code == "no-equal").expect("a finding");
        let text = found.to_string();
        assert!(text.contains(expected) && found.span.line > 0, "{annotation}: {text}");
        assert!(moved.written.documents.iter().all(|document| document["kind"] != "HTTPRoute"), "{annotation}");
    }
    // What is switched off protects nothing.
    let moved = written(&ingress("web", "enable-modsecurity: 'false'", &spec));
    assert!(moved.written.remaining.iter().all(|object| object.kind != "Ingress"), "{}", moved.written.findings);
}

#[test]
fn hosts_with_a_certificate_have_listeners() {
    let spec = format!("{{tls: [{{hosts: [a.test], secretName: cert}}], rules: [{}]}}", rule("/", "Prefix", "a"));
    let moved = written(&ingress("web", "", &spec));
    let text: String = moved.written.documents.iter().map(|document| format!("{document}\n")).collect();
    for part in [
        "\"certificateRefs\":[{\"name\":\"cert\"}]",
        "\"hostname\":\"a.test\"",
        "web-https-redirect",
        "\"sectionName\":\"https-a-test\"",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(outcome(&moved, "outside GET http://a.test/").contains("redirect Some(308) https://a.test/"));
    let options = RouteOptions {
        gateway: Some(GatewayName { namespace: "infra".into(), name: "public".into() }),
        ..RouteOptions::default()
    };
    let moved = self::moved(&ingress("web", "", &spec), &options);
    let kinds: Vec<String> = moved.written.documents.iter().map(|document| document["kind"].to_string()).collect();
    assert!(kinds.contains(&"\"ListenerSet\"".to_owned()) && !kinds.contains(&"\"Gateway\"".to_owned()), "{kinds:?}");
}

fn documents(moved: &Moved) -> String {
    moved.written.documents.iter().map(|document| format!("{document}\n")).collect()
}

/// Browsers take no credentials with nginx's `*`; a CORS filter would name the caller, and let every site use them.
#[test]
fn a_star_of_cors_gives_no_credentials() {
    let spec = format!("{{rules: [{}]}}", rule("/", "Prefix", "a"));
    let check = |annotations: &str, allowed: bool| {
        let text = documents(&written(&ingress("web", annotations, &spec)));
        assert!(text.contains(&format!("\"allowCredentials\":{allowed}")), "{annotations}\n{text}");
    };
    check("enable-cors: 'true'", false);
    check("enable-cors: 'true';cors-allow-origin: '*';cors-allow-credentials: 'true'", false);
    check("enable-cors: 'true';cors-allow-origin: 'https://b.test, *';cors-allow-credentials: 'true'", false);
    check("enable-cors: 'true';cors-allow-origin: https://b.test;cors-allow-credentials: 'true'", true);
    check("enable-cors: 'true';cors-allow-origin: https://b.test;cors-allow-credentials: 'false'", false);
}

/// Of two Ingresses for a host one names the Secret; both are served with TLS, and plain requests to both are sent there.
#[test]
fn a_host_has_its_certificate_in_all_ingresses() {
    let with_tls = format!("{{tls: [{{hosts: [a.test], secretName: cert}}], rules: [{}]}}", rule("/", "Prefix", "a"));
    let without = format!("{{rules: [{}]}}", rule("/b", "Prefix", "b"));
    for text in [
        ingress("first", "", &with_tls) + &ingress("second", "", &without),
        ingress("first", "", &without) + &ingress("second", "", &with_tls),
    ] {
        let moved = written(&text);
        let routes = moved.written.documents.iter().filter(|document| document["kind"] == "HTTPRoute");
        let at_https = |document: &&serde_json::Value| {
            let parents = document["spec"]["parentRefs"].as_array().cloned().unwrap_or_default();
            parents.iter().any(|parent| parent["sectionName"] == "https-a-test")
        };
        let backends: Vec<String> =
            routes.filter(at_https).map(|document| document["spec"]["rules"].to_string()).collect();
        let leads_to = |name: &str| backends.iter().any(|rules| rules.contains(&format!("\"name\":\"{name}\"")));
        assert!(leads_to("a") && leads_to("b"), "{backends:?}\n{}", documents(&moved));
        for path in ["/", "/b"] {
            let found = outcome(&moved, &format!("outside GET http://a.test{path}"));
            assert!(found.contains(&format!("redirect Some(308) https://a.test{path}")), "{path}: {found}");
        }
    }
}

/// Istio's own gateway with a policy, and an Ingress that it serves.
fn of_istio(policy: &str) -> String {
    let gateway = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: istio-ingressgateway, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  template:
    metadata: {labels: {istio: ingressgateway}, annotations: {inject.istio.io/templates: gateway}}
    spec: {containers: [{name: proxy}]}
---
";
    let ingress =
        ingress("web", "", &format!("{{rules: [{}]}}", rule("/", "Prefix", "a"))).replace(": nginx", ": istio");
    format!("{gateway}{policy}{ingress}")
}

#[test]
fn an_ingress_keeps_the_policies_of_its_proxies() {
    let policy = |kind: &str, namespace: &str, spec: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: {kind}\nmetadata: {{name: guard, namespace: {namespace}}}\nspec: {{{spec}}}\n"
        )
    };
    let check = |policy: &str, options: &RouteOptions, guard: Option<&str>| {
        let moved = moved(&of_istio(policy), options);
        let remains = moved.written.remaining.iter().any(|object| object.kind == "Ingress");
        let found = moved.written.findings.iter().find(|finding| finding.code == "no-equal");
        let message = found.map(ToString::to_string).unwrap_or_default();
        assert_eq!(remains, guard.is_some(), "{policy}\n{}", moved.written.findings);
        assert!(message.contains(guard.unwrap_or_default()), "{policy}: {message}");
        assert_eq!(documents(&moved).contains("HTTPRoute"), guard.is_none(), "{policy}");
    };
    let new = RouteOptions::default();
    let at = |namespace: &str| RouteOptions {
        gateway: Some(GatewayName { namespace: namespace.into(), name: "public".into() }),
        ..RouteOptions::default()
    };
    let selecting = "selector: {matchLabels: {istio: ingressgateway}}, ";
    let deny = "action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]";
    let of_proxies = policy("AuthorizationPolicy", "istio-system", &format!("{selecting}{deny}"));
    check("", &new, None);
    check(&of_proxies, &new, Some("AuthorizationPolicy istio-system/guard"));
    check(&of_proxies, &at("infra"), Some("AuthorizationPolicy istio-system/guard"));
    let tokens = policy(
        "RequestAuthentication",
        "istio-system",
        &format!("{selecting}jwtRules: [{{issuer: a, jwks: '{{\"keys\":[]}}'}}]"),
    );
    check(&tokens, &new, Some("RequestAuthentication istio-system/guard"));
    // A policy of the root namespace without a selector is for all proxies, and one of another namespace for none of these.
    check(&policy("AuthorizationPolicy", "istio-system", deny), &new, None);
    check(&policy("AuthorizationPolicy", "data", deny), &new, None);
}

/// Where an object cannot be written as it would be valid, nothing may be deleted.
#[test]
fn what_is_left_out_lets_all_remain() {
    let spec = format!("{{rules: [{}]}}", rule("/", "Prefix", "a"));
    let good = ingress("good", "", &spec);
    let moved = written(&(good.clone() + &ingress("bad", "session-cookie-name: 'a b';affinity: cookie", &spec)));
    let text = moved.written.findings.to_string();
    assert!(text.contains("is left out"), "{text}");
    let mut remaining: Vec<String> = moved.written.remaining.iter().map(|object| object.name.to_string()).collect();
    remaining.sort();
    assert!(remaining.contains(&"good".to_owned()) && remaining.contains(&"bad".to_owned()), "{remaining:?}");
    assert!(moved.written.replaced.is_empty(), "{:?}", moved.written.replaced);
    assert!(written(&good).written.remaining.iter().all(|object| object.kind != "Ingress"));
}

/// Cookies of ingress-nginx become sessions that keep clients together here.
#[test]
fn affinity_becomes_sessions() {
    let spec = format!("{{rules: [{}]}}", rule("/", "Prefix", "a"));
    let moved =
        written(&ingress("web", "affinity: cookie;session-cookie-name: route;session-cookie-max-age: '600'", &spec));
    let text = documents(&moved);
    let session = "\"sessionPersistence\":{\"sessionName\":\"route\",\"type\":\"Cookie\",\"absoluteTimeout\":\"600s\",\"cookieConfig\":{\"lifetimeType\":\"Permanent\"}}";
    assert!(text.contains(session), "{text}");
    let answer = moved.after.ask(&question("outside GET http://a.test/")).expect("an answer").to_text(false);
    let answer = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(answer.contains("a session begins: the response names its host in the cookie `route`"), "{answer}");
}
