//! `Cors` and `CorsPolicy`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::route::v3 as route;
use evenkeel_xds::pb::envoy::extensions::filters::http::cors::v3 as filter;
use evenkeel_xds::pb::google::protobuf::BoolValue;

use super::Cx;
use super::fraction::runtime_fraction;
use super::matcher::string;
use crate::cors::{Cors, CorsPolicy, ROUTE_FIELD};
use crate::fraction::Fraction;
use crate::route_filters::{FilterOverride, FilterOverrides};

pub(crate) fn cors(_: &mut Cx<'_>, _: &filter::Cors) -> Option<Cors> {
    Some(Cors)
}

pub(crate) fn policy(cx: &mut Cx<'_>, config: &filter::CorsPolicy) -> Option<Arc<CorsPolicy>> {
    let origins = &config.allow_origin_string_match;
    let allow_origins = cx.at("allow_origin_string_match", |cx| {
        let matchers =
            origins.iter().enumerate().filter_map(|(index, origin)| string(cx, &format!("[{index}]"), origin));
        matchers.collect::<Vec<_>>()
    });
    if allow_origins.len() != origins.len() {
        return None;
    }
    let flag = |value: &Option<BoolValue>| value.as_ref().map(|value| value.value);
    Some(Arc::new(CorsPolicy {
        allow_origins,
        allow_methods: config.allow_methods.as_str().into(),
        allow_headers: config.allow_headers.as_str().into(),
        expose_headers: config.expose_headers.as_str().into(),
        max_age: config.max_age.as_str().into(),
        allow_credentials: flag(&config.allow_credentials),
        allow_private_network_access: flag(&config.allow_private_network_access),
        forward_not_matching_preflights: flag(&config.forward_not_matching_preflights),
        enabled: runtime_fraction(cx, "filter_enabled", config.filter_enabled.as_ref(), Fraction::ALL)?,
        shadow_enabled: runtime_fraction(cx, "shadow_enabled", config.shadow_enabled.as_ref(), Fraction::NONE)?,
    }))
}

/// Adds the deprecated field of routes and virtual hosts to the filter overrides of that level.
pub(super) fn with_field(
    cx: &mut Cx<'_>,
    field: Option<&route::CorsPolicy>,
    filters: FilterOverrides,
) -> Option<FilterOverrides> {
    use route::cors_policy::EnabledSpecifier;
    let Some(field) = field.cloned() else { return Some(filters) };
    let filter_enabled = field.enabled_specifier.map(|EnabledSpecifier::FilterEnabled(share)| share);
    let same = filter::CorsPolicy {
        allow_origin_string_match: field.allow_origin_string_match,
        allow_methods: field.allow_methods,
        allow_headers: field.allow_headers,
        expose_headers: field.expose_headers,
        max_age: field.max_age,
        allow_credentials: field.allow_credentials,
        filter_enabled,
        shadow_enabled: field.shadow_enabled,
        allow_private_network_access: field.allow_private_network_access,
        forward_not_matching_preflights: field.forward_not_matching_preflights,
    };
    let policy: Arc<CorsPolicy> = cx.at("cors", |cx| policy(cx, &same))?;
    let said = FilterOverride { filter: ROUTE_FIELD.into(), disabled: false, config: Some(Arc::new(policy)) };
    Some(FilterOverrides::new(vec![said], &filters))
}
