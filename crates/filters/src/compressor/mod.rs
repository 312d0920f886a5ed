//! `envoy.filters.http.compressor`: compresses the bodies of responses, and of requests.

mod counts;
mod filter;
#[cfg(test)]
mod tests;

pub(crate) use counts::below;
pub use filter::HttpFilter;
