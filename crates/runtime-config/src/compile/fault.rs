//! `HTTPFault`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::extensions::filters::common::fault::v3 as common;
use evenkeel_xds::pb::envoy::extensions::filters::http::fault::v3 as filter;
use evenkeel_xds::pb::envoy::r#type::v3::FractionalPercent;

use super::Cx;
use super::fraction::fraction;
use super::matcher::header;
use super::metadata::fields;
use crate::fault::{Abort, AbortStatus, Delay, Fault, RateLimit};
use crate::fraction::Fraction;

/// A route's configuration, which replaces the filter's own entirely.
pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::HttpFault) -> Option<Arc<Fault>> {
    fault(cx, config).map(Arc::new)
}

pub(crate) fn fault(cx: &mut Cx<'_>, config: &filter::HttpFault) -> Option<Fault> {
    let delay = part(cx, "delay", config.delay.as_ref(), delay);
    let abort = part(cx, "abort", config.abort.as_ref(), abort);
    let rate_limit = part(cx, "response_rate_limit", config.response_rate_limit.as_ref(), rate_limit);
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
fn part<M, T>(
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
