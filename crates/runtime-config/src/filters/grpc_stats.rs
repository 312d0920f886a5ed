//! `envoy.filters.http.grpc_stats`, compiled: counts gRPC calls by status, and their messages.

use std::collections::HashSet;

use evenkeel_xds::pb::envoy::config::core::v3::GrpcMethodList;
use evenkeel_xds::pb::envoy::extensions::filters::http::grpc_stats::v3 as filter;
use rustc_hash::FxBuildHasher;

use crate::compile::Cx;
use crate::filter_needs::FilterNeeds;
use crate::support::message::{MessageSupport, extension, part};

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

pub(crate) fn grpc_stats(cx: &mut Cx<'_>, config: &filter::FilterConfig) -> Option<GrpcStats> {
    use filter::filter_config::PerMethodStatSpecifier;
    let methods = match &config.per_method_stat_specifier {
        Some(PerMethodStatSpecifier::StatsForAllMethods(all)) if all.value => {
            Methods::All { replace_dots: config.replace_dots_in_grpc_service_name }
        }
        Some(PerMethodStatSpecifier::IndividualMethodStatsAllowlist(list)) => {
            cx.at("individual_method_stats_allowlist", |cx| listed(cx, list))?
        }
        Some(PerMethodStatSpecifier::StatsForAllMethods(_)) | None => Methods::Listed(Default::default()),
    };
    Some(GrpcStats {
        methods,
        upstream_time: config.enable_upstream_stats,
        emit_filter_state: config.emit_filter_state,
    })
}

fn listed(cx: &mut Cx<'_>, list: &GrpcMethodList) -> Option<Methods> {
    let services = cx.each("services", &list.services, |cx, service| {
        let name = cx.non_empty("name", &service.name)?;
        if service.method_names.is_empty() {
            return cx.fail_at("method_names", "must not be empty");
        }
        Some(service.method_names.iter().map(move |method| format!("{name}/{method}").into_bytes().into()))
    });
    (services.len() == list.services.len()).then(|| Methods::Listed(services.into_iter().flatten().collect()))
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
        &["emit_filter_state", "stats_for_all_methods", "individual_method_stats_allowlist", "enable_upstream_stats",
          "replace_dots_in_grpc_service_name"]),
    part("envoy.config.core.v3.GrpcMethodList", &["services"]),
    part("envoy.config.core.v3.GrpcMethodList.Service", &["name", "method_names"]),
];
