//! The effects of ProxyConfig: the mesh's `defaultConfig`, the kind ProxyConfig, the Pod's annotation, and a node's own.

use std::net::IpAddr;

use evenkeel_api::istio::InterceptionMode;
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_translate::ProxyView;
use serde_json::Value;

use crate::decisions::{Client, PLAIN_HTTP, outcome};
use crate::own_proxy::compile;
use crate::recorded::compared;
use crate::scenario::{translate, view_of};

/// A workload and a gateway; `annotation` is the workload's `proxy.istio.io/config`.
fn built(default: &str, kinds: &[(&str, &str)], annotation: &str) -> Snapshot {
    built_with(default, kinds, annotation, "")
}

/// The same with further objects.
fn built_with(default: &str, kinds: &[(&str, &str)], annotation: &str, more: &str) -> Snapshot {
    let annotations = match annotation {
        "" => String::new(),
        text => format!(", annotations: {{proxy.istio.io/config: '{text}'}}"),
    };
    let kinds: String = kinds
        .iter()
        .enumerate()
        .map(|(at, (namespace, spec))| format!("---\napiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {{name: p{at}, namespace: {namespace}}}\nspec: {{{spec}}}\n"))
        .collect();
    let text = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{clusterIP: 10.96.1.1, selector: {{app: web}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web-0, namespace: shop, labels: {{app: web}}{annotations}}}
spec: {{containers: [{{name: web}}]}}
status: {{podIP: 10.244.0.3, phase: Running}}
---
apiVersion: v1
kind: Pod
metadata: {{name: edge-0, namespace: istio-system, labels: {{istio: edge}}{annotations}}}
spec: {{containers: [{{name: proxy}}]}}
status: {{podIP: 10.244.0.4, phase: Running}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: edge, namespace: istio-system}}
spec: {{selector: {{istio: edge}}, servers: [{{port: {{number: 8080, name: http, protocol: HTTP}}, hosts: ['*']}}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: web, namespace: istio-system}}
spec: {{hosts: ['*'], gateways: [edge], http: [{{route: [{{destination: {{host: web.shop.svc.cluster.local}}}}]}}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data: {{mesh: 'defaultConfig: {default}'}}
{kinds}{more}"
    );
    let (objects, found) = crate::recorded::load(&[("mesh.yaml".into(), text.as_str().into())]);
    assert!(!found.has_errors(), "{found}\n{text}");
    evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default()).0
}

/// The connection manager of the workload's inbound side, or of the gateway.
fn manager(snapshot: &Snapshot, view: &ProxyView) -> Value {
    let set = translate(view, snapshot);
    let (_, refused) = compile(&set);
    assert!(refused.is_empty(), "{refused:?}");
    let all = compared(&set);
    let name = if &*view.pod == "edge-0" { "0.0.0.0_8080" } else { "virtualInbound" };
    let listeners = all["LDS"].as_array().expect("listeners");
    let listener = listeners.iter().find(|listener| listener["name"] == name).expect("a listener");
    let chains = listener["filter_chains"].as_array().expect("chains").clone();
    let filters = chains.into_iter().flat_map(|chain| chain["filters"].as_array().cloned().unwrap_or_default());
    let mut managers = filters.map(|filter| filter["typed_config"].clone());
    managers
        .find(|config| config["@type"].as_str().is_some_and(|name| name.ends_with("HttpConnectionManager")))
        .expect("one")
}

#[track_caller]
fn check(default: &str, kinds: &[(&str, &str)], annotation: &str, proxy: &str, pointer: &str, expected: &str) {
    let snapshot = built(default, kinds, annotation);
    let found = manager(&snapshot, &view_of(proxy, &snapshot));
    let at = found.pointer(pointer).map_or_else(|| "-".to_owned(), ToString::to_string);
    assert_eq!(at, expected, "{default} {kinds:?} {annotation} {proxy}: {pointer}");
}

const SIDECAR: &str = "sidecar web-0.shop";
const GATEWAY: &str = "router edge-0.istio-system";

#[test]
fn an_annotation_overrides_the_mesh() {
    let mine = |name: &str| format!("{{proxyHeaders: {{server: {{value: {name}}}}}}}");
    check("{}", &[], "", SIDECAR, "/server_name", "\"istio-envoy\"");
    check(&mine("a"), &[], "", SIDECAR, "/server_name", "\"a\"");
    check(&mine("a"), &[], &mine("b"), SIDECAR, "/server_name", "\"b\"");
    // A field replaces the whole field of the mesh.
    let request_id = "{proxyHeaders: {requestId: {disabled: true}}}";
    check(&mine("a"), &[], request_id, SIDECAR, "/server_name", "\"istio-envoy\"");
    check(&mine("a"), &[], request_id, SIDECAR, "/generate_request_id", "false");
    check(&mine("a"), &[], "{concurrency: 3}", SIDECAR, "/server_name", "\"a\"");
}

#[test]
fn listeners_of_a_workload_behind_tproxy_keep_its_clients_addresses() {
    let tproxy = "{interceptionMode: TPROXY}";
    let shown = |default: &str, annotation: &str, node: &str, interception: Option<InterceptionMode>| {
        let snapshot = built(default, &[], annotation);
        let view = ProxyView { proxy_config: node.into(), interception, ..view_of(SIDECAR, &snapshot) };
        let set = translate(&view, &snapshot);
        let (_, refused) = compile(&set);
        assert!(refused.is_empty(), "{refused:?}");
        let all = compared(&set);
        let listeners = all["LDS"].as_array().expect("listeners").iter();
        let transparent = listeners.clone().filter(|listener| listener["transparent"] == true);
        let names: Vec<_> = transparent.map(|listener| listener["name"].as_str().expect("a name").to_owned()).collect();
        let filters =
            listeners.flat_map(|listener| listener["listener_filters"].as_array().cloned().unwrap_or_default());
        let marks: Vec<_> = filters
            .filter(|filter| filter["name"] == "envoy.filters.listener.original_src")
            .map(|filter| filter["typed_config"]["mark"].clone())
            .collect();
        (names.join(" "), marks)
    };
    let all = ("virtualInbound virtualOutbound".to_owned(), vec![Value::from(1337)]);
    let none = (String::new(), Vec::new());
    assert_eq!(shown("{}", "", "", None), none);
    assert_eq!(shown(tproxy, "", "", None), all);
    assert_eq!(shown("{}", tproxy, "", None), all);
    assert_eq!(shown(tproxy, "{interceptionMode: REDIRECT}", "", None), none);
    assert_eq!(shown("{}", "", r#"{"interceptionMode": "TPROXY"}"#, None), all);
    // Its rules are those that it was started with.
    assert_eq!(shown(tproxy, "", "", Some(InterceptionMode::Redirect)), none);
    assert_eq!(shown("{}", "", "", Some(InterceptionMode::Tproxy)), all);
}

#[test]
fn a_node_that_says_it_all_is_believed() {
    let snapshot = built("{proxyHeaders: {server: {value: a}}}", &[], "{proxyHeaders: {server: {value: b}}}");
    let said = |json: &str| {
        let view = ProxyView { proxy_config: json.into(), ..view_of(SIDECAR, &snapshot) };
        manager(&snapshot, &view)["server_name"].clone()
    };
    assert_eq!(said(""), "b");
    assert_eq!(said(r#"{"proxyHeaders": {"server": {"value": "c"}}}"#), "c");
    assert_eq!(said(r#"{"concurrency": 2}"#), "istio-envoy");
    // What cannot be read is left out, the rest holds.
    assert_eq!(
        said(r#"{"fieldOfTheFuture": {}, "concurrency": "x", "proxyHeaders": {"server": {"value": "c"}}}"#),
        "c"
    );
}

#[test]
fn a_proxys_routes_and_clusters_add_the_headers_it_wants() {
    let headers = |text: &str| format!("{{proxyHeaders: {{{text}}}}}");
    let check = |annotation: &str, proxy: &str, part: &str, text: &str, expected: bool| {
        let snapshot = built("{}", &[], annotation);
        let set = translate(&view_of(proxy, &snapshot), &snapshot);
        let (_, refused) = compile(&set);
        assert!(refused.is_empty(), "{refused:?}");
        let all = compared(&set)[part].to_string();
        assert_eq!(all.contains(text), expected, "{annotation} {proxy}: {text} in {all}");
    };
    for proxy in [SIDECAR, GATEWAY] {
        let attempts = "include_request_attempt_count";
        check("{}", proxy, "RDS", attempts, true);
        check(&headers("attemptCount: {disabled: true}"), proxy, "RDS", attempts, false);
        let (debug, port) = ("suppress_envoy_headers", "append_x_forwarded_port");
        check("{}", proxy, "LDS", debug, false);
        check(&headers("envoyDebugHeaders: {disabled: true}"), proxy, "LDS", debug, true);
        check("{}", proxy, "LDS", port, false);
        check(&headers("xForwardedPort: {enabled: true}"), proxy, "LDS", port, true);
        let preserve = headers("preserveHttp1HeaderCase: true");
        for part in ["LDS", "CDS"] {
            check("{}", proxy, part, "PreserveCaseFormatterConfig", false);
            check(&preserve, proxy, part, "PreserveCaseFormatterConfig", true);
        }
        check(&headers("metadataExchangeHeaders: {mode: IN_MESH}"), proxy, "LDS", "peer_metadata", false);
    }
    let host = "append_x_forwarded_host";
    check("{}", GATEWAY, "RDS", host, false);
    check(&headers("xForwardedHost: {enabled: true}"), GATEWAY, "RDS", host, true);
}

#[test]
fn headers_are_as_the_proxy_says() {
    let headers = |text: &str| format!("{{proxyHeaders: {{{text}}}}}");
    check(&headers("server: {disabled: true}"), &[], "", SIDECAR, "/server_header_transformation", "\"PASS_THROUGH\"");
    check("{}", &[], "", SIDECAR, "/generate_request_id", "-");
    check(&headers("requestId: {disabled: true}"), &[], "", GATEWAY, "/generate_request_id", "false");
    let forward = "/forward_client_cert_details";
    check("{}", &[], "", SIDECAR, forward, "\"APPEND_FORWARD\"");
    check(&headers("forwardedClientCert: SANITIZE"), &[], "", SIDECAR, forward, "-");
    check(&headers("forwardedClientCert: FORWARD_ONLY"), &[], "", SIDECAR, forward, "\"FORWARD_ONLY\"");
    check(&headers("forwardedClientCert: SANITIZE"), &[], "", GATEWAY, forward, "\"SANITIZE_SET\"");
    check(
        &headers("setCurrentClientCertDetails: {cert: true, dns: false}"),
        &[],
        "",
        SIDECAR,
        "/set_current_client_cert_details/cert",
        "true",
    );
    check(
        &headers("setCurrentClientCertDetails: {cert: true, dns: false}"),
        &[],
        "",
        SIDECAR,
        "/set_current_client_cert_details/dns",
        "-",
    );
    let topology = |text: &str| format!("{{gatewayTopology: {{{text}}}}}");
    check("{}", &[], "", GATEWAY, forward, "\"SANITIZE_SET\"");
    check(
        &topology("forwardClientCertDetails: ALWAYS_FORWARD_ONLY"),
        &[],
        "",
        GATEWAY,
        forward,
        "\"ALWAYS_FORWARD_ONLY\"",
    );
    check(&topology("forwardClientCertDetails: APPEND_FORWARD"), &[], "", SIDECAR, forward, "\"APPEND_FORWARD\"");
    check(&topology("numTrustedProxies: 2"), &[], "", GATEWAY, "/xff_num_trusted_hops", "2");
    check(&topology("numTrustedProxies: 2"), &[], "", SIDECAR, "/xff_num_trusted_hops", "-");
}

#[test]
fn connections_have_the_limits_of_the_proxy() {
    let limits = |text: &str| format!("{{connectionSettings: {{{text}}}}}");
    let common = "/common_http_protocol_options";
    check("{}", &[], "", GATEWAY, common, "-");
    check(&limits("httpIdleTimeout: 5s"), &[], "", SIDECAR, &format!("{common}/idle_timeout"), "\"5s\"");
    check(
        &limits("httpMaxConnectionDuration: 6s"),
        &[],
        "",
        SIDECAR,
        &format!("{common}/max_connection_duration"),
        "\"6s\"",
    );
    check(&limits("httpMaxStreamDuration: 7s"), &[], "", SIDECAR, &format!("{common}/max_stream_duration"), "\"7s\"");
    check(&limits("httpStreamIdleTimeout: 8s"), &[], "", SIDECAR, "/stream_idle_timeout", "\"8s\"");
    check(&limits("httpRequestTimeout: 9s"), &[], "", SIDECAR, "/request_timeout", "\"9s\"");
    check(&limits("httpRequestHeadersTimeout: 10s"), &[], "", SIDECAR, "/request_headers_timeout", "\"10s\"");
    check(&limits("httpDrainTimeout: 11s"), &[], "", SIDECAR, "/drain_timeout", "\"11s\"");
    check(
        &limits("httpMaxConcurrentStreams: 12"),
        &[],
        "",
        SIDECAR,
        "/http2_protocol_options/max_concurrent_streams",
        "12",
    );
    check(
        &limits("http2InitialStreamWindowSize: 70000"),
        &[],
        "",
        SIDECAR,
        "/http2_protocol_options/initial_stream_window_size",
        "70000",
    );
    check(
        &limits("http2InitialConnectionWindowSize: 90000"),
        &[],
        "",
        SIDECAR,
        "/http2_protocol_options/initial_connection_window_size",
        "90000",
    );
    let underscores = limits("httpHeadersWithUnderscoresAction: HEADERS_WITH_UNDERSCORES_DROP_HEADER");
    check(&underscores, &[], "", SIDECAR, &format!("{common}/headers_with_underscores_action"), "\"DROP_HEADER\"");
    // EDGE fills the rest, in gateways.
    let edge = limits("profile: EDGE, httpIdleTimeout: 5s");
    check(&edge, &[], "", GATEWAY, &format!("{common}/idle_timeout"), "\"5s\"");
    check(&edge, &[], "", GATEWAY, &format!("{common}/headers_with_underscores_action"), "\"REJECT_REQUEST\"");
    check(&edge, &[], "", GATEWAY, "/stream_idle_timeout", "\"300s\"");
    check(&edge, &[], "", GATEWAY, "/merge_slashes", "true");
    check(&edge, &[], "", GATEWAY, "/path_with_escaped_slashes_action", "\"UNESCAPE_AND_REDIRECT\"");
    check(&edge, &[], "", SIDECAR, "/stream_idle_timeout", "\"0s\"");
    check(&edge, &[], "", SIDECAR, "/merge_slashes", "-");
}

/// How a call through the gateway ends.
fn at_gateway(default: &str, client: &Client, request: &str) -> String {
    let snapshot = built(default, &[], "");
    let (config, refused) = compile(&translate(&view_of(GATEWAY, &snapshot), &snapshot));
    assert!(refused.is_empty(), "{refused:?}");
    outcome(&config, "0.0.0.0_8080", client, "127.0.0.1:8080", request, 0)
}

#[test]
fn paths_are_as_the_gateway_says() {
    let check = |settings: &str, path: &str, expected: &str| {
        let default = format!("{{connectionSettings: {{{settings}}}}}");
        assert_eq!(at_gateway(&default, &PLAIN_HTTP, &format!("GET web {path}")), expected, "{settings} {path}");
    };
    let to = |path: &str| format!("outbound|80||web.shop.svc.cluster.local web{path}");
    check("", "/a//b", &to("/a//b"));
    check("httpMergeSlashes: true", "/a//b", &to("/a/b"));
    check("profile: EDGE", "/a//b", &to("/a/b"));
    check("profile: EDGE, httpMergeSlashes: false", "/a//b", &to("/a//b"));
    check("httpPathWithEscapedSlashesAction: KEEP_UNCHANGED", "/a%2Fb", &to("/a%2Fb"));
    check("httpPathWithEscapedSlashesAction: UNESCAPE_AND_FORWARD", "/a%2Fb", &to("/a/b"));
}

/// `namespace/label=value` of a workload, and the setting of its proxies' DNS.
#[test]
fn proxy_configs_apply_from_the_mesh_to_the_workload() {
    let capture = |value: &str| format!("environmentVariables: {{ISTIO_META_DNS_CAPTURE: '{value}'}}");
    let of_web = |value: &str| format!("selector: {{matchLabels: {{app: web}}}}, {}", capture(value));
    let check = |kinds: &[(&str, &str)], pod: &str, namespace: &str, expected: Option<bool>| {
        let snapshot = built("{}", kinds, "");
        let workload = snapshot.workload(&namespace.into(), &pod.into()).expect("a workload");
        assert_eq!(snapshot.proxy_config(namespace, &workload.labels).dns_capture(), expected, "{kinds:?} {pod}");
    };
    let (on, off) = (capture("true"), capture("false"));
    check(&[], "web-0", "shop", None);
    check(&[("istio-system", &on)], "web-0", "shop", Some(true));
    check(&[("istio-system", &on)], "edge-0", "istio-system", Some(true));
    check(&[("istio-system", &on), ("shop", &off)], "web-0", "shop", Some(false));
    check(&[("istio-system", &on), ("shop", &off)], "edge-0", "istio-system", Some(true));
    check(&[("shop", &off), ("shop", &of_web("true"))], "web-0", "shop", Some(true));
    check(&[("shop", &of_web("true")), ("shop", &of_web("false"))], "web-0", "shop", Some(true));
    check(&[("other", &on)], "web-0", "shop", None);
}

#[test]
fn concurrency_and_metadata_merge_field_by_field() {
    let snapshot = built(
        "{concurrency: 4, drainDuration: 9s, proxyMetadata: {ISTIO_META_DNS_CAPTURE: \"true\"}}",
        &[("shop", "concurrency: 2, environmentVariables: {ISTIO_META_DNS_AUTO_ALLOCATE: 'true'}")],
        "",
    );
    let workload = snapshot.workload_at(IpAddr::from([10, 244, 0, 3])).expect("a workload");
    let config = snapshot.proxy_config("shop", &workload.labels);
    assert_eq!(
        (config.concurrency, config.dns_capture(), config.dns_auto_allocate()),
        (Some(2), Some(true), Some(true))
    );
    assert_eq!(config.drain_duration.map(|time| time.as_secs()), Some(9));
}

#[test]
fn without_capture_every_listener_binds_its_port() {
    const NONE: &str = "{interceptionMode: NONE}";
    let sidecar = |spec: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: own, namespace: shop}}\nspec: {{{spec}}}\n"
        )
    };
    let ingress = "ingress: [{port: {number: 8080, protocol: HTTP, name: http}, defaultEndpoint: '127.0.0.1:9000'}]";
    let bound = "egress: [{port: {number: 80, protocol: HTTP, name: http}, bind: 127.0.0.9, hosts: ['*/*']}]";
    let check = |default: &str,
                 annotation: &str,
                 node: Option<InterceptionMode>,
                 spec: &str,
                 listeners: &str,
                 inbound: &str| {
        let more = if spec.is_empty() { String::new() } else { sidecar(spec) };
        let snapshot = built_with(default, &[], annotation, &more);
        let view = ProxyView { interception: node, ..view_of(SIDECAR, &snapshot) };
        let set = translate(&view, &snapshot);
        let (config, refused) = compile(&set);
        assert!(refused.is_empty(), "{refused:?}");
        let all = compared(&set);
        let named = |kind: &str, wanted: &dyn Fn(&Value) -> bool| {
            let list = all[kind].as_array().expect("resources").iter().filter(|one| wanted(one));
            list.map(|one| one["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            named("LDS", &|listener| listener["bind_to_port"] != false),
            listeners,
            "{default} {annotation} {spec}"
        );
        let is_inbound = |cluster: &Value| cluster["name"].as_str().is_some_and(|name| name.starts_with("inbound|"));
        assert_eq!(named("CDS", &is_inbound), inbound, "{default} {annotation} {spec}");
        config
    };
    let call = |config: &evenkeel_runtime_config::Config, listener: &str, host: &str| {
        let to = listener.replace('_', ":");
        outcome(config, listener, &PLAIN_HTTP, &to, &format!("GET {host} /"), 0)
    };
    let captured = "virtualInbound virtualOutbound";
    check("{}", "", None, "", captured, "inbound|8080||");
    check(NONE, "", Some(InterceptionMode::Redirect), "", captured, "inbound|8080||");
    for (default, annotation, node) in [(NONE, "", None), ("{}", NONE, None), ("{}", "", Some(InterceptionMode::None))]
    {
        let config = check(default, annotation, node, "", "127.0.0.1_80", "");
        assert!(
            call(&config, "127.0.0.1_80", "web").starts_with("outbound|80||web.shop.svc.cluster.local"),
            "{default}"
        );
        assert!(call(&config, "127.0.0.1_80", "x.example").contains("502"), "it has no original destination");
        check(default, annotation, node, ingress, "10.244.0.3_8080 127.0.0.1_80", "inbound|8080||");
        check(default, annotation, node, bound, "127.0.0.9_80", "");
    }
}

#[test]
fn settings_of_a_proxy_that_do_not_work_are_named() {
    let check = |config: &str, code: &str, part: &str| {
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{proxy.istio.io/config: '{config}'}}}}\nspec: {{containers: [{{name: a}}]}}\n"
        );
        let (_, found) = crate::recorded::load(&[("a.yaml".into(), pod.into())]);
        assert!(found.iter().any(|f| f.code == code && f.message.contains(part)), "{config}: {found}");
    };
    check("{interceptionMode: NONE}", "not-captured", "no connection of the workload is captured");
    check("{proxyHeaders: {metadataExchangeHeaders: {mode: UNDEFINED}}}", "no-effect", "in the mesh only");
    check("{proxyStatsMatcher: {inclusionRegexps: [(]}}", "bad-regex", "invalid regular expression");
    check("{proxyMetadata: {ISTIO_META_X: y}}", "no-effect", "no setting of the agent");
    check("{holdApplicationUntilProxyStarts: false}", "no-effect", "in any case");
    check("{connectionSettings: {listenerPerConnectionBufferLimitBytes: 1}}", "no-effect", "has no effect");
    check("{tracing: {datadog: {address: agent:8126}}}", "unsupported-field", "tracing");
    check("{binaryPath: /x}", "no-effect", "binaryPath");
    check("{fieldOfTheFuture: 1}", "unknown-field", "in this version");
    check("{concurrency: many}", "wrong-type", "concurrency");
    check("[", "yaml-syntax", "not valid YAML");
}
