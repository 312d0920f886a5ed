//! Callouts: calls that a filter makes to another service, over a cluster of the configuration.
//!
//! The proxy implements [`Callouts`] for each worker: a call uses the worker's connections, load balancing, circuit
//! breakers, outlier detection, TLS and statistics of the cluster, and runs on the worker as a task of its own.
//! Dropping a call's handle cancels it; a filter that keeps the handle in its stream state drops it with the stream.
//! [`grpc`] adds gRPC calls on top.

pub mod grpc;
mod none;

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::metadata::MetadataMatch;
use evenkeel_runtime_config::retry::RetryPolicy;

pub(crate) use none::NoCallouts;

/// Maximum size of a response body, in bytes, unless [`CallOptions::max_answer_bytes`] says otherwise.
pub const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Bytes that a stream buffers in each direction before it waits for its reader.
pub const MAX_STREAM_BYTES: usize = 64 * 1024;

/// Makes calls. There is one per worker, and it stays there.
pub trait Callouts {
    /// Sends a request and collects the response.
    fn http(&self, call: HttpCall) -> Callout;

    /// Starts a request whose body and response are streamed. It is not retried.
    fn stream(&self, cluster: &Arc<str>, head: RequestHead, options: CallOptions) -> Box<dyn HttpStream>;
}

/// A complete request.
#[derive(Debug, Default)]
pub struct HttpCall {
    /// The cluster to call.
    pub cluster: Arc<str>,
    /// Method, path and headers. If the authority is missing, the cluster's name is used.
    pub head: RequestHead,
    /// The body; may be empty.
    pub body: Vec<u8>,
    /// Further options.
    pub options: CallOptions,
}

/// What a call is for. Each purpose has places of its own on a worker, so that calls that nobody waits for take none from those that decide
/// about requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Requests or connections wait for the answer: authorization, keys of issuers.
    #[default]
    Check,
    /// Spans and logs.
    Telemetry,
    /// A copy of a request.
    Mirror,
}

/// How a call is made.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// From the end of the request to the end of the response, including retries. `None`: no limit.
    pub timeout: Option<Duration>,
    /// Which failures to retry; for complete requests only.
    pub retry: Option<Arc<RetryPolicy>>,
    /// Maximum size of a response body, in bytes. A larger one is [`Problem::TooLarge`].
    pub max_answer_bytes: usize,
    /// Send `x-envoy-internal` and `x-envoy-expected-rq-timeout-ms`, as Envoy's own calls do.
    pub envoy_headers: bool,
    /// Besides, send this proxy's address in `x-forwarded-for`.
    pub names_itself: bool,
    /// The hash, for clusters that choose hosts by one.
    pub hash: Option<u64>,
    /// The metadata match criteria, for clusters with subsets.
    pub metadata_match: Option<Arc<MetadataMatch>>,
    /// What the call is for.
    pub purpose: Purpose,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: None,
            retry: None,
            max_answer_bytes: MAX_ANSWER_BYTES,
            envoy_headers: true,
            names_itself: true,
            hash: None,
            metadata_match: None,
            purpose: Purpose::Check,
        }
    }
}

/// A response, whatever its status.
#[derive(Debug, Clone, Default)]
pub struct HttpAnswer {
    /// Status and headers.
    pub head: ResponseHead,
    /// The whole body.
    pub body: Vec<u8>,
    /// The trailers.
    pub trailers: Headers,
}

/// A call in progress; it proceeds whether or not it is awaited. Dropping it cancels the call: the request's stream is
/// reset, or its connection closed.
pub struct Callout(Pin<Box<dyn Future<Output = Result<HttpAnswer, CalloutError>>>>);

impl Callout {
    /// Dropping the future must cancel the call.
    pub fn new(call: impl Future<Output = Result<HttpAnswer, CalloutError>> + 'static) -> Self {
        Self(Box::pin(call))
    }
}

impl Future for Callout {
    type Output = Result<HttpAnswer, CalloutError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Callout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callout")
    }
}

/// A request whose body and response are streamed. Dropping it cancels the call, unless both directions have ended.
///
/// Each `poll_` function wakes the task that called it last.
pub trait HttpStream {
    /// Ready when [`HttpStream::send`] should be given more: fewer than [`MAX_STREAM_BYTES`] wait to be sent.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CalloutError>>;

    /// Sends a piece of the body. All of it is accepted, ready or not. Does nothing after the end.
    fn send(&mut self, data: &[u8]);

    /// Returns the number of accepted bytes that have not been sent, including those that will not be because the call has
    /// ended.
    fn waiting(&self) -> usize;

    /// Ends the request.
    fn finish(&mut self, trailers: Headers);

    /// Waits for the response's head, which is returned once.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, CalloutError>>;

    /// Waits for body bytes of the response and returns all that are available. `None` at the end, perhaps with trailers.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, CalloutError>>;

    /// The response's trailers, once it has ended.
    fn trailers(&mut self) -> Headers;
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{details}")]
pub struct CalloutError {
    /// The kind of failure.
    pub problem: Problem,
    /// The status that the router would have sent to a client for it.
    pub status: u16,
    /// As in `%RESPONSE_CODE_DETAILS%`.
    pub details: Cow<'static, str>,
}

/// The kind of a call's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// There is no such cluster.
    UnknownCluster,
    /// The cluster has no host to pick.
    NoHealthyHost,
    /// A circuit breaker of the cluster is open, or the control plane has a share of its requests dropped.
    Refused,
    /// The worker has no place for another call of this purpose. This says nothing about the service.
    TooManyCalls,
    /// Connecting failed.
    Connect,
    /// The host reset the stream, closed the connection, or violated the protocol before its response was complete.
    Reset,
    /// The response was not complete in time.
    Timeout,
    /// The response's body is larger than may be collected.
    TooLarge,
    /// The worker is shutting down.
    Stopped,
}

impl CalloutError {
    /// An error with these details.
    pub fn new(problem: Problem, status: u16, details: impl Into<Cow<'static, str>>) -> Self {
        Self { problem, status, details: details.into() }
    }
}
