//! Calls of the proxy's own: what a filter asks another service, over a cluster of the configuration.
//!
//! The proxy implements [`Callouts`] for each worker: a call uses the worker's own connections, balancing, circuit breakers, outlier
//! detection, TLS and statistics of the cluster, and runs on the worker as a task of its own. Dropping the handle of a call cancels it;
//! a filter that keeps the handle in its stream's state loses it with the stream. [`grpc`] puts calls of gRPC on top.

pub mod grpc;
mod none;

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::cluster::MetadataMatch;
use evenkeel_runtime_config::retry::RetryPolicy;

pub(crate) use none::NoCallouts;

/// Largest body of an answer that is collected, in bytes, where [`CallOptions::max_answer_bytes`] does not say.
pub const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Bytes that a stream holds of each direction before it waits for its reader.
pub const MAX_STREAM_BYTES: usize = 64 * 1024;

/// Makes calls. There is one for each worker; it is not sent anywhere else.
pub trait Callouts {
    /// Sends a request and collects the answer.
    fn http(&self, call: HttpCall) -> Callout;

    /// Begins a request whose body and answer pass piece by piece. It is not retried.
    fn stream(&self, cluster: &Arc<str>, head: RequestHead, options: CallOptions) -> Box<dyn HttpStream>;
}

/// A whole request.
#[derive(Debug, Default)]
pub struct HttpCall {
    /// The cluster that is asked.
    pub cluster: Arc<str>,
    /// Method, path and headers. Without an authority it gets the cluster's name.
    pub head: RequestHead,
    /// The body; may be empty.
    pub body: Vec<u8>,
    /// What else there is to say.
    pub options: CallOptions,
}

/// How a call is made.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// From the end of the request to the end of the answer, retries included. `None`: no limit.
    pub timeout: Option<Duration>,
    /// Which failures are tried again; whole requests only.
    pub retry: Option<Arc<RetryPolicy>>,
    /// Largest body of an answer that is collected, in bytes. A longer one is [`Problem::TooLarge`].
    pub max_answer_bytes: usize,
    /// Say `x-envoy-internal`, `x-envoy-expected-rq-timeout-ms` and, in `x-forwarded-for`, who asks, as Envoy's own calls do.
    pub envoy_headers: bool,
    /// For clusters that choose hosts by a hash.
    pub hash: Option<u64>,
    /// For clusters with subsets.
    pub metadata_match: Option<Arc<MetadataMatch>>,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: None,
            retry: None,
            max_answer_bytes: MAX_ANSWER_BYTES,
            envoy_headers: true,
            hash: None,
            metadata_match: None,
        }
    }
}

/// An answer, whatever its status.
#[derive(Debug, Clone, Default)]
pub struct HttpAnswer {
    /// Status and headers.
    pub head: ResponseHead,
    /// The whole body.
    pub body: Vec<u8>,
    /// The trailers.
    pub trailers: Headers,
}

/// A call on its way; it goes on whether or not somebody waits. Dropping it cancels the call: the request's stream is reset, or its
/// connection closed.
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

/// A request whose body and answer pass piece by piece. Dropping it cancels the call, unless both directions have ended.
///
/// Each `poll_` function wakes whoever called it last.
pub trait HttpStream {
    /// Ready when [`HttpStream::send`] should be given more: less than [`MAX_STREAM_BYTES`] wait to be sent.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CalloutError>>;

    /// Sends a piece of the body. All of it is taken, ready or not. After the end it does nothing.
    fn send(&mut self, data: &[u8]);

    /// Ends the request.
    fn finish(&mut self, trailers: Headers);

    /// Waits for the head of the answer, which comes once.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, CalloutError>>;

    /// Waits for what comes of the answer's body, all of it that is there. `None`: it has ended, maybe with trailers.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, CalloutError>>;

    /// The answer's trailers, once it has ended.
    fn trailers(&mut self) -> Headers;
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{details}")]
pub struct CalloutError {
    /// What went wrong.
    pub problem: Problem,
    /// The status a client would have got from the router for it.
    pub status: u16,
    /// As in `%RESPONSE_CODE_DETAILS%`.
    pub details: Cow<'static, str>,
}

/// What went wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// There is no such cluster.
    UnknownCluster,
    /// The cluster has no host to choose.
    NoHealthyHost,
    /// A circuit breaker of the cluster is open, or the control plane has a share of its requests refused.
    Refused,
    /// The worker has as many calls under way as it may.
    TooManyCalls,
    /// No connection.
    Connect,
    /// The host reset the stream, closed the connection, or broke the protocol, before its answer was complete.
    Reset,
    /// The answer was not complete in time.
    Timeout,
    /// The answer's body is longer than may be collected.
    TooLarge,
    /// The worker ends.
    Stopped,
}

impl CalloutError {
    /// With these details.
    pub fn new(problem: Problem, status: u16, details: impl Into<Cow<'static, str>>) -> Self {
        Self { problem, status, details: details.into() }
    }
}
