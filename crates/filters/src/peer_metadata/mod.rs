//! Which workload sends a request, and which answers it: Istio's `envoy.filters.http.peer_metadata` in headers of HTTP, and its
//! `istio.metadata_exchange` before the bytes of TCP.

mod exchange;
mod filter;
mod known;
mod network;
#[cfg(test)]
mod tests;

pub use exchange::{Exchange, PeerSlot};
pub use filter::HttpFilter;
#[cfg(test)]
pub(crate) use known::PeerObject;
pub(crate) use known::namespace_of;
pub use known::{DOWNSTREAM, UPSTREAM};
pub use network::NetworkFilter;
