//! Data about a request, or about a connection that a TCP proxy serves.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_runtime_config::alpn::AlpnOverrides;
use evenkeel_runtime_config::dynamic_forward_proxy::DynamicHost;
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::peer::{DestinationService, Peer};
use evenkeel_stats::Exemplar;

use super::{ResponseFlags, Times};
use crate::compression::Encodings;

/// Data about a request, or about a connection that a TCP proxy serves, filled in as it proceeds. Its heads are kept
/// separately.
pub struct StreamInfo {
    /// Times of events.
    pub times: Times,
    /// `HTTP/1.1`; `None` for TCP.
    pub protocol: Option<&'static str>,
    /// Status sent; 0 if none was.
    pub status: u16,
    /// The response is a local reply: the proxy's own, or a filter's.
    pub local_reply: bool,
    /// Errors, in the order of their occurrence.
    pub flags: ResponseFlags,
    /// `via_upstream`, `route_not_found`… (`%RESPONSE_CODE_DETAILS%`).
    pub details: Cow<'static, str>,
    /// Why the connection was ended (`%CONNECTION_TERMINATION_DETAILS%`).
    pub termination: Cow<'static, str>,
    /// The client's address, if it was taken from `x-forwarded-for`.
    pub client: Option<SocketAddr>,
    /// Body bytes from the client.
    pub bytes_received: u64,
    /// Body bytes to the client.
    pub bytes_sent: u64,
    /// The route that serves it.
    pub route_name: Option<Arc<str>>,
    /// The cluster it goes to.
    pub cluster_name: Option<Arc<str>>,
    /// The service that the cluster stands for.
    pub service: Option<Arc<DestinationService>>,
    /// The host of the last try: `ADDRESS:PORT`.
    pub host: Option<Arc<str>>,
    /// The tries before the last one.
    pub earlier_tries: Vec<EarlierTry>,
    /// The local address of the upstream connection.
    pub upstream_local: Option<SocketAddr>,
    /// The ID of the upstream connection.
    pub upstream_connection: Option<u64>,
    /// `HTTP/1.1`: what the upstream connection speaks; `None` for TCP.
    pub upstream_protocol: Option<&'static str>,
    /// Why connecting upstream, or the handshake, failed.
    pub transport_failure: String,
    /// Why the client's TLS handshake failed (`%DOWNSTREAM_TRANSPORT_FAILURE_REASON%`).
    pub handshake_failure: Option<Box<str>>,
    /// Number of tries.
    pub attempts: u32,
    /// Dynamic metadata, by the filters' names; for matchers and logs.
    pub metadata: DynamicMetadata,
    /// The host that a filter selected, used if it is available.
    pub host_override: Option<Rc<HostOverride>>,
    /// The host that a filter has resolved, for a cluster whose hosts are.
    pub dynamic_host: Option<Arc<DynamicHost>>,
    /// Response headers of the proxy through which a tunnel was opened: JSON.
    pub tunnel_headers: Option<Box<str>>,
    /// Its response trailers at the tunnel's end: JSON.
    pub tunnel_trailers: Option<Box<str>>,
    /// Whether a filter has turned the request into a gRPC call: the client expects no gRPC replies, and the server's outcome
    /// is in its trailers.
    pub made_grpc: bool,
    /// Whether this proxy has replaced the path and kept the one that it received in `x-envoy-original-path`. Otherwise that header is
    /// the client's, which may say anything.
    pub rewritten: bool,
    /// Whether an authorization service has let the request pass without a decision, and a header tells the upstream.
    pub undecided: bool,
    /// Objects for logs, by their keys (`%FILTER_STATE%`).
    objects: Vec<(Cow<'static, str>, Rc<dyn StateObject>)>,
}

/// A try that was not the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierTry {
    /// Its host: `ADDRESS:PORT`.
    pub host: Arc<str>,
    /// The host's name; empty: it has none.
    pub hostname: Arc<str>,
    /// The ID of the connection; `None`: there was none.
    pub connection: Option<u64>,
}

/// The host that a filter selected for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostOverride {
    /// Its address, as in logs.
    pub address: String,
    /// Whether no other host may be used.
    pub strict: bool,
    /// Response status if the host is gone and no other may be used.
    pub status_if_gone: u16,
}

/// The format of a state object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As JSON, with the fields' JSON names.
    Typed,
    /// As JSON, with the fields' protobuf names.
    TypedJson,
    /// As plain text.
    Plain,
}

/// The number of messages of a gRPC call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageCounts {
    /// Sent by the client.
    pub request: u64,
    /// Sent by the server.
    pub response: u64,
}

/// An object that logs may print (Envoy's filter state).
pub trait StateObject {
    /// Appends the object; returns false if there is nothing to print.
    fn write(&self, form: Form, out: &mut Vec<u8>) -> bool;

    /// Appends one field; false if there is none of this name.
    fn field(&self, _name: &str, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// The full name of the message that it is for access log services, and its bytes; `None` if it is none.
    fn message(&self) -> Option<(&'static str, Vec<u8>)> {
        None
    }

    /// The messages of a gRPC call, if it counts them. Envoy's object has no fields, so they are none of [`StateObject::field`].
    fn messages(&self) -> Option<MessageCounts> {
        None
    }

    /// Whether it has its value; an object may be set before.
    fn is_settled(&self) -> bool {
        true
    }

    /// The protocols that TLS to the upstream offers, if it lists them.
    fn alpn(&self) -> Option<&Arc<AlpnOverrides>> {
        None
    }

    /// The request's span, for statistics, if it is that.
    fn exemplar(&self) -> Option<&Exemplar> {
        None
    }

    /// What the compressors of a chain know of each other, if it is that.
    fn encodings(&self) -> Option<&Encodings> {
        None
    }

    /// The workload that it describes, if it does.
    fn peer(&self) -> Option<&Peer> {
        None
    }
}

/// The key of the request's span, which is there if the span is recorded and a filter sees the request's end.
pub const EXEMPLAR: &str = "evenkeel.exemplar";

impl StateObject for Exemplar {
    fn write(&self, _: Form, _: &mut Vec<u8>) -> bool {
        false
    }

    fn exemplar(&self) -> Option<&Exemplar> {
        Some(self)
    }
}

impl StreamInfo {
    /// Creates the data of a stream that begins.
    pub fn new(start: Instant) -> Self {
        Self {
            times: Times::new(start),
            protocol: None,
            status: 0,
            local_reply: false,
            flags: ResponseFlags::NONE,
            details: Cow::Borrowed(""),
            termination: Cow::Borrowed(""),
            client: None,
            bytes_received: 0,
            bytes_sent: 0,
            route_name: None,
            cluster_name: None,
            service: None,
            host: None,
            earlier_tries: Vec::new(),
            upstream_local: None,
            upstream_connection: None,
            upstream_protocol: None,
            transport_failure: String::new(),
            handshake_failure: None,
            attempts: 0,
            metadata: DynamicMetadata::default(),
            host_override: None,
            dynamic_host: None,
            tunnel_headers: None,
            tunnel_trailers: None,
            made_grpc: false,
            rewritten: false,
            undecided: false,
            objects: Vec::new(),
        }
    }

    /// Resets everything. Field by field and in place: the struct is large, and most of it was never set.
    pub fn forget(&mut self) {
        let Self {
            times,
            protocol,
            status,
            local_reply,
            flags,
            details,
            termination,
            client,
            bytes_received,
            bytes_sent,
            route_name,
            cluster_name,
            service,
            host,
            earlier_tries,
            upstream_local,
            upstream_connection,
            upstream_protocol,
            transport_failure,
            handshake_failure,
            attempts,
            metadata,
            host_override,
            dynamic_host,
            tunnel_headers,
            tunnel_trailers,
            made_grpc,
            rewritten,
            undecided,
            objects,
        } = self;
        times.forget();
        (*protocol, *status, *local_reply, *flags, *client) = (None, 0, false, ResponseFlags::NONE, None);
        (*details, *termination) = (Cow::Borrowed(""), Cow::Borrowed(""));
        (*bytes_received, *bytes_sent, *attempts) = (0, 0, 0);
        (*route_name, *cluster_name, *host, *upstream_local) = (None, None, None, None);
        earlier_tries.clear();
        (*upstream_connection, *upstream_protocol) = (None, None);
        if service.is_some() {
            *service = None;
        }
        transport_failure.clear();
        (*handshake_failure, *host_override, *dynamic_host) = (None, None, None);
        (*tunnel_headers, *tunnel_trailers) = (None, None);
        *metadata = DynamicMetadata::default();
        (*made_grpc, *rewritten, *undecided) = (false, false, false);
        objects.clear();
    }

    /// Sets an object for logs.
    pub fn set_object(&mut self, key: impl Into<Cow<'static, str>>, object: Rc<dyn StateObject>) {
        let key = key.into();
        self.objects.retain(|(known, _)| *known != key);
        self.objects.push((key, object));
    }

    /// All objects, with their keys.
    pub fn objects(&self) -> impl Iterator<Item = (&str, &dyn StateObject)> {
        self.objects.iter().map(|(key, object)| (&**key, &**object))
    }

    /// The object under a key.
    pub fn object(&self, key: &str) -> Option<&dyn StateObject> {
        self.objects.iter().find(|(known, _)| *known == key).map(|(_, object)| &**object)
    }
}

impl fmt::Debug for StreamInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objects: Vec<_> = self.objects.iter().map(|(key, _)| key).collect();
        f.debug_struct("StreamInfo")
            .field("status", &self.status)
            .field("flags", &self.flags)
            .field("details", &self.details)
            .field("metadata", &self.metadata)
            .field("objects", &objects)
            .finish_non_exhaustive()
    }
}
