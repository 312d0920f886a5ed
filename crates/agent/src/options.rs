//! The command line of `evenkeel agent`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use evenkeel_base::duration;
use evenkeel_base::spiffe::{SpiffeError, SpiffeId};
use evenkeel_tls::TrustBundle;
use serde_json::{Map, Value};

use crate::health::config::ReadinessProbe;
use crate::program_metrics::{ProgramMetrics, ProgramPage};
use crate::secret_names::{CERTIFICATE_SECRET, ROOT_SECRET};

/// Port of the DNS proxy, as in Istio.
const DNS_PORT: u16 = 15053;
/// Port of the proxy's admin interface, as in Istio.
pub const ADMIN_PORT: u16 = 15000;
/// Port of the agent's own page, as in Istio.
const STATUS_PORT: u16 = 15020;
/// Worker threads of a proxy, as in Istio.
const DEFAULT_CONCURRENCY: u32 = 2;
/// How long connections may continue when a proxy stops, as in Istio.
const DEFAULT_DRAIN_TIME: Duration = Duration::from_secs(5);
/// Ports of captured connections, outbound and inbound, as in Istio.
const CAPTURE_PORTS: [u16; 2] = [15001, 15006];
/// Socket mark of what the agent and the proxy send themselves; capture rules let it pass. (Istio's 1337 marks what a proxy sends with a
/// client's address.)
pub const SOCKET_MARK: u32 = 1338;

/// Runs beside one workload: gets its certificate, writes the proxy's bootstrap, runs the proxy, answers DNS.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Role of the proxy.
    #[arg(value_enum)]
    pub role: Role,
    /// The workload's name and namespace, POD.NAMESPACE.
    #[arg(long, value_name = "POD.NAMESPACE")]
    pub id: String,
    /// The workload's namespace.
    #[arg(long)]
    pub namespace: String,
    /// The workload's service account.
    #[arg(long, default_value = "default")]
    pub service_account: String,
    /// The workload's address.
    #[arg(long)]
    pub ip: IpAddr,
    /// A label of the workload, KEY=VALUE; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// Name of the Deployment or other owner [default: the label `app`, or else the pod's name].
    #[arg(long)]
    pub workload_name: Option<String>,
    /// File with the token that proves the workload's identity to the control plane.
    #[arg(long, value_name = "FILE")]
    pub token: PathBuf,
    /// PEM file with the root certificates that verify the control plane.
    #[arg(long, value_name = "FILE")]
    pub root_cert: PathBuf,
    /// Address of the control plane.
    #[arg(long, value_name = "HOST:PORT", default_value = "istiod.istio-system.svc:15012")]
    pub discovery_address: String,
    /// Directory for the bootstrap, sockets, programs' certificates and the status file.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Run this Envoy binary instead of the built-in proxy.
    #[arg(long, value_name = "PATH")]
    pub envoy: Option<PathBuf>,
    /// Log level of that Envoy. The built-in proxy has the agent's log.
    #[arg(long, value_name = "LEVEL", default_value = "warning")]
    pub proxy_log_level: String,
    /// Log levels of that Envoy's components, a comma-separated list of COMPONENT:LEVEL.
    #[arg(long, value_name = "LEVELS")]
    pub proxy_component_log_level: Option<String>,
    /// Serve proxyless gRPC programs: write the bootstrap file for GRPC_XDS_BOOTSTRAP, keep the workload's certificate in files in
    /// the state directory, and provide a socket there that leads to the control plane.
    #[arg(long, value_name = "FILE")]
    pub grpc_bootstrap: Option<PathBuf>,
    /// Run no proxy: all programs of the workload use gRPC's own xDS client.
    #[arg(long, requires = "grpc_bootstrap", conflicts_with = "envoy")]
    pub no_proxy: bool,
    /// Worker threads of the proxy; 0: one per core [default: concurrency of --proxy-config, or 2].
    #[arg(long)]
    pub concurrency: Option<u32>,
    /// How much of the mesh the built-in proxy of a sidecar holds. A gateway always holds all of it.
    #[arg(long, value_enum, default_value = "learned")]
    pub scope: Scope,
    /// Drop names that the workload has not used for this long, in seconds (--scope learned).
    #[arg(long, value_name = "SECONDS", default_value_t = 24 * 3600)]
    pub scope_unused_after_s: u64,
    /// Listening address of the DNS proxy [default: 127.0.0.1:15053 in sidecars, none in gateways].
    #[arg(long, value_name = "IP:PORT")]
    pub dns_address: Option<SocketAddr>,
    /// File that names the resolvers for names outside the mesh.
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    pub resolv_conf: PathBuf,
    /// Resolver for the hosts of the proxy's clusters [default: the system's]. Set it where capture rules redirect the system's
    /// resolver to the DNS proxy, which answers a ServiceEntry's host with its virtual address.
    #[arg(long, value_name = "IP:PORT")]
    pub proxy_resolver: Option<SocketAddr>,
    /// Port of the proxy's admin interface, on loopback [default: proxyAdminPort of --proxy-config, or 15000].
    #[arg(long)]
    pub admin_port: Option<u16>,
    /// Port of the agent's own page: readiness, and at /stats/prometheus the metrics of the proxy and of the program that
    /// ISTIO_PROMETHEUS_ANNOTATIONS names; 0: none [default: statusPort of --proxy-config, or 15020; none with --no-proxy].
    #[arg(long)]
    pub status_port: Option<u16>,
    /// Port of the readiness probe, /healthz/ready.
    #[arg(long, default_value_t = 15021)]
    pub readiness_port: u16,
    /// Port of the proxy's statistics, /stats/prometheus.
    #[arg(long, default_value_t = 15090)]
    pub stats_port: u16,
    /// The workload's traffic is not captured: sockets get no mark, and the DNS proxy runs only with --dns-address.
    #[arg(long)]
    pub no_capture: bool,
    /// Capture rules recognize what the agent and the proxy send by their user or group, as Istio's do: sockets get no mark, for which
    /// they would need the capability CAP_NET_ADMIN.
    #[arg(long)]
    pub no_socket_mark: bool,
    /// Trust domain of the mesh.
    #[arg(long, default_value = "cluster.local")]
    pub trust_domain: String,
    /// DNS suffix of the cluster.
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Name of the cluster that is reported to the control plane.
    #[arg(long, default_value = "Kubernetes")]
    pub cluster_id: String,
    /// Istio's ProxyConfig as JSON, as Istio's injector writes it into PROXY_CONFIG. It is passed to the control plane; the agent
    /// reads readinessProbe, proxyStatsMatcher, extraStatTags, runtimeValues, drainDuration, fileFlushInterval, fileFlushMinSizeKb,
    /// serviceCluster, tracingServiceName, proxyAdminPort, statusPort, caCertificatesPem, concurrency, terminationDrainDuration,
    /// interceptionMode and proxyMetadata. What has no effect is named in the log.
    #[arg(long, value_name = "JSON", value_parser = parse_object, default_value = "{}")]
    pub proxy_config: Map<String, Value>,
    /// Metadata of the node for the control plane, KEY=VALUE; may be repeated. ISTIO_META_KEY in the environment means the same;
    /// ISTIO_METAJSON_LABELS has labels, ISTIO_METAJSON_ANNOTATIONS annotations. AUTO_REGISTER_GROUP names the WorkloadGroup to register for, NETWORK the workload's
    /// network.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub metadata: Vec<(String, String)>,
    /// Variables of the environment that are metadata.
    #[arg(skip = environment())]
    pub environment: Vec<(String, String)>,
    /// Requested lifetime of the certificate, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 24 * 3600)]
    pub certificate_ttl_s: u64,
    /// Take the certificate and the roots from this SDS server, such as SPIRE's agent, instead of the control plane
    /// [default: /var/run/secrets/workload-spiffe-uds/socket, if it is there].
    #[arg(long, value_name = "SOCKET", conflicts_with = "mounted_certs")]
    pub sds_socket: Option<PathBuf>,
    /// Name of the certificate on that server: SPIRE also serves it under the SPIFFE id.
    #[arg(long, value_name = "NAME", default_value = CERTIFICATE_SECRET)]
    pub sds_certificate_name: String,
    /// Name of the roots on that server: SPIRE also serves them under the trust domain's id.
    #[arg(long, value_name = "NAME", default_value = ROOT_SECRET)]
    pub sds_roots_name: String,
    /// Take the certificate from files in this directory that something else keeps up to date: certificates.pem, private_key.pem
    /// and ca_certificates.pem, or cert-chain.pem, key.pem and root-cert.pem
    /// [default: /var/run/secrets/workload-spiffe-credentials, if it has them; /etc/certs if FILE_MOUNTED_CERTS is true].
    #[arg(long, value_name = "DIR")]
    pub mounted_certs: Option<PathBuf>,
    /// Also write the certificate, its key and the roots into this directory [default: OUTPUT_CERTS].
    #[arg(long, value_name = "DIR")]
    pub output_certs: Option<PathBuf>,
    /// Address of the certificate service, if it is not the control plane [default: CA_ADDR, or --discovery-address].
    #[arg(long, value_name = "HOST:PORT")]
    pub ca_address: Option<String>,
    /// PEM file with the roots that verify that service [default: CA_ROOT_CA, or --root-cert].
    #[arg(long, value_name = "FILE")]
    pub ca_root_cert: Option<PathBuf>,
    /// Curve of the workload's ECDSA key.
    #[arg(long, value_enum, default_value = "p256")]
    pub key_curve: KeyCurve,
    /// How long connections may continue when the proxy stops, in seconds [default: terminationDrainDuration of --proxy-config, or 5].
    #[arg(long, value_name = "SECONDS")]
    pub drain_time_s: Option<u64>,
    /// How long the proxy still accepts connections when it is told to stop, in seconds: others learn later that a Pod ends. This is a part of
    /// the drain time if that is given.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub accept_after_stop_s: u64,
    /// How long a running agent that this one takes over from may keep connections that cannot be transferred, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub parent_shutdown_time_s: u64,
    /// Recent requests that each worker of the proxy keeps for `evenkeel explain --last` and `evenkeel plan`; 0: none.
    #[arg(long, value_name = "N", default_value_t = evenkeel_proxy::recent::DEFAULT_LIMIT, value_parser = evenkeel_proxy::recent::limit)]
    pub recent_requests: usize,
}

/// How much of the mesh a proxy holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// Only what its workload uses, requested on first use.
    Learned,
    /// Everything that the workload may use.
    Full,
}

/// A curve of ECDSA keys (Istio's `ECC_CURVE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeyCurve {
    /// P-256.
    P256,
    /// P-384.
    P384,
}

impl KeyCurve {
    pub(crate) fn algorithm(self) -> &'static rcgen::SignatureAlgorithm {
        match self {
            Self::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            Self::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
        }
    }
}

/// What the proxy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// A sidecar, which captures one workload's traffic.
    Sidecar,
    /// A workload of its own, such as an ingress gateway.
    Router,
}

/// Options that contradict themselves.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// `--id` and `--namespace` do not fit.
    #[error("--id {id}: expected POD.{namespace}, because --namespace is `{namespace}`")]
    Id {
        /// As given.
        id: String,
        /// As given.
        namespace: String,
    },
    /// The probe makes no sense.
    #[error("--proxy-config: readinessProbe: {0}")]
    Probe(serde_json::Error),
    /// They do not make a SPIFFE id.
    #[error("--trust-domain, --namespace and --service-account do not make an identity: {0}")]
    Identity(#[from] SpiffeError),
}

impl Options {
    /// The name of the pod: `--id` without its namespace.
    pub fn pod(&self) -> Result<&str, OptionsError> {
        let pod = self.id.strip_suffix(&self.namespace).and_then(|rest| rest.strip_suffix('.'));
        pod.filter(|pod| !pod.is_empty())
            .ok_or_else(|| OptionsError::Id { id: self.id.clone(), namespace: self.namespace.clone() })
    }

    /// The identity the workload's certificate is for.
    pub fn identity(&self) -> Result<SpiffeId, OptionsError> {
        Ok(SpiffeId::new(&self.trust_domain, &self.namespace, &self.service_account)?)
    }

    /// Says that levels of components are Envoy's.
    pub(crate) fn note_idle_levels(&self) {
        if let (Some(levels), None) = (&self.proxy_component_log_level, &self.envoy) {
            tracing::warn!(
                levels,
                "log levels of components have no effect: the built-in proxy has one level, the agent's"
            );
        }
    }

    /// Metadata of the node by name: of `proxyMetadata`, of the environment, and of `--metadata`, of which the last counts.
    pub fn node_metadata(&self) -> BTreeMap<String, String> {
        let proxy_metadata = self.proxy_config.get("proxyMetadata").and_then(Value::as_object);
        let texts = proxy_metadata.into_iter().flatten();
        let texts = texts.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
        let variables = texts.chain(self.environment.iter().cloned());
        let named = variables.filter_map(|(name, value)| Some((name.strip_prefix(METADATA_PREFIX)?.to_owned(), value)));
        // Istio's injector tells it by metadata, too.
        let mode = self.proxy_config.get("interceptionMode").and_then(Value::as_str);
        let mode = mode.map(|mode| (INTERCEPTION_MODE.to_owned(), mode.to_owned()));
        mode.into_iter()
            .chain(named)
            .chain(self.metadata.iter().cloned())
            .filter(|(name, _)| !name.is_empty())
            .collect()
    }

    /// A setting of Istio's agent: of the agent's own environment, or of `proxyMetadata`.
    fn setting(&self, name: &str) -> Option<String> {
        let of_environment = self.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let of_proxy = || {
            let metadata = self.proxy_config.get("proxyMetadata").and_then(Value::as_object)?;
            Some(metadata.get(name)?.as_str()?.to_owned())
        };
        of_environment.or_else(of_proxy).filter(|value| !value.is_empty())
    }

    /// Whether the certificate is in mounted files.
    pub fn file_mounted_certs(&self) -> bool {
        self.setting(FILE_MOUNTED_CERTS).is_some_and(|value| is_true(&value))
    }

    /// The folder that the certificate is written to.
    pub fn output_certs(&self) -> Option<PathBuf> {
        self.output_certs.clone().or_else(|| self.setting(OUTPUT_CERTS).map(PathBuf::from))
    }

    /// The certificate service, if it is not the control plane: its address, and its roots if they are others.
    pub fn certificate_service(&self) -> Option<(String, Option<PathBuf>)> {
        let address = self.ca_address.clone().or_else(|| self.setting(CA_ADDR))?;
        let roots = self.ca_root_cert.clone().or_else(|| self.setting(CA_ROOT_CA).map(PathBuf::from));
        (address != self.discovery_address || roots.is_some()).then_some((address, roots))
    }

    /// The labels of the workload: those of `ISTIO_METAJSON_LABELS`, overridden by those of `--labels`.
    pub fn all_labels(&self) -> BTreeMap<String, String> {
        self.json_of(LABELS_VARIABLE).into_iter().chain(self.labels.iter().cloned()).collect()
    }

    /// The annotations of the workload, of `ISTIO_METAJSON_ANNOTATIONS`.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.json_of(ANNOTATIONS_VARIABLE)
    }

    /// A variable whose value is a JSON object of texts; empty if it is not.
    fn json_of(&self, variable: &str) -> BTreeMap<String, String> {
        let given = self.environment.iter().find(|(name, _)| name == variable);
        given.and_then(|(_, json)| serde_json::from_str(json).ok()).unwrap_or_default()
    }

    /// Returns the health check of the workload (`readinessProbe` of `--proxy-config`).
    pub fn readiness_probe(&self) -> Result<Option<ReadinessProbe>, OptionsError> {
        ReadinessProbe::of(&self.proxy_config).map_err(OptionsError::Probe)
    }

    /// Worker threads of the proxy; 0: one per core.
    pub fn concurrency(&self) -> u32 {
        let of_config = || u32::try_from(self.proxy_config.get("concurrency")?.as_u64()?).ok();
        self.concurrency.or_else(of_config).unwrap_or(DEFAULT_CONCURRENCY)
    }

    /// How long connections may continue when the proxy stops.
    pub fn drain_time(&self) -> Duration {
        self.asked_drain_time().unwrap_or(DEFAULT_DRAIN_TIME)
    }

    fn asked_drain_time(&self) -> Option<Duration> {
        let of_config = || duration::parse(self.proxy_config.get("terminationDrainDuration")?.as_str()?).ok();
        self.drain_time_s.map(Duration::from_secs).or_else(of_config)
    }

    /// How long connections may continue once the proxy no longer accepts any: what accepting leaves of the time that is asked for; the
    /// default follows it.
    pub fn drain_time_after_accepting(&self) -> Duration {
        let accepts = Duration::from_secs(self.accept_after_stop_s);
        self.asked_drain_time().map_or(DEFAULT_DRAIN_TIME, |time| time.saturating_sub(accepts))
    }

    /// The port of the proxy's admin interface.
    pub fn admin_port(&self) -> u16 {
        self.admin_port.or_else(|| self.port_of_config("proxyAdminPort")).unwrap_or(ADMIN_PORT)
    }

    /// Returns the port of the agent's status page, if there is one. If the agent only serves gRPC programs, it has to be set
    /// explicitly.
    pub fn status_port(&self) -> Option<u16> {
        let said = self.status_port.or_else(|| self.port_of_config("statusPort"));
        said.or_else(|| (!self.no_proxy).then_some(STATUS_PORT)).filter(|port| *port != 0)
    }

    /// Ports that the proxy needs, and that the agent must not take before it.
    pub(crate) fn proxy_ports(&self) -> [u16; 5] {
        let [outbound, inbound] = CAPTURE_PORTS;
        [self.admin_port(), self.readiness_port, self.stats_port, outbound, inbound]
    }

    /// Returns a port from the proxy's config; zero stands for Istio's default.
    fn port_of_config(&self, name: &str) -> Option<u16> {
        let port = self.proxy_config.get(name)?.as_u64()?;
        u16::try_from(port).ok().filter(|port| *port != 0)
    }

    /// The pages with the programs' metrics, of `ISTIO_PROMETHEUS_ANNOTATIONS`, or why one cannot be used; empty if they are not to be
    /// merged.
    pub fn program_pages(&self) -> Vec<Result<ProgramPage, String>> {
        let given = self.environment.iter().find(|(name, _)| name == PROMETHEUS_VARIABLE);
        let Some((_, json)) = given.filter(|(_, json)| !json.is_empty()) else { return Vec::new() };
        let metrics: ProgramMetrics = match serde_json::from_str(json) {
            Ok(metrics) => metrics,
            Err(error) => return vec![Err(error.to_string())],
        };
        let own: Vec<u16> = self.proxy_ports().into_iter().chain(self.status_port()).collect();
        metrics.pages(&own)
    }

    /// The table of the probes of the Pod's programs, as JSON (`ISTIO_KUBE_APP_PROBERS`).
    pub fn app_probes(&self) -> Option<&str> {
        let variable = self.environment.iter().find(|(name, _)| name == PROBES_VARIABLE);
        variable.map(|(_, json)| json.as_str()).filter(|json| !json.is_empty())
    }

    /// Roots that the proxy's config adds to those of its peers (`caCertificatesPem`), PEM.
    pub fn further_roots(&self) -> String {
        let texts = self.proxy_config.get("caCertificatesPem").and_then(Value::as_array);
        let texts = texts.into_iter().flatten().filter_map(Value::as_str);
        let usable = texts.filter(|text| match TrustBundle::from_pem(text.as_bytes()) {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "an entry of caCertificatesPem is not used");
                false
            }
        });
        usable.map(|text| format!("{}\n", text.trim_end())).collect()
    }

    /// How long lines of access logs may wait before they are written to their file (`fileFlushInterval`).
    pub fn file_flush_interval(&self) -> Option<Duration> {
        duration::parse(self.proxy_config.get("fileFlushInterval")?.as_str()?).ok()
    }

    /// How long connections may continue whose listener was changed or removed (`drainDuration`).
    pub fn listener_drain_time(&self) -> Duration {
        let said = self.proxy_config.get("drainDuration").and_then(Value::as_str);
        let said = said.and_then(|text| duration::parse(text).ok());
        said.unwrap_or_else(|| self.drain_time())
    }

    /// Returns the size in KiB at which buffered lines are written before that time (`fileFlushMinSizeKb`).
    pub fn file_flush_min_size_kb(&self) -> Option<u64> {
        self.proxy_config.get("fileFlushMinSizeKb")?.as_u64()
    }

    /// Returns the address of the DNS proxy, if there is one.
    pub fn dns(&self) -> Option<SocketAddr> {
        let wanted = self.node_metadata().get(DNS_CAPTURE).is_none_or(|value| is_true(value));
        let by_default = self.role == Role::Sidecar && !self.no_capture && !self.no_proxy && wanted;
        let default = by_default.then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, DNS_PORT)));
        self.dns_address.or(default)
    }

    /// Whether proxy and agent request names when the workload first uses them. Envoy and gateways get everything.
    pub fn learns(&self) -> bool {
        // Without captured connections there is nothing to learn from.
        let is_captured = self.node_metadata().get(INTERCEPTION_MODE).is_none_or(|mode| mode != "NONE");
        self.scope == Scope::Learned && self.role == Role::Sidecar && self.envoy.is_none() && is_captured
    }

    /// The mark for the agent's and the proxy's own sockets.
    pub fn mark(&self) -> Option<u32> {
        let is_marked = !self.no_capture && !self.no_socket_mark && !self.no_proxy;
        (self.role == Role::Sidecar && is_marked).then_some(SOCKET_MARK)
    }
}

/// The metadata that says how connections are captured.
const INTERCEPTION_MODE: &str = "INTERCEPTION_MODE";
/// Prefix of environment variables with metadata, as in Istio.
const METADATA_PREFIX: &str = "ISTIO_META_";
/// The variable with labels as JSON, as in Istio.
const LABELS_VARIABLE: &str = "ISTIO_METAJSON_LABELS";
/// The variable with annotations as JSON, as in Istio.
pub const ANNOTATIONS_VARIABLE: &str = "ISTIO_METAJSON_ANNOTATIONS";
/// The variable with the Pod's annotations about scrapes as JSON, as in Istio.
pub const PROMETHEUS_VARIABLE: &str = "ISTIO_PROMETHEUS_ANNOTATIONS";
/// The variable with the probes of the Pod's programs as JSON, as in Istio.
pub const PROBES_VARIABLE: &str = "ISTIO_KUBE_APP_PROBERS";
/// Settings of Istio's agent about certificates.
const FILE_MOUNTED_CERTS: &str = "FILE_MOUNTED_CERTS";
const OUTPUT_CERTS: &str = "OUTPUT_CERTS";
const CA_ADDR: &str = "CA_ADDR";
const CA_ROOT_CA: &str = "CA_ROOT_CA";
/// The variables that are read beside metadata.
const SETTINGS: [&str; 8] = [
    LABELS_VARIABLE,
    ANNOTATIONS_VARIABLE,
    PROMETHEUS_VARIABLE,
    PROBES_VARIABLE,
    FILE_MOUNTED_CERTS,
    OUTPUT_CERTS,
    CA_ADDR,
    CA_ROOT_CA,
];
/// The metadata that says whether the agent answers the workload's DNS queries.
const DNS_CAPTURE: &str = "DNS_CAPTURE";

fn environment() -> Vec<(String, String)> {
    let all =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, _)| name.starts_with(METADATA_PREFIX) || SETTINGS.contains(&name.as_str())).collect()
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(crate) fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: Options,
    }

    /// What the agent does with variables of its environment.
    fn effects(environment: &[(&str, &str)]) -> String {
        let words = ["agent", "sidecar", "--id", "web-0.shop", "--namespace", "shop", "--service-account", "web"];
        let words =
            words.into_iter().chain(["--ip", "10.0.0.1", "--token", "/t", "--root-cert", "/r", "--state", "/s"]);
        let mut options = Program::parse_from(words).options;
        options.environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let certificates = (options.file_mounted_certs(), options.output_certs(), options.certificate_service());
        let of_pod = (options.all_labels(), options.annotations(), options.program_pages(), options.app_probes());
        format!("{:?} {certificates:?} {of_pod:?}", options.node_metadata())
    }

    #[test]
    fn every_variable_that_is_read_counts() {
        let values = [
            (LABELS_VARIABLE, r#"{"app": "web"}"#),
            (ANNOTATIONS_VARIABLE, r#"{"note": "hello"}"#),
            (PROMETHEUS_VARIABLE, r#"{"scrape": "true", "port": "9000", "path": "/m"}"#),
            (PROBES_VARIABLE, r#"{"/app-health/web/readyz": {"httpGet": {"port": 80}}}"#),
            (FILE_MOUNTED_CERTS, "true"),
            (OUTPUT_CERTS, "/certs"),
            (CA_ADDR, "ca.test:1"),
        ];
        for (name, value) in values.into_iter().chain([("ISTIO_META_NETWORK", "north")]) {
            assert_ne!(effects(&[(name, value)]), effects(&[]), "{name}");
        }
        let service = (CA_ADDR, "ca.test:1");
        assert_ne!(effects(&[service, (CA_ROOT_CA, "/ca.pem")]), effects(&[service]), "{CA_ROOT_CA}");
        let tried = values.iter().map(|(name, _)| *name).chain([CA_ROOT_CA]);
        assert_eq!(tried.collect::<Vec<_>>(), SETTINGS);
    }
}
