//! One ADS stream over HTTP/2, as lean as thousands of them in one process need it: responses are taken apart only down to
//! names, versions and the resources' bytes, without copying these.

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

/// Bytes read at a time.
const READ_BYTES: usize = 16 * 1024;
/// Flow control as hyper's client has it, which the proxy uses: bytes of a stream, and of a connection.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// See [`STREAM_WINDOW_BYTES`].
const CONNECTION_WINDOW_BYTES: u32 = 5 << 20;
/// Largest response taken, in bytes (the proxy's own limit).
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// gRPC's frame: a flag and four bytes of length.
const PREFIX_BYTES: usize = 5;

/// Which of the two protocols.
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

/// `DeltaDiscoveryResponse`, with the parts nobody looks at left as bytes.
#[derive(Clone, PartialEq, Message)]
pub struct DeltaResponse {
    /// Added and changed.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<DeltaResource>,
    /// What they all are.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// To be repeated in the answer.
    #[prost(bytes = "bytes", tag = "5")]
    pub nonce: Bytes,
    /// Names that are gone.
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
    /// To be repeated in the answer.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The `Any`s.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub resources: Vec<Bytes>,
    /// What they all are.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// To be repeated in the answer.
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

/// What clusters, endpoints, listeners, route configurations and secrets have in common: field 1 is the name.
#[derive(Clone, PartialEq, Message)]
pub struct Named {
    /// The name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
}

/// Of a cluster: what names its endpoints.
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
    /// Name of the endpoints, if it is not the cluster's.
    #[prost(bytes = "bytes", tag = "2")]
    pub service_name: Bytes,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The connection.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    /// What the server sent is not HTTP/2.
    #[error("HTTP/2: {0}")]
    Http2(#[from] ConnectionError),
    /// The server cut the stream off, or sent the client away.
    #[error("HTTP/2: the server ended the stream: {0}")]
    Reset(Reason),
    /// The server's status.
    #[error("the server ended the stream: HTTP {http}, gRPC status {status}: {message}")]
    Status {
        /// HTTP's.
        http: u16,
        /// gRPC's.
        status: String,
        /// Its message.
        message: String,
    },
    /// More than anything sensible.
    #[error("a response of {0} bytes")]
    TooLarge(usize),
    /// Not what an ADS server says.
    #[error("malformed response: {0}")]
    Malformed(String),
}

/// An open stream, on a connection of its own.
#[derive(Debug)]
pub struct AdsStream {
    socket: TcpStream,
    codec: Connection,
    key: StreamKey,
    inbox: Inbox,
    /// The begin of a frame.
    unread: Vec<u8>,
    /// Requests that the server's window has no room for.
    unsent: BytesMut,
    received: Rc<Cell<u64>>,
}

/// Takes what the codec finds.
#[derive(Debug, Default)]
struct Inbox {
    /// The begin of a message, or more.
    partial: BytesMut,
    /// Bytes not given back to the server's window.
    owed: usize,
    /// Why the stream is over: what was said of it first.
    end: Option<StreamError>,
}

impl AdsStream {
    /// Connects. All bytes that arrive on the socket are added to `received`.
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

    /// Sends a request, with the next call of [`AdsStream::next`].
    pub fn send(&mut self, request: &impl Message) -> Result<(), StreamError> {
        let length = request.encoded_len();
        self.unsent.reserve(PREFIX_BYTES + length);
        self.unsent.put_u8(0);
        self.unsent.put_u32(u32::try_from(length).map_err(|_| StreamError::TooLarge(length))?);
        request.encode(&mut self.unsent).map_err(|error| StreamError::Malformed(error.to_string()))?;
        self.pump();
        Ok(())
    }

    /// The next response's bytes. Dropping the future loses nothing.
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

    /// Keeps the connection and takes nothing more: what comes fills the flow control's windows.
    pub async fn stall(&mut self) -> Result<std::convert::Infallible, StreamError> {
        loop {
            self.turn().await?;
        }
    }

    /// Writes and reads; returns when something came or went.
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
                // An idle stream holds no buffer: thousands of them are in this process.
                self.unread = Vec::new();
            }
        }
        self.pump();
        Poll::Ready(Ok(()))
    }

    /// Sends of the requests what windows and output take.
    fn pump(&mut self) {
        while self.codec.next_writable().is_some() {}
        if !self.unsent.is_empty() {
            // A stream that is gone has said so to the inbox.
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

/// Cuts a whole message off the front.
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
        // An idle stream holds no buffer: thousands of them are in this process.
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
