//! What is known of a request or connection when it is logged.

use std::time::{Duration, Instant, SystemTime};

use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_runtime_config::matching::HeaderMatcher;

/// Looks up header values; implemented by the proxy's head representation.
pub trait HeadLookup {
    /// First value of a lower-case name; `:method`, `:path`, `:authority`, `:scheme`, `:status` are pseudo headers.
    fn lookup(&self, name: &str) -> Option<&[u8]>;

    /// Whether a header of this name is as wanted.
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

/// A request or connection as a formatter reads it: what is known of it, of its connection, and its heads.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// What is known of it.
    pub stream: &'a StreamInfo,
    /// What is known of the client's connection.
    pub connection: &'a ConnectionInfo,
    /// When it began, by the wall clock.
    pub start: SystemTime,
    /// The time.
    pub now: Instant,
    /// Request head as the upstream got it, with `x-envoy-original-path` when the path was rewritten.
    pub request: &'a dyn HeadLookup,
    /// Response head.
    pub response: &'a dyn HeadLookup,
    /// Response trailers.
    pub trailers: &'a dyn HeadLookup,
    /// The response's status, sent or about to be; 0 when there is none.
    pub status: u16,
    /// The body of the proxy's own answer, while `local_reply_config` looks at it.
    pub local_reply_body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Of a connection, which has no heads.
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

    /// From its begin to its end, or to now.
    pub(super) fn duration(&self) -> Duration {
        self.now.saturating_duration_since(self.stream.times.start())
    }
}
