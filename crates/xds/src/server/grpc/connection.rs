//! One connection: its socket, the codec, its ADS stream, and other calls. All of it is one task, so a change costs one
//! wake-up and one write per connection, and the answer one read.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf as _;
use evenkeel_base::grpc::CONTENT_TYPE;
use evenkeel_http::h2::{self, Reason, RequestMeta, Reset, Sink, StreamKey};
use evenkeel_http::{Framing, HeaderId, Headers, RequestHead, ResponseHead};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, Sleep};
use tonic::{Extensions, Status as GrpcStatus};

use super::budget::{Budget, BudgetShare};
use super::calls::{BodyOutcome, Calls, OpenedCall};
use super::heads;
use super::lifetime::{ConnectionLifetime, Stage};
use super::messages::Messages;
use super::outgoing::Outgoing;
use super::services::Services;
use super::{Client, Limits, MESSAGE_TIMEOUT, Method, OUTPUT_BYTES};
use crate::server::Response;
use crate::server::service::RESPONSE_QUEUE;
use crate::server::stream::{Carrier, Source};

/// Bytes read at a time.
const READ_BYTES: usize = 16 * 1024;
/// Maximum size of an output buffer kept for the next connection that writes, in bytes.
const SPARE_OUTPUT_BYTES: usize = 4 * OUTPUT_BYTES;
/// How long to wait for a client to read why its connection ends.
const LINGER: Duration = Duration::from_secs(1);

thread_local! {
    /// Output memory shared by all connections of the thread: an idle connection has none.
    static SPARE_OUTPUT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A client's connection.
pub(super) struct Connection<IO, S> {
    io: IO,
    codec: h2::Connection,
    inbox: Inbox,
    /// The beginning of a frame.
    unread: Vec<u8>,
    /// Whether TLS may still hold written data.
    unflushed: bool,
    /// Whether the socket or the protocol has ended.
    closed: bool,
    source: Arc<S>,
    other_services: Services,
    extensions: Extensions,
    limits: Limits,
    start: Instant,
    alive: Pin<Box<Sleep>>,
    /// Whether a PING to the client is unanswered.
    pinged: bool,
    lifetime: Option<ConnectionLifetime>,
    /// The status with which to end the ADS stream, although its client and its source would continue.
    ending: Option<GrpcStatus>,
    /// The timeout of an incomplete message on the ADS stream.
    patience: Option<Pin<Box<Sleep>>>,
}

/// Receives the events of the codec.
#[derive(Debug)]
struct Inbox {
    budget: Arc<Budget>,
    ads: Option<Ads>,
    calls: Calls,
    opened: Vec<OpenedCall>,
    /// Calls that exceeded the memory budget.
    overdrawn: Vec<StreamKey>,
    /// Bytes that nobody reads, by which to open the connection's window.
    unwanted: usize,
    /// Whether something has arrived since the last check.
    heard: bool,
}

/// The ADS stream.
#[derive(Debug)]
struct Ads {
    key: StreamKey,
    method: Method,
    /// Its head, until the source has decided whether to accept it.
    head: Option<Box<RequestHead>>,
    /// Properties of the client, with what the source has noted about this stream.
    extensions: Extensions,
    messages: Messages,
    /// Whether the loop that serves it has begun.
    served: bool,
    /// Whether the client has ended its side.
    ended: bool,
    /// Whether the client is gone.
    gone: bool,
    /// Whether a message was not complete in time.
    late: bool,
    outgoing: Outgoing,
    /// The trailers after the last response.
    trailers: Option<Headers>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send, S: Source> Connection<IO, S> {
    pub(super) fn new(io: IO, source: Arc<S>, other_services: Services, client: Client, limits: Limits) -> Self {
        let Client { extensions, budget, anonymous, expires } = client;
        let lifetime = match expires {
            Some(end) => Some(ConnectionLifetime::of_certificate(end)),
            None => anonymous.then(ConnectionLifetime::anonymous),
        };
        Self {
            io,
            codec: h2::Connection::server(limits.codec(anonymous)),
            inbox: Inbox::new(budget, limits.max_call_bytes, anonymous),
            source,
            unread: Vec::new(),
            unflushed: false,
            closed: false,
            other_services,
            extensions,
            start: Instant::now(),
            alive: Box::pin(tokio::time::sleep(limits.keepalive_interval)),
            limits,
            pinged: false,
            lifetime,
            ending: None,
            patience: None,
        }
    }

    /// An ADS stream that was opened and is not served yet, with the properties of its client.
    pub(super) fn next_stream(&mut self) -> Option<(Method, Extensions)> {
        let ads = self.inbox.ads.as_mut().filter(|ads| !ads.served && ads.head.is_none())?;
        ads.served = true;
        Some((ads.method, std::mem::take(&mut ads.extensions)))
    }

    /// Ends the ADS stream.
    pub(super) fn end_stream(&mut self, result: &Result<(), GrpcStatus>) {
        if let Some(ads) = &mut self.inbox.ads {
            let reason = result.as_ref().err().or(self.ending.as_ref());
            ads.trailers = Some(heads::trailers(reason.unwrap_or(&GrpcStatus::ok(""))));
            self.patience = None;
            self.pump();
        }
    }

    /// Asks the client to reconnect elsewhere; calls in progress may end.
    pub(super) fn shutdown(&mut self) {
        self.codec.shutdown();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// One step: writes, reads and polls calls. Returns when something has happened; dropping the future loses nothing.
    pub(super) async fn turn(&mut self) {
        std::future::poll_fn(|cx| self.poll_turn(cx)).await;
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.closed {
            return Poll::Ready(());
        }
        let result = self.poll_step(cx);
        if let Poll::Ready(Err(_)) = result {
            self.closed = true;
        }
        result.map(drop)
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wrote = self.poll_write(cx)?.is_ready();
        if self.codec.is_finished() && self.codec.output().is_empty() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let read = !self.codec.is_congested() && self.poll_read(cx)?.is_ready();
        let called = self.inbox.calls.poll(cx, &mut self.codec);
        self.take_turns();
        self.poll_alive(cx)?;
        let called = called | self.poll_limits(cx)?;
        if wrote || read || called {
            // The next step writes the results, together with the ADS stream's answers.
            return Poll::Ready(Ok(()));
        }
        if self.codec.output().is_empty() { Poll::Pending } else { self.poll_write(cx) }
    }

    /// Writes output. Ready when some was written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wrote = false;
        while !self.codec.output().is_empty() {
            match Pin::new(&mut self.io).poll_write(cx, self.codec.output()) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(result) => self.codec.written(result?),
            }
            (wrote, self.unflushed) = (true, true);
        }
        if self.unflushed && Pin::new(&mut self.io).poll_flush(cx)?.is_ready() {
            self.unflushed = false;
        }
        if let Some(buffer) = self.codec.take_output_buffer()
            && buffer.capacity() <= SPARE_OUTPUT_BYTES
        {
            SPARE_OUTPUT.set(buffer);
        }
        if wrote { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut memory = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut memory);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.inbox.heard = true;
        self.codec.tick(u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX));
        self.lend_output();
        if self.unread.is_empty() {
            let taken = self.receive(buffer.filled());
            self.unread.extend_from_slice(buffer.filled().get(taken..).unwrap_or_default());
        } else {
            let mut input = std::mem::take(&mut self.unread);
            input.extend_from_slice(buffer.filled());
            let taken = self.receive(&input);
            self.unread.extend_from_slice(input.get(taken..).unwrap_or_default());
        }
        Poll::Ready(Ok(()))
    }

    /// Processes input; returns how many bytes were consumed.
    fn receive(&mut self, input: &[u8]) -> usize {
        let taken = self.codec.receive(input, &mut self.inbox).unwrap_or_else(|error| {
            tracing::debug!(%error, "a gRPC connection failed");
            input.len()
        });
        self.admit();
        if let Some(ads) = &mut self.inbox.ads
            && !ads.served
        {
            // The first answer may take long (see `Source::connect`); some clients wait for the head.
            let mut head = ResponseHead { status: 200, ..ResponseHead::default() };
            head.headers.append_id(HeaderId::ContentType, CONTENT_TYPE.as_bytes());
            _ = self.codec.respond(ads.key, &head, Framing::Chunked, false);
        }
        for opened in std::mem::take(&mut self.inbox.opened) {
            self.inbox.calls.start(&self.other_services, &*self.source, &self.extensions, opened, &mut self.codec);
        }
        for key in std::mem::take(&mut self.inbox.overdrawn) {
            self.codec.reset(key, Reason::ENHANCE_YOUR_CALM);
            self.inbox.calls.forget(key);
        }
        let unwanted = std::mem::take(&mut self.inbox.unwanted) + self.inbox.calls.take_left();
        if unwanted > 0 {
            self.codec.release_connection(unwanted);
        }
        self.release();
        taken
    }

    /// Asks the source whether to accept the new ADS stream; answers it if not.
    fn admit(&mut self) {
        let Some((key, head)) = self.inbox.ads.as_mut().and_then(|ads| Some((ads.key, ads.head.take()?))) else {
            return;
        };
        let admitted = match heads::request(&head, ()) {
            Some(mut request) => {
                *request.extensions_mut() = self.extensions.clone();
                heads::admit(&*self.source, &mut request).map(|()| std::mem::take(request.extensions_mut()))
            }
            None => Err(GrpcStatus::invalid_argument("the head of the call cannot be read")),
        };
        match (admitted, &mut self.inbox.ads) {
            (Ok(extensions), Some(ads)) => ads.extensions = extensions,
            (Ok(_), None) => {}
            (Err(status), _) => {
                _ = self.codec.respond(key, &heads::refusal(&status), Framing::Chunked, true);
                self.codec.reset(key, Reason::NO_ERROR);
                self.forget_ads();
            }
        }
    }

    fn forget_ads(&mut self) {
        if let Some(mut ads) = self.inbox.ads.take() {
            self.codec.release_connection(ads.messages.rest());
        }
    }

    /// Opens the window of the ADS stream as far as allowed.
    fn release(&mut self) {
        let Some(ads) = &mut self.inbox.ads else { return };
        let credit = ads.messages.credit(self.limits.max_request_bytes);
        if credit > 0 {
            self.codec.release_stream(ads.key, credit);
            self.codec.release_connection(credit);
        }
    }

    /// Lets streams send that wait for room.
    fn take_turns(&mut self) {
        while let Some(key) = self.codec.next_writable() {
            self.lend_output();
            match &self.inbox.ads {
                Some(ads) if ads.key == key => self.pump(),
                _ => self.inbox.calls.resume(key, &mut self.codec),
            }
        }
    }

    /// Sends as much of the ADS stream's responses as windows and output allow.
    fn pump(&mut self) {
        let Some(ads) = &mut self.inbox.ads else { return };
        loop {
            while !ads.outgoing.piece.is_empty() {
                match self.codec.send_data(ads.key, &ads.outgoing.piece, false) {
                    Ok(sent) => ads.outgoing.piece.advance(sent),
                    Err(_) => {
                        ads.gone = true;
                        break;
                    }
                }
                if !ads.outgoing.piece.is_empty() {
                    return;
                }
            }
            if ads.gone || !ads.outgoing.next_piece() {
                break;
            }
        }
        if let Some(trailers) = &ads.trailers {
            _ = self.codec.send_trailers(ads.key, trailers);
            // There is no wait for further requests of the client.
            self.codec.reset(ads.key, Reason::NO_ERROR);
            self.forget_ads();
        }
    }

    fn lend_output(&mut self) {
        if self.codec.output().is_empty() {
            self.codec.lend_output_buffer(SPARE_OUTPUT.take());
        }
    }

    /// Sends a PING after a long silence; an error if it was not answered.
    fn poll_alive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.alive.as_mut().poll(cx).is_ready() {
            let heard = std::mem::take(&mut self.inbox.heard);
            if self.pinged && !heard {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.pinged = !heard;
            let pause = if heard {
                self.limits.keepalive_interval
            } else {
                self.codec.ping(*b"evenkeel");
                self.limits.keepalive_timeout
            };
            self.alive.as_mut().reset(Instant::now() + pause);
        }
        Ok(())
    }

    /// Ends calls that have exceeded a time limit; returns true if there were any.
    fn poll_limits(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut ended = self.poll_patience(cx);
        while let Some(Poll::Ready(stage)) = self.lifetime.as_mut().map(|lifetime| lifetime.poll(cx)) {
            ended = true;
            self.ending = Some(match stage {
                Stage::Serving | Stage::Draining => {
                    self.codec.shutdown();
                    GrpcStatus::unavailable("the client's time on this connection ends soon: reconnect")
                }
                Stage::Closed => {
                    self.codec.goaway(Reason::NO_ERROR, b"");
                    self.closed = true;
                    GrpcStatus::unauthenticated(
                        "the client's time on this connection has ended: reconnect with a valid certificate",
                    )
                }
            });
        }
        Ok(ended)
    }

    /// Ends an ADS stream with a message that was not complete in time.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> bool {
        let unfinished = self.inbox.ads.as_ref().is_some_and(|ads| ads.messages.is_unfinished());
        if !unfinished {
            self.patience = None;
            return false;
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(MESSAGE_TIMEOUT)));
        let over = patience.as_mut().poll(cx).is_ready();
        if over && let Some(ads) = &mut self.inbox.ads {
            self.patience = None;
            ads.late = true;
        }
        over
    }

    /// Closes the connection. It first reads what the client still sends; otherwise the client's kernel would drop the
    /// reason that was just written.
    pub(super) async fn close(mut self) {
        let farewell = async {
            let output = self.codec.output().to_vec();
            self.io.write_all(&output).await?;
            self.io.shutdown().await?;
            let mut sink = [0; 1024];
            while self.io.read(&mut sink).await? > 0 {}
            io::Result::Ok(())
        };
        _ = tokio::time::timeout(LINGER, farewell).await;
    }
}

impl Ads {
    fn new(key: StreamKey, method: Method, head: &mut RequestHead, ended: bool, budget: &Arc<Budget>) -> Self {
        Self {
            key,
            method,
            extensions: Extensions::default(),
            head: Some(Box::new(std::mem::take(head))),
            messages: Messages::new(BudgetShare::of(budget.clone())),
            late: false,
            served: false,
            ended,
            gone: false,
            outgoing: Outgoing::default(),
            trailers: None,
        }
    }
}

impl Inbox {
    fn new(budget: Arc<Budget>, max_call_bytes: usize, anonymous: bool) -> Self {
        let calls = Calls::new(budget.clone(), max_call_bytes, anonymous);
        Self { budget, ads: None, calls, opened: Vec::new(), overdrawn: Vec::new(), unwanted: 0, heard: false }
    }
}

impl Sink for Inbox {
    fn request(&mut self, key: StreamKey, head: &mut RequestHead, meta: RequestMeta) {
        match Method::of(head.path()) {
            // A second ADS stream on the connection goes to the other services.
            Some(method) if self.ads.is_none() => {
                self.ads = Some(Ads::new(key, method, head, meta.end, &self.budget));
            }
            _ => self.opened.push(OpenedCall::new(key, head, meta, &mut self.calls)),
        }
    }

    fn data(&mut self, key: StreamKey, data: &[u8], end: bool) {
        match &mut self.ads {
            Some(ads) if ads.key == key => {
                ads.messages.add(data);
                ads.ended |= end;
            }
            _ => match self.calls.data(key, data, end) {
                BodyOutcome::Yes => {}
                BodyOutcome::Unknown => self.unwanted += data.len(),
                BodyOutcome::NoMemory => self.overdrawn.push(key),
            },
        }
    }

    fn trailers(&mut self, key: StreamKey, _: &mut Headers) {
        self.data(key, b"", true);
    }

    fn reset(&mut self, key: StreamKey, _: Reset) {
        match &mut self.ads {
            Some(ads) if ads.key == key => ads.gone = true,
            _ => self.calls.forget(key),
        }
    }
}

impl<R, IO, S> Carrier<R> for Connection<IO, S>
where
    R: Message + Default,
    IO: AsyncRead + AsyncWrite + Unpin + Send,
    S: Source,
{
    async fn next(&mut self) -> Result<Option<R>, GrpcStatus> {
        loop {
            if let Some(reason) = &self.ending {
                return Err(reason.clone());
            }
            if let Some(request) = Carrier::<R>::next_now(self) {
                return request.map(Some);
            }
            if self.inbox.ads.as_ref().is_some_and(|ads| ads.late) {
                return Err(GrpcStatus::deadline_exceeded("a message was not complete within 60 s"));
            }
            if self.closed || self.inbox.ads.as_ref().is_none_or(|ads| ads.ended || ads.gone) {
                return Ok(None);
            }
            self.turn().await;
        }
    }

    fn next_now(&mut self) -> Option<Result<R, GrpcStatus>> {
        let max_bytes = self.limits.max_request_bytes;
        let request = self.inbox.ads.as_mut()?.messages.take(max_bytes)?;
        self.patience = None;
        self.release();
        Some(request)
    }

    async fn send(&mut self, response: Response) -> bool {
        self.lend_output();
        if let Some(ads) = &mut self.inbox.ads {
            ads.outgoing.responses.push_back(response);
        }
        self.pump();
        loop {
            match &self.inbox.ads {
                Some(ads) if !ads.gone && !self.closed && self.ending.is_none() => {
                    if ads.outgoing.responses.len() < RESPONSE_QUEUE {
                        return true;
                    }
                }
                _ => return false,
            }
            self.turn().await;
        }
    }

    async fn gone(&mut self) {
        while !self.closed && self.ending.is_none() && self.inbox.ads.as_ref().is_some_and(|ads| !ads.gone) {
            self.turn().await;
        }
    }
}
