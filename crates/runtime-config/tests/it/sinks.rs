//! Services that access logs and statistics are sent to.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::access_log::{AccessLog, LogSink};
use evenkeel_runtime_config::bootstrap::Bootstrap;
use evenkeel_runtime_config::grpc_access_log::{Collector, EntryKind, GrpcLog, Tag};
use evenkeel_runtime_config::stats_sinks::{StatsSink, StatsSinks};
use evenkeel_runtime_config::{Environment, Rejection};
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;

use crate::input;

const GRPC: &str = "type.googleapis.com/envoy.extensions.access_loggers.grpc.v3";
const OTLP: &str = "type.googleapis.com/envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig";
const SERVICE: &str = "grpc_service: { envoy_grpc: { cluster_name: als } }";

/// A listener with this access logger.
fn log(message: &str, config: &str) -> Result<Arc<AccessLog>, Rejection> {
    let text = format!(
        "name: l
address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}
access_log: [ {{ name: a, typed_config: {{ \"@type\": {message}, {config} }} }} ]
filter_chains:
- filters:
  - {{ name: t, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c }} }}
"
    );
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&text))?;
    Ok(Arc::clone(&builder.build().listeners["l"].access_logs[0]))
}

fn of_grpc(log: &AccessLog) -> &GrpcLog {
    match &log.sink {
        LogSink::Grpc(log) => log,
        LogSink::File { .. } => panic!("{log:?}"),
    }
}

#[test]
fn access_log_services() {
    let http = |config: &str| {
        log(&format!("{GRPC}.HttpGrpcAccessLogConfig"), config).unwrap_or_else(|error| panic!("{config}: {error}"))
    };
    let common = |more: &str| format!("common_config: {{ log_name: n, transport_api_version: V3, {SERVICE}, {more} }}");
    let short = http(&common(""));
    let collector = &of_grpc(&short).collector;
    assert_eq!(
        (&*collector.log_name, collector.kind, collector.flush_interval, collector.buffer_bytes),
        ("n", EntryKind::Http, Duration::from_secs(1), 16 * 1024)
    );
    assert_eq!(&*collector.target.call.cluster, "als");

    let long = http(&format!(
        "{}, additional_request_headers_to_log: [ X-A ], additional_response_headers_to_log: [ b ], \
         additional_response_trailers_to_log: [ c ]",
        common(
            "buffer_flush_interval: 0.5s, buffer_size_bytes: 0, filter_state_objects_to_log: [ s ], custom_tags: [ \
             { tag: l, literal: { value: v } }, { tag: e, environment: { name: NONE_OF_THAT_NAME, default_value: d } }, \
             { tag: none, environment: { name: NONE_OF_THAT_NAME } }, { tag: h, request_header: { name: X-H, default_value: x } } ]"
        )
    ));
    let long = of_grpc(&long);
    assert_eq!((long.collector.flush_interval, long.collector.buffer_bytes), (Duration::from_millis(500), 0));
    assert_eq!((&*long.request_headers, &*long.filter_state), (&["x-a".into()][..], &["s".into()][..]));
    assert_eq!((&*long.response_headers, &*long.response_trailers), (&["b".into()][..], &["c".into()][..]));
    let tags = [
        ("l", Tag::Fixed("v".into())),
        ("e", Tag::Fixed("d".into())),
        ("h", Tag::RequestHeader("x-h".into(), "x".into())),
    ];
    assert_eq!(long.tags, tags.map(|(name, tag)| (name.into(), tag)));
    // What is logged does not tell collectors apart; how it is sent does, and so does the kind of entries.
    let same = http(&format!("{}, additional_request_headers_to_log: [ a ]", common("")));
    let tcp = log(&format!("{GRPC}.TcpGrpcAccessLogConfig"), &common("")).expect("valid");
    assert_eq!(of_grpc(&same).collector, *collector);
    assert_ne!(of_grpc(&tcp).collector, *collector);
    assert_ne!(long.collector, *collector);
    let huge = http(&common("buffer_size_bytes: 4294967295"));
    assert_eq!(of_grpc(&huge).collector.buffer_bytes, Collector::MAX_BUFFER_BYTES);
}

#[test]
fn access_log_services_that_are_rejected() {
    let common = "access_log[0].typed_config.common_config";
    for (config, expected) in [
        ("", "access_log[0].typed_config.common_config: is required".to_owned()),
        (&format!("common_config: {{ transport_api_version: V3, {SERVICE} }}"), format!("{common}.log_name: ")),
        (
            &format!("common_config: {{ log_name: n, {SERVICE} }}"),
            format!("{common}.transport_api_version: must be V3"),
        ),
        ("common_config: { log_name: n, transport_api_version: V3 }", format!("{common}.grpc_service: is required")),
        (
            "common_config: { log_name: n, transport_api_version: V3, grpc_service: { google_grpc: { target_uri: a, stat_prefix: b } } }",
            format!("{common}.grpc_service.google_grpc: not supported"),
        ),
        (
            &format!(
                "common_config: {{ log_name: n, transport_api_version: V3, {SERVICE}, buffer_flush_interval: 0s }}"
            ),
            format!("{common}.buffer_flush_interval: must be greater"),
        ),
        (
            &format!(
                "common_config: {{ log_name: n, transport_api_version: V3, {SERVICE}, grpc_stream_retry_policy: {{ num_retries: 1 }} }}"
            ),
            format!("{common}.grpc_stream_retry_policy: not supported"),
        ),
        (
            &format!(
                "common_config: {{ log_name: n, transport_api_version: V3, {SERVICE}, \
                 custom_tags: [ {{ tag: t, metadata: {{ kind: {{ request: {{}} }}, metadata_key: {{ key: k, path: [ {{ key: p }} ] }} }} }} ] }}"
            ),
            format!("{common}.custom_tags[0]: literal, environment or request_header is required"),
        ),
    ] {
        let rejection = log(&format!("{GRPC}.HttpGrpcAccessLogConfig"), config).expect_err(config).to_string();
        assert!(rejection.contains(&expected), "{config}: {rejection}");
    }
}

#[test]
fn logs_of_open_telemetry() {
    let otlp = |config: &str| log(OTLP, config);
    let common = format!("common_config: {{ log_name: n, transport_api_version: V3, {SERVICE} }}");
    // As Istio writes it, and as Envoy's newer fields have it.
    for config in [&common, &format!("log_name: n, {SERVICE}")] {
        let built =
            otlp(&format!("{config}, disable_builtin_labels: true, body: {{ string_value: \"%RESPONSE_CODE%\" }}"));
        let built = built.unwrap_or_else(|error| panic!("{config}: {error}"));
        let collector = &of_grpc(&built).collector;
        assert_eq!((collector.kind, &*collector.log_name), (EntryKind::OpenTelemetry, "n"));
        assert_eq!((&*collector.target.call.cluster, collector.resource.len()), ("als", 0));
        assert_eq!(collector.target.call.timeout, Some(Duration::from_secs(5)));
    }
    let uri = "http_uri: { uri: \"http://c.test/v1/logs\", cluster: als, timeout: 2s }";
    let posted = otlp(&format!("log_name: n, http_service: {{ {uri} }}")).expect("valid");
    let collector = &of_grpc(&posted).collector;
    let post = collector.http.as_ref().expect("over HTTP");
    assert_eq!((&*collector.target.call.cluster, &*post.host, &*post.path), ("als", "c.test", "/v1/logs"));
    assert_eq!(collector.target.call.timeout, Some(Duration::from_secs(2)));
    // Collectors with different resources are different.
    let [bare, labelled] = ["disable_builtin_labels: true", "disable_builtin_labels: false"]
        .map(|labels| otlp(&format!("{common}, {labels}")).expect("valid"));
    assert_ne!(of_grpc(&bare).collector, of_grpc(&labelled).collector);
    for (config, expected) in [
        (format!("{common}, body: {{ int_value: 1 }}"), "body: string_value, kvlist_value or array_value is required"),
        (format!("{common}, body: {{ string_value: \"%NOTHING%\" }}"), "body.string_value: "),
        (format!("{common}, http_service: {{}}"), "http_service: must not be set beside grpc_service"),
        ("log_name: n, http_service: {}".to_owned(), "http_service.http_uri: is required"),
        ("log_name: n".to_owned(), "grpc_service: is required"),
    ] {
        let rejection = otlp(&config).expect_err(&config).to_string();
        assert!(rejection.contains(expected), "{config}: {rejection}");
    }
}

fn bootstrap(text: &str) -> Result<StatsSinks, Rejection> {
    let any = input::resource("envoy.config.bootstrap.v3.Bootstrap", text);
    let message: pb::Bootstrap = evenkeel_xds::unpack(&any).expect("just packed");
    Bootstrap::new(&message, &Environment::process()).map(|bootstrap| bootstrap.stats_sinks)
}

const STATSD: &str = "\"@type\": type.googleapis.com/envoy.config.metrics.v3.StatsdSink";
const METRICS: &str = "\"@type\": type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig";
const OTLP_SINK: &str = "\"@type\": type.googleapis.com/envoy.extensions.stat_sinks.open_telemetry.v3.SinkConfig";
const CLUSTER: &str =
    "static_resources: { clusters: [ { name: als, type: STATIC, load_assignment: { cluster_name: als } } ] }";

fn sinks(config: &str) -> String {
    format!("{CLUSTER}\nstats_sinks: [ {{ name: s, typed_config: {{ {config} }} }} ]")
}

#[test]
fn sinks_of_statistics() {
    let get = |text: &str| bootstrap(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let none = get("stats_flush_interval: 0.05s");
    assert_eq!((none.interval, none.sinks.len()), (Duration::from_millis(50), 0));
    let address = "address: { socket_address: { protocol: UDP, address: 127.0.0.1, port_value: 8125 } }";
    for (prefix, expected) in [("", "envoy"), (", prefix: mesh", "mesh")] {
        let sinks = get(&sinks(&format!("{STATSD}, {address}{prefix}")));
        let [StatsSink::Statsd(statsd)] = &*sinks.sinks else { panic!("{sinks:?}") };
        assert_eq!((statsd.address, &*statsd.prefix), (([127, 0, 0, 1], 8125).into(), expected));
        assert_eq!(sinks.interval, Duration::from_secs(5));
    }
    for (config, expected) in [
        ("", (false, false, true, true, None)),
        (
            "report_counters_as_deltas: true, emit_tags_as_labels: true, batch_size: 7",
            (true, true, true, true, Some(7)),
        ),
        ("histogram_emit_mode: SUMMARY", (false, false, true, false, None)),
        ("histogram_emit_mode: HISTOGRAM", (false, false, false, true, None)),
    ] {
        let sinks = get(&sinks(&format!("{METRICS}, transport_api_version: V3, {SERVICE}, {config}")));
        let [StatsSink::MetricsService(service)] = &*sinks.sinks else { panic!("{sinks:?}") };
        let service = (
            service.counters_as_deltas,
            service.tags_as_labels,
            service.summaries,
            service.histograms,
            service.batch_size,
        );
        assert_eq!(service, expected, "{config}");
    }
}

#[test]
fn sinks_of_statistics_that_are_rejected() {
    for (text, expected) in [
        ("stats_flush_interval: 0s".to_owned(), "stats_flush_interval: must be 1 ms"),
        ("stats_flush_interval: 300s".to_owned(), "stats_flush_interval: must be 1 ms"),
        ("stats_flush_on_admin: true".to_owned(), "stats_flush_on_admin: not supported"),
        ("stats_sinks: [ { name: s } ]".to_owned(), "stats_sinks[0].typed_config: is required"),
        (sinks(STATSD), "stats_sinks[0].typed_config.address: is required"),
        (
            sinks(&format!("{STATSD}, tcp_cluster_name: als")),
            "stats_sinks[0].typed_config.tcp_cluster_name: not supported",
        ),
        (
            sinks(&format!("{STATSD}, address: {{ pipe: {{ path: /a }} }}")),
            "stats_sinks[0].typed_config.address: must be a socket_address",
        ),
        (sinks(OTLP_SINK), "typed_config: one of grpc_service, http_service is required"),
        (
            sinks(&format!(
                "{OTLP_SINK}, http_service: {{ http_uri: {{ uri: \"http://c/v1\", cluster: b, timeout: 1s }} }}"
            )),
            "http_service.http_uri.cluster: there is no static cluster \"b\"",
        ),
        (sinks(&format!("{METRICS}, {SERVICE}")), "transport_api_version: must be V3"),
        (sinks(&format!("{METRICS}, transport_api_version: V3")), "grpc_service: is required"),
        (
            sinks(&format!(
                "{METRICS}, transport_api_version: V3, grpc_service: {{ envoy_grpc: {{ cluster_name: b }} }}"
            )),
            "grpc_service.envoy_grpc.cluster_name: there is no static cluster \"b\"",
        ),
    ] {
        let rejection = bootstrap(&text).expect_err(&text).to_string();
        assert!(rejection.contains(expected), "{text}: {rejection}");
    }
}
