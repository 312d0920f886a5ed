//! MeshConfig: settings of the mesh as a whole.

use std::time::Duration;

use evenkeel_base::{Diagnostic, Diagnostics, yaml};

use super::HttpRetry;
use crate::decode::{Context, Decode, Label};
use crate::{Object, Resource, refused};

impl MeshConfig {
    /// The name of the ConfigMap with the settings.
    pub(crate) const CONFIG_MAP: &str = "istio";
    /// The name of their text in it.
    pub(crate) const KEY: &str = "mesh";

    /// Whether an object is a ConfigMap with the name of the mesh's settings, in any namespace.
    pub fn is_in(object: &Object) -> bool {
        matches!(&object.resource, Resource::ConfigMap(map) if &*object.name == Self::CONFIG_MAP && map.data.contains_key(Self::KEY))
    }

    /// Reads the settings from such a ConfigMap; if it is refused, only the settings without a mistake. `None`: it is
    /// another object.
    pub fn of_object(object: &Object) -> Option<(Self, Diagnostics)> {
        if let (Some(_), Resource::ConfigMap(map)) = (&object.refused, &object.resource) {
            return Some((refused::mesh_config(map.data.get(Self::KEY)?)?, Diagnostics::new()));
        }
        let (config, diagnostics) = Self::read(object)?;
        Some((config?, diagnostics))
    }

    /// The settings, if they can be used, and what is wrong with them.
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
        let mut cx = Context::new("Istio");
        let config = documents
            .first()
            .and_then(|document| cx.at_field("data", |cx| cx.at_field(Self::KEY, |cx| Self::decode(document, cx))));
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
        /// What happens to calls of unknown hosts.
        outbound_traffic_policy: Option<OutboundTrafficPolicy> = "outboundTrafficPolicy",
        /// File for access logs.
        access_log_file: Option<String> = "accessLogFile",
        /// Format of their lines.
        access_log_format: Option<String> = "accessLogFormat",
        /// Text or JSON.
        access_log_encoding: Option<AccessLogEncoding> = "accessLogEncoding",
        /// Timeout for new connections.
        connect_timeout: Option<Duration> = "connectTimeout",
        /// How long protocol detection waits.
        protocol_detection_timeout: Option<Duration> = "protocolDetectionTimeout",
        /// Whether mutual TLS is used automatically where possible.
        enable_auto_mtls: Option<bool> = "enableAutoMtls",
        /// The retry policy of routes without one.
        default_http_retry_policy: Option<HttpRetry> = "defaultHttpRetryPolicy",
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
        /// Calls pass.
        AllowAny = "ALLOW_ANY",
        /// Calls are refused.
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
