//! The last step of generation: a typed message becomes a resource. What a user patches is patched here, before it is encoded.
//!
//! Only these pass by: virtual hosts that are encoded into a route configuration as they are (`routes`), because a table of a thousand
//! services is assembled from them, and the table of names.

use evenkeel_base::Span;
use evenkeel_xds::{Resource, ResourceType};

use crate::pb::config::cluster::Cluster;
use crate::pb::config::endpoint::ClusterLoadAssignment;
use crate::pb::config::listener::{Filter, Listener};
use crate::pb::config::route::RouteConfiguration;
use crate::pb::hcm::HttpConnectionManager;
use crate::pb::tls::Secret;
use crate::proto::{any, network_filter};

/// A message that is complete, and not encoded yet.
#[derive(Debug)]
pub enum Typed {
    /// A listener; its connection managers have been [finished](connection_manager).
    Listener(Box<Listener>),
    /// A cluster.
    Cluster(Box<Cluster>),
    /// A route configuration.
    Routes(RouteConfiguration),
    /// The endpoints of a cluster.
    Endpoints(ClusterLoadAssignment),
    /// A secret.
    Secret(Secret),
}

impl From<Listener> for Typed {
    fn from(listener: Listener) -> Self {
        Self::Listener(Box::new(listener))
    }
}

impl From<Cluster> for Typed {
    fn from(cluster: Cluster) -> Self {
        Self::Cluster(Box::new(cluster))
    }
}

impl From<RouteConfiguration> for Typed {
    fn from(routes: RouteConfiguration) -> Self {
        Self::Routes(routes)
    }
}

impl From<ClusterLoadAssignment> for Typed {
    fn from(endpoints: ClusterLoadAssignment) -> Self {
        Self::Endpoints(endpoints)
    }
}

impl From<Secret> for Typed {
    fn from(secret: Secret) -> Self {
        Self::Secret(secret)
    }
}

impl Typed {
    /// The type of its resource.
    pub fn resource_type(&self) -> ResourceType {
        match self {
            Self::Listener(_) => ResourceType::Listener,
            Self::Cluster(_) => ResourceType::Cluster,
            Self::Routes(_) => ResourceType::Route,
            Self::Endpoints(_) => ResourceType::Endpoint,
            Self::Secret(_) => ResourceType::Secret,
        }
    }
}

/// Turns a message into a resource of the name that it has. `origin`: the position in the user's files that it comes from.
pub fn finish(message: impl Into<Typed>, origin: Option<Span>) -> Resource {
    let resource = match &message.into() {
        Typed::Listener(listener) => Resource::from_message(&*listener.name, &**listener),
        Typed::Cluster(cluster) => Resource::from_message(&*cluster.name, &**cluster),
        Typed::Routes(routes) => Resource::from_message(&*routes.name, routes),
        Typed::Endpoints(endpoints) => Resource::from_message(&*endpoints.cluster_name, endpoints),
        Typed::Secret(secret) => Resource::from_message(&*secret.name, secret),
    };
    with_origin(resource, origin)
}

/// Turns a connection manager into a network filter.
pub fn connection_manager(manager: &HttpConnectionManager) -> Filter {
    network_filter("envoy.filters.network.http_connection_manager", any(manager))
}

/// Sets the origin of a resource.
pub fn with_origin(resource: Resource, origin: Option<Span>) -> Resource {
    match origin.filter(|span| span.line > 0 || span.is_object()) {
        Some(origin) => resource.with_origin(origin.to_string()),
        None => resource,
    }
}
