//! `RateLimit` of filters, routes and virtual hosts.

use evenkeel_xds::pb::envoy::config::route::v3::{RateLimit, rate_limit};

use super::{Cx, matcher};
use crate::rate_limit::{Action, Description, Matched};
use crate::support::message::{MessageSupport, part};

/// The highest stage that Envoy has.
const MAX_STAGE: u32 = 10;

/// All of a field.
pub(crate) fn descriptions(cx: &mut Cx<'_>, limits: &[RateLimit]) -> Vec<Description> {
    cx.each("rate_limits", limits, description)
}

/// A filter's stage.
pub(crate) fn stage(cx: &mut Cx<'_>, stage: u32) -> Option<u32> {
    if stage <= MAX_STAGE { Some(stage) } else { cx.fail_at("stage", format!("must be at most {MAX_STAGE}")) }
}

fn description(cx: &mut Cx<'_>, config: &RateLimit) -> Option<Description> {
    if config.actions.is_empty() {
        return cx.fail_at("actions", "must not be empty");
    }
    let stage = stage(cx, config.stage.as_ref().map_or(0, |stage| stage.value));
    let actions = cx.each("actions", &config.actions, action);
    (actions.len() == config.actions.len()).then_some(Description { stage: stage?, actions })
}

fn action(cx: &mut Cx<'_>, config: &rate_limit::Action) -> Option<Action> {
    use rate_limit::action::ActionSpecifier;
    match &config.action_specifier {
        Some(ActionSpecifier::GenericKey(generic)) => cx.at("generic_key", |cx| {
            let value = cx.non_empty("descriptor_value", &generic.descriptor_value)?;
            Some(Action::Generic(or(&generic.descriptor_key, "generic_key"), value.into()))
        }),
        Some(ActionSpecifier::SourceCluster(_)) => {
            Some(Action::Generic("source_cluster".into(), cx.env.tracing.node.cluster.as_str().into()))
        }
        Some(ActionSpecifier::RequestHeaders(header)) => cx.at("request_headers", |cx| {
            let name = cx.non_empty("header_name", &header.header_name)?.to_ascii_lowercase().into();
            let key = cx.non_empty("descriptor_key", &header.descriptor_key)?.into();
            Some(Action::Header { name, key, optional: header.skip_if_absent })
        }),
        Some(ActionSpecifier::QueryParameters(parameter)) => cx.at("query_parameters", |cx| {
            let name = cx.non_empty("query_parameter_name", &parameter.query_parameter_name)?.into();
            let key = cx.non_empty("descriptor_key", &parameter.descriptor_key)?.into();
            Some(Action::Query { name, key, optional: parameter.skip_if_absent })
        }),
        Some(ActionSpecifier::RemoteAddress(_)) => Some(Action::Client),
        Some(ActionSpecifier::MaskedRemoteAddress(masked)) => cx.at("masked_remote_address", |cx| {
            let v4 = bits(cx, "v4_prefix_mask_len", masked.v4_prefix_mask_len.as_ref().map(|bits| bits.value), 32);
            let v6 = bits(cx, "v6_prefix_mask_len", masked.v6_prefix_mask_len.as_ref().map(|bits| bits.value), 128);
            Some(Action::ClientNetwork(v4?, v6?))
        }),
        Some(ActionSpecifier::DestinationCluster(_)) => Some(Action::Cluster),
        Some(ActionSpecifier::HeaderValueMatch(matched)) => cx.at("header_value_match", |cx| {
            Some(Action::Match {
                key: or(&matched.descriptor_key, "header_match"),
                value: cx.non_empty("descriptor_value", &matched.descriptor_value)?.into(),
                expected: matched.expect_match.as_ref().is_none_or(|expected| expected.value),
                matched: Matched::Headers(cx.each("headers", &matched.headers, matcher::header)),
            })
        }),
        Some(ActionSpecifier::QueryParameterValueMatch(matched)) => cx.at("query_parameter_value_match", |cx| {
            let parameters = cx.each("query_parameters", &matched.query_parameters, matcher::query_parameter);
            Some(Action::Match {
                key: or(&matched.descriptor_key, "query_match"),
                value: cx.non_empty("descriptor_value", &matched.descriptor_value)?.into(),
                expected: matched.expect_match.as_ref().is_none_or(|expected| expected.value),
                matched: Matched::Query(parameters),
            })
        }),
        _ => cx.fail(
            "one of generic_key, source_cluster, destination_cluster, request_headers, query_parameters, remote_address, \
             masked_remote_address, header_value_match, query_parameter_value_match is required",
        ),
    }
}

fn or(text: &str, default: &str) -> Box<str> {
    if text.is_empty() { default.into() } else { text.into() }
}

fn bits(cx: &mut Cx<'_>, field: &str, value: Option<u32>, most: u8) -> Option<u8> {
    match value {
        None => Some(most),
        Some(value) => match u8::try_from(value) {
            Ok(bits) if bits <= most => Some(bits),
            _ => cx.fail_at(field, format!("must be at most {most}")),
        },
    }
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    part("envoy.config.route.v3.RateLimit", &["stage", "actions"]),
    part("envoy.config.route.v3.RateLimit.Action",
        &["generic_key", "source_cluster", "destination_cluster", "request_headers", "query_parameters", "remote_address",
          "masked_remote_address", "header_value_match", "query_parameter_value_match"]),
    part("envoy.config.route.v3.RateLimit.Action.GenericKey", &["descriptor_key", "descriptor_value"]),
    part("envoy.config.route.v3.RateLimit.Action.SourceCluster", &[]),
    part("envoy.config.route.v3.RateLimit.Action.RequestHeaders", &["header_name", "descriptor_key", "skip_if_absent"]),
    part("envoy.config.route.v3.RateLimit.Action.QueryParameters",
        &["query_parameter_name", "descriptor_key", "skip_if_absent"]),
    part("envoy.config.route.v3.RateLimit.Action.RemoteAddress", &[]),
    part("envoy.config.route.v3.RateLimit.Action.MaskedRemoteAddress", &["v4_prefix_mask_len", "v6_prefix_mask_len"]),
    part("envoy.config.route.v3.RateLimit.Action.DestinationCluster", &[]),
    part("envoy.config.route.v3.RateLimit.Action.HeaderValueMatch",
        &["descriptor_key", "descriptor_value", "expect_match", "headers"]),
    part("envoy.config.route.v3.RateLimit.Action.QueryParameterValueMatch",
        &["descriptor_key", "descriptor_value", "expect_match", "query_parameters"]),
];
