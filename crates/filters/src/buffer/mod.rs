//! `envoy.filters.http.buffer`: a request goes on when it is here as a whole, and with its length.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
