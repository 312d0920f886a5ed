//! The last step of generation: a typed message becomes a resource, or a part of one. What a user patches is patched here, before it is
//! encoded.
//!
//! Every message passes by, except the table of names. A table of a thousand services is assembled from virtual hosts that are encoded one
//! by one, and several services may share a listener: what was encoded for that is decoded again only if a patch reaches it.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_xds::{Any, Resource, ResourceType};
use prost::Name;

use crate::pb::config::cluster::Cluster;
use crate::pb::config::endpoint::ClusterLoadAssignment;
use crate::pb::config::listener::{Filter, Listener};
use crate::pb::config::route::{RouteConfiguration, VirtualHost};
use crate::pb::hcm::HttpConnectionManager;
use crate::pb::tls::Secret;
use crate::proto::{any, network_filter};

/// A message that is complete, and not encoded yet.
#[derive(Debug)]
pub enum Typed<'m> {
    /// A listener. Its connection managers have passed by before.
    Listener(&'m mut Listener),
    /// A connection manager of a listener or, for gRPC programs, of an `ApiListener`.
    ConnectionManager(&'m mut HttpConnectionManager),
    /// A cluster.
    Cluster(&'m mut Cluster),
    /// A route configuration that is a resource. Its virtual hosts have passed by before, unless it is a gRPC program's.
    Routes(&'m mut RouteConfiguration),
    /// A virtual host, and the name of its route configuration. Under which names it is found is decided by its domains.
    VirtualHost(&'m str, &'m mut VirtualHost),
    /// The endpoints of a cluster.
    Endpoints(&'m mut ClusterLoadAssignment),
    /// A secret.
    Secret(&'m mut Secret),
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MessageKind {
    Listener,
    ConnectionManager,
    Cluster,
    Routes,
    VirtualHost,
    Endpoints,
    Secret,
}

/// Changes messages before they are encoded.
pub trait Patch: Debug + Sync {
    /// Whether it may change messages of this kind: the others stay encoded.
    fn reaches(&self, kind: MessageKind) -> bool;

    /// Changes a message of a kind that it reaches.
    fn apply(&self, message: Typed<'_>);
}

/// The patches for a proxy, in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Patches<'p>(&'p [&'p dyn Patch]);

impl<'p> Patches<'p> {
    /// These patches, in order.
    pub fn new(patches: &'p [&'p dyn Patch]) -> Self {
        Self(patches)
    }

    /// Those that may change messages of this kind.
    fn of(self, kind: MessageKind) -> impl Iterator<Item = &'p dyn Patch> {
        self.0.iter().copied().filter(move |patch| patch.reaches(kind))
    }

    fn reach(self, kind: MessageKind) -> bool {
        self.of(kind).next().is_some()
    }
}

/// A message that is a resource.
pub trait ResourceMessage: Name + Default {
    /// Its kind.
    const KIND: MessageKind;
    /// The type of its resource.
    const TYPE: ResourceType;

    /// The name of its resource.
    fn resource_name(&self) -> &str;

    /// As patches get it.
    fn typed(&mut self) -> Typed<'_>;
}

/// Each such message: its kind, which [`ResourceType`] it has, and the field that names it.
macro_rules! resource_messages {
    ($($message:ty: $kind:ident, $resource_type:ident, $name:ident;)*) => {
        $(impl ResourceMessage for $message {
            const KIND: MessageKind = MessageKind::$kind;
            const TYPE: ResourceType = ResourceType::$resource_type;

            fn resource_name(&self) -> &str {
                &self.$name
            }

            fn typed(&mut self) -> Typed<'_> {
                Typed::$kind(self)
            }
        })*
    };
}

resource_messages! {
    Listener: Listener, Listener, name;
    Cluster: Cluster, Cluster, name;
    RouteConfiguration: Routes, Route, name;
    ClusterLoadAssignment: Endpoints, Endpoint, cluster_name;
    Secret: Secret, Secret, name;
}

/// Turns a message into a resource of the name that it has. `origin`: the position in the user's files that it comes from.
pub fn finish<M: ResourceMessage>(patches: Patches<'_>, mut message: M, origin: Option<Span>) -> Resource {
    patches.of(M::KIND).for_each(|patch| patch.apply(message.typed()));
    encoded(&message, origin)
}

/// Encodes a message from which another unit may make a resource, by [`finish_encoded`] or with parts of others.
pub fn encoded<M: ResourceMessage>(message: &M, origin: Option<Span>) -> Resource {
    with_origin(Resource::from_message(message.resource_name(), message), origin)
}

/// Finishes what was [encoded] before.
pub fn finish_encoded<M: ResourceMessage>(patches: Patches<'_>, made: &Resource) -> Resource {
    if !patches.reach(M::KIND) {
        return made.clone();
    }
    // It was encoded here.
    let Ok(message) = M::decode(made.value()) else { return made.clone() };
    let finished = finish(patches, message, None);
    match &made.origin {
        Some(origin) => finished.with_origin(Arc::clone(origin)),
        None => finished,
    }
}

/// Turns a route configuration that was assembled from encoded parts into a resource.
pub fn finish_table(patches: Patches<'_>, name: &str, value: Vec<u8>, origin: Option<Span>) -> Resource {
    let table = Any { type_url: ResourceType::Route.type_url().to_owned(), value };
    let resource = with_origin(Resource::new(name, &table), origin);
    finish_encoded::<RouteConfiguration>(patches, &resource)
}

/// A virtual host for the route configuration of this name, to be encoded as a part of it or by [`host_resource`].
pub fn virtual_host<'h>(patches: Patches<'_>, table: &str, host: &'h VirtualHost) -> Cow<'h, VirtualHost> {
    let mut host = Cow::Borrowed(host);
    patches.of(MessageKind::VirtualHost).for_each(|patch| patch.apply(Typed::VirtualHost(table, host.to_mut())));
    host
}

/// Turns a virtual host into a resource.
pub fn host_resource(name: String, host: &VirtualHost, origin: Option<Span>) -> Resource {
    with_origin(Resource::from_message(name, host), origin)
}

/// Turns a connection manager into a network filter.
pub fn connection_manager(patches: Patches<'_>, manager: HttpConnectionManager) -> Filter {
    network_filter("envoy.filters.network.http_connection_manager", packed_manager(patches, manager))
}

/// Packs a connection manager.
pub fn packed_manager(patches: Patches<'_>, mut manager: HttpConnectionManager) -> Any {
    let reaching = patches.of(MessageKind::ConnectionManager);
    reaching.for_each(|patch| patch.apply(Typed::ConnectionManager(&mut manager)));
    any(&manager)
}

/// Sets the origin of a resource.
pub fn with_origin(resource: Resource, origin: Option<Span>) -> Resource {
    match origin.filter(|span| span.line > 0 || span.is_object()) {
        Some(origin) => resource.with_origin(origin.to_string()),
        None => resource,
    }
}
