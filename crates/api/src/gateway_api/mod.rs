//! Kinds of the Kubernetes Gateway API (`gateway.networking.k8s.io`), one file per kind.
//!
//! The checks are those of the definitions (CEL rules and patterns), so that a file is refused for the same reasons as by an API server.

mod backend_tls_policy;
mod gateway;
mod gateway_class;
mod gateway_tls;
mod grpc_route;
mod http_filter;
mod http_route;
mod l4_route;
mod limits;
mod listener;
mod listener_set;
mod reference;
mod reference_grant;
mod session;

pub use backend_tls_policy::{
    BackendTlsPolicy, BackendTlsPolicySpec, BackendTlsValidation, PolicyTarget, SubjectAltName, SubjectAltNameType,
};
pub use gateway::{Gateway, GatewayAddress, GatewaySpec};
pub use gateway_class::{GatewayClass, GatewayClassSpec};
pub use gateway_tls::{
    FrontendTls, FrontendTlsConfig, FrontendValidation, FrontendValidationMode, GatewayBackendTls, GatewayTls,
    ObjectReference, PortTls,
};
pub use grpc_route::{GrpcMethodMatch, GrpcRoute, GrpcRouteMatch, GrpcRouteRule, GrpcRouteSpec};
pub use http_filter::{
    CorsFilter, FilterType, HeaderModifier, HeaderValue, HttpFilter, MirrorFraction, PathModifier, PathModifierType,
    RedirectScheme, RequestMirror, RequestRedirect, UrlRewrite,
};
pub use http_route::{
    HttpBackendRef, HttpHeaderMatch, HttpMethod, HttpPathMatch, HttpQueryParamMatch, HttpRetry, HttpRoute,
    HttpRouteMatch, HttpRouteRule, HttpRouteSpec, HttpTimeouts, PathMatchType, ValueMatchType,
};
pub use l4_route::{BackendRef, L4RouteRule, TcpRoute, TcpRouteSpec, TlsRoute, TlsRouteSpec, UdpRoute, UdpRouteSpec};
pub use limits::{GatewayDuration, SectionName};
pub use listener::{
    AllowedKind, AllowedRoutes, FromNamespaces, Listener, ListenerTls, ListenerTlsMode, RouteNamespaces,
};
pub use listener_set::{
    AllowedListeners, FromListenerNamespaces, ListenerNamespaces, ListenerSet, ListenerSetSpec, ParentGatewayRef,
};
pub use reference::{BackendTarget, DefaultScope, LocalReference, MirrorBackendRef, ParentRef, SecretRef};
pub use reference_grant::{CrossReference, GrantFrom, GrantTo, ReferenceGrant, ReferenceGrantSpec};
pub use session::{CookieLifetime, SessionCookie, SessionPersistence, SessionType};

/// The API group.
pub const GROUP: &str = "gateway.networking.k8s.io";
