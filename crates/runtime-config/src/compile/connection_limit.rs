//! `ConnectionLimit`.

use evenkeel_xds::pb::envoy::extensions::filters::network::connection_limit::v3 as filter;

use super::Cx;
use crate::connection_limit::ConnectionLimit;

pub(crate) fn connection_limit(cx: &mut Cx<'_>, config: &filter::ConnectionLimit) -> Option<ConnectionLimit> {
    let stat_prefix = cx.non_empty("stat_prefix", &config.stat_prefix)?.into();
    let max_connections = match cx.required("max_connections", config.max_connections.as_ref())?.value {
        0 => return cx.fail_at("max_connections", "must be at least 1"),
        max_connections => max_connections,
    };
    let delay = cx.duration("delay", config.delay.as_ref()).unwrap_or_default();
    let enabled = config.runtime_enabled.as_ref().and_then(|flag| flag.default_value.as_ref());
    Some(ConnectionLimit::new(stat_prefix, max_connections, delay, enabled.is_none_or(|enabled| enabled.value)))
}
