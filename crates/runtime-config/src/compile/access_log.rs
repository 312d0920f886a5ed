//! `AccessLog`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::accesslog::v3 as accesslog;
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as bootstrap;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::data::accesslog::v3::AccessLogType;
use evenkeel_xds::pb::envoy::extensions::access_loggers::file::v3 as file;
use evenkeel_xds::pb::envoy::extensions::access_loggers::filters::cel::v3 as cel;
use evenkeel_xds::pb::envoy::extensions::access_loggers::stream::v3 as stream;
use evenkeel_xds::pb::google::protobuf::{Struct, Value, value::Kind};

use super::address::data_source;
use super::expression::expression;
use super::runtime::whole_number;
use super::{Cx, extension_type, grpc_access_log, matcher, otlp_access_log, type_name};
use crate::access_log::{AccessLog, Comparison, JsonFormat, LogFilter, LogFormat, LogSink, Operation};
use crate::substitution_format::ENVOY_DEFAULT_FORMAT;

/// The operator is always available, so the formatter needs no support of its own.
const REQ_WITHOUT_QUERY: &str = "envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery";
const CEL_FILTER: &str = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter";
const FILE_ACCESS_LOG: &str = "envoy.extensions.access_loggers.file.v3.FileAccessLog";
const STDOUT_ACCESS_LOG: &str = "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog";
const STDERR_ACCESS_LOG: &str = "envoy.extensions.access_loggers.stream.v3.StderrAccessLog";
const OTLP_ACCESS_LOG: &str = "envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig";
const HTTP_GRPC_ACCESS_LOG: &str = "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig";
const TCP_GRPC_ACCESS_LOG: &str = "envoy.extensions.access_loggers.grpc.v3.TcpGrpcAccessLogConfig";

/// The access loggers in `field`. `written`: when their place has entries written.
pub(crate) fn access_logs(
    cx: &mut Cx<'_>,
    field: &str,
    logs: &[accesslog::AccessLog],
    written: AccessLogType,
) -> Vec<Arc<AccessLog>> {
    let around = std::mem::replace(&mut cx.log_type, written.as_str_name());
    let compiled = cx.each(field, logs, |cx, log| access_log(cx, log, written).map(Arc::new));
    cx.log_type = around;
    compiled
}

/// The logs of the admin port: `access_log`, and `access_log_path` in Envoy's default format.
#[allow(deprecated)] // Most bootstraps that people have written still have `access_log_path`.
pub(crate) fn admin_logs(cx: &mut Cx<'_>, admin: &bootstrap::Admin) -> Vec<Arc<AccessLog>> {
    let mut logs = access_logs(cx, "access_log", &admin.access_log, AccessLogType::DownstreamEnd);
    for (index, log) in logs.iter().enumerate() {
        if log.service().is_some() {
            cx.fail_at::<()>(&format!("access_log[{index}]"), "the admin port is logged to files only");
        }
    }
    if !admin.access_log_path.is_empty()
        && let Some(format) = text(cx, "access_log_path", ENVOY_DEFAULT_FORMAT)
    {
        let sink = LogSink::File { path: admin.access_log_path.as_str().into(), format };
        logs.push(Arc::new(AccessLog { sink, filter: LogFilter::All }));
    }
    logs.retain(|log| !matches!(&log.sink, LogSink::File { path, .. } if **path == *"/dev/null"));
    logs
}

fn access_log(cx: &mut Cx<'_>, log: &accesslog::AccessLog, written: AccessLogType) -> Option<AccessLog> {
    let Some(accesslog::access_log::ConfigType::TypedConfig(any)) = &log.config_type else {
        return cx.fail_at("typed_config", "is required");
    };
    let filter = match &log.filter {
        None => Some(LogFilter::All),
        Some(filter) => cx.at("filter", |cx| log_filter(cx, filter)),
    };
    cx.at("typed_config", |cx| {
        let sink = match type_name(&any.type_url) {
            FILE_ACCESS_LOG => {
                let config: file::FileAccessLog = cx.unpack(any)?;
                LogSink::File { path: cx.non_empty("path", &config.path)?.into(), format: log_format(cx, &config)? }
            }
            STDOUT_ACCESS_LOG => {
                let config: stream::StdoutAccessLog = cx.unpack(any)?;
                let format =
                    config.access_log_format.map(|stream::stdout_access_log::AccessLogFormat::LogFormat(it)| it);
                LogSink::File { path: "/dev/stdout".into(), format: stream_format(cx, format.as_ref())? }
            }
            STDERR_ACCESS_LOG => {
                let config: stream::StderrAccessLog = cx.unpack(any)?;
                let format =
                    config.access_log_format.map(|stream::stderr_access_log::AccessLogFormat::LogFormat(it)| it);
                LogSink::File { path: "/dev/stderr".into(), format: stream_format(cx, format.as_ref())? }
            }
            HTTP_GRPC_ACCESS_LOG => {
                let config = cx.unpack(any)?;
                LogSink::Grpc(Box::new(grpc_access_log::http(cx, &config, written)?))
            }
            TCP_GRPC_ACCESS_LOG => {
                let config = cx.unpack(any)?;
                LogSink::Grpc(Box::new(grpc_access_log::tcp(cx, &config, written)?))
            }
            OTLP_ACCESS_LOG => {
                let config = cx.unpack(any)?;
                LogSink::Grpc(Box::new(otlp_access_log::log(cx, &config, written)?))
            }
            name => return cx.fail(format!("{name} is no access logger")),
        };
        Some(AccessLog { sink, filter: filter? })
    })
}

pub(super) fn log_filter(cx: &mut Cx<'_>, filter: &accesslog::AccessLogFilter) -> Option<LogFilter> {
    use accesslog::access_log_filter::FilterSpecifier;
    match &filter.filter_specifier {
        Some(FilterSpecifier::ResponseFlagFilter(filter)) => {
            Some(LogFilter::ResponseFlags(filter.flags.iter().map(|flag| flag.as_str().into()).collect()))
        }
        Some(FilterSpecifier::StatusCodeFilter(filter)) => {
            comparison(cx, "status_code_filter", filter.comparison.as_ref()).map(LogFilter::StatusCode)
        }
        Some(FilterSpecifier::DurationFilter(filter)) => {
            comparison(cx, "duration_filter", filter.comparison.as_ref()).map(LogFilter::Duration)
        }
        Some(FilterSpecifier::HeaderFilter(filter)) => cx.at("header_filter", |cx| {
            let header = cx.required("header", filter.header.as_ref())?;
            cx.at("header", |cx| matcher::header(cx, header)).map(LogFilter::Header)
        }),
        Some(FilterSpecifier::GrpcStatusFilter(filter)) => {
            // The enumeration's values are the gRPC status codes.
            let statuses = filter.statuses.iter().filter_map(|status| u8::try_from(*status).ok()).collect();
            Some(LogFilter::GrpcStatus { statuses, exclude: filter.exclude })
        }
        // Envoy's filter for health checks marks them; there is none here.
        Some(FilterSpecifier::NotHealthCheckFilter(_)) => Some(LogFilter::All),
        Some(FilterSpecifier::ExtensionFilter(filter)) => cx.at("extension_filter", |cx| extension_filter(cx, filter)),
        Some(FilterSpecifier::AndFilter(and)) => several(cx, "and_filter", &and.filters).map(LogFilter::And),
        Some(FilterSpecifier::OrFilter(or)) => several(cx, "or_filter", &or.filters).map(LogFilter::Or),
        _ => cx.fail("a kind of filter that is supported is required"),
    }
}

fn extension_filter(cx: &mut Cx<'_>, filter: &accesslog::ExtensionFilter) -> Option<LogFilter> {
    let Some(accesslog::extension_filter::ConfigType::TypedConfig(any)) = &filter.config_type else {
        return cx.fail_at("typed_config", "is required");
    };
    cx.at("typed_config", |cx| match type_name(&any.type_url) {
        CEL_FILTER => {
            let config: cel::ExpressionFilter = cx.unpack(any)?;
            expression(cx, "expression", &config.expression).map(LogFilter::Expression)
        }
        name => cx.fail(format!("{name} is no filter of access logs")),
    })
}

/// Recursion depth is bounded by the decoder of the containing message.
fn several(cx: &mut Cx<'_>, field: &str, filters: &[accesslog::AccessLogFilter]) -> Option<Vec<LogFilter>> {
    if filters.len() < 2 {
        return cx.fail_at(&format!("{field}.filters"), "must have two at least");
    }
    let compiled = cx.at(field, |cx| cx.each("filters", filters, log_filter));
    (compiled.len() == filters.len()).then_some(compiled)
}

fn comparison(cx: &mut Cx<'_>, field: &str, config: Option<&accesslog::ComparisonFilter>) -> Option<Comparison> {
    use accesslog::comparison_filter::Op;
    cx.at(field, |cx| {
        let config = cx.required("comparison", config)?;
        cx.at("comparison", |cx| {
            let value = cx.required("value", config.value.as_ref())?;
            let value = whole_number(cx, value);
            let operation = match Op::try_from(config.op) {
                Ok(Op::Eq) => Operation::Equal,
                Ok(Op::Ge) => Operation::AtLeast,
                Ok(Op::Le) => Operation::AtMost,
                Ok(Op::Ne) => Operation::NotEqual,
                Err(_) => return cx.fail_at("op", format!("unknown value {}", config.op)),
            };
            Some(Comparison { operation, value })
        })
    })
}

#[allow(deprecated)] // Older bootstraps have these forms, and Envoy still takes them.
fn log_format(cx: &mut Cx<'_>, config: &file::FileAccessLog) -> Option<LogFormat> {
    use file::file_access_log::AccessLogFormat;
    match &config.access_log_format {
        None => stream_format(cx, None),
        Some(AccessLogFormat::LogFormat(format)) => stream_format(cx, Some(format)),
        Some(AccessLogFormat::Format(format)) if format.is_empty() => stream_format(cx, None),
        Some(AccessLogFormat::Format(format)) => text(cx, "format", format),
        Some(AccessLogFormat::JsonFormat(fields)) => json(cx, "json_format", fields),
        Some(AccessLogFormat::TypedJsonFormat(fields)) => json(cx, "typed_json_format", fields),
    }
}

/// `log_format`, or Envoy's default.
fn stream_format(cx: &mut Cx<'_>, format: Option<&core::SubstitutionFormatString>) -> Option<LogFormat> {
    match format {
        None => text(cx, "log_format", ENVOY_DEFAULT_FORMAT),
        Some(format) => cx.at("log_format", |cx| substitution_format(cx, format)),
    }
}

/// An older JSON format. Values have their types in both forms, as in Envoy.
fn json(cx: &mut Cx<'_>, field: &str, fields: &Struct) -> Option<LogFormat> {
    let root = cx.at(field, |cx| json_object(cx, fields))?;
    Some(LogFormat::Json { root, omit_empty: false })
}

#[allow(deprecated)] // text_format is still accepted by Envoy.
pub(super) fn substitution_format(cx: &mut Cx<'_>, format: &core::SubstitutionFormatString) -> Option<LogFormat> {
    use core::substitution_format_string::Format as Kind;
    let omit_empty = format.omit_empty_values;
    cx.each("formatters", &format.formatters, |cx, formatter| extension_type(cx, formatter, REQ_WITHOUT_QUERY));
    match &format.format {
        Some(Kind::TextFormatSource(source)) => {
            let bytes = data_source(cx, "text_format_source", Some(source))?;
            if omit_empty {
                return cx.fail_at("omit_empty_values", "is supported with json_format only");
            }
            match String::from_utf8(bytes) {
                Ok(format) => text(cx, "text_format_source", &format),
                Err(_) => cx.fail_at("text_format_source", "is not UTF-8"),
            }
        }
        Some(Kind::TextFormat(format)) => text(cx, "text_format", format),
        Some(Kind::JsonFormat(fields)) => {
            let root = cx.at("json_format", |cx| json_object(cx, fields))?;
            Some(LogFormat::Json { root, omit_empty })
        }
        None => cx.fail("one of text_format_source, json_format is required"),
    }
}

fn text(cx: &mut Cx<'_>, field: &str, format: &str) -> Option<LogFormat> {
    cx.format(field, format).map(LogFormat::Text)
}

/// Sorted by key: protobuf maps have no order.
fn json_object(cx: &mut Cx<'_>, object: &Struct) -> Option<JsonFormat> {
    let mut fields: Vec<(&String, &Value)> = object.fields.iter().collect();
    fields.sort_by_key(|(name, _)| *name);
    let entries = fields.into_iter().filter_map(|(name, value)| {
        let value = cx.element(format_args!("{name:?}"), |cx| json_value(cx, value))?;
        Some((name.as_str().into(), value))
    });
    Some(JsonFormat::Object(entries.collect()))
}

fn json_value(cx: &mut Cx<'_>, value: &Value) -> Option<JsonFormat> {
    match &value.kind {
        Some(Kind::StringValue(format)) => match cx.parse_format(format) {
            Ok(format) => Some(JsonFormat::Value(format)),
            Err(error) => cx.fail(error.to_string()),
        },
        Some(Kind::StructValue(object)) => json_object(cx, object),
        Some(Kind::ListValue(list)) => {
            let values = list.values.iter().enumerate();
            let values = values.filter_map(|(index, value)| cx.element(index, |cx| json_value(cx, value)));
            Some(JsonFormat::List(values.collect()))
        }
        _ => cx.fail("must be a string, an object or a list"),
    }
}
