//! Istio's `istio.alpn`: requests say which protocols TLS to their cluster offers, so that the other proxy selects a filter chain for HTTP.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;

/// The object with the protocols to offer; Envoy's name of it.
pub const APPLICATION_PROTOCOLS: &str = "envoy.network.application_protocols";
