//! The client's side of Istio's exchange of metadata: a layer on a connection whose ends agreed on its protocol. The first bytes in each
//! direction tell which workload sends them; all others pass unchanged.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use evenkeel_filters::peer_metadata::{Exchange, PeerSlot};
use evenkeel_runtime_config::metadata_exchange::MetadataExchange;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::conn::Buffer;
use crate::conn::buffer::BLOCK_BYTES;
use crate::stream::{Layer, Stream};

/// A stream that begins with an exchange.
pub struct Exchanging {
    stream: Stream,
    exchange: Exchange,
    /// What is still to be sent of the greeting.
    greeting: Buffer,
    /// The block to read into, while the exchange lasts.
    block: Buffer,
    /// Bytes of the application that came with the peer's message.
    rest: Buffer,
}

impl Exchanging {
    /// Puts the layer on a stream whose ends agreed on the protocol; other streams stay what they are.
    pub fn over(stream: Stream, config: Option<&Arc<MetadataExchange>>) -> Stream {
        let begun = config.zip(stream.session()).and_then(|(config, session)| {
            let identity = session.peer.as_ref().map(|peer| peer.uri_sans.first().map_or("", |uri| uri.as_str()));
            Exchange::begin(config, session.alpn.as_deref(), identity)
        });
        let Some(exchange) = begun else { return stream };
        let (greeting, block, rest) = (Buffer::default(), Buffer::default(), Buffer::default());
        Stream::Layered(Box::new(Self { stream, exchange, greeting, block, rest }))
    }

    /// The workload of the server, once it is known.
    pub fn peer(&self) -> &Rc<PeerSlot> {
        self.exchange.peer()
    }

    /// Sends the greeting before everything else.
    fn poll_greet(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(greeting) = self.exchange.take_greeting() {
            self.greeting = Buffer::with(&greeting);
        }
        while !self.greeting.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, self.greeting.bytes()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.greeting.consume(count),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads a block for the exchange. A server that has something to say learns who asks, as with Istio's proxy.
    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let count = ready!(self.block.poll_fill(&mut self.stream, BLOCK_BYTES, cx))?;
        let mut bytes = self.block.bytes().to_vec();
        self.block = Buffer::default();
        self.exchange.receive(&mut bytes, count == 0);
        self.rest = Buffer::with(&bytes);
        if self.poll_greet(cx)?.is_ready() {
            _ = Pin::new(&mut self.stream).poll_flush(cx)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Layer for Exchanging {
    fn beneath(&self) -> &Stream {
        &self.stream
    }

    /// There is TLS below.
    fn bypass(&self) -> Option<&TcpStream> {
        None
    }
}

impl AsyncRead for Exchanging {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.rest.is_empty() {
                let count = this.rest.len().min(buffer.remaining());
                buffer.put_slice(this.rest.bytes().get(..count).unwrap_or_default());
                this.rest.consume(count);
                return Poll::Ready(Ok(()));
            }
            if this.exchange.has_received() {
                return Pin::new(&mut this.stream).poll_read(cx, buffer);
            }
            ready!(this.poll_exchange(cx))?;
        }
    }
}

impl AsyncWrite for Exchanging {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_greet(cx))?;
        Pin::new(&mut this.stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_greet(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}
