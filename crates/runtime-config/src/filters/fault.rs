//! `envoy.filters.http.fault`, compiled: injects delays, aborts and slow responses, to test how callers cope.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::extensions::filters::common::fault::v3 as common;
use evenkeel_xds::pb::envoy::extensions::filters::http::fault::v3 as filter;
use evenkeel_xds::pb::envoy::r#type::v3::FractionalPercent;

use crate::compile::Cx;
use crate::compile::fraction::fraction;
use crate::compile::matcher::header;
use crate::compile::metadata::fields;
use crate::dynamic_metadata::Fields;
use crate::filter_needs::FilterNeeds;
use crate::fraction::Fraction;
use crate::matching::HeaderMatcher;
use crate::support::message::{MessageSupport, NO_RUNTIME, Role::Extension, part};

/// Configuration of the filter, or of a route.
#[derive(Debug)]
pub struct Fault {
    /// Delays of requests.
    pub delay: Option<Delay>,
    /// Requests to abort with a local reply.
    pub abort: Option<Abort>,
    /// Rate limit of responses.
    pub rate_limit: Option<RateLimit>,
    /// Only requests to this cluster; empty: all.
    pub upstream_cluster: Box<str>,
    /// Only requests from one of these proxies (`x-envoy-downstream-service-node`); empty: all.
    pub downstream_nodes: Vec<Box<[u8]>>,
    /// Only requests with these headers.
    pub headers: Vec<HeaderMatcher>,
    /// Limit of concurrent requests with a fault; others get none.
    pub max_active: Option<u32>,
    /// Disables statistics per downstream cluster (`x-envoy-downstream-service-cluster`).
    pub disable_downstream_cluster_stats: bool,
    /// Dynamic metadata set on requests with a fault.
    pub metadata: Fields,
}

impl FilterNeeds for Fault {}

/// `FaultDelay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delay {
    /// How long; `None`: as the request asks (`x-envoy-fault-delay-request`).
    pub fixed: Option<Duration>,
    /// Share of requests. A request that sets the duration may lower it.
    pub share: Fraction,
}

/// `FaultAbort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// The response's status.
    pub status: AbortStatus,
    /// Share of requests. A request that sets the status may lower it.
    pub share: Fraction,
}

/// The status of an aborted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortStatus {
    /// This HTTP status.
    Http(u16),
    /// This gRPC status.
    Grpc(u32),
    /// The value in the request's header (`x-envoy-fault-abort-request`, `x-envoy-fault-abort-grpc-request`).
    Header,
}

/// `FaultRateLimit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// KiB per second; `None`: as the request asks (`x-envoy-fault-throughput-response`).
    pub fixed_kib: Option<u64>,
    /// Share of responses. A request that sets the rate may lower it.
    pub share: Fraction,
}

/// A route's configuration, which replaces the filter's own entirely.
pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::HttpFault) -> Option<Arc<Fault>> {
    fault(cx, config).map(Arc::new)
}

pub(crate) fn fault(cx: &mut Cx<'_>, config: &filter::HttpFault) -> Option<Fault> {
    let delay = optional(cx, "delay", config.delay.as_ref(), delay);
    let abort = optional(cx, "abort", config.abort.as_ref(), abort);
    let rate_limit = optional(cx, "response_rate_limit", config.response_rate_limit.as_ref(), rate_limit);
    let headers = cx.each("headers", &config.headers, header);
    let nodes = config.downstream_nodes.iter().map(|node| node.as_bytes().into());
    Some(Fault {
        delay: delay?,
        abort: abort?,
        rate_limit: rate_limit?,
        upstream_cluster: config.upstream_cluster.as_str().into(),
        downstream_nodes: nodes.collect(),
        headers,
        max_active: config.max_active_faults.as_ref().map(|most| most.value),
        disable_downstream_cluster_stats: config.disable_downstream_cluster_stats,
        metadata: config.filter_metadata.as_ref().map(fields).unwrap_or_default(),
    })
}

/// `Some(None)`: not set.
fn optional<M, T>(
    cx: &mut Cx<'_>,
    field: &str,
    message: Option<&M>,
    compile: impl FnOnce(&mut Cx<'_>, &M) -> Option<T>,
) -> Option<Option<T>> {
    match message {
        None => Some(None),
        Some(message) => cx.at(field, |cx| compile(cx, message)).map(Some),
    }
}

fn delay(cx: &mut Cx<'_>, config: &common::FaultDelay) -> Option<Delay> {
    use common::fault_delay::FaultDelaySecifier as Kind;
    let fixed = match &config.fault_delay_secifier {
        Some(Kind::FixedDelay(fixed)) => match cx.duration("fixed_delay", Some(fixed))? {
            none if none.is_zero() => return cx.fail_at("fixed_delay", "must be greater than 0"),
            fixed => Some(fixed),
        },
        Some(Kind::HeaderDelay(_)) => None,
        None => return cx.fail("one of fixed_delay, header_delay is required"),
    };
    Some(Delay { fixed, share: share(cx, config.percentage.as_ref())? })
}

fn abort(cx: &mut Cx<'_>, config: &filter::FaultAbort) -> Option<Abort> {
    use filter::fault_abort::ErrorType as Kind;
    let status = match &config.error_type {
        Some(Kind::HttpStatus(status)) => match u16::try_from(*status) {
            Ok(status @ 200..=599) => AbortStatus::Http(status),
            _ => return cx.fail_at("http_status", "must lie between 200 and 599"),
        },
        Some(Kind::GrpcStatus(status)) => AbortStatus::Grpc(*status),
        Some(Kind::HeaderAbort(_)) => AbortStatus::Header,
        None => return cx.fail("one of http_status, grpc_status, header_abort is required"),
    };
    Some(Abort { status, share: share(cx, config.percentage.as_ref())? })
}

fn rate_limit(cx: &mut Cx<'_>, config: &common::FaultRateLimit) -> Option<RateLimit> {
    use common::fault_rate_limit::LimitType as Kind;
    let fixed_kib = match &config.limit_type {
        Some(Kind::FixedLimit(fixed)) if fixed.limit_kbps == 0 => {
            return cx.fail_at("fixed_limit.limit_kbps", "must be greater than 0");
        }
        Some(Kind::FixedLimit(fixed)) => Some(fixed.limit_kbps),
        Some(Kind::HeaderLimit(_)) => None,
        None => return cx.fail("one of fixed_limit, header_limit is required"),
    };
    Some(RateLimit { fixed_kib, share: share(cx, config.percentage.as_ref())? })
}

/// Absent means no request.
fn share(cx: &mut Cx<'_>, percentage: Option<&FractionalPercent>) -> Option<Fraction> {
    match percentage {
        None => Some(Fraction::NONE),
        Some(percentage) => cx.at("percentage", |cx| fraction(cx, percentage)),
    }
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    MessageSupport {
        name: "envoy.extensions.filters.http.fault.v3.HTTPFault",
        role: Extension,
        full: &["delay", "abort", "upstream_cluster", "headers", "downstream_nodes", "max_active_faults", "response_rate_limit",
            "disable_downstream_cluster_stats", "filter_metadata"],
        values: &[],
        no_effect: &[(NO_RUNTIME, &["delay_percent_runtime", "abort_percent_runtime", "delay_duration_runtime",
            "abort_http_status_runtime", "max_active_faults_runtime", "response_rate_limit_percent_runtime",
            "abort_grpc_status_runtime"])],
    },
    part("envoy.extensions.filters.http.fault.v3.FaultAbort", &["http_status", "grpc_status", "header_abort", "percentage"]),
    part("envoy.extensions.filters.http.fault.v3.FaultAbort.HeaderAbort", &[]),
    part("envoy.extensions.filters.common.fault.v3.FaultDelay", &["fixed_delay", "header_delay", "percentage"]),
    part("envoy.extensions.filters.common.fault.v3.FaultDelay.HeaderDelay", &[]),
    part("envoy.extensions.filters.common.fault.v3.FaultRateLimit", &["fixed_limit", "header_limit", "percentage"]),
    part("envoy.extensions.filters.common.fault.v3.FaultRateLimit.FixedLimit", &["limit_kbps"]),
    part("envoy.extensions.filters.common.fault.v3.FaultRateLimit.HeaderLimit", &[]),
];
