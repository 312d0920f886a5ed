//! Derives what this machine runs from the directory's objects: workloads and ports of Gateways.

mod commands;
pub mod environment;
mod gateways;
mod groups;
pub(crate) mod hidden_files;
mod probes;
mod provided_gateways;
mod proxy_config;
mod served;
mod sidecar;
mod texts;
mod volumes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::istio::InterceptionMode;
use evenkeel_api::kubernetes::{PodManagementPolicy, PodSpec, PodTemplate, RUN_ANNOTATION};
use evenkeel_api::{LOCAL_FILE, Object, Resource, in_force};
use evenkeel_base::{Diagnostic, Diagnostics};
use evenkeel_control::source::files::Files;
use evenkeel_inject::ProxySettings;

pub use self::commands::{Build, Command, Commands};
use self::environment::Variable;
use self::proxy_config::ProxyConfigs;
use self::sidecar::sidecar;
use self::texts::AllTexts;
use crate::lifecycle::Lifecycle;
use crate::names;
use crate::pods::ContainerPort;
use crate::ports::GatewayPort;
use crate::probe::{Check, Probe};
use crate::temporary;
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

/// The namespace of the mesh's settings.
const ROOT_NAMESPACE: &str = "istio-system";

/// The proxy of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sidecar {
    /// Evenkeel's proxy.
    Evenkeel {
        /// Whether it holds everything its workload may use, and not only what it does use.
        full: bool,
    },
    /// A stock Envoy, run from this binary.
    Envoy(PathBuf),
    /// Evenkeel's proxy as a gateway, without a program.
    Gateway,
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
    /// Its command; a gateway has none.
    pub command: Option<Command>,
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
    /// A gateway that no file describes: a single replica with the workload's own name.
    ProvidedGateway,
}

/// Everything to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Deployments with a command for this machine, and gateways.
    pub workloads: Vec<Workload>,
    /// Build steps to run before they are started.
    pub builds: Vec<Build>,
    /// Ports of gateways that the machine opens, each once.
    pub gateway_ports: Vec<GatewayPort>,
    /// Whether the directory has mesh settings (the ConfigMap `istio`).
    pub has_mesh_config: bool,
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

    pub(crate) fn read(objects: &[Object], commands: &Commands, needed: &[PathBuf]) -> (Self, Diagnostics) {
        let mut manifest = Self { builds: commands.builds(), ..Self::default() };
        let mut diagnostics = Diagnostics::new();
        let mut names = Vec::new();
        let texts = AllTexts::of(objects);
        let proxies = ProxyConfigs::of(objects);
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
                Resource::ConfigMap(_) => {
                    manifest.has_mesh_config |= &*object.name == "istio" && &*object.namespace == ROOT_NAMESPACE;
                }
                _ => {}
            }
        }
        manifest.gateway_ports = gateways::settle(objects, &proxies, &mut manifest.workloads, &mut diagnostics);
        commands.note_unused(&names, &mut diagnostics);
        (manifest, diagnostics)
    }

    /// Whether the files have nothing to run: gateways alone serve nobody.
    pub fn is_empty(&self) -> bool {
        self.workloads.iter().all(Workload::is_provided)
    }
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

    /// Whether it is a gateway that no file describes, and that Gateways select.
    pub fn is_provided(&self) -> bool {
        self.kind == WorkloadKind::ProvidedGateway
    }

    /// Whether it is one of the gateways that every installation of Istio has.
    pub fn is_of_installation(&self) -> bool {
        let names = [provided_gateways::INGRESS.name, provided_gateways::EGRESS.name];
        self.is_provided() && self.namespace == ROOT_NAMESPACE && names.contains(&self.name.as_str())
    }

    /// The name of the replica that must be ready before this one is started.
    pub fn before(&self, name: &str) -> Option<String> {
        let ordered = self.kind == WorkloadKind::StatefulSet { ordered: true };
        let index: u32 = name.rsplit_once('-')?.1.parse().ok()?;
        index.checked_sub(1).filter(|_| ordered).map(|before| self.pod_name(before))
    }

    /// The name of its `index`-th replica: in the form of a cluster's, but the same in every run.
    pub fn pod_name(&self, index: u32) -> String {
        match self.kind {
            WorkloadKind::StatefulSet { .. } => return format!("{}-{index}", self.name),
            WorkloadKind::ProvidedGateway => return self.name.clone(),
            WorkloadKind::Deployment | WorkloadKind::DaemonSet => {}
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
        let command = beside.cloned().or_else(annotated);
        if command.is_none() && !gateways::is_gateway(template) {
            let message = format!("{object} has no command for this machine, so it is not started");
            let help = format!(
                "write `workloads: {{{}: {{command: COMMAND}}}}` in the file {LOCAL_FILE} beside it, or add the \
                 annotation `{RUN_ANNOTATION}: COMMAND` to spec.template.metadata",
                object.name
            );
            diagnostics.push(Diagnostic::warning("no-local-command", place(), message).with_help(help));
            return None;
        }
        if replicas > MAX_REPLICAS {
            let message =
                format!("{object} asks for {replicas} replicas; one machine runs at most {MAX_REPLICAS} of each");
            diagnostics.push(Diagnostic::error("too-many-replicas", place(), message).with_help("lower spec.replicas"));
            return None;
        }
        let Some(command) = command else { return Some(self.gateway(proxies)) };
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
        let shown: Vec<PathBuf> = needed.into_iter().chain(temporary::of_environment()).collect();
        hidden_files::note(object, &command.run, &shown, diagnostics);
        let labels = template.labels();
        let beside = beside.map(|command| format!("{command:?}")).unwrap_or_default();
        let sidecar = sidecar(template, &labels, &proxies.namespace_labels(&object.namespace), diagnostics)?;
        let mut proxy = proxies.of_template(&object.namespace, &labels, template);
        if proxy.mode == InterceptionMode::Tproxy && matches!(sidecar, Sidecar::Envoy(_)) {
            // Envoy sets the mark of its own sockets over that of `original_src`, so that the rules would capture them again.
            proxy.mode = InterceptionMode::Redirect;
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
            command: Some(command),
            labels,
        })
    }

    /// A gateway: its container and volumes are those of the injector's template.
    fn gateway(&self, proxies: &ProxyConfigs) -> Workload {
        let Self { object, template, replicas, kind } = *self;
        let labels = template.labels();
        Workload {
            name: object.name.to_string(),
            namespace: object.namespace.to_string(),
            replicas,
            service_account: template.spec.service_account().to_owned(),
            environment: Vec::new(),
            ports: ports(&template.spec),
            probe: Probe::new(Check::Runs),
            lifecycle: Lifecycle::default(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            kind,
            sidecar: Sidecar::Gateway,
            proxy: proxies.of_template(&object.namespace, &labels, template),
            capture: CaptureRules::default(),
            template_hash: names::digest(&format!("{template:?}"), 9),
            command: None,
            labels,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

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
            manifest.workloads.first().expect("a workload").proxy.mode == InterceptionMode::Tproxy
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
        assert!(manifest.workloads.iter().all(|workload| workload.proxy.mode == InterceptionMode::Redirect));
        let (manifest, _) = read(&format!("{mesh}---\n{}", gateway("door", "istio: ingressgateway", &server(80))));
        assert_eq!(manifest.workloads.first().and_then(|gateway| gateway.proxy.concurrency), Some(4));
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
        let targets = ", prometheus.istio.io/scrape-targets: '9100:/stats,x:/a, 8080'";
        let places = r#"{"targets":[{"port":"9100","path":"/stats"},{"port":"8080","path":"/metrics"}]}"#;
        check(targets, "{}", (15000, None), Some(places));
        check(targets, "enablePrometheusMerge: false", (15000, None), None);
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

    fn gateway(name: &str, selector: &str, servers: &str) -> String {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}}}\nspec: {{selector: {{{selector}}}, servers: [{servers}]}}\n---\n"
        )
    }

    fn server(number: u16) -> String {
        format!("{{port: {{number: {number}, name: http, protocol: HTTP}}, hosts: ['*']}}")
    }

    fn service(name: &str, namespace: &str, selector: &str, more: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{selector: {{{selector}}}, {more}}}\n---\n"
        )
    }

    /// The gateways, and each port of the machine as GATEWAY NUMBER→LISTENER.
    fn gateways(text: &str) -> (Vec<String>, Vec<String>, String) {
        let (manifest, findings) = read(text);
        let gateways = manifest.workloads.iter().filter(|workload| workload.sidecar == Sidecar::Gateway);
        let ports = manifest.gateway_ports.iter();
        let ports = ports.map(|port| format!("{} {}→{}", port.owner.1, port.number, port.listener)).collect();
        (gateways.map(|gateway| gateway.name.clone()).collect(), ports, findings.to_string())
    }

    #[test]
    fn gateways_are_run_for_every_selector_and_open_the_ports_that_face_outside() {
        let check = |text: &str, expected: &[&str], ports: &[&str]| {
            let (gateways, found, findings) = gateways(text);
            assert_eq!(
                (gateways, found),
                (
                    expected.iter().map(|name| (*name).to_owned()).collect(),
                    ports.iter().map(|port| (*port).to_owned()).collect()
                ),
                "{text}"
            );
            assert_eq!(findings, "", "{text}");
        };
        let (ingress, egress) = ("istio-ingressgateway", "istio-egressgateway");
        let both = gateway("a", "istio: ingressgateway", &format!("{}, {}", server(8080), server(80)))
            + &gateway("b", "istio: ingressgateway", &server(80));
        check(&both, &[ingress], &["istio-ingressgateway 80→80", "istio-ingressgateway 8080→8080"]);
        check(
            &(both + &gateway("c", "istio: egressgateway", &server(7000))),
            &[ingress, egress],
            &["istio-ingressgateway 80→80", "istio-ingressgateway 8080→8080"],
        );
        check(&gateway("a", "", &server(80)), &[ingress], &["istio-ingressgateway 80→80"]);
        // Deployments that are gateways.
        let own = |labels: &str, container: &str, annotations: &str| {
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: door, namespace: hall}}\nspec:\n  \
                 selector: {{matchLabels: {{{labels}}}}}\n  template:\n    metadata: {{labels: {{{labels}}}{annotations}}}\n    \
                 spec: {{containers: [{{name: {container}, ports: [{{name: web, containerPort: 8085}}]}}]}}\n---\n"
            )
        };
        let templates = ", annotations: {inject.istio.io/templates: gateway}";
        let door = own("istio: door", "auto", templates) + &gateway("a", "istio: door", &server(80));
        check(&door, &["door"], &[]);
        let inside = service("door", "hall", "istio: door", "ports: [{name: a, port: 80, targetPort: web}]");
        check(&(door.clone() + &inside), &["door"], &[]);
        let outside = inside.replace("ports:", "type: LoadBalancer, ports:");
        check(&(door + &outside), &["door"], &["door 80→8085"]);
        let front =
            own("istio: ingressgateway", "istio-proxy", "") + &gateway("a", "istio: ingressgateway", &server(80));
        check(&front, &["door"], &["door 80→80"]);
        // Gateways with labels of their own, which nothing has.
        let own =
            gateway("a", "istio: cluster-local", &server(80)) + &gateway("b", "istio: cluster-local", &server(81));
        check(&own, &["istio-cluster-local"], &["istio-cluster-local 80→80", "istio-cluster-local 81→81"]);
        check(&gateway("a", "team.example/edge: Blue_1", &server(80)), &["blue-1"], &["blue-1 80→80"]);
        let labels = "app: local-gateway, istio: cluster-local";
        let inside = service("local-gateway", "knative", labels, "ports: [{name: a, port: 80, targetPort: 8081}]");
        check(&(own.clone() + &inside), &["local-gateway"], &[]);
        let outside = inside.replace("ports:", "type: NodePort, ports:");
        check(&(own + &outside), &["local-gateway"], &["local-gateway 80→8081", "local-gateway 81→81"]);
        // Gateways of the Gateway API.
        let listener = |name: &str, port: u16| format!("{{name: {name}, port: {port}, protocol: HTTP}}");
        let of_class = |class: &str, namespace: &str, listeners: &str| {
            format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: door, namespace: {namespace}}}\n\
                 spec: {{gatewayClassName: {class}, listeners: [{listeners}]}}\n---\n"
            )
        };
        let two = format!("{}, {}", listener("a", 80), listener("b", 8080));
        check(&of_class("istio", "hall", &two), &["door-istio"], &["door-istio 80→80", "door-istio 8080→8080"]);
        let both = of_class("istio", "hall", &listener("a", 80)) + &of_class("evenkeel", "yard", &listener("a", 81));
        check(&both, &["door-istio", "door-evenkeel"], &["door-istio 80→80", "door-evenkeel 81→81"]);
        check(&of_class("other", "hall", &two), &[], &[]);
        // A program that is no gateway has the labels.
        let unknown = gateways(&(deployment(RUN, "") + "---\n" + &gateway("a", "app: web", &server(80))));
        assert!(
            unknown.0.is_empty() && unknown.2.contains("no-gateway") && unknown.2.contains("(app: web)"),
            "{unknown:?}"
        );
    }

    #[test]
    fn services_in_front_of_a_gateway_say_where_it_listens() {
        let text = gateway("a", "istio: ingressgateway", &format!("{}, {}", server(80), server(8081)));
        let check = |services: &str, expected: [u16; 2]| {
            let ports = read(&(services.to_owned() + &text)).0.gateway_ports;
            assert_eq!(ports.iter().map(|port| port.listener).collect::<Vec<_>>(), expected, "{services}");
        };
        let ports = "ports: [{name: a, port: 80, targetPort: 9080}, {name: b, port: 8081, targetPort: web}]";
        check("", [80, 8081]);
        check(&service("edge", "istio-system", "istio: ingressgateway", ports), [9080, 8081]);
        check(&service("edge", "shop", "istio: ingressgateway", ports), [80, 8081]);
        check(&service("edge", "istio-system", "app: other", ports), [80, 8081]);
        // The label leaves a Service out; and both ports may lead to the same one.
        let to_8081 =
            service("edge", "istio-system", "istio: ingressgateway", "ports: [{name: a, port: 80, targetPort: 8081}]");
        check(&to_8081, [8081, 8081]);
        let earlier =
            service("ante", "istio-system", "istio: ingressgateway", "ports: [{name: a, port: 80, targetPort: 9999}]");
        check(&(to_8081.clone() + &earlier), [9999, 8081]);
        let labelled = "name: edge, labels: {experimental.istio.io/disable-gateway-port-translation: \"true\"},";
        check(&to_8081.replace("name: edge,", labelled), [80, 8081]);
    }

    #[test]
    fn ingresses_open_the_ports_of_the_ingress_gateway() {
        let ingress = |class: &str, tls: &str| {
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: web, annotations: {{kubernetes.io/ingress.class: {class}}}}}\n\
                 spec: {{{tls}rules: [{{http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}}}]}}\n"
            )
        };
        let check = |text: &str, expected: &[&str]| {
            let ports = gateways(text).1;
            assert_eq!(ports, expected.iter().map(|port| (*port).to_owned()).collect::<Vec<_>>(), "{text}");
        };
        check(&ingress("istio", ""), &["istio-ingressgateway 80→80"]);
        let secure = "tls: [{hosts: [a.test], secretName: a}], ";
        check(&ingress("istio", secure), &["istio-ingressgateway 80→80", "istio-ingressgateway 443→443"]);
        check(&ingress("nginx", ""), &[]);
    }
}
