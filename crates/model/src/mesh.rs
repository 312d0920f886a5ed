//! Settings of the mesh as a whole (Istio's MeshConfig).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use evenkeel_api::istio::{NamespaceSelector, ProxyConfig, ServiceEntryVisibility};
use evenkeel_base::hostname::Hostname;

use crate::authz_provider::AuthzProvider;
use crate::telemetry::TelemetrySettings;
use crate::{
    ClientTls, ConnectionPool, LocalityLb, OutlierDetection, RetryPolicy, Sidecar, SidecarOutboundPolicy, TcpKeepalive,
    TrafficPolicy, Visibility, ZoneAwareLb,
};

/// The label that every namespace has, whether its manifest says so or not (Kubernetes' `NamespaceDefaultLabelName`).
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Roots that vouch for identities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FurtherRoots {
    /// Where the roots come from.
    pub source: RootsSource,
    /// The trust domains whose identities they vouch for; all if there are none.
    pub trust_domains: Vec<Arc<str>>,
}

/// The origin of roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootsSource {
    /// Here, PEM.
    Pem(Arc<str>),
    /// At the URL of a SPIFFE bundle.
    Bundle(Arc<str>),
}

/// A certificate service that signs in place of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalSigner {
    /// HOST:PORT.
    pub address: String,
    /// TLS; none where a server on this machine is asked in plain text.
    pub tls: Option<SignerTls>,
    /// Time limit of an answer.
    pub timeout: Duration,
}

impl ExternalSigner {
    /// Default time limit of an answer, as in Istio.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
}

/// TLS to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SignerTls {
    /// The roots; the system's if there is none.
    pub roots: Option<PathBuf>,
    /// The client's certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Names, one of which the server's certificate must have; that of the address if empty.
    pub names: Vec<String>,
    /// The name sent to the server; that of the address if there is none.
    pub sni: Option<String>,
}

/// Settings of the mesh as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshConfig {
    /// The trust domain of all SPIFFE ids.
    pub trust_domain: Arc<str>,
    /// Other trust domains whose peers are accepted.
    pub trust_domain_aliases: Vec<Arc<str>>,
    /// Roots beside those of the mesh's authority (`caCertificates`).
    pub further_roots: Vec<FurtherRoots>,
    /// The external signer (`ca`), or why nobody signs.
    pub external_signer: Option<Result<Arc<ExternalSigner>, String>>,
    /// The suffix of service names, usually `cluster.local`.
    pub cluster_domain: Arc<str>,
    /// The name of the control plane's own cluster, as its proxies know it (`CLUSTER_ID`).
    pub cluster: Arc<str>,
    /// Whether services with these hosts stay within one cluster (`serviceSettings`).
    pub cluster_local: Vec<(Hostname, bool)>,
    /// The namespace whose policies apply to the mesh.
    pub root_namespace: Arc<str>,
    /// How calls of unknown hosts are handled.
    pub outbound_traffic_policy: OutboundTrafficPolicy,
    /// The egress proxy for calls of unknown hosts, if there is one ([`SidecarOutboundPolicy::EgressProxy`]).
    pub egress_proxy: Option<SidecarOutboundPolicy>,
    /// Whether an agent shows its program's metrics beside its proxy's.
    pub merges_metrics: bool,
    /// TLS to unknown hosts that are looked up (`ALLOW_ANY_DYNAMIC_DNS`); plain text if not given.
    pub unknown_hosts_tls: Option<ClientTls>,
    /// The port of an HTTP proxy in every sidecar, on the loopback address.
    pub http_proxy_port: Option<u16>,
    /// The Sidecar for workloads without one; `None`: they have no egress listeners, and see everything.
    pub default_sidecar: Option<Arc<Sidecar>>,
    /// Whether programs listen at the loopback address only (`inboundTrafficPolicy: LOCALHOST`).
    pub inbound_to_localhost: bool,
    /// The pattern of the names of outbound clusters in statistics ([`evenkeel_api::istio::StatVariable`]).
    pub outbound_stat_name: Option<Arc<str>>,
    /// The pattern of the names of inbound clusters in statistics.
    pub inbound_stat_name: Option<Arc<str>>,
    /// How paths are normalized.
    pub path_normalization: PathNormalization,
    /// File for access logs, e.g. `/dev/stdout`; none = no log.
    pub access_log_file: Option<Arc<str>>,
    /// Envoy's text format for it; none = Istio's.
    pub access_log_format: Option<Arc<str>>,
    /// Whether the log is JSON (`accessLogEncoding: JSON`).
    pub access_log_json: bool,
    /// Destinations of the proxies' spans and of further access logs.
    pub telemetry: TelemetrySettings,
    /// The services that decide about the requests of CUSTOM policies.
    pub authz_providers: Vec<Arc<AuthzProvider>>,
    /// Whether connections that match no filter chain are logged.
    pub logs_unmatched: bool,
    /// Timeout for new connections.
    pub connect_timeout: Duration,
    /// How long protocol detection waits for the first bytes; zero = forever.
    pub protocol_detection_timeout: Duration,
    /// Probes of idle connections, where no DestinationRule says otherwise.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// Whether HTTP/1.1 requests are forwarded over HTTP/2, where no DestinationRule says otherwise.
    pub h2_upgrade: bool,
    /// Locality-aware balancing, where no DestinationRule says otherwise.
    pub locality: Option<LocalityLb>,
    /// Zone-aware balancing, for hosts whose DestinationRule sets nothing about zones and localities.
    pub zone_aware: Option<ZoneAwareLb>,
    /// Limits, where no DestinationRule says otherwise.
    pub connection_pool: Option<ConnectionPool>,
    /// Outlier detection, where no DestinationRule says otherwise.
    pub outlier_detection: Option<OutlierDetection>,
    /// Time between two lookups of a host's addresses by the proxies.
    pub dns_refresh_rate: Duration,
    /// TLS of the mesh's own mutual TLS, where it is terminated.
    pub mesh_tls: TlsRules,
    /// TLS of all other connections.
    pub tls_defaults: TlsRules,
    /// Whether mutual TLS is used automatically towards endpoints with a proxy.
    pub enable_auto_mtls: bool,
    /// The retry policy of routes without one; `None` = Istio's default (2 attempts).
    pub default_http_retry: Option<RetryPolicy>,
    /// What a workload's own proxy sends again. `None`: what was reset before it reached the workload.
    pub default_inbound_http_retry: Option<RetryPolicy>,
    /// `exportTo` of Services and ServiceEntries without one; empty = all namespaces.
    pub service_export_to: Vec<Arc<str>>,
    /// `exportTo` of VirtualServices without one.
    pub virtual_service_export_to: Vec<Arc<str>>,
    /// `exportTo` of DestinationRules without one.
    pub destination_rule_export_to: Vec<Arc<str>>,
    /// Who may see ServiceEntries, by the namespace they are in.
    pub service_entry_visibility: Option<Arc<ServiceEntryVisibility>>,
    /// The namespaces whose objects are read; any of these must match. Empty = all.
    pub discovery_selectors: Arc<[NamespaceSelector]>,
    /// Settings of each proxy (`defaultConfig`).
    pub proxy_defaults: Arc<ProxyConfig>,
    /// Which Ingress objects are served, and by which gateways.
    pub ingress: IngressSettings,
    /// Whether refused security objects are left out, instead of closing what they would have judged. Only an option of the
    /// control plane sets it.
    pub leave_out_refused: bool,
    /// Whether all workloads are on one machine, where nothing else enforces NetworkPolicies. Only `evenkeel up` sets it.
    pub on_one_machine: bool,
    /// Who fetches the keys at a `jwksUri`. Only the environment of the control plane sets it.
    pub jwks_fetching: JwksFetching,
}

/// Who fetches the keys at the `jwksUri` of a RequestAuthentication (Istio's `PILOT_JWT_ENABLE_REMOTE_JWKS`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JwksFetching {
    /// The control plane.
    #[default]
    ControlPlane,
    /// The proxies if the URI's host is a service of the mesh, otherwise the control plane.
    Hybrid,
    /// The proxies.
    Proxies,
}

/// How calls of unknown hosts are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboundTrafficPolicy {
    /// Calls pass.
    AllowAny,
    /// Calls are refused.
    RegistryOnly,
    /// Calls pass. HTTP goes to the host that the request names, which the proxy looks up.
    AllowAnyDynamicDns,
}

impl OutboundTrafficPolicy {
    /// The value as users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllowAny => "ALLOW_ANY",
            Self::RegistryOnly => "REGISTRY_ONLY",
            Self::AllowAnyDynamicDns => "ALLOW_ANY_DYNAMIC_DNS",
        }
    }

    /// Whether calls of unknown hosts pass.
    pub fn allows_any(self) -> bool {
        self != Self::RegistryOnly
    }
}

/// How paths are normalized before anything matches them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathNormalization {
    /// Not at all.
    None,
    /// `.` and `..` segments are resolved (RFC 3986 section 6).
    Base,
    /// In addition, successive slashes are merged.
    MergeSlashes,
    /// In addition, `%2F` and `%5C` are decoded first.
    DecodeAndMergeSlashes,
}

/// Versions, curves and cipher suites of TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsRules {
    /// Whether only TLS 1.3 is accepted; otherwise 1.2, too.
    pub only_1_3: bool,
    /// Curves for the key exchange; empty = the proxy's.
    pub ecdh_curves: Vec<Arc<str>>,
    /// Cipher suites of TLS 1.2 in OpenSSL's spelling; empty = the proxy's.
    pub cipher_suites: Vec<Arc<str>>,
}

/// Which Ingress objects are served, and by which gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressSettings {
    /// Which.
    pub mode: IngressMode,
    /// Their class.
    pub class: Arc<str>,
    /// The Service of the gateway.
    pub service: Arc<str>,
    /// The value of the label `istio` of the gateways; empty: the name of the Service.
    pub selector: Arc<str>,
}

/// Which Ingress objects are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressMode {
    /// No Ingress.
    Off,
    /// Ingresses of the class, and those without a class.
    Default,
    /// Only Ingresses of the class.
    Strict,
}

impl MeshConfig {
    /// The trust domain and its aliases.
    pub fn own_trust_domains(&self) -> impl Iterator<Item = &Arc<str>> {
        std::iter::once(&self.trust_domain).chain(&self.trust_domain_aliases)
    }

    /// Other trust domains whose identities have roots of their own.
    pub fn federated_trust_domains(&self) -> BTreeSet<&Arc<str>> {
        let named = self.further_roots.iter().flat_map(|roots| &roots.trust_domains);
        named.filter(|domain| !self.own_trust_domains().any(|own| own == *domain)).collect()
    }

    /// Returns who sees an object of `namespace` with these entries in `exportTo`; `default` applies if there are none.
    pub fn visibility<'a>(
        entries: impl IntoIterator<Item = &'a str>,
        default: &'a [Arc<str>],
        namespace: &str,
    ) -> Visibility {
        let mut entries = entries.into_iter().peekable();
        match entries.peek() {
            Some(_) => Visibility::from_export_to(entries, namespace),
            None => Visibility::from_export_to(default.iter().map(|entry| &**entry), namespace),
        }
    }

    /// Whether the objects of a namespace with these labels are read.
    pub fn discovers(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        if self.discovery_selectors.is_empty() {
            return true;
        }
        let mut labels = labels.cloned().unwrap_or_default();
        labels.entry(NAME_LABEL.to_owned()).or_insert_with(|| namespace.to_owned());
        self.discovery_selectors.iter().any(|selector| selector.selects(&labels))
    }
}

impl TrafficPolicy {
    /// These settings of a DestinationRule, with the mesh's where it says nothing: for each field of limits and outlier
    /// detection, for each setting of keep-alive probes, and for locality- and
    /// zone-aware balancing as a whole.
    #[must_use]
    pub fn or_of_mesh(mut self, mesh: &MeshConfig) -> Self {
        self.connection_pool = match (self.connection_pool, &mesh.connection_pool) {
            (Some(own), Some(of_mesh)) => Some(own.or(of_mesh)),
            (own, of_mesh) => own.or_else(|| of_mesh.clone()),
        };
        self.outlier_detection = match (self.outlier_detection, &mesh.outlier_detection) {
            (Some(own), Some(of_mesh)) => Some(own.or(of_mesh)),
            (own, of_mesh) => own.or_else(|| of_mesh.clone()),
        };
        let own = self.load_balancer.as_ref();
        let is_silent = own.is_none_or(|own| own.locality.is_none() && own.zone_aware.is_none());
        if let Some(of_mesh) = mesh.zone_aware.as_ref().filter(|zones| is_silent && !zones.disabled) {
            self.load_balancer.get_or_insert_default().zone_aware = Some(of_mesh.clone());
        }
        let has_zones = self.load_balancer.as_ref().is_some_and(|own| own.zones().is_some());
        if let Some(of_mesh) = mesh.locality.as_ref().filter(|_| !has_zones) {
            let balancer = self.load_balancer.get_or_insert_default();
            balancer.locality.get_or_insert_with(|| of_mesh.clone());
        }
        self
    }
}

/// The Services whose clients use only the endpoints of their own cluster unless the settings say otherwise, as in Istio
/// (`defaultClusterLocalNamespaces`, `defaultClusterLocalServices`).
const CLUSTER_LOCAL: [&str; 2] = ["*.kube-system.svc.", "kubernetes.default.svc."];

impl MeshConfig {
    /// Whether the clients of a service use only the endpoints of their own cluster: the most specific setting counts.
    pub fn is_cluster_local(&self, host: &Hostname) -> bool {
        let by_default = CLUSTER_LOCAL.iter().filter_map(|start| {
            let own = Hostname::parse(&format!("{start}{}", self.cluster_domain)).ok()?;
            Some((own, true))
        });
        let all = self.cluster_local.iter().cloned().chain(by_default);
        let mut fitting: Vec<(Hostname, bool)> = all.filter(|(own, _)| own.covers(host)).collect();
        // Of two settings with the same host the user's comes first, and stays first.
        fitting.sort_by(|(a, _), (b, _)| a.specificity(b));
        fitting.first().is_some_and(|(_, is_local)| *is_local)
    }
}

impl Default for MeshConfig {
    /// Istio's defaults.
    fn default() -> Self {
        Self {
            trust_domain: "cluster.local".into(),
            trust_domain_aliases: Vec::new(),
            further_roots: Vec::new(),
            external_signer: None,
            cluster_domain: "cluster.local".into(),
            cluster: "Kubernetes".into(),
            cluster_local: Vec::new(),
            root_namespace: "istio-system".into(),
            outbound_traffic_policy: OutboundTrafficPolicy::AllowAny,
            egress_proxy: None,
            merges_metrics: true,
            unknown_hosts_tls: None,
            http_proxy_port: None,
            default_sidecar: None,
            inbound_to_localhost: false,
            outbound_stat_name: None,
            inbound_stat_name: None,
            path_normalization: PathNormalization::Base,
            access_log_file: None,
            access_log_format: None,
            access_log_json: false,
            telemetry: TelemetrySettings::default(),
            authz_providers: Vec::new(),
            logs_unmatched: true,
            connect_timeout: Duration::from_secs(10),
            protocol_detection_timeout: Duration::ZERO,
            tcp_keepalive: None,
            h2_upgrade: false,
            locality: None,
            zone_aware: None,
            connection_pool: None,
            outlier_detection: None,
            dns_refresh_rate: Duration::from_secs(60),
            mesh_tls: TlsRules::default(),
            tls_defaults: TlsRules::default(),
            enable_auto_mtls: true,
            default_http_retry: None,
            default_inbound_http_retry: None,
            service_export_to: Vec::new(),
            virtual_service_export_to: Vec::new(),
            destination_rule_export_to: Vec::new(),
            service_entry_visibility: None,
            discovery_selectors: Arc::default(),
            proxy_defaults: Arc::default(),
            ingress: IngressSettings {
                mode: IngressMode::Strict,
                class: "istio".into(),
                service: "istio-ingressgateway".into(),
                selector: "".into(),
            },
            leave_out_refused: false,
            on_one_machine: false,
            jwks_fetching: JwksFetching::default(),
        }
    }
}
