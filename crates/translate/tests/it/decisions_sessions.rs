//! Sessions of rules of HTTPRoutes and GRPCRoutes: which cookie or header the proxies use, and what they cannot honour.

use serde_json::{Value, json};

use crate::calls::{Mesh, object_of};

/// The API version of the Gateway API's kinds.
const API: &str = "gateway.networking.k8s.io/v1";
const BACKEND: &str = "backendRefs: [{name: reviews, port: 80}]";
const FILTER: &str = "envoy.filters.http.stateful_session";

/// A Gateway with a listener for HTTP and one for HTTPS, its proxy, and a route with these rules there.
fn mesh(kind: &str, rules: &str) -> Mesh {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: gate-0, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: gate}}\n\
               spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.1.1, conditions: [{type: Ready, status: \"True\"}]}\n---\n";
    let listeners = "{name: http, port: 80, protocol: HTTP}, \
                     {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}]}}";
    let gateway =
        object_of(API, "Gateway", "gate", "shop", &format!("gatewayClassName: istio\nlisteners: [{listeners}]"));
    let spec = format!("parentRefs: [{{name: gate}}]\nrules: [{rules}]");
    Mesh::new(&(pod.to_owned() + &gateway + &object_of(API, kind, "r", "shop", &spec)))
}

/// The sessions of each route of the table whose name begins so.
fn sessions(mesh: &Mesh, table: &str) -> Vec<Value> {
    let proxy = mesh.proxy("router gate-0.shop");
    let table = proxy.names("RDS").into_iter().find(|name| name.starts_with(table)).expect("its table");
    let routes = proxy.resource("RDS", table)["virtual_hosts"][0]["routes"].as_array().cloned().unwrap_or_default();
    let session = |route: &Value| {
        let state = &route["typed_per_filter_config"][FILTER]["stateful_session"]["session_state"]["typed_config"];
        let name = state.get("name").map(|name| json!({"header": name}));
        state.get("cookie").cloned().or(name).unwrap_or_default()
    };
    routes.iter().map(session).collect()
}

fn check(kind: &str, rules: &str, expected: &[Value], codes: &[&str]) {
    let mesh = mesh(kind, rules);
    assert_eq!(sessions(&mesh, "http.80"), expected, "{kind} {rules}");
    assert_eq!(mesh.codes, codes, "{kind} {rules}");
}

fn cookie(name: &str, path: &str) -> Value {
    json!({"name": name, "path": path, "attributes": [{"name": "SameSite", "value": "Strict"}]})
}

#[test]
fn a_rule_names_its_sessions() {
    let rule = |session: &str| format!("{{sessionPersistence: {session}, {BACKEND}}}");
    // The Secret of the HTTPS listener is missing.
    let codes: &[&str] = &["missing-secret"];
    let check = |session: &str, expected: Value| check("HTTPRoute", &rule(session), &[expected], codes);
    check("{sessionName: s}", cookie("s", "/"));
    check("{sessionName: s, type: Cookie, cookieConfig: {lifetimeType: Session}}", cookie("s", "/"));
    check("{sessionName: X-Session, type: Header}", json!({"header": "X-Session"}));
    let permanent = |limit: &str| {
        format!("{{sessionName: s, absoluteTimeout: {limit}, cookieConfig: {{lifetimeType: Permanent}}}}")
    };
    let mut lasting = cookie("s", "/");
    lasting["ttl"] = json!("3600s");
    check(&permanent("1h"), lasting.clone());
    lasting["ttl"] = json!("1s");
    check(&permanent("5ms"), lasting);
}

#[test]
fn a_cookie_is_for_the_path_of_its_condition() {
    let codes: &[&str] = &["missing-secret"];
    let conditions = "matches: [{path: {type: Exact, value: /a/b/c}}, {path: {value: /cart/}}, \
                      {path: {type: RegularExpression, value: '/p/q/[0-9]+/r'}}]";
    let rule = format!("{{{conditions}, sessionPersistence: {{sessionName: s}}, {BACKEND}}}");
    check("HTTPRoute", &rule, &[cookie("s", "/a/b/c"), cookie("s", "/cart"), cookie("s", "/p/q")], codes);
    let of_service = "matches: [{method: {service: a.B}}]";
    let rule = format!("{{{of_service}, sessionPersistence: {{sessionName: s}}, {BACKEND}}}");
    check("GRPCRoute", &rule, &[cookie("s", "/a.B/")], codes);
    let header = format!("{{sessionPersistence: {{sessionName: s, type: Header}}, {BACKEND}}}");
    check("GRPCRoute", &header, &[json!({"header": "s"})], codes);
}

/// Names of their own tell rules apart, and are the same in each build.
#[test]
fn rules_do_not_share_sessions() {
    let rules = format!(
        "{{matches: [{{path: {{value: /a}}}}], sessionPersistence: {{}}, {BACKEND}}}, \
         {{name: named, matches: [{{path: {{value: /b}}}}], sessionPersistence: {{}}, {BACKEND}}}, {{{BACKEND}}}"
    );
    let all = sessions(&mesh("HTTPRoute", &rules), "http.80");
    let names: Vec<&str> = all.iter().filter_map(|cookie| cookie["name"].as_str()).collect();
    assert_eq!(names, ["evenkeel-session-053f2115", "evenkeel-session-28c28116"]);
    assert_eq!(all.last(), Some(&Value::Null), "the last rule has no sessions");
}

#[test]
fn cookies_of_clients_with_tls_are_secure() {
    let rule = format!("{{sessionPersistence: {{sessionName: s}}, {BACKEND}}}");
    let all = sessions(&mesh("HTTPRoute", &rule), "https.443");
    let attributes = json!([{"name": "SameSite", "value": "Strict"}, {"name": "Secure"}]);
    assert_eq!(all, [json!({"name": "s", "path": "/", "attributes": attributes})]);
}

/// What proxies cannot do is said, and the rest applies.
#[test]
fn what_cannot_be_honoured_is_named() {
    let rule = |session: &str| format!("{{sessionPersistence: {{sessionName: s, {session}}}, {BACKEND}}}");
    let check = |rule: &str, expected: Value, code: &'static str| {
        let mut codes = vec!["missing-secret", code];
        codes.sort_unstable();
        check("HTTPRoute", rule, &[expected], &codes);
    };
    check(&rule("idleTimeout: 5m"), cookie("s", "/"), "unsupported-field");
    check(&rule("absoluteTimeout: 5m"), cookie("s", "/"), "no-effect");
    check(&rule("type: Header, absoluteTimeout: 5m"), json!({"header": "s"}), "no-effect");
    check(&rule("absoluteTimeout: 0s, cookieConfig: {lifetimeType: Permanent}"), cookie("s", "/"), "no-effect");
    let shares =
        "{sessionPersistence: {sessionName: s}, backendRefs: [{name: reviews, port: 80}, {name: ratings, port: 80}]}";
    check(shares, cookie("s", "/"), "no-effect");
}

/// A backend without a share gets no requests, so that a session stays.
#[test]
fn a_backend_without_share_moves_no_session() {
    let rule = "{sessionPersistence: {sessionName: s}, backendRefs: [{name: reviews, port: 80}, {name: ratings, port: 80, weight: 0}]}";
    check("HTTPRoute", rule, &[cookie("s", "/")], &["missing-secret"]);
}

/// A rule's own sessions are those of its requests, whatever the label of its Service says.
#[test]
fn a_rule_precedes_the_label_of_its_service() {
    let service = "apiVersion: v1\nkind: Service\n\
                   metadata: {name: cart, namespace: shop, labels: {istio.io/persistent-session: of-service}}\n\
                   spec: {ports: [{name: http, port: 80}]}\n---\n";
    let route = |session: &str| {
        let spec = format!(
            "parentRefs: [{{group: '', kind: Service, name: cart}}]\nrules: [{{{session}backendRefs: [{{name: cart, port: 80}}]}}]"
        );
        object_of(API, "HTTPRoute", "cart", "shop", &spec)
    };
    let check = |session: &str, expected: &str| {
        let proxy = Mesh::new(&(service.to_owned() + &route(session))).client();
        let routes = proxy.routes("cart.shop.svc.cluster.local:80");
        let session = &routes[0]["typed_per_filter_config"][FILTER]["stateful_session"]["session_state"];
        assert_eq!(session["typed_config"]["cookie"]["name"], expected, "{session}");
    };
    check("", "of-service");
    check("sessionPersistence: {sessionName: of-rule}, ", "of-rule");
}

/// Mistakes that an API server refuses are refused, each at its place.
#[test]
fn mistakes_have_their_places() {
    let check = |session: &str, code: &str, at: &str| {
        let text = format!(
            "apiVersion: {API}\nkind: HTTPRoute\nmetadata: {{name: r, namespace: shop}}\n\
             spec:\n  rules:\n  - sessionPersistence: {{{session}}}\n"
        );
        let (_, found) = evenkeel_api::load(&[("r.yaml".into(), text.as_str().into())]);
        let errors: Vec<String> = found.iter().map(|finding| format!("{} {}", finding.code, finding.span)).collect();
        assert_eq!(errors, [format!("{code} r.yaml:6:{at}")], "{session}");
    };
    check("cookieConfig: {lifetimeType: Permanent}", "missing-field", "40");
    check("type: Header, cookieConfig: {lifetimeType: Session}", "conflict", "54");
    check("sessionName: 'a b'", "bad-name", "39");
    check("sessionName: ''", "bad-name", "39");
    check("sessionName: ':path', type: Header", "bad-name", "39");
    check("sessionName: Content-Length, type: Header", "bad-name", "39");
    check("type: Ip", "bad-value", "32");
    check("absoluteTimeout: 5", "wrong-type", "43");
    check(&format!("sessionName: {}", "a".repeat(129)), "bad-name", "39");
}
