//! Settings of the mesh as a whole (Istio's MeshConfig).

use std::sync::Arc;
use std::time::Duration;

use crate::RetryPolicy;

/// Settings of the mesh as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// The trust domain of all SPIFFE ids.
    pub trust_domain: Arc<str>,
    /// Other trust domains whose peers are accepted.
    pub trust_domain_aliases: Vec<Arc<str>>,
    /// The suffix of service names, usually `cluster.local`.
    pub cluster_domain: Arc<str>,
    /// The namespace whose policies apply to the mesh.
    pub root_namespace: Arc<str>,
    /// What happens to calls of unknown hosts.
    pub outbound_traffic_policy: OutboundTrafficPolicy,
    /// File for access logs, e.g. `/dev/stdout`; none = no log.
    pub access_log_file: Option<Arc<str>>,
    /// Envoy's text format for it; none = Istio's.
    pub access_log_format: Option<Arc<str>>,
    /// Whether the log is JSON (`accessLogEncoding: JSON`).
    pub access_log_json: bool,
    /// Timeout for new connections.
    pub connect_timeout: Duration,
    /// How long protocol detection waits for the first bytes; zero = forever.
    pub protocol_detection_timeout: Duration,
    /// Whether mutual TLS is used automatically towards endpoints with a proxy.
    pub enable_auto_mtls: bool,
    /// The retry policy of routes without one; `None` = Istio's default (2 attempts).
    pub default_http_retry: Option<RetryPolicy>,
}

/// What happens to calls of unknown hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboundTrafficPolicy {
    /// Calls pass.
    AllowAny,
    /// Calls are refused.
    RegistryOnly,
}

impl OutboundTrafficPolicy {
    /// The value as users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllowAny => "ALLOW_ANY",
            Self::RegistryOnly => "REGISTRY_ONLY",
        }
    }
}

impl Default for MeshConfig {
    /// Istio's defaults.
    fn default() -> Self {
        Self {
            trust_domain: "cluster.local".into(),
            trust_domain_aliases: Vec::new(),
            cluster_domain: "cluster.local".into(),
            root_namespace: "istio-system".into(),
            outbound_traffic_policy: OutboundTrafficPolicy::AllowAny,
            access_log_file: None,
            access_log_format: None,
            access_log_json: false,
            connect_timeout: Duration::from_secs(10),
            protocol_detection_timeout: Duration::ZERO,
            enable_auto_mtls: true,
            default_http_retry: None,
        }
    }
}
