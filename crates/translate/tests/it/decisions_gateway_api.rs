//! Calls through Gateways and HTTPRoutes of the Gateway API, at gateways and in the mesh.

use evenkeel_model::ServerTlsMode;
use evenkeel_model::gateway::AdmittedClients;

use crate::calls::{Arrival, HTTP, Mesh, Proxy, object_of, virtual_service};

/// The API version of the Gateway API's kinds.
const API: &str = "gateway.networking.k8s.io/v1";

/// A gateway proxy for the Gateway `gate`, and the Gateway with these listeners.
fn gate(listeners: &str) -> String {
    let pod = |name: &str, namespace: &str, address: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{gateway.networking.k8s.io/gateway-name: gate}}}}\n\
             spec: {{containers: [{{name: proxy}}]}}\nstatus: {{podIP: {address}, conditions: [{{type: Ready, status: \"True\"}}]}}\n---\n"
        )
    };
    let spec = format!("gatewayClassName: istio\nlisteners: [{listeners}]");
    let pods = pod("gate-0", "shop", "10.244.1.1") + &pod("gate-0", "stock", "10.244.1.2");
    pods + &object_of(API, "Gateway", "gate", "shop", &spec)
}

const PLAIN: &str = "{name: http, port: 80, protocol: HTTP}";

fn http_route(name: &str, spec: &str) -> String {
    object_of(API, "HTTPRoute", name, "shop", spec)
}

/// A route at the Gateway, with these rules.
fn at_gate(rules: &str) -> Mesh {
    Mesh::new(&(gate(PLAIN) + &http_route("r", &format!("parentRefs: [{{name: gate}}]\nrules: {rules}"))))
}

fn gateway(mesh: &Mesh) -> Proxy {
    mesh.proxy("router gate-0.shop")
}

fn to(port: u16, sni: Option<&'static str>) -> Arrival {
    let (listener, to) = match port {
        80 => ("0.0.0.0_80", "10.244.1.1:80"),
        443 => ("0.0.0.0_443", "10.244.1.1:443"),
        8443 => ("0.0.0.0_8443", "10.244.1.1:8443"),
        9000 => ("0.0.0.0_9000", "10.244.1.1:9000"),
        _ => ("0.0.0.0_8080", "10.244.1.1:8080"),
    };
    Arrival { listener, to, from: "10.9.9.9:4000", sni, random: 0 }
}

#[test]
fn conditions() {
    let check = |conditions: &str, request: &str, matches: bool| {
        let mesh = at_gate(&format!(
            "[{{matches: [{conditions}], backendRefs: [{{name: ratings, port: 80}}]}}, {{backendRefs: [{{name: reviews, port: 80}}]}}]"
        ));
        let got = gateway(&mesh).decide(to(80, None), request);
        let to = if matches { "ratings.shop:80" } else { "reviews.shop:80" };
        assert!(got.ends_with(&format!(" to {to}")), "{conditions}: {request}: {got}");
    };
    check("{path: {type: Exact, value: /a}}", "GET a.test /a", true);
    check("{path: {type: Exact, value: /a}}", "GET a.test /a/", false);
    check("{path: {type: PathPrefix, value: /a}}", "GET a.test /a/b?c", true);
    check("{path: {type: PathPrefix, value: /a}}", "GET a.test /ab", false);
    check("{path: {value: /a/}}", "GET a.test /a", true);
    check("{path: {type: RegularExpression, value: '/a[0-9]+'}}", "GET a.test /a12", true);
    check("{path: {type: RegularExpression, value: '/a[0-9]+'}}", "GET a.test /a12/b", false);
    check("{headers: [{name: X-A, value: b}]}", "GET a.test / x-a=b", true);
    check("{headers: [{name: X-A, value: b}]}", "GET a.test / x-a=c", false);
    check("{headers: [{name: x-a, type: RegularExpression, value: 'b+'}]}", "GET a.test / x-a=bb", true);
    check("{headers: [{name: x-a, value: b}, {name: x-a, value: c}]}", "GET a.test / x-a=b", true);
    check("{queryParams: [{name: q, value: '1'}]}", "GET a.test /?q=1", true);
    check("{queryParams: [{name: q, value: '1'}]}", "GET a.test /?q=2", false);
    check("{queryParams: [{name: q, type: RegularExpression, value: '[0-9]+'}]}", "GET a.test /?q=12", true);
    check("{method: POST}", "POST a.test /", true);
    check("{method: POST}", "GET a.test /", false);
    check("{path: {value: /a}}, {method: POST}", "POST a.test /", true);
    check("{path: {value: /a}, method: POST}", "GET a.test /a", false);
}

/// The order of rules and of objects means nothing.
#[test]
fn the_most_specific_condition_wins_over_all_objects() {
    let rule = |condition: &str, port: u16| {
        format!("{{matches: [{condition}], backendRefs: [{{name: reviews, port: {port}}}]}}")
    };
    let route = |name: &str, rules: &[String]| {
        http_route(name, &format!("parentRefs: [{{name: gate}}]\nhostnames: [a.test]\nrules: [{}]", rules.join(", ")))
    };
    let one = [rule("{path: {value: /}}", 80), rule("{path: {value: /a}}", 80), rule("{path: {value: /a/b}}", 80)];
    let two = [
        rule("{path: {type: RegularExpression, value: '/a.*'}}", 9000),
        rule("{path: {type: Exact, value: /a}}", 9443),
        rule("{path: {value: /a}, headers: [{name: x-a, value: b}]}", 9000),
        rule("{path: {value: /a}, queryParams: [{name: q, value: '1'}]}", 7000),
        rule("{path: {value: /a}, method: PUT}", 8080),
        rule("{path: {type: RegularExpression, value: '/z.*'}}", 7000),
    ];
    for objects in [[route("a", &one), route("b", &two)], [route("a", &two), route("b", &one)]] {
        let mesh = Mesh::new(&(gate(PLAIN) + &objects.concat()));
        assert_eq!(mesh.codes, Vec::<&str>::new());
        let proxy = gateway(&mesh);
        let check = |request: &str, port: u16| {
            let got = proxy.decide(to(80, None), request);
            assert!(got.ends_with(&format!(" to reviews.shop:{port}")), "{request}: {got}");
        };
        check("GET a.test /a", 9443);
        check("GET a.test /a/x", 80);
        check("GET a.test /a/b x-a=b", 80);
        check("GET a.test /a/x x-a=b", 9000);
        check("PUT a.test /a/x?q=1 x-a=b", 8080);
        check("GET a.test /a/x?q=1", 7000);
        check("GET a.test /x", 80);
        // An expression comes before the rule for everything.
        check("GET a.test /zz", 7000);
    }
}

#[test]
fn filters() {
    let check = |rule: &str, request: &str, expected: &str| {
        let mesh = at_gate(&format!("[{{{rule}}}]"));
        assert_eq!(gateway(&mesh).decide(to(80, None), request), expected, "{rule}: {request}");
    };
    let backend = "backendRefs: [{name: reviews, port: 80}]";
    let rewrite = |path: &str, by: &str| {
        format!("matches: [{{path: {{value: {path}}}}}], filters: [{{type: URLRewrite, urlRewrite: {by}}}], {backend}")
    };
    let prefix = |to: &str| format!("{{path: {{type: ReplacePrefixMatch, replacePrefixMatch: {to}}}}}");
    let to_reviews = |what: &str| format!("{what} to reviews.shop:80");
    check(&rewrite("/old", &prefix("/new")), "GET a.test /old/x?q", &to_reviews("a.test/new/x?q"));
    check(&rewrite("/old", &prefix("/new/")), "GET a.test /old/x", &to_reviews("a.test/new/x"));
    check(&rewrite("/old", &prefix("/")), "GET a.test /old/x", &to_reviews("a.test/x"));
    check(&rewrite("/old", &prefix("/")), "GET a.test /old", &to_reviews("a.test/"));
    check(&rewrite("/", &prefix("/new")), "GET a.test /x", &to_reviews("a.test/new/x"));
    let full = "{hostname: b.test, path: {type: ReplaceFullPath, replaceFullPath: /all}}";
    check(&rewrite("/old", full), "GET a.test /old/x?q", &to_reviews("b.test/all?q"));
    let redirect = |path: &str, by: &str| {
        format!("matches: [{{path: {{value: {path}}}}}], filters: [{{type: RequestRedirect, requestRedirect: {by}}}]")
    };
    check(&redirect("/", "{scheme: https}"), "GET a.test /x", "302 https://a.test/x");
    check(&redirect("/", "{scheme: https, port: 8443, statusCode: 301}"), "GET a.test /x", "301 https://a.test:8443/x");
    check(&redirect("/", "{hostname: b.test, statusCode: 308}"), "GET a.test /x", "308 http://b.test/x");
    check(&redirect("/o", &prefix("/n")), "GET a.test /o/x", "302 http://a.test/n/x");
    check(&redirect("/o", &prefix("/")), "GET a.test /o/x", "302 http://a.test/x");
    let full = "{path: {type: ReplaceFullPath, replaceFullPath: /all}, statusCode: 307}";
    check(&redirect("/o", full), "GET a.test /o/x", "307 http://a.test/all");
    let extension = "filters: [{type: ExtensionRef, extensionRef: {group: a.test, kind: B, name: c}}]";
    check(&format!("{extension}, {backend}"), "GET a.test /", "500");
}

#[test]
fn headers_mirrors_timeouts_and_retries() {
    let check = |rule: &str, field: &str, expected: &str| {
        let mesh = at_gate(&format!("[{{{rule}}}]"));
        let proxy = gateway(&mesh);
        let table = proxy.resource("RDS", "http.80").to_string();
        assert!(table.contains(expected), "{rule}: no {field}: {table}");
    };
    let backend = "backendRefs: [{name: reviews, port: 80}]";
    let filter = |filter: &str| format!("filters: [{filter}], {backend}");
    let headers = "{set: [{name: x-a, value: a}], add: [{name: x-b, value: b}], remove: [x-c]}";
    let request = filter(&format!("{{type: RequestHeaderModifier, requestHeaderModifier: {headers}}}"));
    check(&request, "set", r#""header":{"key":"x-a","value":"a"},"append_action":"OVERWRITE_IF_EXISTS_OR_ADD""#);
    check(&request, "add", r#""header":{"key":"x-b","value":"b"}"#);
    check(&request, "remove", r#""request_headers_to_remove":["x-c"]"#);
    let response = filter(&format!("{{type: ResponseHeaderModifier, responseHeaderModifier: {headers}}}"));
    check(&response, "remove", r#""response_headers_to_remove":["x-c"]"#);
    let mirror = |share: &str| {
        filter(&format!("{{type: RequestMirror, requestMirror: {{backendRef: {{name: ratings, port: 80}}{share}}}}}"))
    };
    let ratings = r#""cluster":"outbound|80||ratings.shop.svc.cluster.local""#;
    check(&mirror(""), "mirror", ratings);
    check(&mirror(", percent: 25"), "percent", r#""numerator":25}"#);
    check(&mirror(", fraction: {numerator: 1, denominator: 8}"), "fraction", r#""numerator":125000"#);
    let cors = "{allowOrigins: ['https://*.a.test', 'https://b.test'], allowMethods: [GET], allowHeaders: [x-a], exposeHeaders: [x-b], maxAge: 9, allowCredentials: true}";
    let cors = filter(&format!("{{type: CORS, cors: {cors}}}"));
    check(&cors, "origins", r#"https://.*\\.a\\.test"#);
    check(&cors, "age", r#""max_age":"9""#);
    check(&format!("timeouts: {{request: 3s}}, {backend}"), "timeout", r#""timeout":"3s""#);
    check(&format!("timeouts: {{backendRequest: 2s, request: 3s}}, {backend}"), "timeout", r#""timeout":"2s""#);
    let retry = format!(
        "timeouts: {{request: 5s, backendRequest: 2s}}, retry: {{attempts: 4, codes: [503], backoff: 100ms}}, {backend}"
    );
    check(&retry, "attempts", r#""num_retries":4"#);
    check(&retry, "codes", r#""retriable_status_codes":[503]"#);
    check(&retry, "each", r#""per_try_timeout":"2s""#);
    check(&retry, "pause", r#""base_interval":"0.100s""#);
    let own = "backendRefs: [{name: reviews, port: 80, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-own, value: a}]}}]}, {name: ratings, port: 80}]";
    check(own, "a backend's own", r#""header":{"key":"x-own","value":"a"}"#);
}

#[test]
fn backends_that_cannot_be_used_get_their_share_of_errors() {
    let check = |backends: &str, shares: &[(&str, usize)], codes: &[&str]| {
        let mesh = at_gate(&format!("[{{backendRefs: [{backends}]}}]"));
        assert_eq!(mesh.codes, codes, "{backends}");
        let proxy = gateway(&mesh);
        let got: Vec<String> =
            (0..100).map(|random| proxy.decide(Arrival { random, ..to(80, None) }, "GET a.test /")).collect();
        for (end, expected) in shares {
            let count = got.iter().filter(|outcome| outcome.ends_with(end)).count();
            assert_eq!(count, *expected, "{backends}: {end}: {:?}", got.first());
        }
    };
    let reviews = "{name: reviews, port: 80, weight: 90}";
    let other = |rest: &str| format!("{reviews}, {{{rest}, port: 80, weight: 10}}");
    check(&other("name: ratings"), &[("reviews.shop:80", 90), ("ratings.shop:80", 10)], &[]);
    let share = [("reviews.shop:80", 90), ("500 no cluster", 10)];
    check(&other("name: nowhere"), &share, &["missing-service"]);
    check(&other("name: ledger, namespace: stock"), &share, &["missing-grant"]);
    check(&other("group: a.test, kind: Bucket, name: b"), &share, &["unsupported-backend"]);
    check("{name: reviews, port: 81}", &[("500 no cluster", 100)], &["missing-port"]);
    check("{name: reviews, port: 80, weight: 0}", &[("500", 100)], &[]);
    check("{name: reviews, port: 80, weight: 0}, {name: ratings, port: 80}", &[("ratings.shop:80", 100)], &[]);
    check("", &[("500", 100)], &["no-effect"]);
    let host = "{group: networking.istio.io, kind: Hostname, name: ratings.shop.svc.cluster.local, port: 80}";
    check(host, &[("ratings.shop:80", 100)], &[]);
    let mirrored = "{name: reviews, port: 80, filters: [{type: URLRewrite, urlRewrite: {hostname: b.test}}]}";
    check(mirrored, &[("500 no cluster", 100)], &["unsupported-filter"]);
}

#[test]
fn a_grant_allows_backends_of_another_namespace() {
    let grant =
        |from: &str, to: &str| object_of(API, "ReferenceGrant", "g", "stock", &format!("from: [{from}]\nto: [{to}]"));
    let check = |grant: &str, expected: &str| {
        let rule = "parentRefs: [{name: gate}]\nrules: [{backendRefs: [{name: ledger, namespace: stock, port: 80}]}]";
        let mesh = Mesh::new(&(gate(PLAIN) + &http_route("r", rule) + grant));
        let got = gateway(&mesh).decide(to(80, None), "GET a.test /");
        assert!(got.ends_with(expected), "{grant}: {got}");
    };
    let routes = "{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}";
    let (allowed, refused) = ("ledger.stock:80", "500 no cluster");
    check(&grant(routes, "{group: '', kind: Service}"), allowed);
    check(&grant(routes, "{group: '', kind: Service, name: ledger}"), allowed);
    check(&grant(routes, "{group: '', kind: Service, name: other}"), refused);
    check(&grant(routes, "{group: '', kind: Secret}"), refused);
    check(&grant(&routes.replace("HTTPRoute", "GRPCRoute"), "{group: '', kind: Service}"), refused);
    check(&grant(&routes.replace("shop", "far"), "{group: '', kind: Service}"), refused);
}

#[test]
fn hosts_meet_those_of_listeners() {
    let check = |listeners: &str, route: &str, request: &str, expected: &str| {
        let spec = format!("{route}\nrules: [{{backendRefs: [{{name: reviews, port: 80}}]}}]");
        let mesh = Mesh::new(&(gate(listeners) + &http_route("r", &spec)));
        let got = gateway(&mesh).decide(to(80, None), request);
        let got = if got.ends_with("reviews.shop:80") { "reviews" } else { &got };
        assert_eq!(got, expected, "{listeners} {route} {request}: {:?}", mesh.codes);
    };
    let wide = "{name: wide, port: 80, protocol: HTTP, hostname: '*.test'}";
    let precise = "{name: precise, port: 80, protocol: HTTP, hostname: a.test}";
    let both = format!("{wide}, {precise}");
    let gate = "parentRefs: [{name: gate}]";
    let to_wide = "parentRefs: [{name: gate, sectionName: wide}]";
    check(wide, gate, "GET a.test /", "reviews");
    check(wide, gate, "GET a.other /", "404");
    check(wide, &format!("{gate}\nhostnames: [a.test, a.other]"), "GET a.test /", "reviews");
    check(wide, &format!("{gate}\nhostnames: [a.test, a.other]"), "GET b.test /", "404");
    check(wide, &format!("{gate}\nhostnames: [a.test, a.other]"), "GET a.other /", "404");
    check(precise, &format!("{gate}\nhostnames: ['*.test']"), "GET a.test /", "reviews");
    check(precise, &format!("{gate}\nhostnames: ['*.test']"), "GET b.test /", "404");
    // Requests for the host of a more specific listener are its own.
    check(&both, &format!("{to_wide}\nhostnames: [a.test, b.test]"), "GET b.test /", "reviews");
    check(&both, &format!("{to_wide}\nhostnames: [a.test, b.test]"), "GET a.test /", "404");
    check(&both, gate, "GET a.test /", "reviews");
    check(&both, "parentRefs: [{name: gate, port: 80}]", "GET a.test /", "reviews");
    check(&both, "parentRefs: [{name: gate, port: 81}]", "GET a.test /", "404");
}

#[test]
fn what_cannot_attach_is_named() {
    let check = |listener: &str, route: &str, codes: &[&str]| {
        let spec = format!("{route}\nrules: [{{backendRefs: [{{name: ledger, port: 80}}]}}]");
        let mesh = Mesh::new(&(gate(listener) + &object_of(API, "HTTPRoute", "r", "stock", &spec)));
        assert_eq!(mesh.codes, codes, "{listener} {route}");
        let got = gateway(&mesh).decide(to(80, None), "GET a.test /");
        assert_eq!(got.ends_with("ledger.stock:80"), codes.is_empty(), "{listener} {route}: {got}");
    };
    let listener =
        |allowed: &str| format!("{{name: http, port: 80, protocol: HTTP, hostname: a.test, allowedRoutes: {allowed}}}");
    let gate = "parentRefs: [{name: gate, namespace: shop}]";
    let all = listener("{namespaces: {from: All}}");
    check(&all, gate, &[]);
    check(&listener("{namespaces: {from: Same}}"), gate, &["not-allowed"]);
    check(&listener("{kinds: [{kind: GRPCRoute}], namespaces: {from: All}}"), gate, &["not-allowed"]);
    check(&listener("{kinds: [{kind: HTTPRoute}], namespaces: {from: All}}"), gate, &[]);
    let selector = |labels: &str| listener(&format!("{{namespaces: {{from: Selector, selector: {labels}}}}}"));
    check(&selector("{matchLabels: {kubernetes.io/metadata.name: stock}}"), gate, &[]);
    check(&selector("{matchLabels: {kubernetes.io/metadata.name: shop}}"), gate, &["not-allowed"]);
    check(&selector("{matchExpressions: [{key: team, operator: DoesNotExist}]}"), gate, &[]);
    check(&all, "parentRefs: [{name: gate}]", &["missing-gateway"]);
    check(&all, "parentRefs: [{name: gate, namespace: shop, sectionName: https}]", &["missing-listener"]);
    check(&all, &format!("{gate}\nhostnames: [b.test]"), &["host-not-served"]);
    check(&all, "parentRefs: [{group: a.test, kind: Lake, name: gate}]", &["unsupported-parent"]);
    check(&all, "parentRefs: [{group: '', kind: Service, name: nowhere}]", &["missing-service"]);
}

#[test]
fn gateways_of_other_classes_and_without_proxies_are_named() {
    let check = |class: &str, rest: &str, codes: &[&str], is_served: bool| {
        let gate = gate(PLAIN).replace("gatewayClassName: istio", &format!("gatewayClassName: {class}"));
        let rule = "parentRefs: [{name: gate}]\nrules: [{backendRefs: [{name: reviews, port: 80}]}]";
        let mesh = Mesh::new(&(gate + &http_route("r", rule) + rest));
        assert_eq!(mesh.codes, codes, "{class} {rest}");
        let got = gateway(&mesh).decide(to(80, None), "GET a.test /");
        assert_eq!(got.ends_with("reviews.shop:80"), is_served, "{class} {rest}: {got}");
    };
    let class = |controller: &str| {
        format!(
            "apiVersion: {API}\nkind: GatewayClass\nmetadata: {{name: own}}\nspec: {{controllerName: {controller}}}\n---\n"
        )
    };
    check("istio", "", &[], true);
    check("evenkeel", "", &[], true);
    check("own", &class("istio.io/gateway-controller"), &[], true);
    check("own", &class("evenkeel.dev/gateway-controller"), &[], true);
    check("own", &class("a.test/controller"), &["foreign-class"], false);
    check("own", "", &["missing-class"], false);
    check("istio-waypoint", "", &["foreign-class"], false);
    // A Pod of another namespace is no proxy of the Gateway.
    let mesh = Mesh::new(&gate(PLAIN));
    let elsewhere = mesh.resources("router gate-0.stock");
    assert_eq!(crate::scenario::as_json(&elsewhere)["LDS"], serde_json::Value::Null);
    let lonely = Mesh::new(&object_of(
        API,
        "Gateway",
        "lonely",
        "shop",
        &format!("gatewayClassName: istio\nlisteners: [{PLAIN}]"),
    ));
    assert_eq!(lonely.codes, ["selects-nothing"]);
}

#[test]
fn a_gateway_may_name_the_service_of_its_proxies() {
    let check = |address: &str, codes: &[&str]| {
        let service =
            object_of("v1", "Service", "edge", "shop", "selector: {app: edge}\nports: [{name: http, port: 80}]");
        let spec =
            format!("gatewayClassName: istio\naddresses: [{{type: Hostname, value: {address}}}]\nlisteners: [{PLAIN}]");
        let rule = "parentRefs: [{name: manual}]\nrules: [{backendRefs: [{name: reviews, port: 80}]}]";
        let mesh = Mesh::new(&(service + &object_of(API, "Gateway", "manual", "shop", &spec) + &http_route("r", rule)));
        assert_eq!(mesh.codes, codes, "{address}");
        let got = mesh.proxy("router edge-0.shop").decide(to(80, None), "GET a.test /");
        assert_eq!(got.ends_with("reviews.shop:80"), codes.is_empty(), "{address}: {got}");
    };
    check("edge", &[]);
    check("edge.shop.svc.cluster.local", &[]);
    check("nowhere", &["missing-service"]);
}

#[test]
fn tls_ends_at_a_listener_with_a_certificate() {
    let check = |certificates: &str, codes: &[&str], is_served: bool| {
        let listener = format!(
            "{{name: https, port: 443, protocol: HTTPS, hostname: a.test, tls: {{certificateRefs: [{certificates}]}}}}"
        );
        let rule = "parentRefs: [{name: gate}]\nrules: [{backendRefs: [{name: reviews, port: 80}]}]";
        let grant = object_of(
            API,
            "ReferenceGrant",
            "g",
            "stock",
            "from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}]\nto: [{group: '', kind: Secret, name: granted}]",
        );
        let mesh = Mesh::new(&(gate(&listener) + &http_route("r", rule) + &grant));
        assert_eq!(mesh.codes, codes, "{certificates}");
        let got = gateway(&mesh).decide(to(443, Some("a.test")), "GET a.test /");
        assert_eq!(got.ends_with("reviews.shop:80"), is_served, "{certificates}: {got}");
    };
    // The Secret is not there, so no handshake succeeds; the listener is.
    check("{name: a}", &["missing-secret"], true);
    check("{name: granted, namespace: stock}", &["missing-secret"], true);
    check("{name: other, namespace: stock}", &["missing-grant", "missing-secret"], false);
    check("{name: a, kind: ConfigMap}", &["missing-secret", "unsupported-value"], false);
}

/// The Host of a request and the listener that SNI chose; the rows are those of the Gateway API's conformance test.
#[test]
fn misdirected_requests_get_421() {
    let listener = |name: &str, host: &str| {
        format!("{{name: {name}, port: 443, protocol: HTTPS, {host}tls: {{certificateRefs: [{{name: a}}]}}}}")
    };
    let all = [
        listener("any", ""),
        listener("second", "hostname: second.org, "),
        listener("wild", "hostname: '*.wild.org', "),
        listener("fourth", "hostname: fourth.wild.org, "),
    ];
    let route = |name: &str, section: &str, hosts: &str, service: &str| {
        let parent = format!("parentRefs: [{{name: gate{section}}}]\n{hosts}");
        http_route(name, &format!("{parent}rules: [{{backendRefs: [{{name: {service}, port: 80}}]}}]"))
    };
    let both = "hostnames: [third.wild.org, fourth.wild.org, fifth.wild.org]\n";
    let routes = [
        route("r1", "", "hostnames: [first.org]\n", "reviews"),
        route("r2", ", sectionName: second", "", "reviews"),
        route("r3", ", sectionName: wild", both, "reviews"),
        route("r4", ", sectionName: fourth", both, "reviews"),
    ];
    let mesh = |listeners: &[String]| Mesh::new(&(gate(&listeners.join(", ")) + &routes.concat()));
    let check = |listeners: &[String], sni: &'static str, host: &str, expected: &str| {
        let got = gateway(&mesh(listeners)).decide(to(443, Some(sni)), &format!("GET {host} /"));
        let got = if got.ends_with("reviews.shop:80") { "reviews" } else { &got };
        assert_eq!(got, expected, "{sni} {host}");
    };
    check(&all, "first.org", "first.org", "reviews");
    check(&all, "first.org", "second.org", "421");
    check(&all, "first.org", "unknown.org", "404");
    check(&all, "second.org", "second.org", "reviews");
    check(&all, "second.org", "first.org", "421");
    check(&all, "second.org", "unknown.org", "421");
    check(&all, "third.wild.org", "third.wild.org", "reviews");
    check(&all, "third.wild.org", "fifth.wild.org", "reviews");
    check(&all, "third.wild.org", "fourth.wild.org", "421");
    check(&all, "third.wild.org", "second.org", "421");
    check(&all, "third.wild.org", "unknown.org", "421");
    check(&all, "fourth.wild.org", "fourth.wild.org", "reviews");
    check(&all, "fourth.wild.org", "fifth.wild.org", "421");
    check(&all, "unknown.org", "first.org", "reviews");
    check(&all, "unknown.org", "unknown.org", "404");
    // A listener that is alone at its port.
    check(&all[1..2], "second.org", "first.org", "404");
}

/// Istio's option for certificates of clients; one that is not known could ask for more than is done, and closes.
#[test]
fn options_of_tls_say_who_must_show_a_certificate() {
    let check = |options: &str, expected: Option<Option<bool>>| {
        let tls = format!("{{certificateRefs: [{{name: a}}], options: {{{options}}}}}");
        let listener = format!("{{name: https, port: 443, protocol: HTTPS, hostname: a.test, tls: {tls}}}");
        let mesh = Mesh::new(&gate(&listener));
        let own = mesh.snapshot.gateways.iter().filter(|gateway| gateway.name.starts_with("gate-"));
        let servers = own.flat_map(|gateway| &gateway.servers);
        let modes = servers.filter_map(|server| server.tls.as_ref()).map(|tls| match &tls.mode {
            ServerTlsMode::Mutual { admitted, .. } => Some(*admitted == AdmittedClients::VerifiedOrNone),
            _ => None,
        });
        assert_eq!(modes.collect::<Vec<_>>(), Vec::from_iter(expected), "{options}");
        let is_named = mesh.codes.contains(&"unsupported-field");
        assert_eq!(is_named, expected.is_none() || options.contains("example.com"), "{options}: {:?}", mesh.codes);
    };
    let mode = |mode: &str| format!("gateway.istio.io/tls-terminate-mode: {mode}");
    check("", Some(None));
    check(&mode("SIMPLE"), Some(None));
    check(&mode("MUTUAL"), Some(Some(false)));
    check(&mode("OPTIONAL_MUTUAL"), Some(Some(true)));
    check(&mode("ISTIO_MUTUAL"), None);
    check("gateway.istio.io/other: a", None);
    check("example.com/other: a", Some(None));
}

#[test]
fn routes_in_the_mesh() {
    let route = |name: &str, namespace: &str, rest: &str| {
        let parent = "{group: '', kind: Service, name: reviews, namespace: shop}";
        object_of(API, "HTTPRoute", name, namespace, &format!("parentRefs: [{parent}]\nrules: [{rest}]"))
    };
    let check = |objects: &str, client: &str, request: &str, expected: &str| {
        let got = Mesh::new(objects).proxy(client).decide(HTTP, request);
        assert!(got.ends_with(expected), "{objects}: {client}: {got}");
    };
    let (own, other) = ("sidecar client-0.shop", "sidecar ledger-0.stock");
    let to_ratings = "{matches: [{path: {value: /a}}], backendRefs: [{name: ratings, port: 80}]}";
    let producer = route("p", "shop", to_ratings);
    check(&producer, own, "GET reviews /a", "ratings.shop:80");
    check(&producer, own, "GET reviews /b", "404");
    check(&producer, other, "GET reviews.shop /a", "ratings.shop:80");
    // A consumer's route is for its namespace only, and precedes the producer's.
    let consumer = route("c", "stock", "{backendRefs: [{name: ledger, port: 80}]}");
    let both = format!("{producer}{consumer}");
    check(&both, own, "GET reviews /a", "ratings.shop:80");
    check(&both, other, "GET reviews.shop /a", "ledger.stock:80");
    // Several objects of one sort are merged, whatever their order.
    let rest = route("z", "shop", "{backendRefs: [{name: reviews, port: 8080}]}");
    for objects in [format!("{producer}{rest}"), format!("{rest}{producer}")] {
        check(&objects, own, "GET reviews /a", "ratings.shop:80");
        check(&objects, own, "GET reviews /b", "reviews.shop:8080");
        assert_eq!(Mesh::new(&objects).codes, Vec::<&str>::new());
    }
    // A rule for everything hides no other, also of another object.
    let (of_digits, of_all) = (
        route(
            "d",
            "shop",
            "{matches: [{path: {type: RegularExpression, value: '/[0-9]+'}}], backendRefs: [{name: ratings, port: 80}]}",
        ),
        route("e", "shop", "{matches: [{path: {value: /}}], backendRefs: [{name: reviews, port: 8080}]}"),
    );
    for objects in [format!("{of_digits}{of_all}"), format!("{of_all}{of_digits}")] {
        check(&objects, own, "GET reviews /12", "ratings.shop:80");
        check(&objects, own, "GET reviews /b", "reviews.shop:8080");
    }
    // Only calls of the port.
    let of_port = producer.replace("namespace: shop}]", "namespace: shop, port: 8080}]");
    check(&of_port, own, "GET reviews /b", "reviews.shop:80");
    // The older object decides, a VirtualService or not.
    let service = virtual_service(
        "v",
        "shop",
        "hosts: [reviews]\nhttp: [{route: [{destination: {host: reviews, port: {number: 8080}}}]}]",
    );
    check(&format!("{service}{producer}"), own, "GET reviews /a", "reviews.shop:8080");
    check(&format!("{producer}{service}"), own, "GET reviews /a", "ratings.shop:80");
    assert_eq!(Mesh::new(&format!("{service}{producer}")).codes, ["duplicate-host"]);
}

#[test]
fn a_route_for_a_service_entry() {
    let entry = object_of(
        "networking.istio.io/v1",
        "ServiceEntry",
        "far",
        "shop",
        "hosts: [far.test]\naddresses: [10.96.0.1]\nports: [{number: 80, name: http, protocol: HTTP}]\nresolution: STATIC",
    );
    let spec = "parentRefs: [{group: networking.istio.io, kind: ServiceEntry, name: far}]\nrules: [{backendRefs: [{name: ratings, port: 80}]}]";
    let mesh = Mesh::new(&(entry + &http_route("r", spec)));
    let got = mesh.client().decide(HTTP, "GET far.test /");
    assert_eq!(got, "far.test/ to ratings.shop:80");
}

#[test]
fn calls_of_grpc() {
    let check = |conditions: &str, request: &str, expected: &str| {
        let rules = format!("[{{matches: [{conditions}], backendRefs: [{{name: ratings, port: 80}}]}}]");
        let route = object_of(API, "GRPCRoute", "r", "shop", &format!("parentRefs: [{{name: gate}}]\nrules: {rules}"));
        let got = gateway(&Mesh::new(&(gate(PLAIN) + &route))).decide(to(80, None), request);
        assert!(got.ends_with(expected), "{conditions}: {request}: {got}");
    };
    let ratings = "ratings.shop:80";
    check("{method: {service: a.B, method: C}}", "POST a.test /a.B/C", ratings);
    check("{method: {service: a.B, method: C}}", "POST a.test /a.B/D", "404");
    check("{method: {service: a.B}}", "POST a.test /a.B/D", ratings);
    check("{method: {service: a.B}}", "POST a.test /a.BC/D", "404");
    check("{method: {method: C}}", "POST a.test /x.Y/C", ratings);
    check("{method: {method: C}}", "POST a.test /x.Y/D", "404");
    check("{method: {type: RegularExpression, service: 'a\\..*'}}", "POST a.test /a.B/D", ratings);
    check("{method: {type: RegularExpression, service: 'a\\..*'}}", "POST a.test /b.B/D", "404");
    check("{headers: [{name: x-a, value: b}]}", "POST a.test /a.B/C x-a=b", ratings);
    check("{headers: [{name: x-a, value: b}]}", "POST a.test /a.B/C", "404");
}

/// Connections go where the listener and the server name say.
#[test]
fn connections() {
    let listeners = "{name: tcp, port: 9000, protocol: TCP}, \
                     {name: pass, port: 8443, protocol: TLS, hostname: '*.test', tls: {mode: Passthrough}}, \
                     {name: end, port: 443, protocol: TLS, hostname: b.test, tls: {mode: Terminate, certificateRefs: [{name: a}]}}";
    let route = |kind: &str, section: &str, rest: &str| {
        let spec = format!("parentRefs: [{{name: gate, sectionName: {section}}}]\n{rest}");
        object_of(API, kind, &format!("{}-{section}", kind.to_lowercase()), "shop", &spec)
    };
    let backends = |backends: &str| format!("rules: [{{backendRefs: [{backends}]}}]");
    let ratings = backends("{name: ratings, port: 9000}");
    let check = |route: &str, port: u16, sni: Option<&'static str>, expected: &str| {
        let mesh = Mesh::new(&(gate(listeners) + route));
        let got = gateway(&mesh).decide(to(port, sni), "");
        assert!(got.ends_with(expected), "{route}: {port} {sni:?}: {got} {:?}", mesh.codes);
    };
    let tcp = route("TCPRoute", "tcp", &ratings);
    check(&tcp, 9000, None, "ratings.shop:9000");
    check(&route("TCPRoute", "tcp", &backends("{name: ledger, namespace: stock, port: 80}")), 9000, None, "no cluster");
    check(&route("TCPRoute", "tcp", &backends("{name: ratings, port: 9000, weight: 0}")), 9000, None, "no cluster");
    check(&route("TCPRoute", "pass", &ratings), 8443, Some("a.test"), "no listener");
    check(&route("TCPRoute", "end", &ratings), 443, Some("b.test"), "ratings.shop:9000");
    let named = |host: &str| format!("hostnames: [{host}]\n{ratings}");
    let passed = route("TLSRoute", "pass", &named("a.test"));
    check(&passed, 8443, Some("a.test"), "ratings.shop:9000");
    check(&passed, 8443, Some("c.test"), "closed");
    check(&route("TLSRoute", "pass", &named("a.other")), 8443, Some("a.other"), "no listener");
    check(&route("TLSRoute", "end", &named("b.test")), 443, Some("b.test"), "ratings.shop:9000");
    // In the mesh.
    let service = "parentRefs: [{group: '', kind: Service, name: reviews, port: 9000}]\n";
    let mesh = Mesh::new(&object_of(API, "TCPRoute", "r", "shop", &format!("{service}{ratings}")));
    let arrival = Arrival { listener: "10.96.0.1_9000", to: "10.96.0.1:9000", ..HTTP };
    assert_eq!(mesh.client().decide(arrival, ""), "ratings.shop:9000");
}
