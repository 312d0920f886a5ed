//! Small servers to put behind a proxy: an HTTP/1.1 backend with a handler per request, and a TCP echo.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::wait;

/// One request as the backend received it.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Request target as sent.
    pub target: String,
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: String,
    /// Header fields in their order.
    pub headers: Vec<(String, String)>,
    /// Body without its framing.
    pub body: Vec<u8>,
    /// The body came chunked.
    pub chunked: bool,
    /// Fields behind a chunked body, in their order.
    pub trailers: Vec<(String, String)>,
}

impl Request {
    /// The first field of that name, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// The backend's answer.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Status, header fields and a body with its content-length.
    Fixed(u16, Vec<(String, String)>, Vec<u8>),
    /// Status, header fields and a chunked body, one chunk per part.
    Chunked(u16, Vec<(String, String)>, Vec<Vec<u8>>),
    /// `200` with header fields, a chunked body, and trailer fields.
    Trailed(Vec<(String, String)>, Vec<u8>, Vec<(String, String)>),
    /// These bytes exactly; then the connection is closed.
    Raw(Vec<u8>),
    /// `101 Switching Protocols`; then every byte is echoed.
    Upgrade(String),
    /// Another reply, after a delay.
    After(Duration, Box<Reply>),
    /// No reply: the connection is closed.
    Close,
}

impl Reply {
    /// `200` with a text body.
    pub fn text(body: impl Into<String>) -> Self {
        Self::Fixed(200, Vec::new(), body.into().into_bytes())
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// An HTTP/1.1 server on a thread per connection. Dropping it closes its sockets.
pub struct Backend {
    acceptor: Acceptor,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Backend {
    /// Serves `handler` on a loopback port of the system's choice.
    pub fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_on((Ipv4Addr::LOCALHOST, 0).into(), handler)
    }

    /// Serves `handler` on `address`.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn start_on(address: SocketAddr, handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let handler: Arc<Handler> = Arc::new(handler);
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let acceptor = Acceptor::start(address, move |stream| {
            // A peer that goes away mid-request is part of many tests.
            let _ = serve(&stream, &*handler, &seen);
        });
        Self { acceptor, requests }
    }

    /// Starts a backend that echoes the request: its name, the request line, the header fields sorted by name, the body.
    pub fn echo(name: &str) -> Self {
        let name = name.to_owned();
        Self::start(move |request| echo_reply(&name, request))
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address
    }

    /// Every request received so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no handler panicked").clone()
    }

    /// Returns how many connections it has accepted.
    pub fn connections(&self) -> usize {
        self.acceptor.accepted.load(Ordering::SeqCst)
    }
}

/// The answer of [`Backend::echo`].
pub fn echo_reply(name: &str, request: &Request) -> Reply {
    let mut headers: Vec<_> = request.headers.iter().map(|(n, v)| (n.to_ascii_lowercase(), v)).collect();
    headers.sort();
    let mut text = format!("backend: {name}\n{} {} {}\n", request.method, request.target, request.version);
    for (header, value) in headers {
        text.push_str(&format!("{header}: {value}\n"));
    }
    text.push_str(&format!("\n{}", String::from_utf8_lossy(&request.body)));
    Reply::Fixed(200, vec![("x-backend".to_owned(), name.to_owned())], text.into_bytes())
}

/// A TCP server that sends every byte back and closes when the peer has.
pub struct TcpEcho {
    acceptor: Acceptor,
}

impl TcpEcho {
    /// Listens on a loopback port of the system's choice.
    pub fn start() -> Self {
        let acceptor = Acceptor::start((Ipv4Addr::LOCALHOST, 0).into(), |stream| {
            let _ = echo(&stream);
        });
        Self { acceptor }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address
    }
}

/// Accepts until dropped, then closes what it accepted.
struct Acceptor {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    stopping: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Acceptor {
    fn start(address: SocketAddr, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("cannot listen on {address}: {error}"));
        let acceptor = Self {
            address: listener.local_addr().expect("a bound listener"),
            accepted: Arc::default(),
            stopping: Arc::default(),
            streams: Arc::default(),
        };
        let (accepted, stopping) = (Arc::clone(&acceptor.accepted), Arc::clone(&acceptor.stopping));
        let (streams, serve) = (Arc::clone(&acceptor.streams), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                accepted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.set_nodelay(true);
                if let Ok(copy) = stream.try_clone() {
                    streams.lock().expect("never poisoned").push(copy);
                }
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || {
                    let closer = stream.try_clone();
                    serve(stream);
                    // The copy above keeps the descriptor; shutting down is what the peer sees.
                    if let Ok(stream) = closer {
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                });
            }
        });
        acceptor
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        for stream in self.streams.lock().expect("never poisoned").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(stream: &TcpStream, handler: &Handler, seen: &Mutex<Vec<Request>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader, stream)? {
        seen.lock().expect("no handler panicked").push(request.clone());
        let close = request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if !write_reply(stream, &mut reader, &request, handler(&request))? || close {
            return Ok(());
        }
    }
    Ok(())
}

/// Writes one reply; false when the connection ends with it.
fn write_reply(
    mut out: &TcpStream,
    reader: &mut BufReader<&TcpStream>,
    request: &Request,
    reply: Reply,
) -> io::Result<bool> {
    let to_head = request.method == "HEAD";
    match reply {
        Reply::Fixed(status, headers, body) => {
            let mut message = head(status, &headers);
            if status != 204 && status != 304 {
                message.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
            }
            message.extend_from_slice(b"\r\n");
            if !to_head {
                message.extend_from_slice(&body);
            }
            out.write_all(&message)?;
        }
        Reply::Chunked(status, headers, parts) => {
            let mut message = head(status, &headers);
            message.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            out.write_all(&message)?;
            for part in parts.iter().filter(|part| !to_head && !part.is_empty()) {
                out.write_all(format!("{:x}\r\n", part.len()).as_bytes())?;
                out.write_all(part)?;
                out.write_all(b"\r\n")?;
            }
            if !to_head {
                out.write_all(b"0\r\n\r\n")?;
            }
        }
        Reply::Trailed(headers, body, trailers) => {
            let mut message = head(200, &headers);
            message.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            if !to_head {
                message.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
                message.extend_from_slice(&body);
                message.extend_from_slice(b"\r\n0\r\n");
                let lines = trailers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
                message.extend(lines.flat_map(String::into_bytes));
                message.extend_from_slice(b"\r\n");
            }
            out.write_all(&message)?;
        }
        Reply::Raw(bytes) => {
            out.write_all(&bytes)?;
            return Ok(false);
        }
        Reply::Upgrade(protocol) => {
            let answer =
                format!("HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: {protocol}\r\n\r\n");
            out.write_all(answer.as_bytes())?;
            copy(reader, out)?;
            return Ok(false);
        }
        Reply::After(delay, reply) => {
            wait::pause(delay);
            return write_reply(out, reader, request, *reply);
        }
        Reply::Close => return Ok(false),
    }
    Ok(true)
}

fn head(status: u16, headers: &[(String, String)]) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        304 => "Not Modified",
        404 => "Not Found",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    };
    let mut head = format!("HTTP/1.1 {status} {reason}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.into_bytes()
}

fn read_request(reader: &mut BufReader<&TcpStream>, mut out: &TcpStream) -> io::Result<Option<Request>> {
    let Some(line) = read_line(reader)? else { return Ok(None) };
    let mut parts = line.splitn(3, ' ').map(str::to_owned);
    let (Some(method), Some(target), Some(version)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, line));
    };
    let mut request = Request { method, target, version, ..Request::default() };
    request.headers = read_fields(reader)?;
    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        out.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if request.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        request.chunked = true;
        (request.body, request.trailers) = read_chunked(reader)?;
    } else if let Some(length) = request.header("content-length").and_then(|value| value.parse().ok()) {
        request.body = vec![0; length];
        reader.read_exact(&mut request.body)?;
    }
    Ok(Some(request))
}

/// Header fields or trailers: names and values.
type Fields = Vec<(String, String)>;

/// Fields up to an empty line.
fn read_fields(reader: &mut BufReader<&TcpStream>) -> io::Result<Fields> {
    let mut fields = Vec::new();
    while let Some(line) = read_line(reader)?.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
    Ok(fields)
}

/// A body and its trailers.
fn read_chunked(reader: &mut BufReader<&TcpStream>) -> io::Result<(Vec<u8>, Fields)> {
    let mut body = Vec::new();
    loop {
        let line = read_line(reader)?.unwrap_or_default();
        let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("chunk size {line:?}")))?;
        let start = body.len();
        body.resize(start + size, 0);
        reader.read_exact(&mut body[start..])?;
        if size > 0 {
            read_line(reader)?;
        } else {
            return Ok((body, read_fields(reader)?));
        }
    }
}

fn read_line(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if reader.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()))
}

fn echo(stream: &TcpStream) -> io::Result<()> {
    copy(&mut BufReader::new(stream), stream)?;
    stream.shutdown(Shutdown::Write)
}

fn copy(from: &mut BufReader<&TcpStream>, mut to: &TcpStream) -> io::Result<()> {
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let count = bytes.len();
        to.write_all(bytes)?;
        from.consume(count);
    }
}
