//! What a proxy's resources are made of: units, each made by one function from what it asks.
//!
//! There is one unit for each service, one for its endpoints, which change most often, and one for each host of route sets, so that a
//! change to one of them is work for that unit alone. Where several services share a resource (the route table of a port, the listener of an address),
//! their units give parts of it, and an assembly, a unit as well, puts the parts together.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::{RouteSet, Snapshot};
use evenkeel_xds::{Any, Resource, ResourceType};
use prost::Name;

use crate::context::Context;
use crate::name_table::NameInfo;
use crate::pb::config::listener::FilterChain;
use crate::pb::config::route::Route;
use crate::view::ClientKind;
use crate::{clusters, endpoints, grpc, listeners, name_table, routes};

/// What is made in one go, and made again when something it asked about has changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// What every proxy of a kind has.
    Basics,
    /// What leads to the workload; of each sidecar its own.
    Inbound,
    /// What a router listens to.
    Gateways,
    /// What leads to the service of this host, wherever its endpoints are.
    Service(Hostname),
    /// The service's endpoints, and what contains them: nothing else is made anew when one comes or goes.
    Endpoints(Hostname),
    /// What route sets say of this host beyond the traffic of a service.
    Routed(Hostname),
    /// What is put together from the parts other units gave.
    Assembly(Collection),
}

/// Where parts are collected. An assembly may give parts to collections that come later in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collection {
    /// The listener of an address and port; the first to claim it gets it.
    Address(IpAddr, u16),
    /// The listener of a port of any address; a router's, where services have parts in it.
    Port(u16),
    /// The listener of an address that a Sidecar names for a port.
    Egress(IpAddr, u16),
    /// A host in a router's route configuration.
    GatewayHost(Arc<str>, Hostname),
    /// A route configuration.
    Routes(Arc<str>),
    /// The table of names, for clients that want it whole.
    Names,
    /// The listener of a target that a gRPC program dials; the first to claim it gets it.
    Target(Arc<str>),
}

/// What a unit gives to a collection.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A listener, ready to be used.
    Listener(Resource),
    /// There is HTTP on the port.
    Http(Span),
    /// Chains for bytes on the port.
    Tcp(Vec<FilterChain>, Span),
    /// A virtual host of a route configuration.
    VirtualHost(routes::HostPart),
    /// A server of a router that has the route configuration, or the listener.
    Server(u16, Span),
    /// What a route set, or the server itself, says of a host.
    GatewayRoutes(GatewayRoutes),
    /// A name.
    Name(String, NameInfo),
}

impl Part {
    /// Whether both say the same sort of thing.
    pub fn is_of_the_sort_of(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether a collection in which `first` is the first of its sort comes out the same with or without this one: of
    /// a port with a thousand services, one more is no reason to look at all of them.
    pub fn adds_nothing_to(&self, first: &Self) -> bool {
        match (first, self) {
            (Self::Http(_), Self::Http(_)) => true,
            (Self::VirtualHost(first), Self::VirtualHost(own)) => own.adds_nothing_to(first),
            _ => false,
        }
    }
}

/// What a route set, or the server itself, says of a host of a router.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayRoutes {
    /// Place of the server among those with the same route configuration.
    pub server: usize,
    /// The server's port.
    pub port: u16,
    /// Whether plain requests are sent to https.
    pub https_redirect: bool,
    /// Whose routes these are; `None`: the server's.
    pub ruling: Option<Arc<RouteSet>>,
    /// The routes, in order.
    pub routes: Vec<Route>,
    /// Where the user asked for it.
    pub origin: Span,
}

/// What one unit came to.
#[derive(Debug, Default)]
pub struct Output {
    /// Resources.
    pub resources: Vec<(ResourceType, Resource)>,
    /// Parts of others.
    pub parts: Vec<(Collection, Part)>,
}

impl Output {
    /// A resource; `origin` is where the user asked for it.
    pub fn add<M: Name>(&mut self, kind: ResourceType, name: &str, message: &M, origin: Option<Span>) {
        self.resources.push((kind, with_origin(Resource::from_message(name, message), origin)));
    }

    /// The same, already packed.
    pub fn add_packed(&mut self, kind: ResourceType, name: &str, message: &Any, origin: Option<Span>) {
        self.resources.push((kind, with_origin(Resource::new(name, message), origin)));
    }

    /// A part of something other units contribute to.
    pub fn give(&mut self, to: Collection, part: Part) {
        self.parts.push((to, part));
    }
}

/// Notes where the user asked for a resource.
pub fn with_origin(resource: Resource, origin: Option<Span>) -> Resource {
    match origin.filter(|span| span.line > 0 || span.is_object()) {
        Some(origin) => resource.with_origin(origin.to_string()),
        None => resource,
    }
}

impl Unit {
    /// The units every proxy of a kind has, whatever there is in the mesh.
    pub fn of_kind(sidecar: bool) -> &'static [Self] {
        match sidecar {
            true => &[Self::Basics],
            false => &[Self::Basics, Self::Gateways],
        }
    }

    /// The units that are made for each proxy of a kind alone. They give no parts.
    pub fn of_one(sidecar: bool) -> &'static [Self] {
        if sidecar { &[Self::Inbound] } else { &[] }
    }

    /// The units that there are because of what is in the mesh.
    pub fn of_mesh(snapshot: &Snapshot) -> impl Iterator<Item = Self> {
        let services = snapshot.services.iter().flat_map(|service| Self::of_service(&service.host));
        let hosts = snapshot.route_sets.iter().flat_map(|ruling| &ruling.hosts);
        services.chain(hosts.map(|host| Self::Routed(host.value.clone())))
    }

    /// The units of the service of a host.
    pub fn of_service(host: &Hostname) -> [Self; 2] {
        [Self::Service(host.clone()), Self::Endpoints(host.clone())]
    }

    /// Whether what it is about is in the mesh.
    pub fn exists(&self, snapshot: &Snapshot) -> bool {
        match self {
            Self::Service(host) | Self::Endpoints(host) => !snapshot.services_of(host.as_str()).is_empty(),
            Self::Routed(host) => !snapshot.route_sets_naming(host).is_empty(),
            Self::Basics | Self::Inbound | Self::Gateways | Self::Assembly(_) => true,
        }
    }

    /// Makes it. `parts` are those given to an assembly, in the order of the units that gave them.
    pub fn generate(&self, context: Context<'_>, parts: &[&Part], out: &mut Output) {
        if context.client_kind() == ClientKind::Grpc {
            return grpc::generate(self, context, parts, out);
        }
        match self {
            Self::Basics => {
                clusters::basics(context, out);
                listeners::basics(context, out);
            }
            Self::Inbound => {
                clusters::inbounds(context, out);
                listeners::inbound::virtual_inbound(context, out);
                listeners::inbound::bound_ports(context, out);
            }
            Self::Gateways => {
                listeners::gateway::listeners(context, out);
                routes::gateway::servers(context, out);
            }
            Self::Service(host) => {
                let Some(service) = context.service(host) else { return };
                clusters::of_service(context, service, out);
                if context.is_sidecar() {
                    listeners::outbound::of_service(context, service, out);
                    routes::outbound::of_service(context, service, out);
                    name_table::of_service(context, service, out);
                } else {
                    listeners::sni_dnat::of_service(context, service, out);
                }
            }
            Self::Endpoints(host) => {
                let Some(service) = context.service(host) else { return };
                clusters::with_endpoints(context, service, out);
                endpoints::of_service(context, service, out);
                if context.is_sidecar() {
                    listeners::outbound::of_endpoints(context, service, out);
                    name_table::of_endpoints(context, service, out);
                } else {
                    listeners::sni_dnat::of_endpoints(context, service, out);
                }
            }
            Self::Routed(host) => match context.is_sidecar() {
                true => routes::outbound::of_unregistered(context, host, out),
                false => routes::gateway::of_host(context, host, out),
            },
            Self::Assembly(Collection::Address(..)) => listeners::outbound::of_address(parts, out),
            Self::Assembly(Collection::Port(number)) => match context.is_sidecar() {
                true => listeners::outbound::of_port(context, *number, parts, out),
                false => listeners::gateway::of_shared_port(context, *number, parts, out),
            },
            Self::Assembly(Collection::Egress(address, number)) => {
                listeners::outbound::of_egress(context, *address, *number, parts, out);
            }
            Self::Assembly(Collection::GatewayHost(table, host)) => {
                routes::gateway::virtual_host_of(context, table, host, parts, out);
            }
            Self::Assembly(Collection::Routes(name)) => match context.is_sidecar() {
                true => routes::outbound::table(context, name, parts, out),
                false => routes::gateway::table(context, name, parts, out),
            },
            Self::Assembly(Collection::Names) => name_table::table(parts, out),
            // Only gRPC programs' units give to it.
            Self::Assembly(Collection::Target(_)) => {}
        }
    }
}
