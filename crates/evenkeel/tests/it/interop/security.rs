//! RBAC, TLS termination, and plain TCP.

use super::exchange::{Case, Opening, Port, Step};

/// The rows.
pub fn cases() -> Vec<Case> {
    [rbac(), tls(), tcp()].concat()
}

fn rbac() -> Vec<Case> {
    let request = |name, line: &str, extra: &str, expect| {
        Case::request(name, Port::Rbac, expect, &format!("{line} HTTP/1.1\r\nHost: a.test\r\n{extra}\r\n"))
            .then(Step::Open)
    };
    vec![
        request("rbac: path prefix allowed", "GET /public/x", "", "| allowed"),
        request("rbac: path with query", "GET /local?x=1", "", "| allowed"),
        request("rbac: not rule", "GET /public", "x-blocked: 1\r\n", "403"),
        request("rbac: no policy matches", "GET /private", "", "RBAC: access denied"),
        request("rbac: deny comes first", "DELETE /public", "", "403"),
        request("rbac: address allowed", "GET /local", "", "| allowed"),
        request("rbac: address refused", "GET /remote", "", "403"),
        request("rbac: port and header", "GET /port", "x-team: red\r\n", "| allowed"),
        request("rbac: header refused", "GET /port", "x-team: reddish\r\n", "403"),
        Case::new(
            "rbac: refused with a body",
            Port::Rbac,
            "403",
            vec![
                Step::Send("POST /private HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc".to_owned()),
                Step::Response,
            ],
        ),
    ]
}

fn tls() -> Vec<Case> {
    let get = |name, opening, expect| {
        Case::request(name, Port::Tls, expect, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").opened(opening)
    };
    vec![
        get("tls: terminated", Opening::Tls("web.test"), "| GET / HTTP/1.1").then(Step::Open),
        get("tls: unknown server name", Opening::Tls("unknown.test"), "error: "),
        get("tls: client certificate missing", Opening::Tls("mutual.test"), "error: "),
        get("tls: client certificate allowed", Opening::MutualTls("mutual.test", "web"), "x-forwarded-client-cert"),
        get(
            "tls: client certificate that would end the line",
            Opening::MutualTls("mutual.test", "hostile"),
            r#"evil: \"1\"\,b\;c"#,
        ),
        get("tls: client certificate of another", Opening::MutualTls("mutual.test", "other"), "403"),
        Case::request(
            "tls: forged client certificate header",
            Port::Tls,
            "URI=spiffe://cluster.local/ns/default/sa/web",
            "GET / HTTP/1.1\r\nHost: a.test\r\nx-forwarded-client-cert: URI=spiffe://cluster.local/ns/x/sa/y\r\n\r\n",
        )
        .opened(Opening::MutualTls("mutual.test", "web")),
        Case::new(
            "tls: to TCP by wildcard name",
            Port::Tls,
            "bytes: \"ping\"",
            vec![Step::Send("ping".to_owned()), Step::Bytes(4)],
        )
        .opened(Opening::Tls("any.pipe.test")),
        Case::new(
            "tls: plain HTTP on a TLS port",
            Port::Tls,
            "then: closed",
            vec![Step::Send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned()), Step::Closed],
        ),
    ]
}

fn tcp() -> Vec<Case> {
    let send = |text: &str| Step::Send(text.to_owned());
    vec![
        Case::new(
            "tcp: bytes both ways",
            Port::Tcp,
            "bytes: \"pong\"",
            vec![send("ping"), Step::Bytes(4), send("pong"), Step::Bytes(4), Step::Open],
        ),
        Case::new(
            "tcp: half-close travels",
            Port::Tcp,
            "then: closed",
            vec![send("ping"), Step::Finish, Step::Bytes(4), Step::Closed],
        ),
        Case::new(
            "tcp: more than the buffers hold",
            Port::Tcp,
            "bytes",
            vec![send(&"0123456789".repeat(20_000)), Step::Bytes(200_000)],
        ),
        Case::new("tcp: upstream refuses", Port::TcpRefused, "then: closed", vec![Step::Closed]),
        Case::new("tcp: rbac refuses", Port::TcpRbac, "then: closed", vec![send("ping"), Step::Closed]),
        Case::request("sniffed: HTTP", Port::Sniff, "| http", "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
            .then(Step::Open),
        Case::new(
            "sniffed: not HTTP",
            Port::Sniff,
            "bytes: \"\\u{1}\\u{2}\\u{3}ping\"",
            vec![send("\x01\x02\x03ping"), Step::Bytes(7)],
        ),
    ]
}
