//! `envoy.filters.http.cors`: which origins' scripts may read responses, and preflight requests.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
