//! Access logs, as Telemetry objects and the mesh's settings say.

use evenkeel_model::telemetry::{AccessLogTarget, LogChoice, LogService, LogSubject, OtlpLog};
use evenkeel_model::{AccessLogFile, AccessLogFormat};
use prost::{Message, Name};

use crate::context::Context;
use crate::otlp_value;
use crate::pb::config::accesslog::access_log::ConfigType;
use crate::pb::config::accesslog::access_log_filter::FilterSpecifier;
use crate::pb::config::accesslog::{
    AccessLog, AccessLogFilter, AndFilter, ExtensionFilter, ResponseFlagFilter, extension_filter,
};
use crate::pb::core::grpc_service::{EnvoyGrpc, TargetSpecifier};
use crate::pb::core::{ApiVersion, DataSource, GrpcService, data_source};
use crate::pb::expression_filter::ExpressionFilter;
use crate::pb::file_access_log::FileAccessLog;
use crate::pb::grpc_access_log::{CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig, TcpGrpcAccessLogConfig};
use crate::pb::otlp_access_log::OpenTelemetryAccessLogConfig;
use crate::proto::{OrderedStruct, OrderedValue, any, any_named};

/// Istio's default text format: its documentation, "Envoy Access Logs".
pub const DEFAULT_FORMAT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
    %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
    \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
    %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
    \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% \
    %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n";

/// Istio's default keys of a JSON log.
const DEFAULT_JSON_KEYS: [(&str, &str); 23] = [
    ("authority", "%REQ(:AUTHORITY)%"),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("connection_termination_details", "%CONNECTION_TERMINATION_DETAILS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("duration", "%DURATION%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("requested_server_name", "%REQUESTED_SERVER_NAME%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("route_name", "%ROUTE_NAME%"),
    ("start_time", "%START_TIME%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER_RAW%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("upstream_service_time", "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"),
    ("upstream_transport_failure_reason", "%UPSTREAM_TRANSPORT_FAILURE_REASON%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
];

/// The logs of requests; none if the mesh's settings name none.
pub fn of_requests(context: Context<'_>) -> Vec<AccessLog> {
    logs(context, Subject::Request)
}

/// The logs of connections.
pub fn of_connections(context: Context<'_>) -> Vec<AccessLog> {
    logs(context, Subject::Connection)
}

/// The listener's own logs, for connections that match no filter chain (flag `NR`).
pub fn of_unmatched(context: Context<'_>) -> Vec<AccessLog> {
    if context.snapshot.mesh().logs_unmatched { logs(context, Subject::Unmatched) } else { Vec::new() }
}

/// The subject of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Request,
    Connection,
    Unmatched,
}

impl Subject {
    fn filter(self) -> Option<AccessLogFilter> {
        let no_route = FilterSpecifier::ResponseFlagFilter(ResponseFlagFilter { flags: vec!["NR".to_owned()] });
        (self == Self::Unmatched).then_some(AccessLogFilter { filter_specifier: Some(no_route) })
    }

    /// The log's own filter, and that of an expression (CEL).
    fn filter_with(self, expression: Option<&str>) -> Option<AccessLogFilter> {
        let by_expression = expression.map(|expression| {
            let config = ExpressionFilter { expression: expression.to_owned(), ..Default::default() };
            let config = extension_filter::ConfigType::TypedConfig(any(&config));
            let name = "envoy.access_loggers.extension_filters.cel".to_owned();
            let filter = ExtensionFilter { name, config_type: Some(config) };
            AccessLogFilter { filter_specifier: Some(FilterSpecifier::ExtensionFilter(filter)) }
        });
        match (self.filter(), by_expression) {
            (Some(own), Some(other)) => {
                let both = AndFilter { filters: vec![own, other] };
                Some(AccessLogFilter { filter_specifier: Some(FilterSpecifier::AndFilter(both)) })
            }
            (own, other) => own.or(other),
        }
    }

    /// Istio's name of the log at a service.
    fn log_name(self) -> &'static str {
        match self {
            Self::Request => "http_envoy_accesslog",
            Self::Connection => "tcp_envoy_accesslog",
            Self::Unmatched => "listener_envoy_accesslog",
        }
    }

    fn is(self, subject: LogSubject) -> bool {
        (self == Self::Request) == (subject == LogSubject::Http)
    }
}

fn logs(context: Context<'_>, subject: Subject) -> Vec<AccessLog> {
    let mesh = context.snapshot.mesh();
    if let Some(choices) = context.logs() {
        let log = |choice: &LogChoice| match &*choice.target {
            AccessLogTarget::File(file) => Some(file_log(file, subject.filter_with(choice.filter.as_deref()))),
            AccessLogTarget::Service(service) => {
                let log = at_provider(context, service, subject)?;
                Some(AccessLog { filter: subject.filter_with(choice.filter.as_deref()), ..log })
            }
            AccessLogTarget::OpenTelemetry(log) => {
                let log = at_collector(context, log)?;
                Some(AccessLog { filter: subject.filter_with(choice.filter.as_deref()), ..log })
            }
        };
        return choices.iter().filter_map(log).collect();
    }
    let file = mesh.access_log_file.as_ref().map(|path| AccessLogFile {
        path: path.clone(),
        format: if mesh.access_log_json {
            AccessLogFormat::Json(mesh.access_log_format.clone())
        } else {
            AccessLogFormat::Text(mesh.access_log_format.clone())
        },
        omit_empty_values: false,
    });
    let file = file.map(|file| file_log(&file, subject.filter()));
    let sends = mesh.telemetry.sends_logs && context.options().has_log_service;
    let own = sends.then(|| {
        let target = EnvoyGrpc { cluster_name: OWN_SERVICE.to_owned(), ..EnvoyGrpc::default() };
        service_log(subject, common(subject.log_name(), target), None)
    });
    file.into_iter().chain(own).collect()
}

/// The static cluster of the bootstrap that leads to `envoyAccessLogService`, as in Istio.
const OWN_SERVICE: &str = "envoy_accesslog_service";

/// Returns the log at the service of a provider; `None` if it has another subject, or there is no such service.
fn at_provider(context: Context<'_>, log: &LogService, subject: Subject) -> Option<AccessLog> {
    let (cluster_name, authority) = context.provider_cluster(&log.service).filter(|_| subject.is(log.subject))?;
    let name = log.log_name.as_deref().unwrap_or_else(|| subject.log_name());
    let mut config = common(name, EnvoyGrpc { cluster_name, authority, ..EnvoyGrpc::default() });
    config.filter_state_objects_to_log = log.filter_state.clone();
    Some(service_log(subject, config, Some(log)))
}

/// Istio's name of logs for OpenTelemetry.
const OTLP_LOG_NAME: &str = "otel_envoy_accesslog";

/// Returns the log at a collector of OpenTelemetry; `None` if there is no such service.
fn at_collector(context: Context<'_>, log: &OtlpLog) -> Option<AccessLog> {
    let (cluster_name, authority) = context.provider_cluster(&log.service)?;
    let target = EnvoyGrpc { cluster_name, authority, ..EnvoyGrpc::default() };
    let mut common = common(log.log_name.as_deref().unwrap_or(OTLP_LOG_NAME), target);
    common.filter_state_objects_to_log = log.filter_state.clone();
    #[allow(deprecated, reason = "as in Istio: older versions of Envoy know nothing else")]
    let config = OpenTelemetryAccessLogConfig {
        common_config: Some(common),
        disable_builtin_labels: true,
        body: Some(otlp_value::text(log.body.as_deref().unwrap_or(DEFAULT_FORMAT))),
        attributes: log.attributes.as_deref().and_then(otlp_value::fields),
        ..OpenTelemetryAccessLogConfig::default()
    };
    let name = "envoy.access_loggers.open_telemetry".to_owned();
    Some(AccessLog { name, filter: None, config_type: Some(ConfigType::TypedConfig(any(&config))) })
}

fn common(log_name: &str, target: EnvoyGrpc) -> CommonGrpcAccessLogConfig {
    CommonGrpcAccessLogConfig {
        log_name: log_name.to_owned(),
        grpc_service: Some(GrpcService {
            target_specifier: Some(TargetSpecifier::EnvoyGrpc(target)),
            ..GrpcService::default()
        }),
        transport_api_version: ApiVersion::V3 as i32,
        ..CommonGrpcAccessLogConfig::default()
    }
}

/// `log`: the headers that are logged.
fn service_log(subject: Subject, common: CommonGrpcAccessLogConfig, log: Option<&LogService>) -> AccessLog {
    let (name, config) = match subject {
        Subject::Request => {
            let config = HttpGrpcAccessLogConfig {
                common_config: Some(common),
                additional_request_headers_to_log: log.map(|log| log.request_headers.clone()).unwrap_or_default(),
                additional_response_headers_to_log: log.map(|log| log.response_headers.clone()).unwrap_or_default(),
                additional_response_trailers_to_log: log.map(|log| log.response_trailers.clone()).unwrap_or_default(),
            };
            ("envoy.access_loggers.http_grpc", any(&config))
        }
        Subject::Connection | Subject::Unmatched => {
            ("envoy.access_loggers.tcp_grpc", any(&TcpGrpcAccessLogConfig { common_config: Some(common) }))
        }
    };
    AccessLog { name: name.to_owned(), filter: subject.filter(), config_type: Some(ConfigType::TypedConfig(config)) }
}

fn file_log(file: &AccessLogFile, filter: Option<AccessLogFilter>) -> AccessLog {
    let format = match &file.format {
        AccessLogFormat::Json(keys) => {
            LogFormat { omit_empty_values: file.omit_empty_values, ..json_format(keys.as_deref()) }
        }
        AccessLogFormat::Text(format) => text_format(format.as_deref().unwrap_or(DEFAULT_FORMAT)),
    };
    let config = FileLog { path: file.path.to_string(), log_format: Some(format) };
    AccessLog {
        name: "envoy.access_loggers.file".to_owned(),
        filter,
        config_type: Some(ConfigType::TypedConfig(any_named(&FileAccessLog::full_name(), &config))),
    }
}

fn text_format(format: &str) -> LogFormat {
    let source =
        DataSource { specifier: Some(data_source::Specifier::InlineString(format.to_owned())), ..Default::default() };
    LogFormat { text_format_source: Some(source), json_format: None, omit_empty_values: false }
}

/// JSON with the user's keys (a JSON object of operators, which may be nested), or with Istio's.
fn json_format(format: Option<&str>) -> LogFormat {
    let own = format.and_then(|f| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(f).ok());
    let fields = match own {
        Some(keys) => keys.iter().map(|(key, value)| (key.clone(), OrderedValue::of(value))).collect(),
        None => {
            DEFAULT_JSON_KEYS.iter().map(|(key, operator)| ((*key).to_owned(), OrderedValue::text(operator))).collect()
        }
    };
    LogFormat { text_format_source: None, json_format: Some(OrderedStruct { fields }), omit_empty_values: false }
}

/// `envoy.extensions.access_loggers.file.v3.FileAccessLog` over ordered JSON keys.
#[derive(Clone, PartialEq, Message)]
struct FileLog {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(message, optional, tag = "5")]
    log_format: Option<LogFormat>,
}

/// `envoy.config.core.v3.SubstitutionFormatString`; one of the two is set.
#[derive(Clone, PartialEq, Message)]
struct LogFormat {
    #[prost(message, optional, tag = "2")]
    json_format: Option<OrderedStruct>,
    #[prost(bool, tag = "3")]
    omit_empty_values: bool,
    #[prost(message, optional, tag = "5")]
    text_format_source: Option<DataSource>,
}
