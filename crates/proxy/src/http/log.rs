//! The end of a request: its log line and its statistics.

use std::time::Duration;

use evenkeel_http::Version;
use evenkeel_upstream::turn;
use tokio::time::Instant;

use super::active_stream::ActiveStream;
use super::clock::wall_clock;
use super::context::ConnectionContext;
use super::request::{FieldsView, Request};
use crate::access_log::Record;
use crate::response_flags::ResponseFlags;
use crate::stats::http::{Counter, Gauge, Histogram};

/// Calls `f` with what is known of the request by now.
pub(super) fn record<T>(origin: &ConnectionContext, request: &mut Request, f: impl FnOnce(&Record<'_>) -> T) -> T {
    let duration = turn::now().duration_since(request.started);
    record_after(duration, origin, request, f)
}

fn record_after<T>(
    duration: Duration,
    origin: &ConnectionContext,
    request: &Request,
    f: impl FnOnce(&Record<'_>) -> T,
) -> T {
    let (head, response) = (request.view(), FieldsView(&request.response.headers));
    let trailers = FieldsView(&request.response_trailers);
    let view = &origin.info.view;
    let since_start = |at: Option<Instant>| at.map(|at| at.duration_since(request.started));
    let mut record = Record::new(wall_clock(request.started));
    record.duration = duration;
    record.request_duration = since_start(request.received_all);
    record.response_duration = since_start(request.answered);
    record.held =
        request.held.map(|(begin, end)| (begin.duration_since(request.started), end.duration_since(request.started)));
    record.request = &head;
    record.response = &response;
    record.trailers = &trailers;
    record.protocol = Some(request.head.version.as_str());
    // While headers are being edited the response is known but not sent.
    record.response_code = if request.status == 0 { request.response.status } else { request.status };
    record.response_code_details = &request.details;
    record.flags = request.flags;
    record.bytes_received = request.bytes_received;
    record.bytes_sent = request.bytes_sent;
    record.upstream_host = request.host.as_ref().map(|host| &*host.label);
    record.upstream_cluster = request.cluster_name.as_deref();
    record.upstream_local_address = request.upstream_local;
    record.upstream_transport_failure_reason = &request.transport_failure;
    record.upstream_attempts = request.attempts;
    record.set_connection(&origin.info);
    record.downstream_remote_address = Some(request.client.unwrap_or(view.remote));
    record.route_name = request.route_name.as_deref().filter(|name| !name.is_empty());
    record.connection_termination_details = origin.closed_by_filter();
    record.filters = Some(&request.facts);
    f(&record)
}

impl ActiveStream<'_> {
    /// Counts and logs a request that has ended, however it ended.
    pub(super) fn end(&mut self) {
        self.under_way = false;
        end(self.origin, self.request, self.was_cut_off());
    }
}

/// Counts and logs a request that was counted as begun. `cut_off`: it or its answer was not complete, which Envoy counts as a reset that
/// was received, whoever cut it off.
pub(super) fn end(origin: &ConnectionContext, request: &mut Request, cut_off: bool) {
    let stats = &origin.manager.http;
    origin.manager.filters.complete(&mut request.filters, &mut request.facts);
    stats.shift(Gauge::downstream_rq_active, -1);
    origin.registration.worked(request.bytes_received + request.bytes_sent);
    // Over HTTP/1 no request follows one that breaks the protocol; HTTP/2 counts its connections as they end.
    if request.head.version != Version::Http2 && request.flags.contains(ResponseFlags::DOWNSTREAM_PROTOCOL_ERROR) {
        stats.inc(Counter::downstream_cx_protocol_error);
    }
    let class = match request.status / 100 {
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
    let timeout = match &*request.details {
        "stream_idle_timeout" | "stream_flush_timeout" => Some(Counter::downstream_rq_idle_timeout),
        "request_overall_timeout" => Some(Counter::downstream_rq_timeout),
        "request_header_timeout" => Some(Counter::downstream_rq_header_timeout),
        _ => None,
    };
    timeout.into_iter().for_each(|timeout| stats.inc(timeout));
    let duration = turn::now().duration_since(request.started);
    stats.record(Histogram::downstream_rq_time, duration.as_millis() as u64);
    let access_logs = &origin.hcm.access_logs;
    if !access_logs.is_empty() {
        record_after(duration, origin, request, |record| {
            let mut log = origin.worker.log.borrow_mut();
            access_logs.iter().for_each(|access_log| log.write(access_log, record));
        });
    }
}
