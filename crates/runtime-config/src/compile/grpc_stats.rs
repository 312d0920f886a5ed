//! `FilterConfig` of `envoy.filters.http.grpc_stats`.

use evenkeel_xds::pb::envoy::config::core::v3::GrpcMethodList;
use evenkeel_xds::pb::envoy::extensions::filters::http::grpc_stats::v3 as filter;

use super::Cx;
use crate::grpc_stats::{GrpcStats, Methods};

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
