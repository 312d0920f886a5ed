//! The host of a request, which may be in several places of its head: Envoy and Evenkeel choose the same virtual host, and
//! forward the same host, over HTTP/1 and HTTP/2. Where Evenkeel refuses more, the row has the reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_testkit::{Backend, Connection, Http2Frames, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, ROUTER, cluster, endpoint};

/// Connection managers: by default, and with ports taken off.
const MANAGERS: [(&str, &str); 3] =
    [("plain", ""), ("any-port", "strip_any_host_port: true"), ("own-port", "strip_matching_host_port: true")];

/// The virtual hosts: names, and what they add.
const HOSTS: [(&str, &str); 5] = [
    ("exact", "\"admin.test\""),
    ("port", "\"admin.test:8443\""),
    ("suffix", "\"*.admin.test\""),
    ("prefix", "\"admin.*\""),
    ("all", "\"*\""),
];

/// What stands for a host.
const NAMES: [&str; 36] = [
    "admin.test",
    "ADMIN.test",
    "aDmIn.TeSt",
    "admin.test.",
    "admin.test..",
    ".admin.test",
    "x.admin.test",
    "X.Admin.Test",
    "x.admin.test.",
    "x..admin.test",
    "admin.test:80",
    "admin.test:8443",
    "ADMIN.TEST:8443",
    "admin.test.:8443",
    "admin.test:",
    "admin.test:0",
    "admin.test:08443",
    "admin.test:99999",
    "admin.test:x",
    "admin.test:80:80",
    "u@admin.test",
    "u:p@admin.test",
    "admin.test@x.test",
    "admin.other",
    "admin.test/x",
    "admin.test?x",
    "admin.test#x",
    "admin.test\\x",
    "admin.test, x.test",
    "admin_test",
    "admin%2etest",
    "[::1]",
    "[::1]:8443",
    "[::1",
    "127.0.0.1:8443",
    "*.admin.test",
];

/// Where it stands, beside what.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Ord, Eq)]
enum NameField {
    Header,
    Url,
    FirstOfTwo,
    SecondOfTwo,
    TwiceTheSame,
    Old,
    Authority,
    AuthorityBesideHost,
    HostBesideAuthority,
    AuthorityAndHost,
    HostOnly,
}

const WAYS: [NameField; 11] = [
    NameField::Header,
    NameField::Url,
    NameField::FirstOfTwo,
    NameField::SecondOfTwo,
    NameField::TwiceTheSame,
    NameField::Old,
    NameField::Authority,
    NameField::AuthorityBesideHost,
    NameField::HostBesideAuthority,
    NameField::AuthorityAndHost,
    NameField::HostOnly,
];

/// Where Evenkeel means to differ.
struct Known {
    reason: &'static str,
    holds: fn(way: NameField, name: &str) -> bool,
    /// What it does instead.
    instead: fn(name: &str) -> String,
}

fn refuses(_: &str) -> String {
    REFUSED.to_owned()
}

const KNOWN: [Known; 8] = [
    Known {
        reason: "RFC 9112 section 3.2: a request has one Host; Envoy makes a list of several",
        holds: |way, _| matches!(way, NameField::FirstOfTwo | NameField::SecondOfTwo | NameField::TwiceTheSame),
        instead: refuses,
    },
    Known {
        reason: "RFC 9113 section 8.3.1: a Host that says another than `:authority` makes a request malformed",
        holds: |way, _| matches!(way, NameField::AuthorityBesideHost | NameField::HostBesideAuthority),
        instead: refuses,
    },
    Known {
        reason: "RFC 9110 section 4.2.4: a name with user information is refused; Envoy reads it as part of a header's host, and skips it in a URL",
        holds: |_, name| name.contains('@'),
        instead: refuses,
    },
    Known {
        reason: "a port is a number of 16 bits, and brackets are closed",
        holds: |_, name| matches!(name, "admin.test:99999" | "admin.test:x" | "admin.test:80:80" | "[::1"),
        instead: refuses,
    },
    Known {
        reason: "RFC 3986 section 3.2.3: a port may be empty, also in a URL",
        holds: |way, name| name == "admin.test:" && way == NameField::Url,
        instead: |_| "prefix admin.test:".to_owned(),
    },
    Known {
        reason: "RFC 3986 section 3.2.3: a port that is empty is taken off like others",
        holds: |_, name| name == "admin.test:",
        instead: |_| "exact admin.test".to_owned(),
    },
    Known {
        reason: "RFC 9112 section 3.2.1: a URL may have a query and no path",
        holds: |way, name| way == NameField::Url && name == "admin.test?x",
        instead: |_| "exact admin.test".to_owned(),
    },
    Known {
        reason: "RFC 3986 section 3.2.2: what a host may have in a header, it may have in a URL",
        holds: |way, name| way == NameField::Url && matches!(name, "admin_test" | "admin%2etest" | "*.admin.test"),
        instead: |name| format!("{} {name}", if name.starts_with('*') { "suffix" } else { "all" }),
    },
];

#[test]
fn evenkeel_and_envoy_take_a_request_for_the_same_host() {
    let upstream = Backend::start(|request| {
        let of = |name: &str| request.header(name).unwrap_or_default().to_owned();
        Reply::text(format!("{} {}", of("x-virtual"), of("host")))
    });
    let rows: Vec<(usize, NameField, &str)> = (0..MANAGERS.len())
        .flat_map(|manager| WAYS.map(|way| (manager, way)))
        .flat_map(|(manager, way)| NAMES.map(|name| (manager, way, name)))
        .collect();
    let envoy = run(Program::Envoy, upstream.address(), &rows);
    let evenkeel = run(Program::Evenkeel, upstream.address(), &rows);
    let (mut differences, mut known) = (String::new(), BTreeMap::new());
    for ((row, expected), got) in rows.iter().zip(&envoy).zip(&evenkeel) {
        let (manager, way, name) = row;
        let is_this = |known: &&Known| (known.holds)(*way, name) && (known.instead)(name) == *got;
        match KNOWN.iter().find(is_this) {
            Some(reason) if got != expected => *known.entry(reason.reason).or_insert(0) += 1,
            _ if got != expected => {
                let _ = writeln!(differences, "{} {way:?} {name}:\n- {expected}\n+ {got}", MANAGERS[*manager].0);
            }
            _ => {}
        }
    }
    assert!(differences.is_empty(), "- Envoy, + Evenkeel\n{differences}");
    for Known { reason, .. } in KNOWN {
        assert!(known.contains_key(reason), "does not differ any more: {reason}");
    }
    let came_of = |manager: &str, way: NameField, name: &str| {
        let at = rows.iter().position(|row| (MANAGERS[row.0].0, row.1, row.2) == (manager, way, name));
        envoy[at.expect("a row")].clone()
    };
    assert_eq!(came_of("plain", NameField::Header, "aDmIn.TeSt"), "exact aDmIn.TeSt");
    assert_eq!(came_of("plain", NameField::Authority, "admin.test."), "prefix admin.test.");
    assert_eq!(came_of("plain", NameField::Url, "admin.test"), "exact admin.test");
    assert_eq!(came_of("any-port", NameField::HostOnly, "admin.test:8443"), "exact admin.test");
    assert_eq!(came_of("own-port", NameField::Header, "admin.test:80"), "exact admin.test");
    assert_eq!(came_of("plain", NameField::Header, "admin.test/x"), REFUSED);
}

/// A 400, or the end of a stream or connection without an answer.
const REFUSED: &str = "refused";

/// What came of each row.
fn run(program: Program, upstream: SocketAddr, rows: &[(usize, NameField, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [admin] = free_ports();
    let ports = free_ports::<{ MANAGERS.len() }>();
    let virtuals: String = HOSTS
        .iter()
        .map(|(name, domain)| {
            format!(
                "            - {{ name: {name}, domains: [ {domain} ], routes: [ {{ match: {{ prefix: / }}, route: {{ cluster: web }} }} ], \
                 request_headers_to_add: [ {{ header: {{ key: x-virtual, value: {name} }}, append_action: OVERWRITE_IF_EXISTS_OR_ADD }} ] }}\n"
            )
        })
        .collect();
    let listener = |((name, manager), port): (&(&str, &str), u16)| {
        let line = if manager.is_empty() { String::new() } else { format!("          {manager}\n") };
        let routes = format!("          route_config:\n            name: r\n            virtual_hosts:\n{virtuals}");
        let lines = format!("{line}          http_protocol_options: {{ accept_http_10: true }}\n");
        web::http_listener(name, port, &format!("{lines}          http_filters: [ {ROUTER} ]\n{routes}"))
    };
    let listeners: String = MANAGERS.iter().zip(ports).map(listener).collect();
    let web = cluster("web", &endpoint(upstream.port(), ""), "");
    std::fs::write(&file, web::scene(admin, &listeners, &[web])).expect("a writable folder");
    let mut process = web::start(program, &file, admin, ports[0]);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((manager, way, name)) = rows.get(index) else { return done };
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[*manager]));
            let answer = ask(address, *way, name).unwrap_or_else(|_| REFUSED.to_owned());
            done.push((index, answer.replace(&ports[*manager].to_string(), "PORT")));
        }
    };
    let mut outcomes: Vec<(usize, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a row does not panic")).collect()
    });
    outcomes.sort();
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn ask(address: SocketAddr, way: NameField, name: &str) -> io::Result<String> {
    let own = &format!("admin.test:{}", address.port());
    // The listener's own port, which one of the managers takes off.
    let name = if name == "admin.test:80" { own } else { name };
    let lines = match way {
        NameField::Header => format!("GET / HTTP/1.1\r\nHost: {name}\r\n"),
        NameField::Url => format!("GET http://{name}/ HTTP/1.1\r\nHost: a.test\r\n"),
        NameField::FirstOfTwo => format!("GET / HTTP/1.1\r\nHost: {name}\r\nHost: a.test\r\n"),
        NameField::SecondOfTwo => format!("GET / HTTP/1.1\r\nHost: a.test\r\nHost: {name}\r\n"),
        NameField::TwiceTheSame => format!("GET / HTTP/1.1\r\nHost: {name}\r\nHost: {name}\r\n"),
        NameField::Old => format!("GET / HTTP/1.0\r\nHost: {name}\r\n"),
        NameField::Authority => return by_http2(address, &[(":authority", name)]),
        NameField::AuthorityBesideHost => return by_http2(address, &[(":authority", name), ("host", "a.test")]),
        NameField::HostBesideAuthority => return by_http2(address, &[(":authority", "a.test"), ("host", name)]),
        NameField::AuthorityAndHost => return by_http2(address, &[(":authority", name), ("host", name)]),
        NameField::HostOnly => return by_http2(address, &[("host", name)]),
    };
    let mut connection = Connection::open(address)?;
    connection.send(format!("{lines}Connection: close\r\n\r\n"))?;
    let response = connection.response()?;
    Ok(match response.status {
        200 => response.text(),
        400 => REFUSED.to_owned(),
        other => other.to_string(),
    })
}

fn by_http2(address: SocketAddr, fields: &[(&str, &str)]) -> io::Result<String> {
    let mut connection = Http2Frames::open(address)?;
    connection.frame(Http2Frames::SETTINGS, 0, 0, &[])?;
    let pseudo = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let block: Vec<u8> =
        pseudo.iter().chain(fields).flat_map(|(name, value)| Http2Frames::field(name, value)).collect();
    connection.frame(Http2Frames::HEADERS, Http2Frames::END_STREAM | Http2Frames::END_HEADERS, 1, &block)?;
    Ok(match connection.response(1)? {
        // `:status` 200, 400 and 404 of the static table (RFC 7541 appendix A).
        Some((Some(0x88), body)) => String::from_utf8_lossy(&body).into_owned(),
        Some((Some(0x8c), _)) | None => REFUSED.to_owned(),
        Some((Some(0x8d), _)) => "404".to_owned(),
        Some(_) => "another status".to_owned(),
    })
}
