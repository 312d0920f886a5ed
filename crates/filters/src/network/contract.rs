//! What a network filter sees of a connection, and what it may say.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::view::ConnectionView;

use crate::http::{Pause, Services, Woken};

/// A connection as filters see it.
pub struct ConnectionContext<'c> {
    /// Its ends, and what TLS says of its peer.
    pub connection: &'c ConnectionView,
    /// What filters leave for others.
    pub facts: &'c mut ConnectionFacts,
    /// What the worker does for filters: calls to other clusters, among others.
    pub services: &'c dyn Services,
    /// The time.
    pub now: Instant,
    /// The filter asked for a pause, and this is how it ended.
    pub woken: Option<Woken>,
    /// The filter's name in the configuration.
    pub(super) filter: &'c str,
}

impl<'c> ConnectionContext<'c> {
    /// The filter's name in the configuration.
    pub fn filter(&self) -> &'c str {
        self.filter
    }
}

/// What is around a connection whenever its filters are asked.
#[derive(Clone, Copy)]
pub struct Surroundings<'c> {
    /// Its ends, and what TLS says of its peer.
    pub connection: &'c ConnectionView,
    /// What the worker does for filters.
    pub services: &'c dyn Services,
    /// The time.
    pub now: Instant,
}

/// What the network filters of one connection leave for others.
#[derive(Debug, Default)]
pub struct ConnectionFacts {
    /// By the filters' names; for matchers, logs and the HTTP filters of the connection.
    pub metadata: DynamicMetadata,
}

/// Bytes on their way through the filters.
#[derive(Debug)]
pub struct Data<'d> {
    /// What goes on.
    pub bytes: &'d mut Vec<u8>,
    /// Nothing follows in this direction.
    pub ends: bool,
}

/// What becomes of a connection, or of what it carries.
#[derive(Debug)]
pub enum Decision {
    /// The next filter, or what stands behind the last one, has it.
    Continue,
    /// The filter is to be asked again later. Nothing more is read in this direction meanwhile; the other one goes on.
    Pause(Pause),
    /// The connection ends. What was not sent is dropped.
    Close(Close),
}

/// How and why a filter ends a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Close {
    /// `%CONNECTION_TERMINATION_DETAILS%`; may be empty.
    pub details: Cow<'static, str>,
    /// Short response flag (`UAEX`), where the filter has one.
    pub flag: Option<&'static str>,
    /// Not before this has passed; nothing is read meanwhile.
    pub after: Duration,
    /// The client sees a reset.
    pub reset: bool,
}

impl Close {
    /// At once and in order.
    pub fn new(details: impl Into<Cow<'static, str>>) -> Self {
        Self { details: details.into(), ..Self::default() }
    }

    /// Not before this has passed.
    #[must_use]
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }
}

impl Decision {
    /// Where a filter cannot have been asked: nothing passes then.
    pub(super) fn broken() -> Self {
        Self::Close(Close::new("filter_state_mismatch"))
    }
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Who ended it.
    pub by: ClosedBy,
    /// Bytes that came from the client, before the filters; as far as they looked at them.
    pub received: u64,
    /// Bytes that went to the client, behind the filters; as far as they looked at them.
    pub sent: u64,
}

/// Who ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// The client: it ended its direction, or reset the connection.
    Client,
    /// A network filter.
    Filter,
    /// What stands behind the filters: the upstream, a limit, or the proxy's end.
    Proxy,
}
