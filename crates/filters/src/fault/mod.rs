//! `envoy.filters.http.fault`: fault injection. Delays or aborts requests and limits the rate of responses, to test how callers cope.

mod counts;
mod filter;
mod limiter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
