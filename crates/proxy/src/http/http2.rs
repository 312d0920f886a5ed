//! A client's HTTP/2 connection: each of its streams is one request, served by a task of its own.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Context;

use evenkeel_http::h2::Fault;
use evenkeel_http::{HeaderId, RequestInfo, Version};
use evenkeel_runtime_config::http2::Http2Options;
use evenkeel_upstream::conn::{Buffer, Deadline};
use evenkeel_upstream::h2::{Accepted, Incoming, Limits, Server, recycle};
use evenkeel_upstream::stream::Stream;

use super::active_stream::ActiveStream;
use super::context::ConnectionContext;
use super::downstream::{self, Downstream, Http2};
use super::failure::Failure;
use super::head_rules::rules;
use super::lending::{carry, lend};
use super::log;
use super::request::Request;
use crate::stats::http::Counter;
use crate::worker::spawn;

/// Serves the connection until it and all its streams have ended. `carried`: the version of its messages, which between sidecars may be
/// HTTP/1.1.
pub(super) async fn serve(conn: ConnectionContext, stream: Stream, input: Buffer, carried: Version) {
    let conn = &Rc::new(conn);
    let hcm = &*conn.hcm;
    let rules = rules(hcm);
    let limits = Limits {
        max_head_bytes: rules.limits.max_head_bytes,
        max_headers: rules.limits.max_headers,
        underscores: rules.underscores,
        head_timeout: hcm.request_headers_timeout,
        idle_timeout: hcm.idle_timeout,
        drain_timeout: hcm.drain_timeout,
        flush_timeout: Some(hcm.stream_flush_timeout),
        premature_resets: conn.worker.overload.premature_resets(),
    };
    // Between sidecars upgrades are carried, whatever `allow_connect` says for the listener's other clients.
    let carries = carried != Version::Http2 && !hcm.http2.allow_connect;
    let options = carries.then(|| Box::new(Http2Options { allow_connect: true, ..hcm.http2.clone() }));
    let options = options.as_deref().unwrap_or(&hcm.http2);
    let mut server = Server::new(stream, input, options, limits, Rc::clone(&conn.manager.http2));
    let mut deadline = Deadline::default();
    let mut requests = 0;
    // The client was told to open no more streams. This is done once.
    let mut leaving = false;
    loop {
        let accepted = poll_fn(|cx| {
            conn.registration.watch(cx.waker());
            if !leaving && let Some(counter) = reason_to_leave(conn, &mut deadline, cx) {
                conn.manager.http.inc(counter);
                server.drain();
                leaving = true;
            }
            server.poll_accept(cx)
        });
        let Some(accepted) = accepted.await else {
            if server.was_broken() {
                conn.manager.http.inc(Counter::downstream_cx_protocol_error);
            }
            if server.reset_too_many() {
                conn.manager.http.inc(Counter::downstream_rq_too_many_premature_resets);
            }
            if server.head_was_late() {
                let mut request = Request::begin();
                request.head.version = carried;
                request.stream.status = Failure::HeadTimeout.status();
                end(conn, request, &Failure::HeadTimeout);
            }
            return;
        };
        requests += 1;
        if !leaving && hcm.max_requests_per_connection.is_some_and(|most| most > 0 && requests >= most) {
            conn.manager.http.inc(Counter::downstream_cx_max_requests_reached);
            server.drain();
            leaving = true;
        }
        match accepted {
            Accepted::Request(incoming) => serve_stream(conn, incoming, carried),
            Accepted::Cut(head, cut) => {
                let mut request = Request::begin();
                recycle(std::mem::replace(&mut request.head, head));
                request.head.version = carried;
                request.stream.bytes_received = cut.received as u64;
                end(conn, request, &downstream::http2::failure(cut.reset));
            }
            Accepted::Refused(fault) => {
                let mut request = Request::begin();
                request.head.version = Version::Http2;
                request.stream.status = if fault == Fault::TooLarge { 431 } else { 0 };
                end(conn, request, &Failure::ClientMessage(fault));
            }
        }
    }
}

/// Whether the connection should end: the counter of the reason.
fn reason_to_leave(conn: &ConnectionContext, deadline: &mut Deadline, cx: &mut Context<'_>) -> Option<Counter> {
    if conn.registration.drains() {
        return Some(Counter::downstream_cx_drain_close);
    }
    deadline.poll(conn.until(), cx).is_ready().then_some(Counter::downstream_cx_max_duration_reached)
}

/// Starts serving a stream. What can be done before its task runs is done here: the task's future would reserve memory for it.
fn serve_stream(conn: &Rc<ConnectionContext>, incoming: Incoming, carried: Version) {
    let Incoming { stream, mut head, meta } = incoming;
    head.version = carried;
    let expect = head.headers.get(HeaderId::Expect);
    let info = RequestInfo {
        head_bytes: 0,
        framing: meta.framing,
        keep_alive: true,
        upgrade: false,
        expect_continue: expect.is_some_and(|expect| expect.eq_ignore_ascii_case(b"100-continue")),
        https_target: meta.https,
        dropped: 0,
    };
    let down = Downstream::Http2(Http2::new(stream, meta.end));
    // Boxed: these futures are large, and would be moved several times on their way into a task.
    if let Some(lending) = lend(conn, &mut head, info, meta.end) {
        spawn(&conn.registration, Box::pin(carry(lending, down)));
        return;
    }
    let mut request = Request::begin();
    recycle(std::mem::replace(&mut request.head, head));
    request.info = info;
    spawn(&conn.registration, Box::pin(live(Rc::clone(conn), request, down)));
}

/// Counts and logs a request that ends as it begins. The codec has sent the response, if one was possible.
fn end(conn: &ConnectionContext, mut request: Box<Request>, failure: &Failure) {
    conn.begin_request();
    request.stream.protocol = Some(request.head.version.as_str());
    request.fail(failure, failure.details(), &conn.manager.http);
    log::end(conn, &mut request, true);
    request.recycle();
}

async fn live(conn: Rc<ConnectionContext>, mut request: Box<Request>, down: Downstream<'static>) {
    let mut deadline = Deadline::default();
    ActiveStream::new(&conn, &mut request, down, &mut deadline).run().await;
    request.recycle();
}
