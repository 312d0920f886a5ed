//! Istio's `istio.alpn`, compiled: the protocols that TLS to a cluster offers, by the protocol that the cluster speaks.

use std::sync::Arc;

use evenkeel_xds::istio::alpn::FilterConfig;
use evenkeel_xds::istio::alpn::filter_config::Protocol;

use crate::compile::Cx;
use crate::filter_needs::FilterNeeds;
use crate::support::message::{MessageSupport, extension, part};

/// The filter's configuration.
#[derive(Debug)]
pub struct Alpn {
    /// Shared with the requests that pass the filter.
    pub overrides: Arc<AlpnOverrides>,
}

/// What requests offer instead of what the cluster's TLS context says. An empty list: what the context says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AlpnOverrides {
    /// To clusters that speak HTTP/1.1.
    pub http1: Vec<Vec<u8>>,
    /// To clusters that speak HTTP/2.
    pub http2: Vec<Vec<u8>>,
}

impl AlpnOverrides {
    /// What requests to clusters that speak HTTP/1.1 offer, given what the cluster's TLS context says.
    pub fn http1_or<'a>(&'a self, configured: &'a [Vec<u8>]) -> &'a [Vec<u8>] {
        if self.http1.is_empty() { configured } else { &self.http1 }
    }
}

impl FilterNeeds for Alpn {}

pub(crate) fn alpn(cx: &mut Cx<'_>, config: &FilterConfig) -> Option<Alpn> {
    let mut overrides = AlpnOverrides::default();
    for (index, entry) in config.alpn_override.iter().enumerate() {
        let list = match Protocol::try_from(entry.upstream_protocol) {
            Ok(Protocol::Http11) => &mut overrides.http1,
            Ok(Protocol::Http2) => &mut overrides.http2,
            // Requests go to servers in HTTP/1.1 at least.
            Ok(Protocol::Http10) => continue,
            Err(_) => return cx.fail_at(&format!("alpn_override[{index}].upstream_protocol"), "unknown protocol"),
        };
        // As in Istio's proxy, the first entry of a protocol counts.
        if list.is_empty() {
            *list = entry.alpn_override.iter().map(|protocol| protocol.clone().into_bytes()).collect();
        }
    }
    Some(Alpn { overrides: Arc::new(overrides) })
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig", &["alpn_override"]),
    part("istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig.AlpnOverride", &["upstream_protocol", "alpn_override"]),
];
