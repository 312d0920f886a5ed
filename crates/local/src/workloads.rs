//! Derives what this machine runs from the directory's objects: workloads and ports of Gateways.

mod commands;
pub mod environment;
mod groups;
mod probes;
mod proxy_config;
mod sidecar;
mod texts;
mod volumes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::decode::IntOrString;
use evenkeel_api::istio::{Gateway, ServerTlsMode};
use evenkeel_api::kubernetes::{PodManagementPolicy, PodSpec, PodTemplate, RUN_ANNOTATION};
use evenkeel_api::{LOCAL_FILE, Object, Resource, in_force};
use evenkeel_base::{Diagnostic, Diagnostics};
use evenkeel_control::source::files::Files;

pub use self::commands::{Build, Command, Commands};
use self::environment::Variable;
use self::proxy_config::ProxyConfigs;
use self::sidecar::sidecar;
use self::texts::AllTexts;
use crate::lifecycle::Lifecycle;
use crate::names;
use crate::pods::{ContainerPort, ProxySettings};
use crate::ports::GatewayPort;
use crate::probe::Probe;
use crate::volumes::{Directory, Mount};

/// Annotation of a Pod template: the kind of its sidecar, `evenkeel` (the default) or `envoy`.
pub const PROXY_ANNOTATION: &str = "local.evenkeel.dev/proxy";
/// Annotation of a Pod template: the Envoy binary to use.
pub const ENVOY_PATH_ANNOTATION: &str = "local.evenkeel.dev/envoy-path";
/// How much of the mesh Evenkeel's proxy holds: `learned` (what the workload uses) or `full`.
pub const SCOPE_ANNOTATION: &str = "evenkeel.dev/scope";
/// Annotation (and label) of a Pod template: `"false"` leaves it without a sidecar, as Istio's injector does.
pub const INJECT_ANNOTATION: &str = "sidecar.istio.io/inject";
/// Variable that names the Envoy binary.
pub const ENVOY_VARIABLE: &str = "EVENKEEL_ENVOY";
/// Maximum number of replicas of one Deployment on one machine.
pub const MAX_REPLICAS: u32 = 100;

/// Labels of the ingress gateway that is started for Gateways which select them; Istio's own.
pub const INGRESS_LABELS: [(&str, &str); 2] = [("app", "istio-ingressgateway"), ("istio", "ingressgateway")];
/// Its namespace.
pub const INGRESS_NAMESPACE: &str = "istio-system";
/// Its name.
pub const INGRESS_NAME: &str = "istio-ingressgateway";
/// Its identity's account.
pub const INGRESS_SERVICE_ACCOUNT: &str = "istio-ingressgateway-service-account";

/// The sidecar of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sidecar {
    /// Evenkeel's proxy.
    Evenkeel {
        /// Whether it holds everything its workload may use, and not only what it does use.
        full: bool,
    },
    /// A stock Envoy, run from this binary.
    Envoy(PathBuf),
    /// No sidecar: its traffic is not captured, and it has no identity.
    None,
}

/// A workload, as this machine runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The number of replicas.
    pub replicas: u32,
    /// Labels of the replicas.
    pub labels: BTreeMap<String, String>,
    /// The account of its identity.
    pub service_account: String,
    /// Its command.
    pub command: Command,
    /// Variables of its containers.
    pub environment: Vec<Variable>,
    /// Ports of its containers.
    pub ports: Vec<ContainerPort>,
    /// Its readiness probe.
    pub probe: Probe,
    /// Its other probes and hooks.
    pub lifecycle: Lifecycle,
    /// Its volumes.
    pub volumes: Vec<Directory>,
    /// Where they are mounted.
    pub mounts: Vec<Mount>,
    /// How its replicas are named and started.
    pub kind: WorkloadKind,
    /// Its sidecar.
    pub sidecar: Sidecar,
    /// Settings of its sidecar.
    pub proxy: ProxySettings,
    /// Which of its connections the sidecar gets.
    pub capture: CaptureRules,
    /// A digest of the template: the middle part of its Pods' names.
    pub template_hash: String,
}

/// How replicas are named and started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    /// All at once, with names that change with the template.
    Deployment,
    /// With names that stay: NAME-0, NAME-1, …
    StatefulSet {
        /// Whether each replica starts only when the previous one is ready.
        ordered: bool,
    },
    /// A single replica on this machine.
    DaemonSet,
}

/// Everything to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Deployments with a command for this machine.
    pub workloads: Vec<Workload>,
    /// Build steps to run before they are started.
    pub builds: Vec<Build>,
    /// Ports that Gateways need on the ingress gateway, each once; if empty, no gateway is started.
    pub gateway_ports: Vec<GatewayPort>,
    /// Whether the directory has mesh settings (the ConfigMap `istio`).
    pub has_mesh_config: bool,
    /// Settings of the ingress gateway's proxy.
    pub gateway_proxy: ProxySettings,
}

impl Manifest {
    /// Reads all files; the findings concern only what this machine cannot do. `state` is the state directory, over
    /// which no volume may be mounted.
    pub fn of(files: &Files, state: &Path) -> (Self, Diagnostics) {
        let (commands, mut diagnostics) = Commands::of(files);
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let needed: Vec<PathBuf> = files.roots().iter().map(|root| real(root)).chain([real(state)]).collect();
        let (manifest, found) = Self::read(&in_force(files.objects()), &commands, &needed);
        diagnostics.extend(found);
        (manifest, diagnostics)
    }

    fn read(objects: &[Object], commands: &Commands, needed: &[PathBuf]) -> (Self, Diagnostics) {
        let mut manifest = Self { builds: commands.builds(), ..Self::default() };
        let mut diagnostics = Diagnostics::new();
        let mut names = Vec::new();
        let texts = AllTexts::of(objects);
        let proxies = ProxyConfigs::of(objects);
        manifest.gateway_proxy = proxies.of_proxy(INGRESS_NAMESPACE, &ingress_labels(), None);
        for object in objects {
            if let Some(said) = WorkloadObject::of(object) {
                names.push((&*object.namespace, &*object.name));
                manifest.workloads.extend(said.read(commands, (&texts, &proxies), needed, &mut diagnostics));
            }
            match &object.resource {
                Resource::WorkloadGroup(group) => {
                    names.push((&*object.namespace, &*object.name));
                    manifest.workloads.extend(groups::workload(object, group, commands, &proxies, &mut diagnostics));
                }
                Resource::Gateway(gateway) => manifest.add_gateway(gateway),
                Resource::ConfigMap(_) => {
                    manifest.has_mesh_config |= &*object.name == "istio" && &*object.namespace == INGRESS_NAMESPACE;
                }
                _ => {}
            }
        }
        for port in &mut manifest.gateway_ports {
            port.listener = objects.iter().find_map(|object| target_port(object, port.number)).unwrap_or(port.number);
        }
        commands.note_unused(&names, &mut diagnostics);
        manifest.gateway_ports.sort_by_key(|port| port.number);
        (manifest, diagnostics)
    }

    fn add_gateway(&mut self, gateway: &Gateway) {
        let ours = |(name, value): (&String, &String)| INGRESS_LABELS.contains(&(name.as_str(), value.as_str()));
        if !gateway.spec.selector.iter().all(ours) {
            return;
        }
        for server in &gateway.spec.servers {
            let (port, tls) = (&server.port, server.tls.as_ref());
            let mode = tls.and_then(|tls| tls.mode);
            if self.gateway_ports.iter().all(|other| other.number != port.number.0) {
                self.gateway_ports.push(GatewayPort {
                    number: port.number.0,
                    listener: port.number.0,
                    protocol: port.protocol.value.clone(),
                    host: server.hosts.iter().find_map(|host| name_of(host)),
                    certificate: tls.and_then(|tls| tls.server_certificate.clone()),
                    is_mutual: matches!(mode, Some(ServerTlsMode::Mutual | ServerTlsMode::IstioMutual)),
                    span: port.number.span.clone(),
                });
            }
        }
    }
}

/// The port to which a Service in front of the ingress gateway leads from one of its ports, as the control plane resolves it. The
/// gateway's Pod has no named ports.
fn target_port(object: &Object, number: u16) -> Option<u16> {
    let Resource::Service(service) = &object.resource else { return None };
    let labels = ingress_labels();
    let selector = &service.spec.selector;
    let selects = !selector.is_empty() && selector.iter().all(|(name, value)| labels.get(name) == Some(value));
    let port = service.spec.ports.iter().find(|port| port.port.value.0 == number)?;
    if !selects || &*object.namespace != INGRESS_NAMESPACE {
        return None;
    }
    match port.target_port.as_ref().map(|target| &target.value) {
        None => Some(number),
        Some(IntOrString::Port(target)) => Some(target.0),
        Some(IntOrString::Name(_)) => None,
    }
}

/// A host name with which a client can reach a server's host: `NAMESPACE/HOST` without the namespace, and an example
/// for `*.HOST`. `None` if any name is served.
fn name_of(host: &str) -> Option<String> {
    let host = host.rsplit('/').next().filter(|host| *host != "*")?;
    Some(host.strip_prefix("*.").map_or_else(|| host.to_owned(), |suffix| format!("www.{suffix}")))
}

impl Workload {
    /// Renames its replicas, as `kubectl rollout restart` does, so that they are replaced.
    pub fn renew(&mut self, times: u32) {
        self.template_hash = names::digest(&format!("{} restarted {times}", self.template_hash), 9);
    }

    /// Its namespace and name.
    pub fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    /// The names of all its replicas.
    pub fn pod_names(&self) -> impl Iterator<Item = String> {
        (0..self.replicas).map(|index| self.pod_name(index))
    }

    /// The name of the replica that must be ready before this one is started.
    pub fn before(&self, name: &str) -> Option<String> {
        let ordered = self.kind == WorkloadKind::StatefulSet { ordered: true };
        let index: u32 = name.rsplit_once('-')?.1.parse().ok()?;
        index.checked_sub(1).filter(|_| ordered).map(|before| self.pod_name(before))
    }

    /// The name of its `index`-th replica: in the form of a cluster's, but the same in every run.
    pub fn pod_name(&self, index: u32) -> String {
        if let WorkloadKind::StatefulSet { .. } = self.kind {
            return format!("{}-{index}", self.name);
        }
        let suffix = names::digest(&format!("{}/{}#{index}", self.namespace, self.name), 5);
        format!("{}-{}-{suffix}", self.name, self.template_hash)
    }
}

/// A Deployment, a StatefulSet or a DaemonSet.
struct WorkloadObject<'a> {
    object: &'a Object,
    template: &'a PodTemplate,
    replicas: u32,
    kind: WorkloadKind,
}

impl<'a> WorkloadObject<'a> {
    fn of(object: &'a Object) -> Option<Self> {
        let (template, replicas, kind) = match &object.resource {
            Resource::Deployment(set) => (&set.spec.template, set.replicas(), WorkloadKind::Deployment),
            Resource::StatefulSet(set) => {
                let ordered = set.spec.pod_management_policy != Some(PodManagementPolicy::Parallel);
                (&set.spec.template, set.spec.replicas.unwrap_or(1), WorkloadKind::StatefulSet { ordered })
            }
            Resource::DaemonSet(set) => (&set.spec.template, 1, WorkloadKind::DaemonSet),
            _ => return None,
        };
        Some(Self { object, template, replicas, kind })
    }

    /// The workload as this machine runs it; `None`, with a finding, if it cannot.
    fn read(
        &self,
        commands: &Commands,
        (texts, proxies): (&AllTexts, &ProxyConfigs),
        needed: &[PathBuf],
        diagnostics: &mut Diagnostics,
    ) -> Option<Workload> {
        let Self { object, template, replicas, kind } = *self;
        let place = || object.origin.clone();
        let annotated = || {
            let run = template.run_command()?.value.clone();
            Some(Command { run, directory: None, environment: Vec::new() })
        };
        // A command in `evenkeel.yaml` takes precedence.
        let beside = commands.find(&object.namespace, &object.name);
        let Some(command) = beside.cloned().or_else(annotated) else {
            let message = format!("{object} has no command for this machine, so it is not started");
            let help = format!(
                "write `workloads: {{{}: {{command: COMMAND}}}}` in the file {LOCAL_FILE} beside it, or add the \
                 annotation `{RUN_ANNOTATION}: COMMAND` to spec.template.metadata",
                object.name
            );
            diagnostics.push(Diagnostic::warning("no-local-command", place(), message).with_help(help));
            return None;
        };
        if replicas > MAX_REPLICAS {
            let message =
                format!("{object} asks for {replicas} replicas; one machine runs at most {MAX_REPLICAS} of each");
            diagnostics.push(Diagnostic::error("too-many-replicas", place(), message).with_help("lower spec.replicas"));
            return None;
        }
        let environment = environment::read(&object.namespace, template, texts);
        let volumes = volumes::read(&object.namespace, template, texts);
        let (environment, volumes) = match environment.and_then(|environment| Ok((environment, volumes?))) {
            Ok(both) => both,
            Err(reason) => {
                let message = format!("{object} is not started: {reason}");
                let help = "add it to the files, or set `optional: true`; the workload starts as soon as it is there";
                diagnostics.push(Diagnostic::warning("missing-value", place(), message).with_help(help));
                return None;
            }
        };
        self.note_others(diagnostics);
        self.note_accounts(diagnostics);
        let directory = command.directory.iter().cloned();
        let needed: Vec<PathBuf> = needed.iter().cloned().chain(directory).collect();
        let mounts = volumes::mounts(object, template, &volumes, &needed, diagnostics);
        let labels = template.labels();
        let beside = beside.map(|command| format!("{command:?}")).unwrap_or_default();
        let sidecar = sidecar(template, &labels, &proxies.namespace_labels(&object.namespace), diagnostics)?;
        let mut proxy = proxies.of_template(&object.namespace, &labels, template);
        if proxy.transparent && matches!(sidecar, Sidecar::Envoy(_)) {
            // Envoy sets the mark of its own sockets over that of `original_src`, so that the rules would capture them again.
            proxy.transparent = false;
            let message = "TPROXY is not supported with the proxy `envoy`; inbound traffic is captured by redirection";
            let help = "use the proxy `evenkeel`, or write REDIRECT";
            diagnostics.push(Diagnostic::warning("unsupported-value", place(), message).with_help(help));
        }
        Some(Workload {
            name: object.name.to_string(),
            namespace: object.namespace.to_string(),
            replicas,
            service_account: template.spec.service_account().to_owned(),
            environment,
            ports: ports(&template.spec),
            probe: probes::readiness(&template.spec),
            lifecycle: probes::lifecycle(&template.spec),
            volumes,
            mounts,
            kind,
            sidecar,
            proxy,
            capture: template.metadata.as_ref().map(|meta| CaptureRules::of(&meta.annotations)).unwrap_or_default(),
            template_hash: names::digest(&format!("{template:?}{beside}"), 9),
            command,
            labels,
        })
    }

    /// Warns if one command replaces several containers.
    fn note_others(&self, diagnostics: &mut Diagnostics) {
        let containers = &self.template.spec.containers;
        if let [first, _, ..] = containers.as_slice() {
            let message = format!(
                "{} has {} containers; one command replaces all of them, with the variables and ports of all and the probes of `{}`",
                self.object,
                containers.len(),
                first.name
            );
            let help = "have the command start the others, too, or give them Deployments of their own";
            diagnostics
                .push(Diagnostic::warning("several-containers", self.object.origin.clone(), message).with_help(help));
        }
    }
}

impl WorkloadObject<'_> {
    /// Warns about users of an image, which this machine may not have, or may have with another meaning.
    fn note_accounts(&self, diagnostics: &mut Diagnostics) {
        for (field, account) in self.template.spec.accounts() {
            let message = format!(
                "{field} {} is ignored: it names a user of an image, and here it would be a user of this machine",
                account.value
            );
            let help = "no action is needed: as root `evenkeel up` gives each service account a user of its own, otherwise programs run as the user who started it";
            diagnostics.push(Diagnostic::warning("no-run-as", account.span.clone(), message).with_help(help));
        }
    }
}

fn ports(spec: &PodSpec) -> Vec<ContainerPort> {
    let ports = spec.containers.iter().flat_map(|container| &container.ports);
    ports
        .map(|port| ContainerPort {
            name: port.name.as_ref().map(ToString::to_string),
            number: port.container_port.0,
            protocol: port.protocol.map_or("TCP", |protocol| protocol.as_str()).to_owned(),
        })
        .collect()
}

/// The ingress gateway's labels as a Pod has them.
pub fn ingress_labels() -> BTreeMap<String, String> {
    INGRESS_LABELS.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Check;

    fn read(text: &str) -> (Manifest, Diagnostics) {
        let (objects, diagnostics) = evenkeel_api::load(&[("app.yaml".into(), text.into())]);
        assert!(!diagnostics.has_errors(), "{diagnostics}");
        Manifest::read(&objects, &Commands::default(), &[])
    }

    fn deployment(annotations: &str, container: &str) -> String {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: shop}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  \
             template:\n    metadata:\n      labels: {{app: web}}\n      annotations: {{{annotations}}}\n    \
             spec:\n      containers: [{{name: web{container}}}]\n"
        )
    }

    const RUN: &str = "local.evenkeel.dev/run: ./web";

    #[test]
    fn namespaces_and_templates_say_who_gets_a_sidecar() {
        let check = |label: &str, annotation: &str, expected: bool| {
            let namespace =
                format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{label}}}}}\n");
            let (manifest, _) = read(&(deployment(&format!("{RUN}{annotation}"), "") + &namespace));
            let workload = manifest.workloads.first().expect("a workload");
            assert_eq!(workload.sidecar != Sidecar::None, expected, "{label} {annotation}");
        };
        check("", "", true);
        check("istio-injection: enabled", "", true);
        check("istio-injection: disabled", "", false);
        check("istio-injection: disabled", ", sidecar.istio.io/inject: 'true'", true);
        check("istio-injection: enabled", ", sidecar.istio.io/inject: 'false'", false);
    }

    #[test]
    fn proxies_have_the_settings_of_proxy_config() {
        let mesh = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'defaultConfig: {concurrency: 4, terminationDrainDuration: 9s}'}\n";
        let kind = "---\napiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: p, namespace: shop}\nspec: {selector: {matchLabels: {app: web}}, concurrency: 3}\n";
        let check = |annotation: &str, more: &str, concurrency: Option<u32>, drain: Option<u64>| {
            let (manifest, _) = read(&(deployment(&format!("{RUN}{annotation}"), "") + more));
            let proxy = manifest.workloads.first().expect("a workload").proxy.clone();
            assert_eq!(
                (proxy.concurrency, proxy.drain.map(|time| time.as_secs())),
                (concurrency, drain),
                "{annotation} {more}"
            );
        };
        check("", "", None, None);
        check("", mesh, Some(4), Some(9));
        check("", &format!("{mesh}{kind}"), Some(3), Some(9));
        let own = ", proxy.istio.io/config: '{concurrency: 2, terminationDrainDuration: 1s}'";
        check(own, &format!("{mesh}{kind}"), Some(2), Some(1));
        let transparent = |annotations: &str, mesh: &str| {
            let (manifest, found) = read(&(deployment(&format!("{RUN}{annotations}"), "") + mesh));
            assert!(found.is_empty(), "{found}");
            manifest.workloads.first().expect("a workload").proxy.transparent
        };
        let tproxy = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'defaultConfig: {interceptionMode: TPROXY}'}\n";
        assert!(!transparent("", ""));
        assert!(transparent("", tproxy));
        assert!(transparent(", sidecar.istio.io/interceptionMode: TPROXY", ""));
        assert!(transparent(", proxy.istio.io/config: '{interceptionMode: TPROXY}'", ""));
        let both = ", sidecar.istio.io/interceptionMode: REDIRECT, proxy.istio.io/config: '{interceptionMode: TPROXY}'";
        assert!(!transparent(both, tproxy), "the annotation of its own goes first");
        let by_envoy = format!(
            ", sidecar.istio.io/interceptionMode: TPROXY, {PROXY_ANNOTATION}: envoy, {ENVOY_PATH_ANNOTATION}: /bin/sh"
        );
        let (manifest, found) = read(&deployment(&format!("{RUN}{by_envoy}"), ""));
        assert!(found.iter().any(|finding| finding.message.contains("TPROXY")), "{found}");
        assert!(manifest.workloads.iter().all(|workload| !workload.proxy.transparent));
        let (manifest, _) = read(mesh);
        assert_eq!(manifest.gateway_proxy.concurrency, Some(4));
        let own = ", sidecar.istio.io/statsInclusionPrefixes: 'a,b', proxy.istio.io/config: '{proxyStatsMatcher: {inclusionSuffixes: [c]}}'";
        let (manifest, _) = read(&deployment(&format!("{RUN}{own}"), ""));
        let proxy = manifest.workloads.first().expect("a workload").proxy.clone();
        assert_eq!(proxy.for_agent["sidecar.istio.io/statsInclusionPrefixes"], "a,b");
        let matcher = proxy.agent_config.get("proxyStatsMatcher").expect("statistics are included");
        assert_eq!(matcher["inclusionSuffixes"], serde_json::json!(["c"]));
        let own = ", sidecar.istio.io/logLevel: warn, sidecar.istio.io/extraStatTags: a, proxy.istio.io/config: '{serviceCluster: shop}'";
        let (manifest, _) = read(&deployment(&format!("{RUN}{own}"), ""));
        let proxy = manifest.workloads.first().expect("a workload").proxy.clone();
        assert_eq!(proxy.log_levels.proxy.as_deref(), Some("warning"));
        assert_eq!(proxy.for_agent["sidecar.istio.io/extraStatTags"], "a");
        assert_eq!(proxy.agent_config.get("serviceCluster"), Some(&serde_json::json!("shop")));
    }

    #[test]
    fn agents_know_their_ports_and_where_programs_show_metrics() {
        let check = |annotations: &str, settings: &str, (admin, status): (u16, Option<u16>), metrics: Option<&str>| {
            let mesh = format!(
                "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: '{settings}'}}\n"
            );
            let (manifest, found) = read(&(deployment(&format!("{RUN}{annotations}"), "") + &mesh));
            assert!(found.is_empty(), "{found}");
            let proxy = manifest.workloads.first().expect("a workload").proxy.clone();
            assert_eq!((proxy.admin().port(), proxy.status_port), (admin, status), "{annotations} {settings}");
            assert_eq!(proxy.program_metrics.as_deref(), metrics, "{annotations} {settings}");
        };
        let scraped = ", prometheus.io/scrape: 'true', prometheus.io/port: '8080'";
        let place = Some(r#"{"port":"8080","scrape":"true"}"#);
        check("", "{}", (15000, None), None);
        check(scraped, "{}", (15000, None), place);
        check(scraped, "enablePrometheusMerge: false", (15000, None), None);
        let own = |merged: &str| format!("{scraped}, prometheus.istio.io/merge-metrics: '{merged}'");
        check(&own("true"), "enablePrometheusMerge: false", (15000, None), place);
        check(&own("false"), "{}", (15000, None), None);
        let ports = "defaultConfig: {proxyAdminPort: 15900, statusPort: 15920}";
        check("", ports, (15900, Some(15920)), None);
        check(", status.sidecar.istio.io/port: '0'", ports, (15900, Some(0)), None);
    }

    #[test]
    fn groups_with_a_command_are_run_and_others_are_noted() {
        let group = |annotations: &str| {
            format!(
                "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {{name: vm, namespace: shop{annotations}}}\n\
                 spec: {{metadata: {{labels: {{app: vm}}}}, template: {{serviceAccount: db}}, probe: {{tcpSocket: {{port: 90}}}}}}\n"
            )
        };
        let (manifest, findings) = read(&group(&format!(", annotations: {{{RUN}}}")));
        assert!(findings.is_empty(), "{findings}");
        let workload = manifest.workloads.first().expect("a workload");
        let membership = workload.proxy.membership.as_ref().expect("a group");
        assert_eq!((&*workload.service_account, &*membership.group), ("db", "vm"));
        assert_eq!(membership.probe, Some(serde_json::json!({"tcpSocket": {"port": 90}})));
        assert_eq!(workload.labels.get("app").map(String::as_str), Some("vm"));
        let (manifest, findings) = read(&group(""));
        assert!(manifest.workloads.is_empty());
        let said = findings.to_string();
        assert!(said.contains("info[no-local-command]") || said.contains("its workloads run elsewhere"), "{said}");
    }

    #[test]
    fn templates_say_which_connections_are_captured() {
        let annotation = ", traffic.sidecar.istio.io/excludeOutboundPorts: '3306, 5432'";
        let (manifest, _) = read(&deployment(&format!("{RUN}{annotation}"), ""));
        let capture = manifest.workloads.first().map(|workload| workload.capture.clone()).expect("a workload");
        assert_eq!(capture.except_outbound_ports, [3306, 5432]);
    }

    #[test]
    fn readiness_comes_from_the_probe_or_else_from_the_first_port() {
        let check = |container: &str, expected: Check| {
            let (manifest, findings) = read(&deployment(RUN, container));
            assert!(findings.is_empty(), "{findings}");
            assert_eq!(
                manifest.workloads.first().map(|workload| &workload.probe.check),
                Some(&expected),
                "{container}"
            );
        };
        check("", Check::Runs);
        check(", ports: [{containerPort: 90}]", Check::Tcp(90));
        check(", readinessProbe: {tcpSocket: {port: 91}}", Check::Tcp(91));
        let http = Check::Http { port: 92, path: "/ok".to_owned(), headers: Vec::new() };
        check(", ports: [{name: web, containerPort: 92}], readinessProbe: {httpGet: {port: web, path: /ok}}", http);
    }

    #[test]
    fn names_are_as_a_clusters_and_the_same_every_time() {
        let names = || -> Vec<String> {
            let (manifest, _) = read(&deployment(RUN, ""));
            manifest.workloads.iter().flat_map(|workload| [0, 1].map(|index| workload.pod_name(index))).collect()
        };
        assert_eq!(names(), names());
        let names = names();
        assert!(names.iter().all(|name| name.starts_with("web-") && name.split('-').count() == 3), "{names:?}");
        assert_ne!(names.first(), names.last());
    }

    #[test]
    fn the_machines_network_is_not_given_and_that_is_said_with_its_place() {
        let text = deployment(RUN, "")
            .replace("    spec:\n      containers", "    spec:\n      hostNetwork: true\n      containers");
        let (manifest, findings) = read(&text);
        assert_eq!(manifest.workloads.first().map(|workload| &workload.sidecar), Some(&Sidecar::None));
        let said = findings.to_string();
        assert!(said.starts_with("app.yaml:11:") && said.contains("no-host-network"), "{said}");
        let (manifest, findings) = read(&text.replace("hostNetwork: true", "hostNetwork: false"));
        assert!(findings.is_empty() && manifest.workloads.iter().all(|workload| workload.sidecar != Sidecar::None));
    }

    #[test]
    fn accounts_of_images_are_not_followed_and_that_is_said_with_their_places() {
        let text = deployment(RUN, ", securityContext: {runAsUser: 1000, runAsNonRoot: true}").replace(
            "    spec:\n      containers",
            "    spec:\n      securityContext: {runAsGroup: 2000, fsGroup: 2000}\n      containers",
        );
        let (manifest, findings) = read(&text);
        assert_eq!(manifest.workloads.len(), 1);
        let said: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2, "{findings}");
        for (said, start) in said.iter().zip(["app.yaml:11:37: warning[no-run-as]: runAsGroup 2000", "app.yaml:12:"]) {
            assert!(said.starts_with(start), "{said}");
        }
    }

    #[test]
    fn what_cannot_run_here_is_said_with_its_place() {
        let check = |annotations: &str, code: &str, help: &str| {
            let (manifest, findings) = read(&deployment(annotations, ""));
            assert!(manifest.workloads.is_empty());
            let said = findings.to_string();
            assert!(said.contains(code) && said.contains(help) && said.starts_with("app.yaml:"), "{said}");
        };
        check("", "no-local-command", RUN_ANNOTATION);
        check(&format!("{RUN}, {PROXY_ANNOTATION}: nginx"), "bad-value", "`evenkeel` or `envoy`");
        check(&format!("{RUN}, {SCOPE_ANNOTATION}: some"), "bad-value", "`learned` or `full`");
        check(
            &format!("{RUN}, {PROXY_ANNOTATION}: envoy, {ENVOY_PATH_ANNOTATION}: /nowhere"),
            "no-envoy",
            ENVOY_VARIABLE,
        );
    }

    #[test]
    fn only_gateways_for_the_ingress_gateway_open_ports_each_once() {
        let gateway = |name: &str, selector: &str, ports: &str| {
            format!(
                "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}}}\nspec: {{selector: {{{selector}}}, servers: [{ports}]}}\n---\n"
            )
        };
        let server = |number: u16| format!("{{port: {{number: {number}, name: http, protocol: HTTP}}, hosts: ['*']}}");
        let text = gateway("a", "istio: ingressgateway", &format!("{}, {}", server(8080), server(80)))
            + &gateway("b", "istio: ingressgateway", &server(80))
            + &gateway("c", "istio: egressgateway", &server(7000));
        let (manifest, _) = read(&text);
        assert_eq!(manifest.gateway_ports.iter().map(|port| port.number).collect::<Vec<_>>(), [80, 8080]);
        let listeners = |text: &str| {
            let ports = read(text).0.gateway_ports;
            ports.iter().map(|port| (port.number, port.listener)).collect::<Vec<_>>()
        };
        assert_eq!(listeners(&text), [(80, 80), (8080, 8080)]);
        let service = |namespace: &str, selector: &str| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: edge, namespace: {namespace}}}\n\
                 spec: {{selector: {{{selector}}}, ports: [{{name: a, port: 80, targetPort: 9080}}, {{name: b, port: 8080, targetPort: web}}]}}\n---\n"
            )
        };
        let own = service("istio-system", "istio: ingressgateway");
        assert_eq!(listeners(&(own + &text)), [(80, 9080), (8080, 8080)]);
        for other in [service("shop", "istio: ingressgateway"), service("istio-system", "app: other")] {
            assert_eq!(listeners(&(other + &text)), [(80, 80), (8080, 8080)]);
        }
    }
}
