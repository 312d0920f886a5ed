//! DestinationRule: how a service is called.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::{PortSelector, WorkloadSelector, check_export_to};
use crate::decode::{Context, Decimal, HeaderName};

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
        /// Which endpoints are left out for what they do.
        outlier_detection: Option<OutlierDetection> = "outlierDetection",
        /// Retries as a share of requests.
        retry_budget: Option<RetryBudget> = "retryBudget",
        /// Settings of single ports.
        port_level_settings: Vec<PortTrafficPolicy> = "portLevelSettings",
        /// Endpoints are told who the client is.
        proxy_protocol: Option<ProxyProtocol> = "proxyProtocol",
    }
    later: ["tunnel"];
    check: check_ports;
}

object! {
    /// How endpoints are told who the client is, by a header that a connection begins with.
    pub struct ProxyProtocol {
        /// Which form; V1 if not given.
        version: Option<ProxyProtocolVersion> = "version",
    }
}

choices! {
    /// A form of the PROXY protocol's header.
    pub enum ProxyProtocolVersion {
        /// Text.
        V1 = "V1",
        /// Binary.
        V2 = "V2",
    }
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
        /// Which endpoints are left out for what they do.
        outlier_detection: Option<OutlierDetection> = "outlierDetection",
    }
}

object! {
    /// Which endpoints are left out for what they do.
    pub struct OutlierDetection {
        /// Local failures are told apart from what endpoints answer.
        split_external_local_origin_errors: bool = "splitExternalLocalOriginErrors",
        /// Local failures in a row; counted only if told apart.
        consecutive_local_origin_failures: Option<u32> = "consecutiveLocalOriginFailures",
        /// Answers of 502, 503, 504 in a row; 0 = off.
        consecutive_gateway_errors: Option<u32> = "consecutiveGatewayErrors",
        /// Answers of 5xx in a row; 0 = off.
        consecutive_5xx_errors: Option<u32> = "consecutive5xxErrors",
        /// Between two looks at who may come back.
        interval: Option<Duration> = "interval",
        /// How long the first time lasts.
        base_ejection_time: Option<Duration> = "baseEjectionTime",
        /// How many may be left out.
        max_ejection_percent: Option<Spanned<u32>> = "maxEjectionPercent",
        /// With fewer healthy endpoints than this, all are used.
        min_health_percent: Option<Spanned<u32>> = "minHealthPercent",
    }
    later: ["outlierDetectionHttpErrorCodes"];
    inert: ["consecutiveErrors"];
    check: check_outliers;
}

object! {
    /// Retries as a share of requests.
    pub struct RetryBudget {
        /// The share, in percent; 20 if not given.
        percent: Option<Spanned<u32>> = "percent",
        /// Retries that are always allowed; 3 if not given.
        min_retry_concurrency: Option<u32> = "minRetryConcurrency",
    }
    later: ["budgetInterval"];
    check: check_budget;
}

object! {
    /// Which endpoint is next.
    pub struct LoadBalancer {
        /// By a simple algorithm.
        simple: Option<SimpleLb> = "simple",
        /// By hash.
        consistent_hash: Option<ConsistentHash> = "consistentHash",
        /// By locality.
        locality_lb_setting: Option<LocalityLbSetting> = "localityLbSetting",
        /// How new endpoints begin.
        warmup: Option<Warmup> = "warmup",
        /// The older form of `warmup`: its duration.
        warmup_duration_secs: Option<Spanned<Duration>> = "warmupDurationSecs",
    }
    later: ["backendUtilization", "zoneAwareLbSetting"];
    check: check_load_balancer;
}

object! {
    /// Requests that agree in something go to the same endpoint.
    pub struct ConsistentHash {
        /// In this header.
        http_header_name: Option<HeaderName> = "httpHeaderName",
        /// In this cookie.
        http_cookie: Option<HttpCookie> = "httpCookie",
        /// In the client's address.
        use_source_ip: bool = "useSourceIp",
        /// In this query parameter.
        http_query_parameter_name: Option<String> = "httpQueryParameterName",
        /// By a ring.
        ring_hash: Option<RingHashLb> = "ringHash",
        /// By a Maglev table.
        maglev: Option<MaglevLb> = "maglev",
        /// The older form of `ringHash`.
        minimum_ring_size: Option<u32> = "minimumRingSize",
    }
    check: check_consistent_hash;
}

object! {
    /// A cookie, made if the client has none.
    pub struct HttpCookie {
        /// Its name.
        name: Spanned<String> = "name",
        /// Its path.
        path: Option<String> = "path",
        /// How long it lives; none made if not given.
        ttl: Option<Duration> = "ttl",
        /// What else it says.
        attributes: Vec<CookieAttribute> = "attributes",
    }
}

object! {
    /// What else a cookie says.
    pub struct CookieAttribute {
        /// Its name.
        name: String = "name",
        /// Its value, if it has one.
        value: Option<String> = "value",
    }
}

object! {
    /// A ring.
    pub struct RingHashLb {
        /// Points at least; 1024 if not given.
        minimum_ring_size: Option<u32> = "minimumRingSize",
    }
}

object! {
    /// A Maglev table.
    pub struct MaglevLb {
        /// Entries, a prime; 65537 if not given.
        table_size: Option<Spanned<u32>> = "tableSize",
    }
}

object! {
    /// How localities share requests.
    pub struct LocalityLbSetting {
        /// Shares by origin.
        distribute: Vec<Distribute> = "distribute",
        /// Where to go when a region has nothing left; works with `outlierDetection` only.
        failover: Vec<Spanned<Failover>> = "failover",
        /// Labels in which endpoints ought to agree with the client, the most important first; `NAME=VALUE` stands for
        /// itself. Works with `outlierDetection` only.
        failover_priority: Vec<Spanned<String>> = "failoverPriority",
        /// Whether it applies; it does if not given.
        enabled: Option<bool> = "enabled",
    }
    check: check_locality;
}

object! {
    /// Where to go when a region has nothing left.
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
        /// Where they come from, `region/zone/subzone`; `*` at the end stands for anything.
        from: Spanned<String> = "from",
        /// Percentages by where they go.
        to: BTreeMap<String, u32> = "to",
    }
}

object! {
    /// How new endpoints begin.
    pub struct Warmup {
        /// Until an endpoint gets all of its share.
        duration: Spanned<Duration> = "duration",
        /// The least part of its share, in percent; 10 if not given.
        minimum_percent: Option<Spanned<Decimal>> = "minimumPercent",
        /// Above 1 it grows faster at first; 1 if not given.
        aggression: Option<Spanned<Decimal>> = "aggression",
    }
    check: check_warmup;
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
        /// Probes of idle connections.
        tcp_keepalive: Option<TcpKeepalive> = "tcpKeepalive",
        /// How long a connection may last.
        max_connection_duration: Option<Duration> = "maxConnectionDuration",
        /// TCP connections on which nothing moves are closed after this long; 0 = never.
        idle_timeout: Option<Duration> = "idleTimeout",
    }
}

object! {
    /// Probes of idle connections.
    pub struct TcpKeepalive {
        /// How many unanswered ones end a connection.
        probes: Option<u32> = "probes",
        /// Idle time before the first.
        time: Option<Duration> = "time",
        /// Between them.
        interval: Option<Duration> = "interval",
    }
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
        /// Retries at a time.
        max_retries: Option<u32> = "maxRetries",
        /// Connections without a request are closed after this long.
        idle_timeout: Option<Duration> = "idleTimeout",
        /// Whether HTTP/1.1 goes on as HTTP/2.
        h2_upgrade_policy: Option<H2UpgradePolicy> = "h2UpgradePolicy",
        /// Whether requests go on in the protocol they came in; wins over `h2UpgradePolicy`.
        use_client_protocol: bool = "useClientProtocol",
        /// Requests at a time on one HTTP/2 connection.
        max_concurrent_streams: Option<u32> = "maxConcurrentStreams",
        /// PINGs on HTTP/2 connections.
        http2_keep_alive: Option<Http2KeepAlive> = "http2KeepAlive",
    }
}

choices! {
    /// Whether HTTP/1.1 goes on as HTTP/2.
    pub enum H2UpgradePolicy {
        /// It does not.
        Default = "DEFAULT",
        /// It does not.
        DoNotUpgrade = "DO_NOT_UPGRADE",
        /// It does.
        Upgrade = "UPGRADE",
    }
}

object! {
    /// PINGs on HTTP/2 connections.
    pub struct Http2KeepAlive {
        /// Between them; none are sent if not given.
        interval: Option<Duration> = "interval",
        /// A connection whose PING is not answered within this is closed; 20 s if not given.
        timeout: Option<Duration> = "timeout",
    }
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

fn check_percent(value: Option<&Spanned<u32>>, name: &str, cx: &mut Context) {
    if let Some(percent) = value.filter(|percent| percent.value > 100) {
        let message = format!("{} percent is more than 100 percent", percent.value);
        cx.at_field(name, |cx| cx.error("bad-value", &percent.span, message, "give a number from 0 to 100"));
    }
}

fn check_outliers(outliers: &OutlierDetection, _: &Node, cx: &mut Context) {
    check_percent(outliers.max_ejection_percent.as_ref(), "maxEjectionPercent", cx);
    check_percent(outliers.min_health_percent.as_ref(), "minHealthPercent", cx);
}

fn check_budget(budget: &RetryBudget, _: &Node, cx: &mut Context) {
    check_percent(budget.percent.as_ref(), "percent", cx);
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
            let message = "warmup works with ROUND_ROBIN and LEAST_REQUEST only";
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

/// Envoy takes table sizes up to 5,000,011.
fn is_prime(number: u32) -> bool {
    (2..=5_000_011).contains(&number) && (2..).take_while(|n| n * n <= number).all(|n| !number.is_multiple_of(n))
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
    for failover in setting.failover.iter().filter(|failover| failover.from == failover.to) {
        let message = format!("the failover from `{}` leads back to the same region", failover.from);
        cx.at_field("failover", |cx| cx.error("bad-value", &failover.span, message, "name another region in `to`"));
    }
    for (index, label) in setting.failover_priority.iter().enumerate() {
        if setting.failover_priority.iter().take(index).any(|before| before == label) {
            let message = format!("`{}` appears twice", label.value);
            cx.at_field("failoverPriority", |cx| {
                cx.error("duplicate-label", &label.span, message, "remove one of them")
            });
        }
    }
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
    if let Some(aggression) = warmup.aggression.as_ref().filter(|a| a.value.0 < 1.0) {
        cx.error("out-of-range", &aggression.span, "aggression is below 1", "expected 1 or more");
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
