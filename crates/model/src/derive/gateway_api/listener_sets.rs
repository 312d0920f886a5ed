//! ListenerSets: which Gateway takes one, and which of its listeners conflict with earlier ones.

use std::sync::Arc;

use evenkeel_api::gateway_api::{FromListenerNamespaces, Gateway, Listener, ListenerSet};
use evenkeel_api::{Kind, Object, Resource};

use super::super::tracking::Cx;
use super::listeners::{Owned, gateway, host_of, is_selected, own_controller};

/// The Gateway of a ListenerSet.
pub(super) struct Parent<'t> {
    pub(super) object: &'t Arc<Object>,
    pub(super) gateway: &'t Gateway,
    pub(super) controller: String,
}

/// Why a ListenerSet has no Gateway here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unattached {
    /// Its parent is no Gateway.
    NoGateway,
    /// There is no such Gateway.
    Missing,
    /// The Gateway does not take it.
    NotAllowed,
    /// The Gateway is another controller's.
    NotOurs,
}

/// The Gateway that takes a ListenerSet.
pub(super) fn parent_of<'t>(cx: &Cx<'t>, object: &Object, set: &ListenerSet) -> Result<Parent<'t>, Unattached> {
    let parent = &set.spec.parent_ref;
    if !parent.is_gateway() {
        return Err(Unattached::NoGateway);
    }
    let namespace = parent.namespace(&object.namespace);
    let (of, gateway) = gateway(cx, &namespace, &parent.name).ok_or(Unattached::Missing)?;
    let controller = own_controller(cx, &gateway.spec).ok_or(Unattached::NotOurs)?;
    let namespaces = gateway.spec.allowed_listeners.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
    let is_allowed = match namespaces.and_then(|namespaces| namespaces.from) {
        Some(FromListenerNamespaces::All) => true,
        Some(FromListenerNamespaces::Same) => object.namespace == of.namespace,
        Some(FromListenerNamespaces::Selector) => namespaces
            .and_then(|namespaces| namespaces.selector.as_ref())
            .is_some_and(|selector| is_selected(cx, &object.namespace, selector)),
        Some(FromListenerNamespaces::Nowhere) | None => false,
    };
    is_allowed.then_some(Parent { object: of, gateway, controller }).ok_or(Unattached::NotAllowed)
}

/// A ListenerSet as an object.
pub(super) fn listener_set(object: &Object) -> Option<&ListenerSet> {
    match &object.resource {
        Resource::ListenerSet(set) => Some(set),
        _ => None,
    }
}

/// A listener of a Gateway or of one of its ListenerSets.
pub(super) struct Listed<'t> {
    pub(super) owned: Owned<'t>,
    /// Why a listener of a ListenerSet is not served.
    pub(super) conflict: Option<Conflict>,
}

/// All listeners of a Gateway with the objects that have them: its own, and those of its ListenerSets by age.
pub(super) fn listed<'t>(cx: &Cx<'t>, object: &'t Arc<Object>, gateway: &'t Gateway) -> Vec<Listed<'t>> {
    let own = gateway.spec.listeners.iter().map(|listener| Owned { object, listener });
    let mut all: Vec<Listed<'t>> = own.map(|owned| Listed { owned, conflict: None }).collect();
    for set in cx.objects(Kind::ListenerSet) {
        let Some(written) = listener_set(set) else { continue };
        if !parent_of(cx, set, written).is_ok_and(|parent| Arc::ptr_eq(parent.object, object)) {
            continue;
        }
        for listener in &written.spec.listeners {
            let mut earlier = all.iter().filter(|earlier| earlier.conflict.is_none());
            let conflict = earlier.find_map(|earlier| conflict(earlier.owned, listener));
            all.push(Listed { owned: Owned { object: set, listener }, conflict });
        }
    }
    all
}

/// All listeners of a Gateway that do not conflict with earlier ones.
pub(super) fn all_listeners<'t>(cx: &Cx<'t>, object: &'t Arc<Object>, gateway: &'t Gateway) -> Vec<Owned<'t>> {
    let all = listed(cx, object, gateway).into_iter();
    all.filter(|listed| listed.conflict.is_none()).map(|listed| listed.owned).collect()
}

/// What keeps a listener from being served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conflict {
    /// The reason in conditions.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What an earlier listener of the Gateway keeps a listener of a ListenerSet from.
pub(super) fn conflict(earlier: Owned<'_>, listener: &Listener) -> Option<Conflict> {
    let Owned { object: of, listener: other } = earlier;
    if other.port.value != listener.port.value {
        return None;
    }
    let port = listener.port.0;
    let (theirs, own) = (family(other), family(listener));
    if theirs != own && [theirs, own].contains(&"UDP") {
        return None;
    }
    if theirs != own || ["TCP", "UDP"].contains(&own) {
        let message = format!("the listener `{}` of {of} uses port {port} already", other.name.0);
        return Some(Conflict { reason: "ProtocolConflict", message });
    }
    let is_same = host_of(other) == host_of(listener);
    is_same.then(|| Conflict {
        reason: "HostnameConflict",
        message: format!("the listener `{}` of {of} serves this host on port {port} already", other.name.0),
    })
}

/// Protocols that can share a port. A port of UDP is another one than a port of the others.
fn family(listener: &Listener) -> &'static str {
    match listener.protocol.as_str() {
        "HTTP" => "HTTP",
        "HTTPS" | "TLS" => "TLS",
        "UDP" => "UDP",
        _ => "TCP",
    }
}
