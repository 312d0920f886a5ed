//! Telemetry objects, and the providers that they and the mesh's settings name.

use std::collections::BTreeSet;

use evenkeel_api::istio::{
    self, MetricSelector, ModeSelector, ProviderKind, ProviderRef, StandardMetric, TagOperation, TelemetryLogging,
    TelemetryMetrics, TelemetrySpec, TelemetryTracing, WorkloadMode,
};
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::suggest::instead;
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::run::Run;
use super::selections::note_idle;
use super::step::Results;
use super::tracking::Cx;
use super::{renew, reuse_if_equal, shared};
use crate::provider::ProviderService;
use crate::telemetry::{
    AccessLogTarget, LogRule, MetricsOverride, MetricsRule, Provider, Side, TagValue, Telemetry, TelemetrySettings,
    TracingRule,
};
use crate::{List, Selection, Snapshot};

/// All Telemetry objects, in the order of precedence.
#[derive(Debug, Default)]
pub(super) struct Table(List<Telemetry>);

pub(super) fn all_step(run: &mut Run<'_>) -> bool {
    let all = run.read(all);
    let table = &mut run.tables.telemetries;
    let old = std::mem::take(&mut table.0);
    let before = |one: &Telemetry| old.iter().find(|old| old.name == one.name && old.namespace == one.namespace);
    table.0 = all.into_iter().map(|one| reuse_if_equal(before(&one), one)).collect();
    true
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        renew(&mut next.telemetries, Some(self.0.iter().cloned()))
    }
}

fn all(cx: &Cx<'_>, found: &mut Diagnostics) -> Vec<Telemetry> {
    let mut all: Vec<Telemetry> = Vec::new();
    for object in cx.objects(Kind::Telemetry) {
        let Resource::Telemetry(written) = &object.resource else { continue };
        let Some(spec) = &written.spec else { continue };
        let one = telemetry(object, spec);
        note_idle(cx, object, &one.selection, targets(spec), false, found);
        note_providers(cx, object, spec, found);
        let is_same = |other: &&Telemetry| other.namespace == one.namespace && other.selection == one.selection;
        // Of several for a whole namespace the first counts; all that select a workload count for it.
        match all.iter().find(is_same).filter(|_| one.selection.is_everything()) {
            Some(first) => {
                let message = format!("{object} is ignored: `{}` already applies to the whole namespace", first.name);
                let finding = Diagnostic::warning("overridden", object.origin.clone(), message);
                let finding = finding.about(object.reference()).with_help("merge the two");
                found.push(finding.with_related(first.origin.clone(), "this one applies"));
            }
            None => all.push(one),
        }
    }
    all
}

fn targets(spec: &TelemetrySpec) -> impl Iterator<Item = &istio::TargetRef> {
    spec.target_ref.iter().chain(&spec.target_refs)
}

fn telemetry(object: &Object, spec: &TelemetrySpec) -> Telemetry {
    Telemetry {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        selection: Selection::of_telemetry(spec),
        tracing: spec.tracing.iter().map(tracing_rule).collect(),
        logs: spec.access_logging.iter().map(log_rule).collect(),
        metrics: spec.metrics.iter().map(metrics_rule).collect(),
        origin: object.origin.clone(),
    }
}

fn side(selector: Option<&ModeSelector>) -> Option<Side> {
    selector?.mode.and_then(side_of)
}

fn side_of(mode: WorkloadMode) -> Option<Side> {
    match mode {
        WorkloadMode::ClientAndServer => None,
        WorkloadMode::Client => Some(Side::Client),
        WorkloadMode::Server => Some(Side::Server),
    }
}

fn tracing_rule(rule: &TelemetryTracing) -> TracingRule {
    let tags = rule.custom_tags.iter().filter_map(|(name, tag)| Some((name.clone(), TagValue::of(tag.usable()?))));
    TracingRule {
        side: side(rule.r#match.as_ref()),
        provider: rule.providers.first().map(|provider| shared(&provider.name)),
        disabled: rule.disable_span_reporting,
        sampling: rule.random_sampling_percentage.as_ref().map(|percent| percent.value.0),
        tags: tags.filter(|(name, _)| !name.is_empty()).collect(),
        istio_tags: rule.enable_istio_tags,
    }
}

fn log_rule(rule: &TelemetryLogging) -> LogRule {
    LogRule {
        side: side(rule.r#match.as_ref()),
        providers: rule.providers.iter().map(|provider| shared(&provider.name)).collect(),
        disabled: rule.disabled.unwrap_or_default(),
        filter: rule
            .filter
            .as_ref()
            .and_then(|filter| filter.expression.as_ref())
            .filter(|text| !text.is_empty())
            .map(|text| shared(text)),
    }
}

fn metrics_rule(rule: &TelemetryMetrics) -> MetricsRule {
    MetricsRule {
        providers: rule.providers.iter().map(|provider| shared(&provider.name)).collect(),
        overrides: rule.overrides.iter().map(metrics_override).collect(),
        interval: rule.reporting_interval.filter(|interval| !interval.is_zero()),
    }
}

fn metrics_override(change: &istio::MetricsOverride) -> MetricsOverride {
    let everything = MetricSelector { metric: None, custom_metric: None, mode: None };
    let selector = change.r#match.as_ref().unwrap_or(&everything);
    let removed = change.tag_overrides.iter().filter(|(_, tag)| tag.operation == Some(TagOperation::Remove));
    let values = change.tag_overrides.iter().filter_map(|(name, tag)| Some((name, tag.expression()?)));
    MetricsOverride {
        side: selector.mode.and_then(side_of),
        metrics: selector.names(),
        is_for_all: selector.custom_metric.is_none() && matches!(selector.metric, None | Some(StandardMetric::All)),
        disabled: change.disabled,
        without: removed.map(|(name, _)| shared(name)).collect(),
        values: values.map(|(name, text)| (shared(name), shared(text))).collect(),
    }
}

/// The purpose for which a provider is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Tracing,
    AccessLogging,
    Metrics,
}

/// Reports providers of a Telemetry object that do not exist, that are of another kind, or whose service does not exist.
fn note_providers(cx: &Cx<'_>, object: &Object, spec: &TelemetrySpec, found: &mut Diagnostics) {
    let tracing = spec.tracing.iter().map(|rule| (Purpose::Tracing, &rule.providers));
    let logs = spec.access_logging.iter().map(|rule| (Purpose::AccessLogging, &rule.providers));
    let metrics = spec.metrics.iter().map(|rule| (Purpose::Metrics, &rule.providers));
    for (purpose, providers) in tracing.chain(logs).chain(metrics) {
        for provider in providers {
            if let Some((code, problem, help)) = problem(cx, &cx.mesh().telemetry, purpose, &provider.name) {
                let message = format!("`{}`: {problem}", provider.name.value);
                let finding = Diagnostic::warning(code, provider.name.span.clone(), message);
                found.push(finding.with_help(help).about(object.reference()));
            }
        }
        note_further_collectors(object, purpose, providers, found);
    }
    if let Some(rule) = spec.tracing.iter().find(|rule| rule.providers.is_empty())
        && cx.mesh().telemetry.defaults.tracing.is_empty()
        && rule.disable_span_reporting != Some(true)
        && !is_named_outside(cx, object)
    {
        let message = format!("{object} traces nothing where no other object names a provider");
        let finding = Diagnostic::warning("no-effect", object.origin.clone(), message).about(object.reference());
        found.push(finding.with_help("name one in `tracing[].providers`, or in the mesh's `defaultProviders.tracing`"));
    }
}

/// Whether another Telemetry object names a collector.
fn is_named_outside(cx: &Cx<'_>, object: &Object) -> bool {
    cx.objects(Kind::Telemetry).any(|other| {
        let Resource::Telemetry(telemetry) = &other.resource else { return false };
        let mut rules = telemetry.spec.iter().flat_map(|spec| &spec.tracing);
        (other.name != object.name || other.namespace != object.namespace)
            && rules.any(|rule| !rule.providers.is_empty())
    })
}

fn note_further_collectors(object: &Object, purpose: Purpose, providers: &[ProviderRef], found: &mut Diagnostics) {
    for further in providers.iter().skip(1).filter(|_| purpose == Purpose::Tracing) {
        let message = format!("`{}`: spans go to one collector; ignored", further.name.value);
        let finding = Diagnostic::warning("unsupported-provider", further.name.span.clone(), message);
        found.push(finding.with_help("remove it").about(object.reference()));
    }
}

/// Why nothing is sent to a provider: the code of the finding, the reason, and what helps.
fn problem(
    cx: &Cx<'_>,
    settings: &TelemetrySettings,
    purpose: Purpose,
    name: &str,
) -> Option<(&'static str, String, String)> {
    let code = "unsupported-provider";
    let unsupported = |text: &str, help: &str| Some((code, text.to_owned(), help.to_owned()));
    let service = match (settings.providers.get(name), purpose) {
        (None, _) => {
            let help = instead(name, settings.providers.keys().map(|known| &**known));
            return Some((code, "no such provider; nothing is sent there".to_owned(), help));
        }
        (Some(Provider::Unsupported), _) => {
            return unsupported(
                "providers of this kind are not supported yet; nothing is sent there",
                "supported: `zipkin` and `opentelemetry`",
            );
        }
        (Some(Provider::Tracer(collector)), Purpose::Tracing) => &collector.service,
        (Some(Provider::Log(log)), Purpose::AccessLogging) => match &**log {
            AccessLogTarget::File(_) => return None,
            AccessLogTarget::Service(log) => &log.service,
            AccessLogTarget::OpenTelemetry(log) => &log.service,
        },
        (Some(Provider::Metrics), Purpose::Metrics) => return None,
        (Some(_), _) => {
            return unsupported("it is not a provider of this kind; ignored", "name it where it belongs");
        }
    };
    let (code, problem) = missing(cx, service)?;
    Some((code, format!("{problem}; nothing is sent to it"), "add it, or correct the name".to_owned()))
}

/// Why the service of a provider cannot be called: the code of the finding, and the reason.
fn missing(cx: &Cx<'_>, place: &ProviderService) -> Option<(&'static str, String)> {
    let Some(host) = &place.host else {
        return Some(("bad-host", "its `service` is not the name of a service".to_owned()));
    };
    let services = cx.services_of(host);
    let mut known = services.iter().map(|(_, known)| known).filter(|known| place.is_in(&known.namespace));
    match known.next() {
        None => Some(("missing-service", format!("there is no service `{place}`"))),
        Some(known) if known.port(place.port).is_none() => {
            Some(("missing-port", format!("`{place}` has no port {}", place.port)))
        }
        Some(_) => None,
    }
}

/// Reports providers of the mesh's settings that nothing uses, and services of the defaults that do not exist.
pub(super) fn note_providers_of_mesh(cx: &Cx<'_>, object: &Object, said: &istio::MeshConfig, found: &mut Diagnostics) {
    let settings = &cx.mesh().telemetry;
    let defaults = &settings.defaults;
    let mut used: BTreeSet<&str> =
        defaults.tracing.iter().chain(&defaults.access_logging).chain(&defaults.metrics).map(|name| &**name).collect();
    let in_force = said.tracer().map(|(_, provider)| &provider.name);
    let logs = said.default_providers.iter().flat_map(|defaults| &defaults.access_logging);
    for name in in_force.into_iter().chain(logs) {
        note_missing_service(cx, object, said, name, found);
    }
    for telemetry in cx.objects(Kind::Telemetry) {
        let Resource::Telemetry(telemetry) = &telemetry.resource else { continue };
        for spec in telemetry.spec.iter() {
            let tracing = spec.tracing.iter().flat_map(|rule| &rule.providers);
            let logs = spec.access_logging.iter().flat_map(|rule| &rule.providers);
            let metrics = spec.metrics.iter().flat_map(|rule| &rule.providers);
            used.extend(tracing.chain(logs).chain(metrics).map(|provider| provider.name.as_str()));
        }
    }
    for provider in said.extension_providers.iter().filter(|provider| !used.contains(provider.name.as_str())) {
        let field = match provider.kind() {
            None | Some(ProviderKind::Authorization | ProviderKind::Secrets) => continue,
            Some(ProviderKind::Tracing) => "tracing",
            Some(ProviderKind::Metrics) => "metrics",
            Some(ProviderKind::FileLog | ProviderKind::RemoteLog) => "accessLogging",
        };
        let message =
            format!("nothing uses the provider `{}`: no default and no Telemetry names it", provider.name.value);
        let finding = Diagnostic::info("no-effect", provider.name.span.clone(), message).about(object.reference());
        found.push(finding.with_help(format!("name it in `defaultProviders.{field}`, or let it stay")));
    }
}

fn note_missing_service(
    cx: &Cx<'_>,
    object: &Object,
    said: &istio::MeshConfig,
    name: &Spanned<String>,
    found: &mut Diagnostics,
) {
    let Some(written) = said.extension_providers.iter().find(|provider| provider.name.value == name.value) else {
        return;
    };
    let zipkin = written.zipkin.as_ref().map(|zipkin| (&zipkin.service, zipkin.port.0));
    let otel = || written.opentelemetry.as_ref().map(|otel| (&otel.service, otel.port.0));
    let log = || match written.log()? {
        istio::ProviderLog::File(_) => None,
        istio::ProviderLog::Http(log) | istio::ProviderLog::Tcp(log) => Some((&log.service, log.port.0)),
        istio::ProviderLog::OpenTelemetry(log) => Some((&log.service, log.port.0)),
    };
    let Some((service, port)) = zipkin.or_else(otel).or_else(log) else { return };
    let Some((code, problem)) = missing(cx, &ProviderService::parse(service, port)) else { return };
    let finding = match code {
        "bad-host" => {
            let message = format!("`{}` is not the name of a service; nothing is sent to it", service.value);
            Diagnostic::warning(code, service.span.clone(), message)
                .with_help("write `[NAMESPACE/]HOST`, with the full name of the host")
        }
        _ => Diagnostic::warning(code, service.span.clone(), format!("{problem}; nothing is sent to it"))
            .with_help("add it, or correct the name"),
    };
    found.push(finding.about(object.reference()));
}
