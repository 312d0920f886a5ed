//! The messages: framing headers in every disguise, with every kind of body; request lines; and valid requests with a byte
//! changed, from a fixed seed.

use evenkeel_testkit::Random;

use super::proxies::Program;

/// Bytes a client sends: a message and, behind it, a harmless request that ends the connection.
#[derive(Debug, Clone)]
pub struct Message {
    pub bytes: Vec<u8>,
    /// Proxies that refuse it for reasons which are not the message's framing, and why.
    fine: &'static [(Program, &'static str)],
}

impl Message {
    /// That this proxy refuses the message is no reason for Evenkeel to.
    pub fn is_fine_whatever(&self, program: Program) -> bool {
        self.fine.iter().any(|(other, _)| *other == program)
    }
}

/// Header lines that say, or seem to say, where the body ends.
pub const FRAMINGS: &[&str] = &[
    "Content-Length: 5",
    "content-length:5",
    "Content-Length: 5 ",
    "Content-Length:\t5",
    "Content-Length: 005",
    "Content-Length : 5",
    " Content-Length: 5",
    "Content-Length: +5",
    "Content-Length: -5",
    "Content-Length: 0x5",
    "Content-Length: 5,5",
    "Content-Length: 5 5",
    "Content-Length: 5;",
    "Content-Length: ",
    "Content-Length: 18446744073709551621",
    "Content-Length: 5\r\nContent-Length: 5",
    "Content-Length: 5\r\nContent-Length: 0",
    "Content-Length: 0\r\nContent-Length: 5",
    "Content-Length: 5\nContent-Length: 5",
    "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "Transfer-Encoding: chunked\r\nContent-Length: 0",
    "Transfer-Encoding: chunked",
    "transfer-encoding:Chunked",
    "Transfer-Encoding:\tchunked \t",
    "Transfer-Encoding : chunked",
    " Transfer-Encoding: chunked",
    "Transfer-Encoding\t: chunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunkedx",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding: chun\r\n\tked",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: ,chunked",
    "Transfer-Encoding: chunked\0",
    "Transfer-Encoding: \x0bchunked",
    "Transfer-Encoding: chunked\x0c",
    "Transfer-Encoding:",
    "X: y\nTransfer-Encoding: chunked",
    "X: y\rTransfer-Encoding: chunked",
    "X: y\r\n\rTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nConnection: Transfer-Encoding",
    "Content-Length: 5\r\nConnection: Content-Length",
    "Transfer-Encoding: chunked\r\nTrailer: Content-Length",
    "X: y",
];

/// Bodies. A back tick is the message's number; a request inside is one that a smuggler would have reach the backend.
pub const BODIES: &[&str] = &[
    "hello",
    "",
    "5\r\nhello\r\n0\r\n\r\n",
    "0\r\n\r\nGET /`/smuggled HTTP/1.1\r\nHost: t\r\n\r\n",
    "5\r\nhello\r\n0\r\n\r\nGET /`/smuggled HTTP/1.1\r\nHost: t\r\n\r\n",
    "5;a=b;c=\"d\"\r\nhello\r\n0\r\nx-t: 1\r\n\r\n",
    "5 \r\nhello\r\n0\r\n\r\n",
    "5\t;a\r\nhello\r\n0\r\n\r\n",
    "0005\r\nhello\r\n000\r\n\r\n",
    "0x5\r\nhello\r\n0\r\n\r\n",
    "+5\r\nhello\r\n0\r\n\r\n",
    "5\nhello\n0\n\n",
    "5;\nhello\r\n0\r\n\r\n",
    "5;a\rb\r\nhello\r\n0\r\n\r\n",
    "5\r\nhelloXX0\r\n\r\n",
    "5\r\nhello\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\n\n",
    "10000000000000005\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
    "5\r\nhello\r\n0\r\nx-t: 1\r\n folded\r\n\r\n",
    "\r\n5\r\nhello\r\n0\r\n\r\n",
];

/// Whole heads that are not about the body.
const HEADS: &[&str] = &[
    "GET /`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /`/ HTTP/1.1\nHost: t\n\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\nX: y\n\r\n",
    "\r\nGET /`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "\nGET /`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET  /`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /`/  HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET\t/`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /`/ HTTP/1.1 \r\nHost: t\r\n\r\n",
    "GET /`/ x HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /`/\x01 HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /`/\x7f HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /`/#f HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /`/ HTTP/1.10\r\nHost: t\r\n\r\n",
    "GET /`/ HTTP/01.1\r\nHost: t\r\n\r\n",
    "GET /`/ http/1.1\r\nHost: t\r\n\r\n",
    "GET /`/ HTTP/1.2\r\nHost: t\r\n\r\n",
    "GET /`/ HTTP/3.0\r\nHost: t\r\n\r\n",
    "GET /`/ HTTP/1.1\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\nHost: t\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\nHost: u\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t, u\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t u\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t/u\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost : t\r\n\r\n",
    "GET /`/ HTTP/1.1\r\n Host: t\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\n X: y\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\nX\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\n: y\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\nX(): y\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\nX: \0\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\nX: \x1b\r\n\r\n",
    "GET /`/ HTTP/1.1\r\nHost: t\r\nX: a\rb\r\n\r\n",
    "GET http://t/`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET http://u@t/`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET x/`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "G@ET /`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "CONNECT /`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    "CONNECT t HTTP/1.1\r\nHost: t\r\n\r\n",
    "CONNECT t:99999 HTTP/1.1\r\nHost: t\r\n\r\n",
];

/// Heads that some proxy refuses and Evenkeel need not.
const FINE: &[(&str, &[(Program, &str)])] = &[(
    "GET http://u/`/ HTTP/1.1\r\nHost: t\r\n\r\n",
    &[(
        Program::Haproxy,
        "RFC 9112 section 3.2.2: Host is replaced by what the target says, and only that is forwarded",
    )],
)];

/// Valid requests to change bytes of.
const SEEDS: &[&str] = &[
    "POST /`/m HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    "POST /`/m HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
    "GET /`/m?a=b HTTP/1.1\r\nHost: t:80\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n",
];

/// What a byte is replaced by, or what is put before it.
const BYTES: &[u8] = b"\r\n\t \0:;,\x0b\x7f0x+-\"#%\x80";

/// Changed messages.
const MUTANTS: usize = 300;

/// The end of every connection.
const LAST: &str = "GET /`/last HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

/// All messages, numbered by their place.
pub fn messages() -> Vec<Message> {
    let plain = |bytes: Vec<u8>| Message { bytes, fine: &[] };
    let mut messages = Vec::new();
    for framing in FRAMINGS {
        for body in BODIES {
            messages.push(plain(format!("POST /`/p HTTP/1.1\r\nHost: t\r\n{framing}\r\n\r\n{body}").into_bytes()));
        }
    }
    messages.extend(HEADS.iter().map(|head| plain(head.as_bytes().to_vec())));
    messages.extend(FINE.iter().map(|(head, fine)| Message { bytes: head.as_bytes().to_vec(), fine }));
    messages.extend(mutants(SEEDS).into_iter().map(plain));
    for (index, message) in messages.iter_mut().enumerate() {
        message.bytes.extend_from_slice(LAST.as_bytes());
        let parts: Vec<&[u8]> = message.bytes.split(|byte| *byte == b'`').collect();
        message.bytes = parts.join(index.to_string().as_bytes());
    }
    messages
}

/// Valid messages with up to three bytes changed, the same ones every time.
pub fn mutants(seeds: &[&str]) -> Vec<Vec<u8>> {
    let mut random = Random::new(0);
    let mut mutant = || {
        let mut bytes = random.pick(seeds).as_bytes().to_vec();
        for _ in 0..=random.below(2) {
            let (at, byte) = (random.below(bytes.len()), random.pick(BYTES));
            // The number has to stay legible.
            if bytes[at.saturating_sub(2)..(at + 2).min(bytes.len())].contains(&b'`') {
                continue;
            }
            match random.below(3) {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        bytes
    };
    (0..MUTANTS).map(|_| mutant()).collect()
}
