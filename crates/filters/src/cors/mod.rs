//! `envoy.filters.http.cors`: which scripts of other origins may read answers, and preflights.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
