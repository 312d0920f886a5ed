//! Istio's metrics: the filters that count, and what tells them the service and the workload behind a cluster and an endpoint.
//! Stock Envoy does not have these filters.

use evenkeel_model::telemetry::MetricsChoice;
use evenkeel_model::{Endpoint, Service};
use evenkeel_xds::istio::peer_metadata::Config as PeerMetadata;
use evenkeel_xds::istio::peer_metadata::config::discovery_method::MethodSpecifier as Discovery;
use evenkeel_xds::istio::peer_metadata::config::propagation_method::MethodSpecifier as Propagation;
use evenkeel_xds::istio::peer_metadata::config::{DiscoveryMethod, IstioHeaders, PropagationMethod};
use evenkeel_xds::istio::stats::{Duration, MetricConfig, PluginConfig};

use crate::context::Context;
use crate::pb::config::listener::Filter;
use crate::pb::core::Metadata;
use crate::pb::grpc_stats::FilterConfig as GrpcStats;
use crate::pb::grpc_stats::filter_config::PerMethodStatSpecifier;
use crate::pb::hcm::{HttpFilter, http_filter};
use crate::proto::{self, any};
use crate::traffic::Direction;

/// Istio's name of the filters.
const NAME: &str = "istio.stats";

/// The filter that counts requests.
pub fn http_filter(context: Context<'_>, side: Direction) -> Option<HttpFilter> {
    let config = config(&context.metrics()?, side != Direction::Outbound);
    Some(HttpFilter {
        name: NAME.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&config))),
        ..Default::default()
    })
}

/// The filter by which proxies tell each other which workload they are for, as Istio configures it. Services outside the mesh get no
/// such headers.
pub fn peer_metadata(context: Context<'_>, side: Direction) -> Option<HttpFilter> {
    if !context.client_kind().is_evenkeel() {
        return None;
    }
    let headers = || IstioHeaders { skip_external_clusters: true };
    let by_headers = || DiscoveryMethod { method_specifier: Some(Discovery::IstioHeaders(headers())) };
    let sent = || PropagationMethod { method_specifier: Some(Propagation::IstioHeaders(headers())) };
    let mut config = PeerMetadata::default();
    if side == Direction::Inbound {
        config.downstream_discovery = vec![by_headers()];
        config.downstream_propagation = vec![sent()];
    } else {
        config.upstream_discovery = vec![by_headers()];
        config.upstream_propagation = vec![sent()];
    }
    Some(HttpFilter {
        name: "envoy.filters.http.peer_metadata".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&config))),
        ..Default::default()
    })
}

/// The filter that counts the messages of gRPC calls, for the metrics of requests.
pub fn grpc_stats(context: Context<'_>) -> Option<HttpFilter> {
    context.metrics()?;
    let methods = PerMethodStatSpecifier::StatsForAllMethods(proto::bool_value(false));
    let config = GrpcStats { emit_filter_state: true, per_method_stat_specifier: Some(methods), ..Default::default() };
    Some(HttpFilter {
        name: "envoy.filters.http.grpc_stats".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&config))),
        ..Default::default()
    })
}

/// The filter that counts connections.
fn network_filter(context: Context<'_>) -> Option<Filter> {
    let config = config(&context.metrics()?, false);
    Some(proto::network_filter(NAME, any(&config)))
}

/// Has the filter that counts connections before the TCP proxy, which is the last filter.
pub fn counting(context: Context<'_>, mut filters: Vec<Filter>) -> Vec<Filter> {
    if let Some(last) = filters.pop() {
        filters.extend(network_filter(context));
        filters.push(last);
    }
    filters
}

/// `from_anywhere`: clients may be outside the mesh, so what they call in `Host` is no service.
fn config(choice: &MetricsChoice, from_anywhere: bool) -> PluginConfig {
    let metrics = choice.changes.iter().map(|(name, change)| MetricConfig {
        name: (*name).to_owned(),
        drop: change.disabled,
        tags_to_remove: change.without.iter().map(ToString::to_string).collect(),
        dimensions: change.values.iter().map(|(label, text)| (label.to_string(), text.to_string())).collect(),
        ..Default::default()
    });
    let interval = choice.interval.map(proto::duration);
    PluginConfig {
        disable_host_header_fallback: from_anywhere,
        tcp_reporting_duration: interval.map(|value| Duration { seconds: value.seconds, nanos: value.nanos }),
        metrics: metrics.collect(),
        ..Default::default()
    }
}

/// Tells proxies that count the service behind a cluster.
pub fn note_service(context: Context<'_>, service: &Service, metadata: &mut Option<Metadata>) {
    if !context.client_kind().is_evenkeel() {
        return;
    }
    let kubernetes = service.host.as_str().split_once(".svc.").and_then(|(name, _)| name.split_once('.'));
    let name = kubernetes.map_or(service.host.as_str(), |(name, _)| name);
    let facts = [("host", service.host.as_str()), ("name", name), ("namespace", &service.namespace)];
    let all = metadata.get_or_insert_default().filter_metadata.entry("istio".to_owned()).or_default();
    all.fields.insert("services".to_owned(), proto::list_of_one(&facts));
    if service.external {
        all.fields.insert("external".to_owned(), proto::flag_value(true));
    }
}

/// Tells proxies that count the workload behind an endpoint: Istio's five parts, and its labels `app` and `version`.
pub fn note_workload(context: Context<'_>, endpoint: &Endpoint, metadata: &mut Option<Metadata>) {
    if !context.client_kind().is_evenkeel() {
        return;
    }
    let first = |names: &[&str], default: &str| {
        let label = names.iter().find_map(|name| endpoint.labels.get(*name)).map(|value| value.to_string());
        label.filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
    };
    let service = first(&crate::tracing::SERVICE_LABELS, &endpoint.workload_name);
    let unknown = if endpoint.workload_name.is_empty() { "" } else { "latest" };
    let revision = first(&crate::tracing::REVISION_LABELS, unknown);
    let cluster = context.cluster_name(endpoint);
    let (workload, namespace) = (&endpoint.workload_name, &endpoint.namespace);
    let (app, version) = (first(&["app"], ""), first(&["version"], ""));
    let text = format!("{workload};{namespace};{service};{revision};{cluster};{app};{version}");
    let all = metadata.get_or_insert_default().filter_metadata.entry("istio".to_owned()).or_default();
    all.fields.insert("workload".to_owned(), proto::text_value(&text));
}
