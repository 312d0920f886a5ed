//! The state machines on gRPC: ADS and SDS, both protocols, for any source of resource sets.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tonic::{Code, Extensions, Request, Response, Streaming};

use super::{RequestError, Status, delta, sotw};
use crate::ResourceSet;
use crate::pb::envoy::config::core::v3::Node;
use crate::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryService;
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::pb::envoy::service::secret::v3::secret_discovery_service_server::SecretDiscoveryService;

/// Where the resources of a stream come from.
pub trait Source: Send + Sync + 'static {
    /// A client opened a stream and said who it is. `extensions` holds what the transport knows of the peer (its
    /// address, its certificate). An error ends the stream with that status.
    fn connect(&self, node: &Node, extensions: &Extensions) -> Result<Session, tonic::Status>;
}

/// One stream's view of the source; dropped when the stream ends.
pub struct Session {
    /// What the client is to hold, now and whenever it changes.
    pub resources: watch::Receiver<Arc<ResourceSet>>,
    /// Called after each request and push with where the stream stands.
    pub on_status: Box<dyn FnMut(Status) + Send>,
}

impl Session {
    /// A session nobody observes.
    pub fn new(resources: watch::Receiver<Arc<ResourceSet>>) -> Self {
        Self { resources, on_status: Box::new(drop) }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("resources", &self.resources).finish_non_exhaustive()
    }
}

/// ADS and SDS over a [`Source`].
#[derive(Debug)]
pub struct AdsService<S> {
    source: Arc<S>,
}

impl<S> AdsService<S> {
    /// Serves what the source has.
    pub fn new(source: Arc<S>) -> Self {
        Self { source }
    }
}

impl<S> Clone for AdsService<S> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone() }
    }
}

/// Responses waiting for the transport, per stream: the state machine keeps one in flight per type, so more cannot be.
const RESPONSE_QUEUE: usize = crate::ResourceType::ALL.len();

/// A stream of responses, as tonic wants it.
pub type ResponseStream<R> = Pin<Box<dyn Stream<Item = Result<R, tonic::Status>> + Send>>;

/// What the two protocols have in common, for the loop below.
trait Protocol: Default + Send + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;
    fn node(request: &Self::Request) -> Option<&Node>;
    fn on_request(&mut self, request: &Self::Request) -> Result<(), RequestError>;
    fn on_snapshot(&mut self, resources: &Arc<ResourceSet>);
    fn poll_response(&mut self) -> Option<Self::Response>;
    fn status(&self) -> Status;
}

macro_rules! protocol {
    ($stream:ty, $request:ty, $response:ty) => {
        impl Protocol for $stream {
            type Request = $request;
            type Response = $response;
            fn node(request: &$request) -> Option<&Node> {
                request.node.as_ref()
            }
            fn on_request(&mut self, request: &$request) -> Result<(), RequestError> {
                self.on_request(request)
            }
            fn on_snapshot(&mut self, resources: &Arc<ResourceSet>) {
                self.on_snapshot(resources);
            }
            fn poll_response(&mut self) -> Option<$response> {
                self.poll_response()
            }
            fn status(&self) -> Status {
                self.status()
            }
        }
    };
}

protocol!(delta::Stream, DeltaDiscoveryRequest, DeltaDiscoveryResponse);
protocol!(sotw::Stream, DiscoveryRequest, DiscoveryResponse);

impl<S: Source> AdsService<S> {
    fn serve<P: Protocol>(&self, request: Request<Streaming<P::Request>>) -> ResponseStream<P::Response> {
        let (_, extensions, requests) = request.into_parts();
        let (responses, receiver) = mpsc::channel(RESPONSE_QUEUE);
        let source = self.source.clone();
        tokio::spawn(async move {
            if let Err(status) = run::<S, P>(&source, &extensions, requests, &responses).await {
                // The client may be gone; then there is nobody to tell.
                _ = responses.send(Err(status)).await;
            }
        });
        Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))
    }
}

async fn run<S: Source, P: Protocol>(
    source: &S,
    extensions: &Extensions,
    mut requests: Streaming<P::Request>,
    responses: &mpsc::Sender<Result<P::Response, tonic::Status>>,
) -> Result<(), tonic::Status> {
    let Some(first) = requests.next().await.transpose()? else { return Ok(()) };
    let node = P::node(&first).ok_or_else(|| tonic::Status::invalid_argument("the first request carries no node"))?;
    let Session { mut resources, mut on_status } = source.connect(node, extensions)?;
    let mut stream = P::default();
    stream.on_snapshot(&resources.borrow_and_update().clone());
    accept(&mut stream, &first, &node.id)?;
    let id = node.id.clone();
    loop {
        while let Some(response) = stream.poll_response() {
            if responses.send(Ok(response)).await.is_err() {
                return Ok(());
            }
        }
        on_status(stream.status());
        tokio::select! {
            request = requests.next() => match request.transpose()? {
                Some(request) => accept(&mut stream, &request, &id)?,
                None => return Ok(()),
            },
            changed = resources.changed() => {
                if changed.is_err() {
                    return Err(tonic::Status::new(Code::Unavailable, "the server is shutting down"));
                }
                stream.on_snapshot(&resources.borrow_and_update().clone());
            }
            () = responses.closed() => return Ok(()),
        }
    }
}

/// A type we do not serve is the client's misconfiguration, not a reason to take the rest from it.
fn accept<P: Protocol>(stream: &mut P, request: &P::Request, node: &str) -> Result<(), tonic::Status> {
    match stream.on_request(request) {
        Ok(()) => Ok(()),
        Err(error @ RequestError::UnknownType(_)) => {
            tracing::debug!(node, %error, "xDS request not served");
            Ok(())
        }
        Err(error @ RequestError::TooManyNames { .. }) => Err(tonic::Status::resource_exhausted(error.to_string())),
    }
}

#[tonic::async_trait]
impl<S: Source> AggregatedDiscoveryService for AdsService<S> {
    type StreamAggregatedResourcesStream = ResponseStream<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, tonic::Status> {
        Ok(Response::new(self.serve::<sotw::Stream>(request)))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, tonic::Status> {
        Ok(Response::new(self.serve::<delta::Stream>(request)))
    }
}

#[tonic::async_trait]
impl<S: Source> SecretDiscoveryService for AdsService<S> {
    type StreamSecretsStream = ResponseStream<DiscoveryResponse>;
    type DeltaSecretsStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_secrets(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamSecretsStream>, tonic::Status> {
        Ok(Response::new(self.serve::<sotw::Stream>(request)))
    }

    async fn delta_secrets(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaSecretsStream>, tonic::Status> {
        Ok(Response::new(self.serve::<delta::Stream>(request)))
    }

    async fn fetch_secrets(
        &self,
        request: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, tonic::Status> {
        let node = request.get_ref().node.clone().unwrap_or_default();
        let session = self.source.connect(&node, request.extensions())?;
        let mut stream = sotw::Stream::new();
        stream.on_snapshot(&session.resources.borrow());
        accept(&mut stream, request.get_ref(), &node.id)?;
        stream.poll_response().map(Response::new).ok_or_else(|| tonic::Status::not_found("no such secret"))
    }
}
