//! A request's path under each `pathNormalization`: Envoy and Evenkeel forward the same bytes, or refuse the same paths, over
//! HTTP/1 and HTTP/2.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_testkit::{Backend, Connection, Http2Frames, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, ROUTER, cluster, endpoint};

/// The settings of MeshConfig's values as `translate` writes them, then the proxy's own two further ones.
const MODES: [(&str, &str); 6] = [
    ("NONE", "normalize_path: false"),
    ("BASE", "normalize_path: true"),
    ("MERGE_SLASHES", "normalize_path: true, merge_slashes: true"),
    (
        "DECODE_AND_MERGE_SLASHES",
        "normalize_path: true, merge_slashes: true, path_with_escaped_slashes_action: UNESCAPE_AND_FORWARD",
    ),
    ("reject", "normalize_path: true, merge_slashes: true, path_with_escaped_slashes_action: REJECT_REQUEST"),
    ("redirect", "normalize_path: true, merge_slashes: true, path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT"),
];

/// Connections at a time.
const THREADS: usize = 8;

/// Where Evenkeel means to differ, by what the path has.
struct Known {
    reason: &'static str,
    holds: fn(mode: &str, path: &str) -> bool,
}

const KNOWN: [Known; 3] = [
    Known {
        reason: "a redirect for unescaped slashes never leads to another host (docs/proxy.md)",
        holds: |mode, path| mode == "redirect" && web_host(path),
    },
    Known {
        reason: "a path of nothing but slashes is merged to one; Envoy leaves two",
        holds: |mode, path| !matches!(mode, "NONE" | "BASE") && path == "//",
    },
    Known {
        reason: "dots that are escaped are dots before a parameter, too; the next Envoy would take them for such",
        holds: |mode, path| mode != "NONE" && path == "/a/%2e%2e;/b",
    },
];

/// Whether the unescaped path begins with two slashes, which a browser takes for a host.
fn web_host(path: &str) -> bool {
    let unescaped = path.to_ascii_lowercase().replace("%2f", "/").replace("%5c", "/").replace('\\', "/");
    unescaped.starts_with("//")
}

/// Each byte that a target may have as it is, each escape, and what people have talked proxies around with.
fn paths() -> Vec<String> {
    let raw = (b'!'..=b'~').filter(|byte| !b"?#".contains(byte)).map(|byte| format!("/a{}b", char::from(byte)));
    let escaped = (0..=255u8).map(|byte| format!("/a%{byte:02X}b"));
    let lower = (0..=255u8).filter(|byte| byte & 0x0f > 9).map(|byte| format!("/a%{byte:02x}b"));
    raw.chain(escaped).chain(lower).chain(TRICKS.map(str::to_owned)).collect()
}

const TRICKS: [&str; 84] = [
    "/",
    "//",
    "///a",
    "/a//b",
    "/a/",
    "/a//",
    "/.",
    "/..",
    "/./",
    "/../",
    "/a/.",
    "/a/..",
    "/a/./b",
    "/a/../b",
    "/a/b/../../..",
    "/../../a",
    "/...",
    "/.../a",
    "/.a",
    "/a.",
    "/a/..b",
    "/a/b..",
    "/a//../b",
    "/a/..//b",
    "/%2e",
    "/%2e%2e",
    "/a/%2e%2e/b",
    "/a/%2E%2e/b",
    "/a/.%2e/b",
    "/a/%2e./b",
    "/a/%2e/b",
    "/a/..%2fb",
    "/a/..%5cb",
    "/a/%2e%2e%2fb",
    "/a%2f..%2fb",
    "/a%2F%2Fb",
    "/a%2f/b",
    "/%2fa",
    "/%2f%2fa",
    "/%5c%5ca",
    "/%2f/a",
    "/a%5C..%5Cb",
    "/a%5cb%2fc",
    "/a\\b",
    "/a\\..\\b",
    "/a\\\\b",
    "/\\a",
    "/a/..\\b",
    "/a;x=1",
    "/a;x=1/b",
    "/a/..;/b",
    "/a/..;x/b",
    "/a/.;/b",
    "/a/%2e%2e;/b",
    "/a%3Bx",
    "/a%3Fb",
    "/a%3fb=c",
    "/a%23b",
    "/a?b#c",
    "/a%00",
    "/a%00b",
    "/a?x=%00",
    "/a?x=../b",
    "/a?x=//b",
    "/a?x=%2f",
    "/a/..?x",
    "/a/.?x",
    "/a%2fb?c%2fd",
    "/a%",
    "/a%2",
    "/a%zz",
    "/a%2z",
    "/a%u002e",
    "/a%%",
    "/%%32e",
    "/%%32%65",
    "/%2%66a",
    "/a%25%32%65",
    "/a%252e%252e/b",
    "/a%252fb",
    "/a/%c0%ae%c0%ae/b",
    "/a%c0%afb",
    "/a%e0%80%afb",
    "/a%f0%80%80%afb",
];

#[test]
fn evenkeel_and_envoy_read_paths_alike() {
    let upstream = Backend::start(|request| Reply::text(format!("<{}>", request.target)));
    let rows: Vec<(usize, bool, String)> = (0..MODES.len())
        .flat_map(|mode| [false, true].map(|http2| (mode, http2)))
        .flat_map(|(mode, http2)| paths().into_iter().map(move |path| (mode, http2, path)))
        .collect();
    let envoy = run(Program::Envoy, upstream.address(), &rows);
    let evenkeel = run(Program::Evenkeel, upstream.address(), &rows);
    let (mut differences, mut known) = (String::new(), BTreeMap::new());
    for (name, (path, mode, expected)) in &envoy {
        let (.., got) = &evenkeel[name];
        match KNOWN.iter().find(|known| (known.holds)(mode, path)) {
            Some(reason) => *known.entry(reason.reason).or_insert(0) += usize::from(got != expected),
            None if got != expected => {
                let _ = writeln!(differences, "{name}:\n- {expected}\n+ {got}");
            }
            None => {}
        }
    }
    assert!(differences.is_empty(), "- Envoy, + Evenkeel\n{differences}");
    for Known { reason, .. } in KNOWN {
        assert!(known.get(reason).is_some_and(|count| *count > 0), "does not differ any more: {reason}");
    }
    let says = |name: &str, expected: &str| assert_eq!(envoy[name].2, expected, "{name}");
    says("NONE h1 /a/../b", "200 </a/../b>");
    says("BASE h1 /a/%2e%2e/b", "200 </b>");
    says("BASE h2 /a//b", "200 </a//b>");
    says("BASE h1 /a%2fb", "200 </a%2fb>");
    says("BASE h1 /a%00b", "400 ");
    says("BASE h1 /%%32e", "200 </%252e>");
    says("MERGE_SLASHES h1 /a//b", "200 </a/b>");
    says("DECODE_AND_MERGE_SLASHES h2 /a/..%5cb", "200 </b>");
    says("reject h1 /a%2f/b", "400 ");
    says("redirect h1 /a%2f..%2fb", "307 /b");
}

/// What came of each row, by its name.
type Outcomes = BTreeMap<String, (String, &'static str, String)>;

fn run(program: Program, upstream: SocketAddr, rows: &[(usize, bool, String)]) -> Outcomes {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [admin] = free_ports();
    let ports = free_ports::<{ MODES.len() }>();
    let listener = |((name, mode), port): (&(&str, &str), u16)| {
        let lines: String = mode.split(", ").map(|line| format!("          {line}\n")).collect();
        let route = web::one_host("              - { match: { prefix: / }, route: { cluster: web } }\n");
        web::http_listener(name, port, &format!("{lines}          http_filters: [ {ROUTER} ]\n{route}"))
    };
    let listeners: String = MODES.iter().zip(ports).map(listener).collect();
    let web = cluster("web", &endpoint(upstream.port(), ""), "");
    std::fs::write(&file, web::scene(admin, &listeners, &[web])).expect("a writable folder");
    let mut process = web::start(program, &file, admin, ports[0]);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((mode, http2, path)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[*mode]));
            let answer = if *http2 { by_http2(address, path) } else { by_http1(address, path) };
            let name = format!("{} {} {path}", MODES[*mode].0, if *http2 { "h2" } else { "h1" });
            let answer = answer.unwrap_or_else(|error| panic!("{program:?}: {name}: {error}"));
            done.push((name, (path.clone(), MODES[*mode].0, answer)));
        }
        done
    };
    let outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a row does not panic")).collect()
    });
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    outcomes
}

fn by_http1(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut connection = Connection::open(address)?;
    connection.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))?;
    let response = connection.response()?;
    let location = response.header("location").unwrap_or_default().to_owned();
    Ok(outcome(response.status, &location, &response.text()))
}

/// The same words as over HTTP/1. A stream that is reset is a refusal as 400 is.
fn by_http2(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut connection = Http2Frames::open(address)?;
    connection.frame(Http2Frames::SETTINGS, 0, 0, &[])?;
    let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)];
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| Http2Frames::field(name, value)).collect();
    connection.frame(Http2Frames::HEADERS, Http2Frames::END_STREAM | Http2Frames::END_HEADERS, 1, &block)?;
    Ok(match connection.response(1)? {
        // `:status` 200 and 400 of the static table (RFC 7541 appendix A).
        Some((Some(0x88), body)) => outcome(200, "", &String::from_utf8_lossy(&body)),
        Some((Some(0x8c), _)) => outcome(400, "", ""),
        Some(_) => "another status".to_owned(),
        None => "400 ".to_owned(),
    })
}

fn outcome(status: u16, location: &str, body: &str) -> String {
    match status {
        200 => format!("200 {body}"),
        400 => "400 ".to_owned(),
        307 => format!("307 {}", location.trim_start_matches("http://a")),
        _ => format!("{status} {location}{body}"),
    }
}
