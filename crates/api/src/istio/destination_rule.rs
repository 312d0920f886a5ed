//! DestinationRule: how a service is called.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::server_tls::check_credential;
use super::{PortSelector, WorkloadSelector, check_export_to};
use crate::decode::{Context, Decimal, HeaderName, Port};

object! {
    /// Settings for calls to a service.
    pub struct DestinationRule {
        /// The specification.
        spec: DestinationRuleSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// Settings for calls to a service.
    pub struct DestinationRuleSpec {
        /// The service; may be a wildcard.
        host: Spanned<Hostname> = "host",
        /// The settings of all subsets without their own.
        traffic_policy: Option<TrafficPolicy> = "trafficPolicy",
        /// Parts of the service.
        subsets: Vec<Spanned<Subset>> = "subsets",
        /// The namespaces that see it.
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
        /// The settings that it overrides.
        traffic_policy: Option<TrafficPolicy> = "trafficPolicy",
    }
}

object! {
    /// Settings of connections.
    pub struct TrafficPolicy {
        /// How an endpoint is selected.
        load_balancer: Option<LoadBalancer> = "loadBalancer",
        /// Limits on connections and requests.
        connection_pool: Option<ConnectionPool> = "connectionPool",
        /// TLS settings.
        tls: Option<Spanned<ClientTlsSettings>> = "tls",
        /// Outlier detection: which endpoints are ejected because of their failures.
        outlier_detection: Option<OutlierDetection> = "outlierDetection",
        /// Retries as a share of requests.
        retry_budget: Option<RetryBudget> = "retryBudget",
        /// Settings of single ports.
        port_level_settings: Vec<PortTrafficPolicy> = "portLevelSettings",
        /// The PROXY protocol header that connections to endpoints begin with.
        proxy_protocol: Option<ProxyProtocol> = "proxyProtocol",
        /// A tunnel through the service for TCP and TLS connections.
        tunnel: Option<Tunnel> = "tunnel",
    }
    check: check_ports;
}

object! {
    /// A tunnel through the service, a proxy, to another host. It is for TCP and TLS connections only.
    pub struct Tunnel {
        /// How the tunnel is requested; by CONNECT if not given.
        protocol: Option<TunnelProtocol> = "protocol",
        /// The host behind the tunnel: a name or an address.
        target_host: Spanned<String> = "targetHost",
        /// Its port.
        target_port: Port = "targetPort",
    }
    check: check_tunnel;
}

choices! {
    /// The method that requests a tunnel.
    pub enum TunnelProtocol {
        /// CONNECT.
        Connect = "CONNECT",
        /// POST.
        Post = "POST",
    }
}

object! {
    /// The PROXY protocol, which tells endpoints the client's address in a header at the beginning of the connection.
    pub struct ProxyProtocol {
        /// The version; V1 if not given.
        version: Option<ProxyProtocolVersion> = "version",
    }
}

choices! {
    /// A form of the PROXY protocol's header.
    pub enum ProxyProtocolVersion {
        /// The text format.
        V1 = "V1",
        /// The binary format.
        V2 = "V2",
    }
}

object! {
    /// Settings of one port.
    pub struct PortTrafficPolicy {
        /// The port.
        port: Spanned<PortSelector> = "port",
        /// How an endpoint is selected.
        load_balancer: Option<LoadBalancer> = "loadBalancer",
        /// Limits on connections and requests.
        connection_pool: Option<ConnectionPool> = "connectionPool",
        /// TLS settings.
        tls: Option<Spanned<ClientTlsSettings>> = "tls",
        /// Outlier detection: which endpoints are ejected because of their failures.
        outlier_detection: Option<OutlierDetection> = "outlierDetection",
    }
}

object! {
    /// Outlier detection: which endpoints are ejected because of their failures.
    pub struct OutlierDetection {
        /// Whether local failures (such as failed connections) are counted apart from errors that endpoints return.
        split_external_local_origin_errors: bool = "splitExternalLocalOriginErrors",
        /// Consecutive local failures; used only if these are counted apart.
        consecutive_local_origin_failures: Option<u32> = "consecutiveLocalOriginFailures",
        /// Consecutive answers of 502, 503 and 504; 0 = off.
        consecutive_gateway_errors: Option<u32> = "consecutiveGatewayErrors",
        /// Consecutive answers of 5xx; 0 = off.
        consecutive_5xx_errors: Option<u32> = "consecutive5xxErrors",
        /// Time between two checks for endpoints that may return.
        interval: Option<Duration> = "interval",
        /// Duration of an endpoint's first ejection.
        base_ejection_time: Option<Duration> = "baseEjectionTime",
        /// The largest share of endpoints that may be ejected, in percent.
        max_ejection_percent: Option<Spanned<u32>> = "maxEjectionPercent",
        /// Minimum share of healthy endpoints: with fewer, all are used.
        min_health_percent: Option<Spanned<u32>> = "minHealthPercent",
        /// The share of a failing endpoint's answers that are errors, in percent; 0 = off.
        failure_percentage_threshold: Option<Spanned<u32>> = "failurePercentageThreshold",
        /// The statuses that count as errors, instead of 5xx.
        http_error_codes: Vec<Spanned<u32>> = "outlierDetectionHttpErrorCodes",
    }
    removed: ["consecutiveErrors" = "write `consecutive5xxErrors` or `consecutiveGatewayErrors`"];
    check: check_outliers;
}

object! {
    /// Retries as a share of requests.
    pub struct RetryBudget {
        /// The share, in percent; 20 if not given.
        percent: Option<Spanned<Decimal>> = "percent",
        /// Retries that are always allowed; 3 if not given.
        min_retry_concurrency: Option<u32> = "minRetryConcurrency",
        /// The window in which requests are counted; if not given, they count while they are active.
        budget_interval: Option<Duration> = "budgetInterval",
    }
    check: check_budget;
}

object! {
    /// How an endpoint is selected.
    pub struct LoadBalancer {
        /// A simple algorithm.
        simple: Option<SimpleLb> = "simple",
        /// Consistent hashing.
        consistent_hash: Option<ConsistentHash> = "consistentHash",
        /// By the utilization that endpoints report.
        backend_utilization: Option<BackendUtilization> = "backendUtilization",
        /// Locality-aware balancing.
        locality_lb_setting: Option<LocalityLbSetting> = "localityLbSetting",
        /// Zone-aware balancing.
        zone_aware_lb_setting: Option<ZoneAwareLbSetting> = "zoneAwareLbSetting",
        /// Slow start of new endpoints.
        warmup: Option<Warmup> = "warmup",
        /// The older form of `warmup`: its duration.
        warmup_duration_secs: Option<Spanned<Duration>> = "warmupDurationSecs",
    }
    check: check_load_balancer;
}

object! {
    /// Consistent hashing: requests with the same value go to the same endpoint.
    pub struct ConsistentHash {
        /// Hash the value of this header.
        http_header_name: Option<HeaderName> = "httpHeaderName",
        /// Hash the value of this cookie.
        http_cookie: Option<HttpCookie> = "httpCookie",
        /// Hash the client's address.
        use_source_ip: bool = "useSourceIp",
        /// Hash the value of this query parameter.
        http_query_parameter_name: Option<String> = "httpQueryParameterName",
        /// Use a hash ring.
        ring_hash: Option<RingHashLb> = "ringHash",
        /// Use a Maglev table.
        maglev: Option<MaglevLb> = "maglev",
        /// The older form of `ringHash`.
        minimum_ring_size: Option<u32> = "minimumRingSize",
    }
    check: check_consistent_hash;
}

object! {
    /// A cookie; the proxy sets it if the client has none.
    pub struct HttpCookie {
        /// Its name.
        name: Spanned<String> = "name",
        /// Its path.
        path: Option<String> = "path",
        /// Its lifetime; if not given, the proxy sets no cookie.
        ttl: Option<Duration> = "ttl",
        /// Further attributes.
        attributes: Vec<CookieAttribute> = "attributes",
    }
}

object! {
    /// A further attribute of a cookie.
    pub struct CookieAttribute {
        /// Its name.
        name: String = "name",
        /// Its value, if it has one.
        value: Option<String> = "value",
    }
}

object! {
    /// A hash ring.
    pub struct RingHashLb {
        /// Least number of points; 1024 if not given.
        minimum_ring_size: Option<u32> = "minimumRingSize",
    }
}

object! {
    /// A Maglev table.
    pub struct MaglevLb {
        /// Number of entries, a prime; 65537 if not given.
        table_size: Option<Spanned<u32>> = "tableSize",
    }
}

object! {
    /// Weights from the load reports in endpoints' responses (ORCA); endpoints without one get the median of the others.
    pub struct BackendUtilization {
        /// How long an endpoint must have reported before its weight is used; 10 s if not given.
        weight_stabilization_period: Option<Duration> = "weightStabilizationPeriod",
        /// After this long without a report a weight is no longer used; 3 min if not given.
        weight_expiration_period: Option<Duration> = "weightExpirationPeriod",
        /// How often weights are computed; 1 s if not given, 100 ms at least.
        weight_update_period: Option<Duration> = "weightUpdatePeriod",
        /// The percentage by which the error rate increases the utilization; 0 if not given.
        error_utilization_penalty_percent: Option<u32> = "errorUtilizationPenaltyPercent",
        /// The metrics whose maximum is the utilization, such as `named_metrics.NAME` and `cpu_utilization`.
        metric_names_for_computing_utilization: Vec<Spanned<String>> = "metricNamesForComputingUtilization",
    }
    check: check_utilization;
}

object! {
    /// Requests stay in the client's zone as far as its endpoints can take them, and in its region if that has endpoints.
    /// Zones count for proxies with `ISTIO_META_ENABLE_SELF_DISCOVERY: "true"` in `proxyMetadata`.
    pub struct ZoneAwareLbSetting {
        /// Whether it applies; it does if not given.
        enabled: Option<bool> = "enabled",
        /// Minimum number of healthy endpoints in the client's region: with fewer, zones are ignored; 6 if not given.
        min_cluster_size: Option<Spanned<u32>> = "minClusterSize",
        /// The region to go to when the client's region has no healthy endpoint.
        failover: Vec<Spanned<Failover>> = "failover",
        /// Labels whose values endpoints should share with the client, the most important first; `NAME=VALUE` gives the
        /// value itself. They count more than the region.
        failover_priority: Vec<Spanned<String>> = "failoverPriority",
    }
    check: check_zone_aware;
}

object! {
    /// How requests are distributed among localities.
    pub struct LocalityLbSetting {
        /// Shares by the locality of the client.
        distribute: Vec<Distribute> = "distribute",
        /// The region to fail over to when a region has no healthy endpoint; works only with `outlierDetection`.
        failover: Vec<Spanned<Failover>> = "failover",
        /// Labels whose values endpoints should share with the client, the most important first; `NAME=VALUE` gives the
        /// value itself. Works only with `outlierDetection`.
        failover_priority: Vec<Spanned<String>> = "failoverPriority",
        /// Whether it applies; it does if not given.
        enabled: Option<bool> = "enabled",
    }
    check: check_locality;
}

object! {
    /// The region to fail over to when a region has no healthy endpoint.
    pub struct Failover {
        /// The client's region.
        from: String = "from",
        /// The region to go to.
        to: String = "to",
    }
}

object! {
    /// Shares of requests from one locality.
    pub struct Distribute {
        /// The client's locality, `region/zone/subzone`; `*` at the end matches anything.
        from: Spanned<String> = "from",
        /// Percentages by the locality of the endpoints.
        to: BTreeMap<String, u32> = "to",
    }
}

object! {
    /// Slow start of new endpoints.
    pub struct Warmup {
        /// Time until an endpoint gets its full share.
        duration: Spanned<Duration> = "duration",
        /// The least part of its share, in percent; 10 if not given.
        minimum_percent: Option<Spanned<Decimal>> = "minimumPercent",
        /// Above 1 it grows faster at first, below 1 more slowly; 1 if not given.
        aggression: Option<Spanned<Decimal>> = "aggression",
    }
    check: check_warmup;
}

choices! {
    /// How an endpoint is selected.
    pub enum SimpleLb {
        /// The default.
        Unspecified = "UNSPECIFIED",
        /// Round robin.
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
    /// Limits on connections and requests.
    pub struct ConnectionPool {
        /// Limits on connections.
        tcp: Option<TcpPool> = "tcp",
        /// Limits on requests.
        http: Option<HttpPool> = "http",
    }
}

object! {
    /// Limits of connections.
    pub struct TcpPool {
        /// Connections to all endpoints together.
        max_connections: Option<u32> = "maxConnections",
        /// Timeout for a new connection.
        connect_timeout: Option<Duration> = "connectTimeout",
        /// Probes of idle connections.
        tcp_keepalive: Option<TcpKeepalive> = "tcpKeepalive",
        /// How long a connection may last.
        max_connection_duration: Option<Duration> = "maxConnectionDuration",
        /// Idle TCP connections are closed after this time; 0 = never.
        idle_timeout: Option<Duration> = "idleTimeout",
    }
}

object! {
    /// Probes of idle connections.
    pub struct TcpKeepalive {
        /// Number of unanswered probes that end a connection.
        probes: Option<u32> = "probes",
        /// Idle time before the first probe.
        time: Option<Duration> = "time",
        /// Time between two probes.
        interval: Option<Duration> = "interval",
    }
}

object! {
    /// Limits of requests.
    pub struct HttpPool {
        /// Requests that wait for a connection.
        http1_max_pending_requests: Option<u32> = "http1MaxPendingRequests",
        /// Requests at a time.
        http2_max_requests: Option<u32> = "http2MaxRequests",
        /// Requests per connection.
        max_requests_per_connection: Option<u32> = "maxRequestsPerConnection",
        /// Retries at a time.
        max_retries: Option<u32> = "maxRetries",
        /// Connections without a request are closed after this time.
        idle_timeout: Option<Duration> = "idleTimeout",
        /// Whether HTTP/1.1 requests are forwarded over HTTP/2.
        h2_upgrade_policy: Option<H2UpgradePolicy> = "h2UpgradePolicy",
        /// Whether requests are forwarded in the protocol they arrived in; takes precedence over `h2UpgradePolicy`.
        use_client_protocol: bool = "useClientProtocol",
        /// Requests at a time on one HTTP/2 connection.
        max_concurrent_streams: Option<u32> = "maxConcurrentStreams",
        /// PINGs on HTTP/2 connections.
        http2_keep_alive: Option<Http2KeepAlive> = "http2KeepAlive",
    }
}

choices! {
    /// Whether HTTP/1.1 requests are forwarded over HTTP/2.
    pub enum H2UpgradePolicy {
        /// No.
        Default = "DEFAULT",
        /// No.
        DoNotUpgrade = "DO_NOT_UPGRADE",
        /// Yes.
        Upgrade = "UPGRADE",
    }
}

object! {
    /// PINGs on HTTP/2 connections.
    pub struct Http2KeepAlive {
        /// Time between two PINGs; none are sent if not given.
        interval: Option<Duration> = "interval",
        /// A connection whose PING is not answered within this is closed; 20 s if not given.
        timeout: Option<Duration> = "timeout",
    }
}

object! {
    /// TLS of a client.
    pub struct ClientTlsSettings {
        /// The mode; DISABLE if not given.
        mode: Option<ClientTlsMode> = "mode",
        /// Path of the client's certificate chain.
        client_certificate: Option<String> = "clientCertificate",
        /// Path of the client's key.
        private_key: Option<String> = "privateKey",
        /// Path of the trusted roots.
        ca_certificates: Option<String> = "caCertificates",
        /// Names, one of which the server's certificate must have.
        subject_alt_names: Vec<String> = "subjectAltNames",
        /// The name sent to the server.
        sni: Option<String> = "sni",
        /// Whether the server's certificate is not verified.
        insecure_skip_verify: bool = "insecureSkipVerify",
        /// The Secret with the client's certificate and key, and with the trusted roots.
        credential_name: Option<Spanned<String>> = "credentialName",
        /// The Secret with the trusted roots, if it is another one.
        ca_cert_credential_name: Option<Spanned<String>> = "caCertCredentialName",
        /// Path of revocation lists for servers' certificates.
        ca_crl: Option<String> = "caCrl",
    }
    check: check_tls;
}

choices! {
    /// The kind of TLS that a client uses.
    pub enum ClientTlsMode {
        /// No TLS.
        Disable = "DISABLE",
        /// The server shows a certificate.
        Simple = "SIMPLE",
        /// Mutual TLS: both sides present certificates.
        Mutual = "MUTUAL",
        /// Mutual TLS with the mesh's certificates.
        IstioMutual = "ISTIO_MUTUAL",
    }
}

fn check(spec: &DestinationRuleSpec, _: &Node, cx: &mut Context) {
    // As in Istio: whose Secrets these are is clear at gateways, and at the sidecars that the rule selects.
    if spec.workload_selector.is_none() {
        let policies = spec.subsets.iter().filter_map(|subset| subset.traffic_policy.as_ref());
        let all = spec.traffic_policy.iter().chain(policies);
        let names = |policy: &'_ TrafficPolicy| {
            let tls = policy.tls.as_ref();
            let names = tls.map(|tls| [&tls.credential_name, &tls.ca_cert_credential_name]);
            names.into_iter().flatten().flatten().cloned().collect::<Vec<_>>()
        };
        for name in all.flat_map(names) {
            let message = "without `workloadSelector`, only gateways use Secrets of TLS settings; sidecars trust the system's roots";
            let help = "add `workloadSelector`, and the Secret to the namespace of these workloads";
            cx.note("no-effect", &name.span, message, help);
        }
    }
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

fn check_percent(value: Option<&Spanned<u32>>, name: &str, cx: &mut Context) {
    if let Some(percent) = value.filter(|percent| percent.value > 100) {
        let message = format!("{} percent is more than 100 percent", percent.value);
        cx.at_field(name, |cx| cx.error("bad-value", &percent.span, message, "give a number from 0 to 100"));
    }
}

fn check_outliers(outliers: &OutlierDetection, _: &Node, cx: &mut Context) {
    check_percent(outliers.max_ejection_percent.as_ref(), "maxEjectionPercent", cx);
    check_percent(outliers.min_health_percent.as_ref(), "minHealthPercent", cx);
    check_percent(outliers.failure_percentage_threshold.as_ref(), "failurePercentageThreshold", cx);
    for (index, code) in outliers.http_error_codes.iter().enumerate() {
        if !(100..600).contains(&code.value) {
            let message = format!("{} is not a response status", code.value);
            cx.at_field("outlierDetectionHttpErrorCodes", |cx| {
                cx.at_index(index, |cx| cx.error("bad-value", &code.span, message, "expected 100 to 599"));
            });
        }
    }
}

/// As Istio's `validateTunnelSettings`.
fn check_tunnel(tunnel: &Tunnel, _: &Node, cx: &mut Context) {
    let host = &tunnel.target_host;
    let is_name = || Hostname::parse(host).is_ok_and(|name| !name.is_wildcard());
    if host.parse::<IpAddr>().is_err() && !is_name() {
        let message = format!("`{}` is neither a host name nor an address", host.value);
        cx.at_field("targetHost", |cx| {
            cx.error("bad-host", &host.span, message, "give the name or the address of one host")
        });
    }
}

fn check_budget(budget: &RetryBudget, _: &Node, cx: &mut Context) {
    if let Some(percent) = budget.percent.as_ref().filter(|percent| !(0.0..=100.0).contains(&percent.value.0)) {
        let message = format!("{} is not a percentage", percent.value.0);
        cx.at_field("percent", |cx| cx.error("bad-value", &percent.span, message, "give a number from 0 to 100"));
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

fn check_load_balancer(lb: &LoadBalancer, node: &Node, cx: &mut Context) {
    if lb.simple.is_some_and(|simple| simple != SimpleLb::Unspecified) && lb.consistent_hash.is_some() {
        let message = "`simple` and `consistentHash` cannot be used together";
        cx.error("conflict", node.span_of_path("consistentHash"), message, "remove one of them");
    }
    if lb.backend_utilization.is_some() {
        let others = [
            ("simple", lb.simple.is_some_and(|simple| simple != SimpleLb::Unspecified)),
            ("consistentHash", lb.consistent_hash.is_some()),
        ];
        for (name, _) in others.into_iter().filter(|(_, given)| *given) {
            let message = format!("`{name}` and `backendUtilization` cannot be used together");
            cx.error("conflict", node.span_of_path("backendUtilization"), message, "remove one of them");
        }
        let shares = lb.locality_lb_setting.as_ref().is_some_and(|setting| !setting.distribute.is_empty());
        if shares {
            let message = "with `backendUtilization`, endpoints are chosen by their utilization in all localities";
            let span = node.span_of_path("localityLbSetting.distribute");
            cx.warning("no-effect", span, message, "remove `distribute`, or choose another algorithm");
        }
        let min_size = lb.zone_aware_lb_setting.as_ref().and_then(|zones| zones.min_cluster_size.as_ref());
        if let Some(size) = min_size {
            let message = "with `backendUtilization`, zones count if the region has 6 healthy endpoints";
            cx.warning("no-effect", &size.span, message, "remove it, or choose another algorithm");
        }
    }
    if lb.locality_lb_setting.is_some() && lb.zone_aware_lb_setting.is_some() {
        let message = "`localityLbSetting` and `zoneAwareLbSetting` cannot be used together";
        cx.error("conflict", node.span_of_path("zoneAwareLbSetting"), message, "remove one of them");
    }
    let window = lb.warmup.as_ref().map(|warmup| &warmup.duration).or(lb.warmup_duration_secs.as_ref());
    if let Some(window) = window {
        if window.value < Duration::from_millis(1) {
            cx.error("out-of-range", &window.span, "the warmup is shorter than 1 ms", "give a longer duration");
        }
        let grows = matches!(
            lb.simple,
            None | Some(SimpleLb::Unspecified | SimpleLb::RoundRobin | SimpleLb::LeastRequest | SimpleLb::LeastConn)
        );
        if !grows || lb.consistent_hash.is_some() {
            let message = "warmup works with ROUND_ROBIN, LEAST_REQUEST and `backendUtilization` only";
            cx.warning("no-effect", &window.span, message, "remove it, or choose one of these");
        }
    }
}

fn check_consistent_hash(hash: &ConsistentHash, node: &Node, cx: &mut Context) {
    let keys = [
        hash.http_header_name.is_some(),
        hash.http_cookie.is_some(),
        hash.use_source_ip,
        hash.http_query_parameter_name.is_some(),
    ];
    let allowed = "set one of `httpHeaderName`, `httpCookie`, `useSourceIp`, `httpQueryParameterName`";
    match keys.into_iter().filter(|given| *given).count() {
        0 => cx.error("missing-field", &node.span, "`consistentHash` does not say what to hash", allowed),
        1 => {}
        _ => cx.error("conflict", &node.span, "`consistentHash` names more than one thing to hash", allowed),
    }
    if let Some(size) = hash.maglev.as_ref().and_then(|maglev| maglev.table_size.as_ref())
        && !is_prime(size.value)
    {
        let message = format!("{} is not a prime number", size.value);
        cx.error("bad-value", &size.span, message, "use a prime number such as 65537");
    }
    if hash.ring_hash.is_some() && hash.maglev.is_some() {
        cx.error("conflict", &node.span, "`ringHash` and `maglev` cannot be used together", "remove one of them");
    }
}

/// Whether a number is prime. Envoy allows table sizes up to 5,000,011.
fn is_prime(number: u32) -> bool {
    (2..=5_000_011).contains(&number) && (2..).take_while(|n| n * n <= number).all(|n| !number.is_multiple_of(n))
}

/// Beginnings of the names of metrics in a load report's maps.
const METRIC_MAPS: [&str; 3] = ["named_metrics.", "utilization.", "request_cost."];
/// The metrics of a load report that have a field.
const METRICS: [&str; 5] = ["cpu_utilization", "mem_utilization", "application_utilization", "eps", "rps_fractional"];

fn check_utilization(setting: &BackendUtilization, _: &Node, cx: &mut Context) {
    for (index, name) in setting.metric_names_for_computing_utilization.iter().enumerate() {
        let known = METRICS.contains(&name.as_str())
            || METRIC_MAPS.iter().any(|map| name.strip_prefix(map).is_some_and(|key| !key.is_empty()));
        if !known {
            let message = format!("no load report has a metric `{}`", name.value);
            let help = format!(
                "write `named_metrics.NAME`, `utilization.NAME`, `request_cost.NAME`, or one of {}",
                METRICS.join(", ")
            );
            cx.at_field("metricNamesForComputingUtilization", |cx| {
                cx.at_index(index, |cx| cx.warning("no-effect", &name.span, message, help))
            });
        }
    }
}

/// Labels that zone-aware balancing follows anyway.
const TOPOLOGY: [&str; 3] =
    ["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"];

fn check_zone_aware(setting: &ZoneAwareLbSetting, _: &Node, cx: &mut Context) {
    if let Some(size) = setting.min_cluster_size.as_ref().filter(|size| size.value == 0) {
        cx.at_field("minClusterSize", |cx| cx.error("out-of-range", &size.span, "0 is below 1", "write 1 or more"));
    }
    check_failover(&setting.failover, &setting.failover_priority, cx);
    for (index, label) in setting.failover_priority.iter().enumerate() {
        let name = label.split_once('=').map_or(label.as_str(), |(name, _)| name);
        if TOPOLOGY.contains(&name) {
            let message =
                format!("`{name}` cannot be given here: zone-aware balancing follows regions and zones anyway");
            cx.at_field("failoverPriority", |cx| {
                cx.at_index(index, |cx| cx.error("bad-value", &label.span, message, "remove it"))
            });
        }
    }
}

/// Checks regions and labels for failover.
fn check_failover(failover: &[Spanned<Failover>], labels: &[Spanned<String>], cx: &mut Context) {
    for failover in failover.iter().filter(|failover| failover.from == failover.to) {
        let message = format!("the failover from `{}` leads back to the same region", failover.from);
        cx.at_field("failover", |cx| cx.error("bad-value", &failover.span, message, "name another region in `to`"));
    }
    for (index, label) in labels.iter().enumerate() {
        if labels.iter().take(index).any(|before| before == label) {
            let message = format!("`{}` appears twice", label.value);
            cx.at_field("failoverPriority", |cx| {
                cx.error("duplicate-label", &label.span, message, "remove one of them")
            });
        }
    }
}

fn check_locality(setting: &LocalityLbSetting, node: &Node, cx: &mut Context) {
    for (name, given) in
        [("failover", !setting.failover.is_empty()), ("failoverPriority", !setting.failover_priority.is_empty())]
    {
        if given && !setting.distribute.is_empty() {
            let message = format!("`distribute` and `{name}` cannot be used together");
            cx.error("conflict", node.span_of_path(name), message, "remove one of them");
        }
    }
    check_failover(&setting.failover, &setting.failover_priority, cx);
    for (index, distribute) in setting.distribute.iter().enumerate() {
        let total: u64 = distribute.to.values().map(|weight| u64::from(*weight)).sum();
        if total != 100 {
            cx.at_field("distribute", |cx| {
                cx.at_index(index, |cx| {
                    let message = format!("the weights add up to {total}");
                    cx.error("out-of-range", &distribute.from.span, message, "they must add up to 100");
                });
            });
        }
    }
}

fn check_warmup(warmup: &Warmup, _: &Node, cx: &mut Context) {
    if let Some(percent) = warmup.minimum_percent.as_ref().filter(|p| !(0.0..=100.0).contains(&p.value.0)) {
        cx.error("out-of-range", &percent.span, "not a percentage", "expected 0 to 100");
    }
    // Envoy's field has to be above 0; below 1 the share grows slowly at first.
    if let Some(aggression) = warmup.aggression.as_ref().filter(|a| a.value.0 <= 0.0) {
        cx.error("out-of-range", &aggression.span, "aggression is not above 0", "expected a number above 0, such as 1");
    }
}

fn check_tls(tls: &ClientTlsSettings, node: &Node, cx: &mut Context) {
    let files = [
        (tls.client_certificate.is_some(), "clientCertificate"),
        (tls.private_key.is_some(), "privateKey"),
        (tls.ca_certificates.is_some(), "caCertificates"),
    ];
    let mode = tls.mode.unwrap_or(ClientTlsMode::Disable);
    if let Some(name) = &tls.ca_cert_credential_name {
        if tls.ca_certificates.is_some() {
            let message = "`caCertCredentialName` and `caCertificates` both say where the trusted roots are";
            cx.error("conflict", node.span_of_path("caCertificates"), message, "keep one of them");
        }
        if mode == ClientTlsMode::IstioMutual {
            let message = "mode ISTIO_MUTUAL trusts the mesh's roots, not `caCertCredentialName`";
            cx.error("conflict", &name.span, message, "remove it, or use mode MUTUAL");
        }
        check_credential(name, cx);
    }
    if let Some(name) = &tls.credential_name {
        let is_mutual = mode == ClientTlsMode::IstioMutual;
        for (_, other) in files.into_iter().filter(|(given, _)| *given && !is_mutual) {
            let message = format!("`credentialName` and `{other}` both say where certificates are");
            cx.error("conflict", node.span_of_path(other), message, "keep one of them");
        }
        if is_mutual {
            let message = "mode ISTIO_MUTUAL uses the mesh's certificates, not `credentialName`";
            cx.error("conflict", &name.span, message, "remove it, or use mode MUTUAL");
        }
        check_credential(name, cx);
    }
    match mode {
        ClientTlsMode::Mutual if tls.credential_name.is_some() => {}
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
    note_unused(tls, mode, node, cx);
}

/// Fields that the mode does not use.
fn note_unused(tls: &ClientTlsSettings, mode: ClientTlsMode, node: &Node, cx: &mut Context) {
    let identity = [(tls.client_certificate.is_some(), "clientCertificate"), (tls.private_key.is_some(), "privateKey")];
    let verification = [
        (tls.ca_certificates.is_some(), "caCertificates"),
        (!tls.subject_alt_names.is_empty(), "subjectAltNames"),
        (tls.ca_crl.is_some(), "caCrl"),
    ];
    let rest = [
        (tls.credential_name.is_some(), "credentialName"),
        (tls.sni.is_some(), "sni"),
        (tls.insecure_skip_verify, "insecureSkipVerify"),
    ];
    let given = |fields: &[(bool, &'static str)]| {
        fields.iter().filter(|(given, _)| *given).map(|(_, name)| *name).collect::<Vec<_>>()
    };
    let (unused, why) = match mode {
        ClientTlsMode::Disable => (
            [given(&identity), given(&verification), given(&rest)].concat(),
            "mode DISABLE is plain text: connections are neither encrypted nor verified",
        ),
        ClientTlsMode::IstioMutual => (
            given(&[(tls.insecure_skip_verify, "insecureSkipVerify")]),
            "mode ISTIO_MUTUAL always verifies the server's certificate, as in Istio",
        ),
        ClientTlsMode::Simple => (given(&identity), "mode SIMPLE shows the server no certificate"),
        ClientTlsMode::Mutual => (Vec::new(), ""),
    };
    let unverified = match mode {
        ClientTlsMode::Simple | ClientTlsMode::Mutual if tls.insecure_skip_verify => given(&verification),
        _ => Vec::new(),
    };
    let skipped = "`insecureSkipVerify` accepts any certificate";
    let all = unused.into_iter().map(|name| (name, why)).chain(unverified.into_iter().map(|name| (name, skipped)));
    for (name, why) in all {
        let message = format!("{why}, so `{name}` has no effect");
        cx.warning("no-effect", node.span_of_path(name), message, "remove it, or use a mode that needs it");
    }
}
