//! Writes the question to an authorization service: `envoy.service.auth.v3.CheckRequest`, or an HTTP request that resembles
//! the client's.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use evenkeel_http::{HeaderId, Headers, RequestHead};
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::ext_authz::{CheckAttributes, ExtAuthz, HttpTarget, PathChange};
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity, RequestView};

use crate::header_edits;
use crate::http::{Body, RequestContext};
use crate::wire::{Message, readable};

/// Header that says whether the service gets the whole body. A client's header of this name is not sent to the service.
const PARTIAL_BODY: &[u8] = b"x-envoy-auth-partial-body";

/// The part of the client's body that a service gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentBody<'b> {
    pub(super) bytes: &'b [u8],
    /// Whether the body is incomplete.
    pub(super) partial: bool,
    /// A gRPC service gets it as bytes.
    pub(super) as_bytes: bool,
}

/// The inputs of a question: the filter's configuration, the route's, and the request.
pub(super) struct Question<'q, 'r> {
    pub(super) config: &'q ExtAuthz,
    pub(super) context: &'q RequestContext<'r>,
    pub(super) body: Option<SentBody<'q>>,
    /// Names and values for gRPC services, by name.
    pub(super) extensions: &'q [(&'q str, &'q str)],
}

impl Question<'_, '_> {
    /// The message for a gRPC service.
    pub(super) fn to_grpc(&self) -> Vec<u8> {
        let Self { config, context, .. } = *self;
        let mut message = Message::default();
        message.message(1, |attributes| {
            let service = context.head.headers.get(HeaderId::EnvoyDownstreamServiceCluster).unwrap_or_default();
            peers(attributes, context.connection, &config.told, service);
            attributes.message(4, |request| {
                request.message(1, |time| write_time(time, began(context)));
                request.message(2, |http| self.http_request(http));
            });
            for (name, value) in self.extensions {
                attributes.entry(10, name.as_bytes(), value.as_bytes());
            }
            let known = [context.connection.metadata.as_deref(), Some(&context.info.metadata)];
            attributes.message(11, |metadata| namespaces(metadata, &config.told.metadata_namespaces, known));
            tls_session(attributes, context.connection, &config.told);
            attributes.message(13, |metadata| self.route_metadata(metadata));
        });
        message.into_bytes()
    }

    fn http_request(&self, http: &mut Message) {
        let context = self.context;
        let view = context.view();
        let id = context.head.headers.get(HeaderId::RequestId).unwrap_or_default();
        http.text(1, id);
        http.text(2, view.method());
        if self.config.encode_raw_headers {
            http.message(13, |map| {
                self.each_header(|name, value| {
                    map.message(1, |header| {
                        header.text(1, name);
                        header.bytes(3, value);
                    });
                });
            });
        } else {
            self.each_joined(|name, value| http.entry(3, name, value));
        }
        http.text(4, view.path());
        http.text(5, view.authority());
        http.text(6, view.scheme());
        http.number(9, context.info.bytes_received);
        http.text(10, context.info.protocol.unwrap_or_default().as_bytes());
        match self.body {
            Some(body) if body.as_bytes => http.bytes(12, body.bytes),
            Some(body) => http.text(11, body.bytes),
            None => {}
        }
    }

    /// Headers that a gRPC service gets, pseudo headers first, several of a name one after the other.
    fn each_header(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let config = self.config;
        let allowed = |name: &[u8]| {
            config.allowed_headers.as_ref().is_none_or(|names| names.has(name)) && !config.disallowed_headers.has(name)
        };
        let view = self.context.view();
        let pseudo = [
            (":authority", view.authority()),
            (":method", view.method()),
            (":path", view.path()),
            (":scheme", view.scheme()),
        ];
        for (name, value) in pseudo.map(|(name, value)| (name.as_bytes(), value)) {
            if !value.is_empty() && allowed(name) {
                each(name, value);
            }
        }
        for (_, name, value) in self.context.head.headers.iter() {
            if name != PARTIAL_BODY && allowed(name) {
                each(name, value);
            }
        }
        if let Some(body) = self.body {
            each(PARTIAL_BODY, if body.partial { b"true" } else { b"false" });
        }
    }

    /// Calls `each` once per name: several values are joined.
    fn each_joined(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let headers = &self.context.head.headers;
        self.each_header(|name, value| {
            if let Some(value) = joined(headers, name, value) {
                each(name, &value);
            }
        });
    }

    fn route_metadata(&self, metadata: &mut Message) {
        let Some(route) = self.context.route.route else { return };
        let namespaces = &self.config.told.route_metadata_namespaces;
        self::namespaces(metadata, namespaces, [None, Some(&route.metadata)]);
        if let Some(origin) = &route.origin
            && namespaces.iter().any(|namespace| **namespace == *"istio")
            && route.metadata.get("istio", &[]).is_none()
        {
            let fields = [("config".into(), MetadataValue::Text((&**origin).into()))];
            namespace(metadata, "istio", &fields);
        }
    }

    /// The request for an HTTP service.
    pub(super) fn to_http(&self, target: &HttpTarget) -> RequestHead {
        let client = &*self.context.head;
        let mut head = RequestHead::default();
        head.set_method(client.method());
        match &target.path {
            PathChange::Prefix(prefix) => head.set_path(&[prefix.as_bytes(), client.path()].concat()),
            PathChange::Override(path) => head.set_path(path.as_bytes()),
        }
        head.set_authority(client.authority());
        let disallowed = &self.config.disallowed_headers;
        let list = self.config.allowed_headers();
        let allowed = |name: &[u8]| list.is_none_or(|names| names.has(name)) && !disallowed.has(name);
        for (id, name, value) in client.headers.iter() {
            if name == PARTIAL_BODY || is_of_framing(id) || !allowed(name) {
                continue;
            }
            if self.config.encode_raw_headers {
                head.headers.append(name, value)
            } else if let Some(value) = joined(&client.headers, name, value) {
                head.headers.append(name, &readable(&value));
            }
        }
        if allowed(b":scheme") {
            head.headers.set(HeaderId::ForwardedProto, self.context.view().scheme());
        }
        if let Some(body) = self.body {
            head.headers.append(PARTIAL_BODY, if body.partial { b"true" } else { b"false" });
        }
        for addition in &target.headers_to_add {
            let value = self.context.value_for(&head, &addition.value);
            header_edits::add_header(&mut head.headers, addition, &value);
        }
        head.headers.remove_hop_by_hop();
        head
    }
}

/// Whether a header says where a message ends, or what becomes of its connection. No such header comes from, or goes to,
/// an authorization service: it is about another message.
pub(super) fn is_of_framing(id: HeaderId) -> bool {
    matches!(
        id,
        HeaderId::Connection
            | HeaderId::ContentLength
            | HeaderId::Expect
            | HeaderId::KeepAlive
            | HeaderId::ProxyConnection
            | HeaderId::Te
            | HeaderId::Trailer
            | HeaderId::TransferEncoding
            | HeaderId::Upgrade
    )
}

/// Returns all values of the header `name` joined, if `value` is the first of them; `None` for the others.
fn joined<'h>(headers: &'h Headers, name: &[u8], value: &'h [u8]) -> Option<Cow<'h, [u8]>> {
    let mut same = headers.iter().filter(|(_, other, _)| *other == name).map(|(_, _, value)| value);
    let Some(first) = same.next() else { return Some(value.into()) };
    let Some(second) = same.next() else { return Some(first.into()) };
    // Two values may be equal, so their addresses are compared.
    if !std::ptr::eq(first, value) {
        return None;
    }
    let mut all = [first, second].join(&b","[..]);
    same.for_each(|value| all.extend_from_slice(&[b",", value].concat()));
    Some(all.into())
}

/// Writes the question about a connection.
pub(super) fn connection(connection: &ConnectionView, told: &CheckAttributes, metadata: &DynamicMetadata) -> Vec<u8> {
    let mut message = Message::default();
    message.message(1, |attributes| {
        peers(attributes, connection, told, b"");
        let known = [connection.metadata.as_deref(), Some(metadata)];
        attributes.message(11, |metadata| namespaces(metadata, &told.metadata_namespaces, known));
        tls_session(attributes, connection, told);
    });
    message.into_bytes()
}

fn peers(attributes: &mut Message, connection: &ConnectionView, told: &CheckAttributes, service: &[u8]) {
    let identity = connection.peer.as_deref();
    attributes.message(1, |source| {
        source.message(1, |address| write_address(address, connection.remote));
        source.text(2, service);
        source.text(4, identity.map(principal).unwrap_or_default().as_bytes());
        let certificate = identity.and_then(|identity| identity.cert_pem_urlencoded.as_deref());
        source.text(5, certificate.filter(|_| told.peer_certificate).unwrap_or_default().as_bytes());
    });
    attributes.message(2, |destination| {
        destination.message(1, |address| write_address(address, connection.local));
        let own = identity.and_then(|identity| identity.local_uri_sans.first());
        destination.text(4, own.map(String::as_str).unwrap_or_default().as_bytes());
    });
}

/// The first name in the certificate that says who it is: URI, DNS name, or subject.
fn principal(identity: &PeerIdentity) -> &str {
    identity.uri_sans.first().or_else(|| identity.host_names().next()).unwrap_or(&identity.subject)
}

fn tls_session(attributes: &mut Message, connection: &ConnectionView, told: &CheckAttributes) {
    if told.tls_session {
        let name = connection.server_name.as_deref().filter(|_| connection.tls).unwrap_or_default();
        attributes.message(12, |session| session.text(1, name.as_bytes()));
    }
}

fn write_address(message: &mut Message, address: SocketAddr) {
    message.message(1, |socket| {
        socket.text(2, address.ip().to_canonical().to_string().as_bytes());
        socket.number(3, address.port().into());
    });
}

/// The namespaces that there are; of two sources the last holds.
fn namespaces(metadata: &mut Message, wanted: &[Box<str>], known: [Option<&DynamicMetadata>; 2]) {
    for name in wanted {
        let found = known.into_iter().rev().flatten().find_map(|known| known.get(name, &[]));
        if let Some(MetadataValue::Object(fields)) = found {
            namespace(metadata, name, fields);
        }
    }
}

fn namespace(metadata: &mut Message, name: &str, fields: &[(Box<str>, MetadataValue)]) {
    metadata.message(1, |entry| {
        entry.text(1, name.as_bytes());
        entry.message(2, |object| object.fields(fields));
    });
}

/// Time since 1970 at which the request began.
fn began(context: &RequestContext<'_>) -> Duration {
    let start = context.services.clock().wall_clock(context.info.times.start(), context.now);
    start.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn write_time(message: &mut Message, since_1970: Duration) {
    message.number(1, since_1970.as_secs());
    message.number(2, since_1970.subsec_nanos().into());
}

/// The part of a body that may be sent; `None`: there is no body.
pub(super) fn sent_body<'b>(body: Body<'b>, max_bytes: usize, as_bytes: bool) -> Option<SentBody<'b>> {
    let (known, more_comes) = match body {
        Body::Whole(bytes) => (bytes, false),
        Body::Start(bytes) => (bytes, true),
        Body::Empty | Body::Coming => return None,
    };
    let bytes = known.get(..max_bytes).unwrap_or(known);
    Some(SentBody { bytes, partial: more_comes || bytes.len() < known.len(), as_bytes })
}
