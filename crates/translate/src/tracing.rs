//! Tracing of requests: sampling, the destination of spans, and their names (istiod's
//! `pilot/pkg/networking/core/tracing.go`).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_model::telemetry::{Collector, CollectorProtocol, TagValue, Tracer};

use crate::context::Context;
use crate::pb::config::route::{Decorator, Route, RouteMatch, route, route_action, route_match};
use crate::pb::config::trace::tracing::{Http, http};
use crate::pb::config::trace::zipkin_config::{CollectorEndpointVersion, TraceContextOption};
use crate::pb::config::trace::{OpenTelemetryConfig, ZipkinConfig};
use crate::pb::core::grpc_service::{EnvoyGrpc, TargetSpecifier};
use crate::pb::core::http_uri::HttpUpstreamType;
use crate::pb::core::{GrpcService, HeaderValue, HeaderValueOption, HttpService, HttpUri, TypedExtensionConfig};
use crate::pb::envoy_type::Percent;
use crate::pb::hcm::http_connection_manager::Tracing;
use crate::pb::metadata::metadata_key::{PathSegment, path_segment};
use crate::pb::metadata::{MetadataKey, MetadataKind, metadata_kind};
use crate::pb::resource_detectors::EnvironmentResourceDetectorConfig;
use crate::pb::tracing::CustomTag;
use crate::pb::tracing::custom_tag;
use crate::proto::{any, bool_value, duration, u32_value};
use crate::proxy_options::TracingOptions;

/// Envoy's limit of a call to Zipkin.
const ZIPKIN_TIMEOUT: Duration = Duration::from_secs(5);

const ALL: Percent = Percent { value: 100.0 };

/// Tags for what policies on trial would have decided, with Istio's names.
const DRY_RUN_TAGS: [(&str, &str); 4] = [
    ("istio.authorization.dry_run.allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"),
    ("istio.authorization.dry_run.allow_policy.result", "istio_dry_run_allow_shadow_engine_result"),
    ("istio.authorization.dry_run.deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"),
    ("istio.authorization.dry_run.deny_policy.result", "istio_dry_run_deny_shadow_engine_result"),
];

/// Labels that name the service of a workload, the first that is given counts: Istio's own, which its injector derives from the
/// others.
pub const SERVICE_LABELS: [&str; 3] = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];
/// Labels that name its revision.
pub const REVISION_LABELS: [&str; 3] = ["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"];

impl Context<'_> {
    /// Whether the proxy has a collector of spans: its own, or one that the mesh's settings or a Telemetry object names.
    pub(crate) fn sends_spans(&self) -> bool {
        let Some(tracer) = self.tracer() else {
            return self.snapshot.mesh().telemetry.traces && self.options().has_collector;
        };
        tracer.collector.is_some_and(|collector| self.provider_service(&collector.service).is_some())
    }

    /// The first of some labels of the workload that is given.
    fn first_label(&self, names: &[&str], default: &str) -> String {
        let given = names.iter().map(|name| self.label(&Arc::from(*name))).find(|value| !value.is_empty());
        given.map_or_else(|| default.to_owned(), |value| value.to_string())
    }
}

/// Returns the tracing settings of a connection manager; `None` if there is no destination for spans. Istio always has the
/// setting; without a collector it only marks one request id in a hundred.
pub fn of_requests(context: Context<'_>) -> Option<Tracing> {
    if !context.sends_spans() {
        return None;
    }
    let tracer = context.tracer().unwrap_or_default();
    let collector = tracer.collector.as_deref();
    let default = TracingOptions::default();
    let options = context.options().tracing.as_deref().unwrap_or(&default);
    // That of the provider, as in Istio, goes before the proxy's.
    let max_path = collector.and_then(|collector| collector.max_path_bytes).or(options.max_path_bytes);
    Some(Tracing {
        client_sampling: Some(ALL),
        random_sampling: Some(Percent { value: tracer.sampling.unwrap_or_else(|| options.percent()) }),
        overall_sampling: Some(ALL),
        custom_tags: tags(context, &tracer, options),
        max_path_tag_length: max_path.map(u32_value),
        provider: collector.and_then(|collector| provider(context, collector)),
        ..Default::default()
    })
}

fn tags(context: Context<'_>, tracer: &Tracer, options: &TracingOptions) -> Vec<CustomTag> {
    let own = if tracer.tags.is_empty() { &options.tags } else { &tracer.tags };
    let own = own.iter().map(|(name, value)| custom(name, value_of(value)));
    let mut tags: Vec<CustomTag> = own.collect();
    if tracer.istio_tags.unwrap_or(options.istio_tags) {
        let literal = |name: &str, value: String| custom(name, value_of(&TagValue::Literal(value)));
        let mesh = context.snapshot.mesh();
        tags.extend(DRY_RUN_TAGS.map(|(name, key)| custom(name, of_rbac(key))));
        tags.extend([
            literal("istio.canonical_service", context.first_label(&SERVICE_LABELS, "unknown")),
            literal("istio.canonical_revision", context.first_label(&REVISION_LABELS, "latest")),
            literal("istio.mesh_id", context.options().mesh_id.as_ref().unwrap_or(&mesh.trust_domain).to_string()),
            literal("istio.namespace", context.namespace().to_string()),
        ]);
    }
    tags.sort_by(|a, b| a.tag.cmp(&b.tag));
    // The proxy's own come first, so they replace Istio's.
    tags.dedup_by(|later, earlier| later.tag == earlier.tag);
    tags
}

fn custom(name: &str, value: custom_tag::Type) -> CustomTag {
    CustomTag { tag: name.to_owned(), r#type: Some(value) }
}

fn value_of(value: &TagValue) -> custom_tag::Type {
    match value {
        TagValue::Literal(value) => custom_tag::Type::Literal(custom_tag::Literal { value: value.clone() }),
        TagValue::Environment(name, default) => custom_tag::Type::Environment(custom_tag::Environment {
            name: name.clone(),
            default_value: default.clone().unwrap_or_default(),
        }),
        TagValue::Header(name, default) => custom_tag::Type::RequestHeader(custom_tag::Header {
            name: name.to_string(),
            default_value: default.clone().unwrap_or_default(),
        }),
        TagValue::Format(text) => custom_tag::Type::Value(text.clone()),
    }
}

/// Metadata that the RBAC filter leaves.
fn of_rbac(key: &str) -> custom_tag::Type {
    let path = vec![PathSegment { segment: Some(path_segment::Segment::Key(key.to_owned())) }];
    custom_tag::Type::Metadata(custom_tag::Metadata {
        kind: Some(MetadataKind { kind: Some(metadata_kind::Kind::Request(metadata_kind::Request {})) }),
        metadata_key: Some(MetadataKey { key: "envoy.filters.http.rbac".to_owned(), path }),
        ..Default::default()
    })
}

/// The mesh's collector, as a tracer.
fn provider(context: Context<'_>, collector: &Collector) -> Option<Http> {
    let (cluster, host) = context.provider_cluster(&collector.service)?;
    let (name, config) = match &collector.protocol {
        CollectorProtocol::Zipkin { .. } => ("envoy.tracers.zipkin", any(&zipkin(&collector.protocol, cluster, host)?)),
        CollectorProtocol::OtlpGrpc { timeout, metadata } => {
            let target = EnvoyGrpc { cluster_name: cluster, authority: host, ..EnvoyGrpc::default() };
            let service = GrpcService {
                timeout: timeout.map(duration),
                initial_metadata: metadata.iter().map(|(name, value)| header(name, value)).collect(),
                target_specifier: Some(TargetSpecifier::EnvoyGrpc(target)),
                ..GrpcService::default()
            };
            let config = OpenTelemetryConfig { grpc_service: Some(service), ..otel(context, collector) };
            ("envoy.tracers.opentelemetry", any(&config))
        }
        CollectorProtocol::OtlpHttp { path, timeout, headers } => {
            let service = http_service(cluster, format!("{host}{path}"), *timeout, headers);
            let config = OpenTelemetryConfig { http_service: Some(service), ..otel(context, collector) };
            ("envoy.tracers.opentelemetry", any(&config))
        }
    };
    Some(Http { name: name.to_owned(), config_type: Some(http::ConfigType::TypedConfig(config)) })
}

/// A collector that takes Zipkin's format. With a time limit or headers it is a `collector_service`, which Envoy knows since 1.36; the
/// older fields stay, for those that do not know it.
fn zipkin(protocol: &CollectorProtocol, cluster: String, host: String) -> Option<ZipkinConfig> {
    let CollectorProtocol::Zipkin { path, short_ids, uses_w3c, timeout, headers } = protocol else { return None };
    let needs_service = timeout.is_some() || !headers.is_empty();
    let service = || {
        let timeout = timeout.unwrap_or(ZIPKIN_TIMEOUT);
        http_service(cluster.clone(), format!("{host}{path}"), timeout, headers)
    };
    let option = if *uses_w3c { TraceContextOption::UseB3WithW3cPropagation } else { TraceContextOption::UseB3 };
    Some(ZipkinConfig {
        collector_service: needs_service.then(service),
        collector_cluster: cluster,
        collector_endpoint: path.to_string(),
        collector_endpoint_version: CollectorEndpointVersion::HttpJson as i32,
        collector_hostname: host,
        trace_id_128bit: !short_ids,
        shared_span_context: Some(bool_value(false)),
        trace_context_option: option as i32,
        ..Default::default()
    })
}

fn http_service(cluster: String, uri: String, timeout: Duration, headers: &[(Arc<str>, Arc<str>)]) -> HttpService {
    let uri =
        HttpUri { uri, timeout: Some(duration(timeout)), http_upstream_type: Some(HttpUpstreamType::Cluster(cluster)) };
    let added = headers.iter().map(|(name, value)| header(name, value));
    let added = added.map(|header| HeaderValueOption { header: Some(header), ..Default::default() });
    HttpService { http_uri: Some(uri), request_headers_to_add: added.collect(), ..Default::default() }
}

fn header(name: &str, value: &str) -> HeaderValue {
    // Not a format string: the user's text is sent unchanged.
    HeaderValue { key: name.to_owned(), value: value.replace('%', "%%"), ..HeaderValue::default() }
}

/// The name under which spans are collected: that of the workload's service and its namespace; and the attributes of their resource.
fn otel(context: Context<'_>, collector: &Collector) -> OpenTelemetryConfig {
    let service = context.first_label(&SERVICE_LABELS, "unknown");
    let environment = collector.reads_environment.then(|| TypedExtensionConfig {
        name: "envoy.tracers.opentelemetry.resource_detectors.environment".to_owned(),
        typed_config: Some(any(&EnvironmentResourceDetectorConfig {})),
    });
    OpenTelemetryConfig {
        service_name: format!("{service}.{}", context.namespace()),
        resource_detectors: environment.into_iter().collect(),
        ..Default::default()
    }
}

/// Names the spans of a route as Istio does, `HOST:PORT/PATH`, if there are any. `rule`: the object that the route is of, for one
/// with several destinations; `port`: that of the request.
pub fn decorate(context: Context<'_>, route: &mut Route, rule: &str, port: u16) {
    if !context.sends_spans() {
        return;
    }
    let Some(route::Action::Route(action)) = &route.action else { return };
    let place = match &action.cluster_specifier {
        Some(route_action::ClusterSpecifier::Cluster(cluster)) => place_of(cluster),
        _ => None,
    };
    let place = place.unwrap_or_else(|| format!("{rule}:{port}"));
    let operation = format!("{place}{}", path_of(route.r#match.as_ref()));
    route.decorator = Some(Decorator { operation, ..Default::default() });
}

/// Like [`decorate`], with a name that is already known.
pub fn decorate_as(context: Context<'_>, route: &mut Route, operation: &str) {
    if context.sends_spans() {
        route.decorator = Some(Decorator { operation: operation.to_owned(), ..Default::default() });
    }
}

/// `HOST:PORT` of a cluster `outbound|PORT|SUBSET|HOST`.
fn place_of(cluster: &str) -> Option<String> {
    let mut parts = cluster.split('|');
    let (_, port, _, host) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some(format!("{host}:{port}"))
}

fn path_of(condition: Option<&RouteMatch>) -> String {
    use route_match::PathSpecifier as Path;
    match condition.and_then(|condition| condition.path_specifier.as_ref()) {
        Some(Path::Prefix(prefix)) => format!("{prefix}*"),
        Some(Path::PathSeparatedPrefix(prefix)) => format!("{prefix}/*"),
        Some(Path::Path(path)) => path.clone(),
        Some(Path::SafeRegex(regex)) => regex.regex.clone(),
        _ => "/*".to_owned(),
    }
}
