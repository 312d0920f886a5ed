//! The state of one request in flight. Each phase adds its methods in its own file; [`super::phases`] calls them in order.

use evenkeel_upstream::conn::Deadline;

use super::context::ConnectionContext;
use super::downstream::Downstream;
use super::request::Request;

/// One request from its head to its log line, with the connection it came on and the downstream side to respond to.
pub(super) struct ActiveStream<'l> {
    pub(super) conn: &'l ConnectionContext,
    pub(super) request: &'l mut Request,
    pub(super) down: Downstream<'l>,
    pub(super) deadline: &'l mut Deadline,
    /// The end of the response was handed over for sending.
    pub(super) response_ended: bool,
    /// Counted in `downstream_rq_active`, which its end has to undo.
    pub(super) under_way: bool,
}

impl<'l> ActiveStream<'l> {
    /// A request whose head was read.
    pub(super) fn new(
        conn: &'l ConnectionContext,
        request: &'l mut Request,
        down: Downstream<'l>,
        deadline: &'l mut Deadline,
    ) -> Self {
        Self { conn, request, down, deadline, response_ended: false, under_way: false }
    }
}
