//! The proxy's answers about a call, and about recent requests.

use evenkeel_testkit::{Backend, Connection, eventually};
use serde_json::{Value as Json, json};

use crate::harness::{Proxy, http_listener, stat, static_bootstrap, static_cluster};

/// One listener: `/deny` is answered, the rest is forwarded.
fn bootstrap(backend: u16) -> String {
    let routes = "route_config: {name: r, virtual_hosts: [{name: all, domains: [\"*\"], routes: [\
        {name: no, match: {prefix: /deny}, direct_response: {status: 503}},\
        {name: web, match: {prefix: /}, route: {cluster: backend, prefix_rewrite: /b}}]}]}";
    let listener = http_listener("web", routes, "");
    let indent = |text: &str| text.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "node: {{id: n, cluster: c}}\n\
         admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\n\
         static_resources:\n  listeners:\n  -\n{}  clusters:\n  - name: backend\n    type: STATIC\n    \
         load_assignment: {{cluster_name: backend, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
         {{socket_address: {{address: 127.0.0.1, port_value: {backend}}}}}}}}}]}}]}}\n",
        indent(&listener),
    )
}

fn start() -> (Backend, Proxy) {
    let backend = Backend::echo("b");
    let proxy = Proxy::start(&bootstrap(backend.address().port()));
    proxy.wait_live();
    (backend, proxy)
}

fn send(proxy: &Proxy, path: &str, headers: &str) -> u16 {
    let mut connection = Connection::open(proxy.listener("web")).expect("the listener accepts");
    connection.get("test", path, headers).expect("an answer").status
}

#[test]
fn requests_are_kept_without_secrets() {
    let (backend, proxy) = start();
    let odd = "authorization: Bearer s3cret\r\ncookie: id=s3cret\r\nx-user: jason\r\nx-request-id: one-and-only\r\n";
    assert_eq!(send(&proxy, "/x?access_token=s3cret&y=1", odd), 200);
    let page = eventually("the request", || {
        let page = proxy.json("/requests");
        page["requests"].as_array().is_some_and(|all| !all.is_empty()).then_some(page)
    });
    assert!(!page.to_string().contains("s3cret"), "{page:#}");
    let request = &page["requests"][0];
    let check = |pointer: &str, expected: Json| {
        assert_eq!(request.pointer(pointer), Some(&expected), "{pointer}\n{request:#}");
    };
    check("/id", "one-and-only".into());
    check("/call/request/path", "/x?access_token=[redacted]&y=1".into());
    check("/call/request/redacted", json!(["?access_token", "authorization", "cookie"]));
    check("/call/listeners", json!(["web"]));
    check("/route", "web".into());
    check("/cluster", "backend".into());
    check("/endpoint", backend.address().to_string().into());
    check("/status", 200.into());
    check("/details", "via_upstream".into());
    check("/edited", false.into());
    assert_eq!(proxy.json("/requests?id=one")["requests"].as_array().map(Vec::len), Some(1));
    assert_eq!(proxy.json("/requests?id=two")["requests"].as_array().map(Vec::len), Some(0));
}

#[test]
fn the_sample_is_bounded_and_keeps_failures() {
    let (_backend, proxy) = start();
    let mut connection = Connection::open(proxy.listener("web")).expect("the listener accepts");
    let long = format!("x-long: {}\r\n", "a".repeat(20_000));
    assert_eq!(connection.get("test", "/long", &long).expect("an answer").status, 200);
    for _ in 0..500 {
        assert_eq!(connection.get("test", "/x", "").expect("an answer").status, 200);
    }
    assert_eq!(connection.get("test", "/deny", "").expect("an answer").status, 503);
    let page = eventually("the failure", || {
        let page = proxy.json("/requests");
        let requests = page["requests"].as_array()?.clone();
        let failed = requests.iter().find(|request| request["status"] == 503)?.clone();
        Some((requests, failed))
    });
    let (requests, failed) = page;
    assert!(requests.len() < 450, "{} of 502 are kept", requests.len());
    assert_eq!((&failed["route"], &failed["details"]), (&"no".into(), &"direct_response".into()), "{failed:#}");
    let long = requests.iter().find(|request| request["call"]["request"]["path"] == "/long").expect("it was the first");
    assert_eq!(long["call"]["request"]["leftOut"], 1, "{long:#}");
}

#[test]
fn it_can_be_switched_off() {
    let backend = Backend::echo("b");
    let proxy = Proxy::start_as(&bootstrap(backend.address().port()), |settings| settings.recent.limit = 0);
    proxy.wait_live();
    assert_eq!((send(&proxy, "/x", ""), send(&proxy, "/deny", "")), (200, 503));
    let page = proxy.json("/requests");
    assert_eq!((&page["limit"], page["requests"].as_array().map(Vec::len)), (&0.into(), Some(0)), "{page:#}");
}

#[test]
fn calls_are_decided_without_being_made() {
    let (backend, proxy) = start();
    let call = |path: &str| {
        json!({"listeners": ["other", "web"], "destination": "127.0.0.1:80", "source": "192.0.2.1:1",
               "request": {"method": "GET", "authority": "test", "path": path}})
        .to_string()
    };
    let decided = |path: &str| {
        let (status, answer) = proxy.explain(&call(path));
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let answer = decided("/x");
    let check = |pointer: &str, expected: Json| {
        assert_eq!(answer.pointer(pointer), Some(&expected), "{pointer}\n{answer:#}");
    };
    check("/decision/listener", "web".into());
    check("/decision/virtualHost", "all".into());
    check("/decision/route", "web".into());
    check("/decision/outcome", "forward".into());
    check("/decision/cluster", "backend".into());
    check("/decision/path", "/bx".into());
    check("/endpointStates/0/address", backend.address().to_string().into());
    check("/endpointStates/0/healthy", true.into());
    let answer = decided("/deny");
    assert_eq!((&answer["decision"]["status"], &answer["decision"]["route"]), (&503.into(), &"no".into()));
    assert_eq!(proxy.json("/requests")["requests"], json!([]), "nothing was sent");
}

#[test]
fn secrets_that_limits_of_rates_ask_for_are_unknown() {
    const HTTP: &str = "type.googleapis.com/envoy.extensions.filters.http";
    let limits = |header: &str| {
        format!("rate_limits: [{{actions: [{{request_headers: {{header_name: {header}, descriptor_key: k}}}}]}}]")
    };
    let bucket = "token_bucket: {max_tokens: 1, fill_interval: 1s}";
    let entry_of = |header: &str| {
        format!(
            "typed_per_filter_config: {{limit: {{\"@type\": {HTTP}.local_ratelimit.v3.LocalRateLimit, stat_prefix: l, {bucket}, {}}}}}",
            limits(header)
        )
    };
    let limit = format!(
        "      - {{name: limit, typed_config: {{\"@type\": {HTTP}.local_ratelimit.v3.LocalRateLimit, stat_prefix: l}}}}\n"
    );
    let secret = "authorization";
    for (filter, table, host, route, action, expected) in [
        (&*limit, "", "", "", "", None),
        (&limit, "", "", "", &*limits(secret), Some(secret)),
        (&limit, "", "", "", &limits("x-user"), None),
        // Nobody limits.
        ("", "", "", "", &limits(secret), None),
        (&limit, "", &*limits(secret), "", "", Some(secret)),
        (&limit, "", "", &*entry_of(secret), "", Some(secret)),
        (&limit, "", "", &entry_of("x-user"), "", None),
        (&limit, "", &entry_of(secret), "", "", Some(secret)),
        (&limit, &*entry_of(secret), "", "", "", Some(secret)),
    ] {
        let routes = format!(
            "route_config: {{name: r, {table}, virtual_hosts: [{{name: all, domains: [\"*\"], {host}, routes: [\
             {{match: {{prefix: /}}, route: {{cluster: backend, {action}}}, {route}}}]}}]}}"
        )
        .replace(", ,", ",")
        .replace(", }", "}");
        let listener = http_listener("web", &routes, "");
        let listener = listener.replacen("http_filters:\n", &format!("http_filters:\n{filter}"), 1);
        let proxy = Proxy::start(&static_bootstrap(
            &listener,
            &[static_cluster("backend", "127.0.0.1:1".parse().expect("one"), "")],
        ));
        proxy.wait_live();
        let call = json!({"listeners": ["web"], "destination": "127.0.0.1:80", "source": "192.0.2.1:1", "request": {
            "method": "GET", "authority": "test", "path": "/", "headers": [[secret, "[redacted]"]], "redacted": [secret]}});
        let (_, answer) = proxy.explain(&call.to_string());
        let unknown = answer["decision"]["unknownHeaders"].as_array().cloned().unwrap_or_default();
        assert_eq!(unknown, expected.into_iter().collect::<Vec<_>>(), "{routes}\n{answer:#}");
    }
}

#[test]
fn what_is_no_question_is_refused() {
    let (_backend, proxy) = start();
    let check = |body: &str, status: u16, said: &str| {
        let (found, answer) = proxy.explain(body);
        assert!(found == status && answer.to_string().contains(said), "{body:.40}: {found} {answer}");
    };
    check("", 400, "use POST");
    check("[1", 400, "not as expected");
    check("{\"source\": \"nowhere\"}", 400, "not as expected");
    check("{}", 200, "\"reset\"");
    check(&format!("{{\"protocol\": \"{}\"}}", "a".repeat(600 * 1024)), 400, "at most");
    // A head that says more than it sends does not hold up others.
    let mut slow = Connection::open(proxy.admin).expect("the admin port accepts");
    slow.send("POST /explain HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{").expect("it reads");
    assert_eq!(proxy.get("/ready").text(), "LIVE\n");
}

const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";

/// Rules of a network filter see what filters before it have left; limits that depend on other connections are named as such.
#[test]
fn network_filters_are_explained_as_they_decide() {
    let backend = Backend::echo("b");
    let check = |shadow: &str, outcome: &str, steps: &[&str]| {
        let listener = format!(
            r#"
name: tcp
address: {{socket_address: {{address: 127.0.1.8, port_value: 0}}}}
filter_chains:
- filters:
  - name: limit
    typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit, stat_prefix: l, max_connections: 7}}
  - name: shadow
    typed_config: {{"@type": {RBAC}, stat_prefix: a., shadow_rules_stat_prefix: dry_,
      shadow_rules: {{action: {shadow}, policies: {{all: {{permissions: [{{any: true}}], principals: [{{any: true}}]}}}}}}}}
  - name: rules
    typed_config:
      "@type": {RBAC}
      stat_prefix: b.
      rules:
        action: DENY
        policies:
          shadowed:
            permissions: [{{metadata: {{filter: envoy.filters.network.rbac, path: [{{key: dry_shadow_engine_result}}], value: {{string_match: {{exact: denied}}}}}}}}]
            principals: [{{any: true}}]
  - name: envoy.filters.network.tcp_proxy
    typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: backend}}
"#
        );
        let cluster = static_cluster("backend", backend.address(), "");
        let proxy = Proxy::start(&static_bootstrap(&listener, &[cluster]));
        proxy.wait_live();
        let call = r#"{"listeners": ["tcp"], "destination": "127.0.1.8:80", "source": "192.0.2.1:1"}"#;
        let decision = &proxy.explain(call).1["decision"];
        let limit = "filter \"limit\": at most 7 connections at a time; further ones are closed, by state";
        let wanted: Vec<&str> =
            [limit, "RBAC: allowed (policy that matched: none)"].into_iter().chain(steps.iter().copied()).collect();
        assert_eq!((&decision["outcome"], &decision["byState"]), (&outcome.into(), &true.into()), "{decision:#}");
        assert_eq!(decision["steps"].as_array().expect("steps")[1..], wanted, "{decision:#}");
        // It is so.
        let answer = Connection::open(proxy.listener("tcp")).and_then(|mut connection| connection.get("test", "/", ""));
        assert_eq!(answer.is_ok(), outcome == "forward", "{answer:?}");
        assert_eq!(stat(&proxy, "b.rbac.denied"), [u64::from(outcome == "deny")]);
    };
    check("DENY", "deny", &["RBAC: denied (policy that matched: shadowed)"]);
    check("ALLOW", "forward", &["RBAC: allowed (policy that matched: none)", "cluster \"backend\": 1 endpoints"]);
}
