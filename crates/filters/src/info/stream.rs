//! What is known of a request, or of a connection that a TCP proxy serves.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;

use super::{ResponseFlags, Times};

/// What is known of a request, or of a connection that a TCP proxy serves. It is filled as that goes on; its heads are beside it.
pub struct StreamInfo {
    /// When things happened.
    pub times: Times,
    /// `HTTP/1.1`; `None` for TCP.
    pub protocol: Option<&'static str>,
    /// Status sent; 0 when none was.
    pub status: u16,
    /// What went wrong, in the order it did.
    pub flags: ResponseFlags,
    /// `via_upstream`, `route_not_found`… (`%RESPONSE_CODE_DETAILS%`).
    pub details: Cow<'static, str>,
    /// Why the connection was ended (`%CONNECTION_TERMINATION_DETAILS%`).
    pub termination: Cow<'static, str>,
    /// The client, where `x-forwarded-for` was asked who that is.
    pub client: Option<SocketAddr>,
    /// Body bytes from the client.
    pub bytes_received: u64,
    /// Body bytes to the client.
    pub bytes_sent: u64,
    /// The route that serves it.
    pub route_name: Option<Arc<str>>,
    /// The cluster it goes to.
    pub cluster_name: Option<Arc<str>>,
    /// The host that was tried last: `ADDRESS:PORT`.
    pub host: Option<Arc<str>>,
    /// This end of the connection upstream.
    pub upstream_local: Option<SocketAddr>,
    /// Why there was no connection upstream, or no handshake.
    pub transport_failure: String,
    /// Why the client's TLS handshake failed (`%DOWNSTREAM_TRANSPORT_FAILURE_REASON%`).
    pub handshake_failure: Option<Box<str>>,
    /// Tries.
    pub attempts: u32,
    /// What filters have found out, by their names; for matchers and logs.
    pub metadata: DynamicMetadata,
    /// The host a filter wants it to go to, if it is there.
    pub host_override: Option<Rc<HostOverride>>,
    /// What a proxy that was asked for a tunnel answered: JSON.
    pub tunnel_headers: Option<Box<str>>,
    /// What it said at the tunnel's end: JSON.
    pub tunnel_trailers: Option<Box<str>>,
    /// Objects for logs, by their keys (`%FILTER_STATE%`).
    objects: Vec<(&'static str, Rc<dyn StateObject>)>,
}

/// The host a filter wants a request to go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostOverride {
    /// Its address, as in logs.
    pub address: String,
    /// No other will do.
    pub strict: bool,
    /// Status of the answer if it is not there, and no other will do.
    pub status_if_gone: u16,
}

/// How a state object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As JSON, with its fields' JSON names.
    Typed,
    /// As JSON, with its fields' names as in protobuf.
    TypedJson,
    /// As a line of text.
    Plain,
}

/// Something that logs may print (Envoy's filter state).
pub trait StateObject {
    /// Appends it; false where there is nothing to say.
    fn write(&self, form: Form, out: &mut Vec<u8>) -> bool;
}

impl StreamInfo {
    /// One that begins.
    pub fn new(start: Instant) -> Self {
        Self {
            times: Times::new(start),
            protocol: None,
            status: 0,
            flags: ResponseFlags::NONE,
            details: Cow::Borrowed(""),
            termination: Cow::Borrowed(""),
            client: None,
            bytes_received: 0,
            bytes_sent: 0,
            route_name: None,
            cluster_name: None,
            host: None,
            upstream_local: None,
            transport_failure: String::new(),
            handshake_failure: None,
            attempts: 0,
            metadata: DynamicMetadata::default(),
            host_override: None,
            tunnel_headers: None,
            tunnel_trailers: None,
            objects: Vec::new(),
        }
    }

    /// Nothing is known of it. Field by field, where it is: it is large, and most of it was never set.
    pub fn forget(&mut self) {
        let Self {
            times,
            protocol,
            status,
            flags,
            details,
            termination,
            client,
            bytes_received,
            bytes_sent,
            route_name,
            cluster_name,
            host,
            upstream_local,
            transport_failure,
            handshake_failure,
            attempts,
            metadata,
            host_override,
            tunnel_headers,
            tunnel_trailers,
            objects,
        } = self;
        times.forget();
        (*protocol, *status, *flags, *client) = (None, 0, ResponseFlags::NONE, None);
        (*details, *termination) = (Cow::Borrowed(""), Cow::Borrowed(""));
        (*bytes_received, *bytes_sent, *attempts) = (0, 0, 0);
        (*route_name, *cluster_name, *host, *upstream_local) = (None, None, None, None);
        transport_failure.clear();
        (*handshake_failure, *host_override, *tunnel_headers, *tunnel_trailers) = (None, None, None, None);
        *metadata = DynamicMetadata::default();
        objects.clear();
    }

    /// Leaves an object for logs.
    pub fn set_object(&mut self, key: &'static str, object: Rc<dyn StateObject>) {
        self.objects.retain(|(known, _)| *known != key);
        self.objects.push((key, object));
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
