//! `envoy.filters.http.local_ratelimit`, compiled: token buckets that limit requests without asking a service.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use evenkeel_limits::{Refill, TokenBucket};
use evenkeel_xds::pb::envoy::extensions::common::ratelimit::v3 as common;
use evenkeel_xds::pb::envoy::extensions::filters::http::local_ratelimit::v3 as filter;
use evenkeel_xds::pb::envoy::r#type::v3 as pb_type;

use crate::compile::fraction::runtime_fraction;
use crate::compile::headers::addition;
use crate::compile::{Cx, rate_limit};
use crate::filter_needs::FilterNeeds;
use crate::fraction::Fraction;
use crate::header_edits::HeaderAddition;
use crate::rate_limit::{Description, HostDescriptions};
use crate::support::message::{MessageSupport, Role::Extension, part};

/// The status of refused requests, unless another is configured. Envoy takes one below 400 for none.
const TOO_MANY_REQUESTS: u16 = 429;
/// The least time in which a bucket fills.
const MIN_FILL_INTERVAL: Duration = Duration::from_millis(50);

/// Configuration of the filter, or of a route.
#[derive(Debug)]
pub struct LocalRateLimit {
    /// Prefix of the statistics: `PREFIX.http_local_rate_limit.`.
    pub stat_prefix: Arc<str>,
    /// The status of refused requests.
    pub status: u16,
    /// The bucket of all requests; `None`: they are not limited together.
    pub bucket: Option<Limit>,
    /// Share of requests that are counted.
    pub enabled: Fraction,
    /// Share of those over the limit that are refused.
    pub enforced: Fraction,
    /// Headers of requests over the limit that are not refused.
    pub request_headers: Vec<HeaderAddition>,
    /// Headers of the refusal.
    pub response_headers: Vec<HeaderAddition>,
    /// Buckets of requests that have these descriptors.
    pub descriptors: Vec<Descriptor>,
    /// Each makes a descriptor of a request. Without any, those of the route and of its virtual host do.
    pub descriptions: Vec<Description>,
    /// The stage of the descriptions of routes that the filter uses.
    pub stage: u32,
    /// Which of the virtual host's descriptions apply beside those of the route.
    pub of_host: HostDescriptions,
    /// Whether a request that a descriptor's bucket lets pass also takes from the bucket of all.
    pub always_consumes: bool,
    /// Whether responses say what is left (`x-ratelimit-*`).
    pub tells_limit: bool,
    /// Whether gRPC clients get RESOURCE_EXHAUSTED instead of UNAVAILABLE.
    pub resource_exhausted: bool,
}

/// A bucket, shared by all workers. As in Envoy, it is full again with a changed configuration.
#[derive(Debug)]
pub struct Limit {
    /// Most tokens.
    pub most: u64,
    refill: Refill,
    /// Filled when it is used for the first time.
    bucket: OnceLock<TokenBucket>,
}

/// A bucket for requests with a descriptor.
#[derive(Debug)]
pub struct Descriptor {
    /// Keys and values, in order.
    pub entries: Vec<(Box<str>, Box<str>)>,
    /// The bucket.
    pub limit: Limit,
    /// Whether it refuses nothing.
    pub shadow: bool,
}

impl Limit {
    fn new(most: u64, refill: Refill) -> Self {
        Self { most, refill, bucket: OnceLock::new() }
    }

    /// The bucket. `now`: when it is full, if it was never used.
    pub fn bucket(&self, now: Instant) -> &TokenBucket {
        self.bucket.get_or_init(|| TokenBucket::new(self.most, self.refill, self.most, now))
    }
}

impl FilterNeeds for LocalRateLimit {
    fn reads(&self, name: &str) -> bool {
        self.descriptions.iter().flat_map(|description| &description.actions).any(|action| action.reads(name))
    }
}

/// A route's configuration, which replaces the filter's own entirely.
pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::LocalRateLimit) -> Option<Arc<LocalRateLimit>> {
    // As in Envoy: a route that only had other descriptors would otherwise lift the filter's limit.
    cx.required("token_bucket", config.token_bucket.as_ref())?;
    local_ratelimit(cx, config).map(Arc::new)
}

pub(crate) fn local_ratelimit(cx: &mut Cx<'_>, config: &filter::LocalRateLimit) -> Option<LocalRateLimit> {
    let stat_prefix = cx.non_empty("stat_prefix", &config.stat_prefix).map(Arc::from);
    let bucket = match &config.token_bucket {
        None => Some(None),
        Some(bucket) => cx.at("token_bucket", |cx| limit(cx, bucket)).map(Some),
    };
    let enabled = runtime_fraction(cx, "filter_enabled", config.filter_enabled.as_ref(), Fraction::NONE);
    let enforced = runtime_fraction(cx, "filter_enforced", config.filter_enforced.as_ref(), Fraction::NONE);
    let status = config.status.as_ref().and_then(|status| u16::try_from(status.code).ok());
    let versions = common::XRateLimitHeadersRfcVersion::try_from(config.enable_x_ratelimit_headers);
    let Ok(version) = versions else {
        return cx
            .fail_at("enable_x_ratelimit_headers", format!("unknown value {}", config.enable_x_ratelimit_headers));
    };
    Some(LocalRateLimit {
        stat_prefix: stat_prefix?,
        status: status.filter(|status| (400..600).contains(status)).unwrap_or(TOO_MANY_REQUESTS),
        bucket: bucket?,
        enabled: enabled?,
        enforced: enforced?,
        request_headers: cx.each(
            "request_headers_to_add_when_not_enforced",
            &config.request_headers_to_add_when_not_enforced,
            addition,
        ),
        response_headers: cx.each("response_headers_to_add", &config.response_headers_to_add, addition),
        descriptors: cx.each("descriptors", &config.descriptors, descriptor),
        descriptions: rate_limit::descriptions(cx, &config.rate_limits),
        stage: rate_limit::stage(cx, config.stage)?,
        of_host: match common::VhRateLimitsOptions::try_from(config.vh_rate_limits) {
            Ok(common::VhRateLimitsOptions::Override) => HostDescriptions::Override,
            Ok(common::VhRateLimitsOptions::Include) => HostDescriptions::Include,
            Ok(common::VhRateLimitsOptions::Ignore) => HostDescriptions::Ignore,
            Err(_) => return cx.fail_at("vh_rate_limits", format!("unknown value {}", config.vh_rate_limits)),
        },
        always_consumes: config.always_consume_default_token_bucket.as_ref().is_none_or(|always| always.value),
        tells_limit: version != common::XRateLimitHeadersRfcVersion::Off,
        resource_exhausted: config.rate_limited_as_resource_exhausted,
    })
}

fn limit(cx: &mut Cx<'_>, bucket: &pb_type::TokenBucket) -> Option<Limit> {
    if bucket.max_tokens == 0 {
        return cx.fail_at("max_tokens", "must be at least 1");
    }
    let tokens = bucket.tokens_per_fill.as_ref().map_or(1, |tokens| tokens.value);
    if tokens == 0 {
        return cx.fail_at("tokens_per_fill", "must be at least 1");
    }
    cx.required("fill_interval", bucket.fill_interval.as_ref())?;
    let interval = cx.duration("fill_interval", bucket.fill_interval.as_ref())?;
    if interval < MIN_FILL_INTERVAL {
        return cx.fail_at("fill_interval", "must be at least 50 ms");
    }
    Some(Limit::new(bucket.max_tokens.into(), Refill { tokens: tokens.into(), interval }))
}

fn descriptor(cx: &mut Cx<'_>, config: &common::LocalRateLimitDescriptor) -> Option<Descriptor> {
    if config.entries.is_empty() {
        return cx.fail_at("entries", "must not be empty");
    }
    // An entry without a value would match any; each value would need a bucket of its own.
    let entries = cx.each("entries", &config.entries, |cx, entry| {
        let key = cx.non_empty("key", &entry.key)?;
        let value = match entry.value.as_str() {
            "" => return cx.fail_at("value", "must not be empty: buckets for each value of a key are not supported"),
            value => value,
        };
        Some((key.into(), value.into()))
    });
    let bucket = cx.required("token_bucket", config.token_bucket.as_ref())?;
    let limit = cx.at("token_bucket", |cx| limit(cx, bucket))?;
    (entries.len() == config.entries.len()).then_some(Descriptor { entries, limit, shadow: config.shadow_mode })
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    MessageSupport {
        name: "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        role: Extension,
        full: &["stat_prefix", "status", "token_bucket", "filter_enabled", "filter_enforced", "request_headers_to_add_when_not_enforced",
            "response_headers_to_add", "rate_limits", "always_consume_default_token_bucket", "enable_x_ratelimit_headers",
            "rate_limited_as_resource_exhausted", "stage", "vh_rate_limits"],
        values: &[("descriptors", "with a value in each entry")],
        no_effect: &[],
    },
    part("envoy.type.v3.TokenBucket", &["max_tokens", "tokens_per_fill", "fill_interval"]),
    part("envoy.extensions.common.ratelimit.v3.LocalRateLimitDescriptor", &["entries", "token_bucket", "shadow_mode"]),
    part("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry", &["key", "value"]),
];
