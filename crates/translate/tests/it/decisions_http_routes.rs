//! Decisions of a VirtualService's HTTP routes: one row for each field and rule.

use crate::calls::{HTTP, Mesh, destination_rule, virtual_service};

/// Routes to `ratings`, so that a match is told from the rest, which goes to `reviews`.
fn matching(conditions: &str) -> Mesh {
    Mesh::routed(&format!(
        "http:\n- match: [{conditions}]\n  route: [{{destination: {{host: ratings}}}}]\n- route: [{{destination: {{host: reviews}}}}]"
    ))
}

#[test]
fn conditions() {
    let check = |conditions: &str, request: &str, matches: bool| {
        let got = matching(conditions).client().http(request);
        let to = if matches { "ratings.shop:80" } else { "reviews.shop:80" };
        assert!(got.ends_with(&format!(" to {to}")), "{conditions}: {request}: {got}");
    };
    check("{uri: {exact: /a}}", "GET reviews /a", true);
    check("{uri: {exact: /a}}", "GET reviews /a?b", true);
    check("{uri: {exact: /a}}", "GET reviews /ab", false);
    check("{uri: {exact: /a}}", "GET reviews /A", false);
    check("{uri: {exact: /a}, ignoreUriCase: true}", "GET reviews /A", true);
    check("{uri: {prefix: /a}}", "GET reviews /ab", true);
    check("{uri: {prefix: /a/}}", "GET reviews /a", false);
    check("{uri: {prefix: /A}, ignoreUriCase: true}", "GET reviews /ab", true);
    check("{uri: {regex: '/a[0-9]+'}}", "GET reviews /a12", true);
    check("{uri: {regex: '/a[0-9]+'}}", "GET reviews /a12/b", false);
    check("{scheme: {exact: http}}", "GET reviews /", true);
    check("{scheme: {exact: https}}", "GET reviews /", false);
    check("{method: {exact: POST}}", "POST reviews /", true);
    check("{method: {exact: POST}}", "post reviews /", false);
    check("{method: {regex: 'P.*'}}", "PUT reviews /", true);
    check("{authority: {exact: 'reviews:80'}}", "GET reviews:80 /", true);
    check("{authority: {exact: reviews}}", "GET reviews:80 /", false);
    check("{authority: {prefix: rev}}", "GET reviews /", true);
    check("{headers: {x-a: {exact: b}}}", "GET reviews / x-a=b", true);
    check("{headers: {x-a: {exact: b}}}", "GET reviews / x-a=bc", false);
    check("{headers: {x-a: {exact: b}}}", "GET reviews /", false);
    check("{headers: {x-a: {prefix: b}}}", "GET reviews / x-a=bc", true);
    check("{headers: {x-a: {regex: 'b+'}}}", "GET reviews / x-a=bb", true);
    check("{headers: {x-a: {regex: 'b+'}}}", "GET reviews / x-a=bbc", false);
    check("{headers: {x-a: {}}}", "GET reviews / x-a=", true);
    check("{headers: {x-a: {}}}", "GET reviews /", false);
    check("{headers: {X-A: {exact: b}, x-c: {}}}", "GET reviews / x-a=b", false);
    check("{withoutHeaders: {x-a: {exact: b}}}", "GET reviews / x-a=b", false);
    check("{withoutHeaders: {x-a: {exact: b}}}", "GET reviews / x-a=c", true);
    check("{withoutHeaders: {x-a: {exact: b}}}", "GET reviews /", true);
    check("{withoutHeaders: {x-a: {}}}", "GET reviews / x-a=c", false);
    check("{queryParams: {q: {exact: '1'}}}", "GET reviews /?q=1", true);
    check("{queryParams: {q: {exact: '1'}}}", "GET reviews /?q=2", false);
    check("{queryParams: {q: {prefix: a}}}", "GET reviews /?p=1&q=ab", true);
    check("{queryParams: {q: {regex: '[0-9]+'}}}", "GET reviews /?q=12", true);
    check("{queryParams: {q: {}}}", "GET reviews /?q=", true);
    check("{port: 80}", "GET reviews /", true);
    check("{port: 8080}", "GET reviews /", false);
    check("{sourceLabels: {tier: front}}", "GET reviews /", true);
    check("{sourceLabels: {tier: back}}", "GET reviews /", false);
    check("{sourceNamespace: shop}", "GET reviews /", true);
    check("{sourceNamespace: stock}", "GET reviews /", false);
    check("{gateways: [mesh]}", "GET reviews /", true);
    check("{gateways: [front]}", "GET reviews /", false);
    // All conditions of one match must hold; any match of a route may.
    check("{uri: {prefix: /a}, method: {exact: POST}}", "GET reviews /a", false);
    check("{uri: {prefix: /a}}, {method: {exact: POST}}", "GET reviews /a", true);
    check("{uri: {prefix: /a}}, {method: {exact: POST}}", "POST reviews /", true);
}

#[test]
fn rewrites() {
    let check = |conditions: &str, rewrite: &str, request: &str, expected: &str| {
        let mesh = Mesh::routed(&format!(
            "http:\n- match: [{conditions}]\n  rewrite: {rewrite}\n  route: [{{destination: {{host: reviews}}}}]"
        ));
        let got = mesh.client().http(request);
        assert_eq!(got, format!("{expected} to reviews.shop:80"), "{rewrite}: {request}");
    };
    check("{uri: {prefix: /old}}", "{uri: /new}", "GET reviews /old/a?b=c", "reviews/new/a?b=c");
    check("{uri: {prefix: /old/}}", "{uri: /}", "GET reviews /old/a", "reviews/a");
    check("{uri: {exact: /old}}", "{uri: /new}", "GET reviews /old?b", "reviews/new?b");
    check("{uri: {prefix: /}}", "{authority: other.example.com}", "GET reviews /a", "other.example.com/a");
    check("{uri: {prefix: /OLD}, ignoreUriCase: true}", "{uri: /new}", "GET reviews /old/a", "reviews/new/a");
    let regex = r"{uriRegexRewrite: {match: '^/v([0-9]+)/(.*)$', rewrite: '/\2/version-\1'}}";
    check("{uri: {prefix: /}}", regex, "GET reviews /v12/items?q=1", "reviews/items/version-12?q=1");
    check("{uri: {prefix: /}}", regex, "GET reviews /other", "reviews/other");
    let both = r"{uriRegexRewrite: {match: a, rewrite: b}, authority: c.example.com}";
    check("{uri: {prefix: /}}", both, "GET reviews /aa", "c.example.com/bb");
}

#[test]
fn redirects() {
    let check = |conditions: &str, redirect: &str, request: &str, expected: &str| {
        let mesh = Mesh::routed(&format!("http:\n- match: [{conditions}]\n  redirect: {redirect}"));
        assert_eq!(mesh.client().http(request), expected, "{redirect}: {request}");
    };
    let all = "{uri: {prefix: /a}}";
    check(all, "{uri: /b}", "GET reviews /a/x?q=1", "301 http://reviews/b?q=1");
    check(all, "{authority: o.example.com}", "GET reviews /a/x?q=1", "301 http://o.example.com/a/x?q=1");
    check(all, "{prefixRewrite: /b}", "GET reviews /a/x?q=1", "301 http://reviews/b/x?q=1");
    check(all, "{scheme: https}", "GET reviews /a", "301 https://reviews/a");
    check(all, "{scheme: https}", "GET reviews:80 /a", "301 https://reviews/a");
    check(all, "{scheme: https, port: 8443}", "GET reviews /a", "301 https://reviews:8443/a");
    check(all, "{port: 8080}", "GET reviews:80 /a", "301 http://reviews:8080/a");
    check(all, "{port: 80}", "GET reviews /a", "301 http://reviews/a");
    check(all, "{scheme: https, port: 443}", "GET reviews /a", "301 https://reviews/a");
    check(all, "{scheme: https, derivePort: FROM_PROTOCOL_DEFAULT}", "GET reviews:80 /a", "301 https://reviews/a");
    check(all, "{scheme: https, derivePort: FROM_REQUEST_PORT}", "GET reviews /a", "301 https://reviews:80/a");
    check(all, "{derivePort: FROM_REQUEST_PORT}", "GET reviews /a", "301 http://reviews/a");
    for code in [301, 302, 303, 307, 308] {
        let redirect = format!("{{uri: /b, redirectCode: {code}}}");
        check(all, &redirect, "GET reviews /a", &format!("{code} http://reviews/b"));
    }
}

#[test]
fn direct_responses() {
    let body = |body: &str| {
        let mesh = Mesh::routed(&format!("http:\n- directResponse: {{status: 418{body}}}"));
        let proxy = mesh.client();
        assert_eq!(proxy.http("GET reviews /"), "418");
        proxy.routes("reviews.shop.svc.cluster.local:80")[0]["direct_response"]["body"].clone()
    };
    assert_eq!(body(""), serde_json::Value::Null);
    assert_eq!(body(", body: {string: teapot}")["inline_string"], "teapot");
    // Bytes that are text are sent as text; the message's meaning is the same.
    assert_eq!(body(", body: {bytes: dGVhcG90}")["inline_string"], "teapot");
    assert_eq!(body(", body: {bytes: /w==}")["inline_bytes"], "/w==");
}

#[test]
fn headers() {
    let check = |route: &str, expected: &str| {
        let mesh = Mesh::routed(&format!("http:\n- route:\n  - destination: {{host: reviews}}\n{route}"));
        let got = mesh.client().in_full(HTTP, "GET reviews /");
        assert!(got.contains(expected), "{route}: {got}");
    };
    check("  headers: {request: {set: {x-a: b}}}", "headers of the route: request: add x-a,");
    check("  headers: {request: {add: {x-a: b}}}", "headers of the route: request: add x-a,");
    check("  headers: {request: {remove: [x-a]}}", "headers of the route: request: remove x-a,");
    check("  headers: {response: {set: {x-a: b}}}", "headers of the route: response: add x-a,");
    check("  headers: {response: {remove: [x-a]}}", "headers of the route: response: remove x-a,");
    check("  headers: {request: {set: {host: other.example.com}}}", "other.example.com/ to reviews");
    check("    headers: {request: {set: {x-a: b}}}", "headers of the route: request: add x-a,");
    let weighted =
        "    weight: 1\n    headers: {request: {set: {x-b: c}}}\n  - {destination: {host: ratings}, weight: 0}";
    check(weighted, "request: add x-b,");
}

#[test]
fn weights() {
    let mesh = Mesh::routed(
        "http:
- route:
  - {destination: {host: reviews}, weight: 70}
  - {destination: {host: ratings}, weight: 30}
  - {destination: {host: ledger.stock.svc.cluster.local}, weight: 0}",
    );
    let proxy = mesh.client();
    let to = |name: &str| {
        let call = |random| proxy.decide(crate::calls::Arrival { random, ..HTTP }, "GET reviews /");
        (0..100).filter(|random| call(*random).ends_with(name)).count()
    };
    assert_eq!((to("reviews.shop:80"), to("ratings.shop:80"), to("ledger.stock:80")), (70, 30, 0));
    // A single destination gets everything, whatever its weight.
    let lone = Mesh::routed("http: [{route: [{destination: {host: ratings}, weight: 0}]}]");
    assert_eq!(lone.client().http("GET reviews /"), "reviews/ to ratings.shop:80");
}

#[test]
fn destinations() {
    let check = |destination: &str, expected: &str| {
        let mesh = format!(
            "{}{}",
            virtual_service(
                "reviews",
                "shop",
                &format!("hosts: [reviews]\nhttp: [{{route: [{{destination: {destination}}}]}}]")
            ),
            destination_rule("reviews", "subsets: [{name: v1, labels: {version: v1}}]")
        );
        assert_eq!(Mesh::new(&mesh).client().http("GET reviews /"), expected, "{destination}");
    };
    check("{host: reviews}", "reviews/ to reviews.shop:80");
    check("{host: reviews, subset: v1}", "reviews/ to reviews.shop:80/v1");
    check("{host: reviews, subset: v9}", "503 no cluster");
    check("{host: reviews, port: {number: 8080}}", "reviews/ to reviews.shop:8080");
    check("{host: reviews, port: {number: 81}}", "503 no cluster");
    check("{host: nowhere}", "503 no cluster");
    check("{host: ledger.stock}", "503 no cluster");
    check("{host: ledger.stock.svc.cluster.local}", "reviews/ to ledger.stock:80");
}

#[test]
fn a_wildcard_destination_is_the_service_entry_of_that_host() {
    let entry = "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild, namespace: shop}
spec:
  hosts: ['*.wild.example.com']
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: NONE
---
";
    let routes = "hosts: [www.example.com]\nhttp: [{route: [{destination: {host: '*.wild.example.com'}}]}]";
    let mesh = Mesh::new(&format!("{entry}{}", virtual_service("www", "shop", routes)));
    assert_eq!(mesh.client().http("GET www.example.com /"), "www.example.com/ to *.wild.example.com:80");
}

#[test]
fn limits_and_retries() {
    let check = |fields: &str, expected: &str| {
        let mesh = Mesh::routed(&format!("http:\n- route: [{{destination: {{host: reviews}}}}]\n{fields}"));
        let got = mesh.client().in_full(HTTP, "GET reviews /");
        assert!(got.contains(expected), "{fields}: {got}");
    };
    check(
        "",
        "no limits; 2 retries on connect-failure, refused-stream, retriable-status-codes, cancelled, unavailable",
    );
    check("  timeout: 3s", "timeout 3s");
    check("  timeout: 0s", "no limits;");
    check("  retries: {attempts: 0}", "no retries");
    check("  retries: {attempts: 4}", "4 retries on connect-failure");
    check("  retries: {attempts: 1, retryOn: '5xx'}", "1 retries on 5xx");
    check("  retries: {attempts: 1, retryOn: '503'}", "1 retries on retriable-status-codes");
    check("  retries: {attempts: 1, perTryTimeout: 250ms}", "250ms each try");
    let policy = |retries: &str| {
        let mesh =
            Mesh::routed(&format!("http: [{{route: [{{destination: {{host: reviews}}}}], retries: {retries}}}]"));
        mesh.client().routes("reviews.shop.svc.cluster.local:80")[0]["route"]["retry_policy"].clone()
    };
    assert_eq!(policy("{attempts: 1, backoff: 200ms}")["retry_back_off"]["base_interval"], "0.200s");
    let priorities = policy("{attempts: 1, retryRemoteLocalities: true}");
    assert_eq!(priorities["retry_priority"]["name"], "envoy.retry_priorities.previous_priorities");
    assert_eq!(priorities["retry_priority"]["typed_config"]["update_frequency"], 2);
    let hosts = policy("{attempts: 1, retryIgnorePreviousHosts: false}");
    assert_eq!(hosts["retry_host_predicate"], serde_json::Value::Null);
    assert_eq!(policy("{attempts: 1, retryOn: '503,504'}")["retriable_status_codes"], serde_json::json!([503, 504]));
}
