//! `envoy.filters.http.buffer`, compiled: requests go on when they are here as a whole.

/// The filter's configuration, or that of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Longest body, in bytes (`max_request_bytes`); 413 beyond.
    pub max_request_bytes: u32,
}

/// `BufferPerRoute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferPerRoute {
    /// Requests go on as they come.
    Disabled,
    /// In place of the filter's configuration.
    Buffer(Buffer),
}
