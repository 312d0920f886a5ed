//! `HealthCheck` and an endpoint's `HealthCheckConfig`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::endpoint::v3 as endpoint;
use evenkeel_xds::pb::envoy::r#type::v3 as envoy_type;
use prost::Message;

use super::address::{endpoint_address, port_number};
use super::metadata::string_fields;
use super::{Cx, matcher};
use crate::health_check::{EndpointCheck, GrpcProbe, HealthCheck, HttpProbe, Intervals, Probe, TcpProbe};

const DEFAULT_NO_TRAFFIC_INTERVAL: Duration = Duration::from_secs(60);
/// Envoy's default of `response_buffer_size`.
const DEFAULT_RESPONSE_BUFFER_BYTES: usize = 1024;

/// A cluster's health checks with their names, a field that the API's Rust types do not have.
#[derive(Clone, PartialEq, Message)]
struct NamedChecks {
    #[prost(message, repeated, tag = "8")]
    health_checks: Vec<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "27")]
    name: String,
}

/// Compiles a cluster's health checks; the cluster's encoded form has their names. `None`: there are none.
pub(crate) fn health_checks(
    cx: &mut Cx<'_>,
    checks: &[core::HealthCheck],
    encoded: &[u8],
) -> Option<Arc<[HealthCheck]>> {
    let named = cx.check("health_checks", NamedChecks::decode(encoded))?.health_checks;
    let mut names = Vec::<&str>::new();
    let mut next = named.iter().map(|check| check.name.as_str());
    let compiled = cx.each("health_checks", checks, |cx, check| {
        let name = next.next().unwrap_or_default();
        if name.is_empty() && checks.len() > 1 {
            cx.fail_at::<()>("name", "is required where there are several");
        } else if names.contains(&name) {
            cx.fail_at::<()>("name", format!("another is called {name:?} already"));
        }
        names.push(name);
        health_check(cx, check, name)
    });
    (!compiled.is_empty()).then(|| compiled.into())
}

fn health_check(cx: &mut Cx<'_>, h: &core::HealthCheck, name: &str) -> Option<HealthCheck> {
    use core::health_check::HealthChecker;
    let probe = match &h.health_checker {
        Some(HealthChecker::HttpHealthCheck(http)) => cx.at("http_health_check", |cx| http_probe(cx, http)),
        Some(HealthChecker::TcpHealthCheck(tcp)) => cx.at("tcp_health_check", |cx| tcp_probe(cx, tcp)),
        Some(HealthChecker::GrpcHealthCheck(grpc)) => cx.at("grpc_health_check", |cx| grpc_probe(cx, grpc)),
        _ => cx.fail("one of http_health_check, tcp_health_check, grpc_health_check is required"),
    };
    cx.required("timeout", h.timeout.as_ref());
    cx.required("interval", h.interval.as_ref());
    let timeout = positive(cx, "timeout", h.timeout.as_ref());
    let intervals = intervals(cx, h);
    let threshold = |cx: &mut Cx<'_>, field: &str, value: Option<u32>| match cx.required(field, value.as_ref()) {
        Some(0) => cx.fail_at(field, "must be at least 1"),
        threshold => threshold.copied(),
    };
    let unhealthy_threshold = threshold(cx, "unhealthy_threshold", h.unhealthy_threshold.as_ref().map(|n| n.value));
    let healthy_threshold = threshold(cx, "healthy_threshold", h.healthy_threshold.as_ref().map(|n| n.value));
    let alt_port = match &h.alt_port {
        Some(port) => Some(port_number(cx, "alt_port", port.value)?),
        None => None,
    };
    let criteria = h.transport_socket_match_criteria.as_ref();
    Some(HealthCheck {
        name: name.into(),
        probe: probe?,
        timeout: timeout?,
        unhealthy_threshold: unhealthy_threshold?,
        healthy_threshold: healthy_threshold?,
        intervals: intervals?,
        alt_port,
        reuse_connection: h.reuse_connection.as_ref().is_none_or(|reuse| reuse.value),
        transport_labels: criteria.map(string_fields),
        always_log_failures: h.always_log_health_check_failures,
        always_log_success: h.always_log_health_check_success,
    })
}

fn positive(
    cx: &mut Cx<'_>,
    field: &str,
    value: Option<&evenkeel_xds::pb::google::protobuf::Duration>,
) -> Option<Duration> {
    match cx.duration(field, value) {
        Some(Duration::ZERO) => cx.fail_at(field, "must be longer than 0 s"),
        time => time,
    }
}

fn intervals(cx: &mut Cx<'_>, h: &core::HealthCheck) -> Option<Intervals> {
    let interval = positive(cx, "interval", h.interval.as_ref())?;
    let unhealthy = positive(cx, "unhealthy_interval", h.unhealthy_interval.as_ref()).unwrap_or(interval);
    let edge = positive(cx, "unhealthy_edge_interval", h.unhealthy_edge_interval.as_ref());
    let no_traffic = positive(cx, "no_traffic_interval", h.no_traffic_interval.as_ref());
    let no_traffic = no_traffic.unwrap_or(DEFAULT_NO_TRAFFIC_INTERVAL);
    let no_traffic_healthy = positive(cx, "no_traffic_healthy_interval", h.no_traffic_healthy_interval.as_ref());
    Some(Intervals {
        interval,
        initial_jitter: cx.duration("initial_jitter", h.initial_jitter.as_ref()).unwrap_or_default(),
        jitter: cx.duration("interval_jitter", h.interval_jitter.as_ref()).unwrap_or_default(),
        jitter_percent: h.interval_jitter_percent,
        unhealthy,
        unhealthy_edge: edge.unwrap_or(unhealthy),
        healthy_edge: positive(cx, "healthy_edge_interval", h.healthy_edge_interval.as_ref()).unwrap_or(interval),
        no_traffic,
        no_traffic_healthy: no_traffic_healthy.unwrap_or(no_traffic),
    })
}

fn http_probe(cx: &mut Cx<'_>, http: &core::health_check::HttpHealthCheck) -> Option<Probe> {
    let path = cx.non_empty("path", &http.path)?;
    if !path.starts_with('/') || path.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return cx.fail_at("path", "must start with / and hold no blanks");
    }
    let method = match core::RequestMethod::try_from(http.method) {
        Ok(core::RequestMethod::MethodUnspecified) => "GET",
        Ok(core::RequestMethod::Connect) => return cx.fail_at("method", "CONNECT cannot be used to check health"),
        Ok(method) => method.as_str_name(),
        Err(_) => return cx.fail_at("method", format!("unknown value {}", http.method)),
    };
    let http2 = match envoy_type::CodecClientType::try_from(http.codec_client_type) {
        Ok(envoy_type::CodecClientType::Http1) => false,
        Ok(envoy_type::CodecClientType::Http2) => true,
        _ => return cx.fail_at("codec_client_type", "must be HTTP1 or HTTP2"),
    };
    let service_name = match &http.service_name_matcher {
        Some(name) => Some(matcher::string(cx, "service_name_matcher", name)?),
        None => None,
    };
    let buffer = http.response_buffer_size.as_ref().map(|size| size.value);
    let send = match &http.send {
        Some(payload) => cx.at("send", |cx| self::payload(cx, payload))?,
        None => Vec::new(),
    };
    Some(Probe::Http(Box::new(HttpProbe {
        host: http.host.as_str().into(),
        path: path.into(),
        method,
        send,
        receive: cx.each("receive", &http.receive, payload),
        response_buffer_bytes: buffer
            .map_or(DEFAULT_RESPONSE_BUFFER_BYTES, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        headers_to_add: cx.each("request_headers_to_add", &http.request_headers_to_add, header),
        headers_to_remove: http.request_headers_to_remove.iter().map(|name| name.to_ascii_lowercase().into()).collect(),
        expected_statuses: cx.each("expected_statuses", &http.expected_statuses, statuses),
        retriable_statuses: cx.each("retriable_statuses", &http.retriable_statuses, statuses),
        http2,
        service_name,
    })))
}

fn statuses(cx: &mut Cx<'_>, range: &envoy_type::Int64Range) -> Option<Range<u16>> {
    match (u16::try_from(range.start), u16::try_from(range.end)) {
        (Ok(start @ 100..600), Ok(end @ 101..=600)) if start < end => Some(start..end),
        _ => cx.fail(format!("[{}, {}) must lie within [100, 600)", range.start, range.end)),
    }
}

/// A header with a fixed value: there is no request to take values from.
fn header(cx: &mut Cx<'_>, option: &core::HeaderValueOption) -> Option<(Box<str>, Box<str>)> {
    let header = cx.required("header", option.header.as_ref())?;
    cx.at("header", |cx| {
        let name = cx.non_empty("key", &header.key)?.to_ascii_lowercase();
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)) {
            return cx.fail_at("key", "is no header name");
        }
        let value = header.value.replace("%%", "\0");
        if value.contains('%') {
            return cx.fail_at("value", "operators have no meaning in a health check");
        }
        if header.value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return cx.fail_at("value", "must not contain CR, LF or NUL");
        }
        Some((name.into(), value.replace('\0', "%").into()))
    })
}

fn tcp_probe(cx: &mut Cx<'_>, tcp: &core::health_check::TcpHealthCheck) -> Option<Probe> {
    let send = match &tcp.send {
        Some(payload) => cx.at("send", |cx| self::payload(cx, payload))?,
        None => Vec::new(),
    };
    Some(Probe::Tcp(TcpProbe { send, receive: cx.each("receive", &tcp.receive, payload) }))
}

fn grpc_probe(cx: &mut Cx<'_>, grpc: &core::health_check::GrpcHealthCheck) -> Option<Probe> {
    Some(Probe::Grpc(GrpcProbe {
        service: grpc.service_name.as_str().into(),
        authority: grpc.authority.as_str().into(),
        metadata: cx.each("initial_metadata", &grpc.initial_metadata, header),
    }))
}

/// Bytes, in hexadecimal or verbatim.
fn payload(cx: &mut Cx<'_>, payload: &core::health_check::Payload) -> Option<Vec<u8>> {
    use core::health_check::payload::Payload;
    match &payload.payload {
        Some(Payload::Text(text)) => {
            let digits = cx.non_empty("text", text)?.as_bytes();
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let pairs = digits.chunks(2).map(|pair| match *pair {
                [high, low] => Some(digit(high)? << 4 | digit(low)?),
                _ => None,
            });
            let bytes: Option<Vec<u8>> = pairs.collect();
            bytes.or_else(|| cx.fail_at("text", "must be an even number of hexadecimal digits"))
        }
        Some(Payload::Binary(bytes)) => Some(bytes.clone()),
        None => cx.fail("one of text, binary is required"),
    }
}

/// Whether and at which address an endpoint is checked.
pub(crate) fn endpoint_check(
    cx: &mut Cx<'_>,
    config: Option<&endpoint::endpoint::HealthCheckConfig>,
) -> Option<EndpointCheck> {
    let Some(config) = config else { return Some(EndpointCheck::default()) };
    cx.at("health_check_config", |cx| {
        let address = match &config.address {
            Some(address) => Some(endpoint_address(cx, Some(address))?),
            None => None,
        };
        Some(EndpointCheck {
            address,
            port: Some(port_number(cx, "port_value", config.port_value)?).filter(|port| *port > 0),
            hostname: config.hostname.as_str().into(),
            disabled: config.disable_active_health_check,
        })
    })
}
