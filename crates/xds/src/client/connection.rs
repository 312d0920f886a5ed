//! One xDS stream over a gRPC channel.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use super::{ClientRequest, ClientResponse, Protocol};
use crate::pb::envoy::service::cluster::v3::cluster_discovery_service_client::ClusterDiscoveryServiceClient;
use crate::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::pb::envoy::service::endpoint::v3::endpoint_discovery_service_client::EndpointDiscoveryServiceClient;
use crate::pb::envoy::service::listener::v3::listener_discovery_service_client::ListenerDiscoveryServiceClient;
use crate::pb::envoy::service::route::v3::route_discovery_service_client::RouteDiscoveryServiceClient;
use crate::pb::envoy::service::secret::v3::secret_discovery_service_client::SecretDiscoveryServiceClient;

/// Requests waiting for the transport. A client has at most one answer and one change of names per type to send.
const REQUEST_QUEUE: usize = 4 * crate::ResourceType::ALL.len();

/// Maximum size of a response, in bytes. Istio's control plane sends whole meshes in one response and has the same limit.
pub const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Which service of the server to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `AggregatedDiscoveryService`.
    Aggregated,
    /// `ClusterDiscoveryService`.
    Clusters,
    /// `EndpointDiscoveryService`.
    Endpoints,
    /// `ListenerDiscoveryService`.
    Listeners,
    /// `RouteDiscoveryService`.
    Routes,
    /// `SecretDiscoveryService`.
    Secrets,
}

impl Service {
    /// The service for a single type; name tables, virtual hosts, configurations of filters and agents' configuration are only served aggregated.
    pub fn of(kind: crate::ResourceType) -> Self {
        match kind {
            crate::ResourceType::Cluster => Self::Clusters,
            crate::ResourceType::Endpoint => Self::Endpoints,
            crate::ResourceType::Listener => Self::Listeners,
            crate::ResourceType::Route => Self::Routes,
            crate::ResourceType::Secret => Self::Secrets,
            crate::ResourceType::VirtualHost
            | crate::ResourceType::ExtensionConfig
            | crate::ResourceType::NameTable
            | crate::ResourceType::ProxyConfig => Self::Aggregated,
        }
    }
}

/// Calls one streaming method of one generated client.
macro_rules! call {
    ($client:ident, $method:ident, $channel:expr, $requests:expr) => {
        $client::new($channel).max_decoding_message_size(MAX_RESPONSE_BYTES).$method($requests).await?
    };
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The server or the transport reported this status.
    #[error("{}: {}", .0.code(), .0.message())]
    Status(tonic::Status),
    /// The server ended the stream without an error.
    #[error("the server closed the stream")]
    Closed,
}

impl From<tonic::Status> for ConnectionError {
    fn from(status: tonic::Status) -> Self {
        Self::Status(status)
    }
}

/// An open stream.
#[derive(Debug)]
pub struct Connection {
    requests: Requests,
    responses: Responses,
}

#[derive(Debug)]
enum Requests {
    Delta(mpsc::Sender<DeltaDiscoveryRequest>),
    Sotw(mpsc::Sender<DiscoveryRequest>),
}

#[derive(Debug)]
enum Responses {
    Delta(Box<Streaming<DeltaDiscoveryResponse>>),
    Sotw(Box<Streaming<DiscoveryResponse>>),
}

impl Connection {
    /// Opens a stream. `first` is sent at once, because a server may delay its response headers until it has a request.
    pub async fn open(channel: Channel, service: Service, first: ClientRequest) -> Result<Self, ConnectionError> {
        Self::open_with(channel, service, first, MetadataMap::new()).await
    }

    /// Opens a stream with these headers in its head.
    pub async fn open_with(
        channel: Channel,
        service: Service,
        first: ClientRequest,
        metadata: MetadataMap,
    ) -> Result<Self, ConnectionError> {
        match first {
            ClientRequest::Delta(first) => Self::open_delta(channel, service, first, metadata).await,
            ClientRequest::Sotw(first) => Self::open_sotw(channel, service, first, metadata).await,
        }
    }

    async fn open_delta(
        channel: Channel,
        service: Service,
        first: DeltaDiscoveryRequest,
        metadata: MetadataMap,
    ) -> Result<Self, ConnectionError> {
        let (sender, receiver) = mpsc::channel(REQUEST_QUEUE);
        _ = sender.try_send(first);
        let mut requests = tonic::Request::new(ReceiverStream::new(receiver));
        *requests.metadata_mut() = metadata;
        let response = match service {
            Service::Aggregated => {
                call!(AggregatedDiscoveryServiceClient, delta_aggregated_resources, channel, requests)
            }
            Service::Clusters => call!(ClusterDiscoveryServiceClient, delta_clusters, channel, requests),
            Service::Endpoints => call!(EndpointDiscoveryServiceClient, delta_endpoints, channel, requests),
            Service::Listeners => call!(ListenerDiscoveryServiceClient, delta_listeners, channel, requests),
            Service::Routes => call!(RouteDiscoveryServiceClient, delta_routes, channel, requests),
            Service::Secrets => call!(SecretDiscoveryServiceClient, delta_secrets, channel, requests),
        };
        Ok(Self { requests: Requests::Delta(sender), responses: Responses::Delta(Box::new(response.into_inner())) })
    }

    async fn open_sotw(
        channel: Channel,
        service: Service,
        first: DiscoveryRequest,
        metadata: MetadataMap,
    ) -> Result<Self, ConnectionError> {
        let (sender, receiver) = mpsc::channel(REQUEST_QUEUE);
        _ = sender.try_send(first);
        let mut requests = tonic::Request::new(ReceiverStream::new(receiver));
        *requests.metadata_mut() = metadata;
        let response = match service {
            Service::Aggregated => {
                call!(AggregatedDiscoveryServiceClient, stream_aggregated_resources, channel, requests)
            }
            Service::Clusters => call!(ClusterDiscoveryServiceClient, stream_clusters, channel, requests),
            Service::Endpoints => call!(EndpointDiscoveryServiceClient, stream_endpoints, channel, requests),
            Service::Listeners => call!(ListenerDiscoveryServiceClient, stream_listeners, channel, requests),
            Service::Routes => call!(RouteDiscoveryServiceClient, stream_routes, channel, requests),
            Service::Secrets => call!(SecretDiscoveryServiceClient, stream_secrets, channel, requests),
        };
        Ok(Self { requests: Requests::Sotw(sender), responses: Responses::Sotw(Box::new(response.into_inner())) })
    }

    /// The protocol the stream speaks.
    pub fn protocol(&self) -> Protocol {
        match self.requests {
            Requests::Delta(_) => Protocol::Delta,
            Requests::Sotw(_) => Protocol::Sotw,
        }
    }

    /// Sends a request; waits while the transport's queue is full.
    pub async fn send(&self, request: ClientRequest) -> Result<(), ConnectionError> {
        let sent = match (&self.requests, request) {
            (Requests::Delta(sender), ClientRequest::Delta(request)) => sender.send(request).await.is_ok(),
            (Requests::Sotw(sender), ClientRequest::Sotw(request)) => sender.send(request).await.is_ok(),
            _ => false,
        };
        sent.then_some(()).ok_or(ConnectionError::Closed)
    }

    /// The next response. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<ClientResponse, ConnectionError> {
        let response = match &mut self.responses {
            Responses::Delta(stream) => stream.message().await?.map(ClientResponse::Delta),
            Responses::Sotw(stream) => stream.message().await?.map(ClientResponse::Sotw),
        };
        response.ok_or(ConnectionError::Closed)
    }
}
