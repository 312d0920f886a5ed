//! `envoy.filters.http.grpc_stats`: calls of gRPC by how they end, and their messages.

mod call;
mod counts;
mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
