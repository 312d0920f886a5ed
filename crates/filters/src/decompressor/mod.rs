//! `envoy.filters.http.decompressor`: decompresses the bodies of requests and responses.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
