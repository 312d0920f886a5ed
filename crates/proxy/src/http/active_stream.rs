//! What one request has: each phase adds its methods in a file of its own, [`super::phases`] calls them in order.

use evenkeel_upstream::conn::Deadline;

use super::context::ConnectionContext;
use super::downstream::Downstream;
use super::request::Request;

/// One request from its head to its log line, and the two things it has: where it came from, and the side to answer on.
pub(super) struct ActiveStream<'l> {
    pub(super) conn: &'l ConnectionContext,
    pub(super) request: &'l mut Request,
    pub(super) down: Downstream<'l>,
    pub(super) deadline: &'l mut Deadline,
    /// The response's end was handed over.
    pub(super) response_ended: bool,
    /// It was counted as begun, and not yet as ended.
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
