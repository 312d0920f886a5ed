//! Attacks on the running processes: a control plane, a gateway that it configures from Istio's objects, a proxy that requires
//! mutual TLS. Each attack fails, is logged with its reason, and costs a bounded amount. SECURITY.md lists them; a test compares.

mod admin;
mod claims;
mod confined;
mod datagrams;
mod exhaustion;
mod gateway;
mod handshakes;
mod headers;
mod identities;
mod policies;
mod readings;
mod secrets;
mod smuggling;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use evenkeel_testkit::{Http2Frames, Process};

/// How long an attacker waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends bytes and reads what comes, until the end or until nothing comes for a while.
fn talk(address: SocketAddr, bytes: &[u8]) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The proxy may close in the middle of it.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The statuses of the HTTP/1 responses in an answer.
fn statuses(answer: &str) -> Vec<u16> {
    answer.match_indices("HTTP/1.1 ").filter_map(|(at, _)| answer.get(at + 9..at + 12)?.parse().ok()).collect()
}

/// Sends these header fields as a whole request over HTTP/2, with a body if there is one. True: a response began that was not
/// refused in its head (`:status` of the static table, from 200 to 206).
fn by_http2(address: SocketAddr, fields: &[(&str, &str)], body: &[u8]) -> io::Result<Over> {
    let mut connection = Http2Frames::open(address)?;
    connection.frame(Http2Frames::SETTINGS, 0, 0, &[])?;
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| Http2Frames::field(name, value)).collect();
    let end = if body.is_empty() { Http2Frames::END_STREAM } else { 0 };
    connection.frame(Http2Frames::HEADERS, end | Http2Frames::END_HEADERS, 1, &block)?;
    if !body.is_empty() {
        connection.frame(Http2Frames::DATA, Http2Frames::END_STREAM, 1, body)?;
    }
    answered(&mut connection)
}

/// How a request over HTTP/2 ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// With a status of success.
    Served,
    /// With another status.
    Refused,
    /// With a reset, or the end of its connection.
    Ended,
}

/// What comes of stream 1.
fn answered(connection: &mut Http2Frames) -> io::Result<Over> {
    loop {
        let Ok(Some(frame)) = connection.next_frame() else { return Ok(Over::Ended) };
        match (frame.kind, frame.stream) {
            (Http2Frames::GOAWAY, _) | (Http2Frames::RST_STREAM, 1) => return Ok(Over::Ended),
            // 200, 204 and 206 (RFC 7541 appendix A).
            (Http2Frames::HEADERS, 1) => {
                let served = matches!(frame.payload.first(), Some(0x88..=0x8a));
                return Ok(if served { Over::Served } else { Over::Refused });
            }
            _ => {}
        }
    }
}

/// Resident memory of a process, in KiB.
fn resident_kib(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("a running process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Descriptors that a process has open.
fn descriptors(process: &Process) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.pid())).expect("a running process").count()
}
