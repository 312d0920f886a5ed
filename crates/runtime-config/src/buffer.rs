//! `envoy.filters.http.buffer`, compiled: requests are forwarded only when received completely.

/// Configuration of the filter, or of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Longest body, in bytes (`max_request_bytes`); 413 beyond.
    pub max_request_bytes: u32,
}

/// `BufferPerRoute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferPerRoute {
    /// Requests are not buffered.
    Disabled,
    /// Replaces the filter's configuration.
    Buffer(Buffer),
}
