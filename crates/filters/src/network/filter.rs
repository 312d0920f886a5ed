//! The trait of a network filter, and what a filter is created with.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::Registry;

use super::contract::{ConnectionContext, ConnectionFacts, Data, Decision, End};
use crate::format::Record;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

/// The hooks a filter has; connections pay nothing for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hooks(u8);

impl Hooks {
    #[allow(missing_docs)]
    pub const NEW_CONNECTION: Self = Self(1);
    #[allow(missing_docs)]
    pub const DATA: Self = Self(1 << 1);
    #[allow(missing_docs)]
    pub const UPSTREAM_DATA: Self = Self(1 << 2);
    #[allow(missing_docs)]
    pub const COMPLETE: Self = Self(1 << 3);
    #[allow(missing_docs)]
    pub const REPORT: Self = Self(1 << 4);
    /// All hooks but reports.
    pub const ALL: Self = Self((1 << 4) - 1);

    /// The union of both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether any of `other` is among these.
    #[inline]
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What has happened to a connection since the last report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// It was opened.
    pub opened: bool,
    /// It has ended.
    pub closed: bool,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
}

/// What a filter is created with.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'s> {
    /// The registry of its statistics.
    pub registry: &'s Arc<Registry>,
}

/// A network filter. It lists its hooks; the others are never called.
///
/// Hooks for data from the client are called in the order of the filters, hooks for data to the client in reverse.
pub(crate) trait Filter: Sized {
    /// Its compiled configuration.
    type Config;
    /// Its state for one connection.
    type State: Default;
    /// The filter decides about a new connection immediately and keeps no state of it. If all filters of a connection
    /// are like that, and inspect none of its bytes, it proceeds as if there were none.
    const IMMEDIATE: bool = false;

    /// Who decides whether a call passes the filter. Without a default: who adds a filter says so, and `prove` has to judge it.
    fn verdict(config: &Self::Config) -> FilterVerdict<'_>;

    /// Creates one worker's filter.
    fn new(config: Arc<Self::Config>, setup: &Setup<'_>) -> Self;

    /// Its hooks, given its configuration.
    fn hooks(&self) -> Hooks;

    /// Whether its hooks after `new_connection` have to be called for this connection, whose TLS handshake is complete.
    fn follows(&self, _connection: &ConnectionView) -> bool {
        true
    }

    /// The connection is established: after the TLS handshake, before any of its bytes are inspected and before the
    /// next filter is called. To wait, return [`Decision::Pause`]; the hook is called again afterwards.
    fn new_connection(&self, _state: &mut Self::State, _context: &mut ConnectionContext<'_>) -> Decision {
        Decision::Continue
    }

    /// The client has sent data, or ended its direction; what is left in `data` is passed on. After [`Decision::Pause`]
    /// the hook is called again with the same data; until then nothing more is read.
    fn data(&self, _state: &mut Self::State, _data: &mut Data<'_>, _context: &mut ConnectionContext<'_>) -> Decision {
        Decision::Continue
    }

    /// The same for data to the client, from the upstream or from the proxy itself.
    fn upstream_data(
        &self,
        _state: &mut Self::State,
        _data: &mut Data<'_>,
        _context: &mut ConnectionContext<'_>,
    ) -> Decision {
        Decision::Continue
    }

    /// What an explanation shows of the filter for this connection: what it decides, or by what. A verdict that denies is the end
    /// of the connection. Results for later filters go to `metadata`, as those of `new_connection` and `data` do.
    fn explain(
        _config: &Self::Config,
        _connection: &ConnectionView,
        _metadata: &mut DynamicMetadata,
    ) -> Option<Remark> {
        None
    }

    /// How often [`Filter::report`] is called while a connection lives.
    fn report_interval(&self) -> Option<Duration> {
        None
    }

    /// What a TCP proxy has done for a connection since the last report. The first comes when it is connected to a server, or could
    /// not be, and the last when the connection has ended.
    fn report(&self, _record: &Record<'_>, _since: &Since) {}

    /// A connection for which the filter was called has ended, for whatever reason. If a TCP proxy logs it, the log entry follows.
    fn complete(&self, _state: &mut Self::State, _end: &End, _facts: &mut ConnectionFacts) {}
}
