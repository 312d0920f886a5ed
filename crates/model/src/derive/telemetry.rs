//! Telemetry settings of MeshConfig: where proxies send spans and access logs.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::Object;
use evenkeel_api::istio::{
    self, AccessLogEncoding, AccessLogService, DefaultLog, ExtensionProvider, FileAccessLog, ProviderHeader,
};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::shared;
use super::tracking::Cx;
use crate::provider::ProviderService;
use crate::telemetry::{AccessLogTarget, Collector, CollectorProtocol, LogService, LogSubject};
use crate::{AccessLogFile, AccessLogFormat, MeshConfig};

/// The target of an access log without a file, as in Istio's built-in provider `envoy`.
const STDOUT: &str = "/dev/stdout";
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
    if let Some(format) = &said.access_log_format {
        mesh.access_log_format = text(format);
    }
    if let Some(encoding) = said.access_log_encoding {
        mesh.access_log_json = encoding == AccessLogEncoding::Json;
    }
    mesh.logs_unmatched = !said.disable_envoy_listener_log.unwrap_or(!mesh.logs_unmatched);
    let telemetry = &mut mesh.telemetry;
    telemetry.traces = said.enable_tracing.unwrap_or(telemetry.traces);
    if let Some(wanted) = &said.enable_envoy_access_log_service {
        telemetry.sends_logs = wanted.value;
    }
    if said.default_providers.is_some() {
        mesh.access_log_providers = said.default_logs().map(target).collect();
        mesh.telemetry.collector = said.tracer().and_then(|(_, provider)| collector(provider)).map(Arc::new);
    }
}

/// Reports services of used providers that do not exist: nothing is sent to them.
pub(super) fn note_missing_services(cx: &Cx<'_>, object: &Object, said: &istio::MeshConfig, found: &mut Diagnostics) {
    let mut note = |finding: Diagnostic| found.push(finding.about(object.reference()));
    let tracer = said.tracer().and_then(|(_, provider)| {
        let zipkin = provider.zipkin.as_ref().map(|zipkin| (&zipkin.service, zipkin.port.0));
        zipkin.or_else(|| provider.opentelemetry.as_ref().map(|otel| (&otel.service, otel.port.0)))
    });
    let logs = said.default_logs().filter_map(|log| match log {
        DefaultLog::File(_) => None,
        DefaultLog::Http(service) | DefaultLog::Tcp(service) => Some((&service.service, service.port.0)),
    });
    for (written, port) in tracer.into_iter().chain(logs) {
        let place = ProviderService::parse(written, port);
        let Some(host) = &place.host else {
            let message = format!("`{}` is not the name of a service; nothing is sent to it", written.value);
            let help = "write `[NAMESPACE/]HOST`, with the full name of the host";
            note(Diagnostic::warning("bad-host", written.span.clone(), message).with_help(help));
            continue;
        };
        let services = cx.services_of(host);
        let mut known = services.iter().map(|(_, known)| known).filter(|known| place.is_in(&known.namespace));
        let (code, problem) = match known.next() {
            None => ("missing-service", format!("there is no service `{}`", written.value)),
            Some(known) if known.port(port).is_none() => {
                ("missing-port", format!("`{}` has no port {port}", written.value))
            }
            Some(_) => continue,
        };
        let message = format!("{problem}; nothing is sent to it");
        note(Diagnostic::warning(code, written.span.clone(), message).with_help("add it, or correct the name"));
    }
}

fn collector(provider: &ExtensionProvider) -> Option<Collector> {
    if let Some(zipkin) = &provider.zipkin {
        let path = zipkin.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(ZIPKIN_PATH);
        let short_ids = zipkin.enable_64bit_trace_id.unwrap_or_default();
        return Some(Collector {
            service: ProviderService::parse(&zipkin.service, zipkin.port.0),
            max_path_bytes: zipkin.max_tag_length.filter(|most| *most > 0),
            protocol: CollectorProtocol::Zipkin { path: shared(path), short_ids },
        });
    }
    let otel = provider.opentelemetry.as_ref()?;
    let headers = |all: &[ProviderHeader]| {
        let given = |header: &ProviderHeader| Some((header.name.0.clone(), shared(header.value.as_deref()?)));
        all.iter().filter_map(given).collect()
    };
    let protocol = match (&otel.http, &otel.grpc) {
        (Some(http), _) => CollectorProtocol::OtlpHttp {
            path: shared(&http.path),
            timeout: http.timeout.unwrap_or(OTLP_TIMEOUT),
            headers: headers(&http.headers),
        },
        (None, grpc) => CollectorProtocol::OtlpGrpc {
            timeout: grpc.as_ref().and_then(|grpc| grpc.timeout),
            metadata: grpc.as_ref().map(|grpc| headers(&grpc.initial_metadata)).unwrap_or_default(),
        },
    };
    Some(Collector {
        service: ProviderService::parse(&otel.service, otel.port.0),
        max_path_bytes: otel.max_tag_length.filter(|most| *most > 0),
        protocol,
    })
}

fn target(log: DefaultLog<'_>) -> AccessLogTarget {
    match log {
        DefaultLog::File(log) => AccessLogTarget::File(file_log(log)),
        DefaultLog::Http(log) => AccessLogTarget::Service(log_service(log, LogSubject::Http)),
        DefaultLog::Tcp(log) => AccessLogTarget::Service(log_service(log, LogSubject::Tcp)),
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

fn file_log(log: Option<&FileAccessLog>) -> AccessLogFile {
    let format = log.and_then(|log| log.log_format.as_ref());
    AccessLogFile {
        path: shared(log.and_then(|log| log.path.as_deref()).filter(|path| !path.is_empty()).unwrap_or(STDOUT)),
        format: match format.and_then(|format| format.labels.as_ref()) {
            // Istio uses its own keys if there are none.
            Some(labels) if labels.0.as_object().is_some_and(|keys| !keys.is_empty()) => {
                AccessLogFormat::Json(Some(shared(&labels.0.to_string())))
            }
            Some(_) => AccessLogFormat::Json(None),
            None => AccessLogFormat::Text(format.and_then(|format| format.text.as_deref()).map(shared)),
        },
        omit_empty_values: log.and_then(|log| log.omit_empty_values).unwrap_or_default(),
    }
}
