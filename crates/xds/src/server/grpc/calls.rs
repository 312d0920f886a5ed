//! The calls on a connection other than its ADS stream, for services that use the crate `http`. They are few and short,
//! so the connection's own task polls them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use evenkeel_http::h2::{self, Reason, RequestMeta, StreamKey};
use evenkeel_http::{Framing, RequestHead};
use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable, BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use http_body::{Body as _, Frame};
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::{Extensions, Status as GrpcStatus};

use super::budget::{Budget, BudgetShare};
use super::heads;
use super::services::Services;
use crate::server::stream::Source;

/// The calls in progress.
#[derive(Debug)]
pub(super) struct Calls {
    open: HashMap<StreamKey, Call>,
    /// Wakes the connection when a service has consumed data, in any task, so that the client's windows can be opened.
    took: Arc<AtomicWaker>,
    budget: Arc<Budget>,
    /// Maximum size of a request message, in bytes.
    max_bytes: usize,
    /// Whether data held by calls is also withheld from the connection's window.
    withheld: bool,
    /// Bytes by which to open the connection's window.
    left: usize,
    steps: FuturesUnordered<Abortable<BoxFuture<'static, Step>>>,
}

#[derive(Debug)]
struct Call {
    /// The sender of the request's body; `None` after its end.
    input: Option<mpsc::UnboundedSender<Bytes>>,
    /// Bytes of it that arrived and for which the stream's window was not opened yet. The connection's window is opened
    /// at once (see [`Calls::new`]); otherwise calls that nobody reads would block the ADS stream.
    owed: usize,
    /// Those that the service has consumed.
    taken: Arc<AtomicUsize>,
    /// A piece of the response that was sent only in part, and the rest of the body.
    waiting: Option<(Bytes, Body)>,
    abort: AbortHandle,
    /// Memory taken for the buffered request.
    share: BudgetShare,
    received: usize,
}

/// The next step of a call.
enum Step {
    Response(StreamKey, http::Response<Body>),
    Frame(StreamKey, Body, Option<Result<Frame<Bytes>, GrpcStatus>>),
}

impl Calls {
    /// No calls. Data that services buffer, at most `max_bytes` per request, and data that waits for them is taken from
    /// `budget`. With `withheld` all calls together hold at most the connection's window; otherwise each call holds at
    /// most the stream's window.
    pub(super) fn new(budget: Arc<Budget>, max_bytes: usize, withheld: bool) -> Self {
        let (open, took, steps) = Default::default();
        Self { open, took, budget, max_bytes, withheld, left: 0, steps }
    }

    /// Bytes by which to open the connection's window.
    pub(super) fn take_left(&mut self) -> usize {
        std::mem::take(&mut self.left)
    }

    /// Registers a call before its head is processed, so that its body can be assigned.
    pub(super) fn announce(&mut self, key: StreamKey, end: bool) -> PendingCall {
        let (input, receiver) = mpsc::unbounded_channel();
        let (abort, registration) = AbortHandle::new_pair();
        let taken = Arc::new(AtomicUsize::new(0));
        let body = Incoming { frames: receiver, taken: taken.clone(), took: self.took.clone() };
        let (input, share) = ((!end).then_some(input), BudgetShare::of(self.budget.clone()));
        self.open.insert(key, Call { input, owed: 0, taken, waiting: None, abort, share, received: 0 });
        PendingCall { body, registration }
    }

    /// Takes a piece of a request's body.
    pub(super) fn data(&mut self, key: StreamKey, data: &[u8], end: bool) -> BodyOutcome {
        let Some(call) = self.open.get_mut(&key) else { return BodyOutcome::Unknown };
        call.owed += data.len();
        call.received = call.received.saturating_add(data.len());
        if !self.withheld {
            self.left += data.len();
        }
        if !call.share.set(call.received.min(self.max_bytes).max(call.owed)) {
            return BodyOutcome::NoMemory;
        }
        // Data that nobody reads any more is released below as if it had been consumed.
        let sent = call.input.as_ref().is_some_and(|input| input.send(Bytes::copy_from_slice(data)).is_ok());
        if !sent {
            call.taken.fetch_add(data.len(), Ordering::Relaxed);
        }
        if end {
            call.input = None;
        }
        BodyOutcome::Yes
    }

    /// The client has ended the call or is gone.
    pub(super) fn forget(&mut self, key: StreamKey) {
        if let Some(call) = self.open.remove(&key) {
            call.abort.abort();
            self.left += if self.withheld { call.owed } else { 0 };
        }
    }

    /// Calls the service that the request's path names.
    pub(super) fn start(
        &mut self,
        services: &Services,
        source: &impl Source,
        extensions: &Extensions,
        opened: OpenedCall,
        codec: &mut h2::Connection,
    ) {
        let OpenedCall { key, head, announced: PendingCall { body, registration }, .. } = opened;
        let Some(mut request) = heads::request(&head, Body::new(body)) else {
            codec.reset(key, Reason::PROTOCOL_ERROR);
            return self.forget(key);
        };
        *request.extensions_mut() = extensions.clone();
        if let Err(status) = heads::admit(source, &mut request) {
            _ = codec.respond(key, &heads::refusal(&status), Framing::Chunked, true);
            return self.end(key, codec);
        }
        let answer = services.handle(request).map(move |response| Step::Response(key, response));
        self.steps.push(Abortable::new(answer.boxed(), registration));
    }

    /// Polls the calls; true if any made progress.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, codec: &mut h2::Connection) -> bool {
        let mut went_on = false;
        if self.open.is_empty() && self.steps.is_empty() && self.left == 0 {
            return went_on;
        }
        self.took.register(cx.waker());
        while let Poll::Ready(Some(step)) = self.steps.poll_next_unpin(cx) {
            went_on = true;
            match step {
                Ok(Step::Response(key, response)) => self.respond(key, response, codec),
                Ok(Step::Frame(key, body, frame)) => self.forward(key, body, frame, codec),
                Err(_aborted) => {}
            }
        }
        let mut released = self.take_left();
        for (key, call) in &mut self.open {
            let taken = call.taken.swap(0, Ordering::Relaxed);
            if taken > 0 {
                call.owed = call.owed.saturating_sub(taken);
                // The share shrinks, which always succeeds.
                _ = call.share.set(call.received.min(self.max_bytes).max(call.owed));
                codec.release_stream(*key, taken);
                released += if self.withheld { taken } else { 0 };
            }
        }
        if released > 0 {
            codec.release_connection(released);
        }
        went_on
    }

    /// Lets a call send, whose turn it is.
    pub(super) fn resume(&mut self, key: StreamKey, codec: &mut h2::Connection) {
        if let Some((piece, body)) = self.open.get_mut(&key).and_then(|call| call.waiting.take()) {
            self.send(key, piece, body, codec);
        }
    }

    fn respond(&mut self, key: StreamKey, response: http::Response<Body>, codec: &mut h2::Connection) {
        let (parts, body) = response.into_parts();
        let end = body.is_end_stream();
        if codec.respond(key, &heads::response(&parts), Framing::Chunked, end).is_err() || end {
            return self.end(key, codec);
        }
        self.next_frame(key, body);
    }

    fn forward(
        &mut self,
        key: StreamKey,
        body: Body,
        frame: Option<Result<Frame<Bytes>, GrpcStatus>>,
        codec: &mut h2::Connection,
    ) {
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(status)) => {
                tracing::debug!(%status, "a call failed");
                codec.reset(key, Reason::INTERNAL_ERROR);
                return self.forget(key);
            }
            None => {
                _ = codec.send_data(key, b"", true);
                return self.end(key, codec);
            }
        };
        match frame.into_data() {
            Ok(piece) => self.send(key, piece, body, codec),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                _ = codec.send_trailers(key, &heads::headers(&trailers));
                self.end(key, codec);
            }
        }
    }

    fn send(&mut self, key: StreamKey, mut piece: Bytes, body: Body, codec: &mut h2::Connection) {
        let Ok(sent) = codec.send_data(key, &piece, false) else { return self.forget(key) };
        piece.advance(sent);
        match self.open.get_mut(&key) {
            Some(call) if !piece.is_empty() => call.waiting = Some((piece, body)),
            _ => self.next_frame(key, body),
        }
    }

    fn next_frame(&mut self, key: StreamKey, mut body: Body) {
        let Some(call) = self.open.get_mut(&key) else { return };
        let (abort, registration) = AbortHandle::new_pair();
        call.abort = abort;
        let next = async move {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
            Step::Frame(key, body, frame)
        };
        self.steps.push(Abortable::new(next.boxed(), registration));
    }

    /// Ends a call whose response was sent, without waiting for the rest of the request.
    fn end(&mut self, key: StreamKey, codec: &mut h2::Connection) {
        codec.reset(key, Reason::NO_ERROR);
        self.forget(key);
    }
}

/// The outcome for a piece of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyOutcome {
    /// The call has taken the data.
    Yes,
    /// There is no such call.
    Unknown,
    /// The call must end.
    NoMemory,
}

/// A call whose head has arrived.
#[derive(Debug)]
pub(super) struct OpenedCall {
    pub(super) key: StreamKey,
    pub(super) head: RequestHead,
    pub(super) announced: PendingCall,
}

impl OpenedCall {
    pub(super) fn new(key: StreamKey, head: &mut RequestHead, meta: RequestMeta, calls: &mut Calls) -> Self {
        Self { key, head: std::mem::take(head), announced: calls.announce(key, meta.end) }
    }
}

/// A registered call before it is started.
#[derive(Debug)]
pub(super) struct PendingCall {
    body: Incoming,
    registration: futures_util::future::AbortRegistration,
}

/// A request's body. The client's window limits its size.
#[derive(Debug)]
struct Incoming {
    frames: mpsc::UnboundedReceiver<Bytes>,
    taken: Arc<AtomicUsize>,
    took: Arc<AtomicWaker>,
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = GrpcStatus;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, GrpcStatus>>> {
        self.frames.poll_recv(cx).map(|data| {
            let data = data?;
            self.taken.fetch_add(data.len(), Ordering::Relaxed);
            self.took.wake();
            Some(Ok(Frame::data(data)))
        })
    }
}
