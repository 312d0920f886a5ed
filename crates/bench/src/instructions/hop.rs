//! The whole proxy for one request: a worker, one client connection, one upstream connection, and everything a hop does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use anyhow::{Result, ensure};
use evenkeel_load::backend;
use evenkeel_load::http2_client::Http2Client;

use super::Counts;
use super::counted::{Counted, per_request};
use crate::config::{PATIENCE, Protocol, Proxy};
use crate::peers::free_address;

pub const BODY_BYTES: usize = 1024;

const REQUEST: &[u8] = b"GET /hello HTTP/1.1\r\nHost: backend.local\r\nUser-Agent: counts\r\nAccept: */*\r\n\r\n";

/// Counts the hop over HTTP/1.1 and over HTTP/2.
pub fn count(folder: &Path) -> Result<Counts> {
    let mut counts = Counts::new();
    for (name, protocol) in [("hop: HTTP/1.1", Protocol::Http1), ("hop: HTTP/2", Protocol::Http2)] {
        let upstream = free_address()?;
        std::thread::spawn(move || match protocol {
            Protocol::Http2 => backend::http2::run(upstream, BODY_BYTES, false),
            _ => backend::http1::run(upstream, BODY_BYTES),
        });
        counts.insert(name.to_owned(), of_hop(folder, name, (protocol, upstream))?);
    }
    Ok(counts)
}

fn of_hop(folder: &Path, name: &str, (protocol, upstream): (Protocol, SocketAddr)) -> Result<u64> {
    let id = format!("{protocol:?}");
    let proxy = Proxy {
        id: &id,
        listen: free_address()?,
        admin: free_address()?,
        upstream,
        protocol,
        downstream_tls: None,
        upstream_tls: None,
        rules: 0,
        authorization: None,
        issuer: None,
        log: folder.join(format!("{id}.log")),
    };
    let counted = [Counted::start(folder, &proxy)?];
    let [count] = match protocol {
        Protocol::Http2 => {
            let mut client = Http2Client::connect(proxy.listen, PATIENCE)?;
            per_request(name, counted, |requests| exchange_http2(&mut client, requests))?
        }
        _ => {
            let mut client = connect_http1(proxy.listen)?;
            per_request(name, counted, |requests| exchange_http1(&mut client, requests))?
        }
    };
    Ok(count)
}

/// A connection for HTTP/1.1.
pub fn connect_http1(target: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends one request after the other on one connection.
pub fn exchange_http1(stream: &mut TcpStream, requests: u64) -> Result<()> {
    let (mut answer, mut buffer) = (Vec::new(), [0; 8 << 10]);
    for _ in 0..requests {
        stream.write_all(REQUEST)?;
        answer.clear();
        while evenkeel_load::answer_end(&answer)?.is_none() {
            let count = stream.read(&mut buffer)?;
            ensure!(count > 0, "the proxy closed the connection");
            answer.extend_from_slice(&buffer[..count]);
        }
    }
    Ok(())
}

/// Like [`exchange_http1`] over HTTP/2, one stream after the other.
fn exchange_http2(client: &mut Http2Client, requests: u64) -> Result<()> {
    for _ in 0..requests {
        let request = client.request("/hello");
        client.send(&request)?;
        while !client.receive()?.ends_stream {}
    }
    Ok(())
}
