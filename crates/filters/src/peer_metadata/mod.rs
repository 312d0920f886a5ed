//! Istio's `envoy.filters.http.peer_metadata`: which workload sends a request, and which answers it.

mod filter;
mod known;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
#[cfg(test)]
pub(crate) use known::PeerObject;
pub(crate) use known::{DOWNSTREAM, UPSTREAM, namespace_of};
