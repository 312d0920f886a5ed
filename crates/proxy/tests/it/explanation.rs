//! "What would happen to this call?": compares explanations of a configuration with a live proxy.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_filters::explain::{Call, Explainer, Explanation, Says, Step, explain};
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::view::{ConnectionView, PlainRequest};
use evenkeel_runtime_config::{Builder, Config, Environment};
use evenkeel_testkit::{Backend, Connection, Random, Reply, eventually};
use evenkeel_tls::SecretStore;
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::pb::envoy::config::route::v3::RouteConfiguration;

use crate::harness::{Proxy, http_listener, resource, static_bootstrap, static_cluster};

const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters";

/// A configuration of this listener, `web`, and of these clusters and route tables.
fn compile(listener: &str, clusters: &[String], tables: &[&str]) -> Arc<Config> {
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    builder.set_listener(&resource::<Listener>("web", listener).any()).unwrap_or_else(|error| panic!("{error}"));
    for cluster in clusters {
        let cluster = resource::<Cluster>("cluster", cluster);
        builder.set_cluster(&cluster.any()).unwrap_or_else(|error| panic!("{error}"));
    }
    for table in tables {
        let table = resource::<RouteConfiguration>("table", table);
        builder.set_route(&table.any()).unwrap_or_else(|error| panic!("{error}"));
    }
    builder.build()
}

fn take(
    explainer: &mut Explainer,
    config: &Config,
    to: SocketAddr,
    request: &PlainRequest,
    random: u64,
) -> Explanation {
    let from: SocketAddr = "127.0.0.1:5000".parse().expect("an address");
    let chain = ChainInput {
        destination: to,
        source: from,
        direct_source: from,
        server_name: None,
        transport_protocol: "raw_buffer",
        application_protocols: &[],
    };
    let connection = ConnectionView::plaintext(from, to);
    explainer.explain(config, &Call { listener: "web", chain, connection: &connection, request: Some(request), random })
}

/// With these filters before the router.
fn with_filters(listener: &str, filters: &str) -> String {
    listener.replacen("http_filters:\n", &format!("http_filters:\n{filters}"), 1)
}

const DENY: &str = "rules: {action: DENY, policies: {deny-all: {permissions: [{header: {name: x-deny, present_match: true}}], \
                    principals: [{any: true}]}}}";

fn rbac() -> String {
    format!("      - {{name: rbac, typed_config: {{\"@type\": {FILTERS}.http.rbac.v3.RBAC, {DENY}}}}}\n")
}

fn mesh() -> Arc<Config> {
    let routes = "rds: {route_config_name: \"80\", config_source: {ads: {}, resource_api_version: V3}}\n      normalize_path: true";
    let listener = with_filters(&http_listener("web", routes, ""), &rbac());
    let table = "name: \"80\"
virtual_hosts:
- name: info
  domains: [info]
  routes:
  - { name: old, match: { prefix: /old/ }, redirect: { prefix_rewrite: /new/, response_code: FOUND } }
  - name: split
    match: { prefix: /api }
    metadata: { filter_metadata: { istio: { config: /virtual-service/info } } }
    request_headers_to_remove: [x-secret]
    route:
      prefix_rewrite: /
      host_rewrite_literal: inner
      cluster_not_found_response_code: NOT_FOUND
      weighted_clusters: { clusters: [{ name: v1, weight: 9 }, { name: gone, weight: 1 }] }
      retry_policy: { retry_on: \"5xx,reset\", num_retries: 2, per_try_timeout: 3s }
  - { name: teapot, match: { path: /tea }, direct_response: { status: 418 } }
- name: safe
  domains: [safe]
  require_tls: ALL
";
    compile(&listener, &[static_cluster("v1", ([10, 0, 0, 1], 80).into(), "")], &[table])
}

fn check(request: &PlainRequest, random: u64, expected: &str, answer: Option<(u16, &str)>) {
    let got = take(&mut Explainer::default(), &mesh(), ([10, 0, 0, 8], 80).into(), request, random);
    assert_eq!(got.to_string().trim_end(), expected.trim(), "{}", request.path);
    assert_eq!(got.answer.as_ref().map(|answer| (answer.status, &*answer.details)), answer, "{}", request.path);
}

#[test]
fn each_end_of_a_call_is_told() {
    let chain = "listener \"web\": filter chain \"\"\n";
    let accepted = &format!("{chain}RBAC: allowed (policy that matched: none)\n");
    let host = format!("{accepted}route table \"80\": virtual host \"info\"\n");
    let get = |authority: &str, path: &str| PlainRequest::new("GET", authority, path);
    let lost = Some((404, "route_not_found"));
    check(&get("other", "/"), 0, &format!("{accepted}no route fits: 404"), lost);
    check(&get("info", "/nothing"), 0, &format!("{host}no route fits: 404"), lost);
    let direct = |status| Some((status, "direct_response"));
    let old = format!("{host}route \"old\"\nredirect: 302 http://info/new/x?y");
    check(&get("info", "/old/x?y"), 0, &old, direct(302));
    check(&get("info", "/tea"), 0, &format!("{host}route \"teapot\"\ndirect response: 418"), direct(418));
    let normal = format!("{chain}normalized: /tea (authority info)\n{}", host.replacen(chain, "", 1));
    check(&get("info", "/old/../tea"), 0, &format!("{normal}route \"teapot\"\ndirect response: 418"), direct(418));
    let bad = format!("{chain}the path is refused: 400 (path_normalization_failed)");
    check(&get("info", "/x%00"), 0, &bad, Some((400, "path_normalization_failed")));
    let none = format!("{chain}the path is refused: 404 (absolute_path_rejected)");
    check(&get("info", "*"), 0, &none, Some((404, "absolute_path_rejected")));
    let safe = format!(
        "{accepted}route table \"80\": virtual host \"safe\"\nthe virtual host requires TLS: 301 https://safe/p"
    );
    check(&get("safe", "/p"), 0, &safe, Some((301, "tls_redirect")));
    let split =
        format!("{host}route \"split\", from /virtual-service/info\ncluster \"v1\" has weight 9 of 10: by chance\n");
    let limits = "limits: timeout 15s, idle timeout 300s; 2 retries on 5xx, reset, 3s each try\n";
    let forward = "headers of the route: request: remove x-secret\nforward to cluster \"v1\": / (authority inner)\n\
                   cluster \"v1\": 1 endpoints";
    check(&get("info", "/api"), 0, &format!("{split}{limits}{forward}"), None);
    let gone = split.replace("\"v1\" has weight 9", "\"gone\" has weight 1") + "cluster \"gone\" does not exist: 404";
    check(&get("info", "/api"), 9, &gone, Some((404, "cluster_not_found")));
    let upgrade = get("info", "/api").with_header("connection", "upgrade").with_header("upgrade", "websocket");
    check(&upgrade, 0, &format!("{split}the upgrade is not allowed: 403"), Some((403, "upgrade_failed")));
    let denied = format!("{chain}RBAC: denied (policy that matched: deny-all)");
    let details = Some((403, "rbac_access_denied_matched_policy[deny-all]"));
    check(&get("info", "/api").with_header("x-deny", "1"), 0, &denied, details);
}

#[test]
fn a_table_that_has_not_arrived_and_a_listener_there_is_not() {
    let routes = "rds: {route_config_name: late, config_source: {ads: {}, resource_api_version: V3}}";
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    let listener = resource::<Listener>("web", &http_listener("web", routes, ""));
    builder.set_listener(&listener.any()).unwrap_or_else(|error| panic!("{error}"));
    builder.missing().routes.iter().for_each(|table| builder.give_up_route(table));
    let config = builder.build();
    let request = PlainRequest::new("GET", "info", "/");
    let got = take(&mut Explainer::default(), &config, ([10, 0, 0, 8], 80).into(), &request, 0);
    assert_eq!(got.to_string(), "listener \"web\": filter chain \"\"\nroute table \"late\" has not arrived: 404\n");
    assert_eq!(got.answer.map(|answer| answer.status), Some(404));
    let connection = ConnectionView::plaintext(([10, 0, 0, 9], 1).into(), ([10, 0, 0, 8], 80).into());
    let chain = ChainInput {
        destination: connection.local,
        source: connection.remote,
        direct_source: connection.remote,
        server_name: None,
        transport_protocol: "raw_buffer",
        application_protocols: &[],
    };
    let call = Call { listener: "none", chain, connection: &connection, request: None, random: 0 };
    assert_eq!(explain(&config, &call).to_string(), "no listener \"none\" serves\n");
}

/// All filters, and a route for each thing that can be decided.
fn everything(manager: &str, log: &str) -> String {
    let per_route = |name: &str, config: &str| {
        format!("typed_per_filter_config: {{{name}: {{\"@type\": {FILTERS}.http.{config}}}}}")
    };
    let cors = per_route(
        "cors",
        "cors.v3.CorsPolicy, allow_origin_string_match: [{exact: \"http://a\"}], allow_methods: GET, \
         forward_not_matching_preflights: false",
    );
    let half = "{numerator: 50}";
    let fault = per_route("fault", &format!("fault.v3.HTTPFault, abort: {{http_status: 418, percentage: {half}}}"));
    let most = per_route(
        "fault",
        "fault.v3.HTTPFault, max_active_faults: 1000, delay: {fixed_delay: 0.001s, percentage: {numerator: 100}}",
    );
    let no_rbac = per_route("rbac", "rbac.v3.RBACPerRoute");
    let routes = [
        "{name: moved, match: {prefix: /moved/}, redirect: {prefix_rewrite: /there/, response_code: PERMANENT_REDIRECT}}".into(),
        "{name: tea, match: {path: /tea}, direct_response: {status: 418}}".into(),
        "{name: gone, match: {prefix: /gone}, route: {cluster: gone}}".into(),
        format!("{{name: open, match: {{prefix: /open}}, route: {{cluster: one, prefix_rewrite: /inner, timeout: 7s}}, {no_rbac}}}"),
        format!("{{name: script, match: {{prefix: /script}}, route: {{cluster: one, host_rewrite_literal: other}}, {cors}}}"),
        format!("{{name: maybe, match: {{prefix: /maybe}}, route: {{cluster: one}}, {fault}}}"),
        format!("{{name: slow, match: {{prefix: /slow}}, route: {{cluster: one, timeout: 0s}}, {most}}}"),
        "{name: split, match: {prefix: /split}, route: {timeout: 9s, retry_policy: {retry_on: reset, per_try_timeout: 2s}, \
         weighted_clusters: {clusters: [{name: one, weight: 1}, {name: two, weight: 3}]}}}".into(),
        format!("{{name: some, match: {{prefix: /some, runtime_fraction: {{default_value: {half}}}}}, route: {{cluster: two}}}}"),
        "{name: header, match: {prefix: /h, headers: [{name: x-kind, string_match: {exact: b}}]}, route: {cluster: two, \
         regex_rewrite: {pattern: {regex: \"/h/(.*)\"}, substitution: \"/\\\\1/h\"}}}".into(),
        "{name: query, match: {prefix: /h, query_parameters: [{name: q, present_match: true}]}, route: {cluster: two}}".into(),
        "{name: rest, match: {prefix: /h}, route: {cluster: one, upgrade_configs: [{upgrade_type: websocket, enabled: false}]}}".into(),
    ];
    let hosts = format!(
        "{{name: all, domains: [\"*\"], routes: [{}]}}, {{name: safe, domains: [safe, \"safe:*\"], require_tls: ALL, routes: \
         [{{name: in, match: {{prefix: /}}, route: {{cluster: one}}}}]}}",
        routes.join(", ")
    )
    .replace(", \"safe:*\"", "");
    let format = "%REQ(X-CASE)%|%RESPONSE_CODE%|%RESPONSE_CODE_DETAILS%|%ROUTE_NAME%|%UPSTREAM_CLUSTER%|%REQ(:PATH)%|\
                  %REQ(:AUTHORITY)%|%REQ(X-ENVOY-EXPECTED-RQ-TIMEOUT-MS)%\\n";
    let routes = format!(
        "route_config: {{name: local, validate_clusters: false, virtual_hosts: [{hosts}]}}\n      {manager}\n      access_log: [{{name: file, typed_config: \
         {{\"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {log}, log_format: \
         {{text_format_source: {{inline_string: \"{format}\"}}}}}}}}]"
    );
    let filter = |name: &str, config: &str| {
        format!("      - {{name: {name}, typed_config: {{\"@type\": {FILTERS}.http.{config}}}}}\n")
    };
    let session = "stateful_session.v3.StatefulSession, session_state: {name: cookie, typed_config: {\"@type\": \
                   type.googleapis.com/envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState, cookie: {name: \
                   s, path: /}}}";
    let filters = [
        filter("cors", "cors.v3.Cors"),
        filter("fault", "fault.v3.HTTPFault, abort: {header_abort: {}, percentage: {numerator: 100}}"),
        filter("buffer", "buffer.v3.Buffer, max_request_bytes: 100"),
        filter("session", session),
        rbac(),
    ];
    with_filters(&http_listener("web", &routes, ""), &filters.concat())
}

/// A call about one thing, or several.
fn random_request(random: &mut Random) -> PlainRequest {
    let authority = random.pick(&["a", "a", "a", "A:80", "safe", "b.test:8080"]);
    let place = random.pick(&[
        "moved/x?y=1",
        "tea",
        "gone",
        "open/x",
        "script",
        "maybe",
        "slow",
        "split?x",
        "some",
        "h/x",
        "h/y?q",
        "h/z?q=1&r",
        "none",
        "",
    ]);
    let path = match random.below(12) {
        0 => format!("/x/../{place}"),
        1 => format!("//{place}"),
        2 => format!("/%2F{place}"),
        3 => format!("/./{place}"),
        4 => "/../../x".to_owned(),
        5 => format!("/{place}%00"),
        _ => format!("/{place}"),
    };
    let method = random.pick(&["GET", "GET", "GET", "OPTIONS", "DELETE"]);
    let mut request = PlainRequest::new(method, authority, &path);
    let headers: [(&str, &[&str]); 9] = [
        ("x-deny", &["1"]),
        ("x-kind", &["a", "b"]),
        ("origin", &["http://a", "http://b"]),
        ("access-control-request-method", &["GET"]),
        ("x-envoy-fault-abort-request", &["503", "99", "no"]),
        ("x-forwarded-proto", &["https", "http", "ftp"]),
        ("x-forwarded-for", &["1.2.3.4", "8.8.8.8, 9.9.9.9"]),
        ("x-envoy-upstream-rq-timeout-ms", &["77"]),
        ("cookie", &["s=Z2FyYmFnZQ=="]),
    ];
    for (name, values) in headers {
        if random.once_in(5) {
            request = request.with_header(name, random.pick(values));
        }
    }
    if random.once_in(12) {
        request = request.with_header("connection", "upgrade").with_header("upgrade", "websocket");
    }
    request
}

/// What is compared, in the order of the log line. Where a filter answered, the route it would have had is not explained.
fn told(request: &PlainRequest, explanation: &Explanation) -> [Option<String>; 7] {
    let find = |wanted: &dyn Fn(&Step) -> Option<String>| explanation.steps.iter().find_map(wanted);
    let some = |text: &str| Some(text.to_owned());
    let (status, details) = match &explanation.answer {
        Some(answer) => (answer.status, &*answer.details),
        None => (200, "via_upstream"),
    };
    let forward = |part: fn(&Step) -> Option<String>| find(&part);
    // A tunnel has no timeout, and its server is told of the route's all the same.
    let has_timeout = explanation.answer.is_none() && !request.headers.iter().any(|(name, _)| name == "upgrade");
    let timeout = || {
        let limit = find(&|step| match step {
            Step::Limits { limits, retries } => {
                let per_try = retries.as_ref().and_then(|retries| retries.per_try_timeout);
                per_try.or(limits.timeout).map(|limit| limit.as_millis().to_string())
            }
            _ => None,
        });
        limit.or(some("-"))
    };
    [
        some(&status.to_string()),
        some(details),
        forward(|step| match step {
            Step::Route { name, .. } => Some(name.to_string()),
            _ => None,
        }),
        forward(|step| match step {
            Step::Endpoints { cluster, .. } => Some(cluster.to_string()),
            _ => None,
        })
        .or(some("-")),
        forward(|step| match step {
            Step::Forward { path, .. } => Some(path.clone()),
            _ => None,
        }),
        forward(|step| match step {
            Step::Forward { authority, .. } => Some(authority.clone()),
            _ => None,
        }),
        if has_timeout { timeout() } else { None },
    ]
}

fn is_chance(explanation: &Explanation) -> bool {
    explanation.steps.iter().any(|step| match step {
        Step::Share { .. } | Step::Route { share_ppm: Some(_), .. } | Step::Filter { chance: true, .. } => true,
        // The next route, or none, after one that was for some requests.
        Step::NoRoute | Step::UpgradeRefused { .. } => true,
        _ => false,
    })
}

/// The call as it goes over the wire.
fn on_the_wire(request: &PlainRequest, case: usize) -> String {
    let mut text =
        format!("{} {} HTTP/1.1\r\nhost: {}\r\nx-case: {case}\r\n", request.method, request.path, request.authority);
    request.headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    text + "\r\n"
}

#[test]
fn what_is_explained_is_what_happens() {
    const CALLS: usize = 600;
    let backend = Backend::start(|_| Reply::text("hello"));
    let clusters = ["one", "two"].map(|name| static_cluster(name, backend.address(), ""));
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = Random::new(0);
    let mut outcomes = BTreeSet::new();
    for (at, manager) in [
        "use_remote_address: true\n      normalize_path: true\n      merge_slashes: true\n      path_with_escaped_slashes_action: \
         UNESCAPE_AND_REDIRECT",
        "use_remote_address: false\n      normalize_path: true\n      strip_any_host_port: true\n      path_with_escaped_slashes_action: \
         REJECT_REQUEST",
        "use_remote_address: false\n      upgrade_configs: [{upgrade_type: websocket}]\n      path_with_escaped_slashes_action: \
         UNESCAPE_AND_FORWARD",
    ]
    .into_iter()
    .enumerate()
    {
        let log = folder.path().join(format!("log-{at}"));
        let listener = everything(manager, &log.display().to_string());
        let config = compile(&listener, &clusters, &[]);
        let proxy = Proxy::start_with(&static_bootstrap(&listener, &clusters), 1);
        proxy.wait_live();
        let web = proxy.listener("web");
        let requests: Vec<PlainRequest> = (0..CALLS).map(|_| random_request(&mut random)).collect();
        for (case, request) in requests.iter().enumerate() {
            let mut client = Connection::open(web).expect("it accepts");
            client.send(on_the_wire(request, case)).expect("it reads");
            client.response().expect("an answer");
        }
        let text = eventually("the access log", || {
            std::fs::read_to_string(&log).ok().filter(|text| text.lines().count() >= CALLS)
        });
        let mut explainer = Explainer::default();
        let mut compared = 0;
        for line in text.lines() {
            let (case, happened) = line.split_once('|').expect("a case");
            let Some(request) = case.parse::<usize>().ok().and_then(|case| requests.get(case)) else { continue };
            let happened: Vec<&str> = happened.split('|').collect();
            let numbers = (0..100).chain([600_000]);
            let explained: Vec<_> =
                numbers.map(|number| take(&mut explainer, &config, web, request, number)).collect();
            let told: BTreeSet<_> = explained.iter().map(|explained| told(request, explained)).collect();
            assert!(told.len() == 1 || explained.iter().all(is_chance), "{request:?}: {told:?}");
            let agrees = |told: &[Option<String>; 7]| {
                told.iter().zip(&happened).all(|(told, happened)| told.as_ref().is_none_or(|told| told == happened))
            };
            assert!(told.iter().any(agrees), "{request:?}\nhappened: {line}\nexplained: {told:?}\n{}", explained[0]);
            let last = explained[0].steps.last().expect("steps");
            outcomes.insert(match last {
                Step::Filter { name, says: Says::Replies { .. }, .. } => format!("{name} answers"),
                step => format!("{step:?}").split(' ').next().unwrap_or_default().to_owned(),
            });
            compared += 1;
        }
        assert!(compared > CALLS * 9 / 10, "{compared} of {CALLS}");
    }
    // The calls were about everything.
    let all = [
        "DirectResponse",
        "Endpoints",
        "NoCluster",
        "NoRoute",
        "PathRedirect",
        "PathRefused",
        "Rbac",
        "Redirect",
        "TlsRedirect",
        "UpgradeRefused",
        "cors answers",
        "fault answers",
    ];
    assert_eq!(outcomes.iter().map(String::as_str).collect::<Vec<_>>(), all);
}
