//! Framing, persistence, expectations and upgrades of well-formed messages.

use super::exchange::{Case, Port, Step};

/// The rows.
pub fn cases() -> Vec<Case> {
    [series(), persistence(), hop_by_hop(), bodies(), upgrades()].concat()
}

fn send(text: &str) -> Step {
    Step::Send(text.to_owned())
}

const GET: &str = "GET /one HTTP/1.1\r\nHost: actions.test\r\n\r\n";

/// Requests behind each other on one connection.
fn series() -> Vec<Case> {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: actions.test\r\n\r\n");
    let pipelined = |name, expect, texts: &[&str]| {
        let answers = texts.iter().map(|_| Step::Response);
        Case::new(name, Port::Http, expect, std::iter::once(send(&texts.concat())).chain(answers).collect())
    };
    let post = "POST /p HTTP/1.1\r\nHost: actions.test\r\nContent-Length: 3\r\n\r\nabc";
    vec![
        Case::request("two requests on one connection", Port::Http, "| GET /one", GET)
            .then(send(GET))
            .then(Step::Response)
            .then(Step::Open),
        pipelined("three requests pipelined", "| GET /three", &[GET, &get("/two"), &get("/three")]).then(Step::Open),
        pipelined("pipelined behind a body", "| GET /one", &[post, GET]).then(Step::Open),
        pipelined("pipelined behind a direct response", "error: closed", &[GET, &get("/direct"), GET]).differs(
            "Envoy closes after a pipelined local answer; the third request is as good as the first",
            "| short and stout\nHTTP/1.1 200 OK",
        ),
        pipelined("pipelined behind a redirect", "| GET /one", &[&get("/redirect-host"), GET]),
    ]
}

/// What becomes of the connection after one request.
fn persistence() -> Vec<Case> {
    let http = |name, expect, target: &str, fields: &str| {
        Case::request(name, Port::Http, expect, &format!("GET {target} HTTP/1.1\r\nHost: {fields}\r\n\r\n"))
    };
    let old = |name, expect, target: &str, fields: &str| {
        Case::request(name, Port::Edge, expect, &format!("GET {target} HTTP/1.0\r\n{fields}\r\n"))
    };
    let off = "GET / HTTP/1.0\r\nHost: actions.test\r\n\r\n";
    vec![
        http("connection: close", "then: closed", "/", "actions.test\r\nConnection: close").then(Step::Closed),
        http("connection: close among options", "then: closed", "/", "actions.test\r\nConnection: keep-alive, Close")
            .then(Step::Closed),
        http("connection: close, direct response", "then: closed", "/direct", "actions.test\r\nConnection: close")
            .then(Step::Closed),
        http("404 keeps the connection", "then: Open", "/", "unknown.test").then(Step::Open),
        http("503 keeps the connection", "then: Open", "/refused", "actions.test").then(Step::Open),
        Case::request("HTTP/1.0 where it is off", Port::Http, "426", off).then(Step::Closed),
        old("HTTP/1.0 where it is on", "then: closed", "/", "Host: a.test\r\n").then(Step::Closed),
        old("HTTP/1.0 without a host", "| host: old.test", "/", "").then(Step::Closed),
        old("HTTP/1.0 that asks to be kept", "200", "/", "Host: a.test\r\nConnection: keep-alive\r\n").then(Step::Open),
        Case::request(
            "what only proxies may ask for is not asked by the edge's clients",
            Port::Edge,
            "| x-client-trace-id: 1",
            "GET / HTTP/1.1\r\nHost: a.test\r\nX-Envoy-Retriable-Header-Names: server\r\nX-Envoy-Max-Retries: 9\r\n\
             X-Envoy-Upstream-Rq-Timeout-Alt-Response: 1\r\nX-Envoy-Decorator-Operation: a\r\nX-Client-Trace-Id: 1\r\n\r\n",
        ),
        Case::request(
            "what only proxies may ask for is not asked by other clients",
            Port::Http,
            "| x-client-trace-id: 1",
            &format!("GET / HTTP/1.1\r\nHost: actions.test\r\n{FROM_PROXIES}X-Client-Trace-Id: 1\r\n\r\n"),
        ),
        Case::request(
            "what proxies say of a request is not said by the edge's clients",
            Port::Edge,
            "| x-envoy-attempt-count: 7",
            "GET / HTTP/1.1\r\nHost: a.test\r\nX-Envoy-Attempt-Count: 7\r\nX-Envoy-Peer-Metadata-Id: x\r\n\r\n",
        )
        .differs("at the edge it is as little true as what Envoy takes off there", "\n| x-envoy-external-address"),
        Case::request(
            "headers of an outer hop end at the edge",
            Port::Edge,
            "via: 1.1 a,1.1 b, edge",
            "GET / HTTP/1.1\r\nHost: a.test\r\nX-Envoy-Original-Path: /x\r\nX-Envoy-Original-Host: x\r\nX-Envoy-Upstream-Stream-Duration-Ms: 5\r\n\
             Via: 1.1 a\r\n\
             Via: 1.1 b\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\n\r\n",
        ),
        old("HTTP/1.0 and a chunked answer", "then: closed", "/behave/chunked", "Host: a.test\r\n").then(Step::Closed),
    ]
}

/// Envoy's list of what is taken off requests that are not internal.
const FROM_PROXIES: &str = "X-Envoy-Retry-On: 5xx\r\nX-Envoy-Retry-Grpc-On: internal\r\nX-Envoy-Max-Retries: 9\r\n\
    X-Envoy-Retriable-Status-Codes: 200\r\nX-Envoy-Retriable-Header-Names: server\r\nX-Envoy-Upstream-Alt-Stat-Name: a\r\n\
    X-Envoy-Upstream-Rq-Timeout-Ms: 1\r\nX-Envoy-Upstream-Rq-Per-Try-Timeout-Ms: 1\r\n\
    X-Envoy-Upstream-Rq-Timeout-Alt-Response: 1\r\nX-Envoy-Expected-Rq-Timeout-Ms: 1\r\nX-Envoy-Force-Trace: 1\r\n\
    X-Envoy-Ip-Tags: a\r\nX-Envoy-Original-Url: /a\r\nX-Envoy-Hedge-On-Per-Try-Timeout: true\r\nX-Envoy-Internal: true\r\n\
    X-Envoy-Upstream-Stream-Duration-Ms: 1\r\n";

fn hop_by_hop() -> Vec<Case> {
    let fields = "Connection: keep-alive, x-private\r\nX-Private: 1\r\nTE: trailers\r\n\
                  Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n";
    let named = |name, options: &str, expect| {
        let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: {options}\r\n\r\n");
        Case::request(name, Port::Edge, expect, &request)
    };
    let refused = |name, options: &str| named(name, options, "400 Bad Request").then(Step::Closed);
    let proxies_own = |name, options: &str| {
        let why = "what proxies tell each other of the client is nothing that it may name, whichever proxy says it";
        named(name, options, "200").differs(why, "400 Bad Request")
    };
    vec![
        Case::get("hop-by-hop request headers end here", "actions.test", "/", fields, "200"),
        Case::get("hop-by-hop: te named", "actions.test", "/", "Connection: te\r\nTE: trailers\r\n", "200"),
        Case::get(
            "hop-by-hop: te named among others",
            "actions.test",
            "/",
            "Connection: close, TE\r\nTE: gzip\r\n",
            "200",
        ),
        Case::get(
            "hop-by-hop: proxy-connection",
            "actions.test",
            "/",
            "Proxy-Connection: x-a\r\nX-A: 1\r\n",
            "| x-a: 1",
        ),
        Case::get(
            "hop-by-hop: credentials named",
            "actions.test",
            "/",
            "Connection: authorization\r\nAuthorization: x\r\n",
            "200",
        ),
        Case::get("hop-by-hop: nine named", "actions.test", "/", "Connection: 1,2,3,4,5,6,7,8,9\r\n9: x\r\n", "200"),
        Case::get("hop-by-hop: cookies named", "actions.test", "/", "Connection: Cookie\r\nCookie: a=b\r\n", "200"),
        refused("hop-by-hop: the host named", "Host, close"),
        refused("hop-by-hop: ten named", "1,2,3,4,5,6,7,8,9,10"),
        refused("hop-by-hop: the client's address named", "close, X-Forwarded-For"),
        refused("hop-by-hop: the scheme named", "x-forwarded-proto"),
        refused("hop-by-hop: the host before named", "x-forwarded-host"),
        refused("hop-by-hop: a pseudo header named", ":path"),
        proxies_own("hop-by-hop: the client's certificate named", "x-forwarded-client-cert"),
        proxies_own("hop-by-hop: the request's id named", "x-request-id"),
        proxies_own("hop-by-hop: the client's address named by another name", "keep-alive, x-envoy-external-address"),
        Case::get("hop-by-hop response headers end here", "actions.test", "/behave/hop-by-hop", "", "200")
            .then(Step::Open)
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
        post("padded chunk sizes", "| hello", "Transfer-Encoding: chunked\r\n", "05  \r\nhello\r\n0000 \t;a\r\n\r\n"),
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
        http(
            "an upgrade to HTTP/2 is left aside",
            "| GET /one",
            vec![
                send(
                    "GET /one HTTP/1.1\r\nHost: actions.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                 HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
                ),
                Step::Response,
                Step::Open,
            ],
        ),
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
        http(
            "CONNECT that ends here",
            "bytes: \"ping\"",
            vec![
                send("CONNECT tunnel.test:443 HTTP/1.1\r\nHost: tunnel.test:443\r\n\r\n"),
                Step::HeadResponse,
                send("ping"),
                Step::Bytes(4),
            ],
        ),
        http(
            "CONNECT with a body",
            "400",
            vec![
                send("CONNECT tunnel.test:443 HTTP/1.1\r\nHost: tunnel.test:443\r\nContent-Length: 3\r\n\r\nabc"),
                Step::Response,
                Step::Closed,
            ],
        ),
        http("CONNECT", "404", vec![send("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"), Step::Response]),
    ]
}
