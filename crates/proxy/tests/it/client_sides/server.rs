//! A server that fails in a given way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_testkit::{Http2Frames as H2, free_port};

use Host::{Absent, Gone, Resets2, Sends, SendsOnce, Silent, Silent2};

/// The body of each request, or its beginning.
pub const BODY: &str = "hello";

/// What the server does with each request.
#[derive(Debug, Clone, Copy)]
pub enum Host {
    /// Its cluster has no host.
    Gone,
    /// Nothing listens at its address.
    Absent,
    /// Reads the request, and sends this before it closes the connection.
    Sends(&'static str),
    /// Sends this, and closes the connection when it has read another request.
    SendsOnce(&'static str),
    /// Never responds.
    Silent,
    /// Never responds over HTTP/2.
    Silent2,
    /// Resets each stream with this code.
    Resets2(u8),
}

impl Host {
    pub fn speaks_http2(self) -> bool {
        matches!(self, Silent2 | Resets2(_))
    }
}

/// A running [`Host`].
pub struct Server {
    pub address: SocketAddr,
    pub requests: Arc<AtomicUsize>,
}

impl Server {
    pub fn start(host: Host) -> Self {
        let requests = Arc::<AtomicUsize>::default();
        if matches!(host, Absent | Gone) {
            return Self { address: ([127, 0, 0, 1], free_port()).into(), requests };
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                // A proxy may leave at any time.
                std::thread::spawn(move || {
                    if host.speaks_http2() {
                        serve_http2(socket, host, &seen).unwrap_or_default()
                    } else {
                        serve_http1(socket, host, &seen).unwrap_or_default()
                    }
                });
            }
        });
        Self { address, requests }
    }
}

/// Reads a request, whose body is complete or `hello`. False at the end.
fn read_request(socket: &mut TcpStream) -> std::io::Result<bool> {
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(b"\r\n\r\n") {
        if socket.read(&mut byte)? == 0 {
            return Ok(false);
        }
        seen.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&seen).to_lowercase();
    if text.contains("content-length: ") {
        socket.read_exact(&mut [0; BODY.len()])?;
    } else if text.contains("transfer-encoding: chunked") {
        while !seen.ends_with(BODY.as_bytes()) && socket.read(&mut byte)? > 0 {
            seen.push(byte[0]);
        }
    }
    Ok(true)
}

fn serve_http1(mut socket: TcpStream, host: Host, requests: &AtomicUsize) -> std::io::Result<()> {
    let mut first = true;
    while read_request(&mut socket)? {
        requests.fetch_add(1, Ordering::SeqCst);
        match host {
            SendsOnce(text) if first => socket.write_all(text.as_bytes())?,
            Sends(text) => return socket.write_all(text.as_bytes()),
            Silent => {}
            _ => return Ok(()),
        }
        first = false;
    }
    Ok(())
}

fn serve_http2(socket: TcpStream, host: Host, requests: &AtomicUsize) -> std::io::Result<()> {
    let mut frames = H2::accept(socket)?;
    frames.frame(H2::SETTINGS, 0, 0, b"")?;
    while let Some(frame) = frames.next_frame()? {
        if frame.kind != H2::HEADERS {
            continue;
        }
        requests.fetch_add(1, Ordering::SeqCst);
        if let Resets2(code) = host {
            frames.frame(H2::RST_STREAM, 0, frame.stream, &[0, 0, 0, code])?;
        }
    }
    Ok(())
}
