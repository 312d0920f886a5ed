//! What is known of a request or connection when it is logged.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use evenkeel_filters::{ConnectionInfo, FilterFacts};
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;

use crate::response_flags::ResponseFlags;

/// Looks up header values; implemented by the proxy's head representation.
pub trait HeadLookup {
    /// First value of a lower-case name; `:method`, `:path`, `:authority`, `:scheme`, `:status` are pseudo headers.
    fn lookup(&self, name: &str) -> Option<&[u8]>;
}

/// No headers: TCP connections, requests that got no response.
#[derive(Debug, Clone, Copy)]
pub struct NoHead;

impl HeadLookup for NoHead {
    fn lookup(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

/// All values the operators can print. What is `None` (or empty) prints `-` in text and `null` in JSON.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Record<'a> {
    pub start: SystemTime,
    /// From start to the last byte downstream.
    pub duration: Duration,
    /// From start to the last request byte.
    pub request_duration: Option<Duration>,
    /// From start to the first response byte of the upstream.
    pub response_duration: Option<Duration>,
    /// From start to when it had to wait for configuration it needs, and to when it went on.
    pub held: Option<(Duration, Duration)>,
    /// Request head as the upstream got it, with `x-envoy-original-path` when the path was rewritten.
    pub request: &'a dyn HeadLookup,
    pub response: &'a dyn HeadLookup,
    pub trailers: &'a dyn HeadLookup,
    /// `HTTP/1.1`.
    pub protocol: Option<&'static str>,
    /// 0 when no response was sent.
    pub response_code: u16,
    /// `via_upstream`, `route_not_found`…
    pub response_code_details: &'a str,
    pub connection_termination_details: &'a str,
    pub flags: ResponseFlags,
    /// Body bytes from the client.
    pub bytes_received: u64,
    /// Body bytes to the client.
    pub bytes_sent: u64,
    /// `ADDRESS:PORT` of the endpoint.
    pub upstream_host: Option<&'a str>,
    pub upstream_cluster: Option<&'a str>,
    pub upstream_local_address: Option<SocketAddr>,
    pub upstream_transport_failure_reason: &'a str,
    pub upstream_attempts: u32,
    /// What the client dialled.
    pub downstream_local_address: Option<SocketAddr>,
    /// The client, as `x-forwarded-for` or the socket says.
    pub downstream_remote_address: Option<SocketAddr>,
    /// The socket's peer.
    pub downstream_direct_remote_address: Option<SocketAddr>,
    pub downstream_peer_uri_sans: &'a [String],
    pub downstream_local_uri_sans: &'a [String],
    pub downstream_peer_subject: &'a str,
    /// Why its TLS handshake failed.
    pub downstream_transport_failure_reason: &'a str,
    pub downstream_tls_version: Option<&'a str>,
    pub downstream_tls_cipher: Option<&'a str>,
    pub requested_server_name: Option<&'a str>,
    pub route_name: Option<&'a str>,
    pub filter_chain_name: Option<&'a str>,
    pub connection_id: u64,
    /// What HTTP filters have left.
    pub filters: Option<&'a FilterFacts>,
    /// What network filters have found out, where there are no HTTP filters.
    pub connection_metadata: Option<&'a DynamicMetadata>,
    /// What a proxy that was asked for a tunnel answered, and said at its end: JSON.
    pub tunnel_headers: Option<&'a str>,
    pub tunnel_trailers: Option<&'a str>,
}

impl Record<'_> {
    /// A record that knows nothing but its start.
    pub fn new(start: SystemTime) -> Self {
        Self {
            start,
            duration: Duration::ZERO,
            request_duration: None,
            response_duration: None,
            held: None,
            request: &NoHead,
            response: &NoHead,
            trailers: &NoHead,
            protocol: None,
            response_code: 0,
            response_code_details: "",
            connection_termination_details: "",
            flags: ResponseFlags::NONE,
            bytes_received: 0,
            bytes_sent: 0,
            upstream_host: None,
            upstream_cluster: None,
            upstream_local_address: None,
            upstream_transport_failure_reason: "",
            upstream_attempts: 0,
            downstream_local_address: None,
            downstream_remote_address: None,
            downstream_direct_remote_address: None,
            downstream_peer_uri_sans: &[],
            downstream_local_uri_sans: &[],
            downstream_peer_subject: "",
            downstream_transport_failure_reason: "",
            downstream_tls_version: None,
            downstream_tls_cipher: None,
            requested_server_name: None,
            route_name: None,
            filter_chain_name: None,
            connection_id: 0,
            filters: None,
            connection_metadata: None,
            tunnel_headers: None,
            tunnel_trailers: None,
        }
    }
}

impl<'a> Record<'a> {
    /// Adds what is known of the client's connection.
    pub fn set_connection(&mut self, info: &'a ConnectionInfo) {
        let ConnectionInfo { view, session, .. } = info;
        self.downstream_local_address = Some(view.local);
        self.downstream_remote_address = Some(view.remote);
        self.downstream_direct_remote_address = Some(view.direct_remote);
        if let Some(peer) = &view.peer {
            self.downstream_peer_uri_sans = &peer.uri_sans;
            self.downstream_local_uri_sans = &peer.local_uri_sans;
            self.downstream_peer_subject = &peer.subject;
        }
        self.downstream_tls_version = session.as_ref().map(|session| session.version);
        self.downstream_tls_cipher = session.as_ref().map(|session| session.cipher);
        self.requested_server_name = view.server_name.as_deref();
        self.filter_chain_name = info.filter_chain_name.as_deref();
        self.connection_id = info.id;
        self.connection_metadata = view.metadata.as_deref();
    }
}
