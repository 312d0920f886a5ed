//! `envoy.filters.http.buffer`, compiled: requests are forwarded only when received completely.

use crate::filter_needs::FilterNeeds;

/// Configuration of the filter, or of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Maximum size of a body, in bytes (`max_request_bytes`); 413 beyond.
    pub max_request_bytes: u32,
}

impl FilterNeeds for Buffer {
    fn may_stand_upstream(&self) -> bool {
        true
    }
}

/// `BufferPerRoute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferPerRoute {
    /// Requests are not buffered.
    Disabled,
    /// Replaces the filter's configuration.
    Buffer(Buffer),
}
