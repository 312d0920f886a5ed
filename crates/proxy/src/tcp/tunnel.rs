//! TCP over HTTP (`tunneling_config`): the host is another proxy, and CONNECT tells it where the bytes are to go. Over HTTP/1.1 the
//! connection becomes the tunnel, over HTTP/2 a stream of a shared connection does. A proxy that does not support CONNECT can be asked with
//! POST over HTTP/2 (`use_post`): then the bodies of request and response carry the bytes.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_filters::format::{Record, format};
use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_http::h2::Reason;
use evenkeel_http::{
    Framing, HeadScan, Headers, Limits, RequestHead, ResponseHead, ResponseRules, Version, encode, parse_response,
};
use evenkeel_runtime_config::listener::Tunneling;
use evenkeel_runtime_config::route::Priority;
use evenkeel_runtime_config::substitution_format::Format;
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::h2::{self, Answer, Received, Reset, ResetBy};
use evenkeel_upstream::{
    AcquireError, Cluster, ConnectError, ConnectTimes, Connection, Host, Need, PooledConnection, StreamSlot,
};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;

use super::relay::End;
use crate::connection_record::record_of_connection;
use crate::http::{HOPS, add_headers};

/// Limits of the response head: Envoy's defaults for upstreams.
const ANSWER_LIMITS: Limits = Limits { max_head_bytes: 60 * 1024, max_headers: 100 };
const ANSWER_RULES: ResponseRules = ResponseRules { limits: ANSWER_LIMITS, to_head: true, keep_case: false };

/// An open tunnel, with the bytes already received through it.
#[allow(clippy::large_enum_variant, reason = "one per connection, and short-lived")]
pub(super) enum Tunnel {
    /// A connection of its own.
    Connection(Connection, Buffer),
    /// A stream of a shared connection.
    Stream(Box<TunnelStream>),
}

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    /// There is no connection to open a tunnel on.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The other proxy responded with this status. The text is Envoy's.
    #[error("tunnel_response:{0}")]
    Refused(u16),
    /// The upstream closed the connection, or its response is not valid HTTP.
    #[error("the upstream proxy did not answer: {0}")]
    Failed(String),
    /// Over HTTP/1.1 the body of a POST cannot carry a tunnel.
    #[error("use_post needs an upstream that speaks HTTP/2")]
    PostOverHttp1,
}

impl From<io::Error> for TunnelError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Reset> for TunnelError {
    fn from(reset: Reset) -> Self {
        Self::Failed(reset.to_string())
    }
}

impl TunnelError {
    /// `%UPSTREAM_TRANSPORT_FAILURE_REASON%`. As in Envoy, it is empty for a peer that did not respond.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Failed(_) | Self::Acquire(AcquireError::Connect(ConnectError::Timeout(_))) => String::new(),
            other => other.to_string(),
        }
    }
}

/// Keeps the other proxy's last response head for access logs (`propagate_response_headers`).
fn keep_answer(info: &mut StreamInfo, tunneling: &Tunneling, answer: &ResponseHead) {
    if tunneling.keep_headers {
        info.tunnel_headers = Some(header_map(Some(answer.status), &answer.headers));
    }
}

/// Connects to `host` and asks it for a tunnel. The response may take as long as `connect_timeout`.
pub(super) async fn open(
    cluster: &Cluster,
    host: &Rc<Host>,
    client: &ConnectionInfo,
    tunneling: &Tunneling,
    info: &mut StreamInfo,
) -> Result<Tunnel, TunnelError> {
    let head = request(tunneling, client);
    let upstream = cluster.acquire_for(host, Version::Http11, Need::Tunnel, Priority::Default).await?;
    let limit = cluster.config().connect_timeout;
    let asking = async {
        match upstream {
            PooledConnection::Http1(_) if tunneling.post.is_some() => Err(TunnelError::PostOverHttp1),
            PooledConnection::Http1(connection) => over_http1(connection, &head, (tunneling, info)).await,
            PooledConnection::Http2(place) => {
                over_http2(place, &head, host.transport.is_secure(), (tunneling, info)).await
            }
        }
    };
    match timeout(limit, asking).await {
        Ok(asked) => asked,
        Err(_) => Err(AcquireError::Connect(ConnectError::Timeout(limit)).into()),
    }
}

fn request(tunneling: &Tunneling, client: &ConnectionInfo) -> RequestHead {
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

async fn over_http1(
    mut connection: Connection,
    head: &RequestHead,
    (tunneling, info): (&Tunneling, &mut StreamInfo),
) -> Result<Tunnel, TunnelError> {
    let mut bytes = Vec::new();
    encode::request(&mut bytes, head, Framing::None, encode::Connection::Default);
    connection.stream.write_all(&bytes).await?;
    connection.stream.flush().await?;
    let (mut input, mut answer, mut scan) = (Buffer::default(), ResponseHead::default(), HeadScan::default());
    loop {
        if poll_fn(|cx| input.poll_fill(&mut connection.stream, ANSWER_LIMITS.max_head_bytes + 1, cx)).await? == 0 {
            return Err(TunnelError::Failed("it closed".to_owned()));
        }
        // Headers that say how long the body is mean nothing here (RFC 9110 section 9.3.6).
        while let Some(parsed) = parse_response(input.bytes(), &mut scan, ANSWER_RULES, &mut answer)
            .map_err(|error| TunnelError::Failed(error.to_string()))?
        {
            input.consume(parsed.head_bytes);
            if matches!(answer.status, 100..=199) {
                scan = HeadScan::default();
                continue;
            }
            keep_answer(info, tunneling, &answer);
            match answer.status {
                200..=299 => return Ok(Tunnel::Connection(connection, input)),
                status => return Err(TunnelError::Refused(status)),
            }
        }
    }
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

/// `https`: the scheme of a POST.
async fn over_http2(
    place: StreamSlot,
    head: &RequestHead,
    https: bool,
    (tunneling, info): (&Tunneling, &mut StreamInfo),
) -> Result<Tunnel, TunnelError> {
    let mut stream = place.open(head, https, Framing::Chunked, false)?;
    let mut answer = ResponseHead::default();
    let ended = loop {
        match poll_fn(|cx| stream.poll_head(&mut answer, cx)).await? {
            Answer::Interim => {}
            Answer::Final(meta) => break meta.end,
        }
    };
    keep_answer(info, tunneling, &answer);
    let trailers = if tunneling.keep_trailers { Trailers::Awaited } else { Trailers::Unwanted };
    match answer.status {
        // Over HTTP/2 Envoy accepts no other status either, nor a response that ends with its head.
        200 if !ended => Ok(Tunnel::Stream(Box::new(TunnelStream { stream, place, ended: false, trailers }))),
        status => Err(TunnelError::Refused(status)),
    }
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
