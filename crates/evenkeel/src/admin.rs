//! Asking a page of a running program over HTTP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::pages;

/// How long it may take to connect, and to answer unless the question is a long one.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer read, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 * 1024 * 1024;

/// Which control plane to ask: the one given; that of the mesh with this state directory; that of the mesh that runs here; or one
/// that runs by itself.
pub fn control_plane(given: Option<SocketAddr>, state: Option<&Path>) -> anyhow::Result<SocketAddr> {
    let of_run = || match state {
        Some(state) => pages::of_run(state)
            .with_context(|| format!("no mesh is running with the state directory {}", state.display())),
        None => {
            let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, pages::USUAL_PORT));
            Ok(pages::of_run(&StateDir::default_path()).unwrap_or(usual))
        }
    };
    given.map_or_else(of_run, Ok)
}

/// The body of a page; any status but 200 is an error.
pub fn get(address: SocketAddr, page: &str) -> anyhow::Result<Vec<u8>> {
    get_within(TIMEOUT, address, page)
}

/// The same, of a page that may take so long to make.
pub fn get_within(patience: Duration, address: SocketAddr, page: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(patience))?;
    // HTTP/1.0: the answer is not chunked, and ends with the connection.
    write!(stream, "GET {page} HTTP/1.0\r\nhost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    let (head, body) = split(&answer).context("it does not speak HTTP")?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_vec()),
        Some(status) => bail!("it answers {status}: {}", String::from_utf8_lossy(body).trim_end()),
        None => bail!("it does not speak HTTP"),
    }
}

/// The status line, and the body.
fn split(answer: &[u8]) -> Option<(&str, &[u8])> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(answer.get(..end)?).ok()?;
    Some((head.lines().next()?, answer.get(end + 4..)?))
}
