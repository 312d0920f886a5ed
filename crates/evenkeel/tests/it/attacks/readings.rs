//! Attempts to evade policies by the spelling of a request's path, host or method, or by turning it into something else.

use super::gateway::Gateway;
use super::{Over, by_http2, statuses, talk};

/// Notations of `/admin`: for each there are servers that read it so.
const PATHS: [&str; 78] = [
    "/admin",
    "/admin/",
    "/admin?x",
    "/admin/users",
    "//admin",
    "///admin/users",
    "/./admin",
    "/public/../admin",
    "/public/../../admin",
    "/public/./../admin/users",
    "/%61dmin",
    "/adm%69n/users",
    "/%2e/admin",
    "/public/%2e%2e/admin",
    "/public/%2E./admin",
    "/public/..%2fadmin",
    "/public/..%2Fadmin",
    "/public%2f..%2fadmin",
    "/%2fadmin",
    "/%2Fadmin",
    "/.%2fadmin",
    "/admin%2fusers",
    "/admin%2Fusers",
    "/admin%5cusers",
    "/%5cadmin",
    "/%5C%5Cadmin",
    "/public%5c..%5cadmin",
    "\\admin",
    "/\\admin",
    "/public\\..\\admin",
    "/public/..\\admin",
    "/admin\\users",
    "/admin;x",
    "/admin;jsessionid=1/users",
    "/;x/admin",
    "/public/..;/admin",
    "/public/..;x=1/admin",
    "/.;/admin",
    "/admin%3bx",
    "/admin%3Fx",
    "/admin%3fx/y",
    "/admin%23x",
    "/admin#x",
    "/admin%00",
    "/admin%00.png",
    "/%2561dmin",
    "/%252e/admin",
    "/public/%252e%252e/admin",
    "/%252fadmin",
    "/admin%252fusers",
    "/%25%36%31dmin",
    "/%%36%31dmin",
    "/%%32%65/admin",
    "/%%32fadmin",
    "/%c0%afadmin",
    "/public/%c0%ae%c0%ae/admin",
    "/public/%c0%ae%c0%ae%c0%afadmin",
    "/%e0%80%afadmin",
    "/%f0%80%80%afadmin",
    "/public/%u002e%u002e/admin",
    "/admin%0a",
    "/admin%0D%0A",
    "/admin%20",
    "/admin/users%20",
    "/admin%09",
    "/admin%0b",
    "/admin%0C",
    "/admin%1f",
    "/admin%7f",
    "/admin%a0",
    "/admin%c2%a0",
    "/admin%C2%85",
    "/admin%e1%9a%80",
    "/admin%e2%80%a8",
    "/admin%e3%80%80",
    "/admin%ef%bb%bf",
    "/v1/items%3adelete",
    "/v1/items%3Adelete",
];

/// What a lenient server makes of a path: it decodes until nothing is left to decode, drops parameters, merges slashes, resolves
/// dot segments, and ends the path where a C string or a query does, without white space.
fn lenient(target: &str) -> String {
    let mut path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
    for _ in 0..4 {
        path = decoded(&path);
    }
    let path = path.split(['\0', '?', '#']).next().unwrap_or_default().replace('\\', "/");
    // A byte that is no UTF-8 was the no-break space of Latin-1.
    let is_space =
        |c: char| c.is_whitespace() || c.is_control() || ['\u{feff}', char::REPLACEMENT_CHARACTER].contains(&c);
    let path = path.trim_end_matches(is_space);
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    format!("/{}", segments.join("/"))
}

fn decoded(path: &str) -> String {
    let overlong = [("%c0%af", "/"), ("%c0%ae", "."), ("%e0%80%af", "/"), ("%f0%80%80%af", "/"), ("%u002e", ".")];
    let path = overlong.iter().fold(path.to_owned(), |path, (escape, character)| path.replace(escape, character));
    let (bytes, mut out, mut at) = (path.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| *byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_denied(target: &str) -> bool {
    let path = lenient(target);
    path == "/admin" || path.starts_with("/admin/") || path == "/v1/items:delete"
}

/// What of the requests that reached the server it would have taken for denied ones.
fn got_through(gateway: &Gateway) -> Vec<String> {
    let requests = gateway.backend.requests();
    requests.into_iter().map(|request| request.target).filter(|target| is_denied(target)).collect()
}

#[test]
fn no_notation_of_a_path_gets_past_a_policy() {
    for path in PATHS {
        assert!(is_denied(path), "the attack is none: {path} is {}", lenient(path));
    }
    let gateway = Gateway::new();
    let modes = [
        ("BASE", "/a/./b", Some("/a/b")),
        ("NONE", "/a/./b", None),
        ("MERGE_SLASHES", "/a//b", Some("/a/b")),
        ("DECODE_AND_MERGE_SLASHES", "/a%2fb", Some("/a/b")),
    ];
    for (mode, path, arrives) in modes {
        gateway.normalizes(mode, path, arrives);
        for path in PATHS {
            let answer = talk(gateway.address, format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes());
            let statuses = statuses(&answer.expect("it accepts"));
            assert!(statuses.iter().all(|status| matches!(status, 400 | 403 | 404)), "{mode} {path}: {statuses:?}");
            let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", path)];
            let over = by_http2(gateway.address, &fields, b"").expect("it accepts");
            assert_ne!(over, Over::Served, "{mode} {path} over HTTP/2");
        }
        assert_eq!(got_through(&gateway), Vec::<String>::new(), "{mode}");
        // What is not ambiguous passes as before.
        for path in ["/public/x?y=%2e%2e//;", "/adm", "/a.b/c~d_e-f", "/caf%C3%A9", "/a%20b"] {
            let answer = talk(gateway.address, format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes());
            assert_eq!(statuses(&answer.expect("it accepts")), [200], "{mode} {path}");
        }
    }
    for reason in [
        "rbac_access_denied_matched_policy[ns[ingress]-policy[no-admin]-rule[0]]",
        "ambiguous-path[encoded-slash]",
        "ambiguous-path[empty-segment]",
        "ambiguous-path[dot-segment]",
        "ambiguous-path[backslash]",
        "ambiguous-path[encoded-character]",
        "ambiguous-path[encoded-nul]",
        "ambiguous-path[path-parameter]",
        "ambiguous-path[double-encoding]",
        "ambiguous-path[encoded-delimiter]",
        "ambiguous-path[overlong-escape]",
        "ambiguous-path[invalid-escape]",
        "path_normalization_failed",
    ] {
        gateway.logs(&[reason]);
    }
}

#[test]
fn no_notation_of_a_host_gets_past_a_policy() {
    let gateway = Gateway::new();
    for host in [
        "admin.test",
        "ADMIN.test",
        "Admin.Test",
        "admin.test.",
        "ADMIN.TEST.",
        "admin.test.:80",
        "admin.test:80",
        "admin.test:8443",
        "admin.test:",
        "admin.test:08443",
        "admin.test..",
        "x.admin.test",
        "x.admin.test:",
        "x.ADMIN.test.",
        "x.admin.test:80",
    ] {
        let rows = [
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            format!("GET http://{host}/ HTTP/1.1\r\nHost: a.test\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: a.test\r\nHost: {host}\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: a.test\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: a.test, {host}\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: a.test@{host}\r\n\r\n"),
        ];
        for row in rows {
            let statuses = statuses(&talk(gateway.address, row.as_bytes()).expect("it accepts"));
            assert!(statuses.iter().all(|status| matches!(status, 400 | 403 | 404)), "{row}: {statuses:?}");
        }
        for fields in [
            vec![(":authority", host)],
            vec![(":authority", "a.test"), ("host", host)],
            vec![(":authority", host), ("host", "a.test")],
            vec![("host", host)],
        ] {
            let pseudo = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
            let over = by_http2(gateway.address, &[&pseudo, fields.as_slice()].concat(), b"").expect("it accepts");
            assert_ne!(over, Over::Served, "{fields:?}");
        }
    }
    let hosts = gateway.backend.requests();
    let hosts: Vec<_> = hosts.iter().filter_map(|request| request.header("host")).collect();
    assert!(hosts.iter().all(|host| !host.to_ascii_lowercase().contains("admin.test")), "{hosts:?}");
    gateway.logs(&["admin.test.", "ambiguous-host[trailing-dot]"]);
    gateway.logs(&["admin.test:80", "no-admin]-rule[1]"]);
}

#[test]
fn no_notation_of_a_method_gets_past_a_policy() {
    let gateway = Gateway::new();
    for method in ["DELETE", "delete", "Delete", "dELETE"] {
        let statuses = statuses(
            &talk(gateway.address, format!("{method} /x HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes())
                .expect("it accepts"),
        );
        assert!(statuses.iter().all(|status| matches!(status, 400 | 403)), "{method}: {statuses:?}");
        let fields = [(":method", method), (":scheme", "http"), (":authority", "a.test"), (":path", "/x")];
        assert_ne!(by_http2(gateway.address, &fields, b"").expect("it accepts"), Over::Served, "{method}");
    }
    let methods: Vec<_> = gateway.backend.requests().into_iter().map(|request| request.method).collect();
    assert!(methods.iter().all(|method| !method.eq_ignore_ascii_case("delete")), "{methods:?}");
    gateway.logs(&["ambiguous-method[lower-case]"]);
    gateway.logs(&["DELETE", "no-admin]-rule[2]"]);
}

#[test]
fn no_pseudo_header_trailer_or_upgrade_gets_past_a_policy() {
    let gateway = Gateway::new();
    let (get, scheme, authority) = ((":method", "GET"), (":scheme", "http"), (":authority", "a.test"));
    let public = (":path", "/public");
    let rows: [(&str, Vec<(&str, &str)>); 9] = [
        ("two paths", vec![get, scheme, authority, public, (":path", "/admin")]),
        ("a late path", vec![get, scheme, authority, public, ("x", "1"), (":path", "/admin")]),
        ("a path as a field", vec![get, scheme, authority, public, ("path", "/x"), (":Path", "/admin")]),
        ("a path with a blank", vec![get, scheme, authority, (":path", "/public HTTP/1.1")]),
        ("a path with a line's end", vec![get, scheme, authority, (":path", "/public\r\nx: y")]),
        ("a path without a slash", vec![get, scheme, authority, (":path", "admin")]),
        ("a URL for a path", vec![get, scheme, authority, (":path", "http://a.test/admin")]),
        ("an unknown pseudo-header", vec![get, scheme, authority, public, (":rewrite", "/admin")]),
        (
            "a tunnel to it",
            vec![(":method", "CONNECT"), (":protocol", "websocket"), scheme, authority, (":path", "/admin")],
        ),
    ];
    for (name, fields) in rows {
        assert_ne!(by_http2(gateway.address, &fields, b"").expect("it accepts"), Over::Served, "{name}");
    }
    let rows = [
        "GET /admin HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".to_owned(),
        "GET /admin HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
            .to_owned(),
        "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\nGET /admin HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
    ];
    for row in &rows {
        let statuses = statuses(&talk(gateway.address, row.as_bytes()).expect("it accepts"));
        assert!(statuses.iter().all(|status| matches!(status, 400 | 403 | 404)), "{row}: {statuses:?}");
    }
    // What follows an upgrade that is ignored or refused is a request of its own, and judged as one.
    let second = "GET /admin HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let h2c = "GET /public HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    let answer = talk(gateway.address, format!("{h2c}{second}").as_bytes()).expect("it accepts");
    assert_eq!(statuses(&answer), [200, 403], "{answer}");
    let preface = [h2c.as_bytes(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"].concat();
    let answer = talk(gateway.address, &preface).expect("it accepts");
    assert!(matches!(statuses(&answer)[..], [200] | [200, 400 | 403 | 404]) && !answer.contains(" 101 "), "{answer}");
    // Trailers are no headers: a policy that asks for one is not satisfied by the other, and they carry no route.
    let trailers = "POST /public HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n:path: /admin\r\nhost: admin.test\r\n\r\n";
    let answer = talk(gateway.address, trailers.as_bytes()).expect("it accepts");
    assert!(statuses(&answer).iter().all(|status| matches!(status, 200 | 400)), "{answer}");
    assert_eq!(got_through(&gateway), Vec::<String>::new());
    gateway.logs(&["/admin", "no-admin]-rule[0]"]);
}
