//! `envoy.filters.network.http_connection_manager`, compiled.

use std::sync::Arc;
use std::time::Duration;

use crate::access_log::AccessLog;
use crate::demand::OnDemandClusters;
use crate::http2::Http2Options;
use crate::local_reply::LocalReply;
use crate::route_table::RouteTable;
use crate::skip::SkipMatcher;
use crate::tracing::Tracing;

pub use crate::http_filters::HttpFilterConfig;

/// One HTTP connection manager.
#[derive(Debug)]
pub struct HttpConnectionManager {
    /// Statistics prefix `http.PREFIX.`.
    pub stat_prefix: Arc<str>,
    /// Protocols that clients may use.
    pub codec: Codec,
    /// Options of HTTP/2.
    pub http2: Http2Options,
    /// Time between the two GOAWAYs of a draining HTTP/2 connection (5 s).
    pub drain_timeout: Duration,
    /// The source of routes.
    pub routes: RouteSource,
    /// HTTP filters before the router, in order.
    pub filters: Vec<HttpFilter>,
    /// Missing virtual hosts are requested on demand, and the request is held meanwhile (`envoy.filters.http.on_demand`).
    pub on_demand: Option<OnDemand>,
    /// One entry per request.
    pub access_logs: Vec<Arc<AccessLog>>,
    /// Value of the `server` header (`envoy` when unset).
    pub server_name: Arc<str>,
    /// How the `server` header of responses is handled.
    pub server_header: ServerHeader,
    /// Trust the socket's peer address (edge) instead of `x-forwarded-for` (inner hop).
    pub use_remote_address: bool,
    /// Trusted proxies in front, when reading `x-forwarded-for`.
    pub xff_num_trusted_hops: u32,
    /// Leave `x-forwarded-for` unchanged.
    pub skip_xff_append: bool,
    /// Generate an `x-request-id` if there is none.
    pub generate_request_id: bool,
    /// Keep the client's `x-request-id` even at the edge.
    pub preserve_external_request_id: bool,
    /// `x-request-id` tells whether the request is traced (`pack_trace_reason`).
    pub pack_trace_reason: bool,
    /// Send `x-request-id` in responses too.
    pub always_set_request_id_in_response: bool,
    /// How `x-forwarded-client-cert` is handled.
    pub forward_client_cert: ForwardClientCert,
    /// Contents of this proxy's XFCC element (`set_current_client_cert_details`).
    pub client_cert_details: ClientCertDetails,
    /// RFC 3986 normalization of the path (`normalize_path`).
    pub normalize_path: bool,
    /// Adjacent slashes become one.
    pub merge_slashes: bool,
    /// How `%2F`, `%5C` and backslashes in paths are handled.
    pub escaped_slashes: EscapedSlashes,
    /// `Host: name:port` is matched and forwarded without its port.
    pub strip_port: StripPort,
    /// Idle downstream connections are closed after this long (1 h when unset); `None`: never.
    pub idle_timeout: Option<Duration>,
    /// A stream without activity for this long is ended with 408 or reset (5 min when unset); `None`: never.
    pub stream_idle_timeout: Option<Duration>,
    /// Envoy's `stream_flush_timeout`, which defaults to `stream_idle_timeout` here as in Envoy: a response is reset
    /// when its client has read none of the waiting bytes for this long. If streams may be idle forever, this is still
    /// 5 min: a stream whose bytes are not read is not idle, and holds memory that others could use.
    pub stream_flush_timeout: Duration,
    /// The whole request must have arrived within this; `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// From a request's head to the end of its response, regardless of activity; 408 or reset beyond. The route's own
    /// replaces it; `None`: no limit.
    pub max_stream_duration: Option<Duration>,
    /// The request head must have arrived within this, from its first byte (1 min when unset; Envoy has no limit then); `None`: no limit.
    pub request_headers_timeout: Option<Duration>,
    /// Downstream connections are closed after this many requests; `None`: no limit.
    pub max_requests_per_connection: Option<u32>,
    /// Downstream connections are closed at the next message boundary after this long (`max_connection_duration`); `None`: no limit.
    pub max_connection_duration: Option<Duration>,
    /// Limit of the request head (`max_request_headers_kb`, 60 KiB); 431 beyond.
    pub max_request_headers_bytes: usize,
    /// Limit of header lines (100); 431 beyond.
    pub max_headers_count: usize,
    /// How header names with underscores are handled (`headers_with_underscores_action`).
    pub underscores: HeadersWithUnderscores,
    /// HTTP/1 requests with an absolute URL are accepted; otherwise they get 404 (`allow_absolute_url`).
    pub absolute_urls: bool,
    /// Accept HTTP/1.0 requests.
    pub accept_http_10: bool,
    /// The host for HTTP/1.0 requests without one.
    pub default_host_for_http_10: Option<Arc<str>>,
    /// Upgrade types allowed (lower case: `websocket`), when the route does not say otherwise.
    pub upgrades: Vec<Box<str>>,
    /// Forward `Expect: 100-continue` and the upstream's 100 instead of responding with 100 immediately.
    pub proxy_100_continue: bool,
    /// HTTP/1 trailers are forwarded in both directions; otherwise they are checked and dropped.
    pub enable_trailers: bool,
    /// Send header names as `Proper-Case`.
    pub proper_case_response_headers: bool,
    /// Names of headers are passed on over HTTP/1 as the client spells them (`preserve_case`).
    pub preserve_header_case: bool,
    /// What upstreams are told about the client's connection beyond the usual; `None`: nothing.
    pub forwarded: Option<Box<Forwarded>>,
    /// Add no `x-envoy-` headers about times, overload and rewritten paths (`suppress_envoy_headers` of the router).
    pub suppress_envoy_headers: bool,
    /// The value to append to `via`; `None`: nothing.
    pub via: Option<Arc<str>>,
    /// How local replies are modified.
    pub local_reply: Option<LocalReply>,
    /// How requests are traced; `None`: they are not.
    pub tracing: Option<Arc<Tracing>>,
}

impl HttpConnectionManager {
    /// How long the first bytes of a connection may take until they show its protocol: no longer than the head of a request, which they may
    /// be, and no longer than a connection may be idle, because there is no request yet.
    pub fn longest_beginning(&self) -> Option<Duration> {
        let limits = [self.request_headers_timeout, self.request_timeout, self.stream_idle_timeout, self.idle_timeout];
        limits.into_iter().flatten().min()
    }
}

/// An HTTP filter before the router.
#[derive(Debug)]
pub struct HttpFilter {
    /// Its name, by which routes configure it.
    pub name: Arc<str>,
    /// Disabled unless a route enables it (`disabled`).
    pub disabled: bool,
    /// Matches the requests that skip it (`ExtensionWithMatcher`).
    pub skip: Option<Arc<SkipMatcher>>,
    /// Its type and configuration.
    pub config: HttpFilterConfig,
}

/// What upstreams are told about the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forwarded {
    /// `x-forwarded-port` is the port that the client called (`append_x_forwarded_port`).
    pub port: bool,
    /// The scheme of all requests, whatever the client's connection is (`scheme_header_transformation`): `http` or `https`.
    pub scheme: Option<&'static str>,
    /// Whether `:scheme` tells if the upstream's connection is encrypted, not the client's (`match_upstream`).
    pub matches_upstream: bool,
}

/// `codec_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec {
    /// The protocol negotiated by ALPN; without ALPN, HTTP/2 if its preface is received, else HTTP/1.
    #[default]
    Auto,
    /// HTTP/1.0 and 1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// The source of a connection manager's routes.
#[derive(Debug)]
pub enum RouteSource {
    /// Inline.
    Static(Arc<RouteTable>),
    /// RDS: looked up in `Config.routes` for each request.
    Rds(Arc<str>),
}

/// `envoy.filters.http.on_demand`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OnDemand {
    /// Clusters are requested on demand, too (`odcds`).
    pub clusters: Option<OnDemandClusters>,
}

/// `server_header_transformation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerHeader {
    /// Always this proxy's.
    #[default]
    Overwrite,
    /// This proxy's if the upstream sent none.
    AppendIfAbsent,
    /// The upstream's, or none.
    PassThrough,
}

/// `forward_client_cert_details`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardClientCert {
    /// Remove the header.
    #[default]
    Sanitize,
    /// Forward it unchanged, on mutual-TLS connections only.
    ForwardOnly,
    /// Append this proxy's element, on mutual-TLS connections only.
    AppendForward,
    /// Replace it with this proxy's element, on mutual-TLS connections only.
    SanitizeSet,
    /// Forward it always.
    AlwaysForwardOnly,
}

/// `SetCurrentClientCertDetails`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCertDetails {
    /// `Subject=`.
    pub subject: bool,
    /// `Cert=` (URL-encoded PEM).
    pub cert: bool,
    /// `Chain=` (URL-encoded PEM of the whole chain).
    pub chain: bool,
    /// `DNS=` for each DNS SAN.
    pub dns: bool,
    /// `URI=` for each URI SAN.
    pub uri: bool,
}

/// `path_with_escaped_slashes_action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EscapedSlashes {
    /// Forward as is.
    #[default]
    KeepUnchanged,
    /// 400.
    Reject,
    /// 307 to the unescaped path.
    UnescapeAndRedirect,
    /// Forward the unescaped path.
    UnescapeAndForward,
}

/// `headers_with_underscores_action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeadersWithUnderscores {
    /// Treat them like other headers.
    #[default]
    Allow,
    /// 400; over HTTP/2 the stream is reset.
    Reject,
    /// Remove them.
    Drop,
}

/// `strip_matching_host_port` and `strip_any_host_port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StripPort {
    /// Keep the port.
    #[default]
    None,
    /// Strip a port equal to the listener's.
    Matching,
    /// Strip any port.
    Any,
}
