//! `envoy.filters.http.header_mutation`: heads and trailers are edited, of requests and answers.

mod edit;
mod filter;
#[cfg(test)]
mod tests;

pub use edit::add_header;
pub use filter::HttpFilter;
