//! ListenerSet: listeners that are added to a Gateway.

use std::sync::Arc;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::GROUP;
use super::listener::{Listener, check_listeners};
use crate::decode::{Context, Label};
use crate::istio::NamespaceSelector;

object! {
    /// Listeners that are added to a Gateway.
    pub struct ListenerSet {
        /// The specification.
        spec: ListenerSetSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a ListenerSet.
    pub struct ListenerSetSpec {
        /// The Gateway.
        parent_ref: Spanned<ParentGatewayRef> = "parentRef",
        /// The ports and hosts.
        listeners: Vec<Spanned<Listener>> = "listeners",
    }
    check: check_set;
}

object! {
    /// The Gateway of a ListenerSet.
    pub struct ParentGatewayRef {
        /// Its group; the Gateway API's if not given.
        group: Option<String> = "group",
        /// Its kind; `Gateway` if not given.
        kind: Option<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace; that of the ListenerSet if not given.
        namespace: Option<Label> = "namespace",
    }
}

object! {
    /// The ListenerSets that a Gateway takes.
    pub struct AllowedListeners {
        /// Their namespaces.
        namespaces: Option<ListenerNamespaces> = "namespaces",
    }
}

object! {
    /// Namespaces of ListenerSets.
    pub struct ListenerNamespaces {
        /// Which; `None` if not given.
        from: Option<FromListenerNamespaces> = "from",
        /// Their labels, with `Selector`.
        selector: Option<NamespaceSelector> = "selector",
    }
}

choices! {
    /// Which namespaces.
    pub enum FromListenerNamespaces {
        /// All.
        All = "All",
        /// Those whose labels match.
        Selector = "Selector",
        /// The Gateway's own.
        Same = "Same",
        /// No namespace.
        Nowhere = "None",
    }
}

impl ParentGatewayRef {
    /// Whether it names a Gateway of the Gateway API.
    pub fn is_gateway(&self) -> bool {
        self.group.as_deref().unwrap_or(GROUP) == GROUP && self.kind.as_deref().unwrap_or("Gateway") == "Gateway"
    }

    /// Its namespace, for a ListenerSet of namespace `own`.
    pub fn namespace(&self, own: &Arc<str>) -> Arc<str> {
        self.namespace.as_ref().map_or_else(|| own.clone(), |namespace| namespace.0.clone())
    }
}

fn check_set(spec: &ListenerSetSpec, node: &Node, cx: &mut Context) {
    check_listeners(&spec.listeners, node, cx);
}
