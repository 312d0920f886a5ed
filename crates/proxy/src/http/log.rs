//! The end of a request: who sees it, and its statistics.

use std::rc::Rc;

use evenkeel_filters::format::Record;
use evenkeel_filters::{EXEMPLAR, ResponseFlags};
use evenkeel_http::Version;
use evenkeel_stats::{Exemplar, Writer};
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::context::ConnectionContext;
use super::record::note_termination;
use super::request::Request;
use super::trace::Traced;
use crate::access_log::Lines;
use crate::clock::wall_clock;
use crate::edges::Traffic;
use crate::observers::{self, Observer};
use crate::recent::RecentRecorder;
use crate::stats::http::{Counter, Gauge, Histogram, Stats};
use crate::tap::TapRecorder;

impl ActiveStream<'_> {
    /// Counts and logs a request that has ended, however it ended.
    pub(super) fn end(&mut self) {
        self.under_way = false;
        end(self.conn, self.request, self.was_cut_off());
    }
}

/// Shows a request that was counted as begun, and has ended, to the filters and all observers. `cut_off`: the request or its response was
/// incomplete, which Envoy counts as a received reset, whichever side caused it.
pub(super) fn end(conn: &ConnectionContext, request: &mut Request, cut_off: bool) {
    conn.registration.worked(request.stream.bytes_received + request.stream.bytes_sent);
    note_termination(conn, request);
    if request.filters.sees_end() {
        complete_filters(conn, request, cut_off);
    }
    let edge = request.edge.take();
    let (notes, trace) = (request.notes.take(), request.trace.take());
    request.record(&conn.info, cut_off, |end| {
        let (worker, head) = (&*conn.worker, &request.head);
        let exemplar = trace.as_ref().and_then(|trace| trace.exemplar(wall_clock(turn::now())));
        let observers: &mut [&mut dyn Observer] = &mut [
            &mut Counts { stats: &conn.manager.http, version: head.version, exemplar },
            &mut Traffic {
                edges: &worker.edges,
                client: conn.edge.as_deref(),
                server: edge.as_deref(),
                is_request: true,
            },
            &mut RecentRecorder { recent: &worker.recent, upstreams: &worker.upstreams, head, notes },
            &mut Traced { trace, worker },
            &mut Lines { log: &worker.log, logs: conn.hcm.access_logs.iter() },
        ];
        observers::show(end, observers);
        if worker.tap.is_on() {
            TapRecorder { tap: &worker.tap, recent: &worker.recent, head }.ended(end);
        }
    });
}

/// Tells the filters first: what they count includes the request before it is logged.
fn complete_filters(conn: &ConnectionContext, request: &mut Request, cut_off: bool) {
    let exemplar = request.trace.as_ref().and_then(|trace| trace.exemplar(wall_clock(turn::now())));
    if let Some(exemplar) = exemplar {
        request.stream.set_object(EXEMPLAR, Rc::new(exemplar));
    }
    let mut streams = std::mem::take(&mut request.filters);
    request.record(&conn.info, cut_off, |end| conn.manager.filters.complete(&mut streams, end));
    request.filters = streams;
}

/// The connection manager's statistics of ended requests.
struct Counts<'c> {
    stats: &'c Writer<Stats>,
    version: Version,
    /// The trace of the request.
    exemplar: Option<Exemplar>,
}

impl Observer for Counts<'_> {
    #[inline]
    fn ended(&mut self, end: &Record<'_>) {
        let stats = self.stats;
        stats.shift(Gauge::downstream_rq_active, -1);
        // Over HTTP/1 a protocol error ends the connection, so that it is counted here; HTTP/2 counts it when the connection ends.
        let flags = end.stream.flags;
        if flags.contains(ResponseFlags::DOWNSTREAM_PROTOCOL_ERROR) && self.version != Version::Http2 {
            stats.inc(Counter::downstream_cx_protocol_error);
        }
        let class = match end.stream.status / 100 {
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
        if end.cut_off {
            stats.inc(Counter::downstream_rq_rx_reset);
        }
        let millis = end.duration().as_millis() as u64;
        stats.record_with(Histogram::downstream_rq_time, millis, self.exemplar.as_ref());
    }
}
