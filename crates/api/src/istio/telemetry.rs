//! Telemetry: the traces, metrics and access logs of workloads.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::WorkloadSelector;
use super::target_ref::{TargetRef, check_only_one};
use super::tracing::{EnvironmentTag, HeaderTag, LiteralTag, TagSource};
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
    }
    later: ["metrics" = "the proxies' own statistics are at `/stats/prometheus`"];
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
    }
    later: ["formatter"];
    check: check_tag;
}

impl TelemetryTag {
    /// Returns the source of its value; `None`: the check has reported why it is ignored.
    pub fn usable(&self) -> Option<TagSource<'_>> {
        TagSource::only(self.literal.as_ref(), self.environment.as_ref(), self.header.as_ref())
    }
}

fn check_tag(tag: &TelemetryTag, node: &Node, cx: &mut Context) {
    let is_later = node.get("formatter").is_some();
    if !is_later && tag.usable().is_none() {
        let message = "a tag has one of `literal`, `environment` and `header`, with a value or a name; it is left out";
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
    }
    later: ["filter" = "everything is logged"];
}
