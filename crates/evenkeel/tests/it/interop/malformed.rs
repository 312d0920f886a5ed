//! Messages that break the rules of RFC 9110 and 9112: the status they get, and that the connection ends.

use super::exchange::{Case, Port, Step};

/// The rows.
pub fn cases() -> Vec<Case> {
    [heads(), framing(), limits()].concat()
}

fn bad(name: &'static str, text: &str) -> Case {
    Case::new(name, Port::Http, "400", vec![Step::Send(text.to_owned()), Step::Response, Step::Closed])
}

fn heads() -> Vec<Case> {
    let with = |name, line: &str| bad(name, &format!("GET / HTTP/1.1\r\nHost: actions.test\r\n{line}\r\n\r\n"));
    vec![
        bad("garbage", "\x01\x02\x03garbage\r\n\r\n"),
        bad("no host", "GET / HTTP/1.1\r\n\r\n"),
        bad("two hosts", "GET / HTTP/1.1\r\nHost: actions.test\r\nHost: other.test\r\n\r\n")
            .envoy("404")
            .differs("RFC 9112 section 3.2: more than one Host is a bad request", "400"),
        bad("host that is none", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
        bad("no version", "GET /\r\nHost: actions.test\r\n\r\n")
            .envoy("426")
            .differs("RFC 9112 section 2.3: a request line has a version", "400"),
        bad("version HTTP/1.2", "GET / HTTP/1.2\r\nHost: actions.test\r\n\r\n")
            .envoy("426")
            .differs("HTTP/1.2 does not exist", "400"),
        bad("version HTTP/2.0", "GET / HTTP/2.0\r\nHost: actions.test\r\n\r\n")
            .envoy("426")
            .differs("not a version of the HTTP/1 syntax", "400"),
        bad("space in the target", "GET /a b HTTP/1.1\r\nHost: actions.test\r\n\r\n"),
        bad("method with a colon", "GE:T / HTTP/1.1\r\nHost: actions.test\r\n\r\n"),
        bad("target without a slash", "GET x HTTP/1.1\r\nHost: actions.test\r\n\r\n"),
        bad("fragment in the target", "GET /a#b HTTP/1.1\r\nHost: actions.test\r\n\r\n"),
        with("space before the colon", "X-A : 1"),
        with("no colon", "X-A"),
        with("space in a name", "X A: 1"),
        with("empty name", ": 1"),
        with("NUL in a value", "X-A: a\0b"),
        with("CR in a value", "X-A: a\rb")
            .envoy("| x-a: ab")
            .differs("RFC 9112 section 2.2: a bare CR is invalid, and dropping it hides it", "400"),
        with("control character in a value", "X-A: a\x01b"),
        with("folded line", "X-A: a\r\n b")
            .envoy("| x-a: a b")
            .differs("RFC 9112 section 5.2: a server may refuse folded lines", "400"),
        bad("bare LF", "GET / HTTP/1.1\nHost: actions.test\n\n").envoy("200").differs(
            "a line ends in CRLF: what one reader takes for an end and the next does not is how requests are smuggled",
            "400",
        ),
        Case::request(
            "empty lines before the request",
            Port::Http,
            "200",
            "\r\n\r\nGET / HTTP/1.1\r\nHost: actions.test\r\n\r\n",
        ),
    ]
}

fn framing() -> Vec<Case> {
    let post = |name, head: &str, body: &str| {
        bad(name, &format!("POST /p HTTP/1.1\r\nHost: actions.test\r\n{head}\r\n{body}"))
    };
    vec![
        post("length and chunks", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        post("two different lengths", "Content-Length: 3\r\nContent-Length: 4\r\n", "abcd"),
        post("two equal lengths", "Content-Length: 3\r\nContent-Length: 3\r\n", "abc"),
        post("a list of lengths", "Content-Length: 3, 3\r\n", "abc"),
        post("negative length", "Content-Length: -3\r\n", ""),
        post("length with a sign", "Content-Length: +3\r\n", "abc"),
        post("length in hexadecimal", "Content-Length: 0x3\r\n", "abc"),
        post("length too long", "Content-Length: 99999999999999999999\r\n", ""),
        post("empty length", "Content-Length: \r\n", ""),
        post("unknown transfer coding", "Transfer-Encoding: gzip\r\n", "abc").envoy("501"),
        post("chunked is not last", "Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n").envoy("501"),
        post("chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n").envoy("501"),
        post("chunked in quotes", "Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n").envoy("501"),
        post("chunk size is no number", "Transfer-Encoding: chunked\r\n", "zz\r\nabc\r\n0\r\n\r\n"),
        post("chunk size with a sign", "Transfer-Encoding: chunked\r\n", "+3\r\nabc\r\n0\r\n\r\n"),
        post("chunk size too long", "Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
        post("chunk without CRLF", "Transfer-Encoding: chunked\r\n", "3\r\nabcdef\r\n0\r\n\r\n")
            .envoy("| abc")
            .differs("RFC 9112 section 7.1: a chunk ends in CRLF", "400"),
        post("chunk line ends in LF", "Transfer-Encoding: chunked\r\n", "3\nabc\r\n0\r\n\r\n"),
        post("bad trailer", "Transfer-Encoding: chunked\r\n", "0\r\nx y\r\n\r\n"),
    ]
}

fn limits() -> Vec<Case> {
    let edge = |name, expect, text: &str| {
        Case::new(name, Port::Edge, expect, vec![Step::Send(text.to_owned()), Step::Response, Step::Closed])
    };
    let lines = |count: usize| (0..count).map(|n| format!("x-{n}: 1\r\n")).collect::<String>();
    vec![
        edge(
            "head over the limit",
            "431",
            &format!("GET / HTTP/1.1\r\nHost: a.test\r\nx-long: {}\r\n\r\n", "x".repeat(9 << 10)),
        ),
        edge("target over the limit", "431", &format!("GET /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", "x".repeat(9 << 10))),
        edge("too many header lines", "431", &format!("GET / HTTP/1.1\r\nHost: a.test\r\n{}\r\n", lines(40))),
        Case::request(
            "head just under the limit",
            Port::Edge,
            "200",
            &format!("GET / HTTP/1.1\r\nHost: a.test\r\nx-long: {}\r\n\r\n", "x".repeat(7 << 10)),
        ),
        Case::request(
            "header lines just under the limit",
            Port::Edge,
            "200",
            &format!("GET / HTTP/1.1\r\nHost: a.test\r\n{}\r\n", lines(15)),
        ),
    ]
}
