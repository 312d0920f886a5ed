//! The PROXY protocol: the listener filter, and what the upstream transport socket shares with it.

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::filters::listener::proxy_protocol::v3 as listener_filter;

use super::Cx;
use crate::proxy_protocol::{ProxyProtocol, ProxyProtocolVersion, TlvSelection};

/// The listener filter.
pub(crate) fn filter(cx: &mut Cx<'_>, config: &listener_filter::ProxyProtocol) -> Option<ProxyProtocol> {
    let disallowed = cx.each("disallowed_versions", &config.disallowed_versions, |cx, value| version(cx, *value));
    Some(ProxyProtocol {
        optional: config.allow_requests_without_proxy_protocol,
        disallowed,
        pass_through: selection(cx, config.pass_through_tlvs.as_ref())?,
        stat_prefix: config.stat_prefix.as_str().into(),
    })
}

/// `ProxyProtocolConfig.Version`.
pub(crate) fn version(cx: &mut Cx<'_>, value: i32) -> Option<ProxyProtocolVersion> {
    use core::proxy_protocol_config::Version;
    match Version::try_from(value) {
        Ok(Version::V1) => Some(ProxyProtocolVersion::V1),
        Ok(Version::V2) => Some(ProxyProtocolVersion::V2),
        Err(_) => cx.fail(format!("unknown version {value}")),
    }
}

/// `pass_through_tlvs`.
pub(crate) fn selection(cx: &mut Cx<'_>, config: Option<&core::ProxyProtocolPassThroughTlVs>) -> Option<TlvSelection> {
    use core::proxy_protocol_pass_through_tl_vs::PassTlVsMatchType;
    let Some(config) = config else { return Some(TlvSelection::default()) };
    cx.at("pass_through_tlvs", |cx| match PassTlVsMatchType::try_from(config.match_type) {
        Ok(PassTlVsMatchType::IncludeAll) => Some(TlvSelection::All),
        Ok(PassTlVsMatchType::Include) => {
            Some(TlvSelection::Types(cx.each("tlv_type", &config.tlv_type, |cx, kind| tlv_type(cx, *kind))))
        }
        Err(_) => cx.fail_at("match_type", format!("unknown value {}", config.match_type)),
    })
}

/// A TLV's type is one byte.
pub(crate) fn tlv_type(cx: &mut Cx<'_>, value: u32) -> Option<u8> {
    match u8::try_from(value) {
        Ok(kind) => Some(kind),
        Err(_) => cx.fail("must lie between 0 and 255"),
    }
}
