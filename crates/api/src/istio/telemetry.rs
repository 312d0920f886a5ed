//! Telemetry: the traces, metrics and access logs of workloads.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::WorkloadSelector;
use super::target_ref::{TargetRef, check_only_one};
use super::tracing::{EnvironmentTag, FormatterTag, HeaderTag, LiteralTag, TagSource};
use crate::decode::{Context, Decimal};

object! {
    /// The traces, metrics and access logs of workloads.
    pub struct Telemetry {
        /// The specification.
        spec: Option<TelemetrySpec> = "spec",
    }
    inert: ["status"];
}

object! {
    /// The traces, metrics and access logs of workloads. What is said for a workload goes before what is said for its namespace,
    /// and that before what is said for the mesh, in the root namespace.
    pub struct TelemetrySpec {
        /// The selected workloads of the namespace; all if not given.
        selector: Option<WorkloadSelector> = "selector",
        /// The resource whose workloads are selected.
        target_ref: Option<TargetRef> = "targetRef",
        /// The resources whose workloads are selected.
        target_refs: Vec<TargetRef> = "targetRefs",
        /// Traces.
        tracing: Vec<TelemetryTracing> = "tracing",
        /// Access logs.
        access_logging: Vec<TelemetryLogging> = "accessLogging",
        /// Istio's metrics.
        metrics: Vec<TelemetryMetrics> = "metrics",
    }
    check: check_targets;
}

fn check_targets(spec: &TelemetrySpec, _: &Node, cx: &mut Context) {
    check_only_one(spec.selector.as_ref(), spec.target_ref.as_ref(), &spec.target_refs, cx);
}

object! {
    /// A provider of the mesh's settings.
    pub struct ProviderRef {
        /// Its name.
        name: Spanned<String> = "name",
    }
    check: check_provider_name;
}

fn check_provider_name(provider: &ProviderRef, _: &Node, cx: &mut Context) {
    if provider.name.is_empty() {
        let help = "write the name of an entry of `extensionProviders`";
        cx.at_field("name", |cx| cx.error("missing-field", &provider.name.span, "the name is empty", help));
    }
}

object! {
    /// What traffic a rule is for.
    pub struct ModeSelector {
        /// The side of it that the workload is on; both if not given.
        mode: Option<WorkloadMode> = "mode",
    }
}

choices! {
    /// The side that a workload is on. A gateway is a client.
    pub enum WorkloadMode {
        /// Either.
        ClientAndServer = "CLIENT_AND_SERVER",
        /// It calls.
        Client = "CLIENT",
        /// It is called.
        Server = "SERVER",
    }
}

object! {
    /// Traces.
    pub struct TelemetryTracing {
        /// What traffic it is for.
        r#match: Option<ModeSelector> = "match",
        /// Where spans go; what is said further out if not given.
        providers: Vec<ProviderRef> = "providers",
        /// Percentage of requests that are traced without an explicit request for tracing.
        random_sampling_percentage: Option<Spanned<Decimal>> = "randomSamplingPercentage",
        /// Whether requests are not traced.
        disable_span_reporting: Option<bool> = "disableSpanReporting",
        /// Further tags of spans, by their names; they replace those that are given further out.
        custom_tags: BTreeMap<String, TelemetryTag> = "customTags",
        /// Whether spans have Istio's tags of the workload.
        enable_istio_tags: Option<bool> = "enableIstioTags",
    }
    later: [
        "useRequestIdForTraceSampling" = "the decision is part of `x-request-id`",
        "disableContextPropagation" = "requests carry the headers of their trace",
    ];
    check: check_tracing;
}

fn check_tracing(tracing: &TelemetryTracing, _: &Node, cx: &mut Context) {
    if let Some(percent) = &tracing.random_sampling_percentage
        && !(0.0..=100.0).contains(&percent.value.0)
    {
        let message = format!("{} is no percentage", percent.value.0);
        let help = "write a percentage from 0 to 100";
        cx.at_field("randomSamplingPercentage", |cx| cx.error("bad-value", &percent.span, message, help));
    }
}

object! {
    /// The value of a tag of spans: one of these.
    pub struct TelemetryTag {
        /// This text.
        literal: Option<LiteralTag> = "literal",
        /// That of a variable of the proxy's environment.
        environment: Option<EnvironmentTag> = "environment",
        /// That of a header of the request.
        header: Option<HeaderTag> = "header",
        /// What a format string makes of the request.
        formatter: Option<FormatterTag> = "formatter",
    }
    check: check_tag;
}

impl TelemetryTag {
    /// Returns the source of its value; `None`: the check has reported why it is ignored.
    pub fn usable(&self) -> Option<TagSource<'_>> {
        TagSource::only([
            self.literal.as_ref().map(LiteralTag::source),
            self.environment.as_ref().map(EnvironmentTag::source),
            self.header.as_ref().map(HeaderTag::source),
            self.formatter.as_ref().map(FormatterTag::source),
        ])
    }
}

fn check_tag(tag: &TelemetryTag, node: &Node, cx: &mut Context) {
    let sources = ["literal", "environment", "header", "formatter"];
    // A format string that is none has a finding of its own.
    let is_one = sources.iter().filter(|name| node.get(name).is_some()).count() == 1;
    if tag.usable().is_none() && !(is_one && tag.formatter.is_some()) {
        let message = "a tag has one of `literal`, `environment`, `header` and `formatter`, with a value or a name; it is left out";
        cx.warning("bad-value", &node.span, message, "e.g. `literal: {value: blue}`");
    }
}

object! {
    /// Access logs.
    pub struct TelemetryLogging {
        /// What traffic it is for.
        r#match: Option<ModeSelector> = "match",
        /// The logs; what is said further out if not given.
        providers: Vec<ProviderRef> = "providers",
        /// Whether nothing is logged there.
        disabled: Option<bool> = "disabled",
        /// Which requests and connections are logged; all if not given.
        filter: Option<TelemetryLogFilter> = "filter",
    }
}

object! {
    /// Which requests and connections are logged.
    pub struct TelemetryLogFilter {
        /// The expression (CEL) that is true for them; all if not given.
        expression: Option<Spanned<String>> = "expression",
    }
    check: check_log_filter;
}

fn check_log_filter(filter: &TelemetryLogFilter, _: &Node, cx: &mut Context) {
    if let Some(expression) = filter.expression.as_ref().filter(|text| !text.is_empty()) {
        cx.at_field("expression", |cx| check_expression(expression, cx));
    }
}

/// Reports an expression that does not compile.
fn check_expression(text: &Spanned<String>, cx: &mut Context) {
    if let Err(error) = evenkeel_cel::Expression::compile(text) {
        let message = format!("the expression does not compile: {error}");
        cx.error(
            "bad-value",
            &text.span,
            message,
            "e.g. `response.code >= 400`; docs/telemetry.md lists the attributes",
        );
    }
}

object! {
    /// Istio's metrics.
    pub struct TelemetryMetrics {
        /// Who gets them; what is said further out if not given.
        providers: Vec<ProviderRef> = "providers",
        /// Changes of metrics; later ones go before earlier ones.
        overrides: Vec<MetricsOverride> = "overrides",
        /// How often connections are reported; every 5 s if not given.
        reporting_interval: Option<Duration> = "reportingInterval",
    }
}

object! {
    /// Changes of some metrics.
    pub struct MetricsOverride {
        /// The metrics; all if not given.
        r#match: Option<MetricSelector> = "match",
        /// Whether they are not reported.
        disabled: Option<bool> = "disabled",
        /// Changes of their labels, by name.
        tag_overrides: BTreeMap<String, TagOverride> = "tagOverrides",
    }
}

object! {
    /// Metrics.
    pub struct MetricSelector {
        /// One of Istio's.
        metric: Option<StandardMetric> = "metric",
        /// The metric of this name, without `istio_`.
        custom_metric: Option<Spanned<String>> = "customMetric",
        /// The side of the traffic that the workload is on; both if not given.
        mode: Option<WorkloadMode> = "mode",
    }
    check: check_metric;
}

fn check_metric(selector: &MetricSelector, _: &Node, cx: &mut Context) {
    let Some(custom) = &selector.custom_metric else { return };
    if selector.metric.is_some() {
        let message = "`metric` and `customMetric` exclude each other";
        cx.at_field("customMetric", |cx| cx.error("conflict", &custom.span, message, "remove one of them"));
    } else if !StandardMetric::NAMES.iter().any(|(_, name)| *name == custom.as_str()) {
        let message = format!("there is no metric `{}`; the override has no effect", custom.value);
        let help = "further metrics are not supported; name one of Istio's in `metric`";
        cx.at_field("customMetric", |cx| cx.warning("unsupported-field", &custom.span, message, help));
    }
}

choices! {
    /// Istio's metrics.
    pub enum StandardMetric {
        /// All.
        All = "ALL_METRICS",
        /// `istio_requests_total`.
        RequestCount = "REQUEST_COUNT",
        /// `istio_request_duration_milliseconds`.
        RequestDuration = "REQUEST_DURATION",
        /// `istio_request_bytes`.
        RequestSize = "REQUEST_SIZE",
        /// `istio_response_bytes`.
        ResponseSize = "RESPONSE_SIZE",
        /// `istio_tcp_connections_opened_total`.
        TcpOpenedConnections = "TCP_OPENED_CONNECTIONS",
        /// `istio_tcp_connections_closed_total`.
        TcpClosedConnections = "TCP_CLOSED_CONNECTIONS",
        /// `istio_tcp_sent_bytes_total`.
        TcpSentBytes = "TCP_SENT_BYTES",
        /// `istio_tcp_received_bytes_total`.
        TcpReceivedBytes = "TCP_RECEIVED_BYTES",
        /// `istio_request_messages_total`.
        GrpcRequestMessages = "GRPC_REQUEST_MESSAGES",
        /// `istio_response_messages_total`.
        GrpcResponseMessages = "GRPC_RESPONSE_MESSAGES",
    }
}

impl StandardMetric {
    /// Each but [`StandardMetric::All`], with its name without `istio_`.
    pub const NAMES: [(Self, &'static str); 10] = [
        (Self::RequestCount, "requests_total"),
        (Self::RequestDuration, "request_duration_milliseconds"),
        (Self::RequestSize, "request_bytes"),
        (Self::ResponseSize, "response_bytes"),
        (Self::TcpOpenedConnections, "tcp_connections_opened_total"),
        (Self::TcpClosedConnections, "tcp_connections_closed_total"),
        (Self::TcpSentBytes, "tcp_sent_bytes_total"),
        (Self::TcpReceivedBytes, "tcp_received_bytes_total"),
        (Self::GrpcRequestMessages, "request_messages_total"),
        (Self::GrpcResponseMessages, "response_messages_total"),
    ];
}

impl MetricSelector {
    /// The names of the selected metrics, without `istio_`.
    pub fn names(&self) -> Vec<&'static str> {
        let selected =
            StandardMetric::NAMES.into_iter().filter(|(metric, name)| match (&self.custom_metric, self.metric) {
                (Some(custom), _) => custom.as_str() == *name,
                (None, Some(wanted)) => wanted == StandardMetric::All || wanted == *metric,
                (None, None) => true,
            });
        selected.map(|(_, name)| name).collect()
    }
}

object! {
    /// A change of a label.
    pub struct TagOverride {
        /// What to do; UPSERT if not given.
        operation: Option<TagOperation> = "operation",
        /// The expression (CEL) of its value.
        value: Option<Spanned<String>> = "value",
    }
    check: check_tag_override;
}

choices! {
    /// What to do with a label.
    pub enum TagOperation {
        /// Add it, or change its value.
        Upsert = "UPSERT",
        /// Remove it.
        Remove = "REMOVE",
    }
}

impl TagOverride {
    /// The expression of the label's value; `None`: the label is removed.
    pub fn expression(&self) -> Option<&str> {
        let value = self.value.as_ref().filter(|_| self.operation != Some(TagOperation::Remove));
        value.map(|value| value.as_str())
    }
}

fn check_tag_override(tag: &TagOverride, node: &Node, cx: &mut Context) {
    let removes = tag.operation == Some(TagOperation::Remove);
    match &tag.value {
        Some(value) if removes => {
            let help = "remove `value`, or the operation";
            cx.at_field("value", |cx| cx.error("conflict", &value.span, "a label that is removed has no value", help));
        }
        None if !removes => cx.error("missing-field", &node.span, "the label has no `value`", "write an expression"),
        Some(value) => cx.at_field("value", |cx| check_expression(value, cx)),
        None => {}
    }
}
