//! MeshConfig: settings of the mesh as a whole.

use std::time::Duration;

use crate::decode::Label;

object! {
    /// The text under `mesh` in the ConfigMap `istio`.
    pub struct MeshConfig {
        /// Of all SPIFFE ids.
        trust_domain: Option<String> = "trustDomain",
        /// Others that are accepted.
        trust_domain_aliases: Vec<String> = "trustDomainAliases",
        /// The namespace whose policies apply to the mesh.
        root_namespace: Option<Label> = "rootNamespace",
        /// What happens to calls of unknown hosts.
        outbound_traffic_policy: Option<OutboundTrafficPolicy> = "outboundTrafficPolicy",
        /// File for access logs.
        access_log_file: Option<String> = "accessLogFile",
        /// Format of their lines.
        access_log_format: Option<String> = "accessLogFormat",
        /// Text or JSON.
        access_log_encoding: Option<AccessLogEncoding> = "accessLogEncoding",
        /// Until a connection is made.
        connect_timeout: Option<Duration> = "connectTimeout",
        /// How long protocol detection waits.
        protocol_detection_timeout: Option<Duration> = "protocolDetectionTimeout",
        /// Mutual TLS by itself where possible.
        enable_auto_mtls: Option<bool> = "enableAutoMtls",
        /// Retries of routes that do not say.
        default_http_retry_policy: Option<DefaultRetryPolicy> = "defaultHttpRetryPolicy",
    }
    later: [
        "proxyListenPort", "proxyInboundListenPort", "proxyHttpPort", "tcpKeepalive", "ingressClass", "ingressService",
        "ingressControllerMode", "ingressSelector", "enableTracing", "enableEnvoyAccessLogService",
        "disableEnvoyListenerLog", "defaultConfig", "inboundTrafficPolicy", "configSources", "caCertificates",
        "defaultServiceExportTo", "defaultVirtualServiceExportTo", "defaultDestinationRuleExportTo",
        "localityLbSetting", "dnsRefreshRate", "h2UpgradePolicy", "inboundClusterStatName", "outboundClusterStatName",
        "certificates", "serviceSettings", "enablePrometheusMerge", "verifyCertificateAtClient", "ca",
        "extensionProviders", "defaultProviders", "discoverySelectors", "pathNormalization", "meshMTLS", "tlsDefaults",
        "serviceScopeConfigs", "serviceSubsetStatName", "statPrefix",
    ];
}

object! {
    /// What happens to calls of unknown hosts.
    pub struct OutboundTrafficPolicy {
        /// ALLOW_ANY if not given.
        mode: Option<OutboundTrafficPolicyMode> = "mode",
    }
    later: ["egressProxy"];
}

choices! {
    /// What happens to calls of unknown hosts.
    pub enum OutboundTrafficPolicyMode {
        /// They pass.
        AllowAny = "ALLOW_ANY",
        /// They are refused.
        RegistryOnly = "REGISTRY_ONLY",
    }
}

choices! {
    /// The form of access logs.
    pub enum AccessLogEncoding {
        /// Lines of text.
        Text = "TEXT",
        /// One JSON object per line.
        Json = "JSON",
    }
}

object! {
    /// Retries of routes that do not say.
    pub struct DefaultRetryPolicy {
        /// Retries after the first try.
        attempts: Option<u32> = "attempts",
    }
    later: ["perTryTimeout", "retryOn", "retryRemoteLocalities", "retryIgnorePreviousHosts", "backoff"];
}
