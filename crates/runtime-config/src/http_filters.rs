//! The supported HTTP filters, as configured. To add one: a file in `filters/` with its compiled type, the function that compiles its message,
//! and the message's fields (`FIELDS`), and one line in [`http_filters!`] below. Its implementation is in crate `filters`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::extensions::filters::http as messages;
use evenkeel_xds::pb::google::protobuf::Any;
use evenkeel_xds::typed_struct;
use prost::Name;

use crate::compile::{Cx, type_name};
use crate::filter_needs::FilterNeeds;
use crate::filters::custom::CustomFilter;
use crate::filters::{
    alpn, buffer, compressor, cors, decompressor, dynamic_forward_proxy, ext_authz, fault, grpc_stats, grpc_web,
    header_mutation, istio_stats, jwt_authn, local_ratelimit, peer_metadata, ratelimit, rbac, stateful_session,
};
use crate::route_filters::PerRoute;
use crate::support::message::MessageSupport;

/// Most HTTP filters of one connection manager: the disabled ones are kept in one word per request.
pub(crate) const MAX_HTTP_FILTERS: usize = u64::BITS as usize;

/// The registry: each filter's name and compiled type, its message, and the function that compiles it; then, if routes
/// may configure it, the per-route message and the function for that.
macro_rules! http_filters {
    ($(
        $(#[$doc:meta])* $name:ident = $module:ident::$compiled:ident, $message:ty, $($compile:ident)::+
        $(, per route $route_message:ty, $($compile_route:ident)::+)?;
    )*) => {
        /// The type and configuration of an HTTP filter before the router.
        #[derive(Debug)]
        pub enum HttpFilterConfig {
            $($(#[$doc])* $name(Arc<$module::$compiled>),)*
            /// A filter that is not in this table.
            Custom(CustomFilter),
        }

        /// The supported fields of the filters' messages.
        pub(crate) const SUPPORTED: &[&[MessageSupport]] = &[$($module::FIELDS,)*];

        impl HttpFilterConfig {
            /// What has to be known of it elsewhere.
            pub(crate) fn needs(&self) -> &dyn FilterNeeds {
                match self {
                    $(Self::$name(config) => &**config,)*
                    Self::Custom(config) => config,
                }
            }

            /// Whether its decision may depend on the value of this header, or of the query parameter NAME for `?NAME`.
            pub fn reads(&self, name: &str) -> bool {
                self.needs().reads(name)
            }

            /// The full name of its message.
            pub(crate) fn message_name(&self) -> String {
                match self {
                    $(Self::$name(_) => <$message>::full_name(),)*
                    Self::Custom(config) => config.message.to_owned(),
                }
            }
        }

        /// Compiles the message of any filter; `Some(None)`: the filter is unknown and `optional`.
        pub(crate) fn http_filter(cx: &mut Cx<'_>, any: &Any, optional: bool) -> Option<Option<HttpFilterConfig>> {
            let opened = typed_struct::opened(any);
            let any = opened.as_ref().unwrap_or(any);
            let name = type_name(&any.type_url);
            $(
                if name == <$message>::full_name() {
                    let message: $message = cx.unpack(any)?;
                    return Some(Some(HttpFilterConfig::$name(Arc::new($module::$($compile)::+(cx, &message)?))));
                }
            )*
            if let Some(kind) = cx.env.custom_filters.iter().find(|kind| kind.message == name) {
                return match (kind.compile)(&any.value) {
                    Ok(filter) => Some(Some(HttpFilterConfig::Custom(filter))),
                    Err(reason) => cx.fail(reason),
                };
            }
            if optional { Some(None) } else { cx.fail(format!("{name} is no HTTP filter")) }
        }

        /// Compiles a per-route configuration; `Some(None)`: the message is unknown and `optional`.
        pub(crate) fn per_route(cx: &mut Cx<'_>, any: &Any, optional: bool) -> Option<Option<Arc<dyn PerRoute>>> {
            let name = type_name(&any.type_url);
            $($(
                if name == <$route_message>::full_name() {
                    let message: $route_message = cx.unpack(any)?;
                    return Some(Some(Arc::new($module::$($compile_route)::+(cx, &message)?)));
                }
            )?)*
            let mut customs = cx.env.custom_filters.iter().filter_map(|kind| kind.per_route);
            match customs.find(|route| route.message == name).map(|route| (route.compile)(&any.value)) {
                Some(Ok(config)) => Some(Some(config)),
                Some(Err(reason)) => cx.fail(reason),
                None if optional => Some(None),
                None => cx.fail(format!("{name} is no configuration for one route")),
            }
        }
    };
}

http_filters! {
    /// Istio's `istio.alpn`.
    Alpn = alpn::Alpn, evenkeel_xds::istio::alpn::FilterConfig, alpn;
    /// `envoy.filters.http.buffer`.
    Buffer = buffer::Buffer, messages::buffer::v3::Buffer, buffer,
        per route messages::buffer::v3::BufferPerRoute, per_route;
    /// `envoy.filters.http.compressor`.
    Compressor = compressor::Compressor, messages::compressor::v3::Compressor, compressor,
        per route messages::compressor::v3::CompressorPerRoute, per_route;
    /// `envoy.filters.http.cors`.
    Cors = cors::Cors, messages::cors::v3::Cors, cors,
        per route messages::cors::v3::CorsPolicy, policy;
    /// `envoy.filters.http.decompressor`.
    Decompressor = decompressor::Decompressor, messages::decompressor::v3::Decompressor, decompressor;
    /// `envoy.filters.http.dynamic_forward_proxy`.
    DynamicForwardProxy = dynamic_forward_proxy::HttpForwardProxy,
        messages::dynamic_forward_proxy::v3::FilterConfig, compile::http_filter,
        per route messages::dynamic_forward_proxy::v3::PerRouteConfig, compile::per_route;
    /// `envoy.filters.http.ext_authz`.
    ExtAuthz = ext_authz::ExtAuthz, messages::ext_authz::v3::ExtAuthz, compile::http_filter,
        per route messages::ext_authz::v3::ExtAuthzPerRoute, compile::per_route;
    /// `envoy.filters.http.fault`.
    Fault = fault::Fault, messages::fault::v3::HttpFault, fault,
        per route messages::fault::v3::HttpFault, per_route;
    /// `envoy.filters.http.grpc_stats`.
    GrpcStats = grpc_stats::GrpcStats, messages::grpc_stats::v3::FilterConfig, grpc_stats;
    /// `envoy.filters.http.grpc_web`.
    GrpcWeb = grpc_web::GrpcWeb, messages::grpc_web::v3::GrpcWeb, grpc_web;
    /// `envoy.filters.http.header_mutation`.
    HeaderMutation = header_mutation::HeaderMutationFilter, messages::header_mutation::v3::HeaderMutation,
        header_mutation,
        per route messages::header_mutation::v3::HeaderMutationPerRoute, per_route;
    /// Istio's `istio.stats`.
    IstioStats = istio_stats::IstioStats, evenkeel_xds::istio::stats::PluginConfig, istio_stats;
    /// `envoy.filters.http.jwt_authn`.
    JwtAuthn = jwt_authn::JwtAuthn, messages::jwt_authn::v3::JwtAuthentication, compile::jwt_authn,
        per route messages::jwt_authn::v3::PerRouteConfig, compile::per_route;
    /// `envoy.filters.http.local_ratelimit`.
    LocalRateLimit = local_ratelimit::LocalRateLimit, messages::local_ratelimit::v3::LocalRateLimit, local_ratelimit,
        per route messages::local_ratelimit::v3::LocalRateLimit, per_route;
    /// Istio's `envoy.filters.http.peer_metadata`.
    PeerMetadata = peer_metadata::PeerMetadata, evenkeel_xds::istio::peer_metadata::Config, peer_metadata;
    /// `envoy.filters.http.ratelimit`.
    RateLimit = ratelimit::RateLimit, messages::ratelimit::v3::RateLimit, ratelimit,
        per route messages::ratelimit::v3::RateLimitPerRoute, per_route;
    /// `envoy.filters.http.rbac`.
    Rbac = rbac::RbacFilter, messages::rbac::v3::Rbac, compile::http_filter,
        per route messages::rbac::v3::RbacPerRoute, compile::per_route;
    /// `envoy.filters.http.stateful_session`.
    StatefulSession = stateful_session::StatefulSession, messages::stateful_session::v3::StatefulSession,
        stateful_session,
        per route messages::stateful_session::v3::StatefulSessionPerRoute, per_route;
}
