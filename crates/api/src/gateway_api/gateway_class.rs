//! GatewayClass: which controller serves the Gateways that name it.

use evenkeel_base::Spanned;

object! {
    /// A class of Gateways.
    pub struct GatewayClass {
        /// The specification.
        spec: GatewayClassSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a GatewayClass.
    pub struct GatewayClassSpec {
        /// The controller of its Gateways.
        controller_name: Spanned<String> = "controllerName",
    }
    later: ["parametersRef" = "parameters of a class are in a ConfigMap with the label `gateway.istio.io/defaults-for-class`, as in Istio"];
    inert: ["description" = "it is for people"];
}

/// Istio's controller.
const ISTIO: &str = "istio.io/gateway-controller";
/// Ours.
const EVENKEEL: &str = "evenkeel.dev/gateway-controller";

impl GatewayClass {
    /// Returns the controller of the classes that need no object, as istiod makes theirs itself.
    pub fn built_in(name: &str) -> Option<&'static str> {
        match name {
            "istio" => Some(ISTIO),
            "evenkeel" => Some(EVENKEEL),
            _ => None,
        }
    }

    /// Whether the Gateways of a controller are served here.
    pub fn is_ours(controller: &str) -> bool {
        matches!(controller, ISTIO | EVENKEEL)
    }
}
