//! AuthorizationPolicies that delegate to other services, that match tokens, trust domains and metadata, or that only log.

use serde_json::{Value, json};

use crate::decisions::{Client, PLAIN_HTTP, PLAIN_TCP, mesh, outcome};
use crate::decisions_mesh::{built, resource};
use crate::own_proxy::compile;
use crate::scenario::{translate, view_of};

const SERVICES: &str = "\
---
apiVersion: v1
kind: Service
metadata: {name: authz, namespace: foo}
spec: {clusterIP: 10.96.9.1, selector: {app: authz}, ports: [{name: http, port: 8000}, {name: grpc, port: 9000}]}
";

const PROVIDERS: &str = "\
extensionProviders:
- name: http
  envoyExtAuthzHttp:
    service: authz.foo.svc.cluster.local
    port: 8000
    timeout: 2s
    pathPrefix: /check
    failOpen: true
    clearRouteCache: true
    statusOnError: '503'
    includeRequestHeadersInCheck: [x-ext-authz, x-pre-*, '*-post']
    includeAdditionalHeadersInCheck: {x-own: a%b}
    includeRequestBodyInCheck: {maxRequestBytes: 100, allowPartialMessage: true, packAsBytes: true}
    headersToUpstreamOnAllow: [authorization]
    headersToDownstreamOnDeny: [content-type, set-cookie]
    headersToDownstreamOnAllow: [x-said]
- name: old
  envoyExtAuthzHttp: {service: foo/authz.foo.svc.cluster.local, port: 8000, includeHeadersInCheck: [x-old]}
- name: grpc
  envoyExtAuthzGrpc:
    service: foo/authz.foo.svc.cluster.local
    port: 9000
    timeout: 3s
    failOpen: true
    clearRouteCache: true
    statusOnError: '503'
    includeRequestBodyInCheck: {maxRequestBytes: 100}
- name: grp
  envoyExtAuthzGrpc: {service: authz.foo.svc.cluster.local, port: 9000}
- name: nowhere
  envoyExtAuthzGrpc: {service: nobody.foo.svc.cluster.local, port: 9000}
- name: elsewhere
  envoyExtAuthzGrpc: {service: bar/authz.foo.svc.cluster.local, port: 9000}
- name: portless
  envoyExtAuthzGrpc: {service: authz.foo.svc.cluster.local, port: 9999}
- name: prometheus
  prometheus: {}
";

fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{{spec}}}\n"
    )
}

fn custom(name: &str, provider: &str, rules: &str) -> String {
    policy(name, &format!("action: CUSTOM, provider: {{name: {provider}}}, rules: {rules}"))
}

/// How a call to a port of `web-0` ends.
fn call(policies: &str, client: &Client, port: u16, request: &str) -> String {
    let (snapshot, _) = built(PROVIDERS, &format!("{SERVICES}{policies}"));
    let (config, refused) = compile(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot));
    assert!(refused.is_empty(), "{policies}: {refused:?}");
    outcome(&config, "virtualInbound", client, &format!("10.244.0.3:{port}"), request, 0)
}

/// The configurations of filters of a type, of one proxy's inbound listener.
fn filters(policies: &str, kind: &str) -> Vec<Value> {
    let more = format!("{SERVICES}{policies}");
    let listener = resource(PROVIDERS, &more, "sidecar web-0.shop", "LDS", "virtualInbound");
    let mut found = Vec::new();
    collect(&listener, kind, &mut found);
    found.into_iter().fold(Vec::new(), |mut each, one| {
        if !each.contains(&one) {
            each.push(one);
        }
        each
    })
}

fn collect(value: &Value, kind: &str, found: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            if fields.get("@type").and_then(Value::as_str).is_some_and(|name| name.ends_with(kind)) {
                found.push(value.clone());
            }
            fields.values().for_each(|value| collect(value, kind, found));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, kind, found)),
        _ => {}
    }
}

const PASSES: &str = "InboundPassthroughCluster";
const HTTP_AUTHZ: &str = "filters.http.ext_authz.v3.ExtAuthz";
const NETWORK_AUTHZ: &str = "filters.network.ext_authz.v3.ExtAuthz";

#[test]
fn providers_are_asked_as_istiod_has_it() {
    let admin = "[{to: [{operation: {paths: [/admin]}}]}]";
    let http = &filters(&custom("p", "http", admin), HTTP_AUTHZ)[0];
    let exact = |name: &str| json!({"exact": name, "ignore_case": true});
    for (pointer, expected) in [
        ("/http_service/server_uri/cluster", json!("outbound|8000||authz.foo.svc.cluster.local")),
        ("/http_service/server_uri/uri", json!("http://authz.foo.svc.cluster.local")),
        ("/http_service/server_uri/timeout", json!("2s")),
        ("/http_service/path_prefix", json!("/check")),
        ("/http_service/authorization_request/headers_to_add/0", json!({"key": "x-own", "value": "a%%b"})),
        ("/http_service/authorization_response/allowed_upstream_headers/patterns/0", exact("authorization")),
        ("/http_service/authorization_response/allowed_client_headers/patterns/1", exact("set-cookie")),
        ("/http_service/authorization_response/allowed_client_headers_on_success/patterns/0", exact("x-said")),
        ("/allowed_headers/patterns/0", exact("x-ext-authz")),
        ("/allowed_headers/patterns/1", json!({"prefix": "x-pre-", "ignore_case": true})),
        ("/allowed_headers/patterns/2", json!({"suffix": "-post", "ignore_case": true})),
        ("/failure_mode_allow", json!(true)),
        ("/clear_route_cache", json!(true)),
        ("/status_on_error/code", json!("ServiceUnavailable")),
        ("/with_request_body/max_request_bytes", json!(100)),
        ("/with_request_body/allow_partial_message", json!(true)),
        ("/with_request_body/pack_as_bytes", json!(true)),
        ("/transport_api_version", json!("V3")),
        ("/filter_enabled_metadata/filter", json!("envoy.filters.http.rbac")),
        ("/filter_enabled_metadata/path/0/key", json!("istio_ext_authz_shadow_effective_policy_id")),
        ("/filter_enabled_metadata/value/string_match/prefix", json!("istio-ext-authz-http-ns[")),
    ] {
        assert_eq!(http.pointer(pointer), Some(&expected), "{pointer} of {http}");
    }
    let old = &filters(&custom("p", "old", admin), HTTP_AUTHZ)[0];
    assert_eq!(old.pointer("/allowed_headers/patterns/0"), Some(&exact("x-old")));
    assert_eq!(old.pointer("/http_service/server_uri/timeout"), Some(&json!("600s")));
    let policies = custom("p", "grpc", admin);
    for (kind, rbac) in [(HTTP_AUTHZ, "http"), (NETWORK_AUTHZ, "network")] {
        let grpc = &filters(&policies, kind)[0];
        for (pointer, expected) in [
            ("/grpc_service/envoy_grpc/cluster_name", json!("outbound|9000||authz.foo.svc.cluster.local")),
            ("/grpc_service/envoy_grpc/authority", json!("authz.foo.svc.cluster.local")),
            ("/grpc_service/timeout", json!("3s")),
            ("/failure_mode_allow", json!(true)),
            ("/filter_enabled_metadata/filter", json!(format!("envoy.filters.{rbac}.rbac"))),
        ] {
            assert_eq!(grpc.pointer(pointer), Some(&expected), "{pointer} of {grpc}");
        }
    }
    // A provider that speaks HTTP decides about no connection.
    assert_eq!(filters(&custom("p", "http", admin), NETWORK_AUTHZ), Vec::<Value>::new());
    // Bytes that were not recognized as HTTP might be a request to the server, unless the port is declared to carry others.
    let denied = "denied by istio-ext-authz-http-ns[shop]-policy[p]-rule[0]-deny-of-what-is-not-HTTP";
    for client in [&PLAIN_TCP, &Client { alpn: &["istio"], ..mesh("shop/sa/web") }] {
        assert_eq!(call(&custom("p", "http", admin), client, 9999, ""), denied, "{}", client.identity);
        assert_eq!(call(&custom("p", "http", "[{to: [{operation: {ports: ['80']}}]}]"), client, 9999, ""), PASSES);
        assert_eq!(call(&custom("p", "grpc", admin), client, 9999, ""), PASSES);
    }
    assert_eq!(call(&custom("p", "http", admin), &PLAIN_TCP, 8082, ""), "inbound|8082||");
    // One pair of filters for each provider.
    let both = custom("a", "grpc", admin) + &custom("b", "grp", "[{}]");
    assert_eq!(filters(&both, HTTP_AUTHZ).len(), 2);
    // One that is only tried out asks nobody, and one without rules neither.
    let dry = custom("p", "grpc", admin)
        .replace("namespace: shop}", "namespace: shop, annotations: {istio.io/dry-run: 'true'}}");
    assert_eq!(filters(&dry, HTTP_AUTHZ), Vec::<Value>::new());
    assert_eq!(filters(&custom("p", "grpc", "[]"), HTTP_AUTHZ), Vec::<Value>::new());
}

#[test]
fn a_provider_that_cannot_be_asked_refuses() {
    let rules = "[{to: [{operation: {paths: [/admin]}}]}]";
    for provider in ["unknown", "nowhere", "elsewhere", "portless", "prometheus"] {
        let policies = custom("p", provider, rules);
        let denied =
            format!("denied by istio-ext-authz-{provider}-ns[shop]-policy[p]-rule[0]-deny-due-to-bad-CUSTOM-action");
        assert_eq!(call(&policies, &PLAIN_HTTP, 8080, "GET web /admin"), denied);
        assert_eq!(call(&policies, &PLAIN_HTTP, 8080, "GET web /"), "inbound|8080|| web/", "{provider}");
        // On a TCP port the condition on the path is left out.
        assert_eq!(call(&policies, &PLAIN_TCP, 8082, ""), denied);
    }
    // What is written wrong is refused as a whole.
    for spec in ["action: CUSTOM, rules: [{}]", "action: CUSTOM, provider: {name: ''}, rules: [{}]"] {
        assert_eq!(
            call(&policy("p", spec), &PLAIN_HTTP, 8080, "GET web /"),
            "denied by ns[shop]-policy[p]-refused-rule[0]",
            "{spec}"
        );
    }
    let misplaced = policy("p", "action: ALLOW, provider: {name: grpc}, rules: [{}]");
    assert_eq!(call(&misplaced, &PLAIN_HTTP, 8080, "GET web /"), "denied by ns[shop]-policy[p]-refused");
}

#[test]
fn trust_domains_are_compared() {
    let check = |list: &str, expected: bool| {
        let policies = policy("p", &format!("rules: [{{from: [{{source: {{{list}}}}}]}}]"));
        let ends = call(&policies, &mesh("shop/sa/web"), 8080, "GET web /");
        assert_eq!(ends == "inbound|8080|| web/", expected, "{list}: {ends}");
        // Without a certificate there is no trust domain.
        let plain = call(&policies, &PLAIN_HTTP, 8080, "GET web /");
        assert_eq!(plain == "inbound|8080|| web/", list.starts_with("notTrust"), "{list}: {plain}");
    };
    check("trustDomains: [cluster.local]", true);
    check("trustDomains: [other.example]", false);
    check("trustDomains: [other.example, cluster.local]", true);
    check("trustDomains: ['cluster.*']", true);
    check("trustDomains: ['*.local']", true);
    check("trustDomains: ['*']", true);
    check("trustDomains: [cluster]", false);
    check("trustDomains: ['clus*ter']", false);
    check("notTrustDomains: [cluster.local]", false);
    check("notTrustDomains: [other.example]", true);
    // As a condition.
    let ends = |lists: &str, client: &Client| {
        let condition = format!("when: [{{key: source.trustDomain, {lists}}}]");
        call(&policy("p", &format!("action: DENY, rules: [{{{condition}}}]")), client, 8080, "GET web /")
    };
    let denied = "denied by ns[shop]-policy[p]-rule[0]";
    // An identity without a path is of its trust domain, and any client with a certificate is of some.
    for (lists, client, expected) in [
        ("values: [cluster.local]", mesh("shop/sa/web"), denied),
        ("values: ['*']", mesh("shop/sa/web"), denied),
        ("values: ['*']", mesh("spiffe://cluster.local"), denied),
        ("values: ['*']", PLAIN_HTTP, "inbound|8080|| web/"),
        ("values: [other.example]", mesh("shop/sa/web"), "inbound|8080|| web/"),
        ("notValues: [other.example]", mesh("shop/sa/web"), denied),
        ("notValues: [cluster.local]", mesh("shop/sa/web"), "inbound|8080|| web/"),
    ] {
        assert_eq!(ends(lists, &client), expected, "{lists} {}", client.identity);
    }
}

#[test]
fn texts_may_follow_what_stands_for_any_segments() {
    let check = |template: &str, path: &str, expected: bool| {
        let spec = format!("action: DENY, rules: [{{to: [{{operation: {{paths: ['{template}']}}}}]}}]");
        let denied = call(&policy("p", &spec), &PLAIN_HTTP, 8080, &format!("GET web {path}"));
        assert_eq!(denied == "denied by ns[shop]-policy[p]-rule[0]", expected, "{template} {path}: {denied}");
    };
    check("/{**}/path/template", "/a/b/path/template", true);
    check("/{**}/path/template", "/a/path/template/b", false);
    check("/a/{*}/{**}/end", "/a/b/c/d/end", true);
    check("/a/{*}/{**}/end", "/b/b/c/end", false);
    // One such operator, and behind the others: what is refused denies every path.
    let refused = policy("p", "action: DENY, rules: [{to: [{operation: {paths: ['/{**}/{*}/a']}}]}]");
    let denied = call(&refused, &PLAIN_HTTP, 8080, "GET web /");
    assert!(denied.starts_with("denied by ns[shop]-policy[p]-refused"), "{denied}");
}

#[test]
fn an_empty_value_is_one_and_accounts_are_of_the_policys_namespace() {
    let denied = "denied by ns[shop]-policy[p]-rule[0]";
    let check = |rule: &str, client: &Client, request: &str, expected: &str| {
        let ends = call(&policy("p", &format!("action: DENY, rules: [{{{rule}}}]")), client, 8080, request);
        assert_eq!(ends, expected, "{rule}: {request}");
    };
    let header = |name: &str| format!("when: [{{key: 'request.headers[{name}]', values: ['*']}}]");
    check(&header("x-debug"), &PLAIN_HTTP, "GET web / x-debug=", denied);
    check(&header("x-debug"), &PLAIN_HTTP, "GET web /", "inbound|8080|| web/");
    for rule in
        [&header(":authority"), "to: [{operation: {hosts: ['*']}}]", "to: [{operation: {notHosts: [a.example]}}]"]
    {
        check(rule, &PLAIN_HTTP, "GET  /", denied);
    }
    check("to: [{operation: {notHosts: ['*']}}]", &PLAIN_HTTP, "GET  /", "inbound|8080|| /");
    let account = |list: &str| format!("when: [{{key: source.serviceAccount, {list}}}]");
    check(&account("values: [web]"), &mesh("shop/sa/web"), "GET web /", denied);
    check(&account("values: [shop/web]"), &mesh("shop/sa/web"), "GET web /", denied);
    check(&account("values: [web]"), &mesh("bank/sa/web"), "GET web /", "inbound|8080|| web/");
    check(&account("notValues: [web]"), &mesh("shop/sa/web"), "GET web /", "inbound|8080|| web/");
    check(&account("notValues: [web]"), &mesh("bank/sa/web"), "GET web /", denied);
}

#[test]
fn claims_of_tokens_are_looked_for_where_the_filter_leaves_them() {
    // Without a token nothing is known of it.
    for allow in [
        "from: [{source: {requestPrincipals: ['*']}}]",
        "from: [{source: {requestPrincipals: ['issuer/subject']}}]",
        "when: [{key: request.auth.principal, values: ['*']}]",
        "when: [{key: request.auth.audiences, values: [a]}]",
        "when: [{key: request.auth.presenter, values: [a]}]",
        "when: [{key: 'request.auth.claims[groups]', values: [a]}]",
        "when: [{key: 'request.auth.claims[nested][key]', values: [a]}]",
        "when: [{key: 'experimental.envoy.filters.http.x[key]', values: [a]}]",
    ] {
        let ends = call(&policy("p", &format!("rules: [{{{allow}}}]")), &PLAIN_HTTP, 8080, "GET web /");
        assert_eq!(ends, "denied by default", "{allow}");
        let ends = call(&policy("p", &format!("action: DENY, rules: [{{{allow}}}]")), &PLAIN_HTTP, 8080, "GET web /");
        assert_eq!(ends, "inbound|8080|| web/", "{allow}");
    }
    for not in [
        "from: [{source: {notRequestPrincipals: ['*']}}]",
        "when: [{key: 'request.auth.claims[groups]', notValues: [a]}]",
        "when: [{key: 'experimental.envoy.filters.http.x[key]', notValues: ['[a]']}]",
    ] {
        let ends = call(&policy("p", &format!("action: DENY, rules: [{{{not}}}]")), &PLAIN_HTTP, 8080, "GET web /");
        assert_eq!(ends, "denied by ns[shop]-policy[p]-rule[0]", "{not}");
    }
    let metadata = |rule: &str| {
        let filters = filters(&policy("p", &format!("rules: [{{{rule}}}]")), "filters.http.rbac.v3.RBAC");
        let mut found = Vec::new();
        find(&filters[0], "metadata", &mut found);
        found
    };
    let jwt = |path: &[&str], value: Value| {
        let path: Vec<Value> = ["payload"].iter().chain(path).map(|key| json!({ "key": key })).collect();
        json!({"filter": "envoy.filters.http.jwt_authn", "path": path, "value": value})
    };
    let text = |matcher: Value| json!({ "string_match": matcher });
    let any = || text(json!({"safe_regex": {"regex": ".+"}}));
    for (value, issuer, subject) in [
        ("'*'", any(), any()),
        ("https://i.example/ann", text(json!({"exact": "https://i.example"})), text(json!({"exact": "ann"}))),
        ("'https://i.example/*'", text(json!({"exact": "https://i.example"})), any()),
        ("'https://i.example/a*'", text(json!({"exact": "https://i.example"})), text(json!({"prefix": "a"}))),
        ("'*/ann'", any(), text(json!({"exact": "ann"}))),
        ("'*.example/ann'", text(json!({"suffix": ".example"})), text(json!({"exact": "ann"}))),
        ("'issuer*'", text(json!({"prefix": "issuer"})), any()),
        ("'*ann'", any(), text(json!({"suffix": "ann"}))),
    ] {
        let found = metadata(&format!("from: [{{source: {{requestPrincipals: [{value}]}}}}]"));
        assert_eq!(found, [jwt(&["iss"], issuer), jwt(&["sub"], subject)], "{value}");
    }
    let either = |matcher: Value| json!({"or_match": {"value_matchers": [{"list_match": {"one_of": text(matcher.clone())}}, text(matcher)]}});
    for (key, path) in [
        ("request.auth.audiences", &["aud"][..]),
        ("request.auth.presenter", &["azp"]),
        ("'request.auth.claims[groups]'", &["groups"]),
        ("'request.auth.claims[nested][key]'", &["nested", "key"]),
    ] {
        let found = metadata(&format!("when: [{{key: {key}, values: [a]}}]"));
        assert_eq!(found, [jwt(path, either(json!({"exact": "a"})))], "{key}");
    }
    let of_filter = |value: Value| json!({"filter": "envoy.filters.http.x", "path": [{"key": "k"}], "value": value});
    for (value, expected) in [
        ("a", text(json!({"exact": "a"}))),
        ("'a*'", text(json!({"prefix": "a"}))),
        ("'[a]'", json!({"list_match": {"one_of": text(json!({"exact": "a"}))}})),
        ("'[a*]'", json!({"list_match": {"one_of": text(json!({"prefix": "a"}))}})),
    ] {
        let found = metadata(&format!("when: [{{key: 'experimental.envoy.filters.http.x[k]', values: [{value}]}}]"));
        assert_eq!(found, [of_filter(expected)], "{value}");
    }
}

fn find(value: &Value, name: &str, found: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| if key == name { found.push(value.clone()) } else { find(value, name, found) }),
        Value::Array(items) => items.iter().for_each(|value| find(value, name, found)),
        _ => {}
    }
}

#[test]
fn on_tcp_ports_conditions_on_requests_widen_or_never_match() {
    for condition in [
        "to: [{operation: {paths: [/a]}}]",
        "to: [{operation: {methods: [GET]}}]",
        "to: [{operation: {hosts: [a]}}]",
        "from: [{source: {requestPrincipals: ['*']}}]",
        "from: [{source: {notRequestPrincipals: ['*']}}]",
        "when: [{key: 'request.headers[x-a]', values: [b]}]",
        "when: [{key: request.auth.principal, values: ['*']}]",
        "when: [{key: request.auth.principal, notValues: ['*']}]",
        "when: [{key: 'request.auth.claims[a]', values: [b]}]",
    ] {
        let ends = |action: &str| {
            let spec = format!("action: {action}, rules: [{{{condition}}}]");
            call(&policy("p", &spec), &PLAIN_TCP, 8082, "")
        };
        assert_eq!(ends("ALLOW"), "denied by default", "{condition}");
        assert_eq!(ends("DENY"), "denied by ns[shop]-policy[p]-rule[0]", "{condition}");
        assert_eq!(ends("AUDIT"), "inbound|8082||", "{condition}");
    }
    // What filters have found out is known of connections, too.
    let spec = "action: DENY, rules: [{when: [{key: 'experimental.envoy.filters.network.x[k]', values: [a]}]}]";
    assert_eq!(call(&policy("p", spec), &PLAIN_TCP, 8082, ""), "inbound|8082||");
}

#[test]
fn audits_log_and_let_pass() {
    let audit = policy("p", "action: AUDIT, rules: [{to: [{operation: {paths: [/a]}}]}]");
    assert_eq!(call(&audit, &PLAIN_HTTP, 8080, "GET web /a"), "inbound|8080|| web/a");
    let found = filters(&audit, "filters.http.rbac.v3.RBAC");
    assert_eq!(found[0].pointer("/rules/action"), Some(&json!("LOG")));
    assert!(found[0]["rules"]["policies"].get("ns[shop]-policy[p]-rule[0]").is_some(), "{found:?}");
    // One that is refused would have refused nothing.
    assert_eq!(
        call(&policy("p", "action: AUDIT, rule: [{}]"), &PLAIN_HTTP, 8080, "GET web /a"),
        "inbound|8080|| web/a"
    );
}

#[test]
fn the_order_is_custom_audit_deny_allow() {
    let policies = policy("a", "action: ALLOW, rules: [{}]")
        + &policy("b", "action: DENY, rules: [{to: [{operation: {paths: [/x]}}]}]")
        + &policy("c", "action: AUDIT, rules: [{}]")
        + &custom("d", "grpc", "[{}]");
    let listener = resource(PROVIDERS, &format!("{SERVICES}{policies}"), "sidecar web-0.shop", "LDS", "virtualInbound");
    let text = listener.to_string();
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part}"));
    let order = [
        place("istio-ext-authz-grpc-ns[shop]-policy[d]"),
        place("http.ext_authz.v3.ExtAuthz"),
        place("ns[shop]-policy[c]"),
        place("ns[shop]-policy[b]"),
        place("ns[shop]-policy[a]"),
    ];
    assert!(order.is_sorted(), "{order:?}");
    // A DENY policy holds whatever the provider says.
    assert_eq!(call(&policies, &PLAIN_HTTP, 8080, "GET web /x"), "denied by ns[shop]-policy[b]-rule[0]");
}

#[test]
fn keys_that_are_none_are_refused() {
    for key in [
        "request.auth.claims",
        "'request.auth.claims[]'",
        "'request.auth.claims[a'",
        "'request.auth.principal[a]'",
        "request.auth.subject",
        "'request.headers[a][b]'",
        "'experimental.envoy.filters.[a]'",
        "experimental.envoy.filters.http.x",
        "'experimental.other[a]'",
    ] {
        let text = policy("p", &format!("action: DENY, rules: [{{when: [{{key: {key}, values: [a]}}]}}]"));
        let (_, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.into())]);
        assert!(found.iter().any(|finding| finding.code == "bad-value"), "{key}: {found}");
    }
}
