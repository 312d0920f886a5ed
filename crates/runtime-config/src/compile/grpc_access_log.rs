//! `HttpGrpcAccessLogConfig`, `TcpGrpcAccessLogConfig`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3::ApiVersion;
use evenkeel_xds::pb::envoy::data::accesslog::v3::AccessLogType;
use evenkeel_xds::pb::envoy::extensions::access_loggers::grpc::v3 as grpc;
use evenkeel_xds::pb::envoy::r#type::tracing::v3::{CustomTag, custom_tag};
use prost::Message;

use super::Cx;
use super::grpc_service::grpc_target;
use crate::grpc_access_log::{Collector, EntryKind, GrpcLog, Tag};

/// The only version of these services.
pub(super) const V3: i32 = ApiVersion::V3 as i32;
/// Envoy's default of `buffer_flush_interval`.
const DEFAULT_FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Envoy's default of `buffer_size_bytes`.
const DEFAULT_BUFFER_BYTES: usize = 16 * 1024;

pub(super) fn http(cx: &mut Cx<'_>, config: &grpc::HttpGrpcAccessLogConfig, written: AccessLogType) -> Option<GrpcLog> {
    let names = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase().into()).collect();
    Some(GrpcLog {
        request_headers: names(&config.additional_request_headers_to_log),
        response_headers: names(&config.additional_response_headers_to_log),
        response_trailers: names(&config.additional_response_trailers_to_log),
        ..log(cx, config.common_config.as_ref(), EntryKind::Http, written)?
    })
}

pub(super) fn tcp(cx: &mut Cx<'_>, config: &grpc::TcpGrpcAccessLogConfig, written: AccessLogType) -> Option<GrpcLog> {
    log(cx, config.common_config.as_ref(), EntryKind::Tcp, written)
}

fn log(
    cx: &mut Cx<'_>,
    config: Option<&grpc::CommonGrpcAccessLogConfig>,
    kind: EntryKind,
    written: AccessLogType,
) -> Option<GrpcLog> {
    let config = cx.required("common_config", config)?;
    cx.at("common_config", |cx| {
        let tags = cx.each("custom_tags", &config.custom_tags, tag);
        Some(GrpcLog {
            collector: Arc::new(collector(cx, config, kind)?),
            written,
            filter_state: config.filter_state_objects_to_log.iter().map(|key| key.as_str().into()).collect(),
            request_headers: Vec::new(),
            response_headers: Vec::new(),
            response_trailers: Vec::new(),
            otlp: None,
            tags: (tags.len() == config.custom_tags.len()).then(|| tags.into_iter().flatten().collect())?,
        })
    })
}

pub(super) fn collector(
    cx: &mut Cx<'_>,
    config: &grpc::CommonGrpcAccessLogConfig,
    kind: EntryKind,
) -> Option<Collector> {
    let log_name = cx.non_empty("log_name", &config.log_name)?.into();
    version_3(cx, config.transport_api_version)?;
    let service = cx.required("grpc_service", config.grpc_service.as_ref())?;
    let target = cx.at("grpc_service", |cx| grpc_target(cx, service))?;
    let interval = config.buffer_flush_interval.as_ref();
    let flush_interval = match interval.map(|_| cx.duration("buffer_flush_interval", interval)) {
        None => DEFAULT_FLUSH_INTERVAL,
        Some(interval) if interval? > Duration::ZERO => interval?,
        Some(_) => return cx.fail_at("buffer_flush_interval", "must be greater than 0 s"),
    };
    let buffer_bytes = config.buffer_size_bytes.as_ref().map_or(DEFAULT_BUFFER_BYTES, |size| size.value as usize);
    Some(Collector {
        target,
        http: None,
        log_name,
        kind,
        resource: Vec::new(),
        flush_interval,
        buffer_bytes: buffer_bytes.min(Collector::MAX_BUFFER_BYTES),
        source: config.encode_to_vec(),
    })
}

/// Accepts only version 3, like Envoy, which has no other version of these services any more.
pub(crate) fn version_3(cx: &mut Cx<'_>, version: i32) -> Option<()> {
    match ApiVersion::try_from(version) {
        Ok(ApiVersion::V3) => Some(()),
        _ => cx.fail_at("transport_api_version", "must be V3"),
    }
}

/// `Some(None)`: an environment variable that is not set and has no default, which Envoy leaves out.
pub(super) fn tag(cx: &mut Cx<'_>, tag: &CustomTag) -> Option<Option<(Box<str>, Tag)>> {
    use custom_tag::Type;
    let name = cx.non_empty("tag", &tag.tag)?.into();
    let value = match &tag.r#type {
        Some(Type::Literal(literal)) => {
            Tag::Fixed(cx.at("literal", |cx| cx.non_empty("value", &literal.value))?.into())
        }
        Some(Type::Environment(variable)) => {
            let named = cx.at("environment", |cx| cx.non_empty("name", &variable.name))?;
            let value = (cx.env.variable)(named).unwrap_or_else(|| variable.default_value.clone());
            if value.is_empty() {
                return Some(None);
            }
            Tag::Fixed(value.into())
        }
        Some(Type::RequestHeader(header)) => {
            let named = cx.at("request_header", |cx| cx.non_empty("name", &header.name))?;
            Tag::RequestHeader(named.to_ascii_lowercase().into(), header.default_value.as_str().into())
        }
        _ => return cx.fail("literal, environment or request_header is required"),
    };
    Some(Some((name, value)))
}
