//! The status of a listener of a Gateway or a ListenerSet.

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{GROUP, GatewaySpec, Listener, SecretRef};
use evenkeel_base::Spanned;

use super::super::tracking::{Cx, Fact};
use super::frontend_tls::{BrokenRoots, broken_roots};
use super::grants::{Referred, is_granted};
use super::listener_sets::Conflict;
use super::listeners::{gateway_name, kinds_of_protocol, passes_tls};
use crate::gateway_api_status::ListenerStatus;
use crate::{Condition, GatewayRef};

/// Judges the listeners of a Gateway or a ListenerSet.
pub(super) struct Judge<'a, 't> {
    pub(super) cx: &'a Cx<'t>,
    /// The Gateway or the ListenerSet.
    pub(super) object: &'a Object,
    /// The Gateway.
    pub(super) gateway: &'a Object,
    pub(super) spec: &'a GatewaySpec,
    /// What the names of the model's gateways begin with.
    pub(super) prefix: String,
}

impl Judge<'_, '_> {
    /// The status of a listener.
    pub(super) fn listener(&self, listener: &Listener, conflict: Option<&Conflict>) -> ListenerStatus {
        let namespace = self.object.namespace.clone();
        let gateway = GatewayRef::Named { namespace, name: gateway_name(&self.prefix, listener) };
        let attached = &self.cx.read(Fact::AttachedTo(&gateway)).gateway_api_statuses.attached;
        let broken = self.broken_roots(listener);
        let references = self.references(listener, broken.as_ref());
        let accepted = accepted(listener, conflict, broken.as_ref());
        let programmed = self.programmed(listener, &accepted);
        let conflicted = conflict.map_or_else(
            || Condition::fails("Conflicted", "NoConflicts", "no other listener has this port and host"),
            |conflict| Condition::holds("Conflicted", conflict.reason, &conflict.message),
        );
        ListenerStatus {
            name: listener.name.0.clone(),
            supported_kinds: supported_kinds(listener),
            attached_routes: attached.get(&gateway).map_or(0, |routes| routes.len()),
            conditions: vec![accepted, conflicted, programmed, references],
        }
    }

    /// Whether the kinds of routes and the certificates that it names can be used.
    fn references(&self, listener: &Listener, broken: Option<&BrokenRoots>) -> Condition {
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
        if let Some(broken) = broken {
            return fails(broken.reason, broken.message.clone());
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

    /// What is wrong with the roots for certificates of clients.
    fn broken_roots(&self, listener: &Listener) -> Option<BrokenRoots> {
        let ends_tls = matches!(listener.protocol.as_str(), "HTTPS" | "TLS") && !passes_tls(listener);
        let validation = self.spec.tls.as_ref().filter(|_| ends_tls)?.validation(listener.port.0)?;
        broken_roots(self.cx, self.gateway, validation)
    }

    /// Why a certificate cannot be used; `None`: it can.
    fn certificate(&self, reference: &SecretRef) -> Option<Condition> {
        let (reason, message) = match unusable(self.cx, self.object, reference)? {
            UnusableSecret::NotGranted(message) => ("RefNotPermitted", message),
            UnusableSecret::Invalid(message) => ("InvalidCertificateRef", message),
        };
        Some(Condition::fails("ResolvedRefs", reason, message))
    }

    /// Whether the proxies serve it: the model has a server for it, and its certificates are there.
    fn programmed(&self, listener: &Listener, accepted: &Condition) -> Condition {
        let fails = |message: &str| Condition::fails("Programmed", "Invalid", message);
        let is_conflict = |reason: &str| matches!(reason, "ProtocolConflict" | "HostnameConflict");
        let has_certificates = !matches!(listener.protocol.as_str(), "HTTPS" | "TLS")
            || passes_tls(listener)
            || listener
                .tls
                .as_ref()
                .is_some_and(|tls| tls.certificate_refs.iter().any(|reference| self.certificate(reference).is_none()));
        let served = self.cx.gateway(&self.object.namespace, &gateway_name(&self.prefix, listener));
        if is_conflict(accepted.reason) {
            Condition::fails("Programmed", accepted.reason, &accepted.message)
        } else if !accepted.holds {
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

/// Why a certificate with its key cannot be used.
pub(super) enum UnusableSecret {
    /// No ReferenceGrant allows it.
    NotGranted(String),
    /// It is not there, or has no certificate.
    Invalid(String),
}

/// Why an object cannot use the certificate that it refers to; `None`: it can.
pub(super) fn unusable(cx: &Cx<'_>, object: &Object, reference: &SecretRef) -> Option<UnusableSecret> {
    let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Secret"));
    let namespace = reference.namespace.as_ref().map_or_else(|| object.namespace.clone(), |own| own.0.clone());
    let name = reference.name.as_str();
    if (group, kind) != ("", "Secret") {
        return Some(UnusableSecret::Invalid(format!("a certificate is in a Secret, not in a {kind}")));
    }
    if !is_granted(cx, object, &Referred { group, kind, namespace: &namespace, name }) {
        let message = format!("no ReferenceGrant allows the Secret {namespace}/{name}");
        return Some(UnusableSecret::NotGranted(message));
    }
    let credential = cx.credentials(name).find(|of| of.namespace == namespace);
    let message = match credential.map(|credential| credential.certificate.as_ref()) {
        None => format!("there is no Secret {namespace}/{name}"),
        Some(Err(reason)) => format!("the Secret {namespace}/{name} cannot be used: {reason}"),
        Some(Ok(_)) => return None,
    };
    Some(UnusableSecret::Invalid(message))
}

fn accepted(listener: &Listener, conflict: Option<&Conflict>, broken: Option<&BrokenRoots>) -> Condition {
    if !matches!(listener.protocol.as_str(), "HTTP" | "HTTPS" | "TLS" | "TCP" | "UDP") {
        let message = format!("the protocol {} is not supported", listener.protocol.value);
        return Condition::fails("Accepted", "UnsupportedProtocol", message);
    }
    if let Some(conflict) = conflict {
        return Condition::fails("Accepted", conflict.reason, &conflict.message);
    }
    if let Some(broken) = broken.filter(|broken| broken.is_complete) {
        return Condition::fails("Accepted", "NoValidCACertificate", &broken.message);
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
