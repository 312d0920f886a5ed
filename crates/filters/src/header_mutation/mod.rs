//! `envoy.filters.http.header_mutation`: edits headers and trailers of requests and responses.

mod edit;
mod filter;
#[cfg(test)]
mod tests;

pub use edit::add_header;
pub(crate) use edit::value_for;
pub use filter::HttpFilter;
