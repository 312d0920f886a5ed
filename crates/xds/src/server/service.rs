//! The state machines on gRPC: ADS and SDS, both protocols, for any source of resource sets.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use http_body::Frame;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::codec::{Codec as _, Streaming};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::{Code, Extensions, Request, Status as GrpcStatus};
use tonic_prost::ProstCodec;

use super::interest::Interest;
use super::response::Pieces;
use super::{Announcement, RequestError, Response, Status, delta, sotw};
use crate::ResourceSet;
use crate::pb::envoy::config::core::v3::Node;
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::pb::envoy::service::secret::v3::secret_discovery_service_server::SecretDiscoveryService;

/// Where the resources of a stream come from.
pub trait Source: Send + Sync + 'static {
    /// A client opened a stream and said who it is. `extensions` holds what the transport knows of the peer (its
    /// address, its certificate). The stream waits until this is done; an error ends it with that status.
    fn connect(&self, node: &Node, extensions: &Extensions)
    -> impl Future<Output = Result<Session, GrpcStatus>> + Send;
}

/// One stream's view of the source; dropped when the stream ends.
pub struct Session {
    /// What the client is to hold, now and whenever it changes. Where a change does not concern the stream it may be
    /// replaced without a notice: the stream looks again when its client says something.
    pub resources: watch::Receiver<Arc<ResourceSet>>,
    /// What the client asks for.
    pub interest: Interest,
    /// Called after each request and push with where the stream stands.
    pub on_status: Box<dyn FnMut(Status) + Send>,
    /// What the server says of itself.
    pub announcement: Announcement,
}

impl Session {
    /// A session nobody observes.
    pub fn new(resources: watch::Receiver<Arc<ResourceSet>>) -> Self {
        let (interest, announcement) = (Interest::default(), Announcement::default());
        Self { resources, interest, on_status: Box::new(drop), announcement }
    }

    /// The same, with what it asks for known to others.
    pub fn known_by(mut self, interest: Interest) -> Self {
        self.interest = interest;
        self
    }

    /// The same, observed.
    pub fn observed(mut self, on_status: impl FnMut(Status) + Send + 'static) -> Self {
        self.on_status = Box::new(on_status);
        self
    }

    /// The same, with what the server says of itself.
    pub fn announced(mut self, announcement: Announcement) -> Self {
        self.announcement = announcement;
        self
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("resources", &self.resources).finish_non_exhaustive()
    }
}

/// Responses waiting for the transport, per stream: the state machine keeps one in flight per type, so more cannot be.
const RESPONSE_QUEUE: usize = crate::ResourceType::ALL.len();
/// Requests taken in before an answer is looked for, in messages: those that have come already.
const REQUESTS_AT_ONCE: usize = 16;
/// Largest request taken unless the caller sets another limit, in bytes.
const MAX_REQUEST_BYTES: usize = 4 * 1024 * 1024;

const SERVICE: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
const DELTA_METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SOTW_METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// `AggregatedDiscoveryService` over a [`Source`]. It writes its responses itself: tonic's codec would copy a route table
/// of a megabyte once for each of a thousand streams.
#[derive(Debug)]
pub struct AdsServer<S> {
    source: Arc<S>,
    max_request_bytes: usize,
}

impl<S> AdsServer<S> {
    /// Serves what the source has.
    pub fn new(source: Arc<S>) -> Self {
        Self { source, max_request_bytes: MAX_REQUEST_BYTES }
    }

    /// With another limit of a request's size, in bytes.
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
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
        response
    }
}

/// The bytes of a stream's responses, made as the transport asks for them.
#[derive(Debug)]
struct Frames {
    responses: mpsc::Receiver<Result<Response, GrpcStatus>>,
    current: Option<Pieces>,
    /// The trailers have been sent.
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

/// What the two protocols have in common, for the loop below.
trait Protocol: Send + 'static {
    type Request: Message + Default + Send + 'static;
    type Message: Message + Default + Send + 'static;
    fn new(announcement: Announcement) -> Self;
    fn node(request: &Self::Request) -> Option<&Node>;
    fn on_request(&mut self, request: &Self::Request, now: Duration) -> Result<(), RequestError>;
    fn on_snapshot(&mut self, resources: &Arc<ResourceSet>);
    fn note_interest(&self, interest: &Interest);
    fn poll_response(&mut self, now: Duration) -> Option<Response>;
    fn next_timer(&self, now: Duration) -> Option<Duration>;
    fn status(&self) -> Status;
}

macro_rules! protocol {
    ($stream:ty, $request:ty, $response:ty) => {
        impl Protocol for $stream {
            type Request = $request;
            type Message = $response;
            fn new(announcement: Announcement) -> Self {
                <$stream>::new(announcement)
            }
            fn node(request: &$request) -> Option<&Node> {
                request.node.as_ref()
            }
            fn on_request(&mut self, request: &$request, now: Duration) -> Result<(), RequestError> {
                self.on_request(request, now)
            }
            fn on_snapshot(&mut self, resources: &Arc<ResourceSet>) {
                self.on_snapshot(resources);
            }
            fn note_interest(&self, interest: &Interest) {
                self.note_interest(interest);
            }
            fn poll_response(&mut self, now: Duration) -> Option<Response> {
                self.poll_response(now)
            }
            fn next_timer(&self, now: Duration) -> Option<Duration> {
                self.next_timer(now)
            }
            fn status(&self) -> Status {
                self.status()
            }
        }
    };
}

protocol!(delta::Stream, DeltaDiscoveryRequest, DeltaDiscoveryResponse);
protocol!(sotw::Stream, DiscoveryRequest, DiscoveryResponse);

type Responses = mpsc::Sender<Result<Response, GrpcStatus>>;

fn spawn<S: Source, P: Protocol>(
    source: Arc<S>,
    extensions: Extensions,
    requests: Streaming<P::Request>,
    responses: Responses,
) {
    tokio::spawn(async move {
        if let Err(status) = run::<S, P>(&*source, &extensions, requests, &responses).await {
            // The client may be gone; then there is nobody to tell.
            _ = responses.send(Err(status)).await;
        }
    });
}

async fn run<S: Source, P: Protocol>(
    source: &S,
    extensions: &Extensions,
    mut requests: Streaming<P::Request>,
    responses: &Responses,
) -> Result<(), GrpcStatus> {
    let Some(first) = requests.next().await.transpose()? else { return Ok(()) };
    let node = P::node(&first).ok_or_else(|| GrpcStatus::invalid_argument("the first request carries no node"))?;
    let Session { mut resources, interest, mut on_status, announcement } = source.connect(node, extensions).await?;
    let id = node.id.clone();
    let start = Instant::now();
    let mut stream = P::new(announcement);
    let set = resources.borrow_and_update().clone();
    stream.on_snapshot(&set);
    drop(set);
    accept(&mut stream, &first, start.elapsed(), &id)?;
    drop(first);
    loop {
        // In this order: whoever replaces the resources meanwhile knows what is asked for, or is found by the look.
        stream.note_interest(&interest);
        stream.on_snapshot(&resources.borrow_and_update().clone());
        while let Some(response) = stream.poll_response(start.elapsed()) {
            if responses.send(Ok(response)).await.is_err() {
                return Ok(());
            }
        }
        on_status(stream.status());
        let timer = stream.next_timer(start.elapsed());
        tokio::select! {
            request = requests.next() => match request.transpose()? {
                Some(request) => {
                    accept(&mut stream, &request, start.elapsed(), &id)?;
                    // What has come with it is answered with it.
                    for _ in 1..REQUESTS_AT_ONCE {
                        let Some(Some(more)) = requests.next().now_or_never() else { break };
                        accept(&mut stream, &more?, start.elapsed(), &id)?;
                    }
                }
                None => return Ok(()),
            },
            changed = resources.changed() => {
                if changed.is_err() {
                    return Err(GrpcStatus::new(Code::Unavailable, "the server is shutting down"));
                }
            }
            () = tokio::time::sleep_until(start + timer.unwrap_or_default()), if timer.is_some() => {}
            () = responses.closed() => return Ok(()),
        }
    }
}

/// A type we do not serve is the client's misconfiguration, not a reason to take the rest from it.
fn accept<P: Protocol>(stream: &mut P, request: &P::Request, now: Duration, node: &str) -> Result<(), GrpcStatus> {
    match stream.on_request(request, now) {
        Ok(()) => Ok(()),
        Err(error @ RequestError::UnknownType(_)) => {
            tracing::debug!(node, %error, "xDS request not served");
            Ok(())
        }
        Err(error @ RequestError::TooManyNames { .. }) => Err(GrpcStatus::resource_exhausted(error.to_string())),
    }
}

/// SDS over a [`Source`], for few and small secrets.
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

/// A stream of responses, as tonic wants it.
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

/// The message that the bytes are.
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
        let session = self.source.connect(&node, &extensions).await?;
        let mut stream = sotw::Stream::new(session.announcement);
        stream.on_snapshot(&session.resources.borrow());
        accept(&mut stream, &request, Duration::ZERO, &node.id)?;
        let response = stream.poll_response(Duration::ZERO).ok_or_else(|| GrpcStatus::not_found("no such secret"))?;
        message(response).map(tonic::Response::new)
    }
}
