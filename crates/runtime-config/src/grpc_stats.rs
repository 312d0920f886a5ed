//! `envoy.filters.http.grpc_stats`, compiled: calls of gRPC are counted by how they end, and their messages.

use std::collections::HashSet;

use rustc_hash::FxBuildHasher;

/// The filter's configuration.
#[derive(Debug)]
pub struct GrpcStats {
    /// Which calls are counted under their method's name.
    pub methods: Methods,
    /// The time from the end of a request to the end of its answer is recorded (`enable_upstream_stats`).
    pub upstream_time: bool,
    /// Access logs may have the messages of a call (`emit_filter_state`).
    pub emit_filter_state: bool,
}

/// The calls that are counted under `grpc.SERVICE.METHOD.`; the others are counted under `grpc.`.
#[derive(Debug)]
pub enum Methods {
    /// All of them (`stats_for_all_methods`).
    All {
        /// `a.b.Service` is written `a_b_Service` (`replace_dots_in_grpc_service_name`).
        replace_dots: bool,
    },
    /// These, as `SERVICE/METHOD` (`individual_method_stats_allowlist`).
    Listed(HashSet<Box<[u8]>, FxBuildHasher>),
}
