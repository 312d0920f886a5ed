//! Connections and streams that are open and do nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::answer_end;
use super::tls::{Client, Stream};
use crate::frames::{self, FLAG_END_HEADERS, FLAG_END_STREAM, Frames, HEADERS, PREFACE, SETTINGS};

/// Streams on each HTTP/2 connection; Istio's and Envoy's servers allow at least as many.
const STREAMS_PER_CONNECTION: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);

/// Holds them open until it is dropped.
pub enum Idle {
    /// HTTP/1.1 connections that have carried one request.
    Plain(Vec<TcpStream>),
    /// The same with mutual TLS.
    Tls(Vec<Stream>),
    /// Connections with streams whose responses have begun and do not end.
    Streams(Vec<TcpStream>),
}

impl Idle {
    /// How many memory is divided by.
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

fn connection_of_streams(target: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut out = PREFACE.to_vec();
    frames::put(&mut out, SETTINGS, 0, 0, &[]);
    let mut head = Vec::new();
    for (name, value) in
        [(":method", "GET"), (":scheme", "http"), (":authority", "backend.local"), (":path", "/events")]
    {
        frames::put_field(&mut head, name, value);
    }
    for index in 0..STREAMS_PER_CONNECTION {
        // The client's streams have odd numbers.
        let id = u32::try_from(2 * index + 1)?;
        frames::put(&mut out, HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, id, &head);
    }
    stream.write_all(&out)?;
    let (mut frames, mut begun) = (Frames::default(), 0);
    while begun < STREAMS_PER_CONNECTION {
        let mut buffer = [0; 16 << 10];
        let count = stream.read(&mut buffer).context("waiting for responses to begin")?;
        ensure!(count > 0, "the connection was closed after {begun} streams");
        frames.add(&buffer[..count]);
        while let Some(frame) = frames.next() {
            match frame.kind {
                HEADERS => begun += 1,
                SETTINGS if !frame.is_ack() => {
                    let mut ack = Vec::new();
                    frames::put(&mut ack, SETTINGS, frames::FLAG_ACK, 0, &[]);
                    stream.write_all(&ack)?;
                }
                frames::RST_STREAM | frames::GOAWAY => {
                    anyhow::bail!(
                        "stream {} was ended by frame type {} after {begun} streams",
                        frame.stream,
                        frame.kind
                    )
                }
                _ => {}
            }
        }
    }
    Ok(stream)
}
