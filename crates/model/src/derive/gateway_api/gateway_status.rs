//! The status of a Gateway and of its listeners.

use std::sync::Arc;

use evenkeel_api::gateway_api::{
    DefaultScope, FrontendValidation, FrontendValidationMode, Gateway, GatewaySpec, Listener,
};
use evenkeel_api::{Kind, Object};
use evenkeel_base::Spanned;

use super::super::tracking::Cx;
use super::listener_set_status::is_attached;
use super::listener_sets::{Conflict, listener_set};
use super::listener_status::{Judge, UnusableSecret, unusable};
use super::listeners::{host_of, own_controller};
use super::service_of_gateway::{Reached, reached, unsupported_type};
use crate::Condition;
use crate::gateway_api_status::{GatewayStatus, ListenerStatus};

/// The status of a Gateway; `None`: it is of another controller.
pub(super) fn status(cx: &Cx<'_>, object: &Object, written: &Gateway) -> Option<GatewayStatus> {
    own_controller(cx, &written.spec)?;
    let judge = Judge { cx, object, gateway: object, spec: &written.spec, prefix: object.name.to_string() };
    let written_listeners = written.spec.listeners.iter().enumerate();
    let listener = |(at, listener)| judge.listener(listener, conflict(&written.spec, at, listener).as_ref());
    let listeners: Vec<_> = written_listeners.map(|(at, of)| listener((at, &of.value))).collect();
    let Reached { programmed, addresses } = reached(cx, object, written);
    let is_own = |set: &&Arc<Object>| listener_set(set).is_some_and(|written| is_attached(cx, set, written, object));
    let mut conditions = vec![accepted(&written.spec, &listeners), programmed];
    conditions.extend(client_certificate(cx, object, &written.spec));
    conditions.extend(insecure_fallback(&written.spec));
    let is_default = written.spec.default_scope == Some(DefaultScope::All);
    conditions.extend(is_default.then(|| {
        Condition::holds("DefaultGateway", "DefaultGateway", "the Gateway takes routes with `useDefaultGateways: All`")
    }));
    Some(GatewayStatus {
        conditions,
        addresses,
        listeners,
        attached_listener_sets: cx.objects(Kind::ListenerSet).filter(is_own).count(),
    })
}

/// Whether the certificate for backends can be used; `None`: none is named.
fn client_certificate(cx: &Cx<'_>, object: &Object, spec: &GatewaySpec) -> Option<Condition> {
    let reference = spec.tls.as_ref()?.backend.as_ref()?.client_certificate_ref.as_ref()?;
    let (reason, message) = match unusable(cx, object, reference) {
        None => return Some(Condition::holds("ResolvedRefs", "ResolvedRefs", "all references are resolved")),
        Some(UnusableSecret::NotGranted(message)) => ("RefNotPermitted", message),
        Some(UnusableSecret::Invalid(message)) => ("InvalidClientCertificateRef", message),
    };
    Some(Condition::fails("ResolvedRefs", reason, message))
}

/// Says that clients without a valid certificate are let in; `None`: they are not.
fn insecure_fallback(spec: &GatewaySpec) -> Option<Condition> {
    let tls = spec.tls.as_ref()?;
    let is_insecure = |validation: &Spanned<FrontendValidation>| {
        let mode = validation.mode.as_ref();
        mode.is_some_and(|mode| mode.value == FrontendValidationMode::AllowInsecureFallback)
    };
    let mut validations = spec.listeners.iter().filter_map(|listener| tls.validation(listener.port.0));
    let message = "clients without a valid certificate are let in";
    validations
        .any(is_insecure)
        .then(|| Condition::holds("InsecureFrontendValidationMode", "ConfigurationChanged", message))
}

/// Whether the Gateway as a whole is accepted: its addresses can be used, and at least one listener is accepted.
fn accepted(spec: &GatewaySpec, listeners: &[ListenerStatus]) -> Condition {
    if let Some(kind) = spec.addresses.iter().find_map(|address| unsupported_type(address)) {
        return Condition::fails(
            "Accepted",
            "UnsupportedAddress",
            format!("addresses of the type `{kind}` are not supported"),
        );
    }
    let is_refused =
        |listener: &&ListenerStatus| listener.conditions.iter().any(|own| own.kind == "Accepted" && !own.holds);
    let refused: Vec<String> = listeners.iter().filter(is_refused).map(|of| format!("`{}`", of.name)).collect();
    if refused.is_empty() {
        return Condition::holds("Accepted", "Accepted", "the Gateway is served");
    }
    let message = format!("not accepted: the listeners {}", refused.join(", "));
    if refused.len() < listeners.len() {
        Condition::holds("Accepted", "ListenersNotValid", message)
    } else {
        Condition::fails("Accepted", "ListenersNotValid", message)
    }
}

/// What an earlier listener of the Gateway keeps a listener from.
fn conflict(spec: &GatewaySpec, at: usize, listener: &Listener) -> Option<Conflict> {
    let on_port = spec.listeners.iter().take(at).filter(|other| other.port.value == listener.port.value);
    for other in on_port {
        let (family, others) = (port_use(listener), port_use(other));
        if family != others && [family, others].contains(&"UDP") {
            continue;
        }
        if family != others || ["TCP", "UDP"].contains(&family) {
            let message = format!("the listener `{}` uses port {} already", other.name.0, other.port.0);
            return Some(Conflict { reason: "ProtocolConflict", message });
        }
        if host_of(listener) == host_of(other) {
            let message = format!("the listener `{}` serves the same host and port", other.name.0);
            return Some(Conflict { reason: "HostnameConflict", message });
        }
    }
    None
}

/// Protocols that can share a port. A port of UDP is another one than a port of the others.
fn port_use(listener: &Listener) -> &str {
    match listener.protocol.as_str() {
        "HTTPS" | "TLS" => "TLS",
        other => other,
    }
}
