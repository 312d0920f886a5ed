//! `envoy.filters.http.grpc_stats`: counts gRPC calls by status, and their messages.

mod call;
mod counts;
mod filter;
#[cfg(test)]
mod tests;

pub(crate) use call::method_of;
pub(crate) use counts::{Stats, WebCalls, count_end};
pub use filter::HttpFilter;
