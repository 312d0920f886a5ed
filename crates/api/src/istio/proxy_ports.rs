//! Ports on which a proxy itself listens, as Istio's do: no other listener can use them.

use evenkeel_base::Span;

use crate::decode::Context;

/// The ports of a sidecar.
pub(crate) const OF_SIDECARS: &[(u16, &str)] = &[
    (15_000, "its administration"),
    (15_001, "captured connections from the workload"),
    (15_006, "captured connections to the workload"),
    (15_020, "its agent's page"),
    (15_021, "questions about its health"),
    (15_053, "DNS queries"),
    (15_090, "its metrics"),
];
/// The ports of a gateway, which captures nothing.
pub(super) const OF_GATEWAYS: &[(u16, &str)] = &[OF_SIDECARS[0], OF_SIDECARS[3], OF_SIDECARS[4], OF_SIDECARS[6]];

/// Returns what one of these proxies uses a port for.
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
