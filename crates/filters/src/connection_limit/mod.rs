//! `envoy.filters.network.connection_limit`: closes connections over a limit.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::{NetworkFilter, stats};
