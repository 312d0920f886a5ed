//! The output of units: resources, and parts of resources that several units assemble.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::service::ServiceOrder;
use evenkeel_model::{Nearness, RouteSet};
use evenkeel_xds::{Any, Resource, ResourceType};
use prost::Message;

use crate::finish::{Patches, ResourceMessage, finish, finish_encoded, finish_table, with_origin};
use crate::pb::config::listener::FilterChain;
use crate::pb::config::route::Route;

/// A unit: it is generated at once, and generated again when something it depends on has changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// Resources that every proxy of a kind has.
    Basics,
    /// A sidecar's resources for calls to the addresses of workloads.
    AsCalled,
    /// Inbound resources; each sidecar has its own.
    Inbound,
    /// Listeners and routes of a gateway.
    Gateways,
    /// Listeners of a gateway for datagrams, with their clusters and endpoints.
    Datagrams,
    /// Resources of the services of this host that do not depend on endpoints.
    Service(Hostname),
    /// The service's endpoints, and resources that contain them: only these are generated again when endpoints change.
    Endpoints(Hostname),
    /// Routes for this host other than the traffic of a service.
    Routed(Hostname),
    /// A resource assembled from parts of other units.
    Assembly(Collection),
}

/// Collections of parts. An assembly may add parts to collections that come later in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collection {
    /// The listener of an address and port; the first to claim it gets it.
    Address(IpAddr, u16),
    /// The listener of a port at any address; also a gateway's, if services contribute to it.
    Port(u16),
    /// The listener of an address that a Sidecar names for a port.
    Egress(IpAddr, u16),
    /// The listener of a Unix socket that a Sidecar names.
    Socket(Arc<str>),
    /// A host in a gateway's route configuration.
    GatewayHost(Arc<str>, Hostname),
    /// A route configuration.
    Routes(Arc<str>),
    /// The table of names, for clients that want it whole.
    Names,
    /// The listener of a target that a gRPC program dials; the first to claim it gets it.
    Target(Arc<str>),
    /// A secret, by its resource's name.
    Secret(Arc<str>),
}

/// A part that a unit adds to a collection.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A complete listener, and the place of its service.
    Listener(Resource, ServiceOrder),
    /// There is HTTP on the port; whether hosts are looked up when they are called.
    Http(Span, bool),
    /// Some of it is gRPC-Web.
    GrpcWeb,
    /// Filter chains for TCP on the port, and the place of their service.
    Tcp(Vec<FilterChain>, Span, ServiceOrder),
    /// A virtual host of a route configuration.
    VirtualHost(HostPart),
    /// A gateway's server with this route configuration or listener.
    Server(u16, Span),
    /// Routes for a host from a route set or from the server itself.
    GatewayRoutes(GatewayRoutes),
    /// A name.
    Name(String, NameInfo),
    /// An alias of a host.
    Alias(String, NameAlias),
    /// The secret is used by the object that is written there.
    Secret(Span),
}

impl Part {
    /// Whether both are of the same kind.
    pub fn is_of_the_sort_of(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether this part makes no difference to a collection in which `first` is the first of its kind. Then one more
    /// service on a port with a thousand need not regenerate the port's listener.
    pub fn adds_nothing_to(&self, first: &Self) -> bool {
        match (first, self) {
            (Self::Http(_, before), Self::Http(_, now)) => before == now,
            (Self::GrpcWeb, Self::GrpcWeb) | (Self::Secret(_), Self::Secret(_)) => true,
            (Self::VirtualHost(first), Self::VirtualHost(own)) => own.adds_nothing_to(first),
            _ => false,
        }
    }
}

/// Routes for a gateway's host from a route set or from the server itself.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayRoutes {
    /// Place of the server among those with the same route configuration.
    pub server: usize,
    /// The server's port.
    pub port: u16,
    /// Whether plain requests are sent to https.
    pub https_redirect: bool,
    /// The route set they come from; `None`: the server itself.
    pub route_set: Option<Arc<RouteSet>>,
    /// How near it is to the gateway: nearer ones come first.
    pub nearness: Nearness,
    /// The routes, in order.
    pub routes: Vec<Route>,
    /// The position in the user's files that it comes from.
    pub origin: Span,
}

/// The output of one unit.
#[derive(Debug)]
pub struct Output<'p> {
    patches: Patches<'p>,
    /// Resources.
    pub resources: Vec<(ResourceType, Resource)>,
    /// Parts of collections.
    pub parts: Vec<(Collection, Part)>,
}

impl<'p> Output<'p> {
    /// Nothing yet; `patches` are applied to the resources.
    pub fn new(patches: Patches<'p>) -> Self {
        Self { patches, resources: Vec::new(), parts: Vec::new() }
    }

    /// Adds a resource; `origin` is the position in the user's files that it comes from.
    pub fn add<M: ResourceMessage>(&mut self, message: M, origin: Option<Span>) {
        self.resources.push((M::TYPE, finish(self.patches, message, origin)));
    }

    /// Adds a resource that another unit has encoded.
    pub fn add_encoded<M: ResourceMessage>(&mut self, made: &Resource) {
        self.resources.push((M::TYPE, finish_encoded::<M>(self.patches, made)));
    }

    /// Adds a route configuration that was assembled from encoded parts.
    pub fn add_table(&mut self, name: &str, value: Vec<u8>, origin: Option<Span>) {
        self.resources.push((ResourceType::Route, finish_table(self.patches, name, value, origin)));
    }

    /// Adds a resource that is packed already, and that nothing patches.
    pub fn add_packed(&mut self, kind: ResourceType, name: &str, message: &Any, origin: Option<Span>) {
        self.resources.push((kind, with_origin(Resource::new(name, message), origin)));
    }

    /// Adds a part to a collection.
    pub fn give(&mut self, to: Collection, part: Part) {
        self.parts.push((to, part));
    }
}

/// `NameTable.NameInfo`.
#[derive(Clone, PartialEq, Message)]
pub struct NameInfo {
    /// Addresses.
    #[prost(string, repeated, tag = "1")]
    pub ips: Vec<String>,
    /// `Kubernetes` for Services, `External` for ServiceEntries.
    #[prost(string, tag = "2")]
    pub registry: String,
    /// A Service's name.
    #[prost(string, tag = "3")]
    pub shortname: String,
    /// A Service's namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
}

/// `NameTable.Alias`.
#[derive(Clone, PartialEq, Message)]
pub struct NameAlias {
    /// The host that it is another name of.
    #[prost(string, tag = "1")]
    pub target: String,
    /// The Service's name.
    #[prost(string, tag = "2")]
    pub shortname: String,
    /// The Service's namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
}

/// A virtual host as part of a route configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct HostPart {
    /// Its domains.
    pub domains: Vec<String>,
    /// The encoded message; `None` if it is a separate resource.
    pub encoded: Option<Vec<u8>>,
    /// Whether it has direct responses for which Envoy's limit must be raised.
    pub large: bool,
    /// The route set it comes from.
    pub ruled_by: Option<Span>,
    /// The service it is for.
    pub service: Option<Span>,
}

impl HostPart {
    /// Whether this host makes no difference to a route configuration whose first host is `first`: it is a separate
    /// resource, and it does not determine the route configuration's origin.
    pub fn adds_nothing_to(&self, first: &Self) -> bool {
        let names_no_origin = || first.service.is_some() && (first.ruled_by.is_some() || self.ruled_by.is_none());
        self.encoded.is_none() && (self.service.is_none() || names_no_origin())
    }
}
