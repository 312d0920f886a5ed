//! `OpenTelemetryAccessLogConfig`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::data::accesslog::v3::AccessLogType;
use evenkeel_xds::pb::envoy::extensions::access_loggers::grpc::v3::CommonGrpcAccessLogConfig;
use evenkeel_xds::pb::envoy::extensions::access_loggers::open_telemetry::v3::OpenTelemetryAccessLogConfig;
use evenkeel_xds::pb::opentelemetry::proto::common::v1::any_value::Value;
use evenkeel_xds::pb::opentelemetry::proto::common::v1::{AnyValue, KeyValue, KeyValueList};
use prost::Message;

use super::grpc_access_log::{collector, tag};
use super::{Cx, tracing};
use crate::ext_authz::GrpcTarget;
use crate::grpc_access_log::{Collector, EntryKind, GrpcLog, HttpPost, OtlpRecord, OtlpValue};

/// Time limit of an export whose configuration has none: a collector that does not answer must not hold entries for ever.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// `Resource` of OTLP.
#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[allow(deprecated)] // `common_config` is what Istio sends.
pub(super) fn log(cx: &mut Cx<'_>, config: &OpenTelemetryAccessLogConfig, written: AccessLogType) -> Option<GrpcLog> {
    let common = merged(config);
    let field = if config.common_config.is_some() { "common_config" } else { "" };
    let collector = match field {
        "" => collector_of(cx, config, &common),
        field => cx.at(field, |cx| collector_of(cx, config, &common)),
    };
    let tags = cx.each("custom_tags", &common.custom_tags, tag);
    let record = OtlpRecord {
        body: match &config.body {
            Some(body) => Some(cx.at("body", |cx| value(cx, body))?),
            None => None,
        },
        attributes: cx.at("attributes", |cx| values(cx, config.attributes.as_ref()))?,
    };
    Some(GrpcLog {
        collector: Arc::new(collector?),
        written,
        filter_state: common.filter_state_objects_to_log.iter().map(|key| key.as_str().into()).collect(),
        request_headers: Vec::new(),
        response_headers: Vec::new(),
        response_trailers: Vec::new(),
        tags: tags.into_iter().flatten().collect(),
        otlp: Some(record),
    })
}

/// The settings of the service, wherever they stand.
#[allow(deprecated)] // As above.
fn merged(config: &OpenTelemetryAccessLogConfig) -> CommonGrpcAccessLogConfig {
    let mut common = config.common_config.clone().unwrap_or_default();
    if !config.log_name.is_empty() {
        common.log_name.clone_from(&config.log_name);
    }
    common.grpc_service = config.grpc_service.clone().or(common.grpc_service);
    if let Some(uri) = config.http_service.as_ref().and_then(|service| service.http_uri.as_ref()) {
        // Cluster and time limit count in the same way.
        let Some(core::http_uri::HttpUpstreamType::Cluster(cluster)) = &uri.http_upstream_type else { return common };
        let grpc = core::grpc_service::EnvoyGrpc { cluster_name: cluster.clone(), ..Default::default() };
        common.grpc_service = Some(core::GrpcService {
            timeout: uri.timeout,
            target_specifier: Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(grpc)),
            ..Default::default()
        });
    }
    common.buffer_flush_interval = config.buffer_flush_interval.or(common.buffer_flush_interval);
    common.buffer_size_bytes = config.buffer_size_bytes.or(common.buffer_size_bytes);
    common.filter_state_objects_to_log.extend(config.filter_state_objects_to_log.iter().cloned());
    common.custom_tags.extend(config.custom_tags.iter().cloned());
    common
}

#[allow(deprecated)] // As above.
fn collector_of(
    cx: &mut Cx<'_>,
    config: &OpenTelemetryAccessLogConfig,
    common: &CommonGrpcAccessLogConfig,
) -> Option<Collector> {
    // The version is for access log services; this one has its own.
    let of_common = config.common_config.as_ref().and_then(|common| common.grpc_service.as_ref());
    let has_grpc = config.grpc_service.is_some() || of_common.is_some();
    let http = match &config.http_service {
        None => None,
        Some(_) if has_grpc => {
            return cx.fail_at("http_service", "must not be set beside grpc_service");
        }
        Some(service) => Some(cx.at("http_service", |cx| tracing::collector(cx, service))?),
    };
    let common = CommonGrpcAccessLogConfig { transport_api_version: super::grpc_access_log::V3, ..common.clone() };
    let common_part = collector(cx, &common, EntryKind::OpenTelemetry)?;
    let timeout = common.grpc_service.as_ref().and_then(|service| service.timeout.as_ref());
    let call = crate::ext_authz::CallTarget {
        timeout: cx.limit("grpc_service.timeout", timeout, None).or(Some(EXPORT_TIMEOUT)),
        ..common_part.target.call
    };
    let resource = resource(cx, config, &common.log_name);
    let of_http = config.http_service.as_ref().map(Message::encode_to_vec).unwrap_or_default();
    let source = [common_part.source, resource.clone(), of_http].concat();
    let http = http.map(|post| HttpPost { host: post.host, path: post.path, headers: post.headers });
    Some(Collector { target: GrpcTarget { call, ..common_part.target }, http, resource, source, ..common_part })
}

/// The encoded resource: Envoy's labels of the proxy, and the user's.
fn resource(cx: &Cx<'_>, config: &OpenTelemetryAccessLogConfig, log_name: &str) -> Vec<u8> {
    let node = &cx.env.tracing.node;
    let own =
        [("log_name", log_name), ("zone_name", &node.zone), ("cluster_name", &node.cluster), ("node_name", &node.id)];
    let own = own.into_iter().filter(|_| !config.disable_builtin_labels).map(|(key, text)| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(Value::StringValue(text.to_owned())) }),
        ..KeyValue::default()
    });
    let further = config.resource_attributes.iter().flat_map(|list| list.values.iter().cloned());
    Resource { attributes: own.chain(further).collect() }.encode_to_vec()
}

/// A value with operators; as in Envoy, texts, lists and maps of them.
fn value(cx: &mut Cx<'_>, any: &AnyValue) -> Option<OtlpValue> {
    match &any.value {
        Some(Value::StringValue(text)) => cx.format("string_value", text).map(OtlpValue::Text),
        Some(Value::KvlistValue(list)) => cx.at("kvlist_value", |cx| values(cx, Some(list))).map(OtlpValue::Map),
        Some(Value::ArrayValue(list)) => {
            let items = cx.at("array_value", |cx| cx.each("values", &list.values, value));
            (items.len() == list.values.len()).then_some(OtlpValue::List(items))
        }
        _ => cx.fail("string_value, kvlist_value or array_value is required"),
    }
}

fn values(cx: &mut Cx<'_>, list: Option<&KeyValueList>) -> Option<Vec<(Box<str>, OtlpValue)>> {
    let all = list.map(|list| list.values.as_slice()).unwrap_or_default();
    let compiled = cx.each("values", all, |cx, entry| {
        let any = cx.required("value", entry.value.as_ref())?;
        Some((entry.key.as_str().into(), cx.at("value", |cx| value(cx, any))?))
    });
    (compiled.len() == all.len()).then_some(compiled)
}
