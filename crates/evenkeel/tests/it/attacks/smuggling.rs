//! Request smuggling: a second request within one request or body, over HTTP/1 and from HTTP/2 to HTTP/1, in both directions.

use evenkeel_testkit::{Backend, Reply};

use super::gateway::Gateway;
use super::{Over, by_http2, statuses, talk};

/// A request that nobody has sent by itself.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n";

/// Heads whose end of the body is read differently by somebody. What follows them is [`SMUGGLED`].
const HEADS: [&str; 30] = [
    "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
    "Content-Length: 0, 44\r\n\r\n",
    "Content-Length: +0\r\n\r\n",
    "Content-Length: -1\r\n\r\n",
    "Content-Length: 0x0\r\n\r\n",
    "Content-Length: 00000000000000000000000000\r\nContent-Length: 1\r\n\r\n",
    "Content-Length: 18446744073709551616\r\n\r\n",
    "Content-Length : 0\r\n\r\n",
    "Content-Length\t: 0\r\n\r\n",
    " Content-Length: 44\r\n\r\n",
    "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "Transfer\x00-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n0\n\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n-0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n1\r\naXX0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n1;\n\r\na\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\na\r\n0\r\n\r\n",
    "Connection: Content-Length\r\nContent-Length: 44\r\n\r\n",
    "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "X: y\nContent-Length: 44\r\n\r\n",
];

fn smuggled(gateway: &Gateway) -> Vec<String> {
    let targets = gateway.backend.requests().into_iter().map(|request| request.target);
    targets.filter(|target| target.contains("smuggled")).collect()
}

#[test]
fn no_body_of_http1_becomes_a_request() {
    let gateway = Gateway::new();
    for head in HEADS {
        // What the proxy refuses ends its connection: whatever follows was never a request.
        let answer =
            talk(gateway.address, format!("POST /public HTTP/1.1\r\nHost: a.test\r\n{head}{SMUGGLED}").as_bytes());
        let statuses = statuses(&answer.expect("it accepts"));
        assert!(statuses.len() <= 1, "{head:?}: {statuses:?}");
        assert_eq!(smuggled(&gateway), Vec::<String>::new(), "{head:?}");
    }
    for reason in ["http1.", "400 DPE"] {
        gateway.logs(&[reason]);
    }
    gateway.serves_others();
}

#[test]
fn no_field_of_http2_becomes_a_request() {
    let gateway = Gateway::new();
    let pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "a.test"), (":path", "/public")];
    let rows: [&[(&str, &str)]; 12] = [
        &[("content-length", "0")],
        &[("content-length", "1"), ("content-length", "41")],
        &[("content-length", "1, 41")],
        &[("transfer-encoding", "chunked")],
        &[("connection", "transfer-encoding")],
        &[("x", "y\r\ntransfer-encoding: chunked")],
        &[("x", "y\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a")],
        &[("x\r\ntransfer-encoding", "chunked")],
        &[("x: y\r\ntransfer-encoding: chunked\r\nz", "1")],
        &[("x y", "z")],
        &[("upgrade", "h2c")],
        &[("te", "chunked")],
    ];
    for fields in rows {
        let over = by_http2(gateway.address, &[&pseudo, fields].concat(), SMUGGLED.as_bytes()).expect("it accepts");
        assert_ne!(over, Over::Served, "{fields:?}");
    }
    let lines = [
        [(":method", "GET /smuggled HTTP/1.1\r\nx: y"), (":scheme", "http"), (":authority", "a"), (":path", "/")],
        [(":method", "GET"), (":scheme", "http"), (":authority", "a\r\nx: y"), (":path", "/")],
        [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/ HTTP/1.1\r\n\r\nGET /smuggled")],
        [(":method", "GET"), (":scheme", "http/smuggled?x="), (":authority", "a"), (":path", "/smuggled\t")],
    ];
    for fields in lines {
        assert_ne!(by_http2(gateway.address, &fields, b"").expect("it accepts"), Over::Served, "{fields:?}");
    }
    assert_eq!(smuggled(&gateway), Vec::<String>::new());
    gateway.serves_others();
}

#[test]
fn no_response_of_a_server_becomes_another_ones() {
    let gateway = Gateway::new();
    // What an upstream sends beyond its response is never the answer to the next request on that connection.
    let second = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\npoison!";
    for first in [
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
    ] {
        let reply = format!("{first}{second}").into_bytes();
        let evil = Backend::start(move |_| Reply::Raw(reply.clone()));
        gateway.sends_to(&evil);
        let two = "GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /b HTTP/1.1\r\nHost: evil.test\r\n\r\n";
        let answer = talk(gateway.address, two.as_bytes()).expect("it accepts");
        assert!(!answer.contains("poison!"), "{first:?}: {answer}");
    }
    gateway.serves_others();
}
