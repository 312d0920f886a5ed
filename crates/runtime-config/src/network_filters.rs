//! The supported network filters before the terminal one of a filter chain, as configured. To add one: a file in `filters/` with its
//! compiled type, the function that compiles its message, and the message's fields (`NETWORK_FIELDS`), and one line in
//! [`network_filters!`] below. Its implementation is in crate `filters`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::extensions::filters::network as messages;
use evenkeel_xds::pb::google::protobuf::Any;
use evenkeel_xds::typed_struct;
use prost::Name;

use crate::compile::{Cx, type_name};
use crate::filter_needs::FilterNeeds;
use crate::filters::custom::CustomFilter;
use crate::filters::{
    connection_limit, dynamic_forward_proxy, ext_authz, istio_stats, metadata_exchange, passive, rbac,
};
use crate::support::message::MessageSupport;

/// Most network filters of one filter chain.
pub(crate) const MAX_NETWORK_FILTERS: usize = 64;

/// The registry: each filter's name and compiled type, its message, and the function that compiles it.
macro_rules! network_filters {
    ($($(#[$doc:meta])* $name:ident = $module:ident::$compiled:ident, $message:ty, $($compile:ident)::+;)*) => {
        /// The type and configuration of a network filter before the terminal one.
        #[derive(Debug)]
        pub enum NetworkFilterConfig {
            $($(#[$doc])* $name(Arc<$module::$compiled>),)*
            /// A filter that is not in this table.
            Custom(CustomFilter),
        }

        /// The supported fields of the filters' messages.
        pub(crate) const SUPPORTED: &[&[MessageSupport]] = &[$($module::NETWORK_FIELDS,)* passive::NETWORK_FIELDS];

        impl NetworkFilterConfig {
            /// What has to be known of it elsewhere.
            pub(crate) fn needs(&self) -> &dyn FilterNeeds {
                match self {
                    $(Self::$name(config) => &**config,)*
                    Self::Custom(config) => config,
                }
            }
        }

        /// Compiles the message of any such filter.
        pub(crate) fn network_filter(cx: &mut Cx<'_>, any: &Any) -> Option<NetworkFilterConfig> {
            let opened = typed_struct::opened(any);
            let any = opened.as_ref().unwrap_or(any);
            let name = type_name(&any.type_url);
            $(
                if name == <$message>::full_name() {
                    let message: $message = cx.unpack(any)?;
                    return Some(NetworkFilterConfig::$name(Arc::new($module::$($compile)::+(cx, &message)?)));
                }
            )*
            match cx.env.custom_filters.iter().find(|kind| kind.message == name).map(|kind| (kind.compile)(&any.value)) {
                Some(Ok(filter)) => Some(NetworkFilterConfig::Custom(filter)),
                Some(Err(reason)) => cx.fail(reason),
                None => cx.fail(format!("{name} is no network filter")),
            }
        }

        /// Whether the message is that of such a filter.
        pub(crate) fn is_network_filter(cx: &Cx<'_>, any: &Any) -> bool {
            let opened = typed_struct::opened(any);
            let name = type_name(&opened.as_ref().unwrap_or(any).type_url);
            let is_custom = || cx.env.custom_filters.iter().any(|kind| kind.message == name);
            [$(<$message>::full_name(),)*].iter().any(|known| name == known) || is_custom()
        }
    };
}

network_filters! {
    /// `envoy.filters.network.connection_limit`.
    ConnectionLimit = connection_limit::ConnectionLimit, messages::connection_limit::v3::ConnectionLimit,
        connection_limit;
    /// `envoy.filters.network.ext_authz`.
    ExtAuthz = ext_authz::NetworkExtAuthz, messages::ext_authz::v3::ExtAuthz, compile::network_filter;
    /// Istio's `istio.stats`.
    IstioStats = istio_stats::IstioStats, evenkeel_xds::istio::stats::PluginConfig, istio_stats;
    /// Istio's `istio.metadata_exchange`.
    MetadataExchange = metadata_exchange::MetadataExchange, evenkeel_xds::istio::metadata_exchange::MetadataExchange,
        metadata_exchange;
    /// `envoy.filters.network.sni_dynamic_forward_proxy`.
    SniDynamicForwardProxy = dynamic_forward_proxy::SniForwardProxy, messages::sni_dynamic_forward_proxy::v3::FilterConfig, compile::sni_filter;
    /// `envoy.filters.network.rbac`.
    Rbac = rbac::NetworkRbac, messages::rbac::v3::Rbac, compile::network_filter;
}
