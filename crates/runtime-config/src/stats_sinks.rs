//! `stats_sinks` of the bootstrap: who gets the statistics, and how often.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::bootstrap::v3::Bootstrap;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::metrics::v3 as metrics;
use evenkeel_xds::pb::envoy::config::metrics::v3::dog_statsd_sink::DogStatsdSpecifier;
use evenkeel_xds::pb::envoy::config::metrics::v3::statsd_sink::StatsdSpecifier;
use evenkeel_xds::pb::envoy::extensions::stat_sinks::open_telemetry::v3 as otlp;
use evenkeel_xds::pb::google::protobuf::BoolValue;

use crate::compile::grpc_access_log::version_3;
use crate::compile::grpc_service::grpc_target;
use crate::compile::tracing::{Collector, collector, detected};
use crate::compile::{Cx, address, type_name};
use crate::ext_authz::GrpcTarget;

const STATSD: &str = "envoy.config.metrics.v3.StatsdSink";
const DOG_STATSD: &str = "envoy.config.metrics.v3.DogStatsdSink";
const OPEN_TELEMETRY: &str = "envoy.extensions.stat_sinks.open_telemetry.v3.SinkConfig";
const METRICS_SERVICE: &str = "envoy.config.metrics.v3.MetricsServiceConfig";
/// Envoy's default of `stats_flush_interval`.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// Envoy's default of `StatsdSink.prefix`.
const DEFAULT_PREFIX: &str = "envoy";
/// Envoy's limits of `stats_flush_interval`.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
const MAX_INTERVAL: Duration = Duration::from_secs(300);

/// All sinks.
#[derive(Debug, Clone)]
pub struct StatsSinks {
    /// Time between two flushes (`stats_flush_interval`).
    pub interval: Duration,
    /// The sinks; without any nothing is flushed.
    pub sinks: Vec<StatsSink>,
}

/// A sink.
#[derive(Debug, Clone)]
pub enum StatsSink {
    /// `envoy.stat_sinks.statsd`.
    Statsd(Statsd),
    /// `envoy.stat_sinks.metrics_service`.
    MetricsService(Arc<MetricsService>),
    /// `envoy.stat_sinks.open_telemetry`.
    OpenTelemetry(Arc<OtlpMetrics>),
}

/// A server of the StatsD protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statsd {
    /// Its UDP address.
    pub address: SocketAddr,
    /// Prefix of the names of metrics, followed by a dot.
    pub prefix: Arc<str>,
    /// Whether tags are apart from names, as DogStatsD has them.
    pub tags: bool,
}

/// A collector of OpenTelemetry (`opentelemetry.proto.collector.metrics.v1.MetricsService`).
#[derive(Debug)]
pub struct OtlpMetrics {
    /// The collector.
    pub target: OtlpTarget,
    /// Attributes of this proxy.
    pub resource: Vec<(Box<str>, Box<str>)>,
    /// Prefix of the names of metrics, followed by a dot; empty: none.
    pub prefix: Box<str>,
    /// Whether counters are the increase since the last flush, not totals.
    pub counters_as_deltas: bool,
    /// As for counters.
    pub histograms_as_deltas: bool,
    /// Whether tags are attributes.
    pub tags_as_attributes: bool,
    /// Whether names have no tags in them.
    pub tag_extracted_names: bool,
    /// Maximum number of metrics in a request; `None`: no limit of the user's.
    pub batch_size: Option<usize>,
}

/// How a collector of OpenTelemetry is reached.
#[derive(Debug)]
pub enum OtlpTarget {
    /// `opentelemetry.proto.collector.metrics.v1.MetricsService/Export`.
    Grpc(GrpcTarget),
    /// A POST of the same message.
    Http(HttpTarget),
}

/// A collector that is called over HTTP/1.1.
#[derive(Debug)]
pub struct HttpTarget {
    /// Its cluster.
    pub cluster: Arc<str>,
    /// The host in the URI; the cluster's name if there is none.
    pub host: Box<str>,
    /// The path in the URI.
    pub path: Box<str>,
    /// Time limit of a call (5 s when unset).
    pub timeout: Duration,
    /// Headers of each call.
    pub headers: Vec<(Box<str>, Box<str>)>,
}

impl OtlpTarget {
    /// The collector's cluster.
    pub fn cluster(&self) -> &Arc<str> {
        match self {
            Self::Grpc(target) => &target.call.cluster,
            Self::Http(target) => &target.cluster,
        }
    }

    /// Time limit of a call.
    pub fn timeout(&self) -> Option<Duration> {
        match self {
            Self::Grpc(target) => target.call.timeout,
            Self::Http(target) => Some(target.timeout),
        }
    }
}

/// `envoy.service.metrics.v3.MetricsService`.
#[derive(Debug)]
pub struct MetricsService {
    /// The service.
    pub target: GrpcTarget,
    /// Whether counters are reported as the increase since the last flush.
    pub counters_as_deltas: bool,
    /// Names without tags, which are labels.
    pub tags_as_labels: bool,
    /// Histograms are histograms.
    pub histograms: bool,
    /// Histograms are summaries.
    pub summaries: bool,
    /// Maximum number of metric families in a message; `None`: no limit.
    pub batch_size: Option<usize>,
}

/// The sinks of a bootstrap.
pub(crate) fn compile(cx: &mut Cx<'_>, message: &Bootstrap) -> Option<StatsSinks> {
    let interval = message.stats_flush_interval.as_ref();
    let interval = match interval.map(|_| cx.duration("stats_flush_interval", interval)) {
        None => DEFAULT_INTERVAL,
        Some(interval) if (MIN_INTERVAL..MAX_INTERVAL).contains(&interval?) => interval?,
        Some(_) => return cx.fail_at("stats_flush_interval", "must be 1 ms at least, and less than 300 s"),
    };
    let clusters = message.static_resources.as_ref().map(|resources| &*resources.clusters).unwrap_or_default();
    let is_static = |name: &str| clusters.iter().any(|cluster| cluster.name == name);
    let sinks = cx.each("stats_sinks", &message.stats_sinks, |cx, config| {
        let Some(metrics::stats_sink::ConfigType::TypedConfig(any)) = &config.config_type else {
            return cx.fail_at("typed_config", "is required");
        };
        cx.at("typed_config", |cx| match type_name(&any.type_url) {
            STATSD => {
                let config = cx.unpack(any)?;
                statsd(cx, &config).map(StatsSink::Statsd)
            }
            METRICS_SERVICE => {
                let config = cx.unpack(any)?;
                let service = metrics_service(cx, &config, is_static)?;
                Some(StatsSink::MetricsService(Arc::new(service)))
            }
            DOG_STATSD => {
                let config = cx.unpack(any)?;
                dog_statsd(cx, &config).map(StatsSink::Statsd)
            }
            OPEN_TELEMETRY => {
                let config = cx.unpack(any)?;
                open_telemetry(cx, &config, is_static).map(|sink| StatsSink::OpenTelemetry(Arc::new(sink)))
            }
            name => cx.fail(format!("{name} is no sink of statistics")),
        })
    });
    Some(StatsSinks { interval, sinks })
}

fn statsd(cx: &mut Cx<'_>, config: &metrics::StatsdSink) -> Option<Statsd> {
    let Some(StatsdSpecifier::Address(server)) = &config.statsd_specifier else {
        return cx.fail_at("address", "is required");
    };
    statsd_server(cx, server, &config.prefix, false)
}

fn dog_statsd(cx: &mut Cx<'_>, config: &metrics::DogStatsdSink) -> Option<Statsd> {
    let Some(DogStatsdSpecifier::Address(server)) = &config.dog_statsd_specifier else {
        return cx.fail_at("address", "is required");
    };
    statsd_server(cx, server, &config.prefix, true)
}

fn statsd_server(cx: &mut Cx<'_>, server: &core::Address, prefix: &str, tags: bool) -> Option<Statsd> {
    let Some(core::address::Address::SocketAddress(server)) = &server.address else {
        return cx.fail_at("address", "must be a socket_address");
    };
    // As with Envoy, these are datagrams whatever `protocol` says.
    let server = core::SocketAddress { protocol: core::socket_address::Protocol::Tcp.into(), ..server.clone() };
    let address = cx.at("address", |cx| address::socket_address(cx, "socket_address", &server))?;
    let prefix = if prefix.is_empty() { DEFAULT_PREFIX } else { prefix };
    Some(Statsd { address, prefix: prefix.into(), tags })
}

fn metrics_service(
    cx: &mut Cx<'_>,
    config: &metrics::MetricsServiceConfig,
    is_static: impl Fn(&str) -> bool,
) -> Option<MetricsService> {
    use metrics::HistogramEmitMode as Mode;
    version_3(cx, config.transport_api_version)?;
    let service = cx.required("grpc_service", config.grpc_service.as_ref())?;
    let target = static_target(cx, service, is_static)?;
    let Ok(mode) = Mode::try_from(config.histogram_emit_mode) else {
        return cx.fail_at("histogram_emit_mode", format!("unknown value {}", config.histogram_emit_mode));
    };
    Some(MetricsService {
        target,
        counters_as_deltas: config.report_counters_as_deltas.as_ref().is_some_and(|deltas| deltas.value),
        tags_as_labels: config.emit_tags_as_labels,
        histograms: mode != Mode::Summary,
        summaries: mode != Mode::Histogram,
        batch_size: Some(config.batch_size as usize).filter(|size| *size > 0),
    })
}

/// The service, in a cluster that is there from the start.
fn static_target(cx: &mut Cx<'_>, service: &core::GrpcService, is_static: impl Fn(&str) -> bool) -> Option<GrpcTarget> {
    cx.at("grpc_service", |cx| {
        let target = grpc_target(cx, service)?;
        if is_static(&target.call.cluster) {
            Some(target)
        } else {
            cx.fail_at("envoy_grpc.cluster_name", format!("there is no static cluster {:?}", target.call.cluster))
        }
    })
}

fn open_telemetry(cx: &mut Cx<'_>, config: &otlp::SinkConfig, is_static: impl Fn(&str) -> bool) -> Option<OtlpMetrics> {
    use otlp::sink_config::ProtocolSpecifier;
    let target = match &config.protocol_specifier {
        Some(ProtocolSpecifier::GrpcService(service)) => OtlpTarget::Grpc(static_target(cx, service, is_static)?),
        Some(ProtocolSpecifier::HttpService(service)) => cx.at("http_service", |cx| {
            let Collector { cluster, host, path, timeout, headers } = collector(cx, service)?;
            if !is_static(&cluster) {
                return cx.fail_at("http_uri.cluster", format!("there is no static cluster {cluster:?}"));
            }
            let host = if host.is_empty() { (&*cluster).into() } else { host };
            Some(OtlpTarget::Http(HttpTarget { cluster, host, path, timeout, headers }))
        })?,
        None => return cx.fail("one of grpc_service, http_service is required"),
    };
    let is_on = |value: Option<&BoolValue>| value.is_none_or(|value| value.value);
    // Of several values of an attribute the last one counts.
    let detected = cx.each("resource_detectors", &config.resource_detectors, detected).into_iter().flatten();
    let resource: BTreeMap<Box<str>, Box<str>> = detected.collect();
    Some(OtlpMetrics {
        target,
        resource: resource.into_iter().collect(),
        prefix: config.prefix.as_str().into(),
        counters_as_deltas: config.report_counters_as_deltas,
        histograms_as_deltas: config.report_histograms_as_deltas,
        tags_as_attributes: is_on(config.emit_tags_as_attributes.as_ref()),
        tag_extracted_names: is_on(config.use_tag_extracted_name.as_ref()),
        batch_size: Some(config.max_data_points_per_request as usize).filter(|most| *most > 0),
    })
}
