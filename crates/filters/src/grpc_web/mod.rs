//! gRPC-Web (`envoy.filters.http.grpc_web`): browsers call gRPC services with it over any version of HTTP. Requests become
//! gRPC's, and the end of a response, trailers that scripts cannot read, becomes the last frame of its body.

mod filter;
#[cfg(test)]
mod tests;
mod text;

pub use filter::HttpFilter;
