//! Framing, persistence, expectations and upgrades of well-formed messages.

use super::exchange::{Case, Port, Step};

/// The rows.
pub fn cases() -> Vec<Case> {
    [persistence(), bodies(), upgrades()].concat()
}

fn send(text: &str) -> Step {
    Step::Send(text.to_owned())
}

const GET: &str = "GET /one HTTP/1.1\r\nHost: actions.test\r\n\r\n";

fn persistence() -> Vec<Case> {
    let http = |name, expect, steps| Case::new(name, Port::Http, expect, steps);
    vec![
        http(
            "two requests on one connection",
            "| GET /one",
            vec![send(GET), Step::Response, send(GET), Step::Response, Step::Open],
        ),
        http(
            "three requests pipelined",
            "| GET /three",
            vec![
                send(&format!(
                    "{GET}GET /two HTTP/1.1\r\nHost: actions.test\r\n\r\nGET /three HTTP/1.1\r\nHost: actions.test\r\n\r\n"
                )),
                Step::Response,
                Step::Response,
                Step::Response,
                Step::Open,
            ],
        ),
        http(
            "pipelined behind a body",
            "| GET /one",
            vec![
                send(&format!("POST /p HTTP/1.1\r\nHost: actions.test\r\nContent-Length: 3\r\n\r\nabc{GET}")),
                Step::Response,
                Step::Response,
                Step::Open,
            ],
        ),
        http(
            "pipelined behind a direct response",
            "error: closed",
            vec![
                send(&format!("{GET}GET /direct HTTP/1.1\r\nHost: actions.test\r\n\r\n{GET}")),
                Step::Response,
                Step::Response,
                Step::Response,
            ],
        )
        .differs(
            "Envoy closes after a pipelined local answer; the third request is as good as the first",
            "| short and stout\nHTTP/1.1 200 OK",
        ),
        http(
            "pipelined behind a redirect",
            "| GET /one",
            vec![
                send(&format!("GET /redirect-host HTTP/1.1\r\nHost: actions.test\r\n\r\n{GET}")),
                Step::Response,
                Step::Response,
            ],
        ),
        http(
            "connection: close",
            "then: closed",
            vec![
                send("GET / HTTP/1.1\r\nHost: actions.test\r\nConnection: close\r\n\r\n"),
                Step::Response,
                Step::Closed,
            ],
        ),
        http(
            "connection: close among options",
            "then: closed",
            vec![
                send("GET / HTTP/1.1\r\nHost: actions.test\r\nConnection: keep-alive, Close\r\n\r\n"),
                Step::Response,
                Step::Closed,
            ],
        ),
        http(
            "connection: close, direct response",
            "then: closed",
            vec![
                send("GET /direct HTTP/1.1\r\nHost: actions.test\r\nConnection: close\r\n\r\n"),
                Step::Response,
                Step::Closed,
            ],
        ),
        http(
            "404 keeps the connection",
            "then: Open",
            vec![send("GET / HTTP/1.1\r\nHost: unknown.test\r\n\r\n"), Step::Response, Step::Open],
        ),
        http(
            "503 keeps the connection",
            "then: Open",
            vec![send("GET /refused HTTP/1.1\r\nHost: actions.test\r\n\r\n"), Step::Response, Step::Open],
        ),
        http(
            "HTTP/1.0 where it is off",
            "426",
            vec![send("GET / HTTP/1.0\r\nHost: actions.test\r\n\r\n"), Step::Response, Step::Closed],
        ),
        Case::new(
            "HTTP/1.0 where it is on",
            Port::Edge,
            "then: closed",
            vec![send("GET / HTTP/1.0\r\nHost: a.test\r\n\r\n"), Step::Response, Step::Closed],
        ),
        Case::new(
            "HTTP/1.0 without a host",
            Port::Edge,
            "| host: old.test",
            vec![send("GET / HTTP/1.0\r\n\r\n"), Step::Response, Step::Closed],
        ),
        Case::new(
            "HTTP/1.0 that asks to be kept",
            Port::Edge,
            "200",
            vec![send("GET / HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n"), Step::Response, Step::Open],
        ),
        Case::new(
            "HTTP/1.0 and a chunked answer",
            Port::Edge,
            "then: closed",
            vec![send("GET /behave/chunked HTTP/1.0\r\nHost: a.test\r\n\r\n"), Step::Response, Step::Closed],
        ),
        http(
            "hop-by-hop request headers end here",
            "200",
            vec![
                send(
                    "GET / HTTP/1.1\r\nHost: actions.test\r\nConnection: keep-alive, x-private\r\nX-Private: 1\r\nTE: trailers\r\n\
                 Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\r\n",
                ),
                Step::Response,
            ],
        ),
        http(
            "hop-by-hop response headers end here",
            "200",
            vec![send("GET /behave/hop-by-hop HTTP/1.1\r\nHost: actions.test\r\n\r\n"), Step::Response, Step::Open],
        )
        .differs(
            "RFC 9110 section 7.6.1: a field that Connection names ends at this hop",
            "table\n(stays open: true)\n| hop",
        ),
    ]
}

fn bodies() -> Vec<Case> {
    let post = |name, expect, head: &str, body: &str| {
        Case::request(
            name,
            Port::Http,
            expect,
            &format!("POST /post HTTP/1.1\r\nHost: actions.test\r\n{head}\r\n{body}"),
        )
        .then(Step::Open)
    };
    let behave = |name, target: &str, expect| {
        Case::request(name, Port::Http, expect, &format!("GET /behave/{target} HTTP/1.1\r\nHost: actions.test\r\n\r\n"))
            .then(Step::Open)
    };
    vec![
        post("body with a length", "| hello", "Content-Length: 5\r\n", "hello"),
        post("body of length zero", "| POST /post", "Content-Length: 0\r\n", ""),
        post("no body", "| POST /post", "", ""),
        post(
            "body in chunks",
            "| hello world",
            "Transfer-Encoding: chunked\r\n",
            "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
        ),
        post(
            "body in chunks, coding in capitals",
            "| hello",
            "Transfer-Encoding: Chunked\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
        ),
        post("chunk extensions", "| hello", "Transfer-Encoding: chunked\r\n", "5;a=b\r\nhello\r\n0;last\r\n\r\n"),
        post(
            "trailers",
            "| hello",
            "Transfer-Encoding: chunked\r\nTrailer: x-sum\r\n",
            "5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
        ),
        post("long body", "| POST", "Content-Length: 3000\r\n", &"x".repeat(3000)),
        Case::new(
            "expect: 100-continue",
            Port::Http,
            "100 Continue",
            vec![
                send("POST /post HTTP/1.1\r\nHost: actions.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"),
                Step::Response,
                send("hello"),
                Step::Response,
                Step::Open,
            ],
        ),
        Case::request(
            "GET with a body",
            Port::Http,
            "| hello",
            "GET /get HTTP/1.1\r\nHost: actions.test\r\nContent-Length: 5\r\n\r\nhello",
        )
        .then(Step::Open),
        Case::new(
            "HEAD",
            Port::Http,
            "200",
            vec![send("HEAD /head HTTP/1.1\r\nHost: actions.test\r\n\r\n"), Step::HeadResponse, Step::Open],
        ),
        Case::new(
            "HEAD, direct response",
            Port::Http,
            "418",
            vec![send("HEAD /direct HTTP/1.1\r\nHost: actions.test\r\n\r\n"), Step::HeadResponse, Step::Open],
        ),
        Case::new(
            "HEAD of a chunked resource",
            Port::Http,
            "200",
            vec![send("HEAD /behave/chunked HTTP/1.1\r\nHost: actions.test\r\n\r\n"), Step::HeadResponse, Step::Open],
        ),
        Case::request("OPTIONS *", Port::Http, "404", "OPTIONS * HTTP/1.1\r\nHost: actions.test\r\n\r\n"),
        Case::request("an unknown method", Port::Http, "400", "BREW / HTTP/1.1\r\nHost: actions.test\r\n\r\n"),
        behave("answer in chunks", "chunked", "transfer-encoding: chunked"),
        behave("answer without a body", "empty", "content-length: 0"),
        behave("large answer", "large", "1000000 bytes"),
        behave("answer until close", "close-delimited", "| until the end"),
        behave("answer in HTTP/1.0", "http-1.0", "| old"),
        behave("answer that closes upstream", "connection-close", "| bye"),
        behave("204", "204", "204 No Content"),
        behave("304", "304", "etag: \"v1\""),
        behave("the backend's own 503", "503", "| the backend's own 503"),
    ]
}

fn upgrades() -> Vec<Case> {
    let upgrade = |path: &str, protocol: &str| {
        send(&format!(
            "GET {path} HTTP/1.1\r\nHost: actions.test\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ))
    };
    let http = |name, expect, steps| Case::new(name, Port::Http, expect, steps);
    vec![
        http(
            "websocket",
            "bytes: \"ping\"",
            vec![upgrade("/ws", "websocket"), Step::Response, send("ping"), Step::Bytes(4), Step::Open],
        ),
        http(
            "websocket, data right behind the request",
            "bytes: \"early\"",
            vec![
                send(
                    "GET /ws HTTP/1.1\r\nHost: actions.test\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\nearly",
                ),
                Step::Response,
                Step::Bytes(5),
            ],
        ),
        http(
            "websocket refused by the backend",
            "| no upgrade here",
            vec![upgrade("/behave/refuse-upgrade", "websocket"), Step::Response],
        ),
        http("websocket where the route forbids it", "403", vec![upgrade("/ws-off", "websocket"), Step::Response]),
        http("an upgrade not enabled", "403", vec![upgrade("/ws", "other"), Step::Response]),
        Case::new(
            "websocket where it is off",
            Port::Edge,
            "403",
            vec![
                send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
                Step::Response,
            ],
        ),
        http("CONNECT", "404", vec![send("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"), Step::Response]),
    ]
}
