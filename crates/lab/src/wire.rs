//! One ADS stream over HTTP/2. It is lean, because one process has thousands: responses are decoded only down to names,
//! versions and the resources' bytes, which are not copied.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use evenkeel_base::grpc::CONTENT_TYPE;
use evenkeel_http::h2::{Connection, ConnectionError, Options, Reason, Reset, ResponseMeta, Sink, StreamKey};
use evenkeel_http::{Framing, HeaderId, Headers, RequestHead, ResponseHead};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The size of one read.
const READ_BYTES: usize = 16 * 1024;
/// Flow control windows of a stream and of a connection, in bytes. They are those of hyper's client.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// See [`STREAM_WINDOW_BYTES`].
const CONNECTION_WINDOW_BYTES: u32 = 5 << 20;
/// The largest accepted response, in bytes (the proxy's own limit).
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// The header of a gRPC message: a flag and four bytes of length.
const PREFIX_BYTES: usize = 5;

/// The xDS protocol variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Incremental.
    Delta,
    /// State of the world.
    Sotw,
}

impl Protocol {
    fn path(self) -> &'static str {
        match self {
            Self::Delta => "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
            Self::Sotw => "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
        }
    }
}

/// `DeltaDiscoveryResponse`, with unused parts left as bytes.
#[derive(Clone, PartialEq, Message)]
pub struct DeltaResponse {
    /// Added and changed resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<DeltaResource>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// To be repeated in the acknowledgement.
    #[prost(bytes = "bytes", tag = "5")]
    pub nonce: Bytes,
    /// Names of removed resources.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub removed_resources: Vec<Bytes>,
}

/// `discovery.v3.Resource`.
#[derive(Clone, PartialEq, Message)]
pub struct DeltaResource {
    /// Its version.
    #[prost(bytes = "bytes", tag = "1")]
    pub version: Bytes,
    /// The `Any`.
    #[prost(bytes = "bytes", tag = "2")]
    pub any: Bytes,
    /// Its name.
    #[prost(bytes = "bytes", tag = "3")]
    pub name: Bytes,
}

/// `DiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct SotwResponse {
    /// To be repeated in the acknowledgement.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The `Any`s.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub resources: Vec<Bytes>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// To be repeated in the acknowledgement.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub struct AnyBytes {
    /// The message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// Decodes only the name, which is field 1 of clusters, endpoints, listeners, route configurations and secrets.
#[derive(Clone, PartialEq, Message)]
pub struct Named {
    /// The name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
}

/// The parts of a cluster that name its endpoints.
#[derive(Clone, PartialEq, Message)]
pub struct LeanCluster {
    /// The name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// `DiscoveryType`; 3 is EDS.
    #[prost(int32, tag = "2")]
    pub discovery_type: i32,
    /// Set with EDS.
    #[prost(message, optional, tag = "3")]
    pub eds: Option<LeanEds>,
}

/// `EdsClusterConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct LeanEds {
    /// The name of the endpoints, if it differs from the cluster's.
    #[prost(bytes = "bytes", tag = "2")]
    pub service_name: Bytes,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The connection failed.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    /// The server violated HTTP/2.
    #[error("HTTP/2: {0}")]
    Http2(#[from] ConnectionError),
    /// The server reset the stream or sent GOAWAY.
    #[error("HTTP/2: the server ended the stream: {0}")]
    Reset(Reason),
    /// The server ended the stream with a status.
    #[error("the server ended the stream: HTTP {http}, gRPC status {status}: {message}")]
    Status {
        /// The HTTP status.
        http: u16,
        /// The gRPC status.
        status: String,
        /// The gRPC message.
        message: String,
    },
    /// A response is larger than the limit.
    #[error("a response of {0} bytes")]
    TooLarge(usize),
    /// A response cannot be decoded.
    #[error("malformed response: {0}")]
    Malformed(String),
}

/// An open ADS stream on its own connection.
#[derive(Debug)]
pub struct AdsStream {
    socket: TcpStream,
    codec: Connection,
    key: StreamKey,
    inbox: Inbox,
    /// Received bytes of an incomplete frame.
    unread: Vec<u8>,
    /// Requests that wait for flow control.
    unsent: BytesMut,
    received: Rc<Cell<u64>>,
}

/// Receives the codec's events.
#[derive(Debug, Default)]
struct Inbox {
    /// Received bytes of messages that are not taken yet.
    partial: BytesMut,
    /// Received bytes for which no WINDOW_UPDATE was sent yet.
    owed: usize,
    /// Why the stream ended; the first reason is kept.
    end: Option<StreamError>,
}

impl AdsStream {
    /// Connects to the server. All bytes received on the socket are added to `received`.
    pub async fn open(address: SocketAddr, protocol: Protocol, received: Rc<Cell<u64>>) -> Result<Self, StreamError> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let mut codec = Connection::client(Options {
            initial_stream_window_size: STREAM_WINDOW_BYTES,
            initial_connection_window_size: CONNECTION_WINDOW_BYTES,
            ..Options::default()
        });
        let mut head = RequestHead::default();
        head.set_method(b"POST");
        head.set_path(protocol.path().as_bytes());
        head.set_authority(address.to_string().as_bytes());
        head.headers.append_id(HeaderId::ContentType, CONTENT_TYPE.as_bytes());
        head.headers.append_id(HeaderId::Te, b"trailers");
        let key = codec
            .open(&head, false, Framing::Chunked, false)
            .map_err(|error| StreamError::Malformed(error.to_string()))?;
        let (inbox, unread, unsent) = Default::default();
        Ok(Self { socket, codec, key, inbox, unread, unsent, received })
    }

    /// Queues a request, which the next call of [`AdsStream::next`] sends.
    pub fn send(&mut self, request: &impl Message) -> Result<(), StreamError> {
        let length = request.encoded_len();
        self.unsent.reserve(PREFIX_BYTES + length);
        self.unsent.put_u8(0);
        self.unsent.put_u32(u32::try_from(length).map_err(|_| StreamError::TooLarge(length))?);
        request.encode(&mut self.unsent).map_err(|error| StreamError::Malformed(error.to_string()))?;
        self.pump();
        Ok(())
    }

    /// Returns the bytes of the next response. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Bytes, StreamError> {
        loop {
            if let Some(message) = take_message(&mut self.inbox.partial)? {
                return Ok(message);
            }
            self.turn().await?;
            let owed = std::mem::take(&mut self.inbox.owed);
            if owed > 0 {
                self.codec.release_stream(self.key, owed);
                self.codec.release_connection(owed);
            }
        }
    }

    /// Keeps the connection but reads no more responses, so that the flow control windows fill up.
    pub async fn stall(&mut self) -> Result<std::convert::Infallible, StreamError> {
        loop {
            self.turn().await?;
        }
    }

    /// Writes and reads once; returns when bytes were transferred.
    async fn turn(&mut self) -> Result<(), StreamError> {
        std::future::poll_fn(|cx| self.poll_turn(cx)).await
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        if let Some(error) = self.inbox.end.take() {
            return Poll::Ready(Err(error));
        }
        while !self.codec.output().is_empty() {
            match Pin::new(&mut self.socket).poll_write(cx, self.codec.output())? {
                Poll::Ready(written) => self.codec.written(written),
                Poll::Pending => break,
            }
            self.pump();
        }
        drop(self.codec.take_output_buffer());
        let mut memory = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut memory);
        std::task::ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
        }
        self.received.set(self.received.get() + buffer.filled().len() as u64);
        if self.unread.is_empty() {
            let taken = self.codec.receive(buffer.filled(), &mut self.inbox)?;
            self.unread.extend_from_slice(buffer.filled().get(taken..).unwrap_or_default());
        } else {
            self.unread.extend_from_slice(buffer.filled());
            let taken = self.codec.receive(&self.unread, &mut self.inbox)?;
            self.unread.drain(..taken);
            if self.unread.is_empty() {
                // An idle stream keeps no buffer, because this process has thousands of streams.
                self.unread = Vec::new();
            }
        }
        self.pump();
        Poll::Ready(Ok(()))
    }

    /// Sends as much of the queued requests as flow control and the output buffer allow.
    fn pump(&mut self) {
        while self.codec.next_writable().is_some() {}
        if !self.unsent.is_empty() {
            // If the stream has ended, the inbox already knows the reason.
            let sent = self.codec.send_data(self.key, &self.unsent, false).unwrap_or(self.unsent.len());
            self.unsent.advance(sent);
            if self.unsent.is_empty() {
                self.unsent = BytesMut::new();
            }
        }
    }
}

impl Sink for Inbox {
    fn response(&mut self, _: StreamKey, head: &mut ResponseHead, meta: ResponseMeta) {
        if head.status != 200 || meta.end {
            self.end.get_or_insert(status(head.status, &head.headers));
        }
    }

    fn data(&mut self, _: StreamKey, data: &[u8], end: bool) {
        self.partial.extend_from_slice(data);
        self.owed += data.len();
        if end {
            self.end.get_or_insert(StreamError::Malformed("a stream that ends without a status".to_owned()));
        }
    }

    fn trailers(&mut self, _: StreamKey, trailers: &mut Headers) {
        self.end.get_or_insert(status(200, trailers));
    }

    fn reset(&mut self, _: StreamKey, reset: Reset) {
        self.end.get_or_insert(StreamError::Reset(reset.reason));
    }
}

/// Takes a complete message from the front of the buffer.
fn take_message(partial: &mut BytesMut) -> Result<Option<Bytes>, StreamError> {
    let Some((flag, mut length)) = partial.get(..PREFIX_BYTES).and_then(<[u8]>::split_first) else { return Ok(None) };
    if *flag != 0 {
        return Err(StreamError::Malformed("compressed, though that was not offered".to_owned()));
    }
    let length = length.get_u32() as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(StreamError::TooLarge(length));
    }
    if partial.len() < PREFIX_BYTES + length {
        partial.reserve(PREFIX_BYTES + length - partial.len());
        return Ok(None);
    }
    partial.advance(PREFIX_BYTES);
    let message = partial.split_to(length).freeze();
    if partial.is_empty() {
        // An idle stream keeps no buffer, because this process has thousands of streams.
        *partial = BytesMut::new();
    }
    Ok(Some(message))
}

fn status(http: u16, headers: &Headers) -> StreamError {
    let text =
        |name: &[u8]| headers.find(name).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default();
    StreamError::Status { http, status: text(b"grpc-status"), message: text(b"grpc-message") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_xds::pb::envoy::service::discovery::v3 as pb;

    #[test]
    fn reads_what_the_full_types_write() {
        let any = evenkeel_xds::pack(&evenkeel_xds::pb::envoy::config::route::v3::RouteConfiguration {
            name: "80".to_owned(),
            ..Default::default()
        });
        let full = pb::DeltaDiscoveryResponse {
            system_version_info: "7".to_owned(),
            type_url: any.type_url.clone(),
            nonce: "n".to_owned(),
            removed_resources: vec!["gone".to_owned()],
            resources: vec![pb::Resource {
                name: "80".to_owned(),
                version: "v".to_owned(),
                resource: Some(any.clone()),
                ..Default::default()
            }],
            ..Default::default()
        };
        let lean = DeltaResponse::decode(Bytes::from(full.encode_to_vec())).expect("the same fields");
        assert_eq!((&*lean.nonce, &*lean.removed_resources[0]), (&b"n"[..], &b"gone"[..]));
        let resource = &lean.resources[0];
        assert_eq!((&*resource.name, &*resource.version), (&b"80"[..], &b"v"[..]));
        let value = AnyBytes::decode(resource.any.clone()).expect("an Any").value;
        assert_eq!(&*Named::decode(value).expect("a name").name, b"80");
        let full = pb::DiscoveryResponse {
            version_info: "7".to_owned(),
            type_url: any.type_url.clone(),
            nonce: "n".to_owned(),
            resources: vec![any],
            ..Default::default()
        };
        let lean = SotwResponse::decode(Bytes::from(full.encode_to_vec())).expect("the same fields");
        assert_eq!((lean.version_info.as_str(), lean.nonce.as_str(), lean.resources.len()), ("7", "n", 1));
    }

    #[test]
    fn messages_come_out_whole_however_they_arrive() {
        let mut stream = Vec::new();
        for message in [&b"one"[..], b"", b"three"] {
            stream.push(0);
            stream.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            stream.extend(message);
        }
        for step in 1..=stream.len() {
            let mut partial = BytesMut::new();
            let mut found = Vec::new();
            for piece in stream.chunks(step) {
                partial.extend_from_slice(piece);
                while let Some(message) = take_message(&mut partial).expect("well-formed") {
                    found.push(message);
                }
            }
            assert_eq!(found, [&b"one"[..], b"", b"three"], "in steps of {step}");
        }
        let check = |bytes: &[u8]| assert!(take_message(&mut BytesMut::from(bytes)).is_err(), "{bytes:?}");
        check(&[1, 0, 0, 0, 0]);
        check(&[0, 255, 0, 0, 0]);
    }
}
