//! One downstream connection: reading heads, writing responses, ending.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_http::{HeadScan, Limits, Version, parse_request};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::listener::FilterChain;
use evenkeel_runtime_config::view::ConnectionView;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::failure::Failure;
use super::request::Request;
use crate::conn::buffer::BLOCK_BYTES;
use crate::conn::deadline::{after, earlier};
use crate::conn::{Buffer, Deadline};
use crate::listener::Downstream;
use crate::stream::Stream;
use crate::worker::{HttpManager, Registration, Worker};

/// How long a refused client may go on sending before the connection is cut, and how many bytes of it are read, so that
/// the answer is not lost to a reset.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 256 * 1024;

/// A downstream connection and what its requests use one after the other.
pub(super) struct Connection<'w> {
    pub(super) worker: &'w Rc<Worker>,
    pub(super) manager: Rc<HttpManager>,
    pub(super) stream: Stream,
    pub(super) input: Buffer,
    /// Response bytes on their way out.
    pub(super) output: Vec<u8>,
    /// Holds request heads while they are written.
    pub(super) scratch: Vec<u8>,
    pub(super) deadline: Deadline,
    pub(super) view: ConnectionView,
    pub(super) chain: Arc<FilterChain>,
    pub(super) peer_text: Box<str>,
    pub(super) id: u64,
    /// Requests read on this connection.
    pub(super) requests: u32,
    /// The client may still be sending what nobody will read.
    pub(super) linger: bool,
    registration: &'w Registration,
}

impl<'w> Connection<'w> {
    pub(super) fn new(
        worker: &'w Rc<Worker>,
        downstream: Downstream,
        manager: Rc<HttpManager>,
        registration: &'w Registration,
    ) -> Self {
        let Downstream { stream, input, view, chain, id, peer_text } = downstream;
        Self {
            worker,
            manager,
            stream,
            input,
            output: Vec::new(),
            scratch: Vec::new(),
            deadline: Deadline::default(),
            view,
            chain,
            peer_text,
            id,
            requests: 0,
            linger: false,
            registration,
        }
    }

    /// Reads the next request head. `Ok(false)`: the connection ended between requests.
    pub(super) async fn read_head(
        &mut self,
        request: &mut Request,
        hcm: &HttpConnectionManager,
    ) -> Result<bool, Failure> {
        let limits = Limits { max_head_bytes: hcm.max_request_headers_bytes, max_headers: hcm.max_headers_count };
        let mut scan = HeadScan::default();
        let mut first_byte = (!self.input.is_empty()).then(Instant::now);
        let idle_until = after(Instant::now(), hcm.idle_timeout);
        loop {
            self.skip_empty_lines();
            if !self.input.is_empty() {
                match parse_request(self.input.bytes(), &mut scan, limits, &mut request.head) {
                    Ok(Some(info)) => {
                        self.input.consume(info.head_bytes);
                        request.info = info;
                        request.started = Instant::now();
                        self.requests += 1;
                        return match (request.head.version, hcm.accept_http_10) {
                            (Version::Http10, false) => Err(Failure::LowVersion),
                            _ => Ok(true),
                        };
                    }
                    Ok(None) => {}
                    Err(error) => return Err(Failure::Head(error)),
                }
            }
            let until = match first_byte {
                None => idle_until,
                Some(since) => earlier(after(since, hcm.request_headers_timeout), after(since, hcm.request_timeout)),
            };
            let room = limits.max_head_bytes.max(BLOCK_BYTES) + 1;
            match poll_fn(|cx| self.poll_more(first_byte.is_none(), until, room, cx)).await {
                More::Bytes => first_byte = first_byte.or_else(|| Some(Instant::now())),
                // A head that was cut off is nobody's request.
                More::End => return Ok(false),
                More::Late if first_byte.is_some() => return Err(Failure::HeadTimeout),
                More::Late => {
                    self.manager.http.inc(crate::stats::http::Counter::downstream_cx_idle_timeout);
                    return Ok(false);
                }
            }
        }
    }

    /// RFC 9112 section 2.2: a server ignores empty lines before a request.
    fn skip_empty_lines(&mut self) {
        while self.input.bytes().starts_with(b"\r\n") {
            self.input.consume(2);
        }
    }

    fn poll_more(&mut self, idle: bool, until: Option<Instant>, room: usize, cx: &mut Context<'_>) -> Poll<More> {
        match self.input.poll_fill(&mut self.stream, room, cx) {
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(More::End),
            Poll::Ready(Ok(_)) => return Poll::Ready(More::Bytes),
            Poll::Pending => {}
        }
        if idle {
            self.registration.watch(cx.waker());
            if self.worker.draining.get() {
                return Poll::Ready(More::End);
            }
        }
        self.deadline.poll(until, cx).map(|()| More::Late)
    }

    /// Sends all of `output`.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_output(cx)).await
    }

    /// Sends `output` as far as it goes.
    pub(super) fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_send(&mut self.stream, &mut self.output, cx)
    }

    /// Ends the connection in order; a client that still sends is read for a moment, so that it gets its answer.
    pub(super) async fn close(mut self) {
        let linger = self.linger;
        let closing = async {
            if poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await.is_err() || !linger {
                return;
            }
            let mut left = LINGER_BYTES;
            while left > 0 {
                let room = self.input.len() + BLOCK_BYTES;
                match poll_fn(|cx| self.input.poll_fill(&mut self.stream, room, cx)).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) => left = left.saturating_sub(count),
                }
                self.input.consume(self.input.len());
            }
        };
        let _ = tokio::time::timeout(LINGER, closing).await;
    }
}

enum More {
    Bytes,
    End,
    Late,
}

/// Writes all of `bytes` and flushes; `bytes` is empty when it is ready, and keeps what is left while it is not.
pub(super) fn poll_send(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &mut Vec<u8>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let mut sent = 0;
    let result = loop {
        if sent == bytes.len() {
            break Pin::new(&mut *stream).poll_flush(cx);
        }
        match Pin::new(&mut *stream).poll_write(cx, &bytes[sent..]) {
            Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(count)) => sent += count,
            Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
            Poll::Pending => break Poll::Pending,
        }
    };
    if sent == bytes.len() {
        bytes.clear();
    } else {
        bytes.drain(..sent);
    }
    ready!(result)?;
    Poll::Ready(Ok(()))
}
