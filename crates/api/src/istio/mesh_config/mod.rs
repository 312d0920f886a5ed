//! MeshConfig: settings of the mesh as a whole (Istio's "Global Mesh Options").

mod certificate_service;
mod further_roots;
mod policies;
mod providers;
mod services;
mod stat_names;
mod visibility;

pub(super) use certificate_service::is_address;
pub use certificate_service::{CertificateService, SignerTls, is_local};
pub use further_roots::FurtherRoots;
pub use policies::{
    AccessLogEncoding, DefaultTrafficPolicy, H2Upgrade, InboundTrafficPolicy, InboundTrafficPolicyMode,
    IngressControllerMode, MeshOutboundMode, MinTlsVersion, Normalization, OutboundTrafficPolicy, PathNormalization,
    TlsConfig,
};
pub use providers::{
    CertificateData, DefaultProviders, ExtAuthzGrpc, ExtAuthzHttp, ExtensionProvider, FileAccessLog, FileLogFormat,
    OtelAccessLog, ProviderKind, ProviderLog, RequestBody,
};
pub use services::{
    AccessLogService, OpenTelemetry, ProviderHeader, ServiceAttributeEnrichment, TraceContextOption, Tracer,
};
pub use stat_names::StatVariable;
pub use visibility::{
    MatchExpression, MatchOperator, NamespaceSelector, ServiceEntryVisibility, ServiceSettings, VisibilityLevel,
    VisibilityPolicy, VisibilityRule,
};

use std::time::Duration;

use evenkeel_base::yaml::Node;
use evenkeel_base::{Diagnostic, Diagnostics, Spanned, yaml};

use super::destination_rule::{LocalityLbSetting, TcpKeepalive, ZoneAwareLbSetting};
use super::{HttpRetry, ProxyConfig, check_export_to_at, proxy_ports};
use crate::decode::{Context, Decode, Label, documented};
use crate::{Object, Resource};

/// The ConfigMaps with settings, in the order in which they are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingsLayer {
    /// The one that `SHARED_MESH_CONFIG` names: settings of all revisions.
    Shared,
    /// That of the control plane's revision, which takes precedence.
    Revision,
}

impl SettingsLayer {
    /// The value of [`MeshConfig::SETTINGS_ANNOTATION`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Revision => "revision",
        }
    }
}

impl MeshConfig {
    /// The name of the ConfigMap with the settings.
    pub(crate) const CONFIG_MAP: &str = "istio";
    /// The annotation of a ConfigMap of another name that has the settings as well. The source that has selected it adds it, with
    /// one of the values of [`SettingsLayer`].
    pub const SETTINGS_ANNOTATION: &str = "mesh.evenkeel.dev/settings";
    /// The name of their text in it.
    pub const KEY: &str = "mesh";

    /// The settings without which the rest allows more than its author wrote: a mistake in one of them is an error.
    pub(crate) const GUARDS: &'static [&'static str] = &[
        "outboundTrafficPolicy",
        "pathNormalization",
        "meshMTLS",
        "tlsDefaults",
        "serviceEntryVisibility",
        "rootNamespace",
        "trustDomain",
        "trustDomainAliases",
        "enableAutoMtls",
        "verifyCertificateAtClient",
        "ca",
    ];

    /// The port on which every sidecar has an HTTP proxy, if it can have one there (`proxyHttpPort`).
    pub fn http_proxy_port(&self) -> Option<Spanned<u16>> {
        let written = self.proxy_http_port.as_ref()?;
        let port = u16::try_from(written.value).ok().filter(|port| *port != 0)?;
        proxy_ports::use_of(proxy_ports::OF_SIDECARS, port).is_none().then(|| Spanned::new(port, written.span.clone()))
    }

    /// Returns a decoder for the settings: a field of a newer version is a warning, unless ignoring it could open something.
    pub(crate) fn context() -> Context {
        Context::new("Istio").lenient(Self::GUARDS)
    }

    /// Whether an object is a ConfigMap with the mesh's settings, in any namespace.
    pub fn is_in(object: &Object) -> bool {
        Self::layer(object).is_some()
            && matches!(&object.resource, Resource::ConfigMap(map) if map.data.contains_key(Self::KEY))
    }

    /// Which of the ConfigMaps with settings an object is, if it is one.
    pub fn layer(object: &Object) -> Option<SettingsLayer> {
        match object.annotations.get(Self::SETTINGS_ANNOTATION) {
            Some(layer) if layer.value == SettingsLayer::Shared.as_str() => Some(SettingsLayer::Shared),
            Some(layer) if layer.value == SettingsLayer::Revision.as_str() => Some(SettingsLayer::Revision),
            _ => (&*object.name == Self::CONFIG_MAP).then_some(SettingsLayer::Revision),
        }
    }

    /// Returns the settings, if they can be used, and the findings about them.
    pub(crate) fn read(object: &Object) -> Option<(Option<Self>, Diagnostics)> {
        let text = match &object.resource {
            Resource::ConfigMap(map) if Self::is_in(object) => map.data.get(Self::KEY)?,
            _ => return None,
        };
        let (documents, mut diagnostics) = yaml::parse_within(&text.span, text);
        if documents.len() > 1 {
            let message = format!("`data.{}`: only one YAML document is expected", Self::KEY);
            diagnostics
                .push(Diagnostic::error("yaml-syntax", text.span.clone(), message).with_help("remove the `---`"));
        }
        let mut cx = Self::context();
        let config = documents
            .first()
            .map(|document| documented(document, Self::FIELDS))
            .and_then(|document| cx.at_field("data", |cx| cx.at_field(Self::KEY, |cx| Self::decode(&document, cx))));
        diagnostics.extend(cx.into_diagnostics());
        let usable = config.filter(|_| !diagnostics.has_errors());
        Some((usable, diagnostics))
    }
}

object! {
    /// The text under `mesh` in the ConfigMap `istio`.
    pub struct MeshConfig {
        /// The trust domain of all SPIFFE ids.
        trust_domain: Option<String> = "trustDomain",
        /// Other trust domains that are accepted.
        trust_domain_aliases: Vec<String> = "trustDomainAliases",
        /// The namespace whose policies apply to the mesh.
        root_namespace: Option<Label> = "rootNamespace",
        /// How calls of unknown hosts are handled.
        outbound_traffic_policy: Option<OutboundTrafficPolicy> = "outboundTrafficPolicy",
        /// The address on which programs listen: the one that was called, or the loopback address.
        inbound_traffic_policy: Option<InboundTrafficPolicy> = "inboundTrafficPolicy",
        /// How paths are normalized before anything matches them.
        path_normalization: Option<PathNormalization> = "pathNormalization",
        /// File for access logs.
        access_log_file: Option<String> = "accessLogFile",
        /// Format of their lines.
        access_log_format: Option<Spanned<String>> = "accessLogFormat",
        /// Text or JSON.
        access_log_encoding: Option<AccessLogEncoding> = "accessLogEncoding",
        /// Whether connections that match no filter chain are left out of the access log.
        disable_envoy_listener_log: Option<bool> = "disableEnvoyListenerLog",
        /// Timeout for new connections.
        connect_timeout: Option<Duration> = "connectTimeout",
        /// How long protocol detection waits.
        protocol_detection_timeout: Option<Duration> = "protocolDetectionTimeout",
        /// Probes of idle connections, where no DestinationRule says otherwise.
        tcp_keepalive: Option<TcpKeepalive> = "tcpKeepalive",
        /// Whether HTTP/1.1 requests are forwarded over HTTP/2, where no DestinationRule says otherwise.
        h2_upgrade_policy: Option<H2Upgrade> = "h2UpgradePolicy",
        /// Locality-aware balancing, where no DestinationRule says otherwise.
        locality_lb_setting: Option<LocalityLbSetting> = "localityLbSetting",
        /// Zone-aware balancing, where no DestinationRule says otherwise.
        zone_aware_lb_setting: Option<ZoneAwareLbSetting> = "zoneAwareLbSetting",
        /// Limits and outlier detection, where no DestinationRule says otherwise.
        default_traffic_policy: Option<DefaultTrafficPolicy> = "defaultTrafficPolicy",
        /// Time between two lookups of a host's addresses by the proxies; 60 s if not given.
        dns_refresh_rate: Option<Duration> = "dnsRefreshRate",
        /// Whether mutual TLS is used automatically where possible.
        enable_auto_mtls: Option<bool> = "enableAutoMtls",
        /// Whether clients verify a server's certificate if the DestinationRule names no roots; they always do.
        verify_certificate_at_client: Option<Spanned<bool>> = "verifyCertificateAtClient",
        /// TLS of the mesh's own mutual TLS.
        mesh_mtls: Option<TlsConfig> = "meshMTLS",
        /// TLS of all other connections.
        tls_defaults: Option<TlsConfig> = "tlsDefaults",
        /// The retry policy of routes without one.
        default_http_retry_policy: Option<HttpRetry> = "defaultHttpRetryPolicy",
        /// What a workload's own proxy sends again, except on ports for gRPC; what was reset before it reached the workload if not given.
        default_inbound_http_retry_policy: Option<HttpRetry> = "defaultInboundHttpRetryPolicy",
        /// Who sees Services and ServiceEntries without `exportTo`.
        default_service_export_to: Vec<Spanned<String>> = "defaultServiceExportTo",
        /// Who sees VirtualServices without `exportTo`.
        default_virtual_service_export_to: Vec<Spanned<String>> = "defaultVirtualServiceExportTo",
        /// Who sees DestinationRules without `exportTo`.
        default_destination_rule_export_to: Vec<Spanned<String>> = "defaultDestinationRuleExportTo",
        /// Who may see ServiceEntries, by the namespace they are in.
        service_entry_visibility: Option<ServiceEntryVisibility> = "serviceEntryVisibility",
        /// The namespaces whose objects are read; any of these must match.
        discovery_selectors: Vec<NamespaceSelector> = "discoverySelectors",
        /// Which services stay within one cluster.
        service_settings: Vec<ServiceSettings> = "serviceSettings",
        /// The pattern of the names of outbound clusters in statistics.
        outbound_cluster_stat_name: Option<Spanned<String>> = "outboundClusterStatName",
        /// The pattern of the names of inbound clusters in statistics.
        inbound_cluster_stat_name: Option<Spanned<String>> = "inboundClusterStatName",
        /// Settings of each proxy.
        default_config: Option<ProxyConfig> = "defaultConfig",
        /// Services that proxies call for authorization, logs, metrics and traces.
        extension_providers: Vec<ExtensionProvider> = "extensionProviders",
        /// Which of them are used without a Telemetry object.
        default_providers: Option<DefaultProviders> = "defaultProviders",
        /// Whether the agent shows a program's metrics and its proxy's on one page; it does if not given.
        enable_prometheus_merge: Option<bool> = "enablePrometheusMerge",
        /// Whether requests are traced where proxies have a collector; they are if not given.
        enable_tracing: Option<bool> = "enableTracing",
        /// Whether access logs are sent to the proxies' `envoyAccessLogService`.
        enable_envoy_access_log_service: Option<Spanned<bool>> = "enableEnvoyAccessLogService",
        /// Port of an HTTP proxy in every sidecar, on the loopback address; 0: none.
        proxy_http_port: Option<Spanned<u32>> = "proxyHttpPort",
        /// Port of captured outbound connections; only 15001.
        proxy_listen_port: Option<Spanned<u32>> = "proxyListenPort",
        /// Port of captured inbound connections; only 15006.
        proxy_inbound_listen_port: Option<Spanned<u32>> = "proxyInboundListenPort",
        /// Whether Ingress objects are served; see `ingressControllerMode`.
        ingress_controller_mode: Option<Spanned<IngressControllerMode>> = "ingressControllerMode",
        /// The class of Ingress objects that are served; `istio` if not given.
        ingress_class: Option<Spanned<String>> = "ingressClass",
        /// The Service of the gateway that serves Ingress objects.
        ingress_service: Option<Spanned<String>> = "ingressService",
        /// The value of the label `istio` of the gateways that serve Ingress objects.
        ingress_selector: Option<Spanned<String>> = "ingressSelector",
        /// Further root certificates, which may count for some trust domains only.
        ca_certificates: Vec<Spanned<CertificateData>> = "caCertificates",
        /// A certificate service that signs in place of the control plane.
        ca: Option<Spanned<CertificateService>> = "ca",
    }
    later: [
        "certificates" = "the control plane issues no certificates for DNS names; workloads get theirs from their agent",
    ];
    inert: [
        "configSources" = "the control plane reads the directories it was started with (`--config`)",
        "serviceScopeConfigs" = "there is no ambient mode",
        "hboneIdleTimeout" = "there is no ambient mode",
    ];
    removed: [
        "thriftConfig" = "remove it; Istio has no filter for Thrift any more",
        "mixerCheckServer" = "remove it; AuthorizationPolicies with `action: CUSTOM` ask an external authorizer",
    ];
    check: check;
}

/// The ports of the capture rules; the proxies listen nowhere else.
const LISTEN_PORTS: [u32; 2] = [15001, 15006];

fn check(config: &MeshConfig, _: &Node, cx: &mut Context) {
    for (name, entries) in [
        ("defaultServiceExportTo", &config.default_service_export_to),
        ("defaultVirtualServiceExportTo", &config.default_virtual_service_export_to),
        ("defaultDestinationRuleExportTo", &config.default_destination_rule_export_to),
    ] {
        check_export_to_at(name, entries, cx);
    }
    let ports =
        [("proxyListenPort", &config.proxy_listen_port), ("proxyInboundListenPort", &config.proxy_inbound_listen_port)];
    for ((name, written), expected) in ports.into_iter().zip(LISTEN_PORTS) {
        let Some(port) = written.as_ref().filter(|port| port.value != expected) else { continue };
        let message = format!("the capture rules lead to port {expected}; {} is ignored", port.value);
        cx.at_field(name, |cx| {
            cx.warning("unsupported-value", &port.span, message, format!("write {expected}, or remove it"))
        });
    }
    if let Some(port) = &config.proxy_http_port {
        cx.at_field("proxyHttpPort", |cx| match u16::try_from(port.value) {
            Ok(number) => proxy_ports::check(proxy_ports::OF_SIDECARS, number, &port.span, cx),
            Err(_) => {
                let message = format!("{} is no port; no HTTP proxy is made", port.value);
                cx.warning("bad-value", &port.span, message, "write a number from 1 to 65535, or 0 for none");
            }
        });
    }
    if let Some(verify) = config.verify_certificate_at_client.as_ref().filter(|verify| !verify.value) {
        let message = "clients verify servers' certificates in any case";
        let help = "to accept any certificate of one server, set `insecureSkipVerify` in its DestinationRule";
        cx.at_field("verifyCertificateAtClient", |cx| cx.warning("unsupported-value", &verify.span, message, help));
    }
    certificate_service::check(config.ca.as_ref(), cx);
    further_roots::check(&config.ca_certificates, cx);
    policies::check_access_log(config, cx);
    stat_names::check(config, cx);
    providers::check_references(config, cx);
    check_log_service(config, cx);
}

/// Names a log that goes nowhere, as far as the mesh's settings alone can tell.
fn check_log_service(config: &MeshConfig, cx: &mut Context) {
    let Some(wanted) = config.enable_envoy_access_log_service.as_ref().filter(|wanted| wanted.value) else { return };
    let named = config.default_config.as_ref().is_some_and(|proxy| proxy.log_service().is_some());
    if !named {
        let message = "`defaultConfig` has no `envoyAccessLogService`; only proxies with one of their own send logs";
        let help = "write `envoyAccessLogService: {address: HOST:PORT}` in `defaultConfig`";
        cx.at_field("enableEnvoyAccessLogService", |cx| cx.note("no-effect", &wanted.span, message, help));
    }
}
