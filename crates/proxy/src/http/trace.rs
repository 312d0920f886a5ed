//! Tracing of a request ([`evenkeel_filters::tracing`]): reports its phases to the trace.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::ResponseFlags;
use evenkeel_filters::format::Record;
use evenkeel_filters::tracing::{Trace, Tracer, TryEnd};
use evenkeel_runtime_config::listener::TrafficDirection;
use evenkeel_runtime_config::route::Route;
use evenkeel_upstream::turn;
use tokio::time::Instant;

use super::active_stream::ActiveStream;
use super::failure::Failure;
use super::record::record;
use super::upstream::Upstream;
use crate::clock::wall_clock;
use crate::observers::Observer;
use crate::worker::Worker;

impl ActiveStream<'_> {
    /// Begins the trace when the route is chosen, or sets the new route.
    #[cold]
    pub(super) fn trace(&mut self, tracer: &Rc<Tracer>, route: Option<&Arc<Route>>) {
        let (conn, request) = (self.conn, &mut *self.request);
        if let Some(trace) = &mut request.trace {
            return trace.routed(route);
        }
        let egress = conn.info.listener.as_ref().is_some_and(|it| it.direction == TrafficDirection::Outbound);
        let start = wall_clock(request.started());
        let random = || conn.worker.random.next();
        request.trace = Some(tracer.begin(&mut request.head, route, (egress, start), random));
    }

    /// Begins the span of a try.
    #[inline]
    pub(super) fn begin_traced_try(&mut self) {
        let (conn, request) = (self.conn, &mut *self.request);
        if let Some(trace) = &mut request.trace {
            trace.begin_try(request.stream.attempts, wall_clock(turn::now()), || conn.worker.random.next());
        }
    }

    /// The head is about to be sent.
    #[inline]
    pub(super) fn send_traced(&mut self, up: &Upstream) {
        let request = &mut *self.request;
        if let Some(trace) = &mut request.trace {
            trace.send(&mut request.head, up.version().as_str());
        }
    }

    /// A try has ended, with a failure or a response. `canceled`: the rest of that is not wanted.
    #[inline]
    pub(super) fn end_traced_try(&mut self, failure: Option<&Failure>, canceled: bool) {
        if self.request.trace.is_some() {
            self.end_try_of_trace(failure, canceled);
        }
    }

    #[cold]
    fn end_try_of_trace(&mut self, failure: Option<&Failure>, canceled: bool) {
        let conn = self.conn;
        let Some(mut trace) = self.request.trace.take() else { return };
        let end = match failure {
            None => TryEnd::Answered { status: self.request.response.status, canceled },
            Some(failure) => {
                let row = failure.row();
                let flags = if row.is_of_try { row.flags } else { ResponseFlags::NONE };
                match failure.reset_reason() {
                    Some(reason) => TryEnd::Reset { reason, flags },
                    None => TryEnd::Canceled { flags },
                }
            }
        };
        let now = wall_clock(turn::now());
        record(conn, self.request, |record| trace.end_try(&end, record, &*conn.worker, now));
        self.request.trace = Some(trace);
    }
}

/// Ends the trace of a request.
pub(super) struct Traced<'w> {
    pub(super) trace: Option<Box<Trace>>,
    pub(super) worker: &'w Worker,
}

impl Observer for Traced<'_> {
    #[inline]
    fn ended(&mut self, end: &Record<'_>) {
        if let Some(trace) = self.trace.take() {
            trace.end(end, self.worker, wall_clock(Instant::from_std(end.now)));
        }
    }
}
