//! Telemetry settings of MeshConfig: where proxies send spans and access logs.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::istio::{
    self, AccessLogEncoding, AccessLogService, ExtensionProvider, FileAccessLog, OtelAccessLog, ProviderHeader,
    ProviderKind, ProviderLog, TraceContextOption,
};

use evenkeel_api::formats::{are_formats, is_format};
use evenkeel_base::Spanned;

use super::shared;
use crate::provider::ProviderService;
use crate::telemetry::{
    AccessLogTarget, Collector, CollectorProtocol, DefaultProviders, LogService, LogSubject, OtlpLog, Provider, STDOUT,
    TelemetrySettings,
};
use crate::{AccessLogFile, AccessLogFormat, MeshConfig};

/// The path of spans for Zipkin, if none is given.
const ZIPKIN_PATH: &str = "/api/v2/spans";
/// Limit of a call with spans over HTTP, as in Istio.
const OTLP_TIMEOUT: Duration = Duration::from_secs(3);

/// Applies the settings.
pub(super) fn apply(mesh: &mut MeshConfig, said: &istio::MeshConfig) {
    // An empty text turns the log off.
    let text = |text: &str| (!text.is_empty()).then(|| shared(text));
    if let Some(file) = &said.access_log_file {
        mesh.access_log_file = text(file);
    }
    if let Some(encoding) = said.access_log_encoding {
        mesh.access_log_json = encoding == AccessLogEncoding::Json;
    }
    if let Some(format) = &said.access_log_format {
        let is_json = mesh.access_log_json;
        let is_readable = |format: &Arc<str>| match serde_json::from_str(format) {
            Ok(keys) if is_json => are_formats(&keys),
            _ => is_json || is_format(format),
        };
        mesh.access_log_format = text(format).filter(is_readable);
    }
    mesh.logs_unmatched = !said.disable_envoy_listener_log.unwrap_or(!mesh.logs_unmatched);
    let telemetry = &mut mesh.telemetry;
    telemetry.traces = said.enable_tracing.unwrap_or(telemetry.traces);
    if let Some(wanted) = &said.enable_envoy_access_log_service {
        telemetry.sends_logs = wanted.value;
    }
    if !said.extension_providers.is_empty() {
        // Of several with one name the first counts.
        let declared = said.extension_providers.iter().rev().map(|one| (shared(&one.name), provider(one)));
        telemetry.providers.extend(declared);
    }
    if let Some(named) = &said.default_providers {
        let names = |names: &[Spanned<String>]| names.iter().map(|name| shared(name)).collect();
        telemetry.defaults = DefaultProviders {
            tracing: names(&named.tracing),
            access_logging: names(&named.access_logging),
            // Istio's installation names Prometheus, too, where the user names no provider of metrics.
            metrics: if named.metrics.is_empty() {
                TelemetrySettings::default().defaults.metrics
            } else {
                names(&named.metrics)
            },
        };
    }
}

fn collector(provider: &ExtensionProvider) -> Option<Collector> {
    if let Some(zipkin) = &provider.zipkin {
        let path = zipkin.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(ZIPKIN_PATH);
        return Some(Collector {
            service: ProviderService::parse(&zipkin.service, zipkin.port.0),
            max_path_bytes: zipkin.max_tag_length.filter(|most| *most > 0),
            protocol: CollectorProtocol::Zipkin {
                path: shared(path),
                short_ids: zipkin.enable_64bit_trace_id.unwrap_or_default(),
                uses_w3c: zipkin.trace_context_option.as_ref().map(|option| option.value)
                    == Some(TraceContextOption::B3WithW3c),
                timeout: zipkin.timeout.as_ref().map(|timeout| timeout.value),
                headers: headers(zipkin.headers.iter().map(|header| &header.value)),
            },
            reads_environment: false,
        });
    }
    let otel = provider.opentelemetry.as_ref()?;
    let protocol = match (&otel.http, &otel.grpc) {
        (Some(http), _) => CollectorProtocol::OtlpHttp {
            path: shared(&http.path),
            timeout: http.timeout.unwrap_or(OTLP_TIMEOUT),
            headers: headers(http.headers.iter()),
        },
        (None, grpc) => CollectorProtocol::OtlpGrpc {
            timeout: grpc.as_ref().and_then(|grpc| grpc.timeout),
            metadata: grpc.as_ref().map(|grpc| headers(grpc.initial_metadata.iter())).unwrap_or_default(),
        },
    };
    Some(Collector {
        service: ProviderService::parse(&otel.service, otel.port.0),
        max_path_bytes: otel.max_tag_length.filter(|most| *most > 0),
        protocol,
        reads_environment: otel.resource_detectors.as_ref().is_some_and(|all| all.environment.is_some()),
    })
}

/// Headers with their values; the control plane does not read those of its environment.
fn headers<'h>(all: impl Iterator<Item = &'h ProviderHeader>) -> Vec<(Arc<str>, Arc<str>)> {
    all.filter_map(|header| Some((header.name.0.clone(), shared(header.value.as_deref()?)))).collect()
}

fn provider(written: &ExtensionProvider) -> Provider {
    match written.kind() {
        Some(ProviderKind::Tracing) => {
            collector(written).map_or(Provider::Unsupported, |collector| Provider::Tracer(Arc::new(collector)))
        }
        Some(ProviderKind::FileLog | ProviderKind::RemoteLog) => {
            written.log().map_or(Provider::Unsupported, |log| Provider::Log(Arc::new(target(log))))
        }
        Some(ProviderKind::Metrics) => Provider::Metrics,
        Some(ProviderKind::Authorization | ProviderKind::Secrets) | None => Provider::Other,
    }
}

fn target(log: ProviderLog<'_>) -> AccessLogTarget {
    match log {
        ProviderLog::File(log) => AccessLogTarget::File(file_log(log)),
        ProviderLog::Http(log) => AccessLogTarget::Service(log_service(log, LogSubject::Http)),
        ProviderLog::Tcp(log) => AccessLogTarget::Service(log_service(log, LogSubject::Tcp)),
        ProviderLog::OpenTelemetry(log) => AccessLogTarget::OpenTelemetry(otlp_log(log)),
    }
}

fn otlp_log(log: &OtelAccessLog) -> OtlpLog {
    let format = log.log_format.as_ref();
    let labels = format.and_then(|format| format.labels.as_ref()).map(|labels| &labels.0);
    OtlpLog {
        service: ProviderService::parse(&log.service, log.port.0),
        log_name: log.log_name.as_deref().filter(|name| !name.is_empty()).map(shared),
        filter_state: log.filter_state_objects_to_log.clone(),
        body: format
            .and_then(|format| format.text.as_deref())
            .filter(|text| !text.is_empty() && is_format(text))
            .map(shared),
        attributes: labels.filter(|labels| are_formats(labels)).map(|labels| shared(&labels.to_string())),
    }
}

fn log_service(log: &AccessLogService, subject: LogSubject) -> LogService {
    LogService {
        subject,
        service: ProviderService::parse(&log.service, log.port.0),
        log_name: log.log_name.as_deref().filter(|name| !name.is_empty()).map(shared),
        filter_state: log.filter_state_objects_to_log.clone(),
        request_headers: log.additional_request_headers_to_log.clone(),
        response_headers: log.additional_response_headers_to_log.clone(),
        response_trailers: log.additional_response_trailers_to_log.clone(),
    }
}

fn file_log(log: &FileAccessLog) -> AccessLogFile {
    let format = log.log_format.as_ref();
    AccessLogFile {
        path: shared(log.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(STDOUT)),
        format: match format.and_then(|format| format.labels.as_ref()) {
            // Istio uses its own keys if there are none.
            Some(labels) if labels.0.as_object().is_some_and(|keys| !keys.is_empty()) && are_formats(&labels.0) => {
                AccessLogFormat::Json(Some(shared(&labels.0.to_string())))
            }
            Some(_) => AccessLogFormat::Json(None),
            None => {
                let text = format.and_then(|format| format.text.as_deref());
                AccessLogFormat::Text(text.filter(|text| is_format(text)).map(shared))
            }
        },
        omit_empty_values: log.omit_empty_values.unwrap_or_default(),
    }
}
