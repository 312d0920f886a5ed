//! ProxyConfig: where a proxy sends spans, access logs and statistics, beside the files and pages that are read from it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;
use serde_json::{Map, Value, json};

use super::destination_rule::{ClientTlsSettings, TcpKeepalive};
use super::mesh_config::is_address;
use super::{ClientTlsMode, ProxyConfig};
use crate::decode::{Context, Decimal, HeaderName};

object! {
    /// Which requests are traced, and where their spans go.
    pub struct Tracing {
        /// A collector that takes Zipkin's format.
        zipkin: Option<ZipkinCollector> = "zipkin",
        /// Further tags of spans, by their names.
        custom_tags: BTreeMap<String, CustomTag> = "customTags",
        /// The longest path in a span, in bytes; 256 if not given.
        max_path_tag_length: Option<u32> = "maxPathTagLength",
        /// Percentage of requests that are traced without an explicit request for tracing; 1 if not given.
        sampling: Option<Spanned<Decimal>> = "sampling",
        /// TLS to the collector.
        tls_settings: Option<Spanned<ClientTlsSettings>> = "tlsSettings",
        /// Whether spans have Istio's tags of the workload; they do if not given.
        enable_istio_tags: Option<bool> = "enableIstioTags",
    }
    later: [
        "lightstep" = "Lightstep accepts OpenTelemetry: name an `opentelemetry` provider in `defaultProviders.tracing`",
        "datadog" = "Datadog's agent takes OpenTelemetry: name an `opentelemetry` provider in `defaultProviders.tracing`",
        "stackdriver" = "send spans to an OpenTelemetry collector, which can forward them",
        "openCensusAgent" = "OpenCensus was replaced by OpenTelemetry: name an `opentelemetry` provider in `defaultProviders.tracing`",
    ];
    check: check_tracing;
}

object! {
    /// A collector that takes Zipkin's format.
    pub struct ZipkinCollector {
        /// HOST:PORT of it.
        address: Option<Spanned<String>> = "address",
    }
    check: check_collector;
}

object! {
    /// The value of a tag of spans: one of these.
    pub struct CustomTag {
        /// This text.
        literal: Option<LiteralTag> = "literal",
        /// That of a variable of the proxy's environment.
        environment: Option<EnvironmentTag> = "environment",
        /// That of a header of the request.
        header: Option<HeaderTag> = "header",
    }
    check: check_tag;
}

object! {
    /// A text.
    pub struct LiteralTag {
        /// The text.
        value: String = "value",
    }
}

object! {
    /// A variable of the environment.
    pub struct EnvironmentTag {
        /// Its name.
        name: String = "name",
        /// The value if there is no such variable; without, there is no tag.
        default_value: Option<String> = "defaultValue",
    }
}

object! {
    /// A header of the request.
    pub struct HeaderTag {
        /// Its name.
        name: HeaderName = "name",
        /// The value if there is no such header; without, there is no tag.
        default_value: Option<String> = "defaultValue",
    }
}

object! {
    /// A service that proxies send to over gRPC.
    pub struct RemoteService {
        /// HOST:PORT of it.
        address: Option<Spanned<String>> = "address",
        /// TLS to it.
        tls_settings: Option<Spanned<ClientTlsSettings>> = "tlsSettings",
        /// Probes of the connection when it is idle.
        tcp_keepalive: Option<TcpKeepalive> = "tcpKeepalive",
    }
    check: check_service;
}

/// The source of a tag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagSource<'a> {
    /// This text.
    Literal(&'a str),
    /// A variable of the proxy's environment, and the default value.
    Environment(&'a str, Option<&'a str>),
    /// A header of the request, and the default value.
    Header(&'a HeaderName, Option<&'a str>),
}

impl CustomTag {
    /// Returns the source of its value; `None`: the check has reported why it is ignored.
    pub fn usable(&self) -> Option<TagSource<'_>> {
        let literal = self.literal.as_ref().map(|tag| (&*tag.value, TagSource::Literal(&tag.value)));
        let environment = self.environment.as_ref();
        let environment =
            environment.map(|tag| (&*tag.name, TagSource::Environment(&tag.name, tag.default_value.as_deref())));
        let header = self.header.as_ref();
        let header = header.map(|tag| (&*tag.name.0, TagSource::Header(&tag.name, tag.default_value.as_deref())));
        let mut given = [literal, environment, header].into_iter().flatten();
        let (text, source) = given.next()?;
        (!text.is_empty() && given.next().is_none()).then_some(source)
    }
}

/// Maximum number of custom tags of a proxy.
const MAX_TAGS: usize = 128;
/// Istio's share of requests that are traced, in percent.
const DEFAULT_SAMPLING: f64 = 1.0;

impl Tracing {
    /// The tags that can be used, with their names.
    pub fn tags(&self) -> impl Iterator<Item = (&str, TagSource<'_>)> {
        let usable = self.custom_tags.iter().filter_map(|(name, tag)| Some((name.as_str(), tag.usable()?)));
        usable.filter(|(name, _)| !name.is_empty()).take(MAX_TAGS)
    }

    /// Returns the percentage of requests that are traced without an explicit request for tracing: 0 stands for the default,
    /// as in Istio.
    pub fn sampling(&self) -> f64 {
        let said = self.sampling.as_ref().map(|sampling| sampling.value.0).filter(|percent| *percent > 0.0);
        said.unwrap_or(DEFAULT_SAMPLING).min(100.0)
    }
}

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
        if let Some(address) = self.collector() {
            let tls = self.tracing.as_ref().and_then(|tracing| tracing.tls_settings.as_ref());
            let mut tracing = json!({ "zipkin": { "address": address } });
            if let Some(tls) = tls {
                tracing["tlsSettings"] = tls_json(&tls.value);
            }
            fields.insert("tracing".to_owned(), tracing);
        }
        if let Some(address) = usable(self.statsd_udp_address.as_ref()).filter(|address| is_ip_address(address)) {
            fields.insert("statsdUdpAddress".to_owned(), address.into());
        }
        let older = self.envoy_metrics_service_address.as_ref();
        match (&self.envoy_metrics_service, usable(older)) {
            (Some(service), _) => add_service("envoyMetricsService", service, fields),
            (None, Some(address)) => {
                fields.insert("envoyMetricsService".to_owned(), json!({ "address": address }));
            }
            (None, None) => {}
        }
        if let Some(service) = &self.envoy_access_log_service {
            add_service("envoyAccessLogService", service, fields);
        }
        // Both are whole bootstrap files; Istio, too, looks at this one first.
        let files = [
            ("customConfigFile", &self.custom_config_file),
            ("proxyBootstrapTemplatePath", &self.proxy_bootstrap_template_path),
        ];
        for (name, file) in files {
            if let Some(file) = file.as_ref().filter(|file| !file.value.is_empty()) {
                fields.insert(name.to_owned(), file.value.as_str().into());
            }
        }
    }
}

fn add_service(name: &str, service: &RemoteService, fields: &mut Map<String, Value>) {
    let Some(address) = usable(service.address.as_ref()) else { return };
    let mut json = json!({ "address": address });
    if let Some(tls) = &service.tls_settings {
        json["tlsSettings"] = tls_json(&tls.value);
    }
    if let Some(probes) = &service.tcp_keepalive {
        let seconds = |time: Option<std::time::Duration>| time.map(|time| format!("{}s", time.as_secs_f64()));
        json["tcpKeepalive"] =
            json!({ "probes": probes.probes, "time": seconds(probes.time), "interval": seconds(probes.interval) });
    }
    fields.insert(name.to_owned(), json);
}

fn tls_json(tls: &ClientTlsSettings) -> Value {
    json!({
        "mode": tls.mode.unwrap_or(ClientTlsMode::Disable).as_str(),
        "clientCertificate": tls.client_certificate,
        "privateKey": tls.private_key,
        "caCertificates": tls.ca_certificates,
        "caCrl": tls.ca_crl,
        "subjectAltNames": tls.subject_alt_names,
        "sni": tls.sni,
        "insecureSkipVerify": tls.insecure_skip_verify,
    })
}

/// An address that is HOST:PORT; the check names others.
fn usable(address: Option<&Spanned<String>>) -> Option<&str> {
    address.map(|address| address.value.as_str()).filter(|address| is_address(address))
}

/// Whether HOST:PORT has an IP address as its host.
fn is_ip_address(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok()
}

const ADDRESS_HELP: &str = "write HOST:PORT, e.g. zipkin.istio-system:9411";

/// Reports an address that is not HOST:PORT: nothing is sent there.
fn check_address(name: &str, address: Option<&Spanned<String>>, cx: &mut Context) {
    let Some(address) = address.filter(|address| !address.value.is_empty() && !is_address(&address.value)) else {
        return;
    };
    let message = format!("`{}` is not HOST:PORT; nothing is sent there", address.value);
    cx.at_field(name, |cx| cx.warning("bad-value", &address.span, message, ADDRESS_HELP));
}

/// Names what of TLS an agent cannot do.
fn check_tls(tls: Option<&Spanned<ClientTlsSettings>>, cx: &mut Context) {
    let Some(credential) = tls.and_then(|tls| tls.value.credential_name.as_ref()) else { return };
    let message =
        "agents have no Secrets; the server's certificate is verified with the files, or with the system's roots";
    let help = "name files in `clientCertificate`, `privateKey` and `caCertificates`";
    cx.at_field("tlsSettings", |cx| {
        cx.at_field("credentialName", |cx| cx.warning("unsupported-value", &credential.span, message, help));
    });
}

fn check_tracing(tracing: &Tracing, node: &Node, cx: &mut Context) {
    if let Some(percent) = tracing.sampling.as_ref().filter(|percent| !(0.0..=100.0).contains(&percent.value.0)) {
        let (now, help) = match percent.value.0 > 100.0 {
            true => ("all requests are traced", "write a percentage from 0 to 100"),
            false => ("it counts as 1", "write a percentage above 0; 0 stands for 1"),
        };
        let message = format!("{} is no percentage; {now}", percent.value.0);
        cx.at_field("sampling", |cx| cx.warning("bad-value", &percent.span, message, help));
    }
    if let Some(percent) = tracing.sampling.as_ref().filter(|percent| percent.value.0 == 0.0) {
        let message = "as in Istio, 0 stands for the default: 1 % of requests are traced";
        cx.at_field("sampling", |cx| {
            cx.note("no-effect", &percent.span, message, "to trace none, set `enableTracing: false` for the mesh");
        });
    }
    if tracing.custom_tags.len() > MAX_TAGS || tracing.custom_tags.contains_key("") {
        let message =
            format!("spans have {MAX_TAGS} tags of the owner at most, each with a name; the others are left out");
        let span = node.span_of_path("customTags");
        cx.at_field("customTags", |cx| cx.warning("bad-value", span, message, "remove those that nobody looks for"));
    }
    if tracing.max_path_tag_length == Some(0) {
        let message = "as in Istio, 0 stands for the default, 256";
        let help = "write the number of bytes of a path that spans show";
        cx.at_field("maxPathTagLength", |cx| {
            cx.note("no-effect", node.span_of_path("maxPathTagLength"), message, help)
        });
    }
    check_tls(tracing.tls_settings.as_ref(), cx);
}

fn check_collector(collector: &ZipkinCollector, _: &Node, cx: &mut Context) {
    check_address("address", collector.address.as_ref(), cx);
}

fn check_tag(tag: &CustomTag, node: &Node, cx: &mut Context) {
    if tag.usable().is_none() {
        let message = "a tag has one of `literal`, `environment` and `header`, with a value or a name; it is left out";
        cx.warning("bad-value", &node.span, message, "e.g. `literal: {value: blue}`");
    }
}

fn check_service(service: &RemoteService, _: &Node, cx: &mut Context) {
    check_address("address", service.address.as_ref(), cx);
    check_tls(service.tls_settings.as_ref(), cx);
}

/// Checks the addresses that ProxyConfig has directly.
pub(super) fn check(config: &ProxyConfig, cx: &mut Context) {
    let addresses = [
        ("zipkinAddress", &config.zipkin_address),
        ("statsdUdpAddress", &config.statsd_udp_address),
        ("envoyMetricsServiceAddress", &config.envoy_metrics_service_address),
    ];
    for (name, address) in addresses {
        check_address(name, address.as_ref(), cx);
    }
    if let Some(address) = config.statsd_udp_address.as_ref().filter(|address| is_address(&address.value))
        && !is_ip_address(&address.value)
    {
        let message = format!("`{}` is not ADDRESS:PORT; nothing is sent there", address.value);
        let help = "write an IP address: proxies do not look up names of StatsD servers";
        cx.at_field("statsdUdpAddress", |cx| cx.warning("bad-value", &address.span, message, help));
    }
}
