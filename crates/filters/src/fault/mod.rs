//! `envoy.filters.http.fault`: requests are delayed or answered here, and answers slowed down, so that one can see what that does.

mod counts;
mod filter;
mod limiter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
