//! The other direction: generated and malformed responses come from an upstream through all four proxies. A response that one
//! of the other three rejects is rejected by `evenkeel proxy`; where they pass it on, the client gets the same from Evenkeel;
//! and no byte of one response is ever taken for the next.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::PATIENCE;
use super::generate::{BODIES, FRAMINGS, mutants};
use super::proxies::{Program, Running};

/// Requests under way at the same time at one proxy.
const THREADS: usize = 32;

/// A response that nobody asked for.
const SMUGGLED: &str = "HTTP/1.1 200 OK\r\nx-smuggled: 1\r\ncontent-length: 8\r\n\r\nsmuggled";

/// Whole responses that are not about the body.
const HEADS: &[&str] = &[
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1  200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1\t200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 20 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 +20 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 abc OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 099 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 000 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.2 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/0.9 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "http/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "ICY 200 OK\r\ncontent-length: 2\r\n\r\nok",
    " HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 O\x01K\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 O\rK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n: y\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX : y\r\n\r\nok",
    "HTTP/1.1 200 OK\r\n X: y\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX: y\r\n z\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX(): y\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX: \0\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX: a\rb\r\n\r\nok",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 100 Continue\r\ncontent-length: 5\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "",
    "\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
];

/// Valid responses to change bytes of.
const SEEDS: &[&str] = &[
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 201 Created\r\nServer: x\r\nContent-Length: 2\r\nCache-Control: no-store\r\n\r\nok",
];

/// What the client got for one response of the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// It was refused: an error of the proxy's own, or an end before its time.
    Refused,
    /// Status and body, complete.
    Passed(u16, Vec<u8>),
    /// The proxy waits for more.
    Silent,
}

#[test]
fn evenkeel_takes_the_strictest_reading_of_responses() {
    let responses = responses();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let outcomes: BTreeMap<Program, (Running, Vec<Outcome>)> = Program::ALL
        .into_iter()
        .map(|program| {
            let upstream = upstream(Arc::new(responses.clone()));
            let running = Running::start(program, upstream, folder.path());
            let outcomes = run(program, &running, responses.len());
            (program, (running, outcomes))
        })
        .collect();
    let oracles = [Program::Envoy, Program::Haproxy, Program::Nginx];
    let mut failures = Vec::new();
    let mut refused = 0;
    for (index, response) in responses.iter().enumerate() {
        let evenkeel = &outcomes[&Program::Evenkeel].1[index];
        refused += usize::from(*evenkeel == Outcome::Refused);
        for program in oracles {
            let (running, oracle) = (&outcomes[&program].0, &outcomes[&program].1[index]);
            if let Some(why) = judge(evenkeel, oracle)
                && insists(program, running, evenkeel, index)
            {
                let bytes = response.escape_ascii();
                failures.push(format!("{why} than {program:?}\n  {bytes}\n  Evenkeel {evenkeel:?}\n  {oracle:?}\n"));
            }
        }
    }
    let all = responses.len();
    assert!(failures.is_empty(), "{} of {all} responses\n\n{}", failures.len(), failures.join("\n"));
    // Or the test would prove nothing.
    assert!(refused > all / 4 && refused < all * 9 / 10, "{refused} of {all} were refused");
}

/// How Evenkeel reads a response otherwise, and not for being stricter.
fn judge(evenkeel: &Outcome, oracle: &Outcome) -> Option<&'static str> {
    match (evenkeel, oracle) {
        (Outcome::Passed(..), Outcome::Refused) => Some("more lenient"),
        (Outcome::Passed(..), Outcome::Passed(..)) if evenkeel != oracle => Some("another reading"),
        _ => None,
    }
}

/// Whether an oracle reads a response so each time. Where there are bytes behind a response Envoy sends it on and then
/// resets the connection, and on a busy machine the reset sometimes overtakes it.
fn insists(program: Program, running: &Running, evenkeel: &Outcome, index: usize) -> bool {
    const TIMES: usize = 5;
    (0..TIMES).all(|_| judge(evenkeel, &exchange(program, running.address(), index)).is_some())
}

/// All responses of the upstream, by number.
fn responses() -> Vec<Vec<u8>> {
    let mut responses: Vec<Vec<u8>> = Vec::new();
    for framing in FRAMINGS {
        for body in BODIES {
            let body = body.replace("GET /`/smuggled HTTP/1.1\r\nHost: t\r\n\r\n", SMUGGLED);
            responses.push(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{body}").into_bytes());
        }
    }
    responses.extend(HEADS.iter().map(|head| head.as_bytes().to_vec()));
    responses.extend(mutants(SEEDS));
    responses
}

/// A server that answers a request for `/N` with response N and closes. With a response behind it that nobody asked for it waits
/// for another request first, so that a proxy that keeps the connection would take that for an answer.
fn upstream(responses: Arc<Vec<Vec<u8>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let responses = Arc::clone(&responses);
            std::thread::spawn(move || answer(socket, &responses));
        }
    });
    address
}

fn answer(mut socket: TcpStream, responses: &[Vec<u8>]) {
    while let Some(path) = read_request(&mut socket) {
        let Some(response) = path.parse::<usize>().ok().and_then(|number| responses.get(number)) else { return };
        let ends_in_smuggled = response.ends_with(SMUGGLED.as_bytes());
        if socket.write_all(response).is_err() || !ends_in_smuggled {
            break;
        }
    }
    // Bytes that were not read would make this a reset.
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket.set_read_timeout(Some(PATIENCE));
    while socket.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {}
}

/// The path of the next request, without its slash.
fn read_request(socket: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    Some(head.split(' ').nth(1)?.trim_start_matches('/').to_owned())
}

fn run(program: Program, running: &Running, count: usize) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let outcome = exchange(program, running.address(), number);
                    done.lock().expect("no panic").insert(number, outcome);
                }
            });
        }
    });
    done.into_inner().expect("no panic").into_values().collect()
}

fn exchange(program: Program, address: SocketAddr, number: usize) -> Outcome {
    let mut socket = TcpStream::connect(address).expect("the proxy listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let request = format!("GET /{number} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("the proxy reads");
    let (answer, closed) = super::read_all(&mut socket);
    let outcome = read_answer(&answer, closed);
    if let (Program::Evenkeel, Some((head, _))) = (program, split_head(&answer)) {
        assert!(!head.contains("x-smuggled"), "an answer that nobody asked for came for {number}: {head}");
    }
    outcome
}

fn split_head(answer: &[u8]) -> Option<(String, &[u8])> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = answer.split_at(end + 4);
    Some((String::from_utf8_lossy(head).to_ascii_lowercase(), body))
}

/// What the bytes that a proxy sent are; proxies frame what they send without a doubt.
fn read_answer(mut answer: &[u8], closed: bool) -> Outcome {
    let unfinished = if closed { Outcome::Refused } else { Outcome::Silent };
    loop {
        let Some((head, body)) = split_head(answer) else { return unfinished };
        let Some(status) = head.get(9..12).and_then(|status| status.parse().ok()) else { return Outcome::Refused };
        // An answer follows the interim ones.
        if (100..200).contains(&status) && status != 101 {
            answer = body;
            continue;
        }
        if status >= 500 {
            return Outcome::Refused;
        }
        let field =
            |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
        if matches!(status, 101 | 204 | 304) {
            return Outcome::Passed(status, Vec::new());
        }
        if field("transfer-encoding") == Some("chunked") {
            return unchunk(body).map_or(unfinished, |body| Outcome::Passed(status, body));
        }
        return match field("content-length").map(str::parse::<usize>) {
            Some(Ok(length)) if body.len() >= length => Outcome::Passed(status, body[..length].to_vec()),
            Some(_) => unfinished,
            None if closed => Outcome::Passed(status, body.to_vec()),
            None => Outcome::Silent,
        };
    }
}

/// A chunked body, if its end is there.
fn unchunk(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n")?;
        let (size, rest) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 2..]);
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        bytes = rest.get(size + 2..)?;
    }
}
