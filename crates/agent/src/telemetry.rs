//! Destinations of the proxy's spans, access logs and statistics, in its bootstrap: `tracing`, `envoyAccessLogService`,
//! `envoyMetricsService` and `statsdUdpAddress` of ProxyConfig (Istio's bootstrap template).

use std::net::IpAddr;
use std::time::Duration;

use evenkeel_base::duration;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::envoy_json::{endpoint, http2, sds};
use crate::options::Options;
use crate::secret_names::{CERTIFICATE_SECRET, ROOT_SECRET};

/// The usual place of the system's root certificates.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Istio's names of the clusters.
const ZIPKIN: &str = "zipkin";
const ACCESS_LOG_SERVICE: &str = "envoy_accesslog_service";
const METRICS_SERVICE: &str = "envoy_metrics_service";
/// The cluster of a collector that gets metrics.
const METRICS_COLLECTOR: &str = "opentelemetry_metrics";
/// OpenTelemetry's own variable for it (`proxyMetadata` of ProxyConfig, or the agent's environment): `http://HOST:PORT`.
const METRICS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
/// The port of collectors for gRPC.
const OTLP_PORT: u16 = 4317;

/// The fields of ProxyConfig that are read here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Destinations {
    tracing: Option<Tracing>,
    zipkin_address: Option<String>,
    statsd_udp_address: Option<String>,
    envoy_metrics_service: Option<RemoteService>,
    envoy_metrics_service_address: Option<String>,
    envoy_access_log_service: Option<RemoteService>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Tracing {
    zipkin: Option<RemoteService>,
    tls_settings: Option<ClientTls>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RemoteService {
    address: Option<String>,
    tls_settings: Option<ClientTls>,
    tcp_keepalive: Option<TcpKeepalive>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TcpKeepalive {
    probes: Option<u32>,
    time: Option<String>,
    interval: Option<String>,
}

/// Istio's ClientTLSSettings.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientTls {
    mode: Mode,
    client_certificate: Option<String>,
    private_key: Option<String>,
    ca_certificates: Option<String>,
    ca_crl: Option<String>,
    subject_alt_names: Vec<String>,
    sni: Option<String>,
    insecure_skip_verify: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Mode {
    #[default]
    Disable,
    Simple,
    Mutual,
    IstioMutual,
}

/// Adds clusters, the tracer and the sinks to a bootstrap. What cannot be read is left out, with a line in the log: a proxy without
/// traces is better than none.
pub(crate) fn add_to(bootstrap: &mut Value, options: &Options) {
    let read = |json: &Value| serde_json::from_value::<Destinations>(json.clone());
    let said = read(&Value::Object(options.proxy_config.clone())).unwrap_or_else(|error| {
        tracing::warn!(%error, "--proxy-config: the proxy sends no spans, access logs and statistics");
        Destinations::default()
    });
    let mut clusters = Vec::new();
    let mut sinks = Vec::new();
    let collector = said.tracing.as_ref().and_then(|tracing| tracing.zipkin.as_ref()?.address.as_deref());
    if let Some(address) = place("tracing.zipkin.address", collector.or(said.zipkin_address.as_deref())) {
        let tls = said.tracing.as_ref().and_then(|tracing| tracing.tls_settings.as_ref());
        clusters.push(cluster(ZIPKIN, address, tls, None));
        bootstrap["tracing"] = zipkin();
    }
    match place("statsdUdpAddress", said.statsd_udp_address.as_deref()) {
        Some((host, _)) if !is_ip(host) => {
            tracing::warn!("--proxy-config: statsdUdpAddress: `{host}` is no IP address; nothing is sent there");
        }
        Some(address) => sinks.push(statsd(address)),
        None => {}
    }
    let metrics = said.envoy_metrics_service.as_ref();
    let address = metrics.and_then(|service| service.address.as_deref());
    if let Some(address) =
        place("envoyMetricsService.address", address.or(said.envoy_metrics_service_address.as_deref()))
    {
        clusters.push(grpc_cluster(METRICS_SERVICE, address, metrics));
        sinks.push(metrics_service());
    }
    if let Some(endpoint) = metrics_endpoint(options)
        && let Some(collector) = Endpoint::parse(&endpoint)
    {
        let tls = collector.tls.then(|| ClientTls { mode: Mode::Simple, ..ClientTls::default() });
        let mut cluster = cluster(METRICS_COLLECTOR, (&collector.host, collector.port), tls.as_ref(), None);
        cluster["typed_extension_protocol_options"] = http2();
        clusters.push(cluster);
        sinks.push(metrics_collector(&bootstrap["node"]));
    }
    let logs = said.envoy_access_log_service.as_ref();
    if let Some(address) = place("envoyAccessLogService.address", logs.and_then(|service| service.address.as_deref())) {
        clusters.push(grpc_cluster(ACCESS_LOG_SERVICE, address, logs));
    }
    if let Some(all) = bootstrap["static_resources"]["clusters"].as_array_mut() {
        all.extend(clusters);
    }
    if !sinks.is_empty() {
        bootstrap["stats_sinks"] = sinks.into();
    }
}

/// The collector that the user has asked for; an empty text is none.
fn metrics_endpoint(options: &Options) -> Option<String> {
    let metadata = options.proxy_config.get("proxyMetadata").and_then(|metadata| metadata.get(METRICS_ENDPOINT));
    let named = metadata.and_then(Value::as_str).map(str::to_owned);
    named.or_else(|| std::env::var(METRICS_ENDPOINT).ok()).filter(|endpoint| !endpoint.is_empty())
}

/// Where a collector takes metrics over gRPC.
struct Endpoint {
    host: String,
    port: u16,
    tls: bool,
}

impl Endpoint {
    /// Parses `http://HOST:PORT`; an invalid one is logged.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let address = rest.trim_end_matches('/');
        let parsed = split_address(address)
            .or_else(|| (!address.contains(':') && !address.is_empty()).then_some((address, OTLP_PORT)));
        match parsed.filter(|_| ["http", "https"].contains(&scheme) && !address.contains('/')) {
            Some((host, port)) => Some(Self { host: host.to_owned(), port, tls: scheme == "https" }),
            None => {
                tracing::warn!(
                    "{METRICS_ENDPOINT}: `{text}` is not http://HOST:PORT of a collector's gRPC; no metrics are sent there"
                );
                None
            }
        }
    }
}

/// `node`: this proxy, which its metrics name.
fn metrics_collector(node: &Value) -> Value {
    json!({
        "name": "envoy.stat_sinks.open_telemetry",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.stat_sinks.open_telemetry.v3.SinkConfig",
            "grpc_service": { "envoy_grpc": { "cluster_name": METRICS_COLLECTOR } },
            "resource_detectors": [{
                "name": "envoy.tracers.opentelemetry.resource_detectors.static_config",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.tracers.opentelemetry.resource_detectors.v3.StaticConfigResourceDetectorConfig",
                    "attributes": { "service.name": node["cluster"], "service.instance.id": node["id"] },
                },
            }, {
                "name": "envoy.tracers.opentelemetry.resource_detectors.environment",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.tracers.opentelemetry.resource_detectors.v3.EnvironmentResourceDetectorConfig",
                },
            }],
        },
    })
}

/// Parses HOST:PORT; an invalid address is logged.
fn place<'a>(field: &str, address: Option<&'a str>) -> Option<(&'a str, u16)> {
    let address = address.filter(|address| !address.is_empty())?;
    let place = split_address(address);
    if place.is_none() {
        tracing::warn!("--proxy-config: {field}: `{address}` is not HOST:PORT; nothing is sent there");
    }
    place
}

fn zipkin() -> Value {
    json!({
        "http": {
            "name": "envoy.tracers.zipkin",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
                "collector_cluster": ZIPKIN,
                "collector_endpoint": "/api/v2/spans",
                "collector_endpoint_version": "HTTP_JSON",
                "trace_id_128bit": true,
                "shared_span_context": false,
            },
        },
    })
}

fn statsd((host, port): (&str, u16)) -> Value {
    json!({
        "name": "envoy.stat_sinks.statsd",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.metrics.v3.StatsdSink",
            "address": { "socket_address": { "address": host, "port_value": port } },
        },
    })
}

fn metrics_service() -> Value {
    json!({
        "name": "envoy.stat_sinks.metrics_service",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig",
            "transport_api_version": "V3",
            "grpc_service": { "envoy_grpc": { "cluster_name": METRICS_SERVICE } },
        },
    })
}

fn grpc_cluster(name: &str, place: (&str, u16), service: Option<&RemoteService>) -> Value {
    let tls = service.and_then(|service| service.tls_settings.as_ref());
    let mut cluster = cluster(name, place, tls, service.and_then(|service| service.tcp_keepalive.as_ref()));
    cluster["typed_extension_protocol_options"] = http2();
    cluster
}

fn cluster(name: &str, (host, port): (&str, u16), tls: Option<&ClientTls>, probes: Option<&TcpKeepalive>) -> Value {
    let kind = if is_ip(host) { "STATIC" } else { "STRICT_DNS" };
    let mut cluster = json!({
        "name": name,
        "type": kind,
        "connect_timeout": "1s",
        "load_assignment": endpoint(name, json!({ "socket_address": { "address": host, "port_value": port } })),
    });
    if kind == "STRICT_DNS" {
        cluster["respect_dns_ttl"] = json!(true);
    }
    if let Some(socket) = tls.and_then(|tls| transport_socket(host, tls)) {
        cluster["transport_socket"] = socket;
    }
    if let Some(probes) = probes {
        let seconds = |time: &Option<String>| {
            let time = duration::parse(time.as_deref()?).ok()?;
            Some(time.max(Duration::from_secs(1)).as_secs())
        };
        cluster["upstream_connection_options"] = json!({
            "tcp_keepalive": {
                "keepalive_probes": probes.probes,
                "keepalive_time": seconds(&probes.time),
                "keepalive_interval": seconds(&probes.interval),
            },
        });
    }
    cluster
}

/// TLS; `None`: plain text. Without files the system's roots verify the server, and without names its certificate is for its host.
/// (Istio lets any certificate of these roots pass.)
fn transport_socket(host: &str, tls: &ClientTls) -> Option<Value> {
    let sni = tls.sni.as_deref().filter(|sni| !sni.is_empty());
    let name = |name: &str| json!({ "san_type": san_type(name), "matcher": { "exact": name } });
    let mut names: Vec<Value> = tls.subject_alt_names.iter().map(|san| name(san)).collect();
    if names.is_empty() && tls.mode != Mode::IstioMutual {
        names.push(name(sni.unwrap_or(host)));
    }
    let mut checks = json!({ "match_typed_subject_alt_names": names });
    if let Some(lists) = &tls.ca_crl {
        checks["crl"] = json!({ "filename": lists });
    }
    let mut context = match tls.mode {
        Mode::Disable => return None,
        Mode::IstioMutual => json!({
            "tls_certificate_sds_secret_configs": [{ "name": CERTIFICATE_SECRET, "sds_config": sds() }],
            "combined_validation_context": {
                "default_validation_context": checks,
                "validation_context_sds_secret_config": { "name": ROOT_SECRET, "sds_config": sds() },
            },
        }),
        Mode::Simple | Mode::Mutual => {
            let roots = tls.ca_certificates.as_deref().unwrap_or(SYSTEM_ROOTS);
            checks["trusted_ca"] = json!({ "filename": roots });
            json!({ "validation_context": checks })
        }
    };
    // The mesh's own certificates are always verified, as towards services.
    if tls.insecure_skip_verify
        && tls.mode != Mode::IstioMutual
        && let Some(context) = context.as_object_mut()
    {
        context.retain(|name, _| !name.ends_with("validation_context"));
    }
    if let (Mode::Mutual, Some(chain), Some(key)) = (tls.mode, &tls.client_certificate, &tls.private_key) {
        context["tls_certificates"] =
            json!([{ "certificate_chain": { "filename": chain }, "private_key": { "filename": key } }]);
    }
    Some(json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": sni.or_else(|| (!is_ip(host)).then_some(host)).unwrap_or_default(),
            "common_tls_context": context,
        },
    }))
}

fn is_ip(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

/// The type of a name in a certificate.
fn san_type(name: &str) -> &'static str {
    match name {
        uri if uri.contains("://") => "URI",
        address if is_ip(address) => "IP_ADDRESS",
        _ => "DNS",
    }
}

/// HOST:PORT or `[v6]:PORT`.
fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then_some((host, port))
}
