//! Istio's networking and security kinds, as in its reference.

pub(crate) mod agent_checks;
mod agent_settings;
mod authorization_policy;
mod destination;
mod destination_rule;
mod gateway;
mod http_policy;
mod http_route;
mod mesh_config;
mod never_matching;
mod peer_authentication;
mod proxy_config;
pub(crate) mod proxy_ports;
mod proxy_telemetry;
mod readiness_probe;
mod remote_service;
mod request_authentication;
mod server_tls;
mod service_entry;
mod sidecar;
mod string_match;
mod target_ref;
mod telemetry;
mod tracing;
mod virtual_service;
mod workload_entry;
mod workload_group;

pub use agent_settings::OF_AGENT;
pub use authorization_policy::{
    Action, AuthorizationPolicy, AuthorizationPolicySpec, Condition, From, Operation, Provider, Rule, Source, To,
    names_in_brackets,
};
pub use destination::{Destination, PortSelector};
pub use destination_rule::{
    BackendUtilization, ClientTlsMode, ClientTlsSettings, ConnectionPool, ConsistentHash, CookieAttribute,
    DestinationRule, DestinationRuleSpec, Distribute, Failover, H2UpgradePolicy, Http2KeepAlive, HttpCookie, HttpPool,
    LoadBalancer, LocalityLbSetting, MaglevLb, OutlierDetection, PortTrafficPolicy, ProxyProtocol,
    ProxyProtocolVersion, RetryBudget, RingHashLb, SimpleLb, Subset, TcpKeepalive, TcpPool, TrafficPolicy, Tunnel,
    TunnelProtocol, Warmup, ZoneAwareLbSetting,
};
pub use gateway::{Gateway, GatewayPort, GatewaySpec, Server};
pub use http_policy::{
    CorsPolicy, FaultAbort, FaultDelay, HttpFaultInjection, HttpMirrorPolicy, Percent, UnmatchedPreflights,
};
pub use http_route::{
    Base64, Delegate, DerivePort, DirectResponse, HeaderOperations, Headers, HttpBody, HttpMatch, HttpRedirect,
    HttpRetry, HttpRewrite, HttpRoute, HttpRouteDestination, RegexRewrite,
};
pub use mesh_config::{
    AccessLogEncoding, AccessLogService, CertificateData, CertificateService, DefaultProviders, DefaultTrafficPolicy,
    ExtAuthzGrpc, ExtAuthzHttp, ExtensionProvider, FileAccessLog, FileLogFormat, FurtherRoots, H2Upgrade,
    InboundTrafficPolicy, InboundTrafficPolicyMode, IngressControllerMode, MatchExpression, MatchOperator, MeshConfig,
    MeshOutboundMode, MinTlsVersion, NamespaceSelector, Normalization, OpenTelemetry, OtelAccessLog,
    OutboundTrafficPolicy, PathNormalization, ProviderHeader, ProviderKind, ProviderLog, RequestBody,
    ServiceAttributeEnrichment, ServiceEntryVisibility, ServiceSettings, SettingsLayer, SignerTls, StatVariable,
    TlsConfig, TraceContextOption, Tracer, VisibilityLevel, VisibilityPolicy, VisibilityRule, is_local,
};
pub use peer_authentication::{MtlsMode, MutualTls, PeerAuthentication, PeerAuthenticationSpec};
pub use proxy_config::{
    ConnectionProfile, ConnectionSettings, EscapedSlashes, ForwardClientCert, GatewayTopology, INTERCEPTION_ANNOTATION,
    InterceptionMode, MetadataExchange, MetadataExchangeMode, PROXY_CONFIG_ANNOTATION, ProxyConfig, ProxyConfigKind,
    ProxyConfigSpec, ProxyHeaders, ProxyStatsMatcher, ServerHeader, SetClientCertDetails, Switch, Toggle,
    TracingServiceName, Underscores,
};
pub(crate) use proxy_config::{UNCAPTURED, UNCAPTURED_HELP};
pub use readiness_probe::{
    ExecHealthCheck, GrpcHealthCheck, HttpHealthCheck, ProbeHeader, ProbeScheme, ReadinessProbe, TcpHealthCheck,
};
pub use remote_service::RemoteService;
pub use request_authentication::{
    ClaimToHeader, JwtHeader, JwtRule, RequestAuthentication, RequestAuthenticationSpec, TokenPresence,
};
pub use server_tls::{ServerTlsCertificate, ServerTlsMode, ServerTlsSettings, TlsProtocol};
pub use service_entry::{Location, Resolution, ServiceEntry, ServiceEntryPort, ServiceEntrySpec};
pub use sidecar::{
    CaptureMode, EgressBind, EgressHost, EgressListener, EgressPort, IngressEndpoint, IngressListener,
    OutboundTrafficPolicyMode, Sidecar, SidecarOutboundTrafficPolicy, SidecarPort, SidecarSpec,
};
pub use string_match::StringMatch;
pub use target_ref::TargetRef;
pub use telemetry::{
    MetricSelector, MetricsOverride, ModeSelector, ProviderRef, StandardMetric, TagOperation, TagOverride, Telemetry,
    TelemetryLogging, TelemetryMetrics, TelemetrySpec, TelemetryTag, TelemetryTracing, WorkloadMode,
};
pub use tracing::{
    CustomTag, EnvironmentTag, FormatterTag, HeaderTag, LiteralTag, TagSource, Tracing, ZipkinCollector,
};
pub use virtual_service::{
    L4MatchAttributes, RouteDestination, TcpRoute, TlsMatchAttributes, TlsRoute, VirtualService, VirtualServiceSpec,
};
pub use workload_entry::{
    HEALTH_CHECKS_ANNOTATION, WorkloadCondition, WorkloadEntry, WorkloadEntrySpec, WorkloadEntryStatus,
};
pub use workload_group::{WorkloadGroup, WorkloadGroupMetadata, WorkloadGroupSpec};

use std::collections::BTreeMap;

use evenkeel_base::Spanned;

use crate::decode::Context;

object! {
    /// Chooses workloads by `matchLabels`; the security kinds and DestinationRule write it so.
    pub struct WorkloadSelector {
        /// Labels that must match.
        match_labels: BTreeMap<String, String> = "matchLabels",
    }
}

object! {
    /// Chooses workloads by `labels`; the other networking kinds write it so.
    pub struct LabelsSelector {
        /// Labels that must match.
        labels: BTreeMap<String, String> = "labels",
    }
}

/// Entries of `exportTo`: `.`, `*`, `~` or a namespace; `*` and `~` stand alone.
fn check_export_to(entries: &[Spanned<String>], cx: &mut Context) {
    check_export_to_at("exportTo", entries, cx);
}

/// Like `check_export_to`, for a field of another name in the mesh's defaults.
fn check_export_to_at(field: &str, entries: &[Spanned<String>], cx: &mut Context) {
    cx.at_field(field, |cx| {
        for (index, entry) in entries.iter().enumerate() {
            let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            let known = matches!(entry.as_str(), "." | "*" | "~");
            if !known && (entry.is_empty() || !entry.chars().all(named)) {
                let help = "allowed: `.` (the same namespace), `*` (all), `~` (none), or the name of a namespace";
                cx.at_index(index, |cx| {
                    cx.error("bad-value", &entry.span, format!("`{}` is not allowed here", entry.value), help)
                });
            }
            if matches!(entry.as_str(), "*" | "~") && entries.len() > 1 {
                let message = format!("`{}` cannot be combined with other entries", entry.value);
                cx.at_index(index, |cx| {
                    cx.error("bad-value", &entry.span, message, "keep only this entry, or remove it")
                });
            }
        }
    });
}
