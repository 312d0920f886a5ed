//! The status of a Gateway and of its listeners.

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{GROUP, Gateway, GatewaySpec, Listener, SecretRef};
use evenkeel_base::Spanned;

use super::super::tracking::{Cx, Fact};
use super::grants::{Referred, is_granted};
use super::listeners::{gateway_name, host_of, kinds_of_protocol, own_controller, passes_tls};
use super::service_of_gateway::{Reached, reached};
use crate::gateway_api_status::{GatewayStatus, ListenerStatus};
use crate::{Condition, GatewayRef};

/// The status of a Gateway; `None`: it is of another controller.
pub(super) fn status(cx: &Cx<'_>, object: &Object, written: &Gateway) -> Option<GatewayStatus> {
    own_controller(cx, &written.spec)?;
    let judge = Judge { cx, object, spec: &written.spec };
    let listeners: Vec<_> = (0..written.spec.listeners.len()).filter_map(|at| judge.listener(at)).collect();
    let Reached { programmed, addresses } = reached(cx, object, written);
    Some(GatewayStatus { conditions: vec![accepted(&listeners), programmed], addresses, listeners })
}

/// Whether the Gateway as a whole is accepted: at least one listener is.
fn accepted(listeners: &[ListenerStatus]) -> Condition {
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

/// Judges the listeners of a Gateway.
struct Judge<'a, 't> {
    cx: &'a Cx<'t>,
    object: &'a Object,
    spec: &'a GatewaySpec,
}

impl Judge<'_, '_> {
    fn listener(&self, at: usize) -> Option<ListenerStatus> {
        let listener = self.spec.listeners.get(at)?;
        let namespace = self.object.namespace.clone();
        let gateway = GatewayRef::Named { namespace, name: gateway_name(&self.object.name, listener) };
        let attached = &self.cx.read(Fact::AttachedTo(&gateway)).gateway_api_statuses.attached;
        let (conflicted, references) = (self.conflicted(at, listener), self.references(listener));
        let accepted = accepted_listener(listener, &conflicted);
        let programmed = self.programmed(listener, &accepted);
        Some(ListenerStatus {
            name: listener.name.0.clone(),
            supported_kinds: supported_kinds(listener),
            attached_routes: attached.get(&gateway).map_or(0, |routes| routes.len()),
            conditions: vec![accepted, conflicted, programmed, references],
        })
    }

    /// Whether an earlier listener has the port already, in another way.
    fn conflicted(&self, at: usize, listener: &Listener) -> Condition {
        let on_port = self.spec.listeners.iter().take(at).filter(|other| other.port.value == listener.port.value);
        for other in on_port {
            let (family, others) = (port_use(listener), port_use(other));
            if family != others || family == "TCP" {
                let message = format!("the listener `{}` uses port {} already", other.name.0, other.port.0);
                return Condition::holds("Conflicted", "ProtocolConflict", message);
            }
            if host_of(listener) == host_of(other) {
                let message = format!("the listener `{}` serves the same host and port", other.name.0);
                return Condition::holds("Conflicted", "HostnameConflict", message);
            }
        }
        Condition::fails("Conflicted", "NoConflicts", "no other listener has this port and host")
    }

    /// Whether the kinds of routes and the certificates that it names can be used.
    fn references(&self, listener: &Listener) -> Condition {
        let fails = |reason, message: String| Condition::fails("ResolvedRefs", reason, message);
        if matches!(listener.protocol.as_str(), "HTTPS" | "TLS") && !passes_tls(listener) {
            let references = listener.tls.as_ref().map_or(&[][..], |tls| &tls.certificate_refs);
            if references.is_empty() {
                return fails("InvalidCertificateRef", "no certificate is named".to_owned());
            }
            if let Some(broken) = references.iter().find_map(|reference| self.certificate(reference)) {
                return broken;
            }
        }
        let kinds = listener.allowed_routes.as_ref().map_or(&[][..], |allowed| &allowed.kinds);
        let known = kinds_of_protocol(listener);
        let is_unknown = |of: &&Spanned<_>| !is_kind(of, known);
        match kinds.iter().find(is_unknown) {
            Some(kind) => {
                let message = format!("a listener of the protocol {} takes no {}", listener.protocol.value, kind.kind);
                fails("InvalidRouteKinds", message)
            }
            None => Condition::holds("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
        }
    }

    /// Why a certificate cannot be used; `None`: it can.
    fn certificate(&self, reference: &SecretRef) -> Option<Condition> {
        let fails = |reason, message: String| Some(Condition::fails("ResolvedRefs", reason, message));
        let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Secret"));
        let namespace = reference.namespace.as_ref().map_or_else(|| self.object.namespace.clone(), |own| own.0.clone());
        let name = reference.name.as_str();
        if (group, kind) != ("", "Secret") {
            return fails("InvalidCertificateRef", format!("a certificate is in a Secret, not in a {kind}"));
        }
        if !is_granted(self.cx, self.object, &Referred { group, kind, namespace: &namespace, name }) {
            return fails("RefNotPermitted", format!("no ReferenceGrant allows the Secret {namespace}/{name}"));
        }
        let credential = self.cx.credentials(name).find(|of| of.namespace == namespace);
        match credential.map(|credential| credential.certificate.as_ref()) {
            None => fails("InvalidCertificateRef", format!("there is no Secret {namespace}/{name}")),
            Some(Err(reason)) => {
                fails("InvalidCertificateRef", format!("the Secret {namespace}/{name} cannot be used: {reason}"))
            }
            Some(Ok(_)) => None,
        }
    }

    /// Whether the proxies serve it: the model has a server for it, and its certificates are there.
    fn programmed(&self, listener: &Listener, accepted: &Condition) -> Condition {
        let fails = |message: &str| Condition::fails("Programmed", "Invalid", message);
        let has_certificates = !matches!(listener.protocol.as_str(), "HTTPS" | "TLS")
            || passes_tls(listener)
            || listener
                .tls
                .as_ref()
                .is_some_and(|tls| tls.certificate_refs.iter().any(|reference| self.certificate(reference).is_none()));
        let served = self.cx.gateway(&self.object.namespace, &gateway_name(&self.object.name, listener));
        if !accepted.holds {
            fails("the listener is not accepted")
        } else if !has_certificates {
            fails("the listener has no certificate that can be used")
        } else if served.is_none_or(|gateway| gateway.servers.is_empty()) {
            fails("the listener is not served; `evenkeel analyze` says why")
        } else {
            Condition::holds("Programmed", "Programmed", "the proxies have the listener")
        }
    }
}

fn accepted_listener(listener: &Listener, conflicted: &Condition) -> Condition {
    if !matches!(listener.protocol.as_str(), "HTTP" | "HTTPS" | "TLS" | "TCP") {
        let message = format!("the protocol {} is not supported", listener.protocol.value);
        return Condition::fails("Accepted", "UnsupportedProtocol", message);
    }
    if conflicted.holds {
        return Condition::fails("Accepted", conflicted.reason, &conflicted.message);
    }
    Condition::holds("Accepted", "Accepted", "the listener is valid")
}

/// The kinds of routes that a listener takes.
fn supported_kinds(listener: &Listener) -> Vec<&'static str> {
    let named = listener.allowed_routes.as_ref().map_or(&[][..], |allowed| &allowed.kinds);
    let is_taken = |kind: &&&str| named.is_empty() || named.iter().any(|of| is_kind(of, &[**kind]));
    kinds_of_protocol(listener).iter().filter(is_taken).copied().collect()
}

fn is_kind(written: &evenkeel_api::gateway_api::AllowedKind, known: &[&str]) -> bool {
    written.group.as_deref().unwrap_or(GROUP) == GROUP && known.contains(&written.kind.as_str())
}

/// Protocols that can share a port.
fn port_use(listener: &Listener) -> &str {
    match listener.protocol.as_str() {
        "HTTPS" | "TLS" => "TLS",
        other => other,
    }
}
