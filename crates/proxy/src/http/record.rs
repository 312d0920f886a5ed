//! The record of a request at a moment, for logs, traces and header values.

use evenkeel_filters::format::{Record, ResponseView, Trailers};
use evenkeel_upstream::turn;

use super::context::ConnectionContext;
use super::request::Request;
use crate::clock::wall_clock;

/// Calls `f` with the record of the request so far.
pub(super) fn record<T>(conn: &ConnectionContext, request: &mut Request, f: impl FnOnce(&Record<'_>) -> T) -> T {
    if request.stream.termination.is_empty() {
        request.stream.termination = conn.closed_by_filter();
    }
    let now = turn::now();
    let (head, response) = (request.view(), ResponseView(&request.response));
    let trailers = Trailers(&request.response_trailers);
    let stream = &request.stream;
    f(&Record {
        stream,
        connection: &conn.info,
        start: wall_clock(request.started()),
        now: now.into_std(),
        request: &head,
        response: &response,
        trailers: &trailers,
        local_reply_body: b"",
        // While headers are edited, the response's status is known but not sent.
        status: if stream.status == 0 { request.response.status } else { stream.status },
    })
}
