//! ProxyConfig: settings that the agent of a proxy reads, and not the control plane.

use evenkeel_base::yaml::Node;
use evenkeel_base::{Diagnostic, Diagnostics, Span, Spanned};
use serde_json::{Map, Value};

use super::ProxyConfig;
use super::agent_checks::{ADMIN_PORT, STATUS_PORT, problem_of_port};
use super::proxy_config::READ_AT_START;
use crate::decode::Decode;

/// The fields of ProxyConfig that do not affect what the control plane sends a proxy, but are for its agent.
/// [`ProxyConfig::for_agent`] writes these, and `tracing`.
pub const OF_AGENT: [&str; 18] = [
    "drainDuration",
    "readinessProbe",
    "proxyStatsMatcher",
    "extraStatTags",
    "runtimeValues",
    "fileFlushInterval",
    "fileFlushMinSizeKb",
    "serviceCluster",
    "tracingServiceName",
    "proxyAdminPort",
    "statusPort",
    "caCertificatesPem",
    "zipkinAddress",
    "statsdUdpAddress",
    "envoyMetricsService",
    "envoyAccessLogService",
    "customConfigFile",
    "proxyBootstrapTemplatePath",
];

fn usable(written: &Option<Spanned<u32>>, default: u16) -> Option<u16> {
    let port = written.as_ref()?.value;
    u16::try_from(port).ok().filter(|_| problem_of_port(port, default).is_none())
}

impl ProxyConfig {
    /// The port of the admin interface, if it is another than Istio's.
    pub fn admin_port(&self) -> Option<u16> {
        usable(&self.proxy_admin_port, ADMIN_PORT)
    }

    /// The port of the agent's page, if a usable one is named.
    pub fn status_port(&self) -> Option<u16> {
        usable(&self.status_port, STATUS_PORT).filter(|port| Some(*port) != self.admin_port())
    }

    /// What an agent's `--proxy-config` says that has no effect, or cannot be used.
    pub fn findings_of_agent(config: &Map<String, Value>) -> Diagnostics {
        let place = Span::whole_file("--proxy-config");
        let mut cx = Self::context();
        let read = Self::decode(&Node::from_json(&Value::Object(config.clone()), &place), &mut cx);
        let found = cx.into_diagnostics();
        let mut found: Diagnostics =
            found.iter().filter(|finding| !finding.message.ends_with(READ_AT_START)).cloned().collect();
        let holds = read.and_then(|config| config.hold_application_until_proxy_starts).is_some_and(|hold| hold.value);
        if holds {
            let message = "holdApplicationUntilProxyStarts: an agent does not start the workload";
            let help = "start it when the agent's page `/healthz/ready` answers with 200";
            found.push(Diagnostic::info("no-effect", place, message).with_help(help));
        }
        found
    }

    /// Returns the fields that the agent reads, besides the readiness probe, as ProxyConfig's JSON.
    pub fn for_agent(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut add = |name: &str, value: Value| {
            fields.insert(name.to_owned(), value);
        };
        if let Some(matcher) = &self.proxy_stats_matcher {
            add("proxyStatsMatcher", matcher.to_json());
        }
        if !self.extra_stat_tags.is_empty() {
            add("extraStatTags", self.extra_stat_tags.iter().map(|tag| tag.value.as_str()).collect());
        }
        if !self.runtime_values.is_empty() {
            let values = self.runtime_values.iter().map(|(key, value)| (key.clone(), value.value.clone().into()));
            add("runtimeValues", Value::Object(values.collect()));
        }
        if let Some(interval) = self.file_flush_interval {
            add("fileFlushInterval", format!("{}s", interval.as_secs_f64()).into());
        }
        if let Some(time) = self.drain_duration {
            add("drainDuration", format!("{}s", time.as_secs_f64()).into());
        }
        if let Some(size) = self.file_flush_min_size_kb {
            add("fileFlushMinSizeKb", size.into());
        }
        if let Some(mesh) = &self.mesh_id {
            add("meshId", mesh.as_str().into());
        }
        if let Some(name) = &self.service_cluster {
            add("serviceCluster", name.as_str().into());
        }
        if let Some(name) = self.tracing_service_name {
            add("tracingServiceName", name.as_str().into());
        }
        if let Some(port) = self.admin_port() {
            add("proxyAdminPort", port.into());
        }
        if let Some(port) = self.status_port() {
            add("statusPort", port.into());
        }
        let roots: Vec<&str> = self.ca_certificates_pem.iter().map(|pem| pem.as_str()).collect();
        if !roots.is_empty() {
            add("caCertificatesPem", roots.into());
        }
        self.destinations(&mut fields);
        fields
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Span;
    use serde_json::json;

    use super::*;

    fn read(json: Value) -> ProxyConfig {
        ProxyConfig::of_metadata(&json)
    }

    #[test]
    fn agents_get_what_is_for_them() {
        let check = |config: Value, expected: Value| {
            let fields = Value::Object(read(config.clone()).for_agent());
            assert_eq!(fields, expected, "{config}");
        };
        check(json!({ "concurrency": 3, "proxyMetadata": { "A": "b" } }), json!({}));
        let all = json!({
            "extraStatTags": ["a", "b"],
            "drainDuration": "9s",
            "fileFlushInterval": "0.5s",
            "fileFlushMinSizeKb": 4,
            "proxyStatsMatcher": { "inclusionPrefixes": ["x"], "inclusionSuffixes": [], "inclusionRegexps": [] },
            "runtimeValues": { "a.b": "1" },
            "serviceCluster": "web",
            "proxyAdminPort": 15900,
            "statusPort": 15920,
            "caCertificatesPem": ["-----BEGIN CERTIFICATE-----"],
            "statsdUdpAddress": "10.0.0.9:8125",
            "envoyMetricsService": { "address": "metrics.default:15000" },
            "envoyAccessLogService": {
                "address": "logs.default:15000",
                "tcpKeepalive": { "probes": 3, "time": "10s", "interval": "1s" },
            },
            "customConfigFile": "/etc/proxy.yaml",
            "proxyBootstrapTemplatePath": "/etc/template.json",
            "tracingServiceName": "CANONICAL_NAME_ONLY",
        });
        let tracing = json!({ "zipkin": { "address": "zipkin.istio-system:9411" } });
        let mut with_tracing = all.clone();
        with_tracing["tracing"] = tracing.clone();
        with_tracing.as_object_mut().expect("an object").remove("serviceCluster");
        check(with_tracing.clone(), with_tracing.clone());
        // The control plane must not take these fields for the complete settings of the proxy.
        for name in with_tracing.as_object().expect("an object").keys().filter(|name| *name != "tracing") {
            assert!(OF_AGENT.contains(&name.as_str()), "{name}");
        }
        // Older names are converted; the proxy's fields are not the agent's.
        check(json!({ "zipkinAddress": "zipkin.istio-system:9411" }), json!({ "tracing": tracing }));
        check(
            json!({ "tracing": { "sampling": 5, "customTags": { "a": { "literal": { "value": "b" } } } } }),
            json!({}),
        );
        check(json!({ "envoyMetricsServiceAddress": "m:1" }), json!({ "envoyMetricsService": { "address": "m:1" } }));
        // Unusable values are not passed on.
        check(json!({ "zipkinAddress": "zipkin", "statsdUdpAddress": "statsd.default:8125" }), json!({}));
    }

    #[test]
    fn the_settings_of_a_pod_are_over_those_of_the_mesh() {
        let check = |own: Value, mesh: Value, expected: Value| {
            let fields = Value::Object(read(own.clone()).over(read(mesh.clone())).for_agent());
            assert_eq!(fields, expected, "{own} over {mesh}");
        };
        let tags = |tags: &[&str]| json!({ "extraStatTags": tags });
        check(tags(&["a"]), tags(&["b"]), tags(&["a"]));
        check(json!({}), tags(&["b"]), tags(&["b"]));
        // Keys are added.
        let runtime = |values: Value| json!({ "runtimeValues": values });
        let both = runtime(json!({ "a": "1", "b": "3", "c": "4" }));
        check(runtime(json!({ "b": "3", "c": "4" })), runtime(json!({ "a": "1", "b": "2" })), both);
        // Either kind of name replaces the other.
        let canonical = json!({ "tracingServiceName": "CANONICAL_NAME_ONLY" });
        check(canonical.clone(), json!({ "serviceCluster": "web" }), canonical.clone());
        check(json!({ "serviceCluster": "web" }), canonical.clone(), json!({ "serviceCluster": "web" }));
        check(json!({}), canonical.clone(), canonical);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |text: &str, expected: &[&str]| {
            let text = evenkeel_base::Spanned::new(text.to_owned(), Span::whole_file("a.yaml"));
            let (_, found) = ProxyConfig::of_annotation(&text);
            let codes: Vec<String> =
                found.iter().map(|finding| format!("{} {}", finding.severity, finding.code)).collect();
            assert_eq!(codes, expected, "{}: {found}", text.value);
        };
        check("{extraStatTags: [request_path, _a1]}", &[]);
        check("{extraStatTags: ['a b', 1a]}", &["warning bad-value", "warning bad-value"]);
        check("{runtimeValues: {overload.global_downstream_max_connections: '100'}}", &[]);
        check("{runtimeValues: {envoy.resource_limits.listener.virtualInbound.connection_limit: '1'}}", &[]);
        check("{runtimeValues: {overload.global_downstream_max_connections: many}}", &["warning bad-value"]);
        check("{runtimeValues: {envoy.reloadable_features.x: 'false'}}", &["info no-effect"]);
        check("{runtimeValues: {envoy.resource_limits.listener.connection_limit: '1'}}", &["info no-effect"]);
        check("{tracing: {zipkin: {address: 'zipkin.istio-system:9411'}, sampling: 10, maxPathTagLength: 99}}", &[]);
        check("{tracing: {zipkin: {address: zipkin}, sampling: 110}}", &["warning bad-value", "warning bad-value"]);
        check("{tracing: {sampling: 0, maxPathTagLength: 0}}", &["info no-effect", "info no-effect"]);
        check("{tracing: {customTags: {a: {}, b: {literal: {value: c}}}}}", &["warning bad-value"]);
        check("{tracing: {lightstep: {address: 'a:1'}, datadog: {address: 'a:1'}}}", &["warning unsupported-field"; 2]);
        check("{zipkinAddress: ':9411', statsdUdpAddress: 'statsd:8125'}", &["warning bad-value"; 2]);
        check(
            "{envoyAccessLogService: {address: x}, envoyMetricsService: {address: 'x:y'}}",
            &["warning bad-value"; 2],
        );
        check(
            "{envoyAccessLogService: {address: 'a:1', tlsSettings: {mode: SIMPLE, credentialName: c}}}",
            &["warning unsupported-value"],
        );
        check("{customConfigFile: /etc/a.yaml, proxyBootstrapTemplatePath: /etc/b.json}", &[]);
        check("{proxyAdminPort: 15900, statusPort: 15920}", &[]);
        check("{proxyAdminPort: 15000, statusPort: 15020}", &[]);
        check("{proxyAdminPort: 15020, statusPort: 15090}", &["warning port-conflict", "warning port-conflict"]);
        check("{proxyAdminPort: 15900, statusPort: 15900}", &["warning port-conflict"]);
        check("{proxyAdminPort: 0, statusPort: 70000}", &["warning port-conflict", "warning port-conflict"]);
        check("{caCertificatesPem: ['-----BEGIN CERTIFICATE----- …', x]}", &["warning bad-value"]);
        check("{tracingServiceName: BY_CHANCE}", &["error bad-value"]);
        check("{fileFlushInterval: soon}", &["error bad-duration"]);
    }
}
