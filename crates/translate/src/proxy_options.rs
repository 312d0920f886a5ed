//! The parts of a proxy's ProxyConfig that its configuration depends on.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use evenkeel_api::istio::{
    ConnectionProfile, ConnectionSettings, EscapedSlashes, ForwardClientCert, InterceptionMode, ProxyConfig,
    ProxyHeaders, Switch, TagSource, Toggle, Underscores,
};
use evenkeel_model::MeshConfig;
use evenkeel_model::telemetry::TagValue;

use crate::pb::core::http_protocol_options::HeadersWithUnderscoresAction;
use crate::pb::hcm::http_connection_manager::{
    ForwardClientCertDetails, PathWithEscapedSlashesAction, SetCurrentClientCertDetails,
};
use crate::proto::bool_value;

/// The parts of a proxy's ProxyConfig that its configuration depends on. Proxies that differ in it share no resources.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ProxyOptions {
    /// `gatewayTopology.numTrustedProxies`.
    pub trusted_proxies: u32,
    /// Whether connections to a gateway begin with the PROXY protocol's header.
    pub proxy_protocol: bool,
    /// `gatewayTopology.forwardClientCertDetails`.
    pub forward_at_gateway: Option<ForwardClientCertDetails>,
    /// `proxyHeaders.forwardedClientCert`, for requests that a sidecar receives.
    pub forward_at_sidecar: Option<ForwardClientCertDetails>,
    /// `proxyHeaders.setCurrentClientCertDetails`.
    pub certificate: Option<CertificateParts>,
    /// `proxyHeaders.requestId.disabled`.
    pub no_request_id: bool,
    /// `proxyHeaders.envoyDebugHeaders.disabled`.
    pub no_debug_headers: bool,
    /// `proxyHeaders.attemptCount.disabled`.
    pub no_attempt_count: bool,
    /// `proxyHeaders.preserveHttp1HeaderCase`.
    pub preserves_case: bool,
    /// `proxyHeaders.xForwardedHost.enabled`.
    pub forwards_host: bool,
    /// `proxyHeaders.xForwardedPort.enabled`.
    pub forwards_port: bool,
    /// `proxyHeaders.server`.
    pub server: ServerName,
    /// `connectionSettings`.
    pub connections: Connections,
    /// `ISTIO_META_DNS_CAPTURE` of `proxyMetadata`; `None`: not said.
    pub dns_capture: Option<bool>,
    /// `ISTIO_META_DNS_AUTO_ALLOCATE` of `proxyMetadata`; `None`: not said.
    pub dns_auto_allocate: Option<bool>,
    /// `ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE` of `proxyMetadata`, for an Envoy: Evenkeel's proxy always balances.
    pub exact_balance_inbound: bool,
    /// `ISTIO_META_OUTBOUND_LISTENER_EXACT_BALANCE` of `proxyMetadata`, for an Envoy.
    pub exact_balance_outbound: bool,
    /// `interceptionMode`. With `TPROXY` its listeners are transparent, and it calls its workload with the client's address;
    /// with `NONE` they bind their ports.
    pub interception: InterceptionMode,
    /// `EVENKEEL_AMBIGUOUS_REQUESTS: FORWARD` of `proxyMetadata`: what policies and servers may read differently is not refused.
    pub forwards_ambiguous: bool,
    /// `meshId`; `None`: the trust domain.
    pub mesh_id: Option<Arc<str>>,
    /// `tracing`; `None`: not said.
    pub tracing: Option<Arc<TracingOptions>>,
    /// Whether its bootstrap has a collector of spans.
    pub has_collector: bool,
    /// Whether its bootstrap has a service for access logs.
    pub has_log_service: bool,
    /// Whether it is told to use X25519MLKEM768, see [`ProxyView::takes_hybrid_curve`](crate::ProxyView::takes_hybrid_curve).
    pub names_hybrid_curve: bool,
}

/// Sampling and tags of a proxy's tracing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TracingOptions {
    /// Share of requests that are traced without an explicit request for tracing, in millionths.
    pub sampling: u32,
    /// The longest path in a span, in bytes.
    pub max_path_bytes: Option<u32>,
    /// Whether spans have Istio's tags of the workload.
    pub istio_tags: bool,
    /// Further tags, in the order of their names.
    pub tags: Vec<(String, TagValue)>,
}

impl TracingOptions {
    /// One percent.
    const PERCENT: f64 = 10_000.0;

    /// Returns the options of this configuration; `None`: it sets nothing about tracing.
    fn of(config: &ProxyConfig) -> Option<Arc<Self>> {
        let said = config.tracing.as_ref()?;
        let tag = |(name, source): (&str, TagSource<'_>)| (name.to_owned(), TagValue::of(source));
        Some(Arc::new(Self {
            sampling: (config.sampling() * Self::PERCENT).round() as u32,
            max_path_bytes: said.max_path_tag_length.filter(|most| *most > 0),
            istio_tags: said.enable_istio_tags.unwrap_or(true),
            tags: said.tags().map(tag).collect(),
        }))
    }

    /// The share of sampled requests, in percent.
    pub fn percent(&self) -> f64 {
        f64::from(self.sampling) / Self::PERCENT
    }
}

impl Default for TracingOptions {
    /// Returns the options of a proxy without tracing settings.
    fn default() -> Self {
        let sampling = (ProxyConfig::default().sampling() * Self::PERCENT).round() as u32;
        Self { sampling, max_path_bytes: None, istio_tags: true, tags: Vec::new() }
    }
}

/// The `server` header of responses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum ServerName {
    /// Istio's.
    #[default]
    Default,
    /// That of the server behind the proxy.
    PassThrough,
    /// This one.
    Named(Arc<str>),
}

/// The parts of a certificate in `x-forwarded-client-cert`; unset ones have Istio's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CertificateParts {
    subject: Option<bool>,
    cert: Option<bool>,
    chain: Option<bool>,
    dns: Option<bool>,
    uri: Option<bool>,
}

/// Limits of connections from clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Connections {
    /// Whether Envoy's recommendations for the edge fill unset fields, in gateways.
    edge: bool,
    /// Idle connections are closed after this time.
    pub idle: Option<Duration>,
    /// How long a connection may last.
    pub max_duration: Option<Duration>,
    /// How long a request may last.
    pub max_stream_duration: Option<Duration>,
    /// A request without any byte for so long is ended.
    pub stream_idle: Option<Duration>,
    /// Limit for a whole request to arrive.
    pub request: Option<Duration>,
    /// Limit for a request's headers to arrive.
    pub request_headers: Option<Duration>,
    /// Time between the announcement that a connection ends and its end.
    pub drain: Option<Duration>,
    /// Requests at a time on one HTTP/2 connection.
    pub max_streams: Option<u32>,
    /// HTTP/2's window of a stream, in bytes.
    pub stream_window: Option<u32>,
    /// HTTP/2's window of a connection, in bytes.
    pub connection_window: Option<u32>,
    /// How requests with an underscore in a header's name are handled.
    pub underscores: Option<HeadersWithUnderscoresAction>,
    /// Whether successive slashes are merged.
    pub merge_slashes: Option<bool>,
    /// How `%2F` and `%5C` in the path are handled.
    pub escaped_slashes: Option<PathWithEscapedSlashesAction>,
}

/// What TLS of one proxy depends on.
#[derive(Debug, Clone, Copy)]
pub struct TlsContext<'a> {
    /// The mesh's settings.
    pub mesh: &'a MeshConfig,
    /// Whether it is told to use X25519MLKEM768 where nothing is said of curves.
    pub names_hybrid_curve: bool,
    /// Whether it takes names only from certificates that verify, where others are let in: an Envoy's policies and
    /// `x-forwarded-client-cert` have those of any.
    pub identifies_only_verified: bool,
}

impl ProxyOptions {
    /// Returns the options of a proxy without settings.
    pub fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<ProxyOptions>> = LazyLock::new(Arc::default);
        NONE.clone()
    }

    /// Returns the options of this configuration.
    pub fn of(config: &ProxyConfig) -> Self {
        let topology = config.gateway_topology.as_ref();
        let headers = config.proxy_headers.as_ref();
        let disabled = |toggle: fn(&ProxyHeaders) -> Option<&Toggle>| {
            headers.and_then(toggle).and_then(|toggle| toggle.disabled).unwrap_or_default()
        };
        let enabled = |switch: fn(&ProxyHeaders) -> Option<&Switch>| {
            headers.and_then(switch).and_then(|switch| switch.enabled).unwrap_or_default()
        };
        let server = headers.and_then(|headers| headers.server.as_ref());
        Self {
            mesh_id: config.mesh_id.as_deref().filter(|id| !id.is_empty()).map(Into::into),
            trusted_proxies: topology.and_then(|t| t.num_trusted_proxies).unwrap_or_default(),
            proxy_protocol: topology.is_some_and(|t| t.proxy_protocol.is_some()),
            forward_at_gateway: topology.and_then(|t| t.forward_client_cert_details).and_then(forward),
            forward_at_sidecar: headers.and_then(|h| h.forwarded_client_cert).and_then(forward),
            certificate: headers.and_then(|h| h.set_current_client_cert_details.as_ref()).map(|parts| {
                CertificateParts {
                    subject: parts.subject,
                    cert: parts.cert,
                    chain: parts.chain,
                    dns: parts.dns,
                    uri: parts.uri,
                }
            }),
            no_attempt_count: disabled(|headers| headers.attempt_count.as_ref()),
            preserves_case: headers.and_then(|headers| headers.preserve_http1_header_case) == Some(true),
            forwards_host: enabled(|headers| headers.x_forwarded_host.as_ref()),
            forwards_port: enabled(|headers| headers.x_forwarded_port.as_ref()),
            no_request_id: disabled(|headers| headers.request_id.as_ref()),
            no_debug_headers: disabled(|headers| headers.envoy_debug_headers.as_ref()),
            server: match server {
                Some(server) if server.disabled == Some(true) => ServerName::PassThrough,
                Some(server) => match server.value.as_deref().filter(|value| !value.is_empty()) {
                    Some(value) => ServerName::Named(value.into()),
                    None => ServerName::Default,
                },
                None => ServerName::Default,
            },
            connections: config.connection_settings.as_ref().map(connections).unwrap_or_default(),
            dns_capture: config.dns_capture(),
            dns_auto_allocate: config.dns_auto_allocate(),
            exact_balance_inbound: config.exact_balance_inbound(),
            exact_balance_outbound: config.exact_balance_outbound(),
            interception: config.interception(),
            forwards_ambiguous: config.forwards_ambiguous(),
            tracing: TracingOptions::of(config),
            // Only the node knows what its bootstrap contains, whatever is written later.
            has_collector: false,
            has_log_service: false,
            names_hybrid_curve: false,
        }
    }
}

impl CertificateParts {
    /// These parts over the defaults.
    pub fn over(self, default: SetCurrentClientCertDetails) -> SetCurrentClientCertDetails {
        SetCurrentClientCertDetails {
            subject: self.subject.map(bool_value).or(default.subject),
            cert: self.cert.unwrap_or(default.cert),
            chain: self.chain.unwrap_or(default.chain),
            dns: self.dns.unwrap_or(default.dns),
            uri: self.uri.unwrap_or(default.uri),
            ..default
        }
    }
}

impl Connections {
    /// Returns the settings that apply in a gateway or sidecar: the profile EDGE fills unset fields, in gateways only
    /// (istiod's `applyEdgeProfileDefaults`).
    #[must_use]
    pub fn at(self, is_gateway: bool) -> Self {
        if !self.edge || !is_gateway {
            return self;
        }
        let seconds = |number| Some(Duration::from_secs(number));
        Self {
            idle: self.idle.or(seconds(3600)),
            stream_idle: self.stream_idle.or(seconds(300)),
            request: self.request.or(seconds(300)),
            request_headers: self.request_headers.or(seconds(60)),
            max_streams: self.max_streams.or(Some(100)),
            stream_window: self.stream_window.or(Some(64 * 1024)),
            connection_window: self.connection_window.or(Some(1024 * 1024)),
            underscores: self.underscores.or(Some(HeadersWithUnderscoresAction::RejectRequest)),
            merge_slashes: self.merge_slashes.or(Some(true)),
            escaped_slashes: self.escaped_slashes.or(Some(PathWithEscapedSlashesAction::UnescapeAndRedirect)),
            ..self
        }
    }
}

fn forward(said: ForwardClientCert) -> Option<ForwardClientCertDetails> {
    match said {
        ForwardClientCert::Undefined => None,
        ForwardClientCert::Sanitize => Some(ForwardClientCertDetails::Sanitize),
        ForwardClientCert::ForwardOnly => Some(ForwardClientCertDetails::ForwardOnly),
        ForwardClientCert::AppendForward => Some(ForwardClientCertDetails::AppendForward),
        ForwardClientCert::SanitizeSet => Some(ForwardClientCertDetails::SanitizeSet),
        ForwardClientCert::AlwaysForwardOnly => Some(ForwardClientCertDetails::AlwaysForwardOnly),
    }
}

fn connections(said: &ConnectionSettings) -> Connections {
    Connections {
        edge: said.profile == Some(ConnectionProfile::Edge),
        idle: said.http_idle_timeout,
        max_duration: said.http_max_connection_duration,
        max_stream_duration: said.http_max_stream_duration,
        stream_idle: said.http_stream_idle_timeout,
        request: said.http_request_timeout,
        request_headers: said.http_request_headers_timeout,
        drain: said.http_drain_timeout,
        max_streams: said.http_max_concurrent_streams,
        stream_window: said.http2_initial_stream_window_size,
        connection_window: said.http2_initial_connection_window_size,
        underscores: said.http_headers_with_underscores_action.and_then(|action| match action {
            Underscores::Unspecified => None,
            Underscores::Allow => Some(HeadersWithUnderscoresAction::Allow),
            Underscores::RejectRequest => Some(HeadersWithUnderscoresAction::RejectRequest),
            Underscores::DropHeader => Some(HeadersWithUnderscoresAction::DropHeader),
        }),
        merge_slashes: said.http_merge_slashes,
        escaped_slashes: said.http_path_with_escaped_slashes_action.and_then(|action| match action {
            EscapedSlashes::Unspecified => None,
            EscapedSlashes::KeepUnchanged => Some(PathWithEscapedSlashesAction::KeepUnchanged),
            EscapedSlashes::RejectRequest => Some(PathWithEscapedSlashesAction::RejectRequest),
            EscapedSlashes::UnescapeAndRedirect => Some(PathWithEscapedSlashesAction::UnescapeAndRedirect),
            EscapedSlashes::UnescapeAndForward => Some(PathWithEscapedSlashesAction::UnescapeAndForward),
        }),
    }
}
