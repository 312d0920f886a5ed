//! TCP over HTTP (`tunneling_config`): the request for a tunnel, and the bytes of one over HTTP/2. How it is opened is in
//! [`crate::http::tcp_side`].

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_filters::format::{Record, format};
use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_http::h2::Reason;
use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::listener::Tunneling;
use evenkeel_runtime_config::substitution_format::Format;
use evenkeel_upstream::h2::{self, Received, Reset, ResetBy};
use evenkeel_upstream::{ConnectTimes, Host, StreamSlot};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::relay::End;
use crate::connection_record::record_of_connection;
use crate::http::{HOPS, add_headers};

/// Keeps the other proxy's last response head for access logs (`propagate_response_headers`).
pub(super) fn keep_answer(info: &mut StreamInfo, tunneling: &Tunneling, answer: &ResponseHead) {
    if tunneling.keep_headers {
        info.tunnel_headers = Some(header_map(Some(answer.status), &answer.headers));
    }
}

/// The request for a tunnel.
pub(super) fn request(tunneling: &Tunneling, client: &ConnectionInfo) -> RequestHead {
    let stream = StreamInfo::new(client.accepted);
    let record = record_of_connection(&stream, client);
    let mut head = RequestHead::default();
    match &tunneling.post {
        None => head.set_method(b"CONNECT"),
        Some(path) => {
            head.set_method(b"POST");
            head.set_path(path.as_bytes());
        }
    }
    head.set_authority(&target(&tunneling.hostname, &record));
    add_headers(&mut head.headers, &tunneling.headers, &record);
    if let Some(hops) = client.view.own_hops.get().filter(|hops| **hops > 0) {
        head.headers.set_name(HOPS, hops.to_string().as_bytes());
    }
    head
}

/// Returns the authority of the request. Only printable ASCII is kept: a name from a ClientHello must not inject anything
/// else.
fn target(hostname: &Format, record: &Record<'_>) -> Vec<u8> {
    let mut target = Vec::new();
    format(hostname, record, &mut target);
    target.retain(u8::is_ascii_graphic);
    target
}

/// The JSON of Envoy's `HeaderMap`, which omits empty values and replaces each byte that is not UTF-8 by a blank.
fn header_map(status: Option<u16>, headers: &Headers) -> Box<str> {
    let text = |bytes: &[u8]| -> String {
        bytes.utf8_chunks().map(|chunk| chunk.valid().to_owned() + &" ".repeat(chunk.invalid().len())).collect()
    };
    let entry = |name: &[u8], value: &[u8]| match value {
        [] => json!({ "key": text(name) }),
        value => json!({ "key": text(name), "value": text(value) }),
    };
    let status = status.map(|status| entry(b":status", status.to_string().as_bytes()));
    let headers = headers.iter().map(|(_, name, value)| entry(name, value));
    json!({ "headers": status.into_iter().chain(headers).collect::<Vec<_>>() }).to_string().into()
}

/// The bytes of a tunnel over HTTP/2. Dropping it before both ends have ended resets the stream.
pub(super) struct TunnelStream {
    stream: h2::Stream,
    /// Keeps the shared connection alive.
    place: StreamSlot,
    /// The direction to the peer has ended.
    ended: bool,
    trailers: Trailers,
}

/// The trailers that may end the other direction.
enum Trailers {
    Unwanted,
    Awaited,
    /// Received trailers, as JSON.
    Kept(Box<str>),
}

impl TunnelStream {
    /// The tunnel over a stream, whose response has begun.
    pub(super) fn new(stream: h2::Stream, place: StreamSlot, tunneling: Option<&Tunneling>) -> Self {
        let keeps = tunneling.is_some_and(|tunneling| tunneling.keep_trailers);
        let trailers = if keeps { Trailers::Awaited } else { Trailers::Unwanted };
        Self { stream, place, ended: false, trailers }
    }

    /// The local address of the connection.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.place.local_addr()
    }

    /// The host it is connected to.
    pub(super) fn host(&self) -> &Rc<Host> {
        &self.place.host
    }

    /// When the connection was made.
    pub(super) fn connect_times(&self) -> &ConnectTimes {
        self.place.connect_times()
    }

    /// The trailers that ended the other direction, if they are to be kept.
    pub(super) fn take_trailers(&mut self) -> Option<Box<str>> {
        match std::mem::replace(&mut self.trailers, Trailers::Unwanted) {
            Trailers::Kept(trailers) => Some(trailers),
            Trailers::Unwanted | Trailers::Awaited => None,
        }
    }
}

impl End for TunnelStream {}

fn reset(reset: Reset) -> io::Error {
    match reset {
        // Sent by a peer that has ended the tunnel and needs no more of the client's bytes (RFC 9113 section 8.1): this is not a failure.
        Reset { reason: Reason::NO_ERROR, by: ResetBy::Peer, .. } => io::ErrorKind::NotConnected.into(),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        let received = ready!(self.stream.poll_data(room, &mut |data| buffer.put_slice(data), cx)).map_err(reset)?;
        // For the byte stream, trailers are the end.
        if let (Received::Trailers(trailers), Trailers::Awaited) = (received, &self.trailers) {
            self.trailers = Trailers::Kept(header_map(None, &trailers));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelStream {
    /// Accepts all bytes once those given before were sent, so that a slow peer slows its writer down.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.stream.poll_sent(cx)).map_err(reset)?;
        self.stream.send_data(bytes, false);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection writes at the end of each turn of the event loop.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.ended {
            ready!(self.stream.poll_sent(cx)).map_err(reset)?;
            self.stream.send_data(b"", true);
            self.ended = true;
        }
        self.stream.poll_sent(cx).map_err(reset)
    }
}
