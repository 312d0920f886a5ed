//! The client side of ADS: subscriptions, accepted resources, and the next request to send.
//!
//! [`delta::Client`] and [`sotw::Client`] have no I/O and no clock. A client outlives its connections and remembers
//! what it holds, so that a new stream starts where the old one ended. [`connection`] carries the messages over gRPC.

mod backoff;
pub mod connection;
pub mod delta;
pub mod sotw;

use prost::Message as _;

pub use backoff::Backoff;
pub use connection::{Connection, ConnectionError};

use crate::pb::envoy::config::core::v3::{Node, TypedExtensionConfig};
use crate::pb::envoy::config::{cluster, endpoint, listener, route};
use crate::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::pb::google::rpc;
use crate::{Any, Cause, ResourceType};

/// Which of the two protocols a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Incremental: `DELTA_GRPC`.
    #[default]
    Delta,
    /// State of the world: `GRPC`.
    Sotw,
}

/// The content of a response, to be applied resource by resource and then answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The type.
    pub kind: ResourceType,
    /// New and changed resources.
    pub added: Vec<Received>,
    /// Names that are gone, or that were requested and do not exist.
    pub removed: Vec<String>,
    nonce: String,
    version: String,
}

/// One resource of a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// Its name.
    pub name: String,
    /// The server's version; the whole response's in state of the world.
    pub version: String,
    /// The message.
    pub any: Any,
    /// The change that caused this version; the default if the server does not tell.
    pub cause: Cause,
    /// Whether it is the first answer for a name. Its age then says nothing about how fast changes arrive. Unknown with
    /// state of the world.
    pub first: bool,
}

/// A resource the applier refused; the last good one of that name stays in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The resource's name.
    pub name: String,
    /// The error, and its position.
    pub reason: String,
}

/// A response the client cannot use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// The response has a type that was not subscribed to.
    #[error("response of type {0:?}, which was not subscribed to")]
    Unexpected(String),
}

/// A client of either protocol.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one per process, and it stays where it is")]
pub enum Client {
    /// Incremental.
    Delta(delta::Client),
    /// State of the world.
    Sotw(sotw::Client),
}

/// A request of either protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientRequest {
    /// Incremental.
    Delta(DeltaDiscoveryRequest),
    /// State of the world.
    Sotw(DiscoveryRequest),
}

/// A response of either protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientResponse {
    /// Incremental.
    Delta(DeltaDiscoveryResponse),
    /// State of the world.
    Sotw(DiscoveryResponse),
}

impl Client {
    /// A client without subscriptions.
    pub fn new(protocol: Protocol, node: Node) -> Self {
        match protocol {
            Protocol::Delta => Self::Delta(delta::Client::new(node)),
            Protocol::Sotw => Self::Sotw(sotw::Client::new(node)),
        }
    }

    /// The protocol it speaks.
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Delta(_) => Protocol::Delta,
            Self::Sotw(_) => Protocol::Sotw,
        }
    }

    /// Subscribes to everything of a type.
    pub fn subscribe_all(&mut self, kind: ResourceType) {
        match self {
            Self::Delta(client) => client.subscribe_all(kind),
            Self::Sotw(client) => client.subscribe_all(kind),
        }
    }

    /// Replaces the subscribed names of a type.
    pub fn set_names<'a>(&mut self, kind: ResourceType, names: impl IntoIterator<Item = &'a str>) {
        match self {
            Self::Delta(client) => client.set_names(kind, names),
            Self::Sotw(client) => client.set_names(kind, names),
        }
    }

    /// Subscribes to one more name of a type, at any time. The answer is the resource, or the name among those that are
    /// gone. A repeated call for a name that does not exist is answered again.
    pub fn subscribe(&mut self, kind: ResourceType, name: &str) {
        match self {
            Self::Delta(client) => client.subscribe(kind, name),
            Self::Sotw(client) => client.subscribe(kind, name),
        }
    }

    /// Unsubscribes from a name.
    pub fn unsubscribe(&mut self, kind: ResourceType, name: &str) {
        match self {
            Self::Delta(client) => client.unsubscribe(kind, name),
            Self::Sotw(client) => client.unsubscribe(kind, name),
        }
    }

    /// Records when a resource was applied, in microseconds since 1970. The next report tells the server how old the
    /// change was.
    pub fn applied(&mut self, kind: ResourceType, cause: Cause, now_us: u64) {
        if let Self::Delta(client) = self {
            client.applied(kind, cause, now_us);
        }
    }

    /// Schedules a report of what is held and how old changes were. Does nothing unless the server is an Evenkeel
    /// control plane and the protocol is incremental.
    pub fn report(&mut self) {
        if let Self::Delta(client) = self {
            client.report();
        }
    }

    /// A new stream begins: subscribes to everything again, with the held versions.
    pub fn on_connect(&mut self) {
        match self {
            Self::Delta(client) => client.on_connect(),
            Self::Sotw(client) => client.on_connect(),
        }
    }

    /// Processes a response. Apply the update, then call [`answer`](Self::answer).
    pub fn on_response(&mut self, response: ClientResponse) -> Result<Update, ResponseError> {
        match (self, response) {
            (Self::Delta(client), ClientResponse::Delta(response)) => client.on_response(response),
            (Self::Sotw(client), ClientResponse::Sotw(response)) => client.on_response(response),
            (_, ClientResponse::Delta(response)) => Err(ResponseError::Unexpected(response.type_url)),
            (_, ClientResponse::Sotw(response)) => Err(ResponseError::Unexpected(response.type_url)),
        }
    }

    /// Accepts an update, or refuses the named resources, which then do not count as held.
    pub fn answer(&mut self, update: &Update, rejected: &[Rejected]) {
        match self {
            Self::Delta(client) => client.answer(update, rejected),
            Self::Sotw(client) => client.answer(update, rejected),
        }
    }

    /// The next request to send, until there is none.
    pub fn poll_request(&mut self) -> Option<ClientRequest> {
        match self {
            Self::Delta(client) => client.poll_request().map(ClientRequest::Delta),
            Self::Sotw(client) => client.poll_request().map(ClientRequest::Sotw),
        }
    }

    /// Names and versions held of a type.
    pub fn held(&self, kind: ResourceType) -> impl Iterator<Item = (&str, &str)> {
        let held = match self {
            Self::Delta(client) => client.held_map(kind),
            Self::Sotw(client) => client.held_map(kind),
        };
        held.iter().map(|(name, version)| (name.as_str(), version.as_str()))
    }
}

/// The order of requests on an open stream: new names come before the answer to the clusters or listeners that named
/// them. The server waits for that answer, so it sends what they need before what uses them.
const SPEAKING_ORDER: [ResourceType; ResourceType::ALL.len()] = [
    ResourceType::Endpoint,
    ResourceType::Route,
    ResourceType::VirtualHost,
    ResourceType::Secret,
    ResourceType::ExtensionConfig,
    ResourceType::NameTable,
    ResourceType::ProxyConfig,
    ResourceType::Cluster,
    ResourceType::Listener,
];

/// The reason of a refusal in its wire form. Envoy sends INTERNAL, too.
fn error_detail(rejected: &[Rejected]) -> Option<rpc::Status> {
    if rejected.is_empty() {
        return None;
    }
    let reasons: Vec<&str> = rejected.iter().map(|rejected| rejected.reason.as_str()).collect();
    Some(rpc::Status { code: tonic::Code::Internal as i32, message: reasons.join("\n"), details: Vec::new() })
}

/// The name of a resource, read from the message, because state-of-the-world responses do not carry it separately.
pub fn resource_name(kind: ResourceType, any: &Any) -> Option<String> {
    let bytes = &*any.value;
    match kind {
        ResourceType::Cluster => cluster::v3::Cluster::decode(bytes).ok().map(|message| message.name),
        ResourceType::Endpoint => {
            endpoint::v3::ClusterLoadAssignment::decode(bytes).ok().map(|message| message.cluster_name)
        }
        ResourceType::Listener => listener::v3::Listener::decode(bytes).ok().map(|message| message.name),
        ResourceType::Route => route::v3::RouteConfiguration::decode(bytes).ok().map(|message| message.name),
        // Its resource name begins with that of its route table, which is not in the message. Envoy supports VHDS only
        // with delta.
        ResourceType::VirtualHost => None,
        ResourceType::Secret => tls::Secret::decode(bytes).ok().map(|message| message.name),
        ResourceType::ExtensionConfig => TypedExtensionConfig::decode(bytes).ok().map(|message| message.name),
        // There is one of each per proxy, without a name.
        ResourceType::NameTable | ResourceType::ProxyConfig => Some(String::new()),
    }
}
