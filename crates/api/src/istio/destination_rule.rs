//! DestinationRule: how a service is called.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::{PortSelector, WorkloadSelector, check_export_to};
use crate::decode::Context;

object! {
    /// How a service is called.
    pub struct DestinationRule {
        /// What is wanted.
        spec: DestinationRuleSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// How a service is called.
    pub struct DestinationRuleSpec {
        /// The service; may be a wildcard.
        host: Spanned<Hostname> = "host",
        /// For all subsets that do not say otherwise.
        traffic_policy: Option<TrafficPolicy> = "trafficPolicy",
        /// Parts of the service.
        subsets: Vec<Spanned<Subset>> = "subsets",
        /// Who sees it.
        export_to: Vec<Spanned<String>> = "exportTo",
        /// Which clients use it.
        workload_selector: Option<WorkloadSelector> = "workloadSelector",
    }
    check: check;
}

object! {
    /// Part of a service.
    pub struct Subset {
        /// Its name.
        name: Spanned<String> = "name",
        /// Labels of its endpoints.
        labels: BTreeMap<String, String> = "labels",
        /// What it overrides.
        traffic_policy: Option<TrafficPolicy> = "trafficPolicy",
    }
}

object! {
    /// Settings of connections.
    pub struct TrafficPolicy {
        /// Which endpoint is next.
        load_balancer: Option<LoadBalancer> = "loadBalancer",
        /// Limits.
        connection_pool: Option<ConnectionPool> = "connectionPool",
        /// TLS.
        tls: Option<Spanned<ClientTlsSettings>> = "tls",
        /// Settings of single ports.
        port_level_settings: Vec<PortTrafficPolicy> = "portLevelSettings",
    }
    later: ["outlierDetection", "tunnel", "proxyProtocol", "retryBudget"];
    check: check_ports;
}

object! {
    /// Settings of one port.
    pub struct PortTrafficPolicy {
        /// The port.
        port: Spanned<PortSelector> = "port",
        /// Which endpoint is next.
        load_balancer: Option<LoadBalancer> = "loadBalancer",
        /// Limits.
        connection_pool: Option<ConnectionPool> = "connectionPool",
        /// TLS.
        tls: Option<Spanned<ClientTlsSettings>> = "tls",
    }
    later: ["outlierDetection"];
}

object! {
    /// Which endpoint is next.
    pub struct LoadBalancer {
        /// By a simple algorithm.
        simple: Option<SimpleLb> = "simple",
    }
    later: [
        "consistentHash", "localityLbSetting", "warmup", "warmupDurationSecs", "backendUtilization", "zoneAwareLbSetting",
    ];
}

choices! {
    /// Which endpoint is next.
    pub enum SimpleLb {
        /// The default.
        Unspecified = "UNSPECIFIED",
        /// In turn.
        RoundRobin = "ROUND_ROBIN",
        /// The less busy of two.
        LeastRequest = "LEAST_REQUEST",
        /// The older name of LEAST_REQUEST.
        LeastConn = "LEAST_CONN",
        /// A random one.
        Random = "RANDOM",
        /// The one the client called.
        Passthrough = "PASSTHROUGH",
    }
}

object! {
    /// Limits.
    pub struct ConnectionPool {
        /// Of connections.
        tcp: Option<TcpPool> = "tcp",
        /// Of requests.
        http: Option<HttpPool> = "http",
    }
}

object! {
    /// Limits of connections.
    pub struct TcpPool {
        /// To all endpoints together.
        max_connections: Option<u32> = "maxConnections",
        /// Until one is made.
        connect_timeout: Option<Duration> = "connectTimeout",
    }
    later: ["tcpKeepalive", "maxConnectionDuration", "idleTimeout"];
}

object! {
    /// Limits of requests.
    pub struct HttpPool {
        /// Waiting for a connection.
        http1_max_pending_requests: Option<u32> = "http1MaxPendingRequests",
        /// At a time.
        http2_max_requests: Option<u32> = "http2MaxRequests",
        /// Per connection.
        max_requests_per_connection: Option<u32> = "maxRequestsPerConnection",
    }
    later: ["maxRetries", "idleTimeout", "h2UpgradePolicy", "useClientProtocol", "maxConcurrentStreams", "http2KeepAlive"];
}

object! {
    /// TLS of a client.
    pub struct ClientTlsSettings {
        /// What kind; DISABLE if not given.
        mode: Option<ClientTlsMode> = "mode",
        /// Our chain, a path.
        client_certificate: Option<String> = "clientCertificate",
        /// Our key, a path.
        private_key: Option<String> = "privateKey",
        /// Roots to trust, a path.
        ca_certificates: Option<String> = "caCertificates",
        /// Names of which the server's certificate must have one.
        subject_alt_names: Vec<String> = "subjectAltNames",
        /// The name sent to the server.
        sni: Option<String> = "sni",
        /// Whether any certificate will do.
        insecure_skip_verify: bool = "insecureSkipVerify",
    }
    refused: ["credentialName", "caCrl"];
    check: check_tls;
}

choices! {
    /// What kind of TLS a client uses.
    pub enum ClientTlsMode {
        /// None.
        Disable = "DISABLE",
        /// The server shows a certificate.
        Simple = "SIMPLE",
        /// Both show certificates.
        Mutual = "MUTUAL",
        /// Both show the mesh's certificates.
        IstioMutual = "ISTIO_MUTUAL",
    }
}

fn check(spec: &DestinationRuleSpec, _: &Node, cx: &mut Context) {
    check_export_to(&spec.export_to, cx);
    for (index, subset) in spec.subsets.iter().enumerate() {
        cx.at_field("subsets", |cx| {
            cx.at_index(index, |cx| {
                let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
                if subset.name.is_empty() || !subset.name.chars().all(inner) {
                    let message = format!("`{}` is not a valid name", subset.name.value);
                    cx.error("bad-name", &subset.name.span, message, "expected letters, digits, `-`, `_` and `.`");
                }
                if spec.subsets.iter().take(index).any(|s| s.name == subset.name) {
                    let message = format!("the subset `{}` appears twice", subset.name.value);
                    cx.error("duplicate-subset", &subset.name.span, message, "give each subset its own name");
                }
            });
        });
    }
}

fn check_ports(policy: &TrafficPolicy, _: &Node, cx: &mut Context) {
    for (index, settings) in policy.port_level_settings.iter().enumerate() {
        if policy.port_level_settings.iter().take(index).any(|s| s.port == settings.port) {
            let message = format!("port {} appears twice", settings.port.number.0);
            cx.at_field("portLevelSettings", |cx| {
                cx.error("port-conflict", &settings.port.span, message, "merge the two entries");
            });
        }
    }
}

fn check_tls(tls: &ClientTlsSettings, node: &Node, cx: &mut Context) {
    let files = [
        (tls.client_certificate.is_some(), "clientCertificate"),
        (tls.private_key.is_some(), "privateKey"),
        (tls.ca_certificates.is_some(), "caCertificates"),
    ];
    match tls.mode.unwrap_or(ClientTlsMode::Disable) {
        ClientTlsMode::Mutual => {
            for (_, name) in files.into_iter().take(2).filter(|(given, _)| !given) {
                cx.error(
                    "missing-field",
                    &node.span,
                    format!("mode MUTUAL needs `{name}`"),
                    "give the path of a PEM file",
                );
            }
        }
        ClientTlsMode::IstioMutual => {
            for (_, name) in files.into_iter().filter(|(given, _)| *given) {
                let help = "remove it, or use mode MUTUAL";
                cx.error(
                    "conflict",
                    node.span_of_path(name),
                    format!("mode ISTIO_MUTUAL uses the mesh's certificates, not `{name}`"),
                    help,
                );
            }
        }
        ClientTlsMode::Simple | ClientTlsMode::Disable => {}
    }
}
