//! `HttpConnectionManager.tracing`, `bootstrap.tracing`, `Route.tracing` and `Route.decorator`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::route::v3 as route;
use evenkeel_xds::pb::envoy::config::trace::v3 as trace;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use evenkeel_xds::pb::envoy::extensions::request_id::uuid::v3::UuidRequestIdConfig;
use evenkeel_xds::pb::envoy::extensions::tracers::opentelemetry::resource_detectors::v3::StaticConfigResourceDetectorConfig;
use evenkeel_xds::pb::envoy::r#type::metadata::v3::{metadata_key::path_segment::Segment, metadata_kind::Kind};
use evenkeel_xds::pb::envoy::r#type::tracing::v3::{CustomTag as WireTag, custom_tag};
use evenkeel_xds::pb::envoy::r#type::v3::{FractionalPercent, Percent};

use super::fraction::fraction;
use super::router::router;
use super::{Cx, type_name};
use crate::fraction::Fraction;
use crate::tracing::{
    CustomTag, Exporter, MetadataOf, OpenTelemetry, Provider, RouteTracing, Sampling, TagValue, Tracing, Zipkin,
};

const ZIPKIN: &str = "envoy.config.trace.v3.ZipkinConfig";
const OPEN_TELEMETRY: &str = "envoy.config.trace.v3.OpenTelemetryConfig";
const DYNATRACE_SAMPLER: &str = "envoy.extensions.tracers.opentelemetry.samplers.v3.DynatraceSamplerConfig";
const ENVIRONMENT_DETECTOR: &str =
    "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.EnvironmentResourceDetectorConfig";
const STATIC_DETECTOR: &str =
    "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.StaticConfigResourceDetectorConfig";
const DYNATRACE_DETECTOR: &str =
    "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.DynatraceResourceDetectorConfig";
const DEFAULT_MAX_PATH_BYTES: usize = 256;
/// As in Envoy.
const DEFAULT_SERVICE_NAME: &str = "unknown_service:envoy";
/// Default time limit of an export: a collector that does not answer must not hold spans for ever.
const DEFAULT_EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of custom tags of a connection manager or a route.
const MAX_CUSTOM_TAGS: usize = 256;

/// `tracing` of a connection manager.
#[allow(deprecated)] // `start_child_span` is still accepted by Envoy.
pub(super) fn tracing(
    cx: &mut Cx<'_>,
    config: &hcm::HttpConnectionManager,
    tracing: &hcm::http_connection_manager::Tracing,
    request_id: UuidRequestIdConfig,
) -> Option<Arc<Tracing>> {
    let provider = match &tracing.provider {
        None => Some(cx.env.tracing.provider.clone()),
        Some(http) => cx.at("provider", |cx| provider(cx, http)).map(Some),
    };
    let sampling = Sampling {
        client: percent(cx, "client_sampling", tracing.client_sampling.as_ref(), 100)?,
        random: percent(cx, "random_sampling", tracing.random_sampling.as_ref(), 10_000)?,
        overall: percent(cx, "overall_sampling", tracing.overall_sampling.as_ref(), 10_000)?,
    };
    let max_path = tracing.max_path_tag_length.as_ref().map(|length| length.value as usize);
    Some(Arc::new(Tracing {
        sampling,
        max_path_bytes: max_path.unwrap_or(DEFAULT_MAX_PATH_BYTES),
        custom_tags: custom_tags(cx, &tracing.custom_tags)?,
        spawn_upstream_span: tracing.spawn_upstream_span.as_ref().is_some_and(|spawn| spawn.value),
        start_child_span: router(cx, &config.http_filters).start_child_span,
        use_request_id: request_id.use_request_id_for_trace_sampling.as_ref().is_none_or(|used| used.value),
        node: cx.env.tracing.node.clone(),
        provider: provider?,
    }))
}

/// `tracing` of the bootstrap: the provider of connection managers without one. `Some(None)`: there is none.
pub(crate) fn default_provider(cx: &mut Cx<'_>, tracing: Option<&trace::Tracing>) -> Option<Option<Arc<Provider>>> {
    match tracing.and_then(|tracing| tracing.http.as_ref()) {
        None => Some(None),
        Some(http) => cx.at("tracing.http", |cx| provider(cx, http)).map(Some),
    }
}

fn provider(cx: &mut Cx<'_>, http: &trace::tracing::Http) -> Option<Arc<Provider>> {
    let Some(trace::tracing::http::ConfigType::TypedConfig(any)) = &http.config_type else {
        return cx.fail_at("typed_config", "is required");
    };
    let provider = cx.at("typed_config", |cx| match type_name(&any.type_url) {
        ZIPKIN => {
            let config = cx.unpack(any)?;
            zipkin(cx, &config).map(Provider::Zipkin)
        }
        OPEN_TELEMETRY => {
            let config = cx.unpack(any)?;
            open_telemetry(cx, &config).map(Provider::OpenTelemetry)
        }
        name => cx.fail(format!("{name} is no tracing provider")),
    })?;
    Some(Arc::new(provider))
}

#[allow(deprecated)] // `split_spans_for_request` is still accepted by Envoy.
fn zipkin(cx: &mut Cx<'_>, config: &trace::ZipkinConfig) -> Option<Zipkin> {
    use trace::zipkin_config::{CollectorEndpointVersion, TraceContextOption};
    let collector = match &config.collector_service {
        Some(service) => cx.at("collector_service", |cx| collector(cx, service)),
        None => zipkin_collector(cx, config),
    };
    if config.collector_endpoint_version != CollectorEndpointVersion::HttpJson as i32 {
        return cx.fail_at("collector_endpoint_version", "only HTTP_JSON is supported");
    }
    let Collector { cluster, host, path, timeout, headers } = collector?;
    Some(Zipkin {
        path,
        host: if host.is_empty() { (*cluster).into() } else { host },
        cluster,
        trace_id_128bit: config.trace_id_128bit,
        shared_span_context: config.shared_span_context.as_ref().is_none_or(|shared| shared.value),
        split_spans_for_request: config.split_spans_for_request,
        uses_w3c: config.trace_context_option == TraceContextOption::UseB3WithW3cPropagation as i32,
        timeout,
        headers,
    })
}

/// The collector of the fields that `collector_service` replaces.
fn zipkin_collector(cx: &mut Cx<'_>, config: &trace::ZipkinConfig) -> Option<Collector> {
    let cluster = cx.non_empty("collector_cluster", &config.collector_cluster);
    let path = cx.non_empty("collector_endpoint", &config.collector_endpoint);
    Some(Collector {
        cluster: cluster?.into(),
        host: config.collector_hostname.as_str().into(),
        path: path?.into(),
        timeout: DEFAULT_EXPORT_TIMEOUT,
        headers: Vec::new(),
    })
}

fn open_telemetry(cx: &mut Cx<'_>, config: &trace::OpenTelemetryConfig) -> Option<OpenTelemetry> {
    if let Some(sampler) = &config.sampler {
        cx.at("sampler", |cx| known_sampler(cx, sampler))?;
    }
    let resource: Vec<_> =
        cx.each("resource_detectors", &config.resource_detectors, detected).into_iter().flatten().collect();
    let service_name = if config.service_name.is_empty() { DEFAULT_SERVICE_NAME } else { &config.service_name };
    let exporter = match (&config.grpc_service, &config.http_service) {
        (Some(service), None) => cx.at("grpc_service", |cx| by_grpc(cx, service, service_name)),
        (None, Some(service)) => cx.at("http_service", |cx| by_http(cx, service, service_name)),
        _ => cx.fail("exactly one of grpc_service, http_service is required"),
    };
    Some(OpenTelemetry { resource, ..exporter? })
}

/// Dynatrace's rates are not fetched: `random_sampling` decides.
fn known_sampler(cx: &mut Cx<'_>, sampler: &core::TypedExtensionConfig) -> Option<()> {
    let any = cx.required("typed_config", sampler.typed_config.as_ref())?;
    let name = type_name(&any.type_url);
    if name == DYNATRACE_SAMPLER {
        Some(())
    } else {
        cx.fail_at("typed_config", format!("{name} is no supported sampler"))
    }
}

/// The attributes that a detector finds.
pub(crate) fn detected(cx: &mut Cx<'_>, detector: &core::TypedExtensionConfig) -> Option<Vec<(Box<str>, Box<str>)>> {
    let any = cx.required("typed_config", detector.typed_config.as_ref())?;
    cx.at("typed_config", |cx| match type_name(&any.type_url) {
        ENVIRONMENT_DETECTOR => {
            let text = (cx.env.variable)("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
            let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
            Some(pairs.map(|(key, value)| (key.trim().into(), value.trim().into())).collect())
        }
        STATIC_DETECTOR => {
            let config: StaticConfigResourceDetectorConfig = cx.unpack(any)?;
            let mut all: Vec<(Box<str>, Box<str>)> =
                config.attributes.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
            all.sort();
            Some(all)
        }
        // It reads files that Dynatrace puts on its hosts.
        DYNATRACE_DETECTOR => Some(Vec::new()),
        name => cx.fail(format!("{name} is no supported detector")),
    })
}

fn by_grpc(cx: &mut Cx<'_>, service: &core::GrpcService, service_name: &str) -> Option<OpenTelemetry> {
    let timeout = cx.limit("timeout", service.timeout.as_ref(), None).unwrap_or(DEFAULT_EXPORT_TIMEOUT);
    let headers = cx.each("initial_metadata", &service.initial_metadata, header);
    let Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(grpc)) = &service.target_specifier else {
        return cx.fail_at("envoy_grpc", "is required");
    };
    cx.at("envoy_grpc", |cx| {
        let cluster = cx.non_empty("cluster_name", &grpc.cluster_name)?;
        if grpc.retry_policy.is_some() {
            return cx.fail_at("retry_policy", "is not supported for spans");
        }
        let exporter = Exporter::Grpc {
            authority: grpc.authority.as_str().into(),
            max_message_bytes: grpc.max_receive_message_length.as_ref().map(|most| most.value as usize),
            skip_envoy_headers: grpc.skip_envoy_headers,
        };
        Some(OpenTelemetry {
            cluster: cluster.into(),
            exporter,
            timeout,
            headers,
            service_name: service_name.into(),
            resource: Vec::new(),
        })
    })
}

fn by_http(cx: &mut Cx<'_>, service: &core::HttpService, service_name: &str) -> Option<OpenTelemetry> {
    let Collector { cluster, host, path, timeout, headers } = collector(cx, service)?;
    Some(OpenTelemetry {
        cluster,
        exporter: Exporter::Http { host, path },
        timeout,
        headers,
        service_name: service_name.into(),
        resource: Vec::new(),
    })
}

/// A collector that is called over HTTP.
pub(crate) struct Collector {
    pub cluster: Arc<str>,
    /// The host in the URI; may be empty.
    pub host: Box<str>,
    pub path: Box<str>,
    pub timeout: Duration,
    pub headers: Vec<(Box<str>, Box<str>)>,
}

pub(crate) fn collector(cx: &mut Cx<'_>, service: &core::HttpService) -> Option<Collector> {
    let uri = cx.required("http_uri", service.http_uri.as_ref())?;
    let (cluster, timeout) = cx.at("http_uri", |cx| {
        let timeout = cx.limit("timeout", uri.timeout.as_ref(), None).unwrap_or(DEFAULT_EXPORT_TIMEOUT);
        match &uri.http_upstream_type {
            Some(core::http_uri::HttpUpstreamType::Cluster(name)) => Some((cx.non_empty("cluster", name)?, timeout)),
            None => cx.fail_at("cluster", "is required"),
        }
    })?;
    let (_, rest) = uri.uri.split_once("://").unwrap_or(("", &uri.uri));
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let headers = cx.each("request_headers_to_add", &service.request_headers_to_add, |cx, option| {
        let value = cx.required("header", option.header.as_ref())?;
        cx.at("header", |cx| header(cx, value))
    });
    Some(Collector {
        cluster: cluster.into(),
        host: host.into(),
        path: if path.is_empty() { "/" } else { path }.into(),
        timeout,
        headers,
    })
}

/// A header of every export. No request is at hand that a format string could refer to; `%%` stands for `%`.
fn header(cx: &mut Cx<'_>, header: &core::HeaderValue) -> Option<(Box<str>, Box<str>)> {
    let name = cx.non_empty("key", &header.key)?;
    if header.value.replace("%%", "").contains('%') {
        return cx.fail_at("value", "format strings are not supported here");
    }
    Some((name.to_ascii_lowercase().into(), header.value.replace("%%", "%").into()))
}

/// A `Percent`, as Envoy rounds it to a fraction with this denominator; absent: all.
fn percent(cx: &mut Cx<'_>, field: &str, percent: Option<&Percent>, denominator: u32) -> Option<Fraction> {
    let Some(percent) = percent else { return Some(Fraction { numerator: denominator, denominator }) };
    if !(0.0..=100.0).contains(&percent.value) {
        return cx.fail_at(field, "must lie between 0 and 100");
    }
    let share = percent.value * f64::from(denominator) / 100.0;
    // The client's share is cut off to a whole percent, the others are rounded to hundredths.
    let share = if denominator == 100 { share.trunc() } else { share.round() };
    Some(Fraction { numerator: share as u32, denominator })
}

/// Sorted by name; of equal names the last holds.
fn custom_tags(cx: &mut Cx<'_>, tags: &[WireTag]) -> Option<Vec<CustomTag>> {
    if tags.len() > MAX_CUSTOM_TAGS {
        return cx.fail_at("custom_tags", format!("there may be {MAX_CUSTOM_TAGS} at most"));
    }
    let compiled = cx.each("custom_tags", tags, |cx, tag| {
        let name = cx.non_empty("tag", &tag.tag)?;
        Some((name, tag_value(cx, tag)?))
    });
    let all = compiled.len() == tags.len();
    let named: BTreeMap<_, _> = compiled.into_iter().collect();
    all.then(|| named.into_iter().map(|(tag, value)| CustomTag { tag: tag.into(), value }).collect())
}

fn tag_value(cx: &mut Cx<'_>, tag: &WireTag) -> Option<TagValue> {
    match &tag.r#type {
        Some(custom_tag::Type::Literal(literal)) => {
            cx.at("literal", |cx| cx.non_empty("value", &literal.value)).map(|value| TagValue::Literal(value.into()))
        }
        Some(custom_tag::Type::Environment(variable)) => {
            let name = cx.at("environment", |cx| cx.non_empty("name", &variable.name))?;
            let value = (cx.env.variable)(name).unwrap_or_else(|| variable.default_value.clone());
            Some(TagValue::Literal(value.into()))
        }
        Some(custom_tag::Type::RequestHeader(header)) => {
            let name = cx.at("request_header", |cx| cx.non_empty("name", &header.name))?;
            let default = header.default_value.as_str().into();
            Some(TagValue::RequestHeader { name: name.to_ascii_lowercase().into(), default })
        }
        Some(custom_tag::Type::Metadata(metadata)) => cx.at("metadata", |cx| metadata_value(cx, metadata)),
        Some(custom_tag::Type::Value(text)) => {
            let text = cx.non_empty("value", text)?;
            cx.format("value", text).map(TagValue::Format)
        }
        None => cx.fail("one of literal, environment, request_header, metadata, value is required"),
    }
}

fn metadata_value(cx: &mut Cx<'_>, metadata: &custom_tag::Metadata) -> Option<TagValue> {
    let of = match metadata.kind.as_ref().and_then(|kind| kind.kind.as_ref()) {
        Some(Kind::Request(_)) => MetadataOf::Request,
        Some(Kind::Route(_)) => MetadataOf::Route,
        _ => return cx.fail_at("kind", "must be request or route"),
    };
    let key = cx.required("metadata_key", metadata.metadata_key.as_ref())?;
    let path = cx.at("metadata_key", |cx| {
        cx.each("path", &key.path, |cx, segment| match &segment.segment {
            Some(Segment::Key(key)) => Some(key.as_str().into()),
            _ => cx.fail_at("key", "is required"),
        })
    });
    if key.path.is_empty() {
        return cx.fail_at("metadata_key.path", "must not be empty");
    }
    Some(TagValue::Metadata {
        of,
        filter: key.key.as_str().into(),
        path,
        default: metadata.default_value.as_str().into(),
    })
}

/// Compiles the tracing settings of a route. `Some(None)`: there are none.
pub(super) fn route_tracing(cx: &mut Cx<'_>, route: &route::Route) -> Option<Option<Box<RouteTracing>>> {
    if route.decorator.is_none() && route.tracing.is_none() {
        return Some(None);
    }
    let mut compiled = RouteTracing::default();
    if let Some(decorator) = &route.decorator {
        compiled.operation = cx.at("decorator", |cx| cx.non_empty("operation", &decorator.operation))?.into();
        compiled.propagates = decorator.propagate.as_ref().is_none_or(|propagate| propagate.value);
    }
    if let Some(tracing) = &route.tracing {
        cx.at("tracing", |cx| {
            compiled.custom_tags = custom_tags(cx, &tracing.custom_tags)?;
            compiled.sampling = Some(Sampling {
                client: share(cx, "client_sampling", tracing.client_sampling.as_ref())?,
                random: share(cx, "random_sampling", tracing.random_sampling.as_ref())?,
                overall: share(cx, "overall_sampling", tracing.overall_sampling.as_ref())?,
            });
            Some(())
        })?;
    }
    Some(Some(Box::new(compiled)))
}

fn share(cx: &mut Cx<'_>, field: &str, percent: Option<&FractionalPercent>) -> Option<Fraction> {
    match percent {
        None => Some(Fraction::ALL),
        Some(percent) => cx.at(field, |cx| fraction(cx, percent)),
    }
}
