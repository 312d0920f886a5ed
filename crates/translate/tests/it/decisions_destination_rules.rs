//! The effect of a DestinationRule on clusters and TCP proxies: one row for each field.

use serde_json::{Value, json};

use crate::calls::{Mesh, Proxy, destination_rule, virtual_service};

const HTTP: &str = "outbound|80||reviews.shop.svc.cluster.local";
const TCP: &str = "outbound|9000||reviews.shop.svc.cluster.local";
const OPTIONS: &str = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

fn with(policy: &str) -> Proxy {
    Mesh::new(&destination_rule("reviews", &format!("trafficPolicy: {policy}"))).client()
}

fn at<'v>(resource: &'v Value, path: &str) -> &'v Value {
    resource.pointer(path).unwrap_or(&Value::Null)
}

#[test]
fn clusters() {
    let check = |policy: &str, path: &str, expected: Value| {
        let proxy = with(policy);
        assert_eq!(*at(proxy.resource("CDS", HTTP), path), expected, "{policy}: {path}");
    };
    let limit = |name: &str| format!("/circuit_breakers/thresholds/0/{name}");
    check("{connectionPool: {tcp: {maxConnections: 7}}}", &limit("max_connections"), json!(7));
    check("{connectionPool: {http: {http1MaxPendingRequests: 7}}}", &limit("max_pending_requests"), json!(7));
    check("{connectionPool: {http: {http2MaxRequests: 7}}}", &limit("max_requests"), json!(7));
    check("{connectionPool: {http: {maxRetries: 7}}}", &limit("max_retries"), json!(7));
    check("{connectionPool: {tcp: {connectTimeout: 2s}}}", "/connect_timeout", json!("2s"));
    let keepalive = "{connectionPool: {tcp: {tcpKeepalive: {probes: 3, time: 60s, interval: 5s}}}}";
    let probes = json!({"keepalive_probes": 3, "keepalive_time": 60, "keepalive_interval": 5});
    check(keepalive, "/upstream_connection_options/tcp_keepalive", probes);
    let common = |name: &str| format!("{OPTIONS}/common_http_protocol_options/{name}");
    check("{connectionPool: {http: {idleTimeout: 3s}}}", &common("idle_timeout"), json!("3s"));
    check("{connectionPool: {http: {maxRequestsPerConnection: 3}}}", &common("max_requests_per_connection"), json!(3));
    check("{connectionPool: {tcp: {maxConnectionDuration: 9s}}}", &common("max_connection_duration"), json!("9s"));
    let http2 = |name: &str| format!("{OPTIONS}/explicit_http_config/http2_protocol_options/{name}");
    let upgrade = |more: &str| format!("{{connectionPool: {{http: {{h2UpgradePolicy: UPGRADE{more}}}}}}}");
    check(&upgrade(""), &http2("allow_connect"), json!(true));
    check(&upgrade(", maxConcurrentStreams: 50"), &http2("max_concurrent_streams"), json!(50));
    check(&upgrade(", http2KeepAlive: {interval: 10s}"), &http2("connection_keepalive/interval"), json!("10s"));
    let preserved = format!("{OPTIONS}/use_downstream_protocol_config/http2_protocol_options/allow_connect");
    check("{connectionPool: {http: {useClientProtocol: true}}}", &preserved, json!(true));
    check("{connectionPool: {http: {useClientProtocol: false}}}", OPTIONS, json!(null));
    // Retry budgets: Istio's defaults are 20 % and 3.
    let budget = limit("retry_budget");
    let of = |percent: f64, least: u32| json!({"budget_percent": {"value": percent}, "min_retry_concurrency": least});
    check("{retryBudget: {}}", &budget, of(20.0, 3));
    check("{retryBudget: {percent: 12.5, minRetryConcurrency: 5}}", &budget, of(12.5, 5));
    check("{retryBudget: {budgetInterval: 2s}}", &limit("retry_budget/budget_interval"), json!("2s"));
    // Load balancers.
    check("{loadBalancer: {simple: RANDOM}}", "/lb_policy", json!("RANDOM"));
    check("{loadBalancer: {simple: LEAST_CONN}}", "/lb_policy", json!("LEAST_REQUEST"));
    check("{loadBalancer: {consistentHash: {useSourceIp: true}}}", "/lb_policy", json!("RING_HASH"));
    check("{loadBalancer: {simple: PASSTHROUGH}}", "/type", json!("ORIGINAL_DST"));
    // Outlier detection.
    let outlier = |name: &str| format!("/outlier_detection/{name}");
    check("{outlierDetection: {consecutive5xxErrors: 2}}", &outlier("consecutive_5xx"), json!(2));
    check("{outlierDetection: {consecutiveGatewayErrors: 2}}", &outlier("consecutive_gateway_failure"), json!(2));
    check("{outlierDetection: {maxEjectionPercent: 50}}", &outlier("max_ejection_percent"), json!(50));
    check("{outlierDetection: {failurePercentageThreshold: 40}}", &outlier("failure_percentage_threshold"), json!(40));
    check("{outlierDetection: {failurePercentageThreshold: 40}}", &outlier("enforcing_failure_percentage"), json!(100));
    check("{outlierDetection: {failurePercentageThreshold: 0}}", &outlier("enforcing_failure_percentage"), json!(null));
    let codes = "{outlierDetection: {outlierDetectionHttpErrorCodes: [503, 429]}}";
    let matcher = format!("{OPTIONS}/outlier_detection/error_matcher/http_response_headers_match/headers/0");
    check(codes, &format!("{matcher}/name"), json!(":status"));
    check(codes, &format!("{matcher}/string_match/safe_regex/regex"), json!("429|503"));
    check(
        "{proxyProtocol: {version: V2}}",
        "/transport_socket_matches/0/transport_socket/name",
        json!("envoy.transport_sockets.upstream_proxy_protocol"),
    );
}

#[test]
fn settings_of_a_port_replace_all_of_the_rule() {
    let policy = "{retryBudget: {percent: 50}, connectionPool: {tcp: {maxConnections: 7}}, portLevelSettings: [{port: {number: 80}, loadBalancer: {simple: RANDOM}}]}";
    let proxy = with(policy);
    let cluster = proxy.resource("CDS", HTTP);
    assert_eq!(*at(cluster, "/lb_policy"), json!("RANDOM"));
    assert_eq!(*at(cluster, "/circuit_breakers/thresholds/0/retry_budget"), Value::Null);
    assert_eq!(*at(cluster, "/circuit_breakers/thresholds/0/max_connections"), json!(u32::MAX));
}

/// The configuration of the TCP proxy for the port 9000 of `reviews`.
fn tcp_proxy(proxy: &Proxy) -> Value {
    let chain = &proxy.resource("LDS", "10.96.0.1_9000")["filter_chains"][0];
    chain["filters"][0]["typed_config"].clone()
}

#[test]
fn tcp_proxies() {
    let check = |policy: &str, path: &str, expected: Value| {
        assert_eq!(*at(&tcp_proxy(&with(policy)), path), expected, "{policy}: {path}");
    };
    check("{connectionPool: {tcp: {idleTimeout: 5s}}}", "/idle_timeout", json!("5s"));
    check("{connectionPool: {tcp: {maxConnectionDuration: 9s}}}", "/max_downstream_connection_duration", json!("9s"));
    let tunnel = "{tunnel: {targetHost: db.example.com, targetPort: 5432}}";
    check(tunnel, "/tunneling_config", json!({"hostname": "db.example.com:5432"}));
    check(tunnel, "/cluster", json!(TCP));
    let post = "{tunnel: {protocol: POST, targetHost: '::1', targetPort: 5432}}";
    check(post, "/tunneling_config", json!({"hostname": "[::1]:5432", "use_post": true}));
    check("{}", "/tunneling_config", Value::Null);
    // It is of the service, or of a subset that a route leads to, not of connections that several share.
    let routed = |destinations: &str| {
        let rule = destination_rule(
            "reviews",
            "subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {tunnel: {targetHost: a, targetPort: 1}}}]",
        );
        let routes = format!("hosts: [reviews]\ntcp: [{{route: [{destinations}]}}]");
        tcp_proxy(&Mesh::new(&format!("{rule}{}", virtual_service("reviews", "shop", &routes))).client())
    };
    let v1 = "{destination: {host: reviews, subset: v1, port: {number: 9000}}, weight: 1}";
    assert_eq!(routed(v1)["tunneling_config"]["hostname"], "a:1");
    let both = routed(&format!("{v1}, {{destination: {{host: ratings, port: {{number: 9000}}}}, weight: 1}}"));
    assert_eq!(both["tunneling_config"], Value::Null);
}

#[test]
fn the_connection_pool_also_holds_on_the_receiving_side() {
    let pool = |rules: &str, path: &str| {
        let proxy = Mesh::new(rules).proxy("sidecar reviews-0.shop");
        at(proxy.resource("CDS", "inbound|80||"), path).clone()
    };
    let connections = "/circuit_breakers/thresholds/0/max_connections";
    let rule = destination_rule("reviews", "trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}");
    assert_eq!(pool(&rule, connections), json!(7));
    assert_eq!(pool("", connections), json!(u32::MAX));
    let port = "trafficPolicy: {portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {maxConnections: 8}}}]}";
    assert_eq!(pool(&destination_rule("reviews", port), connections), json!(8));
    // Load balancing, outlier detection and TLS are the client's.
    let outliers = destination_rule("reviews", "trafficPolicy: {outlierDetection: {consecutive5xxErrors: 2}}");
    assert_eq!(pool(&outliers, "/outlier_detection"), Value::Null);
    let selecting =
        "workloadSelector: {matchLabels: {app: reviews}}\ntrafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}";
    assert_eq!(pool(&destination_rule("reviews", selecting), connections), json!(u32::MAX));
    // The Sidecar's own limits come first.
    let sidecar = "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: reviews, namespace: shop}
spec: {workloadSelector: {labels: {app: reviews}}, inboundConnectionPool: {tcp: {maxConnections: 9}}}
---
";
    assert_eq!(pool(&format!("{sidecar}{rule}"), connections), json!(9));
}
