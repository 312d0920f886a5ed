//! gRPC calls over [`Callouts`]: unary calls ([`call`]) and streams ([`GrpcStream`]).

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use evenkeel_base::grpc::{
    CONTENT_TYPE, FrameError, Messages, format_timeout, frame, is_grpc, parse_status, percent_decoded, status,
    status_of_http,
};
use evenkeel_http::{HeaderId, Headers, RequestHead, ResponseHead};

use super::{CallOptions, CalloutError, Callouts, HttpAnswer, HttpCall, HttpStream};

/// A method of a service, and how to call it.
#[derive(Debug, Clone, Default)]
pub struct GrpcMethod {
    /// The cluster to call.
    pub cluster: Arc<str>,
    /// `/package.Service/Method`.
    pub path: Arc<str>,
    /// `:authority`; empty: the cluster's name.
    pub authority: Arc<str>,
    /// Metadata: further headers.
    pub metadata: Headers,
    /// Further options. `timeout` is also sent to the server (`grpc-timeout`); `max_answer_bytes` limits a message's size.
    pub options: CallOptions,
}

/// The response to a unary call that succeeded.
#[derive(Debug, Clone, Default)]
pub struct GrpcAnswer {
    /// The message.
    pub message: Vec<u8>,
    /// Headers (initial metadata).
    pub headers: Headers,
    /// Trailers (trailing metadata).
    pub trailers: Headers,
}

/// How a failed call ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("gRPC status {status}: {message}")]
pub struct GrpcFailure {
    /// The status, which is never 0.
    pub status: u8,
    /// The server's message, or the proxy's.
    pub message: String,
    /// The reason if there was no response.
    pub cause: Option<CalloutError>,
}

impl GrpcFailure {
    fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), cause: None }
    }

    /// The failure in trailers, or in the head of a trailers-only response. `None`: success.
    fn of_trailers(trailers: &Headers) -> Option<Self> {
        let message = trailers.find(b"grpc-message").map(percent_decoded).unwrap_or_default();
        match trailers.get(HeaderId::GrpcStatus).map(parse_status) {
            Some(Some(status::OK)) => None,
            Some(Some(status)) => Some(Self::new(status, message)),
            Some(None) => Some(Self::new(status::UNKNOWN, message)),
            None => Some(Self::new(status::UNKNOWN, "the call has ended without a status")),
        }
    }

    /// The failure in the head of a response whose gRPC status would come with the trailers.
    fn of_head(head: &ResponseHead) -> Option<Self> {
        if head.status != 200 {
            let message = head.headers.find(b"grpc-message").map(percent_decoded).unwrap_or_default();
            // The service's own status takes precedence, if it sent one.
            let own = head.headers.get(HeaderId::GrpcStatus).and_then(parse_status).filter(|own| *own != status::OK);
            return Some(Self::new(own.unwrap_or(status_of_http(head.status)), message));
        }
        let of_grpc = head.headers.get(HeaderId::ContentType).is_some_and(is_grpc);
        (!of_grpc).then(|| Self::new(status::UNKNOWN, "the answer is not gRPC's by its content type"))
    }
}

impl From<CalloutError> for GrpcFailure {
    fn from(error: CalloutError) -> Self {
        Self { status: status_of_http(error.status), message: error.details.to_string(), cause: Some(error) }
    }
}

impl From<FrameError> for GrpcFailure {
    fn from(error: FrameError) -> Self {
        Self::new(status::INTERNAL, error.to_string())
    }
}

/// Makes a unary call. The call starts immediately; dropping the future cancels it.
pub fn call(
    callouts: &dyn Callouts,
    method: &GrpcMethod,
    message: &[u8],
) -> impl Future<Output = Result<GrpcAnswer, GrpcFailure>> + 'static {
    let mut body = Vec::new();
    frame(message, &mut body);
    let mut options = method.options.clone();
    let max_message_bytes = options.max_answer_bytes;
    // Room for the message's prefix.
    options.max_answer_bytes = max_message_bytes.saturating_add(5);
    let call = HttpCall { cluster: Arc::clone(&method.cluster), head: head(method), body, options };
    let callout = callouts.http(call);
    async move { unary(callout.await?, max_message_bytes) }
}

fn unary(answer: HttpAnswer, max_message_bytes: usize) -> Result<GrpcAnswer, GrpcFailure> {
    let HttpAnswer { head, body, trailers } = answer;
    if let Some(failure) = GrpcFailure::of_head(&head) {
        return Err(failure);
    }
    // A head with a status is the complete response ("Trailers-Only").
    let last = if trailers.is_empty() { &head.headers } else { &trailers };
    if let Some(failure) = GrpcFailure::of_trailers(last) {
        return Err(failure);
    }
    let mut messages = Messages::new(max_message_bytes);
    messages.push(&body);
    let Some(message) = messages.next()? else {
        return Err(GrpcFailure::new(status::INTERNAL, "the call has succeeded without a message"));
    };
    if !messages.is_empty() {
        return Err(GrpcFailure::new(status::INTERNAL, "more than one message answers a unary call"));
    }
    Ok(GrpcAnswer { message, headers: head.headers, trailers })
}

fn head(method: &GrpcMethod) -> RequestHead {
    let mut head = RequestHead::default();
    head.set_method(b"POST");
    head.set_path(method.path.as_bytes());
    head.set_authority(method.authority.as_bytes());
    let headers = &mut head.headers;
    headers.append_id(HeaderId::Te, b"trailers");
    if let Some(timeout) = method.options.timeout {
        headers.append(b"grpc-timeout", format_timeout(timeout).as_bytes());
    }
    headers.append_id(HeaderId::ContentType, CONTENT_TYPE.as_bytes());
    method.metadata.iter().for_each(|(_, name, value)| headers.append(name, value));
    head
}

/// A call with any number of messages in both directions. Dropping it cancels the call.
pub struct GrpcStream {
    stream: Box<dyn HttpStream>,
    messages: Messages,
    /// The response's headers, once received.
    headers: Option<Headers>,
    trailers: Headers,
    /// Set when nothing more will be received.
    ended: Option<Result<(), GrpcFailure>>,
}

impl fmt::Debug for GrpcStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcStream").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl GrpcStream {
    /// Starts a call.
    pub fn open(callouts: &dyn Callouts, method: &GrpcMethod) -> Self {
        let options = method.options.clone();
        let messages = Messages::new(options.max_answer_bytes);
        let stream = callouts.stream(&method.cluster, head(method), options);
        Self { stream, messages, headers: None, trailers: Headers::default(), ended: None }
    }

    /// Sends a message, after most of the earlier ones have been sent.
    ///
    /// # Errors
    /// The call has ended; [`GrpcStream::receive`] returns how.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), GrpcFailure> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.push(message);
        Ok(())
    }

    /// Ready when most of the earlier messages have been sent.
    ///
    /// # Errors
    /// The call has ended; [`GrpcStream::receive`] returns how.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), GrpcFailure>> {
        self.stream.poll_ready(cx).map_err(GrpcFailure::from)
    }

    /// Sends a message, ready or not, and returns how many bytes it is with its prefix.
    pub fn push(&mut self, message: &[u8]) -> usize {
        let mut framed = Vec::with_capacity(message.len() + 5);
        frame(message, &mut framed);
        self.stream.send(&framed);
        framed.len()
    }

    /// Returns the number of bytes that have not been sent, including those that will not be because the call has ended.
    pub fn waiting(&self) -> usize {
        self.stream.waiting()
    }

    /// Ends the sending direction; the server may continue.
    pub fn half_close(&mut self) {
        self.stream.finish(Headers::default());
    }

    /// The next message; `None` when the call has ended successfully.
    ///
    /// # Errors
    /// How the call ended, on every further call.
    pub async fn receive(&mut self) -> Result<Option<Vec<u8>>, GrpcFailure> {
        poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// As [`GrpcStream::receive`].
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, GrpcFailure>> {
        loop {
            if let Some(end) = &self.ended {
                return Poll::Ready(end.clone().map(|()| None));
            }
            match ready!(self.poll_message(cx)) {
                Ok(Some(message)) => return Poll::Ready(Ok(Some(message))),
                Ok(None) => self.ended = Some(Ok(())),
                Err(failure) => self.ended = Some(Err(failure)),
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, GrpcFailure>> {
        if self.headers.is_none() {
            let head = ready!(self.stream.poll_head(cx))?;
            if let Some(failure) = GrpcFailure::of_head(&head) {
                return Poll::Ready(Err(failure));
            }
            self.headers = Some(head.headers);
        }
        loop {
            if let Some(message) = self.messages.next()? {
                return Poll::Ready(Ok(Some(message)));
            }
            match ready!(self.stream.poll_data(cx))? {
                Some(data) => self.messages.push(&data),
                None => return Poll::Ready(self.end()),
            }
        }
    }

    fn end(&mut self) -> Result<Option<Vec<u8>>, GrpcFailure> {
        self.trailers = self.stream.trailers();
        let own = self.headers.as_ref().filter(|_| self.trailers.is_empty());
        match GrpcFailure::of_trailers(own.unwrap_or(&self.trailers)) {
            Some(failure) => Err(failure),
            None if !self.messages.is_empty() => {
                Err(GrpcFailure::new(status::INTERNAL, "the last message is cut short"))
            }
            None => Ok(None),
        }
    }

    /// The response's headers, once a message was received or the call has ended.
    pub fn headers(&self) -> Option<&Headers> {
        self.headers.as_ref()
    }

    /// The response's trailers, once the call has ended.
    pub fn trailers(&self) -> &Headers {
        &self.trailers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        fields.iter().for_each(|(name, value)| headers.append(name.as_bytes(), value.as_bytes()));
        headers
    }

    const GRPC: (&str, &str) = ("content-type", "application/grpc");

    /// The message of a unary call, or its status and message text.
    fn ended(
        http: u16,
        head: &[(&str, &str)],
        body: &[u8],
        trailers: &[(&str, &str)],
    ) -> Result<Vec<u8>, (u8, String)> {
        let head = ResponseHead { status: http, headers: headers(head), ..ResponseHead::default() };
        let answer = HttpAnswer { head, body: body.to_vec(), trailers: headers(trailers) };
        unary(answer, 3).map(|answer| answer.message).map_err(|failure| (failure.status, failure.message))
    }

    #[test]
    fn unary_calls_end() {
        const ONE: &[u8] = &[0, 0, 0, 0, 1, 7];
        let failed = |status, message: &str| Err((status, message.to_owned()));
        let ok = &[("grpc-status", "0")][..];
        for (http, head, body, trailers, expected) in [
            (200, &[GRPC][..], ONE, ok, Ok(vec![7])),
            (200, &[("content-type", "application/grpc+proto")], ONE, ok, Ok(vec![7])),
            (200, &[GRPC], &[0; 5], ok, Ok(vec![])),
            (200, &[GRPC], ONE, &[("grpc-status", "7"), ("grpc-message", "not%20you")], failed(7, "not you")),
            // Trailers-Only.
            (200, &[GRPC, ("grpc-status", "5"), ("grpc-message", "gone")], b"", &[], failed(5, "gone")),
            (503, &[GRPC, ("grpc-status", "5"), ("grpc-message", "gone")], b"", &[], failed(5, "gone")),
            (200, &[GRPC], ONE, &[], failed(2, "the call has ended without a status")),
            (200, &[GRPC], ONE, &[("grpc-status", "fine")], failed(2, "")),
            (200, &[("content-type", "text/html")], ONE, ok, failed(2, "the answer is not gRPC's by its content type")),
            (
                200,
                &[("content-type", "application/grpc-web")],
                ONE,
                ok,
                failed(2, "the answer is not gRPC's by its content type"),
            ),
            (503, &[], b"down", &[], failed(14, "")),
            (404, &[], b"", &[], failed(12, "")),
            (401, &[], b"", &[], failed(16, "")),
            (400, &[], b"", &[], failed(13, "")),
            (418, &[], b"", &[], failed(2, "")),
            (200, &[GRPC], b"", ok, failed(13, "the call has succeeded without a message")),
            (200, &[GRPC], &[0, 0, 0, 0, 2, 7], ok, failed(13, "the call has succeeded without a message")),
            (200, &[GRPC], &[0, 0, 0, 0, 1, 7, 0], ok, failed(13, "more than one message answers a unary call")),
            (200, &[GRPC], &[1, 0, 0, 0, 1, 7], ok, failed(13, "a message with unknown flags (1)")),
            (
                200,
                &[GRPC],
                &[0, 0, 0, 0, 4, 7, 7, 7, 7],
                ok,
                failed(13, "a message of 4 bytes, which is over the limit"),
            ),
        ] {
            assert_eq!(ended(http, head, body, trailers), expected, "{http} {head:?} {body:?} {trailers:?}");
        }
    }

    #[test]
    fn the_head_of_a_call() {
        let method = GrpcMethod {
            path: "/a.B/C".into(),
            authority: "auth.test".into(),
            metadata: headers(&[("x-own", "1")]),
            options: CallOptions { timeout: Some(std::time::Duration::from_millis(250)), ..CallOptions::default() },
            ..GrpcMethod::default()
        };
        let head = head(&method);
        assert_eq!((head.method(), head.path(), head.authority()), (&b"POST"[..], &b"/a.B/C"[..], &b"auth.test"[..]));
        let fields: Vec<_> = head.headers.iter().map(|(_, name, value)| (name, value)).collect();
        let expected = [
            (&b"te"[..], &b"trailers"[..]),
            (b"grpc-timeout", b"250m"),
            (b"content-type", b"application/grpc"),
            (b"x-own", b"1"),
        ];
        assert_eq!(fields, expected);
    }
}
