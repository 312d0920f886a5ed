//! An exchange over one stream of a shared HTTP/2 connection.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_filters::decide::Tunnel;
use evenkeel_http::h2::Reason;
use evenkeel_http::{Framing, HeaderId, Headers, ResponseInfo};
use evenkeel_runtime_config::view::RequestView;
use evenkeel_upstream::h2::{Answer, Reset, ResetBy};
use evenkeel_upstream::{ConnectTimes, Host, StreamSlot};

use super::Arrived;
use super::opened::Opened;
use crate::http::failure::Failure;
use crate::http::framed::{Piece, Take};
use crate::http::request::Request;
use crate::http::streamed::Streamed;
use crate::http::websocket;

/// How long to wait for the peer's SETTINGS.
const SETTINGS_LIMIT: Duration = Duration::from_secs(1);

/// A slot on the connection, and the stream that takes it when the head is sent.
pub(in crate::http) struct Http2 {
    place: StreamSlot,
    stream: Option<Streamed>,
}

impl Http2 {
    pub(in crate::http) fn new(place: StreamSlot) -> Self {
        Self { place, stream: None }
    }

    pub(super) fn is_reused(&self) -> bool {
        self.place.reused
    }

    pub(super) fn host(&self) -> &Rc<Host> {
        &self.place.host
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.place.local_addr()
    }

    pub(super) fn connect_times(&self) -> &ConnectTimes {
        self.place.connect_times()
    }

    pub(in crate::http) fn send_head(&mut self, request: &mut Request) -> Result<(), Failure> {
        let https = if request.scheme_of_upstream {
            self.host().transport.is_secure()
        } else {
            request.view().scheme() == b"https"
        };
        self.open(request, https)
    }

    /// Opens the stream. What HTTP/1 calls an upgrade is an extended CONNECT here (RFC 8441 section 4).
    pub(in crate::http) fn open(&mut self, request: &mut Request, https: bool) -> Result<(), Failure> {
        let framing = if request.tunnel.is_some() { Framing::Chunked } else { request.info.framing };
        let ended = framing.is_empty();
        let method = match &request.tunnel {
            Some(Tunnel::Upgrade(protocol)) => {
                request.head.set_protocol(protocol);
                let method = request.head.method().to_vec();
                request.head.set_method(b"CONNECT");
                Some(method)
            }
            Some(Tunnel::Connect) | None => None,
        };
        let opened = self.place.open(&request.head, https, framing, ended);
        if let Some(method) = method {
            request.head.set_method(&method);
            request.head.set_protocol(b"");
        }
        self.stream = Some(Streamed::new(opened.map_err(failure)?, false, ended));
        Ok(())
    }

    /// Waits until more is known of what the peer accepts, for [`SETTINGS_LIMIT`] at most.
    pub(in crate::http) async fn settled(&self) {
        _ = tokio::time::timeout(SETTINGS_LIMIT, self.place.changed()).await;
    }

    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }

    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        if let Some(stream) = &mut self.stream {
            stream.send(data, last);
        }
    }

    pub(super) fn finish(&mut self, trailers: &Headers) {
        if let Some(stream) = &mut self.stream {
            stream.finish(trailers);
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Some(stream) => stream.poll_sent(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    pub(super) fn poll_head(&mut self, request: &mut Request, cx: &mut Context<'_>) -> Poll<Result<Arrived, Failure>> {
        let response = &mut request.response;
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        let meta = match ready!(stream.stream.poll_head(response, cx)).map_err(failure)? {
            Answer::Interim => return Poll::Ready(Ok(Arrived::Interim)),
            Answer::Final(meta) => meta,
        };
        stream.received_all = meta.end;
        if let Some(Tunnel::Upgrade(protocol)) = &request.tunnel
            && response.status == 200
            && !meta.end
        {
            response.status = 101;
            response.headers.set(HeaderId::Upgrade, protocol);
            if protocol == b"websocket" {
                websocket::accept(&request.head.headers, &mut response.headers);
            }
        }
        // 101 does not exist in HTTP/2 (RFC 9113 section 8.6).
        let framing = if meta.end { Framing::None } else { meta.framing };
        Poll::Ready(Ok(Arrived::Final(ResponseInfo { head_bytes: 0, framing, keep_alive: true })))
    }

    pub(super) fn into_tunnel(self) -> Option<Opened> {
        self.stream.map(|streamed| Opened::Stream(streamed.stream, self.place))
    }

    pub(super) fn piece(
        &mut self,
        trailers: &mut Headers,
        take: &mut Take<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Piece, Failure> {
        match &mut self.stream {
            Some(stream) => stream.piece(trailers, take, cx).map_err(failure),
            None => Ok(Piece::End),
        }
    }
}

/// Returns why the upstream's stream ended early. As in Envoy the error code decides, whichever side sent it: a response that
/// exceeds one of our limits counts as reset by the upstream.
fn failure(reset: Reset) -> Failure {
    match reset.by {
        _ if reset.unprocessed => Failure::UpstreamRefused,
        ResetBy::Peer | ResetBy::Local | ResetBy::Fault(_) => match reset.reason {
            Reason::PROTOCOL_ERROR => Failure::UpstreamProtocol,
            _ => Failure::UpstreamReset,
        },
        ResetBy::Connection if reset.reason != Reason::NO_ERROR => Failure::UpstreamProtocol,
        ResetBy::Connection => Failure::UpstreamClosed { sent: true },
    }
}
