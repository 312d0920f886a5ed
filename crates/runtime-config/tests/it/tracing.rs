//! `tracing` of connection managers, routes and bootstraps.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::bootstrap::Bootstrap;
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_runtime_config::hcm::{HttpConnectionManager, RouteSource};
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::substitution_format::Format;
use evenkeel_runtime_config::tracing::{
    CustomTag, Exporter, MetadataOf, OpenTelemetry, OwnNode, Provider, Sampling, TagValue, Zipkin,
};
use evenkeel_runtime_config::{Environment, TracingDefaults};
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;

use crate::input;

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const ZIPKIN: &str = "\"@type\": type.googleapis.com/envoy.config.trace.v3.ZipkinConfig";
const OPEN_TELEMETRY: &str = "\"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig";

fn provider(config: &str) -> String {
    format!("provider: {{ name: p, typed_config: {{ {config} }} }}")
}

fn zipkin() -> Zipkin {
    Zipkin {
        cluster: "zipkin".into(),
        path: "/spans".into(),
        host: "zipkin".into(),
        trace_id_128bit: false,
        shared_span_context: true,
        split_spans_for_request: false,
        uses_w3c: false,
        timeout: Duration::from_secs(5),
        headers: Vec::new(),
    }
}

/// A connection manager with this `tracing`, whose only route has these fields.
fn manager(
    tracing: &str,
    (route, router): (&str, &str),
    defaults: TracingDefaults,
) -> Result<Arc<HttpConnectionManager>, String> {
    let text = format!(
        "name: l
address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}
filter_chains:
- filters:
  - name: hcm
    typed_config:
      \"@type\": {HCM}
      stat_prefix: s
      tracing: {{ {tracing} }}
      http_filters: [ {{ name: r, typed_config: {{ \"@type\": {ROUTER}, {router} }} }} ]
      route_config:
        virtual_hosts: [ {{ name: v, domains: [ \"*\" ], routes: [ {{ match: {{ prefix: / }}, direct_response: {{ status: 200 }}, {route} }} ] }} ]"
    );
    let mut builder = input::builder();
    builder.set_tracing(defaults);
    builder.set_listener(&input::listener(&text)).map_err(|rejection| rejection.to_string())?;
    match &builder.build().listeners["l"].filter_chains[0].terminal {
        Terminal::Http(manager) => Ok(Arc::clone(manager)),
        Terminal::Tcp(_) => panic!("a connection manager was configured"),
    }
}

fn fraction(numerator: u32, denominator: u32) -> Fraction {
    Fraction { numerator, denominator }
}

#[test]
fn a_manager_traces_as_it_is_told() {
    let text = "client_sampling: { value: 12.9 }, random_sampling: { value: 0.016 }, overall_sampling: { value: 50 }, \
                max_path_tag_length: 64, verbose: true, spawn_upstream_span: true, custom_tags: [ \
                { tag: b, literal: { value: text } }, { tag: a, request_header: { name: X-Row, default_value: none } }, \
                { tag: c, environment: { name: EVENKEEL_NO_SUCH_VARIABLE, default_value: d } }, \
                { tag: m, metadata: { kind: { request: {} }, metadata_key: { key: f, path: [ { key: x }, { key: z } ] } } }, \
                { tag: f, value: \"%REQ(:METHOD)% at %HOSTNAME%\" }, { tag: b, literal: { value: later } } ]";
    let node = Arc::new(OwnNode { id: "me".into(), ..OwnNode::default() });
    let given = Arc::new(Provider::Zipkin(zipkin()));
    let defaults = TracingDefaults { provider: Some(Arc::clone(&given)), node: Arc::clone(&node) };
    let manager = manager(text, ("", "start_child_span: true"), defaults).unwrap();
    let tracing = manager.tracing.as_ref().unwrap();
    let sampling =
        Sampling { client: fraction(12, 100), random: fraction(2, 10_000), overall: fraction(5_000, 10_000) };
    assert_eq!(tracing.sampling, sampling);
    assert_eq!((tracing.max_path_bytes, tracing.spawn_upstream_span, tracing.start_child_span), (64, true, true));
    assert_eq!((&tracing.provider, &tracing.node), (&Some(given), &node));
    let metadata = TagValue::Metadata {
        of: MetadataOf::Request,
        filter: "f".into(),
        path: vec!["x".into(), "z".into()],
        default: "".into(),
    };
    let tags = [
        ("a", TagValue::RequestHeader { name: "x-row".into(), default: "none".into() }),
        ("b", TagValue::Literal("later".into())),
        ("c", TagValue::Literal("d".into())),
        ("f", TagValue::Format(Format::parse("%REQ(:METHOD)% at %HOSTNAME%", &|_| None).unwrap())),
        ("m", metadata),
    ];
    let tags = tags.map(|(tag, value)| CustomTag { tag: tag.into(), value });
    assert_eq!(tracing.custom_tags, tags);
    assert!(manager.pack_trace_reason && tracing.use_request_id);
}

#[test]
fn what_is_not_said_is_as_in_envoy() {
    let manager = manager("", ("", ""), TracingDefaults::default()).unwrap();
    let tracing = manager.tracing.as_ref().unwrap();
    let all =
        Sampling { client: fraction(100, 100), random: fraction(10_000, 10_000), overall: fraction(10_000, 10_000) };
    assert_eq!((tracing.sampling, tracing.max_path_bytes, &tracing.provider), (all, 256, &None));
    assert!(tracing.custom_tags.is_empty() && !tracing.spawn_upstream_span && !tracing.start_child_span);
}

#[test]
fn providers() {
    let otel = |exporter, timeout, headers: &[(&str, &str)]| {
        Provider::OpenTelemetry(OpenTelemetry {
            resource: Vec::new(),
            cluster: "otel".into(),
            exporter,
            timeout: Duration::from_millis(timeout),
            headers: headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            service_name: "unknown_service:envoy".into(),
        })
    };
    let grpc = |authority: &str, skip_envoy_headers| Exporter::Grpc {
        authority: authority.into(),
        max_message_bytes: None,
        skip_envoy_headers,
    };
    let collector = "collector_cluster: zipkin, collector_endpoint: /spans, collector_endpoint_version: HTTP_JSON";
    for (config, expected) in [
        (format!("{ZIPKIN}, {collector}"), Provider::Zipkin(zipkin())),
        (
            format!(
                "{ZIPKIN}, {collector}, collector_hostname: z.test, trace_id_128bit: true, shared_span_context: false, \
                 split_spans_for_request: true"
            ),
            Provider::Zipkin(Zipkin {
                host: "z.test".into(),
                trace_id_128bit: true,
                shared_span_context: false,
                split_spans_for_request: true,
                ..zipkin()
            }),
        ),
        (
            // The service goes before the older fields.
            format!(
                "{ZIPKIN}, {collector}, collector_hostname: z.test, trace_context_option: USE_B3_WITH_W3C_PROPAGATION, \
                 collector_service: {{ http_uri: {{ uri: \"http://s.test/v2\", cluster: other, timeout: 2s }}, \
                 request_headers_to_add: [ {{ header: {{ key: X-Key, value: a%%b }} }} ] }}"
            ),
            Provider::Zipkin(Zipkin {
                cluster: "other".into(),
                host: "s.test".into(),
                path: "/v2".into(),
                uses_w3c: true,
                timeout: Duration::from_secs(2),
                headers: vec![("x-key".into(), "a%b".into())],
                ..zipkin()
            }),
        ),
        (
            format!(
                "{ZIPKIN}, collector_endpoint_version: HTTP_JSON, collector_service: {{ http_uri: {{ uri: /spans, \
                 cluster: zipkin, timeout: 5s }} }}"
            ),
            Provider::Zipkin(zipkin()),
        ),
        (
            format!("{OPEN_TELEMETRY}, grpc_service: {{ envoy_grpc: {{ cluster_name: otel }} }}"),
            otel(grpc("", false), 5_000, &[]),
        ),
        (
            format!(
                "{OPEN_TELEMETRY}, grpc_service: {{ timeout: 1s, initial_metadata: [ {{ key: X-Key, value: \"1\" }} ], \
                 envoy_grpc: {{ cluster_name: otel, authority: o.test, skip_envoy_headers: true }} }}"
            ),
            otel(grpc("o.test", true), 1_000, &[("x-key", "1")]),
        ),
        (
            format!(
                "{OPEN_TELEMETRY}, http_service: {{ http_uri: {{ uri: \"https://o.test/v1/traces\", cluster: otel, \
                 timeout: 2s }}, request_headers_to_add: [ {{ header: {{ key: X-Key, value: \"1\" }} }} ] }}"
            ),
            otel(Exporter::Http { host: "o.test".into(), path: "/v1/traces".into() }, 2_000, &[("x-key", "1")]),
        ),
        (
            format!("{OPEN_TELEMETRY}, http_service: {{ http_uri: {{ uri: o.test, cluster: otel, timeout: 2s }} }}"),
            otel(Exporter::Http { host: "o.test".into(), path: "/".into() }, 2_000, &[]),
        ),
    ] {
        let manager = manager(&provider(&config), ("", ""), TracingDefaults::default()).unwrap();
        let compiled = manager.tracing.as_ref().unwrap().provider.as_deref();
        assert_eq!(compiled, Some(&expected), "{config}");
        // The bootstrap's default is the same message.
        let text = format!("tracing: {{ http: {{ name: p, typed_config: {{ {config} }} }} }}");
        let any = input::resource("envoy.config.bootstrap.v3.Bootstrap", &text);
        let message: pb::Bootstrap = evenkeel_xds::unpack(&any).expect("just packed");
        let bootstrap = Bootstrap::new(&message, &Environment::process()).unwrap();
        assert_eq!(bootstrap.tracing.as_deref(), Some(&expected), "{config}");
    }
}

#[test]
fn resource_detectors_find_attributes() {
    const EXTENSIONS: &str = "type.googleapis.com/envoy.extensions.tracers.opentelemetry";
    let check = |fields: &str, expected: Result<&[(&str, &str)], &str>| {
        let config = format!("{OPEN_TELEMETRY}, grpc_service: {{ envoy_grpc: {{ cluster_name: otel }} }}, {fields}");
        let found = match manager(&provider(&config), ("", ""), TracingDefaults::default()) {
            Ok(manager) => match manager.tracing.as_ref().unwrap().provider.as_deref() {
                Some(Provider::OpenTelemetry(otlp)) => otlp.resource.clone(),
                other => panic!("{other:?}"),
            },
            Err(rejection) => {
                let text = rejection.to_string();
                return assert!(expected.is_err_and(|reason| text.contains(reason)), "{fields}: {text}");
            }
        };
        let expected = expected.expect(fields).iter().map(|(key, value)| ((*key).into(), (*value).into()));
        assert_eq!(found, expected.collect::<Vec<(Box<str>, Box<str>)>>(), "{fields}");
    };
    let detectors = |name: &str, fields: &str| {
        format!(
            "resource_detectors: [ {{ name: d, typed_config: {{ \"@type\": {EXTENSIONS}.resource_detectors.v3.{name}, {fields} }} }} ]"
        )
    };
    check("", Ok(&[]));
    check(
        &detectors("StaticConfigResourceDetectorConfig", "attributes: { b: c, a: d }"),
        Ok(&[("a", "d"), ("b", "c")]),
    );
    check(&detectors("EnvironmentResourceDetectorConfig", ""), Ok(&[]));
    check(&detectors("DynatraceResourceDetectorConfig", ""), Ok(&[]));
    let sampler =
        |name: &str| format!("sampler: {{ name: s, typed_config: {{ \"@type\": {EXTENSIONS}.samplers.v3.{name} }} }}");
    check(&sampler("DynatraceSamplerConfig"), Ok(&[]));
    check(&sampler("AlwaysOnSamplerConfig"), Err("AlwaysOnSamplerConfig is not supported"));
}

#[test]
fn what_cannot_be_done_is_rejected_by_name() {
    let collector = "collector_cluster: z, collector_endpoint: /s";
    let buffer = "\"@type\": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";
    let lua = "\"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua";
    let grpc = "grpc_service: { envoy_grpc: { cluster_name: o } }";
    let of_metadata = |kind: &str| {
        format!(
            "custom_tags: [ {{ tag: t, metadata: {{ kind: {{ {kind}: {{}} }}, metadata_key: {{ key: k, path: [ {{ key: p }} ] }} }} }} ]"
        )
    };
    for (tracing, expected) in [
        (provider(lua), "provider.typed_config: extension envoy.extensions.filters.http.lua.v3.Lua is not supported"),
        (
            provider(buffer),
            "provider.typed_config: envoy.extensions.filters.http.buffer.v3.Buffer is no tracing provider",
        ),
        ("provider: { name: p }".into(), "provider.typed_config: is required"),
        (provider(ZIPKIN), "provider.typed_config.collector_cluster: must not be empty"),
        (provider(ZIPKIN), "provider.typed_config.collector_endpoint: must not be empty"),
        (provider(&format!("{ZIPKIN}, {collector}")), "collector_endpoint_version: only HTTP_JSON is supported"),
        (
            provider(&format!("{ZIPKIN}, {collector}, collector_endpoint_version: HTTP_PROTO")),
            "collector_endpoint_version: only HTTP_JSON is supported",
        ),
        (
            provider(&format!("{ZIPKIN}, collector_service: {{ http_uri: {{ uri: /s, timeout: 1s }} }}")),
            "provider.typed_config.collector_service.http_uri.cluster: is required",
        ),
        (
            "custom_tags: [ { tag: t, value: \"%NO_SUCH_OPERATOR%\" } ]".into(),
            "custom_tags[0].value: at byte 0: there is no operator %NO_SUCH_OPERATOR%",
        ),
        ("custom_tags: [ { tag: t, value: \"\" } ]".into(), "custom_tags[0].value: must not be empty"),
        (provider(OPEN_TELEMETRY), "provider.typed_config: exactly one of grpc_service, http_service is required"),
        (
            provider(&format!(
                "{OPEN_TELEMETRY}, {grpc}, resource_detectors: [ {{ name: e, typed_config: {{ {lua} }} }} ]"
            )),
            "resource_detectors[0].typed_config: extension envoy.extensions.filters.http.lua.v3.Lua is not supported",
        ),
        (
            provider(&format!("{OPEN_TELEMETRY}, {grpc}, sampler: {{ name: e, typed_config: {{ {lua} }} }}")),
            "sampler.typed_config: extension envoy.extensions.filters.http.lua.v3.Lua is not supported",
        ),
        (
            provider(&format!(
                "{OPEN_TELEMETRY}, grpc_service: {{ envoy_grpc: {{ cluster_name: o }}, initial_metadata: [ {{ key: a, \
                 value: \"%PROTOCOL%\" }} ] }}"
            )),
            "grpc_service.initial_metadata[0].value: format strings are not supported here",
        ),
        ("random_sampling: { value: 101 }".into(), "random_sampling: must lie between 0 and 100"),
        (of_metadata("cluster"), "custom_tags[0].metadata.kind.cluster: not supported"),
        (of_metadata("host"), "custom_tags[0].metadata.kind.host: not supported"),
        ("custom_tags: [ { tag: t } ]".into(), "custom_tags[0]: one of literal, environment, request_header, metadata"),
        ("custom_tags: [ { literal: { value: v } } ]".into(), "custom_tags[0].tag: must not be empty"),
    ] {
        let rejection = manager(&tracing, ("", ""), TracingDefaults::default()).err().unwrap_or_default();
        assert!(rejection.contains(expected), "{tracing}\n{rejection}");
    }
    let rejection = manager("", ("decorator: { propagate: true }", ""), TracingDefaults::default()).err();
    assert!(rejection.is_some_and(|text| text.contains("decorator.operation: must not be empty")));
}

#[test]
fn routes_say_their_own() {
    let check = |route: &str, expected: Option<(&str, bool, Option<Sampling>, usize)>| {
        let manager = manager("", (route, ""), TracingDefaults::default()).unwrap();
        let RouteSource::Static(table) = &manager.routes else { panic!("an inline table") };
        let tracing = table.virtual_hosts[0].routes[0].tracing.as_deref();
        let said = tracing
            .map(|tracing| (&*tracing.operation, tracing.propagates, tracing.sampling, tracing.custom_tags.len()));
        assert_eq!(said, expected, "{route}");
    };
    let all = Sampling { client: Fraction::ALL, random: Fraction::ALL, overall: Fraction::ALL };
    check("", None);
    check("decorator: { operation: op }", Some(("op", true, None, 0)));
    check("decorator: { operation: op, propagate: false }", Some(("op", false, None, 0)));
    check("tracing: {}", Some(("", false, Some(all), 0)));
    check(
        "tracing: { random_sampling: { numerator: 5, denominator: MILLION }, custom_tags: [ { tag: t, literal: { value: v } } ] }",
        Some(("", false, Some(Sampling { random: fraction(5, 1_000_000), ..all }), 1)),
    );
}
