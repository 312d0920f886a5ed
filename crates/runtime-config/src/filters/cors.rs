//! `envoy.filters.http.cors`, compiled: which requests scripts of other origins may make.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::route::v3 as route;
use evenkeel_xds::pb::envoy::extensions::filters::http::cors::v3 as filter;
use evenkeel_xds::pb::google::protobuf::BoolValue;

use crate::compile::Cx;
use crate::compile::fraction::runtime_fraction;
use crate::compile::matcher::string;
use crate::filter_needs::FilterNeeds;
use crate::fraction::Fraction;
use crate::route_filters::{FilterOverride, FilterOverrides};
use crate::string_match::StringMatcher;
use crate::support::message::{MessageSupport, extension};

/// The name under which the `cors` field of a route or virtual host is stored among filter overrides; no filter has this name.
pub const ROUTE_FIELD: &str = "envoy.config.route.v3.CorsPolicy";

/// The filter itself has no configuration; routes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cors;

impl FilterNeeds for Cors {}

/// `CorsPolicy` of a route or one of its parents. Unset fields are taken from the next one.
#[derive(Debug, Clone)]
pub struct CorsPolicy {
    /// Allowed origins; empty: unset.
    pub allow_origins: Vec<StringMatcher>,
    /// `access-control-allow-methods`; `*`: the requested one; empty: unset.
    pub allow_methods: Box<str>,
    /// `access-control-allow-headers`; `*`: the requested ones; empty: unset.
    pub allow_headers: Box<str>,
    /// `access-control-expose-headers`; empty: unset.
    pub expose_headers: Box<str>,
    /// `access-control-max-age`; empty: unset.
    pub max_age: Box<str>,
    /// `access-control-allow-credentials`.
    pub allow_credentials: Option<bool>,
    /// `access-control-allow-private-network`.
    pub allow_private_network_access: Option<bool>,
    /// Preflight requests of other origins are forwarded (the default); otherwise they are answered here.
    pub forward_not_matching_preflights: Option<bool>,
    /// Requests for which the policy is enforced. Only the most specific policy's setting counts.
    pub enabled: Fraction,
    /// Requests whose origins are only counted.
    pub shadow_enabled: Fraction,
}

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
pub(crate) fn with_field(
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

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.cors.v3.Cors", &[]),
    extension("envoy.extensions.filters.http.cors.v3.CorsPolicy",
        &["allow_origin_string_match", "allow_methods", "allow_headers", "expose_headers", "max_age", "allow_credentials",
          "filter_enabled", "shadow_enabled", "allow_private_network_access", "forward_not_matching_preflights"]),
];
