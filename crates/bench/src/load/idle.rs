//! Open connections and streams without traffic.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenkeel_load::answer_end;
use evenkeel_load::http2_client::Http2Client;

use super::tls::{Client, Stream};

/// Streams on each HTTP/2 connection; Istio's and Envoy's servers allow at least as many.
const STREAMS_PER_CONNECTION: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);

/// Holds them open until it is dropped.
pub enum Idle {
    /// HTTP/1.1 connections that have carried one request.
    Plain(Vec<TcpStream>),
    /// Connections with mutual TLS.
    Tls(Vec<Stream>),
    /// Connections with streams whose responses have begun and do not end.
    Streams(Vec<Http2Client>),
}

impl Idle {
    /// Returns the number that memory is divided by.
    pub fn count(&self) -> usize {
        match self {
            Self::Plain(connections) => connections.len(),
            Self::Tls(connections) => connections.len(),
            Self::Streams(connections) => connections.len() * STREAMS_PER_CONNECTION,
        }
    }

    /// Opens plain connections.
    pub fn plain(target: SocketAddr, count: usize) -> Result<Self> {
        let connect = |_| -> Result<TcpStream> {
            let mut stream = TcpStream::connect(target)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"GET /hello HTTP/1.1\r\nHost: backend.local\r\n\r\n")?;
            let (mut answer, mut buffer) = (Vec::new(), [0; 8 << 10]);
            while answer_end(&answer)?.is_none() {
                let count = stream.read(&mut buffer).context("reading the answer")?;
                ensure!(count > 0, "the connection was closed");
                answer.extend_from_slice(&buffer[..count]);
            }
            Ok(stream)
        };
        Ok(Self::Plain((0..count).map(connect).collect::<Result<_>>()?))
    }

    /// Opens connections with mutual TLS.
    pub fn tls(client: &Client, target: SocketAddr, count: usize) -> Result<Self> {
        Ok(Self::Tls((0..count).map(|_| client.used_connection(target)).collect::<Result<_>>()?))
    }

    /// Opens HTTP/2 streams, [`STREAMS_PER_CONNECTION`] on each connection.
    pub fn streams(target: SocketAddr, count: usize) -> Result<Self> {
        let connections = count.div_ceil(STREAMS_PER_CONNECTION);
        Ok(Self::Streams((0..connections).map(|_| connection_of_streams(target)).collect::<Result<_>>()?))
    }
}

fn connection_of_streams(target: SocketAddr) -> Result<Http2Client> {
    let mut client = Http2Client::connect(target, PATIENCE)?;
    let requests: Vec<u8> = (0..STREAMS_PER_CONNECTION).flat_map(|_| client.request("/events")).collect();
    client.send(&requests)?;
    let mut begun = 0;
    while begun < STREAMS_PER_CONNECTION {
        begun += usize::from(client.receive().with_context(|| format!("after {begun} streams"))?.begins);
    }
    Ok(client)
}
