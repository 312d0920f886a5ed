//! One ADS stream over HTTP/2, as lean as thousands of them in one process need it: responses are taken apart only down to
//! names, versions and the resources' bytes, without copying these.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::ResponseFuture;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

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
    /// HTTP/2.
    #[error("HTTP/2: {0}")]
    Http2(#[from] h2::Error),
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

/// An open stream.
#[derive(Debug)]
pub struct AdsStream {
    requests: h2::SendStream<Bytes>,
    responses: Responses,
    /// The begin of a message whose end has not come.
    partial: BytesMut,
}

#[derive(Debug)]
enum Responses {
    /// The server may hold its head back until it has something to say.
    Headless(ResponseFuture),
    Open(RecvStream),
}

impl AdsStream {
    /// Connects. All bytes that arrive on the socket are added to `received`.
    pub async fn open(address: SocketAddr, protocol: Protocol, received: Rc<Cell<u64>>) -> Result<Self, StreamError> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (mut sender, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .enable_push(false)
            .handshake(Counted { socket, received })
            .await?;
        // Its errors are the stream's too.
        tokio::task::spawn_local(async move { drop(connection.await) });
        let request = http::Request::post(format!("http://{address}{}", protocol.path()))
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(())
            .map_err(|error| StreamError::Malformed(error.to_string()))?;
        let (response, requests) = sender.send_request(request, false)?;
        Ok(Self { requests, responses: Responses::Headless(response), partial: BytesMut::new() })
    }

    /// Sends a request.
    pub fn send(&mut self, request: &impl Message) -> Result<(), StreamError> {
        let length = request.encoded_len();
        let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
        frame.put_u8(0);
        frame.put_u32(u32::try_from(length).map_err(|_| StreamError::TooLarge(length))?);
        request.encode(&mut frame).map_err(|error| StreamError::Malformed(error.to_string()))?;
        Ok(self.requests.send_data(frame.freeze(), false)?)
    }

    /// The next response's bytes. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Bytes, StreamError> {
        loop {
            if let Some(message) = take_message(&mut self.partial)? {
                return Ok(message);
            }
            let body = match &mut self.responses {
                Responses::Open(body) => body,
                Responses::Headless(head) => {
                    let response = head.await?;
                    let (parts, body) = response.into_parts();
                    if !parts.status.is_success() || parts.headers.contains_key("grpc-status") {
                        return Err(status(parts.status.as_u16(), &parts.headers));
                    }
                    self.responses = Responses::Open(body);
                    continue;
                }
            };
            let Some(data) = body.data().await else {
                let trailers = body.trailers().await?.unwrap_or_default();
                return Err(status(200, &trailers));
            };
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            self.partial.extend_from_slice(&data);
        }
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

fn status(http: u16, headers: &http::HeaderMap) -> StreamError {
    let text = |name| headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).unwrap_or_default();
    StreamError::Status { http, status: text("grpc-status"), message: text("grpc-message") }
}

/// A socket that counts what it receives.
struct Counted {
    socket: TcpStream,
    received: Rc<Cell<u64>>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.socket).poll_read(cx, buffer);
        let read = buffer.filled().len() - before;
        self.received.set(self.received.get() + read as u64);
        result
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
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
