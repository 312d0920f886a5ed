//! MeshConfig: services that proxies call for authorization, logs, metrics and traces.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::suggest::instead;
use evenkeel_base::yaml::Node;

use super::{AccessLogService, MeshConfig, OpenTelemetry, ServiceAttributeEnrichment, Tracer};
use crate::decode::{AnyFields, Context, Port, QuotedPort};
use crate::formats;

object! {
    /// A service that proxies call. AuthorizationPolicies (`CUSTOM`), Telemetry objects and `defaultProviders` name it.
    pub struct ExtensionProvider {
        /// Its name.
        name: Spanned<String> = "name",
        /// Authorization over HTTP.
        envoy_ext_authz_http: Option<ExtAuthzHttp> = "envoyExtAuthzHttp",
        /// Authorization over gRPC.
        envoy_ext_authz_grpc: Option<ExtAuthzGrpc> = "envoyExtAuthzGrpc",
        /// Traces for Zipkin.
        zipkin: Option<Tracer> = "zipkin",
        /// Traces for Lightstep.
        lightstep: Option<Tracer> = "lightstep",
        /// Traces for Datadog.
        datadog: Option<Tracer> = "datadog",
        /// Traces for Stackdriver.
        stackdriver: Option<AnyFields> = "stackdriver",
        /// Traces for an OpenCensus agent.
        opencensus: Option<AnyFields> = "opencensus",
        /// Traces for SkyWalking.
        skywalking: Option<Tracer> = "skywalking",
        /// Traces for OpenTelemetry.
        opentelemetry: Option<OpenTelemetry> = "opentelemetry",
        /// Metrics for Prometheus.
        prometheus: Option<Prometheus> = "prometheus",
        /// An access log in a file.
        envoy_file_access_log: Option<FileAccessLog> = "envoyFileAccessLog",
        /// Access logs of requests over gRPC.
        envoy_http_als: Option<AccessLogService> = "envoyHttpAls",
        /// Access logs of connections over gRPC.
        envoy_tcp_als: Option<AccessLogService> = "envoyTcpAls",
        /// Access logs for OpenTelemetry.
        envoy_otel_als: Option<OtelAccessLog> = "envoyOtelAls",
        /// A server of secrets.
        sds: Option<SecretServer> = "sds",
    }
    check: check_provider;
}

object! {
    /// Authorization over HTTP.
    pub struct ExtAuthzHttp {
        /// The service, `[NAMESPACE/]HOST`.
        service: String = "service",
        /// Its port.
        port: QuotedPort = "port",
        /// Limit for each check.
        timeout: Option<Duration> = "timeout",
        /// Prefix of the path of a check.
        path_prefix: Option<String> = "pathPrefix",
        /// Whether calls are allowed if the service does not answer.
        fail_open: Option<bool> = "failOpen",
        /// Whether the route is chosen again after a check.
        clear_route_cache: Option<bool> = "clearRouteCache",
        /// The status if the service does not answer.
        status_on_error: Option<String> = "statusOnError",
        /// Older name of `includeRequestHeadersInCheck`.
        include_headers_in_check: Vec<String> = "includeHeadersInCheck",
        /// Headers that the service gets.
        include_request_headers_in_check: Vec<String> = "includeRequestHeadersInCheck",
        /// Headers that the service gets in addition, with fixed values.
        include_additional_headers_in_check: BTreeMap<String, String> = "includeAdditionalHeadersInCheck",
        /// The part of the body that the service gets.
        include_request_body_in_check: Option<RequestBody> = "includeRequestBodyInCheck",
        /// Headers of the answer that an allowed request gets.
        headers_to_upstream_on_allow: Vec<String> = "headersToUpstreamOnAllow",
        /// Headers of the answer that the client of a denied request gets.
        headers_to_downstream_on_deny: Vec<String> = "headersToDownstreamOnDeny",
        /// Headers of the answer that the client of an allowed request gets.
        headers_to_downstream_on_allow: Vec<String> = "headersToDownstreamOnAllow",
    }
}

object! {
    /// The part of a request's body that an authorization service gets.
    pub struct RequestBody {
        /// Maximum number of bytes that it gets.
        max_request_bytes: Option<u32> = "maxRequestBytes",
        /// Whether it gets the beginning of a longer body; otherwise the request is refused with 413.
        allow_partial_message: Option<bool> = "allowPartialMessage",
        /// Whether it gets bytes instead of text (gRPC).
        pack_as_bytes: Option<bool> = "packAsBytes",
    }
    check: check_body;
}

fn check_body(body: &RequestBody, node: &Node, cx: &mut Context) {
    if body.max_request_bytes == Some(0) {
        let span = node.span_of_path("maxRequestBytes");
        cx.error(
            "bad-value",
            span,
            "no byte is no body",
            "write a number above 0, or remove `includeRequestBodyInCheck`",
        );
    }
}

object! {
    /// Authorization over gRPC.
    pub struct ExtAuthzGrpc {
        /// The service, `[NAMESPACE/]HOST`.
        service: String = "service",
        /// Its port.
        port: QuotedPort = "port",
        /// Limit for each check.
        timeout: Option<Duration> = "timeout",
        /// Whether calls are allowed if the service does not answer.
        fail_open: Option<bool> = "failOpen",
        /// Whether the route is chosen again after a check.
        clear_route_cache: Option<bool> = "clearRouteCache",
        /// The status if the service does not answer.
        status_on_error: Option<String> = "statusOnError",
        /// The part of the body that the service gets.
        include_request_body_in_check: Option<RequestBody> = "includeRequestBodyInCheck",
    }
}

object! {
    /// Metrics for Prometheus.
    pub struct Prometheus {}
}

object! {
    /// An access log in a file.
    pub struct FileAccessLog {
        /// The file; `/dev/stdout` if not given.
        path: Option<String> = "path",
        /// The format; Istio's text format if not given.
        log_format: Option<FileLogFormat> = "logFormat",
        /// Whether keys without a value are left out.
        omit_empty_values: Option<bool> = "omitEmptyValues",
    }
}

object! {
    /// The format of an access log: one of the two.
    pub struct FileLogFormat {
        /// A line of text.
        text: Option<String> = "text",
        /// The keys of a JSON object.
        labels: Option<AnyFields> = "labels",
    }
    check: check_file_format;
}

object! {
    /// Access logs for OpenTelemetry.
    pub struct OtelAccessLog {
        /// The service, `[NAMESPACE/]HOST`.
        service: Spanned<String> = "service",
        /// Its port.
        port: Port = "port",
        /// The name of the log.
        log_name: Option<String> = "logName",
        /// The format.
        log_format: Option<OtelLogFormat> = "logFormat",
        /// Objects of the filter state that are logged.
        filter_state_objects_to_log: Vec<String> = "filterStateObjectsToLog",
    }
}

object! {
    /// The format of records for OpenTelemetry.
    pub struct OtelLogFormat {
        /// The body; Istio's text format if not given.
        text: Option<String> = "text",
        /// The attributes.
        labels: Option<AnyFields> = "labels",
    }
    check: check_otel_format;
}

object! {
    /// A server of secrets.
    pub struct SecretServer {
        /// The name by which Gateways refer to it.
        name: String = "name",
        /// The service, `[NAMESPACE/]HOST`.
        service: String = "service",
        /// Its port.
        port: Port = "port",
    }
}

/// The purpose of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderKind {
    /// Authorization.
    Authorization,
    /// Traces.
    Tracing,
    /// Metrics.
    Metrics,
    /// Access logs in a file.
    FileLog,
    /// Access logs for a service.
    RemoteLog,
    /// Secrets.
    Secrets,
}

impl ExtensionProvider {
    /// The kinds that are given; exactly one, or the decoder has reported an error.
    fn kinds(&self) -> Vec<ProviderKind> {
        use ProviderKind as K;
        let all = [
            (self.envoy_ext_authz_http.is_some(), K::Authorization),
            (self.envoy_ext_authz_grpc.is_some(), K::Authorization),
            (self.zipkin.is_some(), K::Tracing),
            (self.lightstep.is_some(), K::Tracing),
            (self.datadog.is_some(), K::Tracing),
            (self.stackdriver.is_some(), K::Tracing),
            (self.opencensus.is_some(), K::Tracing),
            (self.skywalking.is_some(), K::Tracing),
            (self.opentelemetry.is_some(), K::Tracing),
            (self.prometheus.is_some(), K::Metrics),
            (self.envoy_file_access_log.is_some(), K::FileLog),
            (self.envoy_http_als.is_some(), K::RemoteLog),
            (self.envoy_tcp_als.is_some(), K::RemoteLog),
            (self.envoy_otel_als.is_some(), K::RemoteLog),
            (self.sds.is_some(), K::Secrets),
        ];
        all.into_iter().filter(|(given, _)| *given).map(|(_, kind)| kind).collect()
    }

    /// Whether it is of a kind that proxies cannot call.
    pub fn is_unsupported(&self) -> bool {
        let is_supported = self.zipkin.is_some() || self.opentelemetry.is_some();
        self.kind() == Some(ProviderKind::Tracing) && !is_supported
    }

    /// Returns its purpose.
    pub fn kind(&self) -> Option<ProviderKind> {
        self.kinds().first().copied()
    }
}

fn check_file_format(_: &FileLogFormat, node: &Node, cx: &mut Context) {
    check_format(node, ["Istio's default format is used", "Istio's default keys are used"], cx);
}

fn check_otel_format(_: &OtelLogFormat, node: &Node, cx: &mut Context) {
    check_format(node, ["Istio's default format is used", "no attributes are sent"], cx);
}

fn check_format(node: &Node, effects: [&str; 2], cx: &mut Context) {
    for (field, effect) in ["text", "labels"].into_iter().zip(effects) {
        if let Some(value) = node.get(field) {
            cx.at_field(field, |cx| formats::check_all(value, effect, cx));
        }
    }
}

fn check_provider(provider: &ExtensionProvider, _: &Node, cx: &mut Context) {
    if provider.name.is_empty() {
        let help = "give it the name that policies and Telemetry objects use";
        cx.at_field("name", |cx| cx.error("bad-name", &provider.name.span, "the name is empty", help));
    }
    match provider.kinds().len() {
        1 => {}
        // One of a newer version of Istio has been reported as an unknown field.
        0 => cx.warning(
            "missing-field",
            &provider.name.span,
            "it has no provider this version knows; it is not used",
            "e.g. `envoyExtAuthzHttp`",
        ),
        _ => cx.error("conflict", &provider.name.span, "it has several providers", "write one entry for each"),
    }
    let http = provider.envoy_ext_authz_http.as_ref();
    let statuses = [
        http.and_then(|http| http.status_on_error.as_deref()),
        provider.envoy_ext_authz_grpc.as_ref().and_then(|grpc| grpc.status_on_error.as_deref()),
    ];
    for status in statuses.into_iter().flatten().filter(|status| !status.is_empty()) {
        if !status.parse::<u16>().is_ok_and(|status| (200..600).contains(&status)) {
            let message = format!("`{status}` is no status that a refusal can have");
            cx.error("bad-value", &provider.name.span, message, "expected a number from 200 to 599, e.g. `\"503\"`");
        }
    }
    if let Some(prefix) = http.and_then(|http| http.path_prefix.as_deref())
        && !prefix.is_empty()
        && !prefix.starts_with('/')
    {
        let message = format!("the path prefix `{prefix}` does not begin with `/`");
        cx.error("bad-value", &provider.name.span, message, format!("write `/{prefix}`"));
    }
    check_paths(provider, cx);
    if let Some(FileLogFormat { text: Some(_), labels: Some(_) }) =
        provider.envoy_file_access_log.as_ref().and_then(|log| log.log_format.as_ref())
    {
        cx.error("conflict", &provider.name.span, "`text` and `labels` exclude each other", "remove one of them");
    }
}

object! {
    /// The providers that are used without a Telemetry object.
    pub struct DefaultProviders {
        /// For traces.
        tracing: Vec<Spanned<String>> = "tracing",
        /// For metrics.
        metrics: Vec<Spanned<String>> = "metrics",
        /// For access logs.
        access_logging: Vec<Spanned<String>> = "accessLogging",
    }
}

/// Providers that exist without being declared, as in Istio.
const BUILT_IN: [(&str, ProviderKind); 2] = [("prometheus", ProviderKind::Metrics), ("envoy", ProviderKind::FileLog)];

/// Reports names without a provider, providers of the wrong kind, and those whose filters do not exist yet.
pub(super) fn check_references(config: &MeshConfig, cx: &mut Context) {
    let kind_of = |name: &str| {
        let declared = config.extension_providers.iter().find(|provider| provider.name.as_str() == name);
        let built_in = || BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        declared.and_then(ExtensionProvider::kind).or_else(built_in)
    };
    for (index, provider) in config.extension_providers.iter().enumerate() {
        if config.extension_providers.iter().take(index).any(|other| other.name == provider.name) {
            let message = format!("there are two providers of the name `{}`", provider.name.value);
            cx.at_field("extensionProviders", |cx| {
                cx.at_index(index, |cx| cx.error("duplicate-name", &provider.name.span, message, "rename one of them"));
            });
        }
    }
    note_unusable(config, cx);
    let Some(defaults) = &config.default_providers else { return };
    let uses = [
        ("tracing", &defaults.tracing, &[ProviderKind::Tracing][..]),
        ("metrics", &defaults.metrics, &[ProviderKind::Metrics]),
        ("accessLogging", &defaults.access_logging, &[ProviderKind::FileLog, ProviderKind::RemoteLog]),
    ];
    cx.at_field("defaultProviders", |cx| {
        for (field, names, wanted) in uses {
            for name in names {
                let Some((problem, help)) = problem_of_use(config, name, (field, wanted), kind_of(name)) else {
                    continue;
                };
                let message = format!("`{}`: {problem}", name.value);
                cx.at_field(field, |cx| cx.warning("unsupported-provider", &name.span, message, help));
            }
        }
    });
    // A Telemetry object may name any of them.
    for (index, provider) in config.extension_providers.iter().enumerate().filter(|(_, one)| !one.is_unsupported()) {
        at_provider(index, cx, |cx| check_tracer(provider, cx));
    }
}

/// Reports providers that nothing can use. Whether policies or Telemetry objects name the others, this object alone does not
/// show.
fn note_unusable(config: &MeshConfig, cx: &mut Context) {
    for (index, provider) in config.extension_providers.iter().enumerate() {
        if provider.kind() == Some(ProviderKind::Secrets) {
            let message = "the provider has no effect: proxies get Secrets from the control plane only";
            at_provider(index, cx, |cx| cx.note("no-effect", &provider.name.span, message, "it can stay"));
        }
    }
}

fn at_provider(index: usize, cx: &mut Context, note: impl FnOnce(&mut Context)) {
    cx.at_field("extensionProviders", |cx| cx.at_index(index, note));
}

/// Why a name under `field` of `defaultProviders` has no effect, and what helps; `kind` is that of the named provider.
fn problem_of_use(
    config: &MeshConfig,
    name: &Spanned<String>,
    (field, wanted): (&str, &[ProviderKind]),
    kind: Option<ProviderKind>,
) -> Option<(String, String)> {
    let Some(kind) = kind else {
        let known = config.extension_providers.iter().map(|provider| provider.name.as_str());
        let help = instead(name, known.chain(BUILT_IN.map(|(name, _)| name)));
        return Some(("no such provider; ignored".to_owned(), help));
    };
    if !wanted.contains(&kind) {
        let help = format!("name it where it belongs, not under `{field}`");
        return Some(("it is not a provider of this kind; ignored".to_owned(), help));
    }
    let declared = config.provider(name);
    if declared.is_some_and(|provider| provider.is_unsupported()) {
        let help = "supported: `zipkin` and `opentelemetry`".to_owned();
        return Some(("providers of this kind are not supported yet; ignored".to_owned(), help));
    }
    let is_other =
        kind == ProviderKind::Tracing && config.tracer().is_some_and(|(_, first)| first.name.value != name.value);
    is_other.then(|| ("spans go to one collector; ignored".to_owned(), "remove it".to_owned()))
}

object! {
    /// A further root certificate.
    pub struct CertificateData {
        /// The certificate as PEM text.
        pem: Option<String> = "pem",
        /// A SPIFFE bundle endpoint.
        spiffe_bundle_url: Option<String> = "spiffeBundleUrl",
        /// The signers that use it.
        cert_signers: Vec<String> = "certSigners",
        /// The trust domains it belongs to.
        trust_domains: Vec<String> = "trustDomains",
    }
}

/// The access log of a provider.
#[derive(Debug, Clone, Copy)]
pub enum ProviderLog<'a> {
    /// In a file.
    File(&'a FileAccessLog),
    /// Of requests, at a service.
    Http(&'a AccessLogService),
    /// Of connections, at a service.
    Tcp(&'a AccessLogService),
    /// Of both, at a collector of OpenTelemetry.
    OpenTelemetry(&'a OtelAccessLog),
}

impl MeshConfig {
    fn provider(&self, name: &str) -> Option<&ExtensionProvider> {
        self.extension_providers.iter().find(|provider| provider.name.as_str() == name)
    }

    /// The provider of `defaultProviders.tracing` that is used, and its place among the providers.
    pub fn tracer(&self) -> Option<(usize, &ExtensionProvider)> {
        let names = self.default_providers.iter().flat_map(|defaults| &defaults.tracing);
        let index = |name: &Spanned<String>| {
            let is_it = |provider: &ExtensionProvider| provider.name.value == name.value;
            self.extension_providers.iter().position(is_it)
        };
        let declared = names.filter_map(index).filter_map(|i| Some((i, self.extension_providers.get(i)?)));
        let mut usable = declared
            .filter(|(_, provider)| provider.kind() == Some(ProviderKind::Tracing) && !provider.is_unsupported());
        usable.next()
    }
}

impl ExtensionProvider {
    /// The access log that it is; `None`: it is none, or one that proxies cannot write.
    pub fn log(&self) -> Option<ProviderLog<'_>> {
        let file = self.envoy_file_access_log.as_ref().map(ProviderLog::File);
        let http = || self.envoy_http_als.as_ref().map(ProviderLog::Http);
        let tcp = || self.envoy_tcp_als.as_ref().map(ProviderLog::Tcp);
        let otel = || self.envoy_otel_als.as_ref().map(ProviderLog::OpenTelemetry);
        file.or_else(http).or_else(tcp).or_else(otel)
    }
}

/// Whether a text can be the path of a call.
fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Reports invalid paths of a provider, with which it could not be called.
fn check_paths(provider: &ExtensionProvider, cx: &mut Context) {
    let zipkin = provider.zipkin.as_ref().and_then(|zipkin| zipkin.path.as_deref()).filter(|path| !path.is_empty());
    let otlp = provider.opentelemetry.as_ref().and_then(|otel| Some(otel.http.as_ref()?.path.as_str()));
    if let Some(path) = zipkin.into_iter().chain(otlp).find(|path| !is_path(path)) {
        let message = format!("`{path}` is not the path of a call");
        cx.error("bad-value", &provider.name.span, message, "it begins with `/`, and has no spaces");
    }
}

const NO_ENVIRONMENT: &str = "the control plane does not read its environment; a header without `value` is left out";

/// Names the settings of a tracer that have no effect.
fn check_tracer(provider: &ExtensionProvider, cx: &mut Context) {
    let mut unused = |name: &str, span: &evenkeel_base::Span, message: &str, help: &str| {
        cx.at_field(name, |cx| cx.warning("unsupported-field", span, message, help));
    };
    for name in provider.zipkin.iter().flat_map(|zipkin| &zipkin.headers).filter_map(|header| header.env_name.as_ref())
    {
        unused("headers", &name.span, NO_ENVIRONMENT, &format!("write the value of {} in `value`", name.value));
    }
    if let Some(otel) = &provider.opentelemetry {
        let enrichment = otel.service_attribute_enrichment.as_ref();
        let all = [
            (
                "resourceDetectors",
                otel.resource_detectors.as_ref().and_then(|all| Some(&all.dynatrace.as_ref()?.span)),
                "Dynatrace's files are not read: spans have no attributes of `dynatrace`",
            ),
            (
                "dynatraceSampler",
                otel.dynatrace_sampler.as_ref().map(|value| &value.span),
                "the mesh's sampling decides",
            ),
            (
                "serviceAttributeEnrichment",
                enrichment
                    .filter(|value| value.value == ServiceAttributeEnrichment::Conventions)
                    .map(|value| &value.span),
                "spans name their service as Istio does",
            ),
        ];
        for (name, span, message) in all {
            if let Some(span) = span {
                unused(name, span, message, "remove it");
            }
        }
        let headers = otel.http.iter().flat_map(|http| &http.headers);
        let metadata = otel.grpc.iter().flat_map(|grpc| &grpc.initial_metadata);
        for name in headers.chain(metadata).filter_map(|header| header.env_name.as_ref()) {
            let help = format!("write the value of {} in `value`", name.value);
            let place = if otel.http.is_some() { "http" } else { "grpc" };
            unused(place, &name.span, NO_ENVIRONMENT, &help);
        }
    }
}
