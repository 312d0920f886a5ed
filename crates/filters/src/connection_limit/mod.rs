//! `envoy.filters.network.connection_limit`: a connection too many is closed.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::{NetworkFilter, stats};
