//! The supported HTTP filters, as configured. To add one: its compiled type with [`FilterNeeds`], a function in `compile/` that
//! compiles its message, the message's fields in [`crate::support`], and one line in [`http_filters!`] below. Its implementation
//! is in crate `filters`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::extensions::filters::http as messages;
use evenkeel_xds::pb::google::protobuf::Any;
use prost::Name;

use crate::compile::{self, Cx, type_name};
use crate::filter_needs::FilterNeeds;
use crate::route_filters::PerRoute;

/// Most HTTP filters of one connection manager: the disabled ones are kept in one word per request.
pub(crate) const MAX_HTTP_FILTERS: usize = u64::BITS as usize;

/// The registry: each filter's name and compiled type, its message, and the function that compiles it; then, if routes
/// may configure it, the per-route message and the function for that.
macro_rules! http_filters {
    ($(
        $(#[$doc:meta])* $name:ident($compiled:ty) = $message:ty, $compile:path
        $(, per route $route_message:ty, $compile_route:path)?;
    )*) => {
        /// The type and configuration of an HTTP filter before the router.
        #[derive(Debug)]
        pub enum HttpFilterConfig {
            $($(#[$doc])* $name(Arc<$compiled>),)*
        }

        impl HttpFilterConfig {
            /// What has to be known of it elsewhere.
            pub(crate) fn needs(&self) -> &dyn FilterNeeds {
                match self {
                    $(Self::$name(config) => &**config,)*
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
                }
            }
        }

        /// Compiles the message of any filter; `Some(None)`: the filter is unknown and `optional`.
        pub(crate) fn http_filter(cx: &mut Cx<'_>, any: &Any, optional: bool) -> Option<Option<HttpFilterConfig>> {
            let name = type_name(&any.type_url);
            $(
                if name == <$message>::full_name() {
                    let message: $message = cx.unpack(any)?;
                    return Some(Some(HttpFilterConfig::$name(Arc::new($compile(cx, &message)?))));
                }
            )*
            if optional { Some(None) } else { cx.fail(format!("{name} is no HTTP filter")) }
        }

        /// Compiles a per-route configuration; `Some(None)`: the message is unknown and `optional`.
        pub(crate) fn per_route(cx: &mut Cx<'_>, any: &Any, optional: bool) -> Option<Option<Arc<dyn PerRoute>>> {
            let name = type_name(&any.type_url);
            $($(
                if name == <$route_message>::full_name() {
                    let message: $route_message = cx.unpack(any)?;
                    return Some(Some(Arc::new($compile_route(cx, &message)?)));
                }
            )?)*
            if optional { Some(None) } else { cx.fail(format!("{name} is no configuration for one route")) }
        }
    };
}

http_filters! {
    /// `envoy.filters.http.buffer`.
    Buffer(crate::buffer::Buffer) = messages::buffer::v3::Buffer, compile::buffer::buffer,
        per route messages::buffer::v3::BufferPerRoute, compile::buffer::per_route;
    /// `envoy.filters.http.cors`.
    Cors(crate::cors::Cors) = messages::cors::v3::Cors, compile::cors::cors,
        per route messages::cors::v3::CorsPolicy, compile::cors::policy;
    /// `envoy.filters.http.dynamic_forward_proxy`.
    DynamicForwardProxy(crate::dynamic_forward_proxy::HttpForwardProxy) =
        messages::dynamic_forward_proxy::v3::FilterConfig, compile::dynamic_forward_proxy::http_filter,
        per route messages::dynamic_forward_proxy::v3::PerRouteConfig, compile::dynamic_forward_proxy::per_route;
    /// `envoy.filters.http.ext_authz`.
    ExtAuthz(crate::ext_authz::ExtAuthz) = messages::ext_authz::v3::ExtAuthz, compile::ext_authz::http_filter,
        per route messages::ext_authz::v3::ExtAuthzPerRoute, compile::ext_authz::per_route;
    /// `envoy.filters.http.fault`.
    Fault(crate::fault::Fault) = messages::fault::v3::HttpFault, compile::fault::fault,
        per route messages::fault::v3::HttpFault, compile::fault::per_route;
    /// `envoy.filters.http.grpc_stats`.
    GrpcStats(crate::grpc_stats::GrpcStats) = messages::grpc_stats::v3::FilterConfig, compile::grpc_stats::grpc_stats;
    /// `envoy.filters.http.grpc_web`.
    GrpcWeb(crate::grpc_web::GrpcWeb) = messages::grpc_web::v3::GrpcWeb, compile::grpc_web::grpc_web;
    /// `envoy.filters.http.header_mutation`.
    HeaderMutation(crate::header_mutation::HeaderMutationFilter) = messages::header_mutation::v3::HeaderMutation,
        compile::header_mutation::header_mutation,
        per route messages::header_mutation::v3::HeaderMutationPerRoute, compile::header_mutation::per_route;
    /// `envoy.filters.http.jwt_authn`.
    JwtAuthn(crate::jwt_authn::JwtAuthn) = messages::jwt_authn::v3::JwtAuthentication, compile::jwt_authn::jwt_authn,
        per route messages::jwt_authn::v3::PerRouteConfig, compile::jwt_authn::per_route;
    /// `envoy.filters.http.rbac`.
    Rbac(crate::rbac::RbacFilter) = messages::rbac::v3::Rbac, compile::rbac::http_filter,
        per route messages::rbac::v3::RbacPerRoute, compile::rbac::per_route;
    /// `envoy.filters.http.stateful_session`.
    StatefulSession(crate::stateful_session::StatefulSession) = messages::stateful_session::v3::StatefulSession,
        compile::stateful_session::stateful_session,
        per route messages::stateful_session::v3::StatefulSessionPerRoute, compile::stateful_session::per_route;
}
