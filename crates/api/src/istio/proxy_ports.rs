//! Ports on which a proxy listens itself, as Istio's do: another listener there cannot be made.

use evenkeel_base::Span;

use crate::decode::Context;

/// What a sidecar listens for.
pub(crate) const OF_SIDECARS: &[(u16, &str)] = &[
    (15_000, "its administration"),
    (15_001, "captured connections from the workload"),
    (15_006, "captured connections to the workload"),
    (15_020, "its agent's page"),
    (15_021, "questions about its health"),
    (15_053, "DNS queries"),
    (15_090, "its metrics"),
];
/// The same of a gateway, which captures nothing.
pub(super) const OF_GATEWAYS: &[(u16, &str)] = &[OF_SIDECARS[0], OF_SIDECARS[3], OF_SIDECARS[4], OF_SIDECARS[6]];

/// What one of these uses a port for.
pub(crate) fn use_of(own: &[(u16, &'static str)], port: u16) -> Option<&'static str> {
    own.iter().find(|(number, _)| *number == port).map(|(_, what)| *what)
}

/// Names a listening socket on one of these. As in Istio, it is not made, and the rest of the object has its effect.
pub(super) fn check(own: &[(u16, &'static str)], port: u16, span: &Span, cx: &mut Context) {
    if let Some(what) = use_of(own, port) {
        let message = format!("no listener is made on port {port}: the proxy itself uses it for {what}");
        cx.warning("port-conflict", span, message, "choose another port");
    }
}
