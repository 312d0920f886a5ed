//! The record of a request at a moment, for logs, traces and header values.

use std::cell::Ref;

use evenkeel_filters::ConnectionInfo;
use evenkeel_filters::format::{Record, ResponseView, Trailers, UpstreamPeer};
use evenkeel_upstream::turn;

use super::context::ConnectionContext;
use super::request::Request;
use crate::clock::wall_clock;

/// Calls `f` with the record of the request so far.
pub(super) fn record<T>(conn: &ConnectionContext, request: &mut Request, f: impl FnOnce(&Record<'_>) -> T) -> T {
    note_termination(conn, request);
    request.record(&conn.info, false, f)
}

/// Notes why a network filter closed the connection, if one did.
#[inline]
pub(super) fn note_termination(conn: &ConnectionContext, request: &mut Request) {
    if request.stream.termination.is_empty() {
        request.stream.termination = conn.closed_by_filter();
    }
}

impl Request {
    /// Calls `f` with the record of the request so far. `connection`: the client's. `cut_off`: the request has ended, and is incomplete.
    pub(super) fn record<T>(&self, connection: &ConnectionInfo, cut_off: bool, f: impl FnOnce(&Record<'_>) -> T) -> T {
        let now = turn::now();
        let (head, response) = (self.view(), ResponseView(&self.response));
        let trailers = Trailers(&self.response_trailers);
        let stream = &self.stream;
        let endpoint = self.host.as_ref().map(|host| Ref::map(host.endpoint(), |endpoint| &**endpoint));
        let session = self.session.as_deref();
        f(&Record {
            stream,
            connection,
            start: wall_clock(self.started()),
            now: now.into_std(),
            request: &head,
            response: &response,
            trailers: &trailers,
            local_reply_body: b"",
            trace: self.trace.as_ref().and_then(|trace| trace.ids()),
            // While headers are edited, the response's status is known but not sent.
            status: if stream.status == 0 { self.response.status } else { stream.status },
            upstream: endpoint.as_deref().map(|endpoint| UpstreamPeer { endpoint, session }),
            cut_off,
        })
    }
}
