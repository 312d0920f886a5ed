//! What a request notes while it waits or fails, for its record. A request that is not part of the sample, waits for nothing and does not
//! fail has no notes.

use std::sync::Arc;

use evenkeel_filters::explain::query::{FailedTry, QueriedHead};
use tokio::time::Instant;

/// Maximum number of waits for filters in the notes of one request.
const MAX_WAITS: usize = 16;
/// Maximum number of failed tries in the notes of one request.
const MAX_TRIES: usize = 16;

/// The notes of one request.
#[derive(Default)]
pub(crate) struct Notes {
    /// Its head as it was received, if it is part of the sample.
    pub(crate) received: Option<Box<QueriedHead>>,
    /// Its waits for filters, in order.
    pub(super) filters: Vec<FilterWait>,
    /// The tries that failed, or whose response is not used.
    pub(super) tries: Vec<FailedTry>,
    /// When the latest retry began.
    pub(super) retry: Option<Instant>,
    /// The latest wait for a connection.
    pub(super) connection: Option<Span>,
    /// When the client first took no more bytes of the response.
    pub(super) blocked: Option<Instant>,
}

/// A wait for a filter.
pub(super) struct FilterWait {
    pub(super) filter: Option<Arc<str>>,
    pub(super) span: Span,
}

/// A span of time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

impl Notes {
    /// The request has waited for this filter.
    pub(crate) fn waited_for_filter(&mut self, filter: Option<Arc<str>>, span: Span) {
        if self.filters.len() < MAX_WAITS {
            self.filters.push(FilterWait { filter, span });
        }
    }

    /// The request has waited for a connection, and has got one or failed.
    pub(crate) fn waited_for_connection(&mut self, span: Span) {
        self.connection = Some(span);
    }

    /// A try has failed, or its response is not used.
    pub(crate) fn try_ended(&mut self, ended: FailedTry) {
        if self.tries.len() < MAX_TRIES {
            self.tries.push(ended);
        }
    }

    /// A retry begins after its pause.
    pub(crate) fn retry_begins(&mut self, now: Instant) {
        self.retry = Some(now);
        self.connection = None;
    }

    /// The client takes no more bytes of the response.
    pub(crate) fn client_blocks(&mut self, now: Instant) {
        self.blocked.get_or_insert(now);
    }
}
