//! `envoy.filters.http.grpc_web`, compiled: it has no configuration.

/// `GrpcWeb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcWeb;
