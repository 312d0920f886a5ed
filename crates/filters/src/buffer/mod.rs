//! `envoy.filters.http.buffer`: a request is forwarded only when its body was received completely, with its length.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
