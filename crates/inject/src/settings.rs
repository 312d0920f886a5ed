//! Settings of a workload's proxy, from ProxyConfig and from the Pod's annotations.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use evenkeel_api::annotations::{AGENT_ANNOTATIONS, LogLevels, program_metrics, status_port};
use evenkeel_api::istio::{INTERCEPTION_ANNOTATION, InterceptionMode, PROXY_CONFIG_ANNOTATION, ProxyConfig};
use evenkeel_base::Spanned;

/// Port of the proxy's admin interface, as in Istio.
pub const ADMIN_PORT: u16 = 15000;

/// Settings of a workload's proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxySettings {
    /// The annotation `proxy.istio.io/config`, which the control plane reads, too.
    pub annotation: Option<String>,
    /// The annotation `sidecar.istio.io/interceptionMode`, which the control plane reads, too.
    pub interception: Option<String>,
    /// How connections are captured.
    pub mode: InterceptionMode,
    /// The WorkloadGroup that it registers for. Then it is no Pod.
    pub membership: Option<Membership>,
    /// Whether the agent answers the workload's DNS queries (`ISTIO_META_DNS_CAPTURE`); it does if nothing is said.
    pub captures_dns: Option<bool>,
    /// Whether programs start only when the proxy is ready (`holdApplicationUntilProxyStarts`).
    pub holds_programs: bool,
    /// `proxyMetadata`.
    pub metadata: BTreeMap<String, String>,
    /// Worker threads; 0: one per core.
    pub concurrency: Option<u32>,
    /// How long connections may continue when it stops.
    pub drain: Option<Duration>,
    /// Fields of ProxyConfig that the agent reads, as JSON.
    pub agent_config: serde_json::Map<String, serde_json::Value>,
    /// The port of its admin interface, if it is another than Istio's.
    pub admin_port: Option<u16>,
    /// The location of its program's metrics, which the agent merges, as JSON.
    pub program_metrics: Option<String>,
    /// The port of the agent's page, if one is named; 0: there is none.
    pub status_port: Option<u16>,
    /// Log levels, by annotations.
    pub log_levels: LogLevels,
    /// The Pod's annotations that the agent reads.
    pub for_agent: BTreeMap<String, String>,
}

/// A workload's place in a WorkloadGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: String,
    /// How its agent checks its health, as JSON.
    pub probe: Option<serde_json::Value>,
}

impl ProxySettings {
    /// The settings in a ProxyConfig.
    pub fn of_config(config: &ProxyConfig) -> Self {
        Self {
            annotation: None,
            interception: None,
            mode: config.interception(),
            membership: None,
            captures_dns: config.dns_capture(),
            holds_programs: config.hold_application_until_proxy_starts.as_ref().is_some_and(|holds| holds.value),
            metadata: config.proxy_metadata.iter().map(|(name, value)| (name.clone(), value.value.clone())).collect(),
            concurrency: config.concurrency,
            drain: config.termination_drain_duration,
            agent_config: config.for_agent(),
            admin_port: config.admin_port(),
            log_levels: LogLevels::default(),
            program_metrics: None,
            status_port: config.status_port(),
            for_agent: BTreeMap::new(),
        }
    }

    /// The settings of a Pod's proxy. `shared` is the ProxyConfig without the Pod's annotations; `merges_metrics` is the mesh's
    /// `enablePrometheusMerge`.
    pub fn of_pod(shared: ProxyConfig, annotations: &BTreeMap<String, Spanned<String>>, merges_metrics: bool) -> Self {
        let config = match ProxyConfig::of_pod(annotations) {
            Some(own) => own.over(shared),
            None => shared,
        };
        let settings = Self::of_config(&config);
        let text = |name: &str| annotations.get(name).map(|text| text.value.clone());
        let for_agent = annotations.iter().filter(|(name, _)| AGENT_ANNOTATIONS.contains(&name.as_str()));
        Self {
            annotation: text(PROXY_CONFIG_ANNOTATION),
            interception: text(INTERCEPTION_ANNOTATION),
            for_agent: for_agent.map(|(name, value)| (name.clone(), value.value.clone())).collect(),
            log_levels: LogLevels::of(annotations),
            program_metrics: program_metrics(annotations, merges_metrics),
            status_port: status_port(annotations).or(settings.status_port),
            ..settings
        }
    }

    /// Where its admin interface listens, in the workload's network namespace.
    pub fn admin(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.admin_port.unwrap_or(ADMIN_PORT)).into()
    }
}
