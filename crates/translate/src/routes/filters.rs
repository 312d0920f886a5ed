//! Faults and CORS: filters in every connection manager, configured by the routes that have them.

use std::collections::BTreeMap;

use evenkeel_model::{AbortStatus, CorsPolicy, Fault, HttpRoute, Millionths, StringMatch};

use super::matches;
use crate::pb::core::RuntimeFractionalPercent;
use crate::pb::cors;
use crate::pb::envoy_type::{FractionalPercent, fractional_percent::DenominatorType};
use crate::pb::fault::{self, fault_abort, fault_delay};
use crate::pb::google::protobuf::Any;
use crate::pb::grpc_web::GrpcWeb;
use crate::pb::hcm::{HttpFilter, http_filter};
use crate::pb::matcher::{StringMatcher, string_matcher::MatchPattern};
use crate::proto::{any, bool_value, duration, string_matcher};

/// Envoy's name of the fault filter; per-route configuration is found by it.
pub const FAULT: &str = "envoy.filters.http.fault";
/// Envoy's name of the CORS filter.
const CORS: &str = "envoy.filters.http.cors";

/// Returns the filters, in Istio's order. They do nothing on routes that do not configure them.
pub fn all() -> [HttpFilter; 2] {
    [fault(), filter(CORS, any(&cors::Cors {}))]
}

/// The fault filter.
pub fn fault() -> HttpFilter {
    filter(FAULT, any(&fault::HttpFault::default()))
}

/// The filter of ports of gRPC-Web.
pub fn grpc_web() -> HttpFilter {
    filter("envoy.filters.http.grpc_web", any(&GrpcWeb {}))
}

fn filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

/// Returns a route's filter configuration, by the names of the filters.
pub fn of_route(route: &HttpRoute) -> BTreeMap<String, Any> {
    let fault = route.fault.as_ref().map(|fault| (FAULT.to_owned(), any(&http_fault(fault))));
    let cors = route.cors.as_ref().map(|cors| (CORS.to_owned(), any(&cors_policy(cors))));
    fault.into_iter().chain(cors).collect()
}

fn http_fault(fault: &Fault) -> fault::HttpFault {
    fault::HttpFault {
        delay: fault.delay.map(|(fixed, share)| fault::FaultDelay {
            percentage: Some(fraction(share)),
            fault_delay_secifier: Some(fault_delay::FaultDelaySecifier::FixedDelay(duration(fixed))),
        }),
        abort: fault.abort.map(|(status, share)| fault::FaultAbort {
            percentage: Some(fraction(share)),
            error_type: Some(match status {
                AbortStatus::Http(status) => fault_abort::ErrorType::HttpStatus(status.into()),
                AbortStatus::Grpc(status) => fault_abort::ErrorType::GrpcStatus(status.into()),
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn cors_policy(policy: &CorsPolicy) -> cors::CorsPolicy {
    cors::CorsPolicy {
        allow_origin_string_match: policy.allow_origins.iter().map(origin).collect(),
        allow_methods: policy.allow_methods.to_string(),
        allow_headers: policy.allow_headers.to_string(),
        expose_headers: policy.expose_headers.to_string(),
        max_age: policy.max_age.map(|seconds| seconds.to_string()).unwrap_or_default(),
        allow_credentials: policy.allow_credentials.map(bool_value),
        filter_enabled: Some(share(Millionths::ALL)),
        forward_not_matching_preflights: Some(bool_value(policy.forwards_unmatched)),
        ..Default::default()
    }
}

/// A test on an origin; an empty one passes no origin.
fn origin(wanted: &StringMatch) -> StringMatcher {
    matches::string(wanted).unwrap_or_else(|| string_matcher(MatchPattern::Exact(String::new())))
}

/// A share of requests that the runtime layer may change.
pub fn share(share: Millionths) -> RuntimeFractionalPercent {
    RuntimeFractionalPercent { default_value: Some(fraction(share)), ..Default::default() }
}

fn fraction(share: Millionths) -> FractionalPercent {
    // Istio writes whole percentages so, and a table of these is easier to read.
    let (numerator, denominator) = match share.0 % 10_000 {
        0 => (share.0 / 10_000, DenominatorType::Hundred),
        _ => (share.0, DenominatorType::Million),
    };
    FractionalPercent { numerator, denominator: denominator as i32 }
}
