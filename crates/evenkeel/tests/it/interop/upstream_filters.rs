//! Header mutations, in the connection manager and in clusters: hosts and clients see the same heads as with Envoy, with any
//! route configuration, and with retries, mirrors, disabled filters and collected bodies.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::server::echo_reply;
use evenkeel_testkit::{Backend, Connection, Reply, Request, free_ports, wait};

use super::proxy::Program;
use super::web::{self, ROUTER, endpoint};

const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters.http";

/// Sets one header, and appends to another, in both directions.
fn mutations(who: &str) -> String {
    let edits = format!(
        "[ {{ append: {{ header: {{ key: x-last, value: {who} }}, append_action: OVERWRITE_IF_EXISTS_OR_ADD }} }}, {{ append: {{ \
         header: {{ key: x-all, value: {who} }} }} }}, {{ append: {{ header: {{ key: x-from-{who}, value: \"%REQ(X-ASK)% of \
         %REQ(:PATH)%\" }} }} }}, {{ remove: x-unwanted-{who} }} ]"
    );
    format!("mutations: {{ request_mutations: {edits}, response_mutations: {edits} }}")
}

fn filter(name: &str, more: &str) -> String {
    let config = format!("\"@type\": {FILTERS}.header_mutation.v3.HeaderMutation, {}{more}", mutations(name));
    format!("{{ name: {name}, typed_config: {{ {config} }} }}")
}

/// What a route says to the filters of these names.
fn says(names: &[(&str, &str)]) -> String {
    let told = names.iter().map(|(filter, who)| match *who {
        "off" => {
            format!("{filter}: {{ \"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true }}")
        }
        "on" => format!(
            "{filter}: {{ \"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, config: {{}}, disabled: false }}"
        ),
        who => format!(
            "{filter}: {{ \"@type\": {FILTERS}.header_mutation.v3.HeaderMutationPerRoute, {} }}",
            mutations(who)
        ),
    });
    format!("typed_per_filter_config: {{ {} }}", told.collect::<Vec<_>>().join(", "))
}

/// A cluster with these filters before its codec.
fn cluster(name: &str, port: u16, filters: &[String]) -> String {
    let filters: String = filters.iter().map(|filter| format!("{filter}, ")).collect();
    let options = format!(
        "typed_extension_protocol_options: {{ envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \"@type\": \
         type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {{ \
         http_protocol_options: {{}} }}, http_filters: [ {filters}{{ name: codec, typed_config: {{ \"@type\": \
         {FILTERS}.upstream_codec.v3.UpstreamCodec }} }} ] }} }},"
    );
    web::cluster(name, &endpoint(port, ""), &options)
}

/// A path, and what its route has besides.
fn routes() -> Vec<String> {
    let rows = [
        ("plain", "cluster: a", String::new()),
        ("told", "cluster: a", says(&[("down", "route-down"), ("up", "route-up")])),
        ("off", "cluster: a", says(&[("up", "off")])),
        ("on", "cluster: a", says(&[("sleeping", "on")])),
        ("wins", "cluster: wins", says(&[("up", "route-up")])),
        (
            "flaky",
            "cluster: a, retry_policy: { retry_on: 5xx, num_retries: 3, retry_back_off: { base_interval: 0.001s } }",
            says(&[("up", "route-up")]),
        ),
        ("mirrored", "cluster: plain, request_mirror_policies: [ { cluster: mirror } ]", String::new()),
        ("denied", "cluster: rules", String::new()),
        (
            "retried-denied",
            "cluster: rules, retry_policy: { retry_on: \"5xx,retriable-4xx\", num_retries: 2 }",
            String::new(),
        ),
        ("collected", "cluster: buffer", String::new()),
        (
            "weighted",
            "weighted_clusters: { clusters: [ { name: a, weight: 1, WEIGHTED } ] }",
            says(&[("up", "route-up")]),
        ),
    ];
    rows.into_iter()
        .map(|(path, action, says)| {
            let action = action.replace("WEIGHTED", &self::says(&[("up", "leg")]));
            let says = if says.is_empty() { says } else { format!(", {says}") };
            format!("              - {{ match: {{ path: /{path} }}, route: {{ {action} }}{says} }}\n")
        })
        .collect()
}

const REQUESTS: &[(&str, &str)] = &[
    ("GET /plain", "X-Ask: me\r\nx-unwanted-up: 1\r\nx-unwanted-down: 1\r\nx-all: client\r\n"),
    ("GET /told", "x-unwanted-route-up: 1\r\n"),
    ("GET /off", ""),
    ("GET /on", ""),
    ("GET /wins", ""),
    ("GET /flaky", ""),
    ("GET /mirrored", "x-ask: mirror\r\n"),
    ("GET /denied", ""),
    ("GET /retried-denied", ""),
    ("POST /collected", "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n"),
    ("POST /collected", "content-length: 20\r\n\r\n01234567890123456789"),
    ("GET /weighted", ""),
];

#[test]
fn evenkeel_and_envoy_edit_heads_alike_on_both_sides_of_the_router() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let backend = Backend::start(move |request| behave(request, &counter));
    let mirror = Backend::echo("mirror");
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let text = bootstrap([backend.address().port(), mirror.address().port()], port, admin);
    std::fs::write(&file, text).expect("a writable folder");
    let run = |program| {
        let before = mirror.requests().len();
        calls.store(0, Ordering::SeqCst);
        let mut process = web::start(program, &file, admin, port);
        let mut seen: String = REQUESTS.iter().map(|(line, fields)| ask(port, line, fields)).collect();
        let copy = wait::poll(Duration::from_secs(5), || mirror.requests().get(before).cloned()).expect("a copy");
        seen += &format!("mirror: {}\n", heads(&copy.headers));
        seen += &statistics(admin);
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy);
    let evenkeel = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}\n\nEnvoy's:\n{envoy}", difference.unwrap_or_default());
    for part in ["x-last: route-up", "x-last: host-down", "x-from-copy", "413", "RBAC: access denied"] {
        assert!(envoy.contains(part), "{part} is not in {envoy}");
    }
}

/// Tells what it got; `/flaky` only the third time.
fn behave(request: &Request, calls: &AtomicUsize) -> Reply {
    if request.target == "/flaky" && calls.fetch_add(1, Ordering::SeqCst) < 2 {
        return Reply::Fixed(503, vec![("x-all".to_owned(), "host".to_owned())], Vec::new());
    }
    let own = [("x-all", "host"), ("x-last", "host"), ("x-unwanted-up", "1"), ("x-unwanted-down", "1")];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    match echo_reply("a", request) {
        Reply::Fixed(status, headers, body) => Reply::Fixed(status, [headers, own].concat(), body),
        other => other,
    }
}

/// Fields that mutations have to do with, in their order.
fn heads(fields: &[(String, String)]) -> String {
    let wanted = |name: &str| {
        name.starts_with("x-")
            && !name.starts_with("x-request-id")
            && !name.contains("-time")
            && name != "x-forwarded-for"
    };
    let lines = fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
    lines.filter(|(name, _)| wanted(name)).map(|(name, value)| format!("{name}: {value} | ")).collect()
}

fn ask(port: u16, line: &str, fields: &str) -> String {
    let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("the listener accepts");
    client.send(format!("{line} HTTP/1.1\r\nHost: x.test\r\n{fields}\r\n")).expect("an open connection");
    let answer = client.response().expect("an answer");
    let text = answer.text();
    let seen: BTreeSet<_> = text
        .lines()
        .filter(|line| {
            !line.starts_with("x-request-id") && !line.starts_with("x-forwarded") && !line.contains("-timeout-ms")
        })
        .collect();
    let seen: String = seen.into_iter().map(|line| format!("    {line}\n")).collect();
    format!("{line}: {} {}\n{seen}", answer.status, heads(&answer.headers))
}

fn statistics(admin: u16) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let text =
        Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("an answer").text();
    let wanted = |line: &&str| {
        let counts = line.contains("rbac.") || line.contains("upstream_rq_retry:") || line.contains(".upstream_rq_2xx");
        // Envoy counts calls from within and from outside the mesh apart as well.
        counts && !line.ends_with(": 0") && !line.contains(".external.") && !line.contains(".internal.")
    };
    text.lines().filter(wanted).map(|line| format!("{line}\n")).collect::<BTreeSet<_>>().into_iter().collect()
}

fn bootstrap([backend, mirror]: [u16; 2], port: u16, admin: u16) -> String {
    let asleep = filter("sleeping", "").replacen("{ name", "{ disabled: true, name", 1);
    let rules = format!(
        "{{ name: rules, typed_config: {{ \"@type\": {FILTERS}.rbac.v3.RBAC, rules: {{ action: DENY, policies: {{ all: {{ permissions: [ {{ \
         any: true }} ], principals: [ {{ any: true }} ] }} }} }} }} }}"
    );
    let buffer =
        format!("{{ name: buffer, typed_config: {{ \"@type\": {FILTERS}.buffer.v3.Buffer, max_request_bytes: 10 }} }}");
    let clusters = [
        cluster("a", backend, &[filter("up", ""), asleep, filter("second", "")]),
        cluster("plain", backend, &[]),
        cluster("wins", backend, &[filter("up", ", most_specific_header_mutations_wins: true")]),
        cluster("mirror", mirror, &[filter("copy", "")]),
        cluster("rules", backend, &[rules]),
        cluster("buffer", backend, &[buffer, filter("up", "")]),
    ];
    let host = says(&[("up", "host-up"), ("down", "host-down")]);
    let table = says(&[("up", "table-up")]);
    let one_host = web::one_host(&routes().concat())
        .replace("              domains:", &format!("              {host}\n              domains:"))
        .replace("            name: r\n", &format!("            name: r\n            {table}\n"));
    let manager = format!("          http_filters: [ {}, {ROUTER} ]\n{one_host}", filter("down", ""));
    web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
}
