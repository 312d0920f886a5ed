//! `envoy.filters.http.header_mutation`: edits headers and trailers of requests and responses, and queries.

mod edit;
mod filter;
mod query;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
