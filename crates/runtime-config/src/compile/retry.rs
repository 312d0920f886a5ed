//! `RetryPolicy`.

use std::time::Duration;

use evenkeel_xds::pb::envoy::config::route::v3 as route;
use evenkeel_xds::pb::envoy::extensions::retry::host::omit_host_metadata::v3::OmitHostMetadataConfig;
use evenkeel_xds::pb::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;

use super::metadata::lb_metadata;
use super::{Cx, matcher, type_name};
use crate::metadata::MetadataMatch;
use crate::retry::{RateLimitedBackOff, ResetHeader, RetryOn, RetryPolicy};

const PREVIOUS_HOSTS: &str = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate";
const OMIT_HOST_METADATA: &str = "envoy.extensions.retry.host.omit_host_metadata.v3.OmitHostMetadataConfig";
const PREVIOUS_PRIORITIES: &str = "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig";
const DEFAULT_BASE_INTERVAL: Duration = Duration::from_millis(25);
const DEFAULT_RATE_LIMITED_MAX: Duration = Duration::from_secs(300);

/// `Some(None)`: no policy.
pub(crate) fn retry_policy(cx: &mut Cx<'_>, policy: Option<&route::RetryPolicy>) -> Option<Option<RetryPolicy>> {
    let Some(policy) = policy else { return Some(None) };
    cx.at("retry_policy", |cx| {
        let mut on = RetryOn::default();
        if let Err(word) = on.add(&policy.retry_on) {
            cx.fail_at::<()>("retry_on", format!("{word:?} is no supported retry condition"));
        }
        let statuses = cx.each("retriable_status_codes", &policy.retriable_status_codes, |cx, status| {
            match u16::try_from(*status) {
                Ok(status @ 100..=599) => Some(status),
                _ => cx.fail(format!("{status} is no HTTP status")),
            }
        });
        let predicates = cx.each("retry_host_predicate", &policy.retry_host_predicate, host_predicate);
        let avoid_priorities_every = match &policy.retry_priority {
            Some(priority) => Some(cx.at("retry_priority", |cx| previous_priorities(cx, priority))?),
            None => None,
        };
        let (base_interval, max_interval) = back_off(cx, policy.retry_back_off.as_ref())?;
        let attempts = policy.host_selection_retry_max_attempts;
        Some(Some(RetryPolicy {
            on,
            num_retries: policy.num_retries.as_ref().map_or(1, |retries| retries.value),
            retriable_status_codes: statuses,
            retriable_headers: cx.each("retriable_headers", &policy.retriable_headers, matcher::header),
            retriable_request_headers: cx.each(
                "retriable_request_headers",
                &policy.retriable_request_headers,
                matcher::header,
            ),
            per_try_timeout: cx.limit("per_try_timeout", policy.per_try_timeout.as_ref(), None),
            per_try_idle_timeout: cx.limit("per_try_idle_timeout", policy.per_try_idle_timeout.as_ref(), None),
            base_interval,
            max_interval,
            rate_limited: match &policy.rate_limited_retry_back_off {
                Some(back_off) => Some(rate_limited(cx, back_off)?),
                None => None,
            },
            avoid_previous_hosts: predicates.iter().any(|predicate| matches!(predicate, Predicate::PreviousHosts)),
            avoid_metadata: predicates.into_iter().filter_map(Predicate::metadata).collect(),
            avoid_priorities_every,
            host_selection_max_attempts: if attempts == 0 {
                1
            } else {
                cx.check("host_selection_retry_max_attempts", u32::try_from(attempts))?
            },
        }))
    })
}

/// A predicate for hosts that retries avoid.
enum Predicate {
    PreviousHosts,
    Metadata(MetadataMatch),
}

impl Predicate {
    fn metadata(self) -> Option<MetadataMatch> {
        match self {
            // Empty metadata matches no host.
            Self::Metadata(metadata) => Some(metadata).filter(|metadata| !metadata.is_empty()),
            Self::PreviousHosts => None,
        }
    }
}

fn host_predicate(cx: &mut Cx<'_>, predicate: &route::retry_policy::RetryHostPredicate) -> Option<Predicate> {
    let Some(route::retry_policy::retry_host_predicate::ConfigType::TypedConfig(any)) = &predicate.config_type else {
        return cx.fail_at("typed_config", "is required");
    };
    match type_name(&any.type_url) {
        PREVIOUS_HOSTS => Some(Predicate::PreviousHosts),
        OMIT_HOST_METADATA => cx.at("typed_config", |cx| {
            let config: OmitHostMetadataConfig = cx.unpack(any)?;
            Some(Predicate::Metadata(lb_metadata(config.metadata_match.as_ref())))
        }),
        name => cx.fail_at("typed_config", format!("{name} is no retry host predicate")),
    }
}

/// The update frequency of `previous_priorities`.
fn previous_priorities(cx: &mut Cx<'_>, priority: &route::retry_policy::RetryPriority) -> Option<u32> {
    let Some(route::retry_policy::retry_priority::ConfigType::TypedConfig(any)) = &priority.config_type else {
        return cx.fail_at("typed_config", "is required");
    };
    cx.at("typed_config", |cx| match type_name(&any.type_url) {
        PREVIOUS_PRIORITIES => {
            let config: PreviousPrioritiesConfig = cx.unpack(any)?;
            match u32::try_from(config.update_frequency) {
                Ok(every @ 1..) => Some(every),
                _ => cx.fail_at("update_frequency", "must be above 0"),
            }
        }
        name => cx.fail(format!("{name} is no retry priority")),
    })
}

fn back_off(cx: &mut Cx<'_>, back_off: Option<&route::retry_policy::RetryBackOff>) -> Option<(Duration, Duration)> {
    let Some(back_off) = back_off else { return Some((DEFAULT_BASE_INTERVAL, DEFAULT_BASE_INTERVAL * 10)) };
    cx.at("retry_back_off", |cx| {
        cx.required("base_interval", back_off.base_interval.as_ref())?;
        let base = cx.duration("base_interval", back_off.base_interval.as_ref())?;
        let max = cx.duration("max_interval", back_off.max_interval.as_ref()).unwrap_or(base.saturating_mul(10));
        if base.is_zero() || max < base {
            return cx.fail("must satisfy 0 s < base_interval <= max_interval");
        }
        Some((base, max))
    })
}

fn rate_limited(cx: &mut Cx<'_>, config: &route::retry_policy::RateLimitedRetryBackOff) -> Option<RateLimitedBackOff> {
    use route::retry_policy::ResetHeaderFormat;
    cx.at("rate_limited_retry_back_off", |cx| {
        if config.reset_headers.is_empty() {
            return cx.fail_at("reset_headers", "must not be empty");
        }
        let reset_headers = cx.each("reset_headers", &config.reset_headers, |cx, header| {
            let name = cx.non_empty("name", &header.name)?.to_ascii_lowercase().into();
            let unix_timestamp = match ResetHeaderFormat::try_from(header.format) {
                Ok(ResetHeaderFormat::Seconds) => false,
                Ok(ResetHeaderFormat::UnixTimestamp) => true,
                Err(_) => return cx.fail_at("format", format!("unknown value {}", header.format)),
            };
            Some(ResetHeader { name, unix_timestamp })
        });
        let max_interval = match cx.duration("max_interval", config.max_interval.as_ref()) {
            Some(Duration::ZERO) => return cx.fail_at("max_interval", "must be longer than 0 s"),
            max => max.unwrap_or(DEFAULT_RATE_LIMITED_MAX),
        };
        Some(RateLimitedBackOff { reset_headers, max_interval })
    })
}
