//! One reading of a request: policies judge, routes choose by, and upstreams get the same bytes of a path, under each normalization,
//! over HTTP/1 and HTTP/2 on either side.
//!
//! First a proxy without policies tells which bytes it forwards for each generated target. Then each target is sent to a proxy whose
//! policies and routes admit exactly these bytes for it: had they been asked about any others, the request would not get through.

use std::fmt::Write as _;
use std::net::SocketAddr;

use evenkeel_testkit::{Backend, Connection, Http2Frames, Random, Reply};
use serde_json::json;

use crate::harness::{Proxy, http_listener, protocol, static_bootstrap, static_cluster};

/// Targets per normalization.
const TARGETS: usize = 120;

/// `pathNormalization` as it arrives in a connection manager.
const MODES: [&str; 4] = [
    "normalize_path: false",
    "normalize_path: true",
    "normalize_path: true, merge_slashes: true",
    "normalize_path: true, merge_slashes: true, path_with_escaped_slashes_action: UNESCAPE_AND_FORWARD",
];

/// What targets are made of: everything that some reader reads in its own way.
const PIECES: [&str; 38] = [
    "/",
    "//",
    "/.",
    "/./",
    "/..",
    "/../",
    ".",
    "..",
    "a",
    "B",
    "admin",
    "%61",
    "%41",
    "%2e",
    "%2E",
    "%2f",
    "%2F",
    "%5c",
    "%5C",
    "\\",
    ";x=1",
    "..;",
    ";",
    "%3b",
    "%3f",
    "%23",
    "%25",
    "%252e",
    "%252f",
    "%",
    "%2",
    "%zz",
    "%c0%ae",
    "%c0%af",
    "%e0%80%af",
    "%%32e",
    "%20",
    "%00",
];

fn targets(random: &mut Random) -> Vec<String> {
    let mut target = || {
        let mut target = "/".to_owned();
        for _ in 0..=random.below(7) {
            target.push_str(random.pick(&PIECES));
        }
        if random.once_in(4) {
            target.push('?');
            target.push_str(random.pick(&PIECES));
        }
        target
    };
    (0..TARGETS).map(|_| target()).collect()
}

/// How a request is sent, and in what it is forwarded.
const WAYS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

#[test]
fn policies_and_routes_see_the_bytes_that_are_forwarded() {
    let upstream = Backend::start(|request| Reply::text(format!("<{}>", request.target)));
    // What arrives over HTTP/2 shows in what this passes on as it is.
    let relay = proxy("codec_type: HTTP2", &everything("web"), &[static_cluster("web", upstream.address(), "")], "");
    let over_http2 = protocol("explicit_http_config: {http2_protocol_options: {}}");
    let clusters = [
        static_cluster("http1", upstream.address(), ""),
        static_cluster("http2", relay.listener("front"), &over_http2),
    ];
    let mut random = Random::new(7);
    for mode in MODES {
        let targets = targets(&mut random);
        let plain = proxy(mode, &everything("http1"), &clusters, "");
        let address = plain.listener("front");
        let forwarded: Vec<Option<String>> = targets.iter().map(|target| sent(address, target, "", false)).collect();
        let judge = judge(mode, &forwarded, &clusters);
        let address = judge.listener("front");
        let mut wrong = String::new();
        for (case, (target, forwarded)) in targets.iter().zip(&forwarded).enumerate() {
            for (by_http2, to_http2) in WAYS {
                let to = if to_http2 { "http2" } else { "http1" };
                let got = sent(address, target, &format!("{case}-{to}"), by_http2);
                let other = sent(address, target, &format!("{case}-other"), by_http2);
                if got != *forwarded || other.is_some() {
                    let _ =
                        writeln!(wrong, "{mode}: {target} ({by_http2}, {to}): {forwarded:?}, but {got:?}, {other:?}");
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
        let through = forwarded.iter().flatten().count();
        assert!(through > TARGETS / 2, "{mode}: only {through} targets are forwarded at all");
        assert!(mode == MODES[0] || forwarded.contains(&None), "{mode}: none is refused");
    }
}

/// Routes of everything to a cluster.
fn everything(cluster: &str) -> String {
    format!("[{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]")
}

fn proxy(manager: &str, routes: &str, clusters: &[String], filters: &str) -> Proxy {
    let manager: String = manager.split(", ").map(|line| format!("      {line}\n")).collect();
    let routes = format!(
        "route_config: {{name: r, virtual_hosts: [{{name: v, domains: [\"*\"], routes: {routes}}}]}}\n{manager}"
    );
    let listener =
        http_listener("front", &routes, "").replacen("http_filters:\n", &format!("http_filters:\n{filters}"), 1);
    Proxy::start_with(&static_bootstrap(&listener, clusters), 1)
}

/// Admits each target with its own number only as these bytes: in policies as `url_path` and as `:path`, in routes as their path.
fn judge(mode: &str, forwarded: &[Option<String>], clusters: &[String]) -> Proxy {
    let (mut policies, mut routes) = (serde_json::Map::new(), Vec::new());
    for (case, target) in forwarded.iter().enumerate() {
        // What is refused has to be refused by the path alone.
        let target = target.as_deref().unwrap_or("/");
        let path = target.split('?').next().unwrap_or_default();
        for (name, path, target) in [
            (format!("{case}-http1"), path.to_owned(), target.to_owned()),
            (format!("{case}-http2"), path.to_owned(), target.to_owned()),
            (format!("{case}-other"), format!("{path}x"), format!("{target}x")),
        ] {
            let this_case = json!({"name": "x-case", "string_match": {"exact": name}});
            let url_path = json!({"url_path": {"path": {"exact": path}}});
            let whole = json!({"header": {"name": ":path", "string_match": {"exact": target}}});
            let policy = json!({
                "permissions": [{"and_rules": {"rules": [url_path, whole]}}],
                "principals": [{"header": this_case}],
            });
            if let Some(protocol) = name.split('-').next_back().filter(|protocol| *protocol != "other") {
                routes.push(json!({"match": {"path": path, "headers": [this_case]}, "route": {"cluster": protocol}}));
            }
            policies.insert(name, policy);
        }
    }
    routes.push(
        json!({"match": {"prefix": "/"}, "direct_response": {"status": 404, "body": {"inline_string": "no route"}}}),
    );
    let rbac = json!({
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {"action": "ALLOW", "policies": policies},
        },
    });
    proxy(mode, &json!(routes).to_string(), clusters, &format!("      - {rbac}\n"))
}

/// What was forwarded; `None`: the request got no further.
fn sent(address: SocketAddr, target: &str, case: &str, http2: bool) -> Option<String> {
    let body = if http2 { by_http2(address, target, case) } else { by_http1(address, target, case) };
    Some(body.strip_prefix('<')?.strip_suffix('>')?.to_owned())
}

fn by_http1(address: SocketAddr, target: &str, case: &str) -> String {
    let mut connection = Connection::open(address).expect("the listener accepts");
    connection
        .send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nx-case: {case}\r\nConnection: close\r\n\r\n"))
        .expect("the proxy reads");
    connection.response().expect("an answer").text()
}

fn by_http2(address: SocketAddr, target: &str, case: &str) -> String {
    let mut connection = Http2Frames::open(address).expect("the listener accepts");
    let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", target), ("x-case", case)];
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| Http2Frames::field(name, value)).collect();
    connection.frame(Http2Frames::SETTINGS, 0, 0, &[]).expect("the proxy reads");
    connection
        .frame(Http2Frames::HEADERS, Http2Frames::END_STREAM | Http2Frames::END_HEADERS, 1, &block)
        .expect("the proxy reads");
    let mut body = Vec::new();
    while let Some(frame) = connection.next_frame().expect("frames") {
        if frame.kind == Http2Frames::GOAWAY || (frame.kind == Http2Frames::RST_STREAM && frame.stream == 1) {
            break;
        }
        if frame.kind == Http2Frames::DATA {
            body.extend_from_slice(&frame.payload);
        }
        if frame.stream == 1 && frame.kind <= Http2Frames::HEADERS && frame.flags & Http2Frames::END_STREAM != 0 {
            break;
        }
    }
    String::from_utf8(body).expect("text")
}
