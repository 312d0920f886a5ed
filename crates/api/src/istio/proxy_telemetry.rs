//! ProxyConfig: where a proxy sends spans, access logs and statistics, beside the files and pages that are read from it.

use serde_json::{Map, Value, json};

use super::ProxyConfig;
use super::remote_service::{RemoteService, is_ip_address, tls_json, usable};
use super::tracing::{DEFAULT_SAMPLING, Tracing};

impl ProxyConfig {
    /// Returns the percentage of requests that are traced without an explicit request for tracing.
    pub fn sampling(&self) -> f64 {
        self.tracing.as_ref().map_or(DEFAULT_SAMPLING, Tracing::sampling)
    }

    /// Returns HOST:PORT of the collector of spans, if there is a usable one; `zipkinAddress` is an older name.
    pub fn collector(&self) -> Option<&str> {
        let newer = self.tracing.as_ref().and_then(|tracing| tracing.zipkin.as_ref()?.address.as_ref());
        usable(newer.or(self.zipkin_address.as_ref()))
    }

    /// Returns HOST:PORT of the access log service, if there is a usable one.
    pub fn log_service(&self) -> Option<&str> {
        usable(self.envoy_access_log_service.as_ref()?.address.as_ref())
    }

    /// Adds the destinations of the proxy's telemetry, as ProxyConfig's JSON.
    pub(super) fn destinations(&self, fields: &mut Map<String, Value>) {
        let mut add = |name: &str, value: Option<Value>| {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        };
        if let Some(address) = self.collector() {
            let tls = self.tracing.as_ref().and_then(|tracing| tracing.tls_settings.as_ref());
            let mut tracing = json!({ "zipkin": { "address": address } });
            if let Some(tls) = tls {
                tracing["tlsSettings"] = tls_json(&tls.value);
            }
            add("tracing", Some(tracing));
        }
        let statsd = usable(self.statsd_udp_address.as_ref()).filter(|address| is_ip_address(address));
        add("statsdUdpAddress", statsd.map(Value::from));
        let older = self.envoy_metrics_service_address.as_ref();
        match (&self.envoy_metrics_service, usable(older)) {
            (Some(service), _) => add("envoyMetricsService", service.to_json()),
            (None, Some(address)) => add("envoyMetricsService", Some(json!({ "address": address }))),
            (None, None) => {}
        }
        add("envoyAccessLogService", self.envoy_access_log_service.as_ref().and_then(RemoteService::to_json));
        // Both are whole bootstrap files; Istio, too, looks at this one first.
        let files = [
            ("customConfigFile", &self.custom_config_file),
            ("proxyBootstrapTemplatePath", &self.proxy_bootstrap_template_path),
        ];
        for (name, file) in files {
            let file = file.as_ref().filter(|file| !file.value.is_empty());
            add(name, file.map(|file| file.value.as_str().into()));
        }
    }
}
