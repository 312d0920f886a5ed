//! Statuses of the Gateway API's kinds, as its specification has them.

use std::sync::Arc;

use crate::Condition;

/// The status of an object of the Gateway API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayApiStatus {
    /// Of a GatewayClass.
    Class(GatewayClassStatus),
    /// Of a Gateway.
    Gateway(GatewayStatus),
    /// Of a ListenerSet.
    ListenerSet(ListenerSetStatus),
    /// Of a route of any kind.
    Route(RouteStatus),
    /// Of a BackendTLSPolicy.
    Policy(PolicyStatus),
}

/// The status of a GatewayClass that is served here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayClassStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// The names of the features that Gateways and routes of the class can use, ascending.
    pub supported_features: &'static [&'static str],
}

/// The status of a Gateway that is served here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// Where clients reach it.
    pub addresses: Vec<GatewayStatusAddress>,
    /// Its listeners, in the order of the object.
    pub listeners: Vec<ListenerStatus>,
    /// The number of ListenerSets that are accepted.
    pub attached_listener_sets: usize,
}

/// The status of a ListenerSet whose Gateway is served here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSetStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// Its listeners, in the order of the object.
    pub listeners: Vec<ListenerStatus>,
}

/// An address of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayStatusAddress {
    /// `IPAddress` or `Hostname`.
    pub kind: &'static str,
    /// The address.
    pub value: String,
}

/// The status of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerStatus {
    /// Its name.
    pub name: Arc<str>,
    /// The kinds of routes that it takes.
    pub supported_kinds: Vec<&'static str>,
    /// The number of accepted routes that are attached to it.
    pub attached_routes: usize,
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// The status of a route: what its parents of this mesh say. Others' parents are theirs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteStatus {
    /// The parents, in the order of the object.
    pub parents: Vec<RouteParentStatus>,
}

/// What a parent says of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteParentStatus {
    /// The reference as the route has it.
    pub parent: ParentReference,
    /// The controller that serves the parent.
    pub controller: String,
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// The status of a policy: what the Gateways say whose routes lead to its targets. Others' ancestors are theirs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyStatus {
    /// The Gateways, ascending.
    pub ancestors: Vec<Ancestor>,
    /// The conditions, which are the same for all of them.
    pub conditions: Vec<Condition>,
}

/// A Gateway whose routes lead to a target of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ancestor {
    /// The Gateway's namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The controller that serves it.
    pub controller: String,
}

/// A reference to a parent; what the object leaves out is left out here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParentReference {
    /// The group.
    pub group: Option<String>,
    /// The kind.
    pub kind: Option<String>,
    /// The namespace.
    pub namespace: Option<Arc<str>>,
    /// The name.
    pub name: String,
    /// The name of a listener or port.
    pub section_name: Option<Arc<str>>,
    /// The port.
    pub port: Option<u16>,
}
