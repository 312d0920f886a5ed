//! A client's HTTP/1 connection: one request after another.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_http::{HeadError, HeadScan, Version, parse_request};
use evenkeel_runtime_config::hcm::HeadersWithUnderscores;
use evenkeel_upstream::conn::Deadline;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::conn::deadline::{after, earlier};
use evenkeel_upstream::turn;
use tokio::time::Instant;

use super::active_stream::ActiveStream;
use super::context::ConnectionContext;
use super::downstream::{Downstream, Http1};
use super::failure::Failure;
use super::head_rules::rules;
use super::request::Request;
use crate::listener;
use crate::stats::http::Counter;
use crate::stats::http1 as codec;
use crate::worker::Directive;

/// The next step on a connection.
pub(super) enum Next {
    /// A request has begun to arrive.
    Request,
    /// The connection ends, between two requests.
    End,
    /// The connection is handed over.
    Leave(Directive),
}

/// The first bytes on a connection.
pub(super) enum FirstBytes {
    Expected,
    Other,
    /// None: the client has disconnected.
    None,
    /// None yet: the connection is being handed over.
    Leaves(Directive),
}

/// A client's HTTP/1 connection at a message boundary.
pub(super) struct Http1Connection {
    pub(super) conn: ConnectionContext,
    pub(super) side: Http1,
    deadline: Deadline,
    /// When it began to wait for a request, on this worker or another.
    idle_since: Option<Instant>,
}

impl Http1Connection {
    pub(super) fn new((conn, side): (ConnectionContext, Http1), idle_since: Option<Instant>) -> Self {
        Self { conn, side, deadline: Deadline::default(), idle_since }
    }

    /// Whether the client's first bytes are `expected`.
    pub(super) async fn begins_with(&mut self, expected: &[u8]) -> FirstBytes {
        match self.wait_for_request().await {
            Next::Request => {}
            Next::End => return FirstBytes::None,
            Next::Leave(to) => return FirstBytes::Leaves(to),
        }
        let until = earlier(after(turn::now(), self.conn.hcm.longest_beginning()), self.conn.until());
        loop {
            let bytes = self.side.input.bytes();
            if bytes.len() >= expected.len() || !expected.starts_with(bytes) {
                return if bytes.starts_with(expected) { FirstBytes::Expected } else { FirstBytes::Other };
            }
            match poll_fn(|cx| poll_more(&mut self.side, &mut self.deadline, until, BLOCK_BYTES, cx)).await {
                NextBytes::Bytes => {}
                NextBytes::End => return FirstBytes::None,
                NextBytes::Late => {
                    self.conn.manager.http.inc(Counter::downstream_rq_header_timeout);
                    return FirstBytes::None;
                }
            }
        }
    }

    /// Converts the connection to the form in which another worker can continue to serve it.
    pub(super) fn into_downstream(mut self) -> listener::Downstream {
        self.conn.leaves = true;
        listener::Downstream {
            info: Arc::clone(&self.conn.info),
            requests: self.side.requests(),
            idle_since: self.idle_since,
            resumed: true,
            stream: self.side.stream,
            input: self.side.input,
        }
    }

    /// Serves the request that has begun to arrive; false when no other may follow it.
    pub(super) async fn serve_request(&mut self) -> bool {
        self.idle_since = None;
        let mut request = Request::begin();
        let read = self.read_head(&mut request).await;
        let down = Downstream::Http1(&mut self.side);
        let mut active = ActiveStream::new(&self.conn, &mut request, down, &mut self.deadline);
        let next = match read {
            Ok(()) => active.run().await,
            Err(failure) => active.refuse(&failure).await,
        };
        drop(active);
        let trailers = std::mem::take(&mut self.side.underscored);
        self.count_underscores(trailers);
        request.recycle();
        next
    }

    /// Waits for the first byte of a request, or for a reason to stop waiting.
    pub(super) async fn wait_for_request(&mut self) -> Next {
        if let leave @ (Directive::MoveTo(..) | Directive::HandOver) = self.conn.registration.directive()
            && poll_fn(|cx| Poll::Ready(self.side.poll_flush(cx).is_ready())).await
        {
            return Next::Leave(leave);
        }
        let idle_since = *self.idle_since.get_or_insert_with(turn::now);
        let mut idle_until = earlier(after(idle_since, self.conn.hcm.idle_timeout), self.conn.until());
        let mut drains = false;
        // The backlog of the last response, and since when the client has taken none of it.
        let mut backlog = None;
        loop {
            // RFC 9112 section 2.2: a server ignores empty lines before a request.
            while self.side.input.bytes().starts_with(b"\r\n") {
                self.side.input.consume(2);
            }
            if !self.side.input.is_empty() {
                return Next::Request;
            }
            match poll_fn(|cx| self.poll_idle(idle_until, drains, &mut backlog, cx)).await {
                Idle::NextBytes(NextBytes::Bytes) => {}
                Idle::NextBytes(NextBytes::End) => return Next::End,
                Idle::NextBytes(NextBytes::Late) => {
                    let expired = self.conn.is_expired(turn::now());
                    self.conn.manager.http.inc(match drains {
                        true => Counter::downstream_cx_drain_close,
                        false if expired => Counter::downstream_cx_max_duration_reached,
                        false => Counter::downstream_cx_idle_timeout,
                    });
                    return Next::End;
                }
                Idle::Leave(to) => return Next::Leave(to),
                Idle::Stuck => {
                    self.conn.manager.http.inc(Counter::downstream_rq_idle_timeout);
                    return Next::End;
                }
                // A client that is about to send gets `Connection: close` with its response; a quiet one is closed after this time.
                Idle::Drains => {
                    drains = true;
                    let quiet = Some(self.conn.worker.drain_quiet);
                    idle_until = earlier(idle_until, after(turn::now(), quiet));
                }
            }
        }
    }

    /// Reads the request head.
    async fn read_head(&mut self, request: &mut Request) -> Result<(), Failure> {
        let hcm = &*self.conn.hcm;
        let rules = rules(hcm);
        let mut scan = HeadScan::default();
        let first_byte = request.started();
        loop {
            match parse_request(self.side.input.bytes(), &mut scan, rules, &mut request.head) {
                Ok(Some(info)) => {
                    self.side.input.consume(info.head_bytes);
                    self.count_underscores(info.dropped);
                    self.side.begin(&info);
                    request.info = info;
                    request.stream.times.set_start(turn::now().into_std());
                    return match (request.head.version, hcm.accept_http_10) {
                        (Version::Http10, false) => Err(Failure::LowVersion),
                        _ => Ok(()),
                    };
                }
                Ok(None) => {}
                Err(error) => {
                    self.count_underscores(u32::from(error == HeadError::Underscore));
                    return Err(Failure::Head(error));
                }
            }
            // Few heads arrive in parts; only those need a deadline.
            let late = earlier(after(first_byte, hcm.request_headers_timeout), after(first_byte, hcm.request_timeout));
            let until = earlier(late, after(first_byte, hcm.stream_idle_timeout));
            let room = rules.limits.max_head_bytes.max(BLOCK_BYTES) + 1;
            match poll_fn(|cx| poll_more(&mut self.side, &mut self.deadline, until, room, cx)).await {
                NextBytes::Bytes => {}
                NextBytes::End => return Err(Failure::ClientGone),
                NextBytes::Late if late == until => return Err(Failure::HeadTimeout),
                NextBytes::Late => return Err(Failure::Idle { complete: false }),
            }
        }
    }

    /// Counts header lines or trailers that were dropped for underscores in their names, or the request that was rejected for them.
    fn count_underscores(&self, concerned: u32) {
        if concerned == 0 {
            return;
        }
        let stats = &self.conn.manager.http1;
        match self.conn.hcm.underscores {
            HeadersWithUnderscores::Reject => stats.inc(codec::Counter::requests_rejected_with_underscores_in_headers),
            HeadersWithUnderscores::Drop | HeadersWithUnderscores::Allow => {
                stats.add(codec::Counter::dropped_headers_with_underscores, u64::from(concerned));
            }
        }
    }

    fn poll_idle(
        &mut self,
        until: Option<Instant>,
        drains: bool,
        backlog: &mut Option<(Instant, u64)>,
        cx: &mut Context<'_>,
    ) -> Poll<Idle> {
        let more = poll_more(&mut self.side, &mut self.deadline, until, BLOCK_BYTES, cx);
        if more.is_pending() {
            if let Some(now) = self.side.backlog()
                && self.poll_stuck(now, backlog, cx).is_ready()
            {
                return Poll::Ready(Idle::Stuck);
            }
            self.conn.registration.watch(cx.waker());
            match self.conn.registration.directive() {
                // No bytes of a response are left behind.
                leave @ (Directive::MoveTo(..) | Directive::HandOver) if self.side.poll_flush(cx).is_ready() => {
                    return Poll::Ready(Idle::Leave(leave));
                }
                Directive::Drain if !drains => return Poll::Ready(Idle::Drains),
                _ => {}
            }
        }
        more.map(Idle::NextBytes)
    }

    /// The end of the last response was to be sent with a burst, but was not. Ready when the client has taken nothing of it for too long.
    fn poll_stuck(&mut self, now: u64, backlog: &mut Option<(Instant, u64)>, cx: &mut Context<'_>) -> Poll<()> {
        let since = match *backlog {
            Some((since, before)) if before == now => since,
            _ => backlog.insert((turn::now(), now)).0,
        };
        self.deadline.poll(after(since, Some(self.conn.hcm.stream_flush_timeout)), cx)
    }
}

/// Why a connection stops waiting for a request.
enum Idle {
    NextBytes(NextBytes),
    /// The connection is being handed over.
    Leave(Directive),
    /// The client does not read the end of a response.
    Stuck,
    /// The connection drains: it ends if nothing more arrives.
    Drains,
}

enum NextBytes {
    Bytes,
    End,
    Late,
}

fn poll_more(
    side: &mut Http1,
    deadline: &mut Deadline,
    until: Option<Instant>,
    room: usize,
    cx: &mut Context<'_>,
) -> Poll<NextBytes> {
    // Nothing more is read from a client that does not take its response.
    let filled = match side.poll_rest(cx) {
        Poll::Ready(Ok(())) => side.input.poll_receive(&mut side.stream, room, cx),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Pending => Poll::Pending,
    };
    match filled {
        Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(NextBytes::End),
        Poll::Ready(Ok(_)) => Poll::Ready(NextBytes::Bytes),
        Poll::Pending => deadline.poll(until, cx).map(|()| NextBytes::Late),
    }
}
