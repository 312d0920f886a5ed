//! `envoy.filters.network.http_connection_manager`, compiled.

use std::sync::Arc;
use std::time::Duration;

use crate::access_log::AccessLog;
use crate::http2::Http2Options;
use crate::listener::OnDemandClusters;
use crate::local_reply::LocalReply;
use crate::route::RouteTable;
use crate::skip::SkipMatcher;

pub use crate::http_filters::HttpFilterConfig;

/// One HTTP connection manager.
#[derive(Debug)]
pub struct HttpConnectionManager {
    /// Statistics prefix `http.PREFIX.`.
    pub stat_prefix: Arc<str>,
    /// What clients may speak.
    pub codec: Codec,
    /// How HTTP/2 is spoken.
    pub http2: Http2Options,
    /// Between the announcement that an HTTP/2 connection ends and its last stream id (5 s).
    pub drain_timeout: Duration,
    /// Where routes come from.
    pub routes: RouteSource,
    /// HTTP filters before the router, in order.
    pub filters: Vec<HttpFilter>,
    /// Virtual hosts that are not there are asked for, and the request held meanwhile (`envoy.filters.http.on_demand`).
    pub on_demand: Option<OnDemand>,
    /// One entry per request.
    pub access_logs: Vec<Arc<AccessLog>>,
    /// Value of the `server` header (`envoy` when unset).
    pub server_name: Arc<str>,
    /// What happens to the `server` header of responses.
    pub server_header: ServerHeader,
    /// Trust the socket's peer address (edge) instead of `x-forwarded-for` (inner hop).
    pub use_remote_address: bool,
    /// Trusted proxies in front, when reading `x-forwarded-for`.
    pub xff_num_trusted_hops: u32,
    /// Leave `x-forwarded-for` as it came.
    pub skip_xff_append: bool,
    /// Make an `x-request-id` when there is none.
    pub generate_request_id: bool,
    /// Keep the client's `x-request-id` even at the edge.
    pub preserve_external_request_id: bool,
    /// Send `x-request-id` in responses too.
    pub always_set_request_id_in_response: bool,
    /// What happens to `x-forwarded-client-cert`.
    pub forward_client_cert: ForwardClientCert,
    /// What our XFCC element says (`set_current_client_cert_details`).
    pub client_cert_details: ClientCertDetails,
    /// RFC 3986 normalization of the path (`normalize_path`).
    pub normalize_path: bool,
    /// Adjacent slashes become one.
    pub merge_slashes: bool,
    /// What happens to `%2F`, `%5C` and backslashes in paths.
    pub escaped_slashes: EscapedSlashes,
    /// `Host: name:port` is matched and forwarded without its port.
    pub strip_port: StripPort,
    /// Idle downstream connections are closed after this long (1 h when unset); `None`: never.
    pub idle_timeout: Option<Duration>,
    /// A stream with no activity for this long is ended with 408 or reset (5 min when unset); `None`: never.
    pub stream_idle_timeout: Option<Duration>,
    /// Envoy's `stream_flush_timeout`, which follows `stream_idle_timeout` there as here: an answer of which bytes wait for a client that
    /// takes none for so long is reset. Where streams may be idle for ever this is 5 min all the same: one whose bytes are not taken is
    /// not idle, and holds what others could use.
    pub stream_flush_timeout: Duration,
    /// The whole request must have arrived within this; `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// From a request's head to the end of its response, whatever moves; 408 or reset beyond. The route's own holds instead;
    /// `None`: no limit.
    pub max_stream_duration: Option<Duration>,
    /// The request head must have arrived within this, from its first byte (1 min when unset; Envoy has no limit then); `None`: no limit.
    pub request_headers_timeout: Option<Duration>,
    /// Downstream connections end after this many requests; `None`: never.
    pub max_requests_per_connection: Option<u32>,
    /// Downstream connections end at the next message boundary after this long (`max_connection_duration`); `None`: never.
    pub max_connection_duration: Option<Duration>,
    /// Limit of the request head (`max_request_headers_kb`, 60 KiB); beyond it 431.
    pub max_request_headers_bytes: usize,
    /// Limit of header lines (100); beyond it 431.
    pub max_headers_count: usize,
    /// What happens to header names with underscores (`headers_with_underscores_action`).
    pub underscores: HeadersWithUnderscores,
    /// HTTP/1 requests for a URL are served as such; otherwise they are answered 404 (`allow_absolute_url`).
    pub absolute_urls: bool,
    /// Accept HTTP/1.0 requests.
    pub accept_http_10: bool,
    /// Answer for HTTP/1.0 requests without a host.
    pub default_host_for_http_10: Option<Arc<str>>,
    /// Upgrade types allowed (lower case: `websocket`), when the route does not say otherwise.
    pub upgrades: Vec<Box<str>>,
    /// Forward `Expect: 100-continue` and the upstream's 100 instead of answering 100 at once.
    pub proxy_100_continue: bool,
    /// HTTP/1 trailers are passed on, both ways; otherwise they are checked and dropped.
    pub enable_trailers: bool,
    /// Send header names as `Proper-Case`.
    pub proper_case_response_headers: bool,
    /// The value of `via` to append; empty: none.
    pub via: Option<Arc<str>>,
    /// What becomes of the proxy's own answers.
    pub local_reply: Option<LocalReply>,
}

/// An HTTP filter before the router.
#[derive(Debug)]
pub struct HttpFilter {
    /// Its name, by which routes configure it.
    pub name: Arc<str>,
    /// It is off unless a route switches it on (`disabled`).
    pub disabled: bool,
    /// The requests that pass it by (`ExtensionWithMatcher`).
    pub skip: Option<Arc<SkipMatcher>>,
    /// What it is.
    pub config: HttpFilterConfig,
}

/// `codec_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec {
    /// What ALPN agreed on; without it HTTP/2 if its preface comes, else HTTP/1.
    #[default]
    Auto,
    /// HTTP/1.0 and 1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Where a connection manager's routes come from.
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
    /// Clusters are asked for, too (`odcds`).
    pub clusters: Option<OnDemandClusters>,
}

/// `server_header_transformation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerHeader {
    /// Always ours.
    #[default]
    Overwrite,
    /// Ours only when the upstream sent none.
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
    /// Forward it as it came, on mutual-TLS connections only.
    ForwardOnly,
    /// Append our element, on mutual-TLS connections only.
    AppendForward,
    /// Replace it with our element, on mutual-TLS connections only.
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
    /// They are headers like others.
    #[default]
    Allow,
    /// 400; over HTTP/2 the stream is reset.
    Reject,
    /// They are left out.
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
