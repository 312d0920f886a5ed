//! `envoy.filters.http.local_ratelimit`: refuses requests over a limit of this proxy's own.

mod filter;

pub use filter::HttpFilter;
