//! Bytes between the two sides of one request: both directions at once, each only as fast as its reader.

use std::io;
use std::task::{Context, Poll};

use evenkeel_http::{BodyDecoder, BodyError, Framing, HeadScan, Limits, ResponseInfo, encode, parse_response};
use evenkeel_runtime_config::HttpConnectionManager;
use tokio::time::Instant;

use super::connection::{Connection, poll_send};
use super::failure::Failure;
use super::request::Request;
use crate::conn::Buffer;
use crate::conn::buffer::BLOCK_BYTES;
use crate::conn::deadline::{after, earlier};
use crate::upstream::Connection as Upstream;

/// Largest request that can be sent again, in bytes of its framed body.
const MAX_REPLAY_BYTES: usize = 64 * 1024;
/// Limit of a response head; Envoy's default for upstreams.
const RESPONSE_LIMITS: Limits = Limits { max_head_bytes: 60 * 1024, max_headers: 100 };
/// Interim responses (1xx) an upstream may send before its answer.
const MAX_INTERIM: u32 = 8;

/// The request on its way up.
pub(super) struct Upload {
    decoder: BodyDecoder,
    framing: Framing,
    /// Framed bytes not yet taken by the socket.
    pending: Vec<u8>,
    /// All framed body bytes so far, while the request could be sent again.
    replay: Option<Vec<u8>>,
    /// The upstream takes no more; its answer may still come.
    refused: bool,
    /// The last byte was handed to the socket.
    pub(super) finished: bool,
    /// A byte was handed to the socket in this try.
    pub(super) begun: bool,
}

impl Upload {
    pub(super) fn new(framing: Framing, keep_for_replay: bool) -> Self {
        let replay = (keep_for_replay || framing.is_empty()).then(Vec::new);
        Self {
            decoder: BodyDecoder::new(framing),
            framing,
            pending: Vec::new(),
            replay,
            refused: false,
            finished: false,
            begun: false,
        }
    }

    /// Begins a try: the head, and what of the body earlier tries sent already. False when that is no longer known.
    pub(super) fn begin(&mut self, head: &[u8]) -> bool {
        let Some(replay) = self.replay.as_deref().or((!self.begun).then_some(&[][..])) else { return false };
        self.pending.clear();
        self.pending.extend_from_slice(head);
        self.pending.extend_from_slice(replay);
        (self.refused, self.finished) = (false, false);
        true
    }

    /// All body bytes that were received can be sent again.
    pub(super) fn can_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// The whole body was received from the client.
    pub(super) fn received_all(&self) -> bool {
        self.decoder.is_done()
    }

    /// Takes body bytes out of `input` and frames them anew.
    fn take(&mut self, input: &mut Buffer, request: &mut Request) -> Result<(), BodyError> {
        while !input.is_empty() && !self.decoder.is_done() {
            let decoded = self.decoder.decode(input.bytes())?;
            let start = self.pending.len();
            let data = &input.bytes()[decoded.data.clone()];
            match self.framing {
                Framing::Chunked => encode::chunk(&mut self.pending, data),
                _ => self.pending.extend_from_slice(data),
            }
            request.bytes_received += data.len() as u64;
            if decoded.done && self.framing == Framing::Chunked {
                encode::last_chunk(&mut self.pending);
            }
            input.consume(decoded.consumed);
            if let Some(replay) = &mut self.replay {
                replay.extend_from_slice(&self.pending[start..]);
                if replay.len() > MAX_REPLAY_BYTES {
                    self.replay = None;
                }
            }
        }
        if self.decoder.is_done() && request.received_all.is_none() {
            request.received_all = Some(Instant::now());
        }
        Ok(())
    }
}

/// When an exchange has taken too long.
#[derive(Default)]
pub(super) struct Timers {
    /// The route's timeout, from the end of the request.
    pub(super) route: Option<Instant>,
    /// The limit of this try.
    pub(super) per_try: Option<Instant>,
    /// No activity until then.
    pub(super) idle: Option<Instant>,
    /// The request must have arrived by then.
    pub(super) request: Option<Instant>,
    idle_limit: Option<std::time::Duration>,
}

impl Timers {
    pub(super) fn new(idle_limit: Option<std::time::Duration>, request: Option<Instant>) -> Self {
        Self { idle_limit, request, ..Self::default() }
    }

    fn active(&mut self) {
        if self.idle_limit.is_some() {
            self.idle = after(Instant::now(), self.idle_limit);
        }
    }

    fn next(&self) -> Option<Instant> {
        earlier(earlier(self.route, self.per_try), earlier(self.idle, self.request))
    }

    /// Which of them has passed.
    fn passed(&self) -> Failure {
        let now = Instant::now();
        let past = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if past(self.route) {
            Failure::ResponseTimeout
        } else if past(self.per_try) {
            Failure::PerTryTimeout
        } else if past(self.request) {
            Failure::RequestTimeout
        } else {
            Failure::Idle
        }
    }
}

/// One try: the request going up, the answer coming down.
pub(super) struct Exchange<'e, 'w> {
    pub(super) connection: &'e mut Connection<'w>,
    pub(super) request: &'e mut Request,
    pub(super) upload: &'e mut Upload,
    pub(super) upstream: &'e mut Upstream,
    /// Read from the upstream and not yet used.
    pub(super) answer: &'e mut Buffer,
    pub(super) timers: &'e mut Timers,
    pub(super) route_timeout: Option<std::time::Duration>,
}

impl Exchange<'_, '_> {
    /// Sends the request and waits for the response head, whichever comes first; the rest of the request goes on later.
    pub(super) fn poll_head(
        &mut self,
        hcm: &HttpConnectionManager,
        scan: &mut HeadScan,
        interim: &mut u32,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseInfo, Failure>> {
        loop {
            if let Poll::Ready(Err(failure)) = self.poll_upload(cx) {
                return Poll::Ready(Err(failure));
            }
            if !self.connection.output.is_empty() && self.connection.poll_output(cx).is_ready_err() {
                return Poll::Ready(Err(Failure::ClientGone));
            }
            if !self.answer.is_empty() {
                let to_head = self.request.head.method() == b"HEAD";
                let response = &mut self.request.response;
                match parse_response(self.answer.bytes(), scan, RESPONSE_LIMITS, to_head, response) {
                    Ok(Some(info)) if (100..200).contains(&response.status) && response.status != 101 => {
                        self.answer.consume(info.head_bytes);
                        *interim += 1;
                        if *interim > MAX_INTERIM {
                            return Poll::Ready(Err(Failure::UpstreamProtocol));
                        }
                        self.pass_interim(hcm);
                        continue;
                    }
                    Ok(Some(info)) => {
                        self.answer.consume(info.head_bytes);
                        self.request.answered = Some(Instant::now());
                        return Poll::Ready(Ok(info));
                    }
                    Ok(None) => {}
                    Err(_) => return Poll::Ready(Err(Failure::UpstreamProtocol)),
                }
            }
            let limit = RESPONSE_LIMITS.max_head_bytes + 1;
            match self.answer.poll_fill(&mut self.upstream.stream, limit, cx) {
                Poll::Ready(Ok(0) | Err(_)) if self.answer.is_empty() => {
                    return Poll::Ready(Err(Failure::UpstreamClosed { sent: self.upload.begun }));
                }
                // Something came, but no whole head.
                Poll::Ready(Ok(0) | Err(_)) => {
                    return Poll::Ready(Err(Failure::UpstreamClosed { sent: true }));
                }
                Poll::Ready(Ok(_)) => self.timers.active(),
                Poll::Pending => return self.poll_time(cx),
            }
        }
    }

    /// Sends the response body, and what is left of the request. Ready when the response is complete and sent.
    pub(super) fn poll_body(&mut self, body: &mut Download, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            if let Poll::Ready(Err(failure)) = self.poll_upload(cx) {
                return Poll::Ready(Err(failure));
            }
            body.take(self.answer, self.request, &mut self.connection.output).map_err(|_| Failure::UpstreamProtocol)?;
            if !self.connection.output.is_empty() {
                match self.connection.poll_output(cx) {
                    Poll::Ready(Ok(())) => self.timers.active(),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failure::ClientGone)),
                    Poll::Pending => return self.poll_time(cx),
                }
            }
            if body.done {
                return Poll::Ready(Ok(()));
            }
            match self.answer.poll_fill(&mut self.upstream.stream, BLOCK_BYTES, cx) {
                Poll::Ready(Ok(0)) => {
                    body.end(&mut self.connection.output).map_err(|_| Failure::UpstreamClosed { sent: true })?;
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Failure::UpstreamClosed { sent: true })),
                Poll::Ready(Ok(_)) => self.timers.active(),
                Poll::Pending => return self.poll_time(cx),
            }
        }
    }

    /// Moves the request on; once all of it is sent, watches for a client that goes away.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            if self.upload.refused {
                return Poll::Pending;
            }
            if self.upload.finished {
                return self.poll_client_gone(cx);
            }
            self.upload.take(&mut self.connection.input, self.request).map_err(|_| Failure::RequestBody)?;
            if !self.upload.pending.is_empty() {
                self.upload.begun = true;
                match poll_send(&mut self.upstream.stream, &mut self.upload.pending, cx) {
                    Poll::Ready(Ok(())) => self.timers.active(),
                    Poll::Ready(Err(_)) => {
                        self.upload.refused = true;
                        return Poll::Pending;
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            if self.upload.received_all() {
                self.upload.finished = true;
                self.timers.request = None;
                self.timers.route = self.timers.route.or(after(Instant::now(), self.route_timeout));
                continue;
            }
            match self.connection.input.poll_fill(&mut self.connection.stream, BLOCK_BYTES, cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Failure::ClientGone)),
                Poll::Ready(Ok(_)) => self.timers.active(),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads ahead, within a block: the next request, or the end.
    fn poll_client_gone(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        while self.connection.input.len() < BLOCK_BYTES {
            match self.connection.input.poll_fill(&mut self.connection.stream, BLOCK_BYTES, cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Failure::ClientGone)),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    fn poll_time<T>(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Failure>> {
        let until = self.timers.next();
        self.connection.deadline.poll(until, cx).map(|()| Err(self.timers.passed()))
    }

    /// 100 was answered already, unless the proxy leaves that to the upstream; other interim responses are passed on.
    fn pass_interim(&mut self, hcm: &HttpConnectionManager) {
        let wanted = self.request.response.status != 100 || hcm.proxy_100_continue;
        if wanted && self.request.head.version == evenkeel_http::Version::Http11 {
            let style = encode::ResponseStyle {
                version: evenkeel_http::Version::Http11,
                framing: Framing::None,
                bodiless: true,
                connection: encode::Connection::Default,
                proper_case: false,
            };
            encode::response(&mut self.connection.output, &self.request.response, style);
        }
    }
}

trait ReadyErr {
    fn is_ready_err(&self) -> bool;
}

impl ReadyErr for Poll<io::Result<()>> {
    fn is_ready_err(&self) -> bool {
        matches!(self, Poll::Ready(Err(_)))
    }
}

/// The response body on its way down.
pub(super) struct Download {
    decoder: BodyDecoder,
    framing: Framing,
    pub(super) done: bool,
}

impl Download {
    /// `from`: as the upstream framed it; `to`: as the client gets it.
    pub(super) fn new(from: Framing, to: Framing) -> Self {
        let decoder = BodyDecoder::new(from);
        Self { decoder, framing: to, done: decoder.is_done() }
    }

    fn take(&mut self, answer: &mut Buffer, request: &mut Request, output: &mut Vec<u8>) -> Result<(), BodyError> {
        while !answer.is_empty() && !self.done {
            let decoded = self.decoder.decode(answer.bytes())?;
            let data = &answer.bytes()[decoded.data.clone()];
            match self.framing {
                Framing::Chunked => encode::chunk(output, data),
                _ => output.extend_from_slice(data),
            }
            request.bytes_sent += data.len() as u64;
            self.done = decoded.done;
            if self.done && self.framing == Framing::Chunked {
                encode::last_chunk(output);
            }
            answer.consume(decoded.consumed);
        }
        Ok(())
    }

    fn end(&mut self, output: &mut Vec<u8>) -> Result<(), BodyError> {
        self.decoder.end()?;
        self.done = true;
        if self.framing == Framing::Chunked {
            encode::last_chunk(output);
        }
        Ok(())
    }
}
