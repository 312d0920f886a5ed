//! `HttpConnectionManager`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::data::accesslog::v3::AccessLogType;
use evenkeel_xds::pb::envoy::extensions::filters::http::on_demand::v3 as on_demand_filter;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use evenkeel_xds::pb::envoy::extensions::request_id::uuid::v3::UuidRequestIdConfig;
use evenkeel_xds::pb::google::protobuf::{Any, BoolValue, UInt32Value};

use super::access_log::access_logs;
use super::discovery::discovered;
use super::headers::{self, KeyFormat};
use super::http2::max_requests;
use super::local_reply::local_reply;
use super::router::{ROUTER, router};
use super::skip::{WITH_MATCHER, with_matcher};
use super::{Cx, http2, route, source, tracing, type_name};
use crate::filters::custom::CustomFilter;
use crate::hcm::{
    ClientCertDetails, Codec, EscapedSlashes, ForwardClientCert, Forwarded, HeadersWithUnderscores,
    HttpConnectionManager, HttpFilter, OnDemand, RouteSource, ServerHeader, StripPort,
};
use crate::http_filters::{HttpFilterConfig, MAX_HTTP_FILTERS, http_filter};
use crate::http2::Http2Options;

const ON_DEMAND: &str = "envoy.extensions.filters.http.on_demand.v3.OnDemand";
const UUID_REQUEST_ID: &str = "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig";

const DEFAULT_MAX_REQUEST_HEADERS_KIB: u32 = 60;
const LARGEST_MAX_REQUEST_HEADERS_KIB: u32 = 8192;
const DEFAULT_MAX_HEADERS_COUNT: u32 = 100;
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Envoy has no default. A head usually arrives in one piece; a client that takes a minute only holds the connection.
const DEFAULT_REQUEST_HEADERS_TIMEOUT: Duration = Duration::from_secs(60);

/// Compiles a connection manager.
pub(crate) fn http_connection_manager(
    cx: &mut Cx<'_>,
    config: &hcm::HttpConnectionManager,
) -> Option<HttpConnectionManager> {
    let stat_prefix = cx.non_empty("stat_prefix", &config.stat_prefix)?.into();
    let codec = codec(cx, config);
    let http2 = http2_options(cx, config);
    let routes = route_source(cx, config);
    let mut on_demand = None;
    let filters = http_filters(cx, &config.http_filters, &mut on_demand);
    let suppress_envoy_headers = router(cx, &config.http_filters).suppress_envoy_headers;
    let common = config.common_http_protocol_options.unwrap_or_default();
    let http1 = config.http_protocol_options.clone().unwrap_or_default();
    let (idle_timeout, max_connection_duration, max_stream_duration) =
        cx.at("common_http_protocol_options", |cx| durations(cx, &common));
    let stream_idle_timeout =
        cx.limit("stream_idle_timeout", config.stream_idle_timeout.as_ref(), Some(DEFAULT_STREAM_IDLE_TIMEOUT));
    let max_request_headers_bytes = max_request_headers_bytes(cx, config);
    let local_reply = match &config.local_reply_config {
        None => Some(None),
        Some(config) => cx.at("local_reply_config", |cx| local_reply(cx, config)).map(Some),
    };
    let request_id = request_id(cx, config);
    let tracing = match &config.tracing {
        None => Some(None),
        Some(tracing) => {
            let request_id = request_id.unwrap_or_default();
            cx.at("tracing", |cx| tracing::tracing(cx, config, tracing, request_id)).map(Some)
        }
    };
    let key_format = cx.at("http_protocol_options", |cx| headers::key_format(cx, http1.header_key_format.as_ref()));
    let use_remote_address = flag(&config.use_remote_address, false);
    let server_name = if config.server_name.is_empty() { "envoy" } else { &config.server_name };
    Some(HttpConnectionManager {
        stat_prefix,
        codec: codec?,
        http2,
        drain_timeout: cx.duration("drain_timeout", config.drain_timeout.as_ref()).unwrap_or(DEFAULT_DRAIN_TIMEOUT),
        routes: routes?,
        filters: filters?,
        on_demand,
        access_logs: access_logs(cx, "access_log", &config.access_log, AccessLogType::DownstreamEnd),
        server_name: server_name.into(),
        server_header: server_header(cx, config.server_header_transformation)?,
        use_remote_address,
        xff_num_trusted_hops: config.xff_num_trusted_hops,
        skip_xff_append: config.skip_xff_append,
        generate_request_id: flag(&config.generate_request_id, true),
        preserve_external_request_id: config.preserve_external_request_id,
        pack_trace_reason: flag(&request_id?.pack_trace_reason, true),
        always_set_request_id_in_response: config.always_set_request_id_in_response,
        forward_client_cert: forward_client_cert(cx, config.forward_client_cert_details)?,
        client_cert_details: client_cert_details(config.set_current_client_cert_details.as_ref()),
        normalize_path: flag(&config.normalize_path, false),
        merge_slashes: config.merge_slashes,
        escaped_slashes: escaped_slashes(cx, config.path_with_escaped_slashes_action)?,
        strip_port: strip_port(config),
        idle_timeout,
        stream_idle_timeout,
        stream_flush_timeout: stream_idle_timeout.unwrap_or(DEFAULT_STREAM_IDLE_TIMEOUT),
        max_stream_duration,
        request_timeout: cx.limit("request_timeout", config.request_timeout.as_ref(), None),
        request_headers_timeout: cx.limit(
            "request_headers_timeout",
            config.request_headers_timeout.as_ref(),
            Some(DEFAULT_REQUEST_HEADERS_TIMEOUT),
        ),
        max_requests_per_connection: max_requests(&common),
        max_connection_duration,
        max_request_headers_bytes,
        max_headers_count: number(&common.max_headers_count, DEFAULT_MAX_HEADERS_COUNT) as usize,
        underscores: underscores(cx, common.headers_with_underscores_action)?,
        absolute_urls: flag(&http1.allow_absolute_url, true),
        accept_http_10: http1.accept_http_10,
        default_host_for_http_10: non_empty(&http1.default_host_for_http_10),
        upgrades: upgrades(cx, &config.upgrade_configs),
        proxy_100_continue: config.proxy_100_continue,
        enable_trailers: http1.enable_trailers,
        proper_case_response_headers: key_format == KeyFormat::Proper,
        preserve_header_case: key_format == KeyFormat::Preserved,
        forwarded: forwarded(cx, config)?,
        suppress_envoy_headers,
        via: non_empty(&config.via),
        local_reply: local_reply?,
        tracing: tracing?,
    })
}

/// What upstreams are told beyond the usual.
fn forwarded(cx: &mut Cx<'_>, config: &hcm::HttpConnectionManager) -> Option<Option<Box<Forwarded>>> {
    use core::scheme_header_transformation::Transformation;
    let transformation = config.scheme_header_transformation.as_ref().and_then(|scheme| scheme.transformation.as_ref());
    let scheme = match transformation {
        None => None,
        Some(Transformation::SchemeToOverwrite(scheme)) => match scheme.as_str() {
            "http" => Some("http"),
            "https" => Some("https"),
            _ => return cx.fail_at("scheme_header_transformation.scheme_to_overwrite", "must be http or https"),
        },
    };
    let matches_upstream = config.scheme_header_transformation.as_ref().is_some_and(|scheme| scheme.match_upstream);
    if matches_upstream && scheme.is_some() {
        return cx.fail_at("scheme_header_transformation.match_upstream", "must not be set beside scheme_to_overwrite");
    }
    let forwarded = Forwarded { port: config.append_x_forwarded_port, scheme, matches_upstream };
    Some((forwarded != Forwarded::default()).then(|| Box::new(forwarded)))
}

fn http2_options(cx: &mut Cx<'_>, config: &hcm::HttpConnectionManager) -> Http2Options {
    let mut options = http2::options(cx, "http2_protocol_options", config.http2_protocol_options.as_ref());
    if let Some(set) = &config.stream_error_on_invalid_http_message {
        options.stream_error_on_invalid_message = set.value;
    }
    options
}

/// Timeouts of an idle connection, of any connection, and of a stream.
fn durations(
    cx: &mut Cx<'_>,
    common: &core::HttpProtocolOptions,
) -> (Option<Duration>, Option<Duration>, Option<Duration>) {
    (
        cx.limit("idle_timeout", common.idle_timeout.as_ref(), Some(DEFAULT_IDLE_TIMEOUT)),
        cx.limit("max_connection_duration", common.max_connection_duration.as_ref(), None),
        cx.limit("max_stream_duration", common.max_stream_duration.as_ref(), None),
    )
}

fn max_request_headers_bytes(cx: &mut Cx<'_>, config: &hcm::HttpConnectionManager) -> usize {
    let kib = number(&config.max_request_headers_kb, DEFAULT_MAX_REQUEST_HEADERS_KIB);
    if !(1..=LARGEST_MAX_REQUEST_HEADERS_KIB).contains(&kib) {
        let range = format!("must lie between 1 and {LARGEST_MAX_REQUEST_HEADERS_KIB}");
        cx.fail_at::<()>("max_request_headers_kb", range);
    }
    kib as usize * 1024
}

/// How request IDs are made: as UUIDs; other extensions are rejected.
fn request_id(cx: &mut Cx<'_>, config: &hcm::HttpConnectionManager) -> Option<UuidRequestIdConfig> {
    let extension = config.request_id_extension.as_ref().and_then(|extension| extension.typed_config.as_ref());
    let Some(extension) = extension else { return Some(UuidRequestIdConfig::default()) };
    cx.at("request_id_extension.typed_config", |cx| match type_name(&extension.type_url) {
        UUID_REQUEST_ID => cx.unpack(extension),
        _ => cx.fail(format!("must be {UUID_REQUEST_ID}")),
    })
}

fn flag(value: &Option<BoolValue>, default: bool) -> bool {
    value.as_ref().map_or(default, |value| value.value)
}

fn number(value: &Option<UInt32Value>, default: u32) -> u32 {
    value.as_ref().map_or(default, |value| value.value)
}

fn non_empty(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

fn codec(cx: &mut Cx<'_>, config: &hcm::HttpConnectionManager) -> Option<Codec> {
    use hcm::http_connection_manager::CodecType;
    match CodecType::try_from(config.codec_type) {
        Ok(CodecType::Auto) => Some(Codec::Auto),
        Ok(CodecType::Http1) => Some(Codec::Http1),
        Ok(CodecType::Http2) => Some(Codec::Http2),
        _ => cx.fail_at("codec_type", "only AUTO, HTTP1 and HTTP2 are supported"),
    }
}

fn underscores(cx: &mut Cx<'_>, value: i32) -> Option<HeadersWithUnderscores> {
    use core::http_protocol_options::HeadersWithUnderscoresAction as Wire;
    match Wire::try_from(value) {
        Ok(Wire::Allow) => Some(HeadersWithUnderscores::Allow),
        Ok(Wire::RejectRequest) => Some(HeadersWithUnderscores::Reject),
        Ok(Wire::DropHeader) => Some(HeadersWithUnderscores::Drop),
        Err(_) => {
            cx.fail_at("common_http_protocol_options.headers_with_underscores_action", format!("unknown value {value}"))
        }
    }
}

fn route_source(cx: &mut Cx<'_>, config: &hcm::HttpConnectionManager) -> Option<RouteSource> {
    use hcm::http_connection_manager::RouteSpecifier;
    match &config.route_specifier {
        Some(RouteSpecifier::RouteConfig(table)) => {
            let table = cx.at("route_config", |cx| route::route_table(cx, table, route::Inline::Yes))?;
            Some(RouteSource::Static(Arc::new(table)))
        }
        Some(RouteSpecifier::Rds(rds)) => cx.at("rds", |cx| {
            let name = cx.non_empty("route_config_name", &rds.route_config_name)?;
            let reference = cx.reference(name, "config_source", rds.config_source.as_ref())?;
            let name = reference.name.clone();
            if !cx.references.routes.contains(&reference) {
                cx.references.routes.push(reference);
            }
            Some(RouteSource::Rds(name))
        }),
        _ => cx.fail("one of rds, route_config is required"),
    }
}

fn http_filters(
    cx: &mut Cx<'_>,
    filters: &[hcm::HttpFilter],
    on_demand: &mut Option<OnDemand>,
) -> Option<Vec<HttpFilter>> {
    let last = filters.len().checked_sub(1);
    let mut router = false;
    let mut index = 0;
    let compiled = cx.each("http_filters", filters, |cx, filter| {
        let is_last = Some(index) == last;
        index += 1;
        cx.non_empty("name", &filter.name)?;
        let any = match &filter.config_type {
            Some(hcm::http_filter::ConfigType::TypedConfig(any)) => any,
            Some(hcm::http_filter::ConfigType::ConfigDiscovery(_)) if is_last => {
                return cx.fail_at("config_discovery", "is not supported for the router");
            }
            Some(hcm::http_filter::ConfigType::ConfigDiscovery(source)) => {
                return cx.at("config_discovery", |cx| discovered_filter(cx, filter, source));
            }
            None => return cx.fail_at("typed_config", "is required"),
        };
        cx.at("typed_config", |cx| match type_name(&any.type_url) {
            ROUTER if is_last && filter.disabled => cx.fail("the router cannot be disabled"),
            ROUTER if is_last => {
                router = true;
                Some(None)
            }
            ROUTER => cx.fail("the router must be the last HTTP filter"),
            ON_DEMAND if filter.disabled => cx.fail("cannot be disabled"),
            // Accepted at any position: a route is selected once, before the first filter.
            ON_DEMAND => {
                let config: on_demand_filter::OnDemand = cx.unpack(any)?;
                let clusters = match &config.odcds {
                    None => None,
                    Some(odcds) => Some(cx.at("odcds", |cx| {
                        source::on_demand_clusters(cx, "source", odcds.source.as_ref(), odcds.timeout.as_ref())
                    })?),
                };
                *on_demand = Some(OnDemand { clusters });
                Some(None)
            }
            _ => configured_filter(cx, filter, any),
        })
    });
    only_once(cx, compiled.iter().flatten())?;
    if !router && compiled.len() == filters.len() {
        return cx.fail_at("http_filters", "the last one must be envoy.filters.http.router");
    }
    if compiled.len() > MAX_HTTP_FILTERS {
        return cx.fail_at("http_filters", format!("there may be {MAX_HTTP_FILTERS} at most"));
    }
    Some(compiled.into_iter().flatten().collect())
}

/// A filter before the router. `Some(None)`: it is unknown and optional.
fn configured_filter(cx: &mut Cx<'_>, filter: &hcm::HttpFilter, any: &Any) -> Option<Option<HttpFilter>> {
    let (config, skip) = match type_name(&any.type_url) {
        WITH_MATCHER => with_matcher(cx, any).map(|(config, skip)| (Some(config), Some(skip)))?,
        _ => (http_filter(cx, any, filter.is_optional)?, None),
    };
    let (name, disabled) = (filter.name.as_str().into(), filter.disabled);
    Some(config.map(|config| HttpFilter { name, disabled, skip, config }))
}

/// A filter whose configuration ECDS sends.
fn discovered_filter(
    cx: &mut Cx<'_>,
    filter: &hcm::HttpFilter,
    source: &core::ExtensionConfigSource,
) -> Option<Option<HttpFilter>> {
    match discovered(cx, &filter.name, source)? {
        Some(any) => configured_filter(cx, filter, &any),
        None => {
            let config = HttpFilterConfig::Custom(CustomFilter::missing());
            Some(Some(HttpFilter { name: filter.name.as_str().into(), disabled: filter.disabled, skip: None, config }))
        }
    }
}

/// Rejects filters that may be there once and are there twice.
fn only_once<'f>(cx: &mut Cx<'_>, filters: impl Iterator<Item = &'f HttpFilter>) -> Option<()> {
    let mut seen = Vec::new();
    for filter in filters {
        let Some(reason) = filter.config.needs().why_once() else { continue };
        let name = filter.config.message_name();
        if seen.contains(&name) {
            return cx.fail_at("http_filters", format!("{name} may be there once: {reason}"));
        }
        seen.push(name);
    }
    Some(())
}

fn server_header(cx: &mut Cx<'_>, value: i32) -> Option<ServerHeader> {
    use hcm::http_connection_manager::ServerHeaderTransformation as Wire;
    match Wire::try_from(value) {
        Ok(Wire::Overwrite) => Some(ServerHeader::Overwrite),
        Ok(Wire::AppendIfAbsent) => Some(ServerHeader::AppendIfAbsent),
        Ok(Wire::PassThrough) => Some(ServerHeader::PassThrough),
        Err(_) => cx.fail_at("server_header_transformation", format!("unknown value {value}")),
    }
}

fn forward_client_cert(cx: &mut Cx<'_>, value: i32) -> Option<ForwardClientCert> {
    use hcm::http_connection_manager::ForwardClientCertDetails as Wire;
    match Wire::try_from(value) {
        Ok(Wire::Sanitize) => Some(ForwardClientCert::Sanitize),
        Ok(Wire::ForwardOnly) => Some(ForwardClientCert::ForwardOnly),
        Ok(Wire::AppendForward) => Some(ForwardClientCert::AppendForward),
        Ok(Wire::SanitizeSet) => Some(ForwardClientCert::SanitizeSet),
        Ok(Wire::AlwaysForwardOnly) => Some(ForwardClientCert::AlwaysForwardOnly),
        Err(_) => cx.fail_at("forward_client_cert_details", format!("unknown value {value}")),
    }
}

fn client_cert_details(
    details: Option<&hcm::http_connection_manager::SetCurrentClientCertDetails>,
) -> ClientCertDetails {
    details.map_or_else(ClientCertDetails::default, |details| ClientCertDetails {
        subject: flag(&details.subject, false),
        cert: details.cert,
        chain: details.chain,
        dns: details.dns,
        uri: details.uri,
    })
}

fn escaped_slashes(cx: &mut Cx<'_>, value: i32) -> Option<EscapedSlashes> {
    use hcm::http_connection_manager::PathWithEscapedSlashesAction as Wire;
    match Wire::try_from(value) {
        Ok(Wire::ImplementationSpecificDefault | Wire::KeepUnchanged) => Some(EscapedSlashes::KeepUnchanged),
        Ok(Wire::RejectRequest) => Some(EscapedSlashes::Reject),
        Ok(Wire::UnescapeAndRedirect) => Some(EscapedSlashes::UnescapeAndRedirect),
        Ok(Wire::UnescapeAndForward) => Some(EscapedSlashes::UnescapeAndForward),
        Err(_) => cx.fail_at("path_with_escaped_slashes_action", format!("unknown value {value}")),
    }
}

fn strip_port(config: &hcm::HttpConnectionManager) -> StripPort {
    use hcm::http_connection_manager::StripPortMode;
    match config.strip_port_mode {
        Some(StripPortMode::StripAnyHostPort(true)) => StripPort::Any,
        _ if config.strip_matching_host_port => StripPort::Matching,
        _ => StripPort::None,
    }
}

fn upgrades(cx: &mut Cx<'_>, configs: &[hcm::http_connection_manager::UpgradeConfig]) -> Vec<Box<str>> {
    let upgrades = cx.each("upgrade_configs", configs, |cx, config| {
        let kind = cx.non_empty("upgrade_type", &config.upgrade_type)?.to_ascii_lowercase();
        Some(flag(&config.enabled, true).then(|| kind.into()))
    });
    upgrades.into_iter().flatten().collect()
}
