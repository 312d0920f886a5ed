//! `envoy.filters.http.ratelimit`, compiled: which requests a rate limit service is asked about, and what happens then.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::extensions::filters::http::ratelimit::v3 as filter;
use evenkeel_xds::pb::envoy::r#type::v3::HttpStatus;

use crate::compile::fraction::runtime_fraction;
use crate::compile::grpc_access_log::version_3;
use crate::compile::grpc_service::grpc_target;
use crate::compile::headers::addition;
use crate::compile::{Cx, rate_limit};
use crate::ext_authz::{CallTarget, GrpcTarget};
use crate::filter_needs::FilterNeeds;
use crate::fraction::Fraction;
use crate::header_edits::HeaderAddition;
use crate::rate_limit::{Description, HostDescriptions};
use crate::support::message::{MessageSupport, extension, part};

/// Time limit of a call if none is configured, as in Envoy.
const TIMEOUT: Duration = Duration::from_millis(20);
/// The status of refused requests, unless another is configured. Envoy takes one below 400 for none.
const TOO_MANY_REQUESTS: u16 = 429;
/// The status of requests that are refused because the service has failed.
const INTERNAL_ERROR: u16 = 500;

/// Configuration of the filter.
#[derive(Debug)]
pub struct RateLimit {
    /// The service.
    pub service: GrpcTarget,
    /// Whose limits they are.
    pub domain: Box<str>,
    /// The stage of the descriptions of routes that the filter uses.
    pub stage: u32,
    /// Which requests.
    pub requests: Requests,
    /// Descriptions in place of those of routes.
    pub descriptions: Vec<Description>,
    /// Share of requests that the service is asked about.
    pub enabled: Fraction,
    /// Share of those over the limit that are refused.
    pub enforced: Fraction,
    /// Share of requests that are refused if the service fails.
    pub fails_closed: Fraction,
    /// The status of requests over the limit.
    pub status: u16,
    /// The status of requests that are refused because the service has failed.
    pub status_on_error: u16,
    /// Headers of refusals.
    pub response_headers: Vec<HeaderAddition>,
    /// Whether responses say what is left (`x-ratelimit-*`).
    pub tells_limit: bool,
    /// Whether refusals have `x-envoy-ratelimited`.
    pub tells_refusal: bool,
    /// Whether gRPC clients get RESOURCE_EXHAUSTED instead of UNAVAILABLE.
    pub resource_exhausted: bool,
    /// A part of the names of its statistics.
    pub stat_prefix: Arc<str>,
}

/// `request_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requests {
    /// All.
    All,
    /// Those with `x-envoy-internal: true`.
    Internal,
    /// The others.
    External,
}

/// A route's configuration.
#[derive(Debug)]
pub struct RateLimitPerRoute {
    /// Which of the virtual host's descriptions apply.
    pub of_host: HostDescriptions,
    /// Descriptions in place of those of the filter and of the route.
    pub descriptions: Vec<Description>,
    /// Whose limits they are; empty: the filter's domain.
    pub domain: Box<str>,
}

impl FilterNeeds for RateLimit {
    fn clusters(&self) -> Vec<&Arc<str>> {
        vec![&self.service.call.cluster]
    }

    fn reads(&self, name: &str) -> bool {
        self.descriptions.iter().flat_map(|description| &description.actions).any(|action| action.reads(name))
    }
}

pub(crate) fn ratelimit(cx: &mut Cx<'_>, config: &filter::RateLimit) -> Option<RateLimit> {
    let domain = cx.non_empty("domain", &config.domain).map(Into::into);
    let service = cx.required("rate_limit_service", config.rate_limit_service.as_ref())?;
    let timeout = cx.limit("timeout", config.timeout.as_ref(), Some(TIMEOUT));
    let service = cx.at("rate_limit_service", |cx| {
        version_3(cx, service.transport_api_version)?;
        let grpc = cx.required("grpc_service", service.grpc_service.as_ref())?;
        let target = cx.at("grpc_service", |cx| grpc_target(cx, grpc))?;
        // Only the filter's own time limit counts, as in Envoy.
        Some(GrpcTarget { call: CallTarget { timeout, ..target.call }, ..target })
    });
    let requests = match config.request_type.as_str() {
        "" | "both" => Requests::All,
        "internal" => Requests::Internal,
        "external" => Requests::External,
        _ => return cx.fail_at("request_type", "must be internal, external or both"),
    };
    let versions = filter::rate_limit::XRateLimitHeadersRfcVersion::try_from(config.enable_x_ratelimit_headers);
    let Ok(version) = versions else {
        return cx
            .fail_at("enable_x_ratelimit_headers", format!("unknown value {}", config.enable_x_ratelimit_headers));
    };
    let closed = if config.failure_mode_deny { Fraction::ALL } else { Fraction::NONE };
    let enabled = runtime_fraction(cx, "filter_enabled", config.filter_enabled.as_ref(), Fraction::ALL);
    let enforced = runtime_fraction(cx, "filter_enforced", config.filter_enforced.as_ref(), Fraction::ALL);
    let fails_closed =
        runtime_fraction(cx, "failure_mode_deny_percent", config.failure_mode_deny_percent.as_ref(), closed);
    Some(RateLimit {
        service: service?,
        domain: domain?,
        stage: rate_limit::stage(cx, config.stage)?,
        requests,
        descriptions: rate_limit::descriptions(cx, &config.rate_limits),
        enabled: enabled?,
        enforced: enforced?,
        fails_closed: fails_closed?,
        status: status(config.rate_limited_status.as_ref(), 400, TOO_MANY_REQUESTS),
        status_on_error: status(config.status_on_error.as_ref(), 400, INTERNAL_ERROR),
        response_headers: cx.each("response_headers_to_add", &config.response_headers_to_add, addition),
        tells_limit: version != filter::rate_limit::XRateLimitHeadersRfcVersion::Off,
        tells_refusal: !config.disable_x_envoy_ratelimited_header,
        resource_exhausted: config.rate_limited_as_resource_exhausted,
        stat_prefix: config.stat_prefix.as_str().into(),
    })
}

fn status(configured: Option<&HttpStatus>, least: u16, absent: u16) -> u16 {
    let code = configured.and_then(|status| u16::try_from(status.code).ok());
    code.filter(|code| (least..600).contains(code)).unwrap_or(absent)
}

pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::RateLimitPerRoute) -> Option<RateLimitPerRoute> {
    use filter::rate_limit_per_route::{OverrideOptions, VhRateLimitsOptions};
    let older = match VhRateLimitsOptions::try_from(config.vh_rate_limits) {
        Ok(VhRateLimitsOptions::Override) => HostDescriptions::Override,
        Ok(VhRateLimitsOptions::Include) => HostDescriptions::Include,
        Ok(VhRateLimitsOptions::Ignore) => HostDescriptions::Ignore,
        Err(_) => return cx.fail_at("vh_rate_limits", format!("unknown value {}", config.vh_rate_limits)),
    };
    let of_host = match OverrideOptions::try_from(config.override_option) {
        Ok(OverrideOptions::Default) => older,
        Ok(OverrideOptions::OverridePolicy) => HostDescriptions::Override,
        Ok(OverrideOptions::IncludePolicy) => HostDescriptions::Include,
        Ok(OverrideOptions::IgnorePolicy) => HostDescriptions::Ignore,
        Err(_) => return cx.fail_at("override_option", format!("unknown value {}", config.override_option)),
    };
    let descriptions = rate_limit::descriptions(cx, &config.rate_limits);
    Some(RateLimitPerRoute { of_host, descriptions, domain: config.domain.as_str().into() })
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        &["domain", "stage", "request_type", "timeout", "failure_mode_deny", "rate_limited_as_resource_exhausted", "rate_limit_service",
          "enable_x_ratelimit_headers", "disable_x_envoy_ratelimited_header", "rate_limited_status", "response_headers_to_add",
          "status_on_error", "stat_prefix", "filter_enabled", "filter_enforced", "failure_mode_deny_percent", "rate_limits"]),
    extension("envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
        &["vh_rate_limits", "override_option", "rate_limits", "domain"]),
    part("envoy.config.ratelimit.v3.RateLimitServiceConfig", &["grpc_service", "transport_api_version"]),
];
