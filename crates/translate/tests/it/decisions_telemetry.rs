//! Destinations of spans and access logs: `enableTracing`, `tracing`, `enableEnvoyAccessLogService`, and the providers that
//! `defaultProviders` names.

use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_translate::ProxyView;
use serde_json::{Value, json};

use crate::own_proxy::compile;
use crate::recorded::compared;
use crate::scenario::{translate, view_of};

fn built(mesh: &str, annotation: &str) -> (Snapshot, Vec<String>) {
    built_with(mesh, annotation, "")
}

/// A workload, a service that it calls, a gateway, and a collector; `annotation` is the workload's `proxy.istio.io/config`, `further`
/// are objects.
pub fn built_with(mesh: &str, annotation: &str, further: &str) -> (Snapshot, Vec<String>) {
    let mesh = mesh.replace('\n', "\n    ");
    let text = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{clusterIP: 10.96.1.1, selector: {{app: web}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: reviews, namespace: shop}}
spec: {{clusterIP: 10.96.1.2, ports: [{{name: http, port: 9080}}, {{name: tcp, port: 9000}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: collector, namespace: telemetry}}
spec: {{clusterIP: 10.96.1.3, ports: [{{name: http, port: 9411}}, {{name: grpc, port: 4317}}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: split, namespace: shop}}
spec:
  hosts: [reviews]
  http:
  - match: [{{uri: {{prefix: /v1}}}}]
    route: [{{destination: {{host: reviews}}}}]
  - match: [{{uri: {{exact: /both}}}}]
    route: [{{destination: {{host: reviews}}, weight: 50}}, {{destination: {{host: web}}, weight: 50}}]
  - match: [{{uri: {{regex: '/a.*'}}}}]
    redirect: {{uri: /}}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-0
  namespace: shop
  labels: {{app: web, version: v2}}
  annotations: {{proxy.istio.io/config: '{annotation}'}}
spec: {{containers: [{{name: web}}]}}
status: {{podIP: 10.244.0.3, phase: Running}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data:
  mesh: |
    {mesh}
{further}"
    );
    let (objects, found) = crate::recorded::load(&[("mesh.yaml".into(), text.as_str().into())]);
    assert!(!found.has_errors(), "{found}\n{text}");
    let (snapshot, built) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    let codes = built.iter().filter(|finding| finding.span.file.as_ref() == "mesh.yaml").map(|f| f.to_string());
    (snapshot, codes.collect())
}

/// What the bootstrap of the proxy has.
#[derive(Clone, Copy, Default)]
struct Has {
    collector: bool,
    log_service: bool,
}

const COLLECTOR: Has = Has { collector: true, log_service: false };
const LOG_SERVICE: Has = Has { collector: false, log_service: true };
const NOTHING: Has = Has { collector: false, log_service: false };

/// The sidecar's resources as JSON. Our own proxy takes them.
fn resources(mesh: &str, annotation: &str, has: Has) -> Value {
    let (snapshot, _) = built(mesh, annotation);
    let view = view_of("sidecar web-0.shop", &snapshot);
    let view = ProxyView { has_collector: has.collector, has_log_service: has.log_service, ..view };
    let set = translate(&view, &snapshot);
    let (_, refused) = compile(&set);
    assert!(refused.is_empty(), "{refused:?}");
    compared(&set)
}

pub fn listener<'a>(all: &'a Value, name: &str) -> &'a Value {
    all["LDS"].as_array().expect("listeners").iter().find(|listener| listener["name"] == name).expect(name)
}

/// The filters of a listener of this type.
pub fn filters<'a>(listener: &'a Value, name: &'a str) -> impl Iterator<Item = &'a Value> {
    let chains = listener["filter_chains"].as_array().expect("chains").iter();
    let configs = chains.flat_map(|chain| chain["filters"].as_array().expect("filters")).map(|f| &f["typed_config"]);
    configs.filter(move |config| config["@type"].as_str().is_some_and(|kind| kind.ends_with(name)))
}

fn tracing(mesh: &str, annotation: &str, has: Has) -> Value {
    let all = resources(mesh, annotation, has);
    let settings = |listener: &Value| -> Vec<Value> {
        filters(listener, "HttpConnectionManager").map(|manager| manager["tracing"].clone()).collect()
    };
    let inbound = settings(listener(&all, "virtualInbound"));
    let outbound = settings(listener(&all, "0.0.0.0_9080"));
    let first = inbound.first().expect("one").clone();
    // All of a proxy's connection managers have the same.
    assert!(inbound.iter().chain(&outbound).all(|other| *other == first), "{inbound:?} {outbound:?}");
    first
}

/// The tags by their names, without those of policies that are tried out.
fn tags(tracing: &Value) -> Value {
    let all = tracing["custom_tags"].as_array().cloned().unwrap_or_default();
    let fields = all.into_iter().filter_map(|mut tag| {
        let name = tag["tag"].as_str().expect("a name").to_owned();
        tag.as_object_mut().expect("an object").remove("tag");
        (!name.starts_with("istio.authorization")).then_some((name, tag))
    });
    Value::Object(fields.collect())
}

#[test]
fn requests_are_traced_where_there_is_a_collector() {
    let check = |mesh: &str, annotation: &str, has: Has, sampling: Option<f64>| {
        let tracing = tracing(mesh, annotation, has);
        let found = (!tracing.is_null()).then(|| tracing["random_sampling"]["value"].as_f64().unwrap_or(0.0));
        assert_eq!(found, sampling, "{mesh} {annotation}: {tracing}");
        if !tracing.is_null() {
            assert_eq!(tracing["client_sampling"]["value"], 100.0);
            assert_eq!(tracing["overall_sampling"]["value"], 100.0);
            assert_eq!(tracing["provider"], Value::Null, "the bootstrap has it");
        }
    };
    check("{}", "{}", NOTHING, None);
    check("enableTracing: true", "{}", NOTHING, None);
    check("{}", "{}", COLLECTOR, Some(1.0));
    check("enableTracing: true", "{}", COLLECTOR, Some(1.0));
    check("enableTracing: false", "{}", COLLECTOR, None);
    // What is written counts for proxies whose bootstrap has it: those that started before have no collector.
    check("defaultConfig: {tracing: {zipkin: {address: 'z:9411'}}}", "{}", NOTHING, None);
    let mesh = "defaultConfig: {tracing: {sampling: 12.5}}";
    check(mesh, "{}", COLLECTOR, Some(12.5));
    check(mesh, "{tracing: {sampling: 100}}", COLLECTOR, Some(100.0));
    check(mesh, "{tracing: {sampling: 0}}", COLLECTOR, Some(1.0));
    check("defaultConfig: {tracing: {sampling: 0.0001}}", "{}", COLLECTOR, Some(0.0001));
}

#[test]
fn spans_have_istios_tags_and_the_owners() {
    let check = |mesh: &str, annotation: &str, expected: Value| {
        let tracing = tracing(mesh, annotation, COLLECTOR);
        assert_eq!(tags(&tracing), expected, "{mesh} {annotation}");
    };
    let literal = |value: &str| json!({ "literal": { "value": value } });
    let istios = json!({
        "istio.canonical_revision": literal("v2"),
        "istio.canonical_service": literal("web"),
        "istio.mesh_id": literal("cluster.local"),
        "istio.namespace": literal("shop"),
    });
    check("{}", "{}", istios.clone());
    let mut of_mesh = istios.clone();
    of_mesh["istio.mesh_id"] = literal("north");
    check("defaultConfig: {meshId: north}", "{}", of_mesh.clone());
    check("defaultConfig: {meshId: south}", "{meshId: north}", of_mesh);
    let own = "{tracing: {customTags: {a: {literal: {value: b}}, h: {header: {name: X-User, defaultValue: none}}, \
               e: {environment: {name: HOME}}, istio.mesh_id: {literal: {value: mine}}, bad: {}}}}";
    let mut all = istios;
    all["a"] = literal("b");
    all["h"] = json!({ "request_header": { "name": "x-user", "default_value": "none" } });
    all["e"] = json!({ "environment": { "name": "HOME" } });
    all["istio.mesh_id"] = literal("mine");
    check("{}", own, all);
    check("defaultConfig: {tracing: {enableIstioTags: false}}", "{}", json!({}));
    let tracing = tracing("defaultConfig: {tracing: {maxPathTagLength: 99}}", "{}", COLLECTOR);
    assert_eq!(tracing["max_path_tag_length"], 99);
    // As istiod sends it to a sidecar, by name and key.
    let dry_run = tracing["custom_tags"].as_array().expect("tags").iter().filter(|tag| !tag["metadata"].is_null());
    let dry_run = dry_run.map(|tag| [&tag["tag"], &tag["metadata"]["metadata_key"]["path"][0]["key"]]);
    let dry_run: Vec<_> = dry_run.map(|texts| texts.map(|text| text.as_str().unwrap_or_default())).collect();
    assert_eq!(
        dry_run,
        [
            ["istio.authorization.dry_run.allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"],
            ["istio.authorization.dry_run.allow_policy.result", "istio_dry_run_allow_shadow_engine_result"],
            ["istio.authorization.dry_run.deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"],
            ["istio.authorization.dry_run.deny_policy.result", "istio_dry_run_deny_shadow_engine_result"],
        ]
    );
}

fn provider(kind: &str) -> String {
    format!("defaultProviders: {{tracing: [mine]}}\nextensionProviders:\n- name: mine\n  {kind}")
}

#[test]
fn spans_go_to_the_meshs_collector() {
    let check = |kind: &str, name: &str, expected: Value| {
        let tracing = tracing(&provider(kind), "{}", NOTHING);
        assert_eq!(tracing["provider"]["name"], name, "{kind}: {tracing}");
        let mut config = tracing["provider"]["typed_config"].clone();
        config.as_object_mut().expect("a configuration").remove("@type");
        assert_eq!(config, expected, "{kind}");
    };
    let host = "collector.telemetry.svc.cluster.local";
    let (zipkin, grpc) = (format!("outbound|9411||{host}"), format!("outbound|4317||{host}"));
    check(
        "zipkin: {service: telemetry/collector.telemetry.svc.cluster.local, port: 9411}",
        "envoy.tracers.zipkin",
        json!({
            "collector_cluster": zipkin, "collector_endpoint": "/api/v2/spans", "collector_hostname": host,
            "collector_endpoint_version": "HTTP_JSON", "trace_id_128bit": true, "shared_span_context": false,
        }),
    );
    check(
        "zipkin: {service: collector.telemetry.svc.cluster.local, port: 9411, enable64bitTraceId: true, path: /zipkin}",
        "envoy.tracers.zipkin",
        json!({
            "collector_cluster": zipkin, "collector_endpoint": "/zipkin", "collector_hostname": host,
            "collector_endpoint_version": "HTTP_JSON", "shared_span_context": false,
        }),
    );
    let of_service = |more: &str, timeout: &str, headers: Value| {
        let mut service = json!({
            "http_uri": { "cluster": zipkin, "timeout": timeout, "uri": format!("{host}/api/v2/spans") },
        });
        if !headers.is_null() {
            service["request_headers_to_add"] = headers;
        }
        check(
            &format!("zipkin: {{service: collector.telemetry.svc.cluster.local, port: 9411, {more}}}"),
            "envoy.tracers.zipkin",
            json!({
                "collector_cluster": zipkin, "collector_endpoint": "/api/v2/spans", "collector_hostname": host,
                "collector_endpoint_version": "HTTP_JSON", "trace_id_128bit": true, "shared_span_context": false,
                "collector_service": service,
            }),
        );
    };
    of_service("timeout: 2s", "2s", Value::Null);
    let added = json!([{ "header": { "key": "x-key", "value": "a%%b" } }]);
    of_service("headers: [{name: X-Key, value: a%b}, {name: X-None, envName: NONE}]", "5s", added);
    check(
        "zipkin: {service: collector.telemetry.svc.cluster.local, port: 9411, traceContextOption: USE_B3_WITH_W3C_PROPAGATION}",
        "envoy.tracers.zipkin",
        json!({
            "collector_cluster": zipkin, "collector_endpoint": "/api/v2/spans", "collector_hostname": host,
            "collector_endpoint_version": "HTTP_JSON", "trace_id_128bit": true, "shared_span_context": false,
            "trace_context_option": "USE_B3_WITH_W3C_PROPAGATION",
        }),
    );
    check(
        "opentelemetry: {service: collector.telemetry.svc.cluster.local, port: 4317, \
         grpc: {timeout: 2s, initialMetadata: [{name: X-Key, value: a%b}]}}",
        "envoy.tracers.opentelemetry",
        json!({
            "grpc_service": {
                "envoy_grpc": { "cluster_name": grpc, "authority": host }, "timeout": "2s",
                "initial_metadata": [{ "key": "x-key", "value": "a%%b" }],
            },
            "service_name": "web.shop",
        }),
    );
    check(
        "opentelemetry: {service: collector.telemetry.svc.cluster.local, port: 9411, http: {path: /v1/traces}}",
        "envoy.tracers.opentelemetry",
        json!({
            "http_service": { "http_uri": { "cluster": zipkin, "timeout": "3s", "uri": format!("{host}/v1/traces") } },
            "service_name": "web.shop",
        }),
    );
    let tracing = tracing(
        &provider("zipkin: {service: collector.telemetry.svc.cluster.local, port: 9411, maxTagLength: 32}"),
        "{tracing: {maxPathTagLength: 99, sampling: 7}}",
        NOTHING,
    );
    assert_eq!(tracing["max_path_tag_length"], 32);
    assert_eq!(tracing["random_sampling"]["value"], 7.0);
}

#[test]
fn services_that_are_not_there_are_named() {
    let check = |mesh: &str, expected: &str| {
        let (_, found) = built(mesh, "{}");
        assert!(found.iter().any(|finding| finding.contains(expected)), "{mesh}: {found:?}");
        assert_eq!(tracing(mesh, "{}", NOTHING), Value::Null, "{mesh}");
    };
    let at = |service: &str, port: u16| provider(&format!("zipkin: {{service: {service}, port: {port}}}"));
    check(
        &at("nowhere.telemetry.svc.cluster.local", 9411),
        "[missing-service]: there is no service `nowhere.telemetry",
    );
    check(&at("other/collector.telemetry.svc.cluster.local", 9411), "[missing-service]");
    check(&at("collector.telemetry.svc.cluster.local", 9412), "[missing-port]");
    check(&at("'a b'", 9411), "[bad-host]");
}

#[test]
fn routes_name_the_spans() {
    let operations = |has: Has| {
        let all = resources("{}", "{}", has);
        let mut found = Vec::new();
        let mut hosts: Vec<&Value> = Vec::new();
        for table in all["RDS"].as_array().expect("tables").iter().filter(|table| table["name"] == "9080") {
            hosts.extend(table["virtual_hosts"].as_array().expect("hosts"));
        }
        let inbound: Vec<Value> = filters(listener(&all, "virtualInbound"), "HttpConnectionManager").cloned().collect();
        for manager in &inbound {
            hosts.extend(manager["route_config"]["virtual_hosts"].as_array().into_iter().flatten());
        }
        for route in hosts.into_iter().flat_map(|host| host["routes"].as_array().into_iter().flatten()) {
            found.extend(route["decorator"]["operation"].as_str().map(str::to_owned));
        }
        found.dedup();
        found
    };
    assert_eq!(
        operations(COLLECTOR),
        ["reviews.shop.svc.cluster.local:9080/v1*", "split:9080/both", "web.shop.svc.cluster.local:80/*"]
    );
    assert_eq!(operations(NOTHING), Vec::<String>::new());
}

/// Name, log and cluster of each log: of the inbound requests, of outbound connections, and of connections without a chain.
fn logs(mesh: &str, has: Has) -> [Vec<String>; 3] {
    let all = resources(mesh, "{}", has);
    let shown = |logs: &Value| {
        let logs = logs.as_array().cloned().unwrap_or_default();
        let shown = logs.iter().map(|log| {
            let common = &log["typed_config"]["common_config"];
            let cluster = &common["grpc_service"]["envoy_grpc"]["cluster_name"];
            let name = log["name"].as_str().expect("a name").trim_start_matches("envoy.access_loggers.");
            let filter = if log["filter"].is_null() { "" } else { " filtered" };
            format!("{name} {} {}{filter}", common["log_name"], cluster).replace('"', "")
        });
        shown.collect::<Vec<_>>()
    };
    let inbound = listener(&all, "virtualInbound");
    let requests = filters(inbound, "HttpConnectionManager").next().expect("requests");
    let connections = filters(listener(&all, "10.96.1.2_9000"), "TcpProxy").next().expect("connections");
    [shown(&requests["access_log"]), shown(&connections["access_log"]), shown(&inbound["access_log"])]
}

#[test]
fn access_logs_go_to_services() {
    let check = |mesh: &str, has: Has, expected: [&[&str]; 3]| {
        assert_eq!(logs(mesh, has), expected.map(|logs| logs.to_vec()), "{mesh}");
    };
    let own = [
        &["http_grpc http_envoy_accesslog envoy_accesslog_service"][..],
        &["tcp_grpc tcp_envoy_accesslog envoy_accesslog_service"],
        &["tcp_grpc listener_envoy_accesslog envoy_accesslog_service filtered"],
    ];
    check("{}", LOG_SERVICE, [&[], &[], &[]]);
    check("enableEnvoyAccessLogService: true", NOTHING, [&[], &[], &[]]);
    check("enableEnvoyAccessLogService: true", LOG_SERVICE, own);
    let mesh = "accessLogFile: /dev/stdout\nenableEnvoyAccessLogService: true\ndisableEnvoyListenerLog: true";
    check(
        mesh,
        LOG_SERVICE,
        [
            &["file null null", "http_grpc http_envoy_accesslog envoy_accesslog_service"],
            &["file null null", "tcp_grpc tcp_envoy_accesslog envoy_accesslog_service"],
            &[],
        ],
    );
    let providers = "defaultProviders: {accessLogging: [envoy, requests, connections, nowhere]}\nextensionProviders:\n\
         - {name: requests, envoyHttpAls: {service: collector.telemetry.svc.cluster.local, port: 4317}}\n\
         - {name: connections, envoyTcpAls: {service: collector.telemetry.svc.cluster.local, port: 4317, logName: mine, \
         filterStateObjectsToLog: [a]}}\n\
         - {name: nowhere, envoyTcpAls: {service: nowhere.telemetry.svc.cluster.local, port: 4317}}";
    let collector = "outbound|4317||collector.telemetry.svc.cluster.local";
    let (requests, connections) =
        (format!("http_grpc http_envoy_accesslog {collector}"), format!("tcp_grpc mine {collector}"));
    check(
        providers,
        NOTHING,
        [
            &["file null null", &requests],
            &["file null null", &connections],
            &["file null null filtered", &format!("{connections} filtered")],
        ],
    );
    let headers = "defaultProviders: {accessLogging: [requests]}\nextensionProviders:\n\
         - name: requests\n  envoyHttpAls: {service: collector.telemetry.svc.cluster.local, port: 4317, \
         additionalRequestHeadersToLog: [a], additionalResponseHeadersToLog: [b], additionalResponseTrailersToLog: [c]}";
    let all = resources(headers, "{}", NOTHING);
    let manager = filters(listener(&all, "virtualInbound"), "HttpConnectionManager").next().expect("one").clone();
    let config = &manager["access_log"][0]["typed_config"];
    let names = [
        "additional_request_headers_to_log",
        "additional_response_headers_to_log",
        "additional_response_trailers_to_log",
    ];
    assert_eq!(names.map(|name| config[name][0].as_str().unwrap_or_default()), ["a", "b", "c"]);
}

/// One log of OpenTelemetry is of requests, of connections, and of connections without a chain.
#[test]
fn access_logs_go_to_a_collector_of_open_telemetry() {
    let provider = |more: &str| {
        format!(
            "defaultProviders: {{accessLogging: [otel]}}\nextensionProviders:\n- name: otel\n  \
             envoyOtelAls: {{service: collector.telemetry.svc.cluster.local, port: 4317{more}}}"
        )
    };
    let collector = "outbound|4317||collector.telemetry.svc.cluster.local";
    let log = format!("open_telemetry otel_envoy_accesslog {collector}");
    assert_eq!(logs(&provider(""), NOTHING), [vec![log.clone()], vec![log.clone()], vec![format!("{log} filtered")]]);
    let config = |more: &str| {
        let all = resources(&provider(more), "{}", NOTHING);
        let manager = filters(listener(&all, "virtualInbound"), "HttpConnectionManager").next().expect("one").clone();
        manager["access_log"][0]["typed_config"].clone()
    };
    let usual = config("");
    let body = usual["body"]["string_value"].as_str().expect("a body");
    assert!(body.starts_with("[%START_TIME%]") && usual["attributes"].is_null(), "{usual}");
    assert_eq!(usual["disable_builtin_labels"], true);
    let own = config(
        ", logName: mine, filterStateObjectsToLog: [a], logFormat: {text: \"%DURATION%\", labels: {code: \"%RESPONSE_CODE%\", \
         all: {list: [\"%PROTOCOL%\", 7]}}}",
    );
    let expected = json!({"values": [
        {"key": "all", "value": {"kvlist_value": {"values": [
            {"key": "list", "value": {"array_value": {"values": [{"string_value": "%PROTOCOL%"}, {"string_value": "7"}]}}},
        ]}}},
        {"key": "code", "value": {"string_value": "%RESPONSE_CODE%"}},
    ]});
    assert_eq!(own["attributes"], expected);
    assert_eq!(
        (&own["body"], &own["common_config"]["log_name"]),
        (&json!({"string_value": "%DURATION%"}), &json!("mine"))
    );
    assert_eq!(own["common_config"]["filter_state_objects_to_log"], json!(["a"]));
}

#[test]
fn spans_have_the_attributes_of_the_environment() {
    let detectors = |more: &str| {
        let mesh = format!(
            "defaultProviders: {{tracing: [otel]}}\nextensionProviders:\n- name: otel\n  \
             opentelemetry: {{service: collector.telemetry.svc.cluster.local, port: 4317{more}}}"
        );
        let all = resources(&mesh, "{}", NOTHING);
        let manager = filters(listener(&all, "virtualInbound"), "HttpConnectionManager").next().expect("one").clone();
        manager["tracing"]["provider"]["typed_config"]["resource_detectors"].to_string()
    };
    assert_eq!(detectors(""), "null");
    assert_eq!(detectors(", resourceDetectors: {dynatrace: {}}"), "null");
    let found = detectors(", resourceDetectors: {environment: {}}");
    assert!(found.contains("EnvironmentResourceDetectorConfig"), "{found}");
}
