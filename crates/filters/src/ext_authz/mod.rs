//! `envoy.filters.http.ext_authz` and `envoy.filters.network.ext_authz`: another service decides about requests and
//! connections.
//!
//! [`check`] writes what the service is asked, [`service`] calls it, [`answer`] reads what it says, and [`changes`] does
//! to the request what it wants. Without an answer nothing passes, unless `failure_mode_allow` says so.

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
