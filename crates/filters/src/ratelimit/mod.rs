//! `envoy.filters.http.ratelimit`: asks a rate limit service whether a request is within its limits.

mod answer;
mod counts;
mod filter;
mod service;

pub use filter::HttpFilter;
