//! The end of a request: its access log line and its statistics.

use evenkeel_filters::ResponseFlags;
use evenkeel_http::Version;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::context::ConnectionContext;
use super::record::record;
use super::request::Request;
use super::trace;
use crate::clock::wall_clock;
use crate::recent::{is_failure, recorded};
use crate::stats::http::{Counter, Gauge, Histogram};

impl ActiveStream<'_> {
    /// Counts and logs a request that has ended, however it ended.
    pub(super) fn end(&mut self) {
        self.under_way = false;
        end(self.conn, self.request, self.was_cut_off());
    }
}

/// Counts and logs a request that was counted as begun. `cut_off`: the request or its response was incomplete, which Envoy counts as a
/// received reset, whichever side caused it.
pub(super) fn end(conn: &ConnectionContext, request: &mut Request, cut_off: bool) {
    let stats = &conn.manager.http;
    if request.filters.is_begun() {
        conn.manager.filters.complete(&mut request.filters, &mut request.stream);
    }
    stats.shift(Gauge::downstream_rq_active, -1);
    conn.registration.worked(request.stream.bytes_received + request.stream.bytes_sent);
    // Over HTTP/1 a protocol error ends the connection, so that it is counted here; HTTP/2 counts it when the connection ends.
    if request.head.version != Version::Http2 && request.stream.flags.contains(ResponseFlags::DOWNSTREAM_PROTOCOL_ERROR)
    {
        stats.inc(Counter::downstream_cx_protocol_error);
    }
    let class = match request.stream.status / 100 {
        1 => Some(Counter::downstream_rq_1xx),
        2 => Some(Counter::downstream_rq_2xx),
        3 => Some(Counter::downstream_rq_3xx),
        4 => Some(Counter::downstream_rq_4xx),
        5 => Some(Counter::downstream_rq_5xx),
        _ => None,
    };
    if let Some(class) = class {
        stats.inc(Counter::downstream_rq_completed);
        stats.inc(class);
    }
    if cut_off {
        stats.inc(Counter::downstream_rq_rx_reset);
    }
    let (received, sent) = (request.stream.bytes_received, request.stream.bytes_sent);
    if let Some(edge) = &conn.edge {
        edge.request(received, sent, turn::now());
    }
    if let Some(edge) = request.edge.take() {
        edge.request(received, sent, turn::now());
    }
    let duration = turn::now().duration_since(request.started());
    stats.record(Histogram::downstream_rq_time, duration.as_millis() as u64);
    keep(conn, request);
    if request.trace.is_some() {
        trace::end(conn, request);
    }
    let access_logs = &conn.hcm.access_logs;
    if !access_logs.is_empty() {
        record(conn, request, |record| {
            let mut log = conn.worker.log.borrow_mut();
            access_logs.iter().for_each(|access_log| log.write(access_log, record));
        });
    }
}

/// Keeps the request for those who ask about recent ones, if it is part of the sample or has failed.
#[inline]
fn keep(conn: &ConnectionContext, request: &mut Request) {
    let received = request.sampled.take();
    let recent = &conn.worker.recent;
    if received.is_some() || (is_failure(&request.stream) && recent.takes_failure(&conn.info, turn::now())) {
        let times = (wall_clock(request.started()), turn::now().into_std());
        recent.keep(recorded((&conn.info, &request.stream, &request.head), (received, request.rewritten), times));
    }
}
