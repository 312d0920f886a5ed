//! A client's connection: what it speaks, and one request after the other where it speaks HTTP/1.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_http::{HeadScan, Limits, Version, parse_request};
use evenkeel_runtime_config::HttpConnectionManager;
use tokio::time::Instant;

use super::clock::Clock;
use super::downstream::{Downstream, Http1};
use super::failure::Failure;
use super::origin::{Origin, Protocol};
use super::phases::Life;
use super::request::Request;
use crate::conn::Deadline;
use crate::conn::buffer::BLOCK_BYTES;
use crate::conn::deadline::{after, earlier};
use crate::listener;
use crate::stats::http::Counter;
use crate::worker::{Registration, Worker};

/// Serves a connection to its end.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    downstream: listener::Downstream,
    hcm: Arc<HttpConnectionManager>,
    registration: &Registration,
) {
    let generation = worker.generation();
    if generation.network_filters(worker, &downstream.chain).on_connection(&downstream.view).is_err() {
        return;
    }
    let manager = generation.manager(worker, &hcm);
    drop(generation);
    let listener::Downstream { stream, input, view, chain, id, peer_text } = downstream;
    let side = Http1::new(stream, input, &hcm);
    let clock = Clock::new();
    let origin = Origin {
        worker: Rc::clone(worker),
        manager,
        hcm,
        view,
        chain,
        session: side.stream.session().cloned(),
        peer_text,
        id,
        protocol: Protocol::Http1,
        opened: Instant::now(),
    };
    origin.count();
    let mut connection = Http1Connection { origin, side, deadline: Deadline::default(), clock, registration };
    // Between two turns of this loop the connection is at a message boundary: nothing of it is anywhere but in `connection`.
    while connection.serve_next().await {}
    connection.side.close().await;
}

/// A client's HTTP/1 connection at a message boundary.
struct Http1Connection<'w> {
    origin: Origin,
    side: Http1,
    deadline: Deadline,
    clock: Clock,
    registration: &'w Registration,
}

impl Http1Connection<'_> {
    /// Serves the next request; false when there is none, or no other may follow it.
    async fn serve_next(&mut self) -> bool {
        if !self.wait_for_request().await {
            return false;
        }
        let mut request = Request::begin(self.clock);
        let read = self.read_head(&mut request).await;
        let down = Downstream::Http1(&mut self.side);
        let mut life = Life::new(&self.origin, &mut request, down, &mut self.deadline);
        let next = match read {
            // A head that was cut off is nobody's request.
            Ok(false) => false,
            Ok(true) => life.run().await,
            Err(failure) => life.refuse(&failure).await,
        };
        self.clock = request.clock;
        request.recycle();
        next
    }

    /// Waits for a request's first byte; false when the connection ended before it.
    async fn wait_for_request(&mut self) -> bool {
        let idle_until = after(self.clock.now(), self.origin.hcm.idle_timeout);
        loop {
            // RFC 9112 section 2.2: a server ignores empty lines before a request.
            while self.side.input.bytes().starts_with(b"\r\n") {
                self.side.input.consume(2);
            }
            if !self.side.input.is_empty() {
                return true;
            }
            match poll_fn(|cx| self.poll_idle(idle_until, cx)).await {
                More::Bytes => {}
                More::End => return false,
                More::Late => {
                    self.origin.manager.http.inc(Counter::downstream_cx_idle_timeout);
                    return false;
                }
            }
        }
    }

    /// Reads the request's head. `Ok(false)`: the client left in the middle of it.
    async fn read_head(&mut self, request: &mut Request) -> Result<bool, Failure> {
        let hcm = &*self.origin.hcm;
        let limits = limits(hcm);
        let mut scan = HeadScan::default();
        let first_byte = request.started;
        loop {
            match parse_request(self.side.input.bytes(), &mut scan, limits, &mut request.head) {
                Ok(Some(info)) => {
                    self.side.input.consume(info.head_bytes);
                    self.side.begin(&info);
                    request.info = info;
                    request.started = request.clock.now();
                    return match (request.head.version, hcm.accept_http_10) {
                        (Version::Http10, false) => Err(Failure::LowVersion),
                        _ => Ok(true),
                    };
                }
                Ok(None) => {}
                Err(error) => return Err(Failure::Head(error)),
            }
            let until = earlier(after(first_byte, hcm.request_headers_timeout), after(first_byte, hcm.request_timeout));
            let room = limits.max_head_bytes.max(BLOCK_BYTES) + 1;
            request.clock.wait();
            match poll_fn(|cx| poll_more(&mut self.side, &mut self.deadline, until, room, cx)).await {
                More::Bytes => {}
                More::End => return Ok(false),
                More::Late => return Err(Failure::HeadTimeout),
            }
        }
    }

    fn poll_idle(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> Poll<More> {
        let more = poll_more(&mut self.side, &mut self.deadline, until, BLOCK_BYTES, cx);
        if more.is_pending() {
            self.clock.wait();
            self.registration.watch(cx.waker());
            if self.origin.worker.draining.get() {
                return Poll::Ready(More::End);
            }
        }
        more
    }
}

fn limits(hcm: &HttpConnectionManager) -> Limits {
    Limits { max_head_bytes: hcm.max_request_headers_bytes, max_headers: hcm.max_headers_count }
}

enum More {
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
) -> Poll<More> {
    match side.input.poll_fill(&mut side.stream, room, cx) {
        Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(More::End),
        Poll::Ready(Ok(_)) => Poll::Ready(More::Bytes),
        Poll::Pending => deadline.poll(until, cx).map(|()| More::Late),
    }
}
