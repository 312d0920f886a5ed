//! `envoy.filters.http.grpc_stats`: counts gRPC calls by status, and their messages.

mod call;
mod counts;
mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
