//! `envoy.filters.http.stateful_session`: requests of one session go to the host that served the first one.

mod address;
mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
