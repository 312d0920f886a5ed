//! The status of a GatewayClass.

use evenkeel_api::gateway_api::GatewayClass;

use crate::Condition;
use crate::gateway_api_status::GatewayClassStatus;

/// The features of the Gateway API that are supported, by the names of its conformance tests, ascending.
const FEATURES: &[&str] = &[
    "GRPCRoute",
    "Gateway",
    "GatewayPort8080",
    "HTTPRoute",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "Mesh",
    "MeshConsumerRoute",
    "ReferenceGrant",
    "TLSRoute",
];

/// The status of a class; `None`: it is of another controller.
pub(super) fn status(class: &GatewayClass) -> Option<GatewayClassStatus> {
    GatewayClass::is_ours(&class.spec.controller_name).then(|| GatewayClassStatus {
        conditions: vec![Condition::holds("Accepted", "Accepted", "Gateways of this class are served")],
        supported_features: FEATURES,
    })
}
