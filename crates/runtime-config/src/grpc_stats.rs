//! `envoy.filters.http.grpc_stats`, compiled: counts gRPC calls by status, and their messages.

use std::collections::HashSet;

use rustc_hash::FxBuildHasher;

use crate::filter_needs::FilterNeeds;

/// The filter's configuration.
#[derive(Debug)]
pub struct GrpcStats {
    /// Calls that are counted under their method's name.
    pub methods: Methods,
    /// Records the time from the end of a request to the end of its response (`enable_upstream_stats`).
    pub upstream_time: bool,
    /// Makes a call's message counts available to access logs (`emit_filter_state`).
    pub emit_filter_state: bool,
}

impl FilterNeeds for GrpcStats {
    fn why_once(&self) -> Option<&'static str> {
        Some("two would count every call twice")
    }
}

/// Calls that are counted under `grpc.SERVICE.METHOD.`; others are counted under `grpc.`.
#[derive(Debug)]
pub enum Methods {
    /// All (`stats_for_all_methods`).
    All {
        /// `a.b.Service` is written `a_b_Service` (`replace_dots_in_grpc_service_name`).
        replace_dots: bool,
    },
    /// These, as `SERVICE/METHOD` (`individual_method_stats_allowlist`).
    Listed(HashSet<Box<[u8]>, FxBuildHasher>),
}
