//! Settings that a route inherits from the levels around it.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::route::v3 as route;
use evenkeel_xds::pb::google::protobuf::Any;

use super::{Cx, skip, type_name};
use crate::http_filters::per_route;
use crate::mirror::MirrorPolicy;
use crate::rate_limit::Description;
use crate::retry::RetryPolicy;
use crate::route_filters::{FilterOverride, FilterOverrides};

const FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig";

/// Settings that routes inherit from their virtual host and table.
pub(crate) struct Inherited<'h> {
    pub max_direct_response_body_bytes: u32,
    pub retry: Option<&'h Arc<RetryPolicy>>,
    pub filters: &'h FilterOverrides,
    pub validate_clusters: bool,
    pub mirrors: Option<&'h Arc<[MirrorPolicy]>>,
    pub rate_limits: Option<&'h Arc<[Description]>>,
}

/// `typed_per_filter_config`, followed by what is inherited from `outer`.
pub(super) fn filter_overrides(
    cx: &mut Cx<'_>,
    configs: &BTreeMap<String, Any>,
    outer: &FilterOverrides,
) -> Option<FilterOverrides> {
    let count = configs.len();
    let own: Vec<_> = cx.at("typed_per_filter_config", |cx| {
        let compiled = configs
            .iter()
            .filter_map(|(filter, any)| cx.element(format_args!("{filter:?}"), |cx| filter_override(cx, filter, any)));
        compiled.collect()
    });
    (own.len() == count).then(|| FilterOverrides::new(own, outer))
}

fn filter_override(cx: &mut Cx<'_>, filter: &str, any: &Any) -> Option<FilterOverride> {
    let says = |disabled, config| FilterOverride { filter: filter.into(), disabled, config };
    if type_name(&any.type_url) == skip::PER_ROUTE {
        return skip::per_route(cx, any).map(|matcher| says(false, Some(matcher)));
    }
    if type_name(&any.type_url) != FILTER_CONFIG {
        return per_route(cx, any, false).map(|config| says(false, config));
    }
    let wrapped: route::FilterConfig = cx.unpack(any)?;
    if wrapped.disabled {
        return Some(says(true, None));
    }
    let config = cx.required("config", wrapped.config.as_ref())?;
    // An empty one only enables the filter.
    if config.type_url.is_empty() {
        return Some(says(false, None));
    }
    cx.at("config", |cx| per_route(cx, config, wrapped.is_optional)).map(|config| says(false, config))
}

pub(super) fn cluster_name(cx: &mut Cx<'_>, field: &str, name: &str, inherited: &Inherited<'_>) -> Option<Arc<str>> {
    let name = cx.non_empty(field, name)?;
    let unknown = inherited.validate_clusters && cx.known_clusters.is_some_and(|known| !known(name));
    if unknown {
        return cx.fail_at(field, format!("there is no cluster {name:?} (validate_clusters is set)"));
    }
    Some(name.into())
}
