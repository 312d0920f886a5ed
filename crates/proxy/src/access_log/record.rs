//! The data about a request or connection that is available when it is logged.

use std::time::{Duration, Instant, SystemTime};

use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_runtime_config::matching::HeaderMatcher;

/// Looks up header values; implemented by the proxy's head representation.
pub trait HeadLookup {
    /// First value of a lower-case name; `:method`, `:path`, `:authority`, `:scheme`, `:status` are pseudo headers.
    fn lookup(&self, name: &str) -> Option<&[u8]>;

    /// Whether the matcher matches the header of its name.
    fn matches(&self, header: &HeaderMatcher) -> bool {
        header.matches_values(self.lookup(&header.name))
    }
}

/// No headers: TCP connections, requests that got no response.
#[derive(Debug, Clone, Copy)]
pub struct NoHead;

impl HeadLookup for NoHead {
    fn lookup(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

/// A request or connection as a formatter reads it: its properties, those of its connection, and its heads.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// Its properties.
    pub stream: &'a StreamInfo,
    /// The properties of the client's connection.
    pub connection: &'a ConnectionInfo,
    /// When it began, by the wall clock.
    pub start: SystemTime,
    /// The time at which it is logged.
    pub now: Instant,
    /// Request head as the upstream got it, with `x-envoy-original-path` when the path was rewritten.
    pub request: &'a dyn HeadLookup,
    /// Response head.
    pub response: &'a dyn HeadLookup,
    /// Response trailers.
    pub trailers: &'a dyn HeadLookup,
    /// The response's status, sent or about to be; 0 when there is none.
    pub status: u16,
    /// The body of a reply of the proxy's own, while `local_reply_config` rewrites it.
    pub local_reply_body: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record of a connection, which has no heads.
    pub fn of_connection(stream: &'a StreamInfo, connection: &'a ConnectionInfo) -> Self {
        let (now, wall) = (tokio::time::Instant::now().into_std(), SystemTime::now());
        let age = now.saturating_duration_since(stream.times.start());
        let start = wall.checked_sub(age).unwrap_or(wall);
        Self {
            stream,
            connection,
            start,
            now,
            request: &NoHead,
            response: &NoHead,
            trailers: &NoHead,
            status: 0,
            local_reply_body: b"",
        }
    }

    /// The time from its start to its end, or until now.
    pub(super) fn duration(&self) -> Duration {
        self.now.saturating_duration_since(self.stream.times.start())
    }
}
