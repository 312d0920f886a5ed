//! What a network filter sees of a connection, and what it may return.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_runtime_config::dynamic_forward_proxy::DynamicHost;
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::view::ConnectionView;

use crate::http::{Pause, Services, Woken};
use crate::peer_metadata::PeerSlot;

/// A connection as filters see it.
pub struct ConnectionContext<'c> {
    /// Its addresses and TLS peer.
    pub connection: &'c ConnectionView,
    /// What filters leave for others.
    pub facts: &'c mut ConnectionFacts,
    /// What the worker offers to filters, such as calls to other clusters.
    pub services: &'c dyn Services,
    /// The current time.
    pub now: Instant,
    /// How the filter's pause ended, if it asked for one.
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

/// The context that all filters of a connection are called with.
#[derive(Clone, Copy)]
pub struct Surroundings<'c> {
    /// Its addresses and TLS peer.
    pub connection: &'c ConnectionView,
    /// What the worker offers to filters.
    pub services: &'c dyn Services,
    /// The current time.
    pub now: Instant,
}

/// What the network filters of one connection leave for others.
#[derive(Debug, Default)]
pub struct ConnectionFacts {
    /// Dynamic metadata by filter name; for matchers, logs and the connection's HTTP filters.
    pub metadata: DynamicMetadata,
    /// The host that a filter has resolved; the TCP proxy's cluster connects to it.
    pub dynamic_host: Option<Arc<DynamicHost>>,
    /// The workload of the client, once it is known.
    pub peer: Option<Rc<PeerSlot>>,
    /// Bytes that a filter sends to the client by itself, before those of the upstream.
    pub to_client: Vec<u8>,
    /// The number of filters that have seen all they want of the data in both directions.
    pub finished: usize,
}

/// Bytes passing through the filters.
#[derive(Debug)]
pub struct Data<'d> {
    /// The bytes to pass on.
    pub bytes: &'d mut Vec<u8>,
    /// Nothing follows in this direction.
    pub ends: bool,
}

/// What to do with a connection or its data.
#[derive(Debug)]
pub enum Decision {
    /// Continue with the next filter, or with the terminal one.
    Continue,
    /// Call the filter again later. Until then nothing more is read in this direction; the other one continues.
    Pause(Pause),
    /// Close the connection. Data not sent yet is dropped.
    Close(Close),
}

/// How and why a filter ends a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Close {
    /// `%CONNECTION_TERMINATION_DETAILS%`; may be empty.
    pub details: Cow<'static, str>,
    /// Short response flag (`UAEX`), if the filter has one.
    pub flag: Option<&'static str>,
    /// Close only after this time; nothing is read meanwhile.
    pub after: Duration,
    /// Close with a reset.
    pub reset: bool,
}

impl Close {
    /// Closes immediately and in order.
    pub fn new(details: impl Into<Cow<'static, str>>) -> Self {
        Self { details: details.into(), ..Self::default() }
    }

    /// Closes only after this time.
    #[must_use]
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }
}

impl Decision {
    /// The decision when a filter's state does not match the filter, which cannot happen: the connection must not pass.
    pub(super) fn broken() -> Self {
        Self::Close(Close::new("filter_state_mismatch"))
    }
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Which party ended it.
    pub by: ClosedBy,
    /// Bytes received from the client, before the filters; counted only while filters inspect them.
    pub received: u64,
    /// Bytes sent to the client, after the filters; counted only while filters inspect them.
    pub sent: u64,
}

/// The party that ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// The client: it ended its direction or reset the connection.
    Client,
    /// A network filter.
    Filter,
    /// The proxy beyond the filters: the upstream, a limit, or the proxy's shutdown.
    Proxy,
}
