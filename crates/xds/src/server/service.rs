//! The state machines on gRPC: ADS and SDS, both protocols, for any source of resource sets.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_base::grpc::CONTENT_TYPE;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use http_body::Frame;
use prost::Message;
use tokio::sync::mpsc;
use tonic::codec::{Codec as _, Streaming};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::{Extensions, Request, Status as GrpcStatus};
use tonic_prost::ProstCodec;

use super::response::Pieces;
use super::stream::{self, Carrier, Protocol, Source};
use super::{Response, delta, sotw};
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::pb::envoy::service::secret::v3::secret_discovery_service_server::SecretDiscoveryService;

/// Responses waiting for the transport, per stream: the state machine has one in flight per type, so there cannot be
/// more.
pub(super) const RESPONSE_QUEUE: usize = crate::ResourceType::ALL.len();
/// Default limit of a request's size, in bytes.
const MAX_REQUEST_BYTES: usize = 4 * 1024 * 1024;

const SERVICE: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
pub(super) const DELTA_METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
pub(super) const SOTW_METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// `AggregatedDiscoveryService` over a [`Source`]. It writes its responses itself: tonic's codec would copy a route table
/// of a megabyte once for each of a thousand streams.
#[derive(Debug)]
pub struct AdsServer<S> {
    source: Arc<S>,
    max_request_bytes: usize,
}

impl<S> AdsServer<S> {
    /// Serves the source's resources.
    pub fn new(source: Arc<S>) -> Self {
        Self { source, max_request_bytes: MAX_REQUEST_BYTES }
    }

    /// Sets another limit of a request's size, in bytes.
    pub fn max_decoding_message_size(mut self, bytes: usize) -> Self {
        self.max_request_bytes = bytes;
        self
    }
}

impl<S> Clone for AdsServer<S> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), max_request_bytes: self.max_request_bytes }
    }
}

impl<S> tonic::server::NamedService for AdsServer<S> {
    const NAME: &'static str = SERVICE;
}

impl<S: Source, B> Service<http::Request<B>> for AdsServer<S>
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let response = match request.uri().path() {
            DELTA_METHOD => self.open::<delta::Stream, _>(request),
            SOTW_METHOD => self.open::<sotw::Stream, _>(request),
            path => GrpcStatus::unimplemented(format!("{path} is not served here")).into_http(),
        };
        Box::pin(std::future::ready(Ok(response)))
    }
}

impl<S: Source> AdsServer<S> {
    fn open<P: Protocol, B>(&self, request: http::Request<B>) -> http::Response<tonic::body::Body>
    where
        B: Body + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        let (parts, body) = request.into_parts();
        let decoder = ProstCodec::<P::Message, P::Request>::default().decoder();
        let requests = Streaming::new_request(decoder, body, None, Some(self.max_request_bytes));
        let (responses, receiver) = mpsc::channel(RESPONSE_QUEUE);
        spawn::<S, P>(self.source.clone(), parts.extensions, requests, responses);
        let mut response =
            http::Response::new(tonic::body::Body::new(Frames { responses: receiver, current: None, end: None }));
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(CONTENT_TYPE));
        response
    }
}

/// The bytes of a stream's responses, made as the transport asks for them.
#[derive(Debug)]
struct Frames {
    responses: mpsc::Receiver<Result<Response, GrpcStatus>>,
    current: Option<Pieces>,
    /// `None` when the trailers were sent.
    end: Option<()>,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = GrpcStatus;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GrpcStatus>>> {
        loop {
            if self.end.is_some() {
                return Poll::Ready(None);
            }
            if let Some(piece) = self.current.as_mut().and_then(Iterator::next) {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            self.current = None;
            let status = match self.responses.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(response))) => {
                    self.current = Some(response.into_pieces());
                    continue;
                }
                Poll::Ready(Some(Err(status))) => status,
                Poll::Ready(None) => GrpcStatus::ok(""),
            };
            self.end = Some(());
            let mut trailers = http::HeaderMap::new();
            return Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))));
        }
    }
}

type Responses = mpsc::Sender<Result<Response, GrpcStatus>>;

fn spawn<S: Source, P: Protocol>(
    source: Arc<S>,
    extensions: Extensions,
    requests: Streaming<P::Request>,
    responses: Responses,
) {
    tokio::spawn(async move {
        let mut carrier = Tonic { requests, responses: &responses };
        if let Err(status) = stream::run::<S, P>(&*source, &extensions, &mut carrier).await {
            // The client may be gone.
            _ = responses.send(Err(status)).await;
        }
    });
}

/// The carrier for tonic's streams.
struct Tonic<'a, R> {
    requests: Streaming<R>,
    responses: &'a Responses,
}

impl<R: Send + 'static> Carrier<R> for Tonic<'_, R> {
    async fn next(&mut self) -> Result<Option<R>, GrpcStatus> {
        tokio::select! {
            request = self.requests.next() => request.transpose(),
            () = self.responses.closed() => Ok(None),
        }
    }

    fn next_now(&mut self) -> Option<Result<R, GrpcStatus>> {
        self.requests.next().now_or_never().flatten()
    }

    async fn send(&mut self, response: Response) -> bool {
        self.responses.send(Ok(response)).await.is_ok()
    }

    async fn gone(&mut self) {
        self.responses.closed().await;
    }
}

/// SDS over a [`Source`], for few and small secrets.
#[derive(Debug)]
pub struct AdsService<S> {
    source: Arc<S>,
}

impl<S> AdsService<S> {
    /// Serves the source's resources.
    pub fn new(source: Arc<S>) -> Self {
        Self { source }
    }
}

impl<S> Clone for AdsService<S> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone() }
    }
}

/// A stream of responses in tonic's form.
pub type ResponseStream<R> = Pin<Box<dyn Stream<Item = Result<R, GrpcStatus>> + Send>>;

impl<S: Source> AdsService<S> {
    fn serve<P: Protocol>(&self, request: Request<Streaming<P::Request>>) -> ResponseStream<P::Message> {
        let (_, extensions, requests) = request.into_parts();
        let (responses, receiver) = mpsc::channel(RESPONSE_QUEUE);
        spawn::<S, P>(self.source.clone(), extensions, requests, responses);
        let messages = tokio_stream::wrappers::ReceiverStream::new(receiver);
        Box::pin(messages.map(|response| message(response?)))
    }
}

/// Decodes a response into a message.
fn message<M: Message + Default>(response: Response) -> Result<M, GrpcStatus> {
    M::decode(&*response.encode_to_vec()).map_err(|error| GrpcStatus::internal(error.to_string()))
}

#[tonic::async_trait]
impl<S: Source> SecretDiscoveryService for AdsService<S> {
    type StreamSecretsStream = ResponseStream<DiscoveryResponse>;
    type DeltaSecretsStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_secrets(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<tonic::Response<Self::StreamSecretsStream>, GrpcStatus> {
        Ok(tonic::Response::new(self.serve::<sotw::Stream>(request)))
    }

    async fn delta_secrets(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<tonic::Response<Self::DeltaSecretsStream>, GrpcStatus> {
        Ok(tonic::Response::new(self.serve::<delta::Stream>(request)))
    }

    async fn fetch_secrets(
        &self,
        request: Request<DiscoveryRequest>,
    ) -> Result<tonic::Response<DiscoveryResponse>, GrpcStatus> {
        let (_, extensions, request) = request.into_parts();
        let node = request.node.clone().unwrap_or_default();
        let mut session = self.source.connect(&node, &extensions).await?;
        let mut stream = sotw::Stream::new(session.announcement);
        stream.on_snapshot(&session.resources.look());
        stream::accept(&mut stream, &request, Duration::ZERO, &node.id)?;
        let response = stream.poll_response(Duration::ZERO).ok_or_else(|| GrpcStatus::not_found("no such secret"))?;
        message(response).map(tonic::Response::new)
    }
}
