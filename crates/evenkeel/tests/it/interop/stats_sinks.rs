//! Sinks of statistics: a StatsD server and a metrics service get the same from Evenkeel and Envoy.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, eventually, free_ports};
use evenkeel_xds::pb::io::prometheus::client::{Metric, MetricFamily, MetricType};

use super::collector::Collector;
use super::proxy::Program;
use super::web::{self, HTTP2, cluster, endpoint};

/// How often statistics are flushed: twice a test at least.
const FLUSH: &str = "stats_flush_interval: 0.2s";
const REQUESTS: u64 = 3;
/// What is compared, behind `cluster.a.` or `cluster.`.
const COUNTERS: [&str; 3] = ["upstream_rq_total", "upstream_rq_200", "upstream_rq_2xx"];
const TIME: &str = "upstream_rq_time";
const GAUGE: &str = "membership_total";

/// Runs a program with these sinks, sends it some requests, and returns what was made of what it told.
fn told(program: Program, sinks: &str, collector: &Collector, story: impl Fn() -> Option<String>) -> String {
    let backend = Backend::start(|_| Reply::text("backend"));
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let routes = ["{ match: { prefix: / }, route: { cluster: a } }".to_owned()];
    let clusters = [
        cluster("a", &endpoint(backend.address().port(), ""), ""),
        cluster("metrics", &endpoint(collector.port, ""), HTTP2),
    ];
    let bootstrap = web::bootstrap(port, admin, &[], &routes, &clusters);
    let text = format!("node: {{ id: me, cluster: us }}\n{bootstrap}\n{FLUSH}\nstats_sinks: [ {sinks} ]\n");
    std::fs::write(&file, text).expect("a writable folder");
    collector.forget();
    let mut process = web::start(program, &file, admin, port);
    let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("it accepts");
    for _ in 0..REQUESTS {
        assert_eq!(client.get("x.test", "/", "").expect("an answer").status, 200);
    }
    process.wait_for("all statistics", |_| story())
}

#[test]
fn evenkeel_and_envoy_tell_statsd_the_same() {
    let collector = Collector::start();
    for prefix in ["", "mesh"] {
        let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| {
            let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            server.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
            let port = server.local_addr().expect("bound").port();
            let sink = format!(
                "{{ name: s, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.metrics.v3.StatsdSink, prefix: \"{prefix}\", \
                 address: {{ socket_address: {{ protocol: UDP, address: 127.0.0.1, port_value: {port} }} }} }} }}"
            );
            let heard = std::cell::RefCell::new(BTreeMap::new());
            told(program, &sink, &collector, || {
                let mut buffer = [0; 65536];
                while let Ok(length) = server.recv(&mut buffer) {
                    let text = std::str::from_utf8(&buffer[..length]).expect("text");
                    text.lines().for_each(|line| hear(&mut heard.borrow_mut(), line));
                }
                statsd_story(&heard.borrow(), if prefix.is_empty() { "envoy" } else { prefix })
            })
        });
        assert_eq!(first_difference(&envoy, &evenkeel), None, "Envoy's:\n{envoy}");
    }
}

/// Adds a line as a StatsD server does: counters and timers add up, by their sample rates, gauges replace.
fn hear(heard: &mut BTreeMap<String, f64>, line: &str) {
    let (name, rest) = line.split_once(':').unwrap_or_else(|| panic!("{line:?}"));
    let mut parts = rest.split('|');
    let value: f64 = parts.next().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
    let kind = parts.next().unwrap_or_else(|| panic!("{line:?}"));
    let rate: f64 = parts.next().map_or(1.0, |rate| rate.trim_start_matches('@').parse().expect("a sample rate"));
    let entry = heard.entry(format!("{name}|{kind}")).or_default();
    match kind {
        "c" => *entry += value / rate,
        "ms" => *entry += 1.0 / rate,
        "g" => *entry = value,
        _ => panic!("{line:?}"),
    }
}

/// What was heard of the cluster, once it is complete.
fn statsd_story(heard: &BTreeMap<String, f64>, prefix: &str) -> Option<String> {
    let value = |name: &str, kind: &str| heard.get(&format!("{prefix}.cluster.a.{name}|{kind}")).copied();
    let complete = value(TIME, "ms").is_some_and(|count| count.round() as u64 == REQUESTS)
        && value("upstream_rq_total", "c") == Some(REQUESTS as f64);
    let counters = COUNTERS.iter().map(|name| format!("{name} {:?}\n", value(name, "c")));
    let rest = format!("{GAUGE} {:?}, {TIME}\n", value(GAUGE, "g"));
    complete.then(|| counters.chain([rest]).collect())
}

#[test]
fn evenkeel_and_envoy_tell_a_metrics_service_the_same() {
    let collector = Collector::start();
    for config in [
        "",
        "report_counters_as_deltas: true",
        "emit_tags_as_labels: true",
        "emit_tags_as_labels: true, histogram_emit_mode: SUMMARY",
        "histogram_emit_mode: HISTOGRAM, batch_size: 2",
    ] {
        let sink = format!(
            "{{ name: s, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig, \
             transport_api_version: V3, grpc_service: {{ envoy_grpc: {{ cluster_name: metrics }}, \
             initial_metadata: [ {{ key: x-team, value: blue }} ] }}, {config} }} }}"
        );
        let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel]
            .map(|program| told(program, &sink, &collector, || metrics_story(&collector, config)));
        assert_eq!(first_difference(&envoy, &evenkeel), None, "{config}: Envoy's:\n{envoy}");
    }
}

/// What the service was told of the cluster, once it is complete.
fn metrics_story(collector: &Collector, config: &str) -> Option<String> {
    let streams = collector.streams();
    let [stream] = &*streams else { return None };
    assert!(stream.metadata.contains(&("x-team".to_owned(), "blue".to_owned())), "{:?}", stream.metadata);
    let (first, later) = stream.metrics.split_first()?;
    let node = first.identifier.as_ref().and_then(|identifier| identifier.node.as_ref()).expect("a node");
    assert_eq!((&*node.id, &*node.cluster), ("me", "us"));
    assert!(later.iter().all(|message| message.identifier.is_none()), "only the first message says who");
    if config.contains("batch_size: 2") {
        assert!(stream.metrics.iter().all(|message| (1..=2).contains(&message.envoy_metrics.len())));
    }
    let mut seen = BTreeMap::<String, (f64, String)>::new();
    for family in stream.metrics.iter().flat_map(|message| &message.envoy_metrics) {
        note(family, config, &mut seen);
    }
    let of_total =
        |(name, (value, _)): (&String, &(f64, String))| name.contains("upstream_rq_total") && *value == REQUESTS as f64;
    let of_time = |(name, (value, _)): (&String, &(f64, String))| name.contains(TIME) && *value == REQUESTS as f64;
    let complete = seen.iter().any(of_total) && seen.iter().any(of_time);
    complete.then(|| seen.into_iter().map(|(name, (value, more))| format!("{name}: {value} {more}\n")).collect())
}

/// Notes a family if it is compared: counters add up if they are deltas, histograms always.
fn note(family: &MetricFamily, config: &str, seen: &mut BTreeMap<String, (f64, String)>) {
    let [metric] = &*family.metric else { panic!("{family:?}") };
    assert!(metric.timestamp_ms.is_some_and(|time| time > 1_600_000_000_000), "{family:?}");
    let labels: BTreeMap<_, _> = metric.label.iter().map(|label| (label.name(), label.value())).collect();
    let name = family.name();
    let prefix = if config.contains("emit_tags_as_labels") { "cluster." } else { "cluster.a." };
    let is_a = labels.get("envoy.cluster_name").is_none_or(|name| *name == "a");
    let Some(last) = name.strip_prefix(prefix).filter(|_| is_a) else { return };
    if !COUNTERS.iter().chain([&TIME, &GAUGE, &"upstream_rq", &"upstream_rq_xx"]).any(|compared| *compared == last) {
        return;
    }
    let kind = MetricType::try_from(family.r#type.unwrap_or_default()).expect("a known type");
    let (value, adds_up, more) = value_of(metric, kind);
    let (sum, kept) = seen.entry(format!("{name} {kind:?} {labels:?}")).or_default();
    let adds_up = adds_up && (kind != MetricType::Counter || config.contains("deltas"));
    *sum = if adds_up { *sum + value } else { value };
    *kept = more;
}

/// The value, whether values of several flushes add up, and what else is compared.
fn value_of(metric: &Metric, kind: MetricType) -> (f64, bool, String) {
    match kind {
        MetricType::Counter => (metric.counter.as_ref().expect("a counter").value(), true, String::new()),
        MetricType::Gauge => (metric.gauge.as_ref().expect("a gauge").value(), false, String::new()),
        MetricType::Histogram => {
            let histogram = metric.histogram.as_ref().expect("a histogram");
            let bounds: Vec<_> = histogram.bucket.iter().map(|bucket| bucket.upper_bound()).collect();
            (histogram.sample_count() as f64, true, format!("{bounds:?}"))
        }
        MetricType::Summary => {
            let summary = metric.summary.as_ref().expect("a summary");
            let quantiles: Vec<_> = summary.quantile.iter().map(|quantile| quantile.quantile()).collect();
            (summary.sample_count() as f64, true, format!("{quantiles:?}"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn dead_sinks_harm_nobody() {
    let collector = Collector::start();
    let dead = evenkeel_testkit::free_port();
    let statsd = format!(
        "{{ name: s, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.metrics.v3.StatsdSink, \
         address: {{ socket_address: {{ address: 127.0.0.1, port_value: {dead} }} }} }} }}"
    );
    let service = |cluster: &str| {
        format!(
            "{{ name: s, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig, \
             transport_api_version: V3, grpc_service: {{ envoy_grpc: {{ cluster_name: {cluster} }} }} }} }}"
        )
    };
    // The one that is alive gets all that there is, the dead one's share is counted.
    let sinks = format!("{statsd}, {}, {}", service("a"), service("metrics"));
    let all = || {
        let streams = collector.streams();
        let families = streams.iter().flat_map(|stream| &stream.metrics).flat_map(|message| &message.envoy_metrics);
        let dropped = families.filter(|family| family.name() == "stats_sinks.metrics_service_dropped");
        dropped.filter_map(|family| family.metric[0].counter.as_ref()).find(|counter| counter.value() > 0.0)?;
        Some(String::new())
    };
    told(Program::Evenkeel, &sinks, &collector, all);
    eventually("the service is there", || (!collector.streams().is_empty()).then_some(()));
}
