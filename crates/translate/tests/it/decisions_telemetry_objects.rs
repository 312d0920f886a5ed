//! Telemetry objects: which apply to a workload, and what they say of its traces and logs on each side.

use evenkeel_translate::{ClientKind, ProxyView};
use serde_json::Value;

use crate::decisions_telemetry::{built_with, filters, listener};
use crate::own_proxy::compile;
use crate::recorded::compared;
use crate::scenario::{translate, view_of};

/// Two collectors, three logs, and one of each that cannot be used.
const PROVIDERS: &str = "extensionProviders:
- {name: zip, zipkin: {service: collector.telemetry.svc.cluster.local, port: 9411}}
- {name: otel, opentelemetry: {service: collector.telemetry.svc.cluster.local, port: 4317}}
- {name: lost, opentelemetry: {service: nowhere.telemetry.svc.cluster.local, port: 4317}}
- {name: old, skywalking: {service: collector.telemetry.svc.cluster.local, port: 9411}}
- {name: file, envoyFileAccessLog: {path: /tmp/log}}
- {name: als, envoyHttpAls: {service: collector.telemetry.svc.cluster.local, port: 4317}}";

/// Telemetry objects from `NAMESPACE SPEC`.
fn objects(all: &[&str]) -> String {
    let object = |index: usize, text: &str| {
        let (namespace, spec) = text.split_once(' ').expect("a namespace");
        format!(
            "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {{name: t{index}, namespace: {namespace}}}\nspec: {spec}\n"
        )
    };
    all.iter().enumerate().map(|(index, text)| object(index, text)).collect()
}

/// The connection managers of the sidecar `web-0.shop`: the one for what it sends, and one for what it receives.
fn managers(defaults: &str, telemetries: &[&str]) -> [Value; 2] {
    let (snapshot, _) = built_with(&format!("{defaults}\n{PROVIDERS}"), "{}", &objects(telemetries));
    let set = translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot);
    let (_, refused) = compile(&set);
    assert!(refused.is_empty(), "{refused:?}");
    let all = compared(&set);
    let manager = |name: &str| filters(listener(&all, name), "HttpConnectionManager").next().expect("one").clone();
    [manager("0.0.0.0_9080"), manager("virtualInbound")]
}

/// `COLLECTOR SAMPLING TAGS`, or nothing.
fn tracing(manager: &Value) -> String {
    let tracing = &manager["tracing"];
    let Some(provider) = tracing["provider"]["name"].as_str() else { return String::new() };
    let provider = provider.trim_start_matches("envoy.tracers.");
    let tags = tracing["custom_tags"].as_array().cloned().unwrap_or_default();
    let tags = tags.iter().filter_map(|tag| tag["tag"].as_str()).filter(|tag| !tag.starts_with("istio.auth"));
    let tags: Vec<_> = tags.map(|tag| tag.trim_start_matches("istio.")).collect();
    format!("{provider} {} {}", tracing["random_sampling"]["value"].as_f64().unwrap_or(0.0), tags.join(" "))
}

/// The names of the logs.
fn logs(manager: &Value) -> String {
    let logs = manager["access_log"].as_array().cloned().unwrap_or_default();
    let name = |log: &Value| {
        let config = &log["typed_config"];
        let name = config["path"].as_str().or(config["common_config"]["log_name"].as_str()).unwrap_or_default();
        let filter = log["filter"]["extension_filter"]["typed_config"]["expression"].as_str();
        format!("{name}{}", filter.map(|filter| format!("[{filter}]")).unwrap_or_default())
    };
    logs.iter().map(name).collect::<Vec<_>>().join(" ")
}

/// What the filters `istio.stats` of Evenkeel's sidecar `web-0.shop` have: for requests that it sends and receives, and for
/// connections that it opens.
fn metrics(defaults: &str, telemetries: &[&str]) -> [String; 3] {
    let (snapshot, _) = built_with(&format!("{defaults}\n{PROVIDERS}"), "{}", &objects(telemetries));
    let view = view_of("sidecar web-0.shop", &snapshot);
    let set = translate(&ProxyView { client_kind: ClientKind::EvenkeelFull, ..view }, &snapshot);
    let (_, refused) = compile(&set);
    assert!(refused.is_empty(), "{refused:?}");
    let all = compared(&set);
    let of_requests = |name: &str| {
        let manager = filters(listener(&all, name), "HttpConnectionManager").next().expect("one");
        let filters = manager["http_filters"].as_array().cloned().unwrap_or_default();
        filters.iter().find(|filter| filter["name"] == "istio.stats").map(|filter| changes(&filter["typed_config"]))
    };
    let of_connections = || filters(listener(&all, "10.96.1.2_9000"), "stats.PluginConfig").next().map(changes);
    [of_requests("0.0.0.0_9080"), of_requests("virtualInbound"), of_connections()]
        .map(|found| found.unwrap_or_else(|| "none".to_owned()))
}

/// `METRIC!` for one that is dropped, `METRIC-LABEL` for a label that is removed, `METRIC+LABEL=TEXT` for one with a value, and further settings.
fn changes(config: &Value) -> String {
    let mut parts: Vec<String> = Vec::new();
    for metric in config["metrics"].as_array().into_iter().flatten() {
        let name = metric["name"].as_str().unwrap_or_default();
        parts.extend((metric["drop"] == true).then(|| format!("{name}!")));
        let removed = metric["tags_to_remove"].as_array().into_iter().flatten().filter_map(Value::as_str);
        parts.extend(removed.map(|label| format!("{name}-{label}")));
        let values = metric["dimensions"].as_object().into_iter().flatten();
        parts.extend(values.map(|(label, text)| format!("{name}+{label}={}", text.as_str().unwrap_or_default())));
    }
    parts.extend(config["tcp_reporting_duration"].as_str().map(str::to_owned));
    parts.extend((config["disable_host_header_fallback"] == true).then(|| "no-host".to_owned()));
    parts.join(" ")
}

/// Stock Envoy has no such filter, and ALPN would have the other side wait for the message.
#[test]
fn only_evenkeels_proxies_exchange_metadata_over_tcp() {
    let check = |client_kind: ClientKind, expected: bool| {
        let (snapshot, _) = built_with(PROVIDERS, "{}", "");
        let set = translate(&ProxyView { client_kind, ..view_of("sidecar web-0.shop", &snapshot) }, &snapshot);
        let all = compared(&set);
        let has = |part: &str, text: &str| all[part].to_string().contains(text);
        assert_eq!(has("CDS", "istio.metadata_exchange"), expected, "{client_kind:?}");
        assert_eq!(has("CDS", "istio-peer-exchange"), expected, "{client_kind:?}");
        assert_eq!(has("LDS", "istio.metadata_exchange"), expected, "{client_kind:?}");
    };
    check(ClientKind::Envoy, false);
    check(ClientKind::EvenkeelFull, true);
    check(ClientKind::EvenkeelLearned, true);
}

#[test]
fn metrics_follow_all_objects_from_the_outermost() {
    let check = |defaults: &str, telemetries: &[&str], expected: [&str; 3]| {
        assert_eq!(metrics(defaults, telemetries), expected, "{defaults} {telemetries:?}");
    };
    let none = ["none"; 3];
    check("", &[], ["", "no-host", ""]);
    check("defaultProviders: {metrics: [prometheus]}", &[], ["", "no-host", ""]);
    check("defaultProviders: {metrics: [unknown]}", &[], none);
    check("", &["shop {metrics: [{providers: [{name: unknown}]}]}"], none);
    let off = "{metrics: [{overrides: [{disabled: true}]}]}";
    check("", &[&format!("istio-system {off}")], none);
    let all = "{metrics: [{overrides: [{match: {metric: ALL_METRICS, mode: CLIENT}, disabled: true}]}]}";
    check("", &[&format!("shop {all}")], ["none", "no-host", "none"]);
    // What is turned off for the mesh can be turned on again for a namespace, one metric being enough.
    let on = "shop {metrics: [{overrides: [{match: {metric: REQUEST_COUNT, mode: SERVER}, disabled: false}]}]}";
    check("", &[&format!("istio-system {off}"), on], ["none", "no-host", "none"]);
    let drops = "shop {metrics: [{providers: [{name: prometheus}], reportingInterval: 15s, overrides: [\
                 {match: {metric: REQUEST_SIZE}, disabled: true}, \
                 {match: {customMetric: requests_total, mode: SERVER}, tagOverrides: {source_app: {operation: REMOVE}}}]}]}";
    let server = "request_bytes! requests_total-source_app 15s no-host";
    check("", &[drops], ["request_bytes! 15s", server, "request_bytes! 15s"]);
    let of_web = "shop {selector: {matchLabels: {app: web}}, metrics: [{overrides: [\
                  {match: {metric: REQUEST_SIZE, mode: CLIENT}, disabled: false}, \
                  {match: {metric: REQUEST_COUNT, mode: SERVER}, tagOverrides: {reporter: {operation: REMOVE}}}]}]}";
    let server = "request_bytes! requests_total-reporter requests_total-source_app 15s no-host";
    check("", &[drops, of_web], ["15s", server, "15s"]);
    // What is said later of a label replaces what was said before.
    let tag = |namespace: &str, selector: &str, tag: &str| {
        format!(
            "{namespace} {{{selector}metrics: [{{overrides: [{{match: {{metric: REQUEST_COUNT, mode: CLIENT}}, tagOverrides: {{a: {tag}}}}}]}}]}}"
        )
    };
    let outer = tag("istio-system", "", "{value: request.host}");
    let set = "requests_total+a=request.host";
    check("", &[&outer], [set, "no-host", set]);
    check("", &[&outer, &tag("shop", "", "{operation: REMOVE}")], ["requests_total-a", "no-host", "requests_total-a"]);
    let removed = tag("istio-system", "", "{operation: REMOVE}");
    let set = "requests_total+a=request.path";
    check("", &[&removed, &tag("shop", "", "{value: request.path}")], [set, "no-host", set]);
}

/// Tags that spans have unless something else is said.
const TAGS: &str = "canonical_revision canonical_service mesh_id namespace";

#[test]
fn traces_follow_the_innermost_object() {
    let check = |defaults: &str, telemetries: &[&str], client: &str, server: &str| {
        let expected = [client, server].map(|text| text.replace("TAGS", TAGS));
        assert_eq!(managers(defaults, telemetries).each_ref().map(tracing), expected, "{defaults} {telemetries:?}");
    };
    let default = "defaultProviders: {tracing: [zip]}";
    check(default, &[], "zipkin 1 TAGS", "zipkin 1 TAGS");
    let otel = "istio-system {tracing: [{providers: [{name: otel}], randomSamplingPercentage: 50}]}";
    check(default, &[otel], "opentelemetry 50 TAGS", "opentelemetry 50 TAGS");
    check("", &[otel], "opentelemetry 50 TAGS", "opentelemetry 50 TAGS");
    // Each field is inherited of its own.
    let sampling = "shop {tracing: [{randomSamplingPercentage: 0}]}";
    check("", &[sampling, otel], "opentelemetry 0 TAGS", "opentelemetry 0 TAGS");
    check("", &[sampling], "", "");
    check(default, &[sampling], "zipkin 0 TAGS", "zipkin 0 TAGS");
    check(
        "",
        &[otel, "other {tracing: [{randomSamplingPercentage: 0}]}"],
        "opentelemetry 50 TAGS",
        "opentelemetry 50 TAGS",
    );
    let tags = |namespace: &str, selection: &str, tags: &str| {
        format!("{namespace} {{{selection}tracing: [{{enableIstioTags: false, customTags: {{{tags}}}}}]}}")
    };
    let of_mesh = tags("istio-system", "", "a: {literal: {value: b}}, c: {environment: {name: X, defaultValue: y}}");
    let of_web = tags("shop", "selector: {matchLabels: {app: web}}, ", "d: {header: {name: x, defaultValue: z}}");
    let of_others = tags("shop", "selector: {matchLabels: {app: api}}, ", "e: {literal: {value: f}}");
    check(default, &[&of_mesh], "zipkin 1 a c", "zipkin 1 a c");
    check(default, &[&of_mesh, &of_web, &of_others], "zipkin 1 d", "zipkin 1 d");
    // Tags that are not usable are left out.
    let formats = "m: {formatter: {value: '%REQ(:METHOD):2%:%RESPONSE_CODE%'}}, n: {formatter: {value: '50%'}}";
    let [client, _] = managers(default, &[&tags("istio-system", "", formats)]);
    let expected = serde_json::json!([{ "tag": "m", "value": "%REQ(:METHOD):2%:%RESPONSE_CODE%" }]);
    assert_eq!(client["tracing"]["custom_tags"], expected);
    // Sides.
    let off = "shop {tracing: [{match: {mode: CLIENT}, disableSpanReporting: true}]}";
    check(default, &[off], "", "zipkin 1 TAGS");
    let sides = "shop {tracing: [{match: {mode: CLIENT}, providers: [{name: otel}]}, {match: {mode: SERVER}, \
                 providers: [{name: zip}]}, {match: {mode: CLIENT_AND_SERVER}, randomSamplingPercentage: 7}]}";
    check("", &[sides], "opentelemetry 7 TAGS", "zipkin 7 TAGS");
    let on_again = "shop {selector: {matchLabels: {app: web}}, tracing: [{disableSpanReporting: false}]}";
    check(default, &[off, on_again], "zipkin 1 TAGS", "zipkin 1 TAGS");
    // Nothing can be sent to these.
    for name in ["lost", "old", "unknown", "file"] {
        check(default, &[&format!("shop {{tracing: [{{providers: [{{name: {name}}}]}}]}}")], "", "");
    }
    // Those of a Gateway's Pods are for no sidecar.
    let target = "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]";
    check(
        default,
        &[&format!("shop {{{target}, tracing: [{{randomSamplingPercentage: 3}}]}}")],
        "zipkin 1 TAGS",
        "zipkin 1 TAGS",
    );
    let target = target.replace("targetRefs: [{", "targetRef: {").replace("}]", "}");
    check(
        default,
        &[&format!("shop {{{target}, tracing: [{{randomSamplingPercentage: 3}}]}}")],
        "zipkin 1 TAGS",
        "zipkin 1 TAGS",
    );
}

#[test]
fn logs_follow_the_innermost_object_that_names_some() {
    let check = |defaults: &str, telemetries: &[&str], client: &str, server: &str| {
        assert_eq!(
            managers(defaults, telemetries).each_ref().map(logs),
            [client, server],
            "{defaults} {telemetries:?}"
        );
    };
    let (stdout, http) = ("/dev/stdout", "http_envoy_accesslog");
    let file = "accessLogFile: /tmp/old";
    let rule = |namespace: &str, rule: &str| format!("{namespace} {{accessLogging: [{{{rule}}}]}}");
    let named = |namespace: &str, name: &str| rule(namespace, &format!("providers: [{{name: {name}}}]"));
    check(file, &[], "/tmp/old", "/tmp/old");
    check(file, &[&named("istio-system", "file")], "/tmp/log", "/tmp/log");
    check("", &[&named("istio-system", "file"), &named("shop", "als")], http, http);
    check("", &[&named("shop", "envoy")], stdout, stdout);
    let two = rule("shop", "providers: [{name: file}, {name: als}]");
    check("", &[&two], &format!("{http} /tmp/log"), &format!("{http} /tmp/log"));
    // One that names none turns on what there is further out, or off.
    let default = "defaultProviders: {accessLogging: [file]}";
    check(default, &[], "/tmp/log", "/tmp/log");
    check(default, &[&rule("shop", "disabled: true")], "", "");
    // As in Istio, a side of which only objects about the other one speak has no logs.
    check(default, &[&rule("shop", "disabled: true, match: {mode: CLIENT}")], "", "");
    check(default, &[&rule("shop", "disabled: false, match: {mode: CLIENT}")], "/tmp/log", "");
    check(
        default,
        &[&rule("shop", "disabled: false"), &rule("istio-system", "disabled: true")],
        "/tmp/log",
        "/tmp/log",
    );
    check("", &[&rule("shop", "match: {mode: SERVER}, providers: [{name: file}]")], "", "/tmp/log");
    // An inner object names others: what is said of `file` no longer counts.
    check("", &[&rule("istio-system", "providers: [{name: file}], disabled: true"), &named("shop", "als")], http, http);
    // The filter of the last rule that is about a log.
    let filtered = |code: &str| format!("providers: [{{name: file}}], filter: {{expression: response.code >= {code}}}");
    let of_mesh = rule("istio-system", &filtered("400"));
    check("", &[&of_mesh], "/tmp/log[response.code >= 400]", "/tmp/log[response.code >= 400]");
    check("", &[&of_mesh, &rule("shop", "disabled: false")], "/tmp/log", "/tmp/log");
    let of_client = rule("shop", &format!("match: {{mode: CLIENT}}, {}", filtered("500")));
    check("", &[&of_mesh, &of_client], "/tmp/log[response.code >= 500]", "/tmp/log[response.code >= 400]");
    for name in ["lost", "unknown", "otel"] {
        check(file, &[&named("shop", name)], "", "");
    }
}

#[test]
fn expressions_and_tags_that_cannot_be_used_are_findings() {
    let check = |spec: &str, expected: &str| {
        let text = format!("apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {{name: t}}\nspec: {spec}\n");
        let (_, found) = evenkeel_api::load(&[("t.yaml".into(), text.as_str().into())]);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|text| text.contains(expected)), "{spec}: {expected}: {found:?}");
        assert!(found.iter().all(|text| text.contains("t.yaml:4:")), "{found:?}");
    };
    let log =
        |text: &str| format!("{{accessLogging: [{{providers: [{{name: file}}], filter: {{expression: {text:?}}}}}]}}");
    check(&log("response.code >"), "the expression does not compile:");
    check(&log("true &&  nothing"), "`nothing` is no attribute; there are request,");
    check(&log("true &&  nothing"), "(line 1, column 10)");
    let tag = "{metrics: [{overrides: [{tagOverrides: {a: {value: request.hast}}}]}]}";
    check(tag, "`request` has no `hast`; it has path,");
    let tag = |value: &str| format!("{{tracing: [{{customTags: {{a: {value}}}}}]}}");
    let format = |text: &str| tag(&format!("{{formatter: {{value: {text:?}}}}}"));
    check(&format(""), "an empty format string; the tag is left out");
    for wrong in ["50%", "%a%", "%REQ(:METHOD%", "%REQ(:METHOD)", "%DURATION:x%", "%%%"] {
        check(
            &format(wrong),
            "\"%\" starts no operator; a literal percent sign is written \"%%\"; the tag is left out",
        );
    }
    let unknown = "there is no operator %RESPONSE_COD%; did you mean %RESPONSE_CODE%?; the tag is left out";
    check(&format("a %RESPONSE_COD%"), unknown);
    check(&tag("{}"), "a tag has one of `literal`, `environment`, `header` and `formatter`");
    check(&tag("{literal: {value: b}, formatter: {value: c}}"), "a tag has one of");
    for right in ["%%", "a", "50 %% of %DURATION%", "%REQ(X-A?Y):12%%PROTOCOL%"] {
        let text = format!(
            "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {{name: t}}\nspec: {}\n",
            format(right)
        );
        let (_, found) = evenkeel_api::load(&[("t.yaml".into(), text.as_str().into())]);
        assert!(found.is_empty(), "{right}: {found:?}");
    }
}

#[test]
fn providers_that_cannot_be_used_are_named() {
    let check = |spec: &str, expected: &str| {
        let (_, found) = built_with(PROVIDERS, "{}", &objects(&[spec]));
        let found: Vec<_> = found.into_iter().filter(|text| !text.contains("nothing uses the provider")).collect();
        let is_expected =
            if expected.is_empty() { found.is_empty() } else { found.iter().any(|text| text.contains(expected)) };
        assert!(is_expected, "{spec}: {expected}: {found:?}");
    };
    let traces = |name: &str| format!("shop {{tracing: [{{providers: [{{name: {name}}}]}}]}}");
    let logs = |name: &str| format!("shop {{accessLogging: [{{providers: [{{name: {name}}}]}}]}}");
    check(&traces("zip"), "");
    check(&logs("envoy"), "");
    check(&traces("zap"), "[unsupported-provider]: `zap`: no such provider");
    check(&traces("old"), "`old`: providers of this kind are not supported yet");
    check(&traces("file"), "`file`: it is not a provider of this kind");
    check(&logs("zip"), "`zip`: it is not a provider of this kind");
    check(&traces("lost"), "[missing-service]: `lost`: there is no service `nowhere.telemetry");
    check("shop {tracing: [{providers: [{name: zip}, {name: otel}]}]}", "`otel`: spans go to one collector");
    check("shop {metrics: [{providers: [{name: prometheus}]}]}", "");
    check("shop {metrics: [{providers: [{name: zip}]}]}", "`zip`: it is not a provider of this kind");
    check("shop {tracing: [{randomSamplingPercentage: 3}]}", "[no-effect]");
    check("shop {selector: {matchLabels: {app: wep}}, accessLogging: [{disabled: true}]}", "[selects-nothing]");
    let (_, found) = built_with(PROVIDERS, "{}", &objects(&[&traces("zip"), &traces("otel")]));
    assert!(found.iter().any(|text| text.contains("[overridden]: Telemetry shop/t1 is ignored")), "{found:?}");
    let unused: Vec<_> = found.iter().filter(|text| text.contains("nothing uses the provider")).collect();
    assert_eq!(unused.len(), 4, "{unused:?}");
}
