//! The UDP proxy of a listener (`envoy.filters.udp_listener.udp_proxy`).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3::UdpSocketConfig;
use evenkeel_xds::pb::envoy::config::listener::v3 as listener;
use evenkeel_xds::pb::envoy::data::accesslog::v3::AccessLogType;
use evenkeel_xds::pb::envoy::extensions::filters::udp::udp_proxy::v3 as pb;
use evenkeel_xds::pb::xds::r#type::matcher::v3::{Matcher, matcher::on_match::OnMatch};

use super::access_log::access_logs;
use super::{Cx, type_name};
use crate::hash::xxhash64;
use crate::udp_proxy::{UdpHash, UdpProxy};

const UDP_PROXY: &str = "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig";
const ROUTE: &str = "envoy.extensions.filters.udp.udp_proxy.v3.Route";
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Envoy's default of `max_rx_datagram_size`.
const DEFAULT_MAX_DATAGRAM_BYTES: usize = 1500;
/// The longest that a UDP datagram can be.
const MAX_DATAGRAM_BYTES: u64 = 65_535;

/// The UDP proxy of a listener with a UDP address. Such a listener has one listener filter, and no filter chains.
pub(super) fn udp_listener(cx: &mut Cx<'_>, l: &listener::Listener) -> Option<Arc<UdpProxy>> {
    if !l.filter_chains.is_empty() || l.default_filter_chain.is_some() {
        cx.fail_at::<()>(
            "filter_chains",
            "no connection arrives at a UDP listener: its listener filter is the UDP proxy",
        );
    }
    if l.bind_to_port.as_ref().is_some_and(|bind| !bind.value) {
        cx.fail_at::<()>("bind_to_port", "no datagram is redirected to a UDP listener: it must be bound");
    }
    if l.transparent.as_ref().is_some_and(|it| it.value) {
        cx.fail_at::<()>("transparent", "is not supported on a UDP listener");
    }
    let downstream = l.udp_listener_config.as_ref().and_then(|config| config.downstream_socket_config.as_ref());
    let max = cx.at("udp_listener_config.downstream_socket_config", |cx| max_datagram(cx, downstream));
    let [filter] = l.listener_filters.as_slice() else {
        return cx.fail_at("listener_filters", "a UDP listener has exactly one: the UDP proxy");
    };
    let proxy = cx.at("listener_filters[0]", |cx| match &filter.config_type {
        Some(listener::listener_filter::ConfigType::TypedConfig(any)) => {
            cx.at("typed_config", |cx| match type_name(&any.type_url) {
                UDP_PROXY => {
                    let config = cx.unpack(any)?;
                    udp_proxy(cx, &config)
                }
                name => cx.fail(format!("{name} is no listener filter of UDP")),
            })
        }
        _ => cx.fail_at("typed_config", "is required"),
    });
    Some(Arc::new(UdpProxy { max_downstream_datagram_bytes: max?, ..proxy? }))
}

fn udp_proxy(cx: &mut Cx<'_>, config: &pb::UdpProxyConfig) -> Option<UdpProxy> {
    let stat_prefix = cx.non_empty("stat_prefix", &config.stat_prefix)?.into();
    if config.use_original_src_ip {
        cx.fail_at::<()>("use_original_src_ip", "is not supported: datagrams go upstream with the proxy's address");
    }
    if config.idle_timeout.as_ref().is_some_and(|timeout| timeout.seconds <= 0 && timeout.nanos <= 0) {
        return cx.fail_at("idle_timeout", "must be above 0");
    }
    let idle_timeout = cx.limit("idle_timeout", config.idle_timeout.as_ref(), Some(DEFAULT_IDLE_TIMEOUT));
    let hashes = cx.each("hash_policies", &config.hash_policies, hash_policy);
    let upstream = config.upstream_socket_config.as_ref();
    Some(UdpProxy {
        stat_prefix,
        cluster: cluster(cx, config)?,
        idle_timeout: idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT),
        hash: hashes.into_iter().next(),
        per_packet: config.use_per_packet_load_balancing,
        access_logs: access_logs(cx, "access_log", &config.access_log, AccessLogType::UdpSessionEnd),
        max_downstream_datagram_bytes: DEFAULT_MAX_DATAGRAM_BYTES,
        max_upstream_datagram_bytes: cx.at("upstream_socket_config", |cx| max_datagram(cx, upstream))?,
    })
}

#[allow(deprecated, reason = "`cluster` is the usual form")]
fn cluster(cx: &mut Cx<'_>, config: &pb::UdpProxyConfig) -> Option<Option<Arc<str>>> {
    use pb::udp_proxy_config::RouteSpecifier;
    match &config.route_specifier {
        Some(RouteSpecifier::Cluster(name)) => Some(Some(cx.non_empty("cluster", name)?.into())),
        Some(RouteSpecifier::Matcher(matcher)) => cx.at("matcher", |cx| only_route(cx, matcher)),
        None => cx.fail("one of cluster, matcher is required"),
    }
}

/// The route that a matcher leads to. It may distinguish nothing.
fn only_route(cx: &mut Cx<'_>, matcher: &Matcher) -> Option<Option<Arc<str>>> {
    if matcher.matcher_type.is_some() {
        return cx.fail("only on_no_match is supported: one route for all datagrams");
    }
    let Some(on_match) = matcher.on_no_match.as_ref().and_then(|on_match| on_match.on_match.as_ref()) else {
        return Some(None);
    };
    cx.at("on_no_match", |cx| match on_match {
        OnMatch::Action(action) => cx.at("action", |cx| {
            let any = cx.required("typed_config", action.typed_config.as_ref())?;
            cx.at("typed_config", |cx| match type_name(&any.type_url) {
                ROUTE => {
                    let route: pb::Route = cx.unpack(any)?;
                    Some(Some(cx.non_empty("cluster", &route.cluster)?.into()))
                }
                name => cx.fail(format!("{name} is no route of the UDP proxy")),
            })
        }),
        OnMatch::Matcher(matcher) => cx.at("matcher", |cx| only_route(cx, matcher)),
    })
}

fn hash_policy(cx: &mut Cx<'_>, policy: &pb::udp_proxy_config::HashPolicy) -> Option<UdpHash> {
    use pb::udp_proxy_config::hash_policy::PolicySpecifier;
    match &policy.policy_specifier {
        Some(PolicySpecifier::SourceIp(true)) => Some(UdpHash::SourceIp),
        Some(PolicySpecifier::SourceIp(false)) => cx.fail_at("source_ip", "must be true"),
        Some(PolicySpecifier::Key(key)) => Some(UdpHash::Fixed(xxhash64(cx.non_empty("key", key)?.as_bytes(), 0))),
        None => cx.fail("one of source_ip, key is required"),
    }
}

/// The size of the longest datagram that is received, in bytes.
fn max_datagram(cx: &mut Cx<'_>, config: Option<&UdpSocketConfig>) -> Option<usize> {
    let Some(size) = config.and_then(|config| config.max_rx_datagram_size.as_ref()) else {
        return Some(DEFAULT_MAX_DATAGRAM_BYTES);
    };
    match usize::try_from(size.value) {
        Ok(bytes) if (1..=MAX_DATAGRAM_BYTES).contains(&size.value) => Some(bytes),
        _ => cx.fail_at("max_rx_datagram_size", format!("must be between 1 and {MAX_DATAGRAM_BYTES}")),
    }
}
