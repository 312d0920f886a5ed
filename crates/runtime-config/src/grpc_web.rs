//! `envoy.filters.http.grpc_web`, compiled: it has no configuration.

use crate::filter_needs::FilterNeeds;

/// `GrpcWeb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcWeb;

impl FilterNeeds for GrpcWeb {}
