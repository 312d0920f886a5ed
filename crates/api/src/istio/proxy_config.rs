//! ProxyConfig: settings of single proxies, from `meshConfig.defaultConfig`, the kind ProxyConfig, and the Pod
//! annotation `proxy.istio.io/config`.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::{self, Node};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::agent_checks::{check_ports, check_roots, check_runtime_values, check_stat_tags};
use super::remote_service::{RemoteService, check_address, check_statsd_address};
use super::{ReadinessProbe, Tracing, WorkloadSelector};
use crate::decode::{AnyFields, Context, Decode, RegexText, documented};

/// The annotation of a Pod that overrides the mesh's `defaultConfig`.
pub const PROXY_CONFIG_ANNOTATION: &str = "proxy.istio.io/config";
/// The annotation of Pods with how their traffic is captured; it goes before `interceptionMode` of their ProxyConfig.
pub const INTERCEPTION_ANNOTATION: &str = "sidecar.istio.io/interceptionMode";

object! {
    /// Settings of a proxy (`ProxyConfig` of MeshConfig, and of the annotation `proxy.istio.io/config`).
    #[derive(Default)]
    pub struct ProxyConfig {
        /// Worker threads; 0: one per core; 2 if not given.
        concurrency: Option<u32> = "concurrency",
        /// How long connections may continue whose listener was changed or removed; as `terminationDrainDuration` if not given.
        drain_duration: Option<Duration> = "drainDuration",
        /// How long connections may continue when the proxy stops; 5 s if not given.
        termination_drain_duration: Option<Duration> = "terminationDrainDuration",
        /// Whether programs start when their proxy is ready; `evenkeel up` always does so.
        hold_application_until_proxy_starts: Option<Spanned<bool>> = "holdApplicationUntilProxyStarts",
        /// How traffic is captured.
        interception_mode: Option<Spanned<InterceptionMode>> = "interceptionMode",
        /// The proxies in front of a gateway.
        gateway_topology: Option<GatewayTopology> = "gatewayTopology",
        /// Headers that proxies add.
        proxy_headers: Option<ProxyHeaders> = "proxyHeaders",
        /// Limits of connections from clients.
        connection_settings: Option<ConnectionSettings> = "connectionSettings",
        /// More settings of the agent, by their environment variables.
        proxy_metadata: BTreeMap<String, Spanned<String>> = "proxyMetadata",
        /// The statistics that the proxy reports; all if not given.
        proxy_stats_matcher: Option<ProxyStatsMatcher> = "proxyStatsMatcher",
        /// How the agent checks the health of a workload that is a WorkloadEntry.
        readiness_probe: Option<ReadinessProbe> = "readinessProbe",
        /// Tags that are taken out of the names of statistics written `TAG=.=VALUE;.;`.
        extra_stat_tags: Vec<Spanned<String>> = "extraStatTags",
        /// Keys of the proxy's runtime, with their values.
        runtime_values: BTreeMap<String, Spanned<String>> = "runtimeValues",
        /// How often lines of the access log are written to its file; Evenkeel's proxy counts whole seconds.
        file_flush_interval: Option<Duration> = "fileFlushInterval",
        /// Size in KiB at which buffered lines are written before that time.
        file_flush_min_size_kb: Option<u32> = "fileFlushMinSizeKb",
        /// The mesh that the proxy says it is in; the trust domain if not given.
        mesh_id: Option<String> = "meshId",
        /// The name under which the proxy presents itself (`node.cluster`).
        service_cluster: Option<String> = "serviceCluster",
        /// How this name is formed, without `serviceCluster`.
        tracing_service_name: Option<TracingServiceName> = "tracingServiceName",
        /// Port of the proxy's admin interface; 15000 if not given.
        proxy_admin_port: Option<Spanned<u32>> = "proxyAdminPort",
        /// Port of the agent's own page, with readiness and metrics; 15020 if not given.
        status_port: Option<Spanned<u32>> = "statusPort",
        /// Roots that verify peers, beside those of the mesh; PEM.
        ca_certificates_pem: Vec<Spanned<String>> = "caCertificatesPem",
        /// Which requests are traced, and where their spans go.
        tracing: Option<Tracing> = "tracing",
        /// HOST:PORT of a collector in Zipkin's format; an older name of `tracing.zipkin.address`.
        zipkin_address: Option<Spanned<String>> = "zipkinAddress",
        /// HOST:PORT of a StatsD server, which gets the statistics over UDP.
        statsd_udp_address: Option<Spanned<String>> = "statsdUdpAddress",
        /// A service that gets the statistics over gRPC.
        envoy_metrics_service: Option<RemoteService> = "envoyMetricsService",
        /// An older name of its `address`.
        envoy_metrics_service_address: Option<Spanned<String>> = "envoyMetricsServiceAddress",
        /// A service that gets access logs over gRPC, if the mesh has `enableEnvoyAccessLogService`.
        envoy_access_log_service: Option<RemoteService> = "envoyAccessLogService",
        /// A bootstrap file in place of the agent's.
        custom_config_file: Option<Spanned<String>> = "customConfigFile",
        /// Another name of that field; `customConfigFile` takes precedence.
        proxy_bootstrap_template_path: Option<Spanned<String>> = "proxyBootstrapTemplatePath",
    }
    later: [
        "privateKeyProvider" = "the agent creates the key and keeps it in memory",
    ];
    inert: [
        "statsEvictionInterval" = "statistics of removed configuration are removed at once",
        "discoveryAddress" = "proxies ask the control plane that their agent was started with (`--discovery-address`)",
        "controlPlaneAuthPolicy" = "proxies always use TLS towards the control plane",
        "statsCompression" = "statistics are not compressed",
        "configPath" = "the agent chooses where the bootstrap file is",
        "binaryPath" = "the agent has a proxy built in; `--envoy` names another",
        "parentShutdownDuration" = "the agent has `--parent-shutdown-time-s`",
        "proxyLogLevel" = "the annotation `sidecar.istio.io/logLevel` sets it",
        "image" = "proxies do not come from images",
        "connectTimeout" = "Istio's agent does not read it, either; a DestinationRule sets it (`connectionPool.tcp`)",
    ];
    removed: [
        "availabilityZone" = "write the label `topology.kubernetes.io/zone` or `istio-locality`",
        "sds" = "remove it; certificates always come by SDS",
        "discoveryRefreshDelay" = "remove it; changes are pushed",
        "concurrencyPolicy" = "write `concurrency`",
        "statNameLength" = "remove it; names of statistics have no such limit",
    ];
    check: check;
}

choices! {
    /// How the name of a proxy is formed.
    pub enum TracingServiceName {
        /// The label `app`, else the workload's name, and the namespace.
        AppLabelAndNamespace = "APP_LABEL_AND_NAMESPACE",
        /// The label `service.istio.io/canonical-name`.
        CanonicalNameOnly = "CANONICAL_NAME_ONLY",
        /// This label and the namespace.
        CanonicalNameAndNamespace = "CANONICAL_NAME_AND_NAMESPACE",
    }
}

/// What follows from `interceptionMode: NONE`.
pub(crate) const UNCAPTURED: &str = "no connection of the workload is captured: its calls pass the proxy only at the ports that the proxy \
                          binds on 127.0.0.1, and only connections to `ingress` ports of its Sidecar are judged by policies";
/// The way out.
pub(crate) const UNCAPTURED_HELP: &str = "write REDIRECT or TPROXY if all connections have to pass the proxy";

#[allow(clippy::derivable_impls, reason = "`choices!` gives its variants no attributes")]
impl Default for InterceptionMode {
    fn default() -> Self {
        Self::Redirect
    }
}

impl InterceptionMode {
    /// Reads what a node says of itself. As in Istio, what is none of the values is `REDIRECT`.
    pub fn of_node(text: &str) -> Self {
        [Self::Tproxy, Self::None].into_iter().find(|mode| mode.as_str() == text).unwrap_or_default()
    }
}

choices! {
    /// How a workload's traffic is captured.
    pub enum InterceptionMode {
        /// By redirection.
        Redirect = "REDIRECT",
        /// By TPROXY, which keeps the client's address.
        Tproxy = "TPROXY",
        /// Not at all.
        None = "NONE",
    }
}

object! {
    /// The proxies in front of a gateway.
    pub struct GatewayTopology {
        /// Number of trusted proxies: the client's address is the so-manieth from the right in `x-forwarded-for`.
        num_trusted_proxies: Option<u32> = "numTrustedProxies",
        /// How `x-forwarded-client-cert` is handled.
        forward_client_cert_details: Option<ForwardClientCert> = "forwardClientCertDetails",
        /// Whether connections begin with the PROXY protocol's header.
        proxy_protocol: Option<AnyFields> = "proxyProtocol",
    }
}

choices! {
    /// How `x-forwarded-client-cert` is handled.
    pub enum ForwardClientCert {
        /// The default.
        Undefined = "UNDEFINED",
        /// It is removed.
        Sanitize = "SANITIZE",
        /// It is passed on if the client has a certificate.
        ForwardOnly = "FORWARD_ONLY",
        /// The client's certificate is added to it.
        AppendForward = "APPEND_FORWARD",
        /// It is replaced by the client's certificate.
        SanitizeSet = "SANITIZE_SET",
        /// It is always passed on.
        AlwaysForwardOnly = "ALWAYS_FORWARD_ONLY",
    }
}

object! {
    /// Headers that proxies add.
    pub struct ProxyHeaders {
        /// `x-forwarded-client-cert` of requests that sidecars receive; for gateways see `gatewayTopology`.
        forwarded_client_cert: Option<ForwardClientCert> = "forwardedClientCert",
        /// The parts of a certificate in it.
        set_current_client_cert_details: Option<SetClientCertDetails> = "setCurrentClientCertDetails",
        /// `x-request-id`.
        request_id: Option<Toggle> = "requestId",
        /// `server` of responses.
        server: Option<ServerHeader> = "server",
        /// `x-envoy-attempt-count` of requests that proxies send.
        attempt_count: Option<Toggle> = "attemptCount",
        /// `x-envoy-upstream-service-time` and others.
        envoy_debug_headers: Option<Toggle> = "envoyDebugHeaders",
        /// Headers by which Istio's proxies tell each other about workloads. Evenkeel's send none to anybody.
        metadata_exchange_headers: Option<MetadataExchange> = "metadataExchangeHeaders",
        /// Whether the letter case of HTTP/1.1 headers is kept.
        preserve_http1_header_case: Option<bool> = "preserveHttp1HeaderCase",
        /// Whether the host that a client called is added to `x-forwarded-host` where it is rewritten.
        x_forwarded_host: Option<Switch> = "xForwardedHost",
        /// Whether proxies tell the port that a client called, in `x-forwarded-port`.
        x_forwarded_port: Option<Switch> = "xForwardedPort",
    }
    check: check_headers;
}

object! {
    /// Whether something is added.
    pub struct Switch {
        /// Yes.
        enabled: Option<bool> = "enabled",
    }
}

object! {
    /// Headers by which proxies tell each other about workloads.
    pub struct MetadataExchange {
        /// To whom they are sent.
        mode: Option<Spanned<MetadataExchangeMode>> = "mode",
    }
}

choices! {
    /// Who gets headers about workloads.
    pub enum MetadataExchangeMode {
        /// Everybody.
        Undefined = "UNDEFINED",
        /// Services of the mesh.
        InMesh = "IN_MESH",
    }
}

object! {
    /// Whether something is left out.
    pub struct Toggle {
        /// Yes.
        disabled: Option<bool> = "disabled",
    }
}

object! {
    /// `server` of responses.
    pub struct ServerHeader {
        /// Whether the server's own is passed on.
        disabled: Option<bool> = "disabled",
        /// Its value; `istio-envoy` if not given.
        value: Option<String> = "value",
    }
}

object! {
    /// The parts of a certificate in `x-forwarded-client-cert`.
    pub struct SetClientCertDetails {
        /// The subject.
        subject: Option<bool> = "subject",
        /// The whole certificate.
        cert: Option<bool> = "cert",
        /// The whole chain.
        chain: Option<bool> = "chain",
        /// DNS names.
        dns: Option<bool> = "dns",
        /// URIs.
        uri: Option<bool> = "uri",
    }
}

object! {
    /// Limits of connections from clients.
    pub struct ConnectionSettings {
        /// Defaults of the other fields; EDGE works in gateways only, as in Istio.
        profile: Option<ConnectionProfile> = "profile",
        /// Idle connections are closed after this time.
        http_idle_timeout: Option<Duration> = "httpIdleTimeout",
        /// How long a connection may last.
        http_max_connection_duration: Option<Duration> = "httpMaxConnectionDuration",
        /// How long a request may last.
        http_max_stream_duration: Option<Duration> = "httpMaxStreamDuration",
        /// A request without any byte for so long is ended.
        http_stream_idle_timeout: Option<Duration> = "httpStreamIdleTimeout",
        /// Limit for a whole request to arrive.
        http_request_timeout: Option<Duration> = "httpRequestTimeout",
        /// Limit for a request's headers to arrive.
        http_request_headers_timeout: Option<Duration> = "httpRequestHeadersTimeout",
        /// Time between the announcement that a connection ends and its end.
        http_drain_timeout: Option<Duration> = "httpDrainTimeout",
        /// Requests at a time on one HTTP/2 connection.
        http_max_concurrent_streams: Option<u32> = "httpMaxConcurrentStreams",
        /// HTTP/2's window of a stream, in bytes.
        http2_initial_stream_window_size: Option<u32> = "http2InitialStreamWindowSize",
        /// HTTP/2's window of a connection, in bytes.
        http2_initial_connection_window_size: Option<u32> = "http2InitialConnectionWindowSize",
        /// Requests that have a header with an underscore.
        http_headers_with_underscores_action: Option<Underscores> = "httpHeadersWithUnderscoresAction",
        /// Whether successive slashes are merged; overrides `pathNormalization`.
        http_merge_slashes: Option<bool> = "httpMergeSlashes",
        /// Requests with `%2F` or `%5C` in the path; overrides `pathNormalization`.
        http_path_with_escaped_slashes_action: Option<EscapedSlashes> = "httpPathWithEscapedSlashesAction",
    }
    inert: ["listenerPerConnectionBufferLimitBytes" = "Evenkeel's proxy limits what it buffers by its own windows"];
}

choices! {
    /// Defaults of connection settings.
    pub enum ConnectionProfile {
        /// None.
        Sidecar = "SIDECAR",
        /// Envoy's recommendations for proxies that face the internet.
        Edge = "EDGE",
    }
}

choices! {
    /// How requests with an underscore in a header's name are handled.
    pub enum Underscores {
        /// They pass.
        Unspecified = "HEADERS_WITH_UNDERSCORES_UNSPECIFIED",
        /// They pass.
        Allow = "HEADERS_WITH_UNDERSCORES_ALLOW",
        /// They are refused.
        RejectRequest = "HEADERS_WITH_UNDERSCORES_REJECT_REQUEST",
        /// The header is removed.
        DropHeader = "HEADERS_WITH_UNDERSCORES_DROP_HEADER",
    }
}

choices! {
    /// How requests with `%2F` or `%5C` in the path are handled.
    pub enum EscapedSlashes {
        /// They pass unchanged.
        Unspecified = "PATH_WITH_ESCAPED_SLASHES_UNSPECIFIED",
        /// They pass unchanged.
        KeepUnchanged = "KEEP_UNCHANGED",
        /// They are refused.
        RejectRequest = "REJECT_REQUEST",
        /// The client is sent to the decoded path.
        UnescapeAndRedirect = "UNESCAPE_AND_REDIRECT",
        /// The path is decoded.
        UnescapeAndForward = "UNESCAPE_AND_FORWARD",
    }
}

object! {
    /// The statistics that a proxy reports in addition to those that Istio's proxies always report.
    pub struct ProxyStatsMatcher {
        /// Beginnings of names.
        inclusion_prefixes: Vec<String> = "inclusionPrefixes",
        /// Ends of names.
        inclusion_suffixes: Vec<String> = "inclusionSuffixes",
        /// Expressions for names.
        inclusion_regexps: Vec<RegexText> = "inclusionRegexps",
    }
}

impl ProxyStatsMatcher {
    /// Returns ProxyConfig's JSON, which agents read.
    pub fn to_json(&self) -> serde_json::Value {
        let regexps: Vec<&str> = self.inclusion_regexps.iter().map(|regexp| &*regexp.0).collect();
        let (prefixes, suffixes) = (&self.inclusion_prefixes, &self.inclusion_suffixes);
        serde_json::json!({
            "inclusionPrefixes": prefixes, "inclusionSuffixes": suffixes, "inclusionRegexps": regexps,
        })
    }
}

/// Variables of `proxyMetadata` that have an effect.
const METADATA: [&str; 7] = [
    DNS_CAPTURE,
    DNS_AUTO_ALLOCATE,
    SELF_DISCOVERY,
    SELF_DISCOVERY_LABELS,
    INBOUND_EXACT_BALANCE,
    OUTBOUND_EXACT_BALANCE,
    AMBIGUOUS_REQUESTS,
];
/// Variables that agents read from their own environment, or from the `proxyMetadata` that they are started with.
const OF_AGENTS_START: [&str; 4] = ["FILE_MOUNTED_CERTS", "OUTPUT_CERTS", "CA_ADDR", "CA_ROOT_CA"];
/// What is said of them.
pub(super) const READ_AT_START: &str =
    "an agent reads it when it starts, from its environment or its `--proxy-config`, and not from here";
/// Whether the proxy is told of the proxies like it, which zone-aware balancing needs.
const SELF_DISCOVERY: &str = "ISTIO_META_ENABLE_SELF_DISCOVERY";
/// The labels that proxies like it have in common.
const SELF_DISCOVERY_LABELS: &str = "ISTIO_META_SELF_DISCOVERY_GROUPING_LABEL_NAMES";
/// Prefix of variables that become metadata of the node.
const NODE_METADATA: &str = "ISTIO_META_";
/// Whether the agent answers the workload's DNS queries.
const DNS_CAPTURE: &str = "ISTIO_META_DNS_CAPTURE";
/// Whether ServiceEntries without addresses get virtual ones.
const DNS_AUTO_ALLOCATE: &str = "ISTIO_META_DNS_AUTO_ALLOCATE";
/// Whether an Envoy balances the connections that its workload receives exactly over its workers.
const INBOUND_EXACT_BALANCE: &str = "ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE";
/// The same for connections that its workload opens.
const OUTBOUND_EXACT_BALANCE: &str = "ISTIO_META_OUTBOUND_LISTENER_EXACT_BALANCE";
/// How requests are handled that policies and servers may read differently.
const AMBIGUOUS_REQUESTS: &str = "EVENKEEL_AMBIGUOUS_REQUESTS";
/// Its values: they are refused, as without the setting, or forwarded.
const AMBIGUOUS_VALUES: [&str; 2] = ["REFUSE", "FORWARD"];

fn check(config: &ProxyConfig, _: &Node, cx: &mut Context) {
    check_stat_tags(&config.extra_stat_tags, cx);
    check_ports(config.proxy_admin_port.as_ref(), config.status_port.as_ref(), cx);
    check_roots(&config.ca_certificates_pem, cx);
    check_runtime_values(&config.runtime_values, cx);
    let addresses = [
        ("zipkinAddress", &config.zipkin_address),
        ("statsdUdpAddress", &config.statsd_udp_address),
        ("envoyMetricsServiceAddress", &config.envoy_metrics_service_address),
    ];
    for (name, address) in addresses {
        check_address(name, address.as_ref(), cx);
    }
    check_statsd_address(config.statsd_udp_address.as_ref(), cx);
    if let Some(mode) = config.interception_mode.as_ref().filter(|mode| mode.value == InterceptionMode::None) {
        cx.at_field("interceptionMode", |cx| cx.note("not-captured", &mode.span, UNCAPTURED, UNCAPTURED_HELP));
    }
    if let Some(hold) = config.hold_application_until_proxy_starts.as_ref().filter(|hold| !hold.value) {
        let message = "programs start when their proxy is ready in any case";
        let help = "a program whose calls come before its proxy is ready would lose them";
        cx.at_field("holdApplicationUntilProxyStarts", |cx| cx.note("no-effect", &hold.span, message, help));
    }
    if let Some(value) = config.proxy_metadata.get(AMBIGUOUS_REQUESTS)
        && !AMBIGUOUS_VALUES.contains(&value.value.as_str())
    {
        let message = format!("`{}` is not a value of {AMBIGUOUS_REQUESTS}; such requests are refused", value.value);
        let help = format!("write one of {}", AMBIGUOUS_VALUES.join(", "));
        cx.at_field("proxyMetadata", |cx| {
            cx.at_key(AMBIGUOUS_REQUESTS, |cx| cx.warning("unsupported-value", &value.span, message, help));
        });
    }
    for (name, value) in config.proxy_metadata.iter().filter(|(name, _)| !METADATA.contains(&name.as_str())) {
        let message = match OF_AGENTS_START.contains(&name.as_str()) {
            true => READ_AT_START,
            false if name.starts_with(NODE_METADATA) => {
                "no setting of the agent has this name; it is passed to the control plane as node metadata only"
            }
            false => "no setting of the agent has this name",
        };
        let help = format!("settings with an effect: {}", METADATA.join(", "));
        cx.at_field("proxyMetadata", |cx| cx.at_key(name, |cx| cx.note("no-effect", &value.span, message, help)));
    }
}

fn check_headers(headers: &ProxyHeaders, _: &Node, cx: &mut Context) {
    let mode = headers.metadata_exchange_headers.as_ref().and_then(|exchange| exchange.mode.as_ref());
    if let Some(mode) = mode.filter(|mode| mode.value == MetadataExchangeMode::Undefined) {
        let message = "Evenkeel's proxies send headers about workloads to services in the mesh only";
        let help = "leave it out; services outside the mesh get none, as with IN_MESH";
        cx.at_field("metadataExchangeHeaders", |cx| {
            cx.at_field("mode", |cx| cx.note("no-effect", &mode.span, message, help));
        });
    }
}

impl ProxyConfig {
    /// Reads the annotation `proxy.istio.io/config`.
    pub fn of_annotation(text: &Spanned<String>) -> (Option<Self>, Diagnostics) {
        let (documents, mut diagnostics) = yaml::parse_within(&text.span, text);
        if documents.len() > 1 {
            let message = format!("`{PROXY_CONFIG_ANNOTATION}`: only one YAML document is expected");
            diagnostics
                .push(Diagnostic::error("yaml-syntax", text.span.clone(), message).with_help("remove the `---`"));
        }
        let mut cx = Self::context();
        let decode =
            |document: &Node, cx: &mut Context| cx.at_key(PROXY_CONFIG_ANNOTATION, |cx| Self::decode(document, cx));
        let config = documents
            .first()
            .map(|document| documented(document, Self::FIELDS))
            .and_then(|document| cx.at_field("metadata", |cx| cx.at_field("annotations", |cx| decode(&document, cx))));
        diagnostics.extend(cx.into_diagnostics());
        let usable = config.filter(|_| !diagnostics.has_errors());
        (usable, diagnostics)
    }

    /// Returns the settings of a Pod's proxy from its annotations; `None`: there are none. The decoder has reported errors.
    pub fn of_pod(annotations: &BTreeMap<String, Spanned<String>>) -> Option<Self> {
        let own = annotations.get(PROXY_CONFIG_ANNOTATION).and_then(|text| Self::of_annotation(text).0);
        let mode = annotations.get(INTERCEPTION_ANNOTATION).and_then(|text| {
            let known = [InterceptionMode::Redirect, InterceptionMode::Tproxy, InterceptionMode::None];
            let mode = known.into_iter().find(|mode| mode.as_str() == text.as_str())?;
            Some(Spanned::new(mode, text.span.clone()))
        });
        match mode {
            None => own,
            mode => Some(Self { interception_mode: mode, ..own.unwrap_or_default() }),
        }
    }

    /// How connections are captured: by redirection if nothing is said.
    pub fn interception(&self) -> InterceptionMode {
        self.interception_mode.as_ref().map_or(InterceptionMode::Redirect, |mode| mode.value)
    }

    /// Reads the metadata `PROXY_CONFIG` of a proxy's node. What cannot be read there is left out: agents of other
    /// versions send fields that this one does not know.
    pub fn of_metadata(json: &serde_json::Value) -> Self {
        let node = Node::from_json(json, &evenkeel_base::Span::whole_file("node"));
        let fields = node.as_mapping().into_iter().flatten();
        let mut config = Self::default();
        for entry in fields {
            let alone = yaml::Mapping(vec![entry.clone()]);
            let alone = Node { value: yaml::Value::Mapping(alone), span: node.span.clone() };
            if let Some(read) = Self::decode(&alone, &mut Self::context()) {
                config = read.over(config);
            }
        }
        config
    }

    pub(super) fn context() -> Context {
        Context::new("Istio").lenient(&[])
    }

    /// This configuration over another one: each field that is given replaces the whole field of the other, except that
    /// variables of `proxyMetadata` and keys of `runtimeValues` are added (Istio's `mesh.ApplyProxyConfig`).
    #[must_use]
    pub fn over(self, base: Self) -> Self {
        let mut proxy_metadata = base.proxy_metadata;
        proxy_metadata.extend(self.proxy_metadata);
        let mut runtime_values = base.runtime_values;
        runtime_values.extend(self.runtime_values);
        // They are alternatives of one field, so either replaces the other.
        let (service_cluster, tracing_service_name) = match (&self.service_cluster, &self.tracing_service_name) {
            (None, None) => (base.service_cluster, base.tracing_service_name),
            _ => (self.service_cluster, self.tracing_service_name),
        };
        let or_base = |own: Vec<_>, base| if own.is_empty() { base } else { own };
        Self {
            concurrency: self.concurrency.or(base.concurrency),
            drain_duration: self.drain_duration.or(base.drain_duration),
            termination_drain_duration: self.termination_drain_duration.or(base.termination_drain_duration),
            hold_application_until_proxy_starts: self
                .hold_application_until_proxy_starts
                .or(base.hold_application_until_proxy_starts),
            interception_mode: self.interception_mode.or(base.interception_mode),
            gateway_topology: self.gateway_topology.or(base.gateway_topology),
            proxy_headers: self.proxy_headers.or(base.proxy_headers),
            connection_settings: self.connection_settings.or(base.connection_settings),
            proxy_metadata,
            proxy_stats_matcher: self.proxy_stats_matcher.or(base.proxy_stats_matcher),
            readiness_probe: self.readiness_probe.or(base.readiness_probe),
            extra_stat_tags: or_base(self.extra_stat_tags, base.extra_stat_tags),
            runtime_values,
            file_flush_interval: self.file_flush_interval.or(base.file_flush_interval),
            file_flush_min_size_kb: self.file_flush_min_size_kb.or(base.file_flush_min_size_kb),
            mesh_id: self.mesh_id.or(base.mesh_id),
            service_cluster,
            tracing_service_name,
            proxy_admin_port: self.proxy_admin_port.or(base.proxy_admin_port),
            status_port: self.status_port.or(base.status_port),
            ca_certificates_pem: or_base(self.ca_certificates_pem, base.ca_certificates_pem),
            tracing: self.tracing.or(base.tracing),
            zipkin_address: self.zipkin_address.or(base.zipkin_address),
            statsd_udp_address: self.statsd_udp_address.or(base.statsd_udp_address),
            envoy_metrics_service: self.envoy_metrics_service.or(base.envoy_metrics_service),
            envoy_metrics_service_address: self.envoy_metrics_service_address.or(base.envoy_metrics_service_address),
            envoy_access_log_service: self.envoy_access_log_service.or(base.envoy_access_log_service),
            custom_config_file: self.custom_config_file.or(base.custom_config_file),
            proxy_bootstrap_template_path: self.proxy_bootstrap_template_path.or(base.proxy_bootstrap_template_path),
        }
    }

    /// Whether the agent answers the workload's DNS queries (`ISTIO_META_DNS_CAPTURE`); `None`: not said.
    pub fn dns_capture(&self) -> Option<bool> {
        self.proxy_metadata.get(DNS_CAPTURE).map(|value| is_true(value))
    }

    /// Whether ServiceEntries without addresses get virtual ones (`ISTIO_META_DNS_AUTO_ALLOCATE`); `None`: not said.
    pub fn dns_auto_allocate(&self) -> Option<bool> {
        self.proxy_metadata.get(DNS_AUTO_ALLOCATE).map(|value| is_true(value))
    }

    /// Whether an Envoy balances inbound connections exactly over its workers
    /// (`ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE`).
    pub fn exact_balance_inbound(&self) -> bool {
        self.proxy_metadata.get(INBOUND_EXACT_BALANCE).is_some_and(|value| is_true(value))
    }

    /// The same for outbound connections (`ISTIO_META_OUTBOUND_LISTENER_EXACT_BALANCE`).
    pub fn exact_balance_outbound(&self) -> bool {
        self.proxy_metadata.get(OUTBOUND_EXACT_BALANCE).is_some_and(|value| is_true(value))
    }

    /// Whether requests are forwarded that AuthorizationPolicies and servers may read differently
    /// (`EVENKEEL_AMBIGUOUS_REQUESTS`); they are refused otherwise.
    pub fn forwards_ambiguous(&self) -> bool {
        self.proxy_metadata.get(AMBIGUOUS_REQUESTS).is_some_and(|value| value.value == "FORWARD")
    }
}

/// As Go's `strconv.ParseBool` reads it.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

object! {
    /// The kind ProxyConfig: settings of the proxies of a namespace, or of selected workloads.
    pub struct ProxyConfigKind {
        /// The specification.
        spec: Option<ProxyConfigSpec> = "spec",
    }
    inert: ["status"];
}

object! {
    /// Settings of proxies.
    pub struct ProxyConfigSpec {
        /// The selected workloads of the namespace; all if not given. Those of the root namespace apply to the mesh.
        selector: Option<WorkloadSelector> = "selector",
        /// Worker threads; 0: one per core.
        concurrency: Option<u32> = "concurrency",
        /// Further settings of the agent by their environment variables.
        environment_variables: BTreeMap<String, Spanned<String>> = "environmentVariables",
    }
    inert: ["image" = "proxies do not come from images"];
}

impl ProxyConfigSpec {
    /// Returns the settings of a proxy.
    pub fn as_proxy_config(&self) -> ProxyConfig {
        ProxyConfig {
            concurrency: self.concurrency,
            proxy_metadata: self.environment_variables.clone(),
            ..ProxyConfig::default()
        }
    }
}
