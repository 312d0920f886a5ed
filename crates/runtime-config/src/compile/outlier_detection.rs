//! `OutlierDetection`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster;
use evenkeel_xds::pb::envoy::config::common::matcher::v3::{MatchPredicate, match_predicate::Rule};
use evenkeel_xds::pb::google::protobuf as wkt;

use super::{Cx, matcher};
use crate::outlier_detection::{FailurePercentage, OutlierDetection, SuccessRate, Threshold};

type Number = Option<wkt::UInt32Value>;

/// Compiles a cluster's outlier detection; invalid fields are recorded as problems.
pub(crate) fn outlier_detection(cx: &mut Cx<'_>, o: &cluster::OutlierDetection) -> Option<OutlierDetection> {
    cx.at("outlier_detection", |cx| {
        let default = OutlierDetection::default();
        let base = time(cx, "base_ejection_time", o.base_ejection_time.as_ref(), default.base_ejection_time);
        let longest = default.max_ejection_time.max(base);
        let max_ejection_time = time(cx, "max_ejection_time", o.max_ejection_time.as_ref(), longest);
        if max_ejection_time < base {
            cx.fail_at::<()>("max_ejection_time", "must not be shorter than base_ejection_time");
        }
        let jitter = cx.duration("max_ejection_time_jitter", o.max_ejection_time_jitter.as_ref());
        let flag = |value: &Option<wkt::BoolValue>, default| value.as_ref().map_or(default, |value| value.value);
        Some(OutlierDetection {
            consecutive_5xx: Threshold {
                count: number(&o.consecutive_5xx, default.consecutive_5xx.count),
                enforcing_percent: percent(
                    cx,
                    "enforcing_consecutive_5xx",
                    &o.enforcing_consecutive_5xx,
                    default.consecutive_5xx.enforcing_percent,
                ),
            },
            consecutive_gateway_failure: Threshold {
                count: number(&o.consecutive_gateway_failure, default.consecutive_gateway_failure.count),
                enforcing_percent: percent(
                    cx,
                    "enforcing_consecutive_gateway_failure",
                    &o.enforcing_consecutive_gateway_failure,
                    default.consecutive_gateway_failure.enforcing_percent,
                ),
            },
            consecutive_local_origin_failure: Threshold {
                count: number(&o.consecutive_local_origin_failure, default.consecutive_local_origin_failure.count),
                enforcing_percent: percent(
                    cx,
                    "enforcing_consecutive_local_origin_failure",
                    &o.enforcing_consecutive_local_origin_failure,
                    default.consecutive_local_origin_failure.enforcing_percent,
                ),
            },
            split_local_origin: o.split_external_local_origin_errors,
            interval: time(cx, "interval", o.interval.as_ref(), default.interval),
            base_ejection_time: base,
            max_ejection_time,
            max_ejection_time_jitter: jitter.unwrap_or_default(),
            max_ejection_percent: percent(
                cx,
                "max_ejection_percent",
                &o.max_ejection_percent,
                default.max_ejection_percent,
            ),
            always_eject_one_host: flag(&o.always_eject_one_host, false),
            successful_health_check_unejects: flag(&o.successful_active_health_check_uneject_host, true),
            success_rate: success_rate(cx, o, default.success_rate),
            failure_percentage: failure_percentage(cx, o, default.failure_percentage),
            error_statuses: None,
        })
    })
}

fn success_rate(cx: &mut Cx<'_>, o: &cluster::OutlierDetection, default: SuccessRate) -> SuccessRate {
    SuccessRate {
        minimum_hosts: number(&o.success_rate_minimum_hosts, default.minimum_hosts),
        request_volume: o.success_rate_request_volume.as_ref().map_or(default.request_volume, |n| n.value.into()),
        stdev_factor_thousandths: number(&o.success_rate_stdev_factor, default.stdev_factor_thousandths),
        enforcing_percent: percent(cx, "enforcing_success_rate", &o.enforcing_success_rate, default.enforcing_percent),
        enforcing_local_origin_percent: percent(
            cx,
            "enforcing_local_origin_success_rate",
            &o.enforcing_local_origin_success_rate,
            default.enforcing_local_origin_percent,
        ),
    }
}

/// The statuses that a matcher of responses names. Only conditions on `:status` are supported, so that they can be judged
/// once, here.
pub(super) fn error_statuses(cx: &mut Cx<'_>, predicate: &MatchPredicate) -> Option<Arc<[u16]>> {
    let matched = |cx: &mut Cx<'_>, of: &MatchPredicate| match &of.rule {
        Some(Rule::HttpResponseHeadersMatch(of)) => cx.at("http_response_headers_match", |cx| {
            let headers = cx.each("headers", &of.headers, matcher::header);
            if headers.iter().all(|header| &*header.name == ":status") && !headers.is_empty() {
                Some(headers)
            } else {
                cx.fail_at("headers", "only conditions on :status are supported")
            }
        }),
        _ => cx.fail("only or_match and http_response_headers_match are supported"),
    };
    let any_of = match &predicate.rule {
        Some(Rule::OrMatch(set)) => cx.at("or_match", |cx| cx.each("rules", &set.rules, matched)),
        _ => vec![matched(cx, predicate)?],
    };
    let is_error = |status: &u16| {
        let text = status.to_string();
        any_of.iter().any(|all| all.iter().all(|header| header.matches_values([text.as_bytes()])))
    };
    Some((100..600).filter(is_error).collect())
}

fn failure_percentage(cx: &mut Cx<'_>, o: &cluster::OutlierDetection, default: FailurePercentage) -> FailurePercentage {
    FailurePercentage {
        threshold: percent(cx, "failure_percentage_threshold", &o.failure_percentage_threshold, default.threshold),
        minimum_hosts: number(&o.failure_percentage_minimum_hosts, default.minimum_hosts),
        request_volume: o.failure_percentage_request_volume.as_ref().map_or(default.request_volume, |n| n.value.into()),
        enforcing_percent: percent(
            cx,
            "enforcing_failure_percentage",
            &o.enforcing_failure_percentage,
            default.enforcing_percent,
        ),
        enforcing_local_origin_percent: percent(
            cx,
            "enforcing_failure_percentage_local_origin",
            &o.enforcing_failure_percentage_local_origin,
            default.enforcing_local_origin_percent,
        ),
    }
}

fn number(value: &Number, default: u32) -> u32 {
    value.as_ref().map_or(default, |value| value.value)
}

fn percent(cx: &mut Cx<'_>, field: &str, value: &Number, default: u32) -> u32 {
    let percent = number(value, default);
    if percent > 100 {
        cx.fail_at::<()>(field, format!("{percent} is more than 100"));
    }
    percent
}

/// A duration that must not be zero.
fn time(cx: &mut Cx<'_>, field: &str, value: Option<&wkt::Duration>, default: Duration) -> Duration {
    match cx.duration(field, value) {
        Some(Duration::ZERO) => {
            cx.fail_at::<()>(field, "must be longer than 0 s");
            default
        }
        time => time.unwrap_or(default),
    }
}
