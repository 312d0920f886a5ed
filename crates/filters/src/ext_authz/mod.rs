//! `envoy.filters.http.ext_authz` and `envoy.filters.network.ext_authz`: another service decides about requests and
//! connections.
//!
//! [`check`] writes the question, [`service`] calls the service, [`answer`] parses its response, and [`changes`] applies the
//! decision to the request. Without an answer requests are denied, unless `failure_mode_allow` is set.

mod answer;
mod changes;
mod check;
mod counts;
mod filter;
mod logged;
mod network;
mod service;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
pub use network::NetworkFilter;
