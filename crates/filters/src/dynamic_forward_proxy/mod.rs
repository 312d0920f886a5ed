//! `envoy.filters.http.dynamic_forward_proxy` and `envoy.filters.network.sni_dynamic_forward_proxy`: resolve the host that
//! a request or a ClientHello names, and leave the address for the cluster (`DynamicHost`).

mod http;
mod names;
mod network;
#[cfg(test)]
mod tests;

pub use http::HttpFilter;
pub use network::NetworkFilter;
