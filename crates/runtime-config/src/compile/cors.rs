//! `Cors` and `CorsPolicy`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::extensions::filters::http::cors::v3 as filter;
use evenkeel_xds::pb::google::protobuf::BoolValue;

use super::Cx;
use super::fraction::runtime_fraction;
use super::matcher::string;
use crate::cors::{Cors, CorsPolicy};
use crate::fraction::Fraction;

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
