//! A backend that follows RFC 9112 to the letter, and records the messages that reach it.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request that reached the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Method, path and body.
    Request(String, String, Vec<u8>),
    /// Bytes that are no request.
    Garbage(Vec<u8>),
}

type Log = Arc<Mutex<BTreeMap<usize, Vec<Seen>>>>;

/// The backend. Paths begin with the number of the message they belong to: `/17/…`.
pub struct Recorder {
    address: SocketAddr,
    log: Log,
}

impl Recorder {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let log = Log::default();
        let kept = log.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let log = kept.clone();
                std::thread::spawn(move || serve(socket, &log));
            }
        });
        Self { address, log }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was seen for each message.
    pub fn seen(&self) -> BTreeMap<usize, Vec<Seen>> {
        self.log.lock().expect("no panic").clone()
    }
}

fn serve(mut socket: TcpStream, log: &Log) {
    let (mut input, mut buffer, mut last) = (Vec::new(), [0; 16 * 1024], None);
    loop {
        match parse(&input) {
            Ok(Some((seen, consumed))) => {
                if let Seen::Request(_, path, _) = &seen {
                    last = path.split('/').nth(1).and_then(|number| number.parse().ok()).or(last);
                }
                input.drain(..consumed);
                note(log, last, seen);
                if socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err() {
                    return;
                }
                continue;
            }
            Ok(None) => {}
            Err(()) => {
                note(log, number_in(&input).or(last), Seen::Garbage(input));
                return;
            }
        }
        match socket.read(&mut buffer) {
            Ok(count) if count > 0 => input.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
}

fn note(log: &Log, number: Option<usize>, seen: Seen) {
    log.lock().expect("no panic").entry(number.unwrap_or(usize::MAX)).or_default().push(seen);
}

/// The first number between slashes.
fn number_in(bytes: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(bytes);
    text.split('/').find_map(|piece| piece.parse().ok())
}

/// The request at the start of `input` and its length, `None` while it is not complete.
fn parse(input: &[u8]) -> Result<Option<(Seen, usize)>, ()> {
    let Some(end) = input.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if input.contains(&0) { Err(()) } else { Ok(None) };
    };
    // Values of fields may have bytes beyond ASCII (`obs-text`, RFC 9110 section 5.5).
    let head: String = input[..end].iter().copied().map(char::from).collect();
    let mut lines = head.split("\r\n");
    let mut request_line = lines.next().filter(|line| line.is_ascii()).ok_or(())?.split(' ');
    let (method, path) = (request_line.next().ok_or(())?, request_line.next().ok_or(())?);
    let version = request_line.next().ok_or(())?;
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") || request_line.next().is_some() || head.contains('\0') {
        return Err(());
    }
    let mut framing: HashMap<String, String> = HashMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(())?;
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(token) || value.contains(['\r', '\n']) {
            return Err(());
        }
        let name = name.to_ascii_lowercase();
        if matches!(name.as_str(), "content-length" | "transfer-encoding" | "host")
            && framing.insert(name, value.trim().to_ascii_lowercase()).is_some()
        {
            return Err(());
        }
    }
    let body = &input[end + 4..];
    let (payload, length) = match (framing.get("content-length"), framing.get("transfer-encoding")) {
        (Some(_), Some(_)) => return Err(()),
        (Some(length), None) => {
            let length: usize = length.parse().map_err(|_| ())?;
            let Some(payload) = body.get(..length) else { return Ok(None) };
            (payload.to_vec(), length)
        }
        (None, Some(coding)) if coding == "chunked" => match chunks(body)? {
            Some(found) => found,
            None => return Ok(None),
        },
        (None, Some(_)) => return Err(()),
        (None, None) => (Vec::new(), 0),
    };
    let path = path.split("://").last().ok_or(())?;
    let path = path.find('/').map_or("/", |slash| &path[slash..]);
    Ok(Some((Seen::Request(method.to_owned(), path.to_owned(), payload), end + 4 + length)))
}

/// Payload and length of a chunked body.
fn chunks(body: &[u8]) -> Result<Option<(Vec<u8>, usize)>, ()> {
    let (mut payload, mut at) = (Vec::new(), 0);
    loop {
        let Some(line) = line_at(body, at) else { return Ok(None) };
        let digits: Vec<u8> = line.iter().copied().take_while(u8::is_ascii_hexdigit).collect();
        let after = line.get(digits.len()).copied();
        if digits.is_empty() || !matches!(after, None | Some(b';')) {
            return Err(());
        }
        let size = usize::from_str_radix(std::str::from_utf8(&digits).map_err(|_| ())?, 16).map_err(|_| ())?;
        at += line.len() + 2;
        if size == 0 {
            break;
        }
        let Some(data) = body.get(at..at + size + 2) else { return Ok(None) };
        if !data.ends_with(b"\r\n") {
            return Err(());
        }
        payload.extend_from_slice(&data[..size]);
        at += size + 2;
    }
    loop {
        let Some(line) = line_at(body, at) else { return Ok(None) };
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some((payload, at)));
        }
    }
}

fn line_at(body: &[u8], at: usize) -> Option<&[u8]> {
    let rest = body.get(at..)?;
    rest.windows(2).position(|window| window == b"\r\n").map(|end| &rest[..end])
}
