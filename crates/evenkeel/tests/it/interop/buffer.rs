//! Requests that wait until they are complete: which are forwarded, and which are too long.

use super::exchange::{Case, Port, Step};

/// The rows.
pub fn cases() -> Vec<Case> {
    let post = |name, target: &str, head: &str, body: &str, expect| {
        let text = format!("POST {target} HTTP/1.1\r\nHost: a.test\r\n{head}\r\n{body}");
        Case::request(name, Port::Buffer, expect, &text)
    };
    let (ten, eleven) = ("Content-Length: 10\r\n", "Content-Length: 11\r\n");
    let chunked = "Transfer-Encoding: chunked\r\n";
    vec![
        Case::request("buffer: no body", Port::Buffer, "| GET /", "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
            .then(Step::Open),
        post("buffer: as long as the limit", "/", ten, "0123456789", "content-length: 10").then(Step::Open),
        post("buffer: an empty body", "/", "Content-Length: 0\r\n", "", "| POST /").then(Step::Open),
        post("buffer: chunks become a length", "/", chunked, "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "| content-length: 5")
            .then(Step::Open),
        post("buffer: too long", "/", eleven, "0123456789a", "413").then(Step::Closed),
        post("buffer: chunks too long", "/", chunked, "b\r\n0123456789a\r\n0\r\n\r\n", "413").then(Step::Closed),
        post("buffer: too long for a direct response", "/direct", eleven, "0123456789a", "413").then(Step::Closed),
        post("buffer: short enough for a direct response", "/direct", ten, "0123456789", "| direct").then(Step::Open),
        post("buffer: longer on this route", "/longer", eleven, "0123456789a", "| content-length: 11").then(Step::Open),
        post(
            "buffer: off on this route",
            "/off",
            chunked,
            "b\r\n0123456789a\r\n0\r\n\r\n",
            "| transfer-encoding: chunked",
        )
        .then(Step::Open),
        post("buffer: sent again", "/flaky", ten, "0123456789", "| third time lucky").then(Step::Open),
        Case::new(
            "buffer: the client waits for 100",
            Port::Buffer,
            "| content-length: 3",
            vec![
                Step::Send(
                    "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n".to_owned(),
                ),
                Step::Response,
                Step::Send("abc".to_owned()),
                Step::Response,
            ],
        ),
        Case::new(
            "buffer: piece by piece",
            Port::Buffer,
            "| content-length: 6",
            vec![
                Step::Send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 6\r\n\r\nabc".to_owned()),
                Step::Open,
                Step::Send("def".to_owned()),
                Step::Response,
            ],
        ),
    ]
}
