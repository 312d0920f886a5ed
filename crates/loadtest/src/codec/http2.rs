//! HTTP/2: one stream for each call, several at a time.

use std::sync::Arc;

use evenkeel_http::h2::{Connection, Options, Reset, ResponseMeta, Sink, StreamKey};
use evenkeel_http::{Framing, Headers, RequestHead, ResponseHead};

use super::Events;
use crate::outcome::{Answer, Code, Fault};
use crate::request::HttpRequest;

/// Bytes of the peer that wait for the rest of their frame.
const MAX_REST_BYTES: usize = (16 << 10) + 9;

/// A request, ready to be sent.
#[derive(Debug)]
pub struct Http2Request {
    head: RequestHead,
    payload: Vec<u8>,
    is_tls: bool,
    /// How responses are read.
    reading: Reading,
}

/// What a response says, beside its status.
#[derive(Debug, Clone, Copy)]
pub enum Reading {
    /// Nothing.
    Http,
    /// The status of a call in its trailers.
    Grpc(fn(&[u8]) -> &'static str),
}

impl Http2Request {
    /// The request, for connections with or without TLS.
    pub fn new(request: &HttpRequest, is_tls: bool, reading: Reading) -> Self {
        let mut head = RequestHead::default();
        head.set_method(request.method.as_bytes());
        head.set_path(request.path.as_bytes());
        head.set_authority(request.authority.as_bytes());
        for field in &request.fields {
            head.headers.append(field.name.as_bytes(), field.value.as_bytes());
        }
        Self { head, payload: request.payload.clone(), is_tls, reading }
    }
}

/// One connection's state.
pub struct Http2 {
    request: Arc<Http2Request>,
    connection: Connection,
    calls: Calls,
    /// Calls that wait for the peer to allow more streams.
    waiting: Vec<usize>,
    rest: Vec<u8>,
}

/// The streams that are open.
struct Calls {
    streams: Vec<Option<Call>>,
    ended: Vec<Answer>,
    failed: Vec<usize>,
    released: usize,
    reading: Reading,
}

struct Call {
    stream: StreamKey,
    call: usize,
    sent: usize,
    status: u16,
    header_bytes: u64,
    body_bytes: u64,
    message: Vec<u8>,
    grpc_status: Option<Vec<u8>>,
}

impl std::fmt::Debug for Http2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Http2 {
    /// Sends this request again and again.
    pub fn new(request: Arc<Http2Request>) -> Self {
        let connection = Connection::client(Options::default());
        let calls = Calls::new(request.reading);
        Self { request, connection, calls, waiting: Vec::new(), rest: Vec::new() }
    }

    pub(super) fn request(&mut self, call: usize, out: &mut Vec<u8>) {
        if self.waiting.is_empty() && self.connection.can_open().is_ok() {
            self.open(call);
        } else {
            self.waiting.push(call);
        }
        self.output(out);
    }

    fn open(&mut self, call: usize) {
        let request = self.request.clone();
        let is_empty = request.payload.is_empty();
        let framing = if is_empty { Framing::None } else { Framing::Length(request.payload.len() as u64) };
        match self.connection.open(&request.head, request.is_tls, framing, is_empty) {
            Ok(stream) => {
                self.calls.insert(stream, call);
                self.send(stream);
            }
            Err(_) => self.calls.failed.push(call),
        }
    }

    /// Sends as much of the payload as the windows allow.
    fn send(&mut self, stream: StreamKey) {
        let Some(call) = self.calls.get(stream) else { return };
        let rest = self.request.payload.get(call.sent..).unwrap_or_default();
        // A stream that is gone is reported by the next `receive`.
        if !rest.is_empty()
            && let Ok(taken) = self.connection.send_data(stream, rest, true)
        {
            call.sent += taken;
        }
    }

    fn output(&mut self, out: &mut Vec<u8>) {
        let output = self.connection.output();
        let count = output.len();
        out.extend_from_slice(output);
        self.connection.written(count);
    }

    pub(super) fn receive(&mut self, bytes: &[u8], events: &mut Events, out: &mut Vec<u8>) -> Result<(), Fault> {
        let taken = if self.rest.is_empty() {
            let taken = self.connection.receive(bytes, &mut self.calls).map_err(|_| Fault::Protocol)?;
            self.rest.extend_from_slice(bytes.get(taken..).unwrap_or_default());
            0
        } else {
            self.rest.extend_from_slice(bytes);
            self.connection.receive(&self.rest, &mut self.calls).map_err(|_| Fault::Protocol)?
        };
        self.rest.drain(..taken);
        if self.rest.len() > MAX_REST_BYTES {
            return Err(Fault::Protocol);
        }
        if self.calls.released > 0 {
            self.connection.release_connection(self.calls.released);
            self.calls.released = 0;
        }
        while let Some(stream) = self.connection.next_writable() {
            self.send(stream);
        }
        while !self.waiting.is_empty() && self.connection.can_open().is_ok() {
            let call = self.waiting.remove(0);
            self.open(call);
        }
        // A connection that takes no new streams ends when its last call has.
        let closes = self.is_spent();
        if closes {
            self.calls.failed.append(&mut self.waiting);
        }
        events.answers.extend(self.calls.ended.drain(..).map(|answer| Answer { closes, ..answer }));
        events.failed.append(&mut self.calls.failed);
        self.output(out);
        Ok(())
    }

    /// Whether the peer takes no new streams.
    pub(super) fn is_spent(&self) -> bool {
        self.connection.takes_no_streams()
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.request.clone());
    }
}

impl Calls {
    fn new(reading: Reading) -> Self {
        Self { streams: Vec::new(), ended: Vec::new(), failed: Vec::new(), released: 0, reading }
    }

    fn insert(&mut self, stream: StreamKey, call: usize) {
        if self.streams.len() <= stream.slot() {
            self.streams.resize_with(stream.slot() + 1, || None);
        }
        self.streams[stream.slot()] = Some(Call {
            stream,
            call,
            sent: 0,
            status: 0,
            header_bytes: 0,
            body_bytes: 0,
            message: Vec::new(),
            grpc_status: None,
        });
    }

    fn get(&mut self, stream: StreamKey) -> Option<&mut Call> {
        self.streams.get_mut(stream.slot())?.as_mut().filter(|call| call.stream == stream)
    }

    fn end(&mut self, stream: StreamKey) {
        let reading = self.reading;
        let Some(call) = self.get(stream) else { return };
        let code = match reading {
            Reading::Http => Code::Http(call.status),
            Reading::Grpc(read) if call.status == 200 && call.grpc_status.as_deref() == Some(b"0") => {
                Code::Named(read(&call.message))
            }
            Reading::Grpc(_) => Code::Named("ERROR"),
        };
        let answer = Answer {
            call: call.call,
            code,
            header_bytes: call.header_bytes,
            total_bytes: call.header_bytes + call.body_bytes,
            closes: false,
        };
        self.ended.push(answer);
        self.streams[stream.slot()] = None;
    }
}

/// Bytes of the fields of a head, as HTTP/1 would write them: HPACK makes them fewer.
fn bytes_of(headers: &Headers) -> u64 {
    headers.iter().map(|(_, name, value)| (name.len() + value.len() + 4) as u64).sum()
}

impl Sink for Calls {
    fn response(&mut self, stream: StreamKey, head: &mut ResponseHead, meta: ResponseMeta) {
        let Some(call) = self.get(stream) else { return };
        call.status = head.status;
        call.header_bytes = bytes_of(&head.headers);
        call.grpc_status = head.headers.find(b"grpc-status").map(<[u8]>::to_vec);
        if meta.end {
            self.end(stream);
        }
    }

    fn data(&mut self, stream: StreamKey, data: &[u8], end: bool) {
        self.released += data.len();
        let reads = matches!(self.reading, Reading::Grpc(_));
        let Some(call) = self.get(stream) else { return };
        call.body_bytes += data.len() as u64;
        if reads && call.message.len() < MAX_REST_BYTES {
            call.message.extend_from_slice(data);
        }
        if end {
            self.end(stream);
        }
    }

    fn trailers(&mut self, stream: StreamKey, trailers: &mut Headers) {
        if let Some(call) = self.get(stream) {
            call.grpc_status = trailers.find(b"grpc-status").map(<[u8]>::to_vec);
            self.end(stream);
        }
    }

    fn reset(&mut self, stream: StreamKey, _: Reset) {
        if let Some(call) = self.get(stream) {
            let call = call.call;
            self.failed.push(call);
            self.streams[stream.slot()] = None;
        }
    }
}
