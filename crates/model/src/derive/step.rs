//! The steps of the build, in the order in which they may read each other's results.

use std::sync::Arc;

use evenkeel_api::ObjectKey;
use evenkeel_base::hostname::Hostname;

use crate::GatewayRef;

/// A namespace and a host: one service.
pub(super) type ServiceKey = (Arc<str>, Hostname);

/// One step: what it makes, and of what. Findings stand in this order where they are about the same place.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Step {
    /// Whether a name is used twice.
    Duplicates(ObjectKey),
    /// Settings of the mesh.
    Mesh,
    /// Labels of the namespaces.
    Namespaces,
    /// What a Service or ServiceEntry says of its hosts.
    Service(ObjectKey),
    /// Whether a host needs an address.
    Want(Hostname),
    /// Addresses of hosts that need one.
    Addresses,
    /// The services of a host.
    Host(Hostname),
    /// The PeerAuthentications of a namespace.
    Peers(Arc<str>),
    /// The AuthorizationPolicies of a name.
    Policy(ObjectKey),
    /// The workload of a Pod.
    Workload(ObjectKey),
    /// Two Services at odds over a port.
    Conflict(Hostname, Hostname, u16),
    /// The endpoints of a service.
    Endpoints(ServiceKey),
    /// Whether an EndpointSlice is of use.
    Slice(ObjectKey),
    /// What a DestinationRule says.
    Rule(ObjectKey),
    /// The DestinationRules of a namespace for a host, merged.
    Rules(Arc<str>, Hostname),
    /// All Gateways.
    Gateways,
    /// What a VirtualService says.
    Route(ObjectKey),
    /// Whose routes a host has at a gateway.
    GatewayHost(GatewayRef, Hostname),
    /// Whose routes a host has in the mesh.
    MeshHost(Hostname),
    /// What is left of a VirtualService then.
    Parts(ObjectKey),
    /// The Sidecars of a namespace.
    Sidecars(Arc<str>),
}

impl Step {
    /// Its place in the order: a step reads only results of those before.
    pub(super) fn stage(&self) -> u8 {
        match self {
            Self::Duplicates(_) => 0,
            Self::Mesh => 1,
            Self::Namespaces => 2,
            Self::Service(_) => 3,
            Self::Want(_) => 4,
            Self::Addresses => 5,
            Self::Host(_) => 6,
            Self::Peers(_) => 7,
            Self::Policy(_) => 8,
            Self::Workload(_) => 9,
            Self::Conflict(..) => 10,
            Self::Endpoints(_) => 11,
            Self::Slice(_) => 12,
            Self::Rule(_) => 13,
            Self::Rules(..) => 14,
            Self::Gateways => 15,
            Self::Route(_) => 16,
            Self::GatewayHost(..) => 17,
            Self::MeshHost(_) => 18,
            Self::Parts(_) => 19,
            Self::Sidecars(_) => 20,
        }
    }
}
