//! `istio.stats`: Istio's metrics of requests and connections.
//!
//! A worker finds the series of a request by its [`Facts`], whose values it compares as bytes; only a new series makes labels.

mod facts;
mod filter;
mod series;
#[cfg(test)]
mod tests;

pub use filter::{HttpFilter, NetworkFilter};
