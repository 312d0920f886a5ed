//! A named, versioned resource, and the set of them one proxy is to hold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use twox_hash::XxHash64;

use crate::{Any, type_url};

/// The kinds of resource ADS carries here, in the order they are sent: what others refer to goes first, so that a
/// listener never names a cluster the proxy has not heard of (make before break).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// CDS: `envoy.config.cluster.v3.Cluster`.
    Cluster,
    /// EDS: `envoy.config.endpoint.v3.ClusterLoadAssignment`.
    Endpoint,
    /// LDS: `envoy.config.listener.v3.Listener`.
    Listener,
    /// RDS: `envoy.config.route.v3.RouteConfiguration`.
    Route,
    /// SDS: `envoy.extensions.transport_sockets.tls.v3.Secret`.
    Secret,
    /// NDS: `istio.networking.nds.v1.NameTable`.
    NameTable,
}

impl ResourceType {
    /// All of them, in sending order.
    pub const ALL: [Self; 6] =
        [Self::Cluster, Self::Endpoint, Self::Listener, Self::Route, Self::Secret, Self::NameTable];

    /// The type of a type URL, if it is one of ours.
    pub fn from_type_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == url)
    }

    /// The type URL requests and responses carry.
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => type_url::CLUSTER,
            Self::Endpoint => type_url::ENDPOINT,
            Self::Listener => type_url::LISTENER,
            Self::Route => type_url::ROUTE,
            Self::Secret => type_url::SECRET,
            Self::NameTable => type_url::NAME_TABLE,
        }
    }

    /// `CDS`, `EDS`, …: the name operators know it by.
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::Cluster => "CDS",
            Self::Endpoint => "EDS",
            Self::Listener => "LDS",
            Self::Route => "RDS",
            Self::Secret => "SDS",
            Self::NameTable => "NDS",
        }
    }

    /// Whether a first request without names asks for everything of the type
    /// (xDS protocol, "How the client specifies what resources to return"; NDS as Istio has it).
    pub const fn defaults_to_wildcard(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener | Self::NameTable)
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short_name())
    }
}

/// One resource, encoded once and shared by every stream it is sent on.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// The name it is subscribed to by.
    pub name: Arc<str>,
    /// Hash of its content, 16 hex digits: equal versions mean equal bytes.
    pub version: Arc<str>,
    /// The encoded message.
    pub any: Any,
    /// Where the user wrote what this comes from, `file:line:column`.
    pub origin: Option<Arc<str>>,
}

impl Resource {
    /// Wraps an encoded message; the version is the xxh64 of its bytes.
    pub fn new(name: impl Into<Arc<str>>, any: Any) -> Self {
        let version = format!("{:016x}", XxHash64::oneshot(0, &any.value));
        Self { name: name.into(), version: version.into(), any, origin: None }
    }

    /// Encodes a message.
    pub fn from_message<M: prost::Name>(name: impl Into<Arc<str>>, message: &M) -> Self {
        Self::new(name, crate::pack(message))
    }

    /// The same resource, with the place the user can change it at.
    pub fn with_origin(mut self, origin: impl Into<Arc<str>>) -> Self {
        self.origin = Some(origin.into());
        self
    }
}

/// Everything one proxy is to hold: an immutable value, replaced whole.
#[derive(Clone, Debug, Default)]
pub struct ResourceSet {
    /// Generation of the snapshot it was computed from; grows.
    pub generation: u64,
    types: [BTreeMap<Arc<str>, Arc<Resource>>; ResourceType::ALL.len()],
}

impl ResourceSet {
    /// An empty set.
    pub fn new(generation: u64) -> Self {
        Self { generation, ..Self::default() }
    }

    /// Adds a resource, replacing one of the same name.
    pub fn insert(&mut self, kind: ResourceType, resource: Arc<Resource>) {
        self.types[kind.index()].insert(resource.name.clone(), resource);
    }

    /// Takes a resource out.
    pub fn remove(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        self.types[kind.index()].remove(name)
    }

    /// The resource of that name.
    pub fn get(&self, kind: ResourceType, name: &str) -> Option<&Arc<Resource>> {
        self.types[kind.index()].get(name)
    }

    /// All resources of a type, by name.
    pub fn of(&self, kind: ResourceType) -> &BTreeMap<Arc<str>, Arc<Resource>> {
        &self.types[kind.index()]
    }

    /// How many resources it holds.
    pub fn len(&self) -> usize {
        self.types.iter().map(BTreeMap::len).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
