//! Decisions of a VirtualService's faults, mirrors, CORS policies and delegates.

use serde_json::{Value, json};

use crate::calls::{Arrival, HTTP, Mesh, virtual_service};

const REVIEWS: &str = "reviews.shop.svc.cluster.local:80";

fn with(fields: &str) -> Mesh {
    Mesh::routed(&format!("http:\n- route: [{{destination: {{host: reviews}}}}]\n  {fields}"))
}

#[test]
fn faults() {
    let check = |fault: &str, random: u64, expected: &str| {
        let proxy = with(&format!("fault: {fault}")).client();
        assert_eq!(proxy.decide(Arrival { random, ..HTTP }, "GET reviews /"), expected, "{fault}");
    };
    let forwarded = "reviews/ to reviews.shop:80";
    check("{abort: {httpStatus: 503, percentage: {value: 100}}}", 0, "503 fault_filter_abort");
    check("{abort: {httpStatus: 503, percentage: {value: 0}}}", 0, forwarded);
    check("{abort: {httpStatus: 503}}", 0, forwarded);
    check("{abort: {percentage: {value: 100}}}", 0, forwarded);
    check("{abort: {httpStatus: 418, percentage: {value: 25}}}", 24, "418 fault_filter_abort");
    check("{abort: {httpStatus: 418, percentage: {value: 25}}}", 25, forwarded);
    check("{abort: {httpStatus: 418, percentage: {value: 0.5}}}", 4_999, "418 fault_filter_abort");
    check("{abort: {httpStatus: 418, percentage: {value: 0.5}}}", 5_000, forwarded);
    check("{abort: {grpcStatus: UNAVAILABLE, percentage: {value: 100}}}", 0, "200 fault_filter_abort");
    check("{delay: {fixedDelay: 5s, percentage: {value: 100}}}", 0, &format!("waits 5s, {forwarded}"));
    check("{delay: {fixedDelay: 5s, percent: 10}}", 9, &format!("waits 5s, {forwarded}"));
    check("{delay: {fixedDelay: 5s, percent: 10}}", 10, forwarded);
    check("{delay: {fixedDelay: 5s}}", 0, forwarded);
    let both = "{delay: {fixedDelay: 1s, percent: 100}, abort: {httpStatus: 500, percentage: {value: 100}}}";
    check(both, 0, "waits 1s, 500 fault_filter_abort");
    let grpc = with("fault: {abort: {grpcStatus: NOT_FOUND, percentage: {value: 100}}}").client();
    let filter = &grpc.routes(REVIEWS)[0]["typed_per_filter_config"]["envoy.filters.http.fault"];
    assert_eq!(filter["abort"], json!({"grpc_status": 5, "percentage": {"numerator": 100}}));
    // A fault belongs to its route alone.
    let mesh = Mesh::routed(
        "http:
- match: [{headers: {x-user: {exact: tester}}}]
  fault: {abort: {httpStatus: 500, percentage: {value: 100}}}
  route: [{destination: {host: reviews}}]
- route: [{destination: {host: reviews}}]",
    );
    assert_eq!(mesh.client().http("GET reviews / x-user=tester"), "500 fault_filter_abort");
    assert_eq!(mesh.client().http("GET reviews /"), forwarded);
    // It also applies where the proxy answers by itself.
    let direct = Mesh::routed(
        "http: [{directResponse: {status: 204}, fault: {abort: {httpStatus: 500, percentage: {value: 100}}}}]",
    );
    assert_eq!(direct.client().http("GET reviews /"), "500 fault_filter_abort");
}

#[test]
fn mirrors() {
    let check = |fields: &str, expected: Value| {
        let proxy = with(fields).client();
        let policies = proxy.routes(REVIEWS)[0]["route"]["request_mirror_policies"].clone();
        let short = |policy: &Value| {
            let share = &policy["runtime_fraction"]["default_value"];
            assert_eq!(policy["trace_sampled"], false);
            json!([policy["cluster"], share["numerator"], share["denominator"]])
        };
        let short: Vec<Value> = policies.as_array().into_iter().flatten().map(short).collect();
        assert_eq!(Value::Array(short), expected, "{fields}");
    };
    let ratings = "outbound|80||ratings.shop.svc.cluster.local";
    let ledger = "outbound|80||ledger.stock.svc.cluster.local";
    let all = json!([[ratings, 100, null]]);
    check("mirror: {host: ratings}", all.clone());
    check("mirror: {host: ratings, port: {number: 80}}", all);
    check("mirror: {host: ratings}\n  mirrorPercentage: {value: 10}", json!([[ratings, 10, null]]));
    check("mirror: {host: ratings}\n  mirrorPercentage: {value: 0.1}", json!([[ratings, 1_000, "MILLION"]]));
    check("mirror: {host: ratings}\n  mirrorPercentage: {value: 0}", json!([]));
    check("mirror: {host: ratings}\n  mirrorPercent: 20", json!([[ratings, 20, null]]));
    check("mirror: {host: ratings}\n  mirror_percent: 30", json!([[ratings, 30, null]]));
    check("mirror: {host: ratings}\n  mirrorPercent: 0", json!([]));
    check(
        "mirror: {host: ratings}\n  mirrorPercent: 20\n  mirrorPercentage: {value: 10}",
        json!([[ratings, 10, null]]),
    );
    let two = "mirrors: [{destination: {host: ratings}}, {destination: {host: ledger.stock.svc.cluster.local}, percentage: {value: 50}}]";
    check(two, json!([[ratings, 100, null], [ledger, 50, null]]));
    check("mirrors: [{destination: {host: ratings}, percentage: {value: 0}}]", json!([]));
    assert_eq!(with("mirror: {host: nowhere}").codes, ["missing-service"]);
}

#[test]
fn cors() {
    let check = |policy: &str, request: &str, expected: &str| {
        let proxy = with(&format!("corsPolicy: {policy}")).client();
        assert_eq!(proxy.http(request), expected, "{policy}: {request}");
    };
    let forwarded = "reviews/ to reviews.shop:80";
    let readable = |origin: &str| format!("scripts of {origin} may read the answer, {forwarded}");
    let origins =
        "{allowOrigins: [{exact: 'https://a.example.com'}, {prefix: 'https://b.'}, {regex: 'https://c[0-9]'}]}";
    for origin in ["https://a.example.com", "https://b.example.com", "https://c1"] {
        check(origins, &format!("GET reviews / origin={origin}"), &readable(origin));
    }
    check(origins, "GET reviews / origin=https://d.example.com", forwarded);
    check(origins, "GET reviews /", forwarded);
    check("{allowOrigin: ['https://a']}", "GET reviews / origin=https://a", &readable("https://a"));
    check("{allowOrigin: ['https://a']}", "GET reviews / origin=https://b", forwarded);
    let asks = "access-control-request-method=PUT";
    let preflight = |origin: &str| format!("OPTIONS reviews / origin={origin} {asks}");
    let answered = |origin: &str| format!("scripts of {origin} may read the answer, 200 cors_response");
    check("{allowOrigins: [{exact: 'https://a'}]}", &preflight("https://a"), &answered("https://a"));
    check("{allowOrigins: [{exact: 'https://a'}]}", &preflight("https://b"), forwarded);
    let forward = "{allowOrigins: [{exact: 'https://a'}], unmatchedPreflights: FORWARD}";
    check(forward, &preflight("https://b"), forwarded);
    check(
        "{allowOrigins: [{exact: 'https://a'}], unmatchedPreflights: IGNORE}",
        &preflight("https://b"),
        "200 cors_response",
    );
    let proxy = with(
        "corsPolicy: {allowOrigins: [{exact: a}], allowMethods: [GET, PUT], allowHeaders: [X-A, x-b], exposeHeaders: [x-c], maxAge: 24h, allowCredentials: false}",
    )
    .client();
    let filter = &proxy.routes(REVIEWS)[0]["typed_per_filter_config"]["envoy.filters.http.cors"];
    let texts =
        ["allow_methods", "allow_headers", "expose_headers", "max_age", "allow_credentials"].map(|n| &filter[n]);
    assert_eq!(json!(texts), json!(["GET,PUT", "X-A,x-b", "x-c", "86400", false]));
    assert_eq!(filter["filter_enabled"]["default_value"]["numerator"], 100);
}

/// A root for `reviews` and the delegate `inner`.
fn delegated(root: &str, inner: &str) -> Mesh {
    let root = format!("hosts: [reviews]\nhttp:\n{root}");
    let all = [virtual_service("root", "shop", &root), virtual_service("inner", "shop", &format!("http:\n{inner}"))];
    Mesh::new(&all.concat())
}

#[test]
fn delegates() {
    let check = |root: &str, inner: &str, request: &str, expected: &str| {
        assert_eq!(delegated(root, inner).client().http(request), expected, "{root}\n{inner}\n{request}");
    };
    let to = |service: &str| format!("- route: [{{destination: {{host: {service}}}}}]");
    let when = |conditions: &str, service: &str| {
        format!("- match: [{conditions}]\n  route: [{{destination: {{host: {service}}}}}]\n")
    };
    let root = "- match: [{uri: {prefix: /a}}]\n  delegate: {name: inner}\n- route: [{destination: {host: reviews}}]";
    let (inner, rest) = ("reviews/a/b to ratings.shop:80", "reviews/a/b to reviews.shop:80");
    check(root, &to("ratings"), "GET reviews /a/b", inner);
    check(root, &to("ratings"), "GET reviews /b", "reviews/b to reviews.shop:80");
    check("- delegate: {name: inner}", &to("ratings"), "GET reviews /a/b", inner);
    check("- delegate: {name: inner}", &when("{uri: {prefix: /a}}", "ratings"), "GET reviews /a/b", inner);
    // The delegate's path lies within the root's, or the route is left out.
    check(root, &when("{uri: {prefix: /a/b}}", "ratings"), "GET reviews /a/b", inner);
    check(root, &when("{uri: {exact: /a/b}}", "ratings"), "GET reviews /a/b", inner);
    check(root, &when("{uri: {prefix: /b}}", "ratings"), "GET reviews /a/b", rest);
    check(root, &when("{uri: {regex: '/a/.*'}}", "ratings"), "GET reviews /a/b", rest);
    // What only one of the two says holds as well.
    check(root, &when("{headers: {x: {exact: y}}}", "ratings"), "GET reviews /a/b x=y", inner);
    check(root, &when("{headers: {x: {exact: y}}}", "ratings"), "GET reviews /a/b", rest);
    check(root, &when("{method: {exact: PUT}}", "ratings"), "PUT reviews /a/b", inner);
    // Only the route that conflicts is left out.
    let two = [when("{uri: {prefix: /b}}", "reviews"), when("{uri: {prefix: /a/b}}", "ratings")].concat();
    check(root, &two, "GET reviews /a/b", inner);
    // The root's settings apply where the delegate has none.
    let sets = |fields: &str| format!("- match: [{{uri: {{prefix: /a}}}}]\n  delegate: {{name: inner}}\n  {fields}");
    let fault = "fault: {abort: {httpStatus: 500, percentage: {value: 100}}}";
    check(&sets(fault), &to("ratings"), "GET reviews /a/b", "500 fault_filter_abort");
    let own = format!("{}\n  fault: {{delay: {{fixedDelay: 1s, percent: 100}}}}", to("ratings"));
    check(&sets(fault), &own, "GET reviews /a/b", &format!("waits 1s, {inner}"));
    check(&sets("rewrite: {uri: /new}"), &to("ratings"), "GET reviews /a/b", "reviews/new/b to ratings.shop:80");
    check(&sets("directResponse: {status: 204}"), &to("ratings"), "GET reviews /a/b", "204");
    let full = delegated(
        &sets("timeout: 4s\n  retries: {attempts: 7}\n  name: outer"),
        &format!("{}\n  name: in", to("ratings")),
    );
    let said = full.client().in_full(HTTP, "GET reviews /a/b");
    assert!(said.contains("timeout 4s") && said.contains("7 retries"), "{said}");
    assert_eq!(full.client().routes(REVIEWS)[0]["name"], "outer-in");
    assert_eq!(
        full.client().routes(REVIEWS)[0]["metadata"]["filter_metadata"]["istio"]["config"]
            .as_str()
            .map(|path| path.ends_with("/namespaces/shop/virtual-service/root")),
        Some(true)
    );
}

#[test]
fn delegates_in_other_namespaces() {
    let check = |export_to: &str, namespace: &str, expected: &str, codes: &[&str]| {
        let root = format!("hosts: [reviews]\nhttp:\n- delegate: {{name: inner{namespace}}}");
        let inner = format!("{export_to}http: [{{route: [{{destination: {{host: ledger}}}}]}}]");
        let all = [virtual_service("root", "shop", &root), virtual_service("inner", "stock", &inner)];
        let mesh = Mesh::new(&all.concat());
        assert_eq!(mesh.client().http("GET reviews /"), expected, "{export_to} {namespace}");
        assert_eq!(mesh.codes, codes, "{export_to} {namespace}");
    };
    let (theirs, own) = ("reviews/ to ledger.stock:80", "reviews/ to reviews.shop:80");
    check("", ", namespace: stock", theirs, &[]);
    check("exportTo: [shop]\n", ", namespace: stock", theirs, &[]);
    check("exportTo: [.]\n", ", namespace: stock", own, &["missing-delegate"]);
    check("", "", own, &["missing-delegate", "unused-delegate"]);
}
