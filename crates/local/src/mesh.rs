//! The running mesh: its control plane, gateway and replicas, and how they are brought in line with a manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_capture::Capture;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::accounts::Accounts;
use crate::addresses::{BRIDGE_ADDRESS, CLUSTER_DOMAIN, CONTROL_DEBUG, OWN_NAME_SERVER};
use crate::capture;
use crate::cleanup::StateDir;
use crate::client::Call;
use crate::container::{Container, ContainerError, ContainerSpec};
use crate::egress::rules::EgressAccess;
use crate::gateway_ports::GatewayPorts;
use crate::namespace::Namespace;
use crate::network::{MAX_PODS, PodNetwork, pod_address, search_list, volumes_in, write_resolver};
use crate::network_error::NetworkError;
use crate::plan::Plan;
use crate::pods::{Pod, Roster, RosterView};
use crate::ports::GatewayPort;
use crate::preflight::Refused;
use crate::process::{Phase, Process, State};
use crate::program::Program;
use crate::programs;
use crate::replica::{Containers, Replica, ReplicaSpec, Replicas, Retirement, TERMINATION_GRACE};
use crate::rollout::{self, CurrentReplica, Step};
use crate::service_rules::Behind;
use crate::tokens::{CredentialError, Credentials, Tokens};
use crate::ui::Events;
use crate::volumes::Directory;
use crate::workloads::{Manifest, Sidecar, Workload, WorkloadKind, hidden_files};

/// How long the control plane may take to become ready.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a starting control plane is checked.
const CONTROL_PERIOD: Duration = Duration::from_millis(20);
/// How long a restart request waits for the restart to finish; the restart continues in any case.
const RESTART_LIMIT: Duration = Duration::from_secs(20);

/// The namespace of the control plane.
const CONTROL_NAMESPACE: &str = "istio-system";
/// The name of its folder among those of Pods, which no Pod can have.
const CONTROL_PLANE: &str = "control.plane.";

/// How often tokens are checked.
const RENEWAL_PERIOD: Duration = Duration::from_secs(1);

/// The label with the hash of a Pod's template, as in Kubernetes.
const TEMPLATE_HASH_LABEL: &str = "pod-template-hash";

/// Mesh settings used if the directory has none: like Istio's demo profile, with access logs.
const MESH_CONFIG: &str = "\
# Written by `evenkeel up`, because the directory has no ConfigMap `istio` in the namespace `istio-system`.
apiVersion: v1
kind: ConfigMap
metadata:
  name: istio
  namespace: istio-system
data:
  mesh: |
    accessLogFile: /dev/stdout
";

/// Why the mesh could not be started.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// A container could not be made.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The network could not be set up.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] crate::tools::ToolError),
    /// The kernel refused an operation.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A token could not be made or written.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The control plane did not come up.
    #[error("the control plane does not serve ({reason}); its log: {log}")]
    ControlPlane {
        /// The last answer or error.
        reason: String,
        /// The path of its log.
        log: String,
    },
    /// No address is left.
    #[error("all {MAX_PODS} pod addresses of this run are used up; restart `evenkeel up`")]
    AddressesUsedUp,
    /// A volume could not be written.
    #[error("cannot write the volume `{volume}` of {pod}: {source}")]
    Volume {
        /// Its name.
        volume: String,
        /// The replica.
        pod: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another I/O error.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// A replica that is being taken out.
struct RetiringReplica {
    workload: String,
    replica: Weak<Replica>,
}

/// The running mesh.
pub struct Mesh {
    plan: Arc<Plan>,
    roster: Roster,
    tokens: Arc<Tokens>,
    accounts: Accounts,
    control: Option<Process>,
    egress: Option<Process>,
    replicas: watch::Sender<Replicas>,
    /// The workloads that should run, by namespace and name.
    wanted: BTreeMap<(String, String), Arc<Workload>>,
    view: RosterView,
    /// Replicas that are being taken out, by namespace and name. Their names are free only when they have ended.
    leaving: JoinSet<(String, String)>,
    leaving_now: BTreeMap<(String, String), RetiringReplica>,
    /// Workloads, by namespace and name, of which a replica could not be started; it is retried after the next edit.
    stalled: BTreeSet<(String, String)>,
    /// Whether a rollout is in progress.
    rolling: bool,
    next_index: u32,
    /// The manifest that runs or is being started.
    manifest: Manifest,
    /// How often workloads, as (namespace, name), have been restarted on request.
    restarts: BTreeMap<(String, String), u32>,
    gateway_ports: GatewayPorts,
    /// The replicas to which Services' addresses lead.
    behind: watch::Receiver<Behind>,
}

impl Mesh {
    /// Creates a mesh in which nothing is started yet.
    pub(crate) fn new(
        plan: Arc<Plan>,
        roster: Roster,
        accounts: Accounts,
        behind: watch::Receiver<Behind>,
    ) -> Result<Self, MeshError> {
        settle_mesh_config(&plan.state, plan.manifest.has_mesh_config)?;
        let tokens = Tokens::begin(&plan.state.control())?;
        let gateway_ports = GatewayPorts::new(plan.clone())
            .map_err(|source| MeshError::Io { what: "cannot open ports later", source })?;
        Ok(Self {
            view: roster.subscribe(),
            plan,
            roster,
            tokens: Arc::new(tokens),
            accounts,
            control: None,
            egress: None,
            replicas: watch::Sender::new(Replicas::default()),
            wanted: BTreeMap::new(),
            leaving: JoinSet::new(),
            leaving_now: BTreeMap::new(),
            stalled: BTreeSet::new(),
            rolling: false,
            next_index: 0,
            manifest: Manifest::default(),
            restarts: BTreeMap::new(),
            gateway_ports,
            behind,
        })
    }

    /// A subscription to the list of replicas.
    pub fn replicas(&self) -> watch::Receiver<Replicas> {
        self.replicas.subscribe()
    }

    /// The manifest that runs or is being started.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The status of the replicas.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Starts the control plane, then the gateway and all replicas at once.
    pub async fn start(&mut self, events: &Events) -> Result<(), MeshError> {
        let spec = self.accounts.of_egress();
        let egress = Process::start(beside(programs::egress(&self.plan), spec).await?);
        tokio::spawn(tell_crashes(egress.state(), events.clone(), "the name server and egress", "its log: egress.log"));
        self.egress = Some(egress);
        let state = &self.plan.state;
        let mut own = vec![state.control(), state.runtime(), self.plan.directory.clone()];
        own.extend(self.plan.authority());
        // It fetches keys of issuers, which may be workloads.
        let search = search_list(CONTROL_NAMESPACE, CLUSTER_DOMAIN);
        let names = write_resolver(&state.mounts(CONTROL_PLANE), OWN_NAME_SERVER, &search, "")?;
        let spec = self.accounts.of_control_plane(own, names);
        let control = Process::start(beside(programs::control_plane(&self.plan), spec).await?);
        let state = control.state();
        self.control = Some(control);
        self.control_serves(state.clone()).await?;
        tokio::spawn(tell_crashes(state, events.clone(), "the control plane", "proxies go on with what they have"));
        let plan = self.plan.clone();
        self.follow(&plan.manifest).await?;
        // Ports of UDP are opened now; the others are open since before this process has left the machine's network.
        for line in self.gateway_ports.follow(&plan.manifest.gateway_ports, &self.replicas.subscribe()).await {
            if line.starts_with("error: ") {
                events.say(line);
            }
        }
        let unwritten = |source| MeshError::Io { what: "cannot write down the gateways' ports", source };
        self.gateway_ports.record().map_err(unwritten)?;
        events.footer(self.footer());
        Ok(())
    }

    async fn control_serves(&self, mut state: watch::Receiver<State>) -> Result<(), MeshError> {
        let log = self.plan.state.logs().join("control-plane.log").display().to_string();
        let mut seen = String::new();
        let ready = async {
            loop {
                if let Phase::Crashed(reason) = &state.borrow_and_update().phase {
                    return Err(reason.clone());
                }
                let call = Call::get("localhost", "/ready");
                match call.send(None, CONTROL_DEBUG).await {
                    Ok(answer) if answer.status.is_success() => return Ok(()),
                    Ok(answer) => seen = answer.to_string(),
                    Err(error) => seen = error.to_string(),
                }
                tokio::time::sleep(CONTROL_PERIOD).await;
            }
        };
        match tokio::time::timeout(CONTROL_TIMEOUT, ready).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(MeshError::ControlPlane { reason, log }),
            Err(_) => Err(MeshError::ControlPlane { reason: seen, log }),
        }
    }

    /// The text below the table: how to reach the gateway, and where to find more.
    fn footer(&self) -> String {
        let mut lines = vec![format!("the mesh in a browser: {}", self.plan.dashboard.url())];
        lines.extend(self.gateway_ports.lines());
        let state = self.plan.state.path();
        let flag =
            if state == StateDir::default_path() { String::new() } else { format!(" --state {}", state.display()) };
        if let Some(first) = self.plan.manifest.workloads.iter().find(|workload| workload.command.is_some()) {
            lines.push(format!("a shell inside: evenkeel exec {}{flag}", first.name));
        }
        lines.push(format!("how soon changes reach the proxies: {}", self.plan.host_pages.url()));
        lines.push(format!("metrics, for Prometheus' HTTP service discovery: {}", self.plan.metrics_pages.url()));
        lines.extend(self.plan.prometheus.iter().map(|url| format!("Prometheus: {url}")));
        lines.push(format!("logs: {}", self.plan.state.logs().display()));
        lines.push("Ctrl-C stops everything and removes it".to_owned());
        lines.join("\n")
    }

    /// Sets the manifest to run. New replicas start at once, as far as the surge limit allows; [`Mesh::step`] does the
    /// rest.
    pub async fn follow(&mut self, manifest: &Manifest) -> Result<(), MeshError> {
        settle_mesh_config(&self.plan.state, manifest.has_mesh_config)?;
        self.manifest = manifest.clone();
        let mut workloads = manifest.workloads.clone();
        // Gateways of Istio's installation stay when the last Gateway has gone, as in a cluster.
        let stays = |present: &&Arc<Workload>| {
            present.is_of_installation() && workloads.iter().all(|workload| workload.key() != present.key())
        };
        let staying: Vec<Workload> = self.wanted.values().filter(stays).map(|present| (**present).clone()).collect();
        workloads.extend(staying);
        for workload in &mut workloads {
            if let Some(times) = self.restarts.get(&workload.key()) {
                workload.renew(*times);
            }
        }
        let updated = self.update_volumes(&workloads);
        self.wanted = workloads.into_iter().map(|workload| (workload.key(), Arc::new(workload))).collect();
        self.stalled.clear();
        let stepped = self.step().await;
        updated.and(stepped)
    }

    /// Sets the ports of Gateways.
    pub async fn follow_ports(&mut self, wanted: &[GatewayPort], events: &Events) {
        let said = self.gateway_ports.follow(wanted, &self.replicas.subscribe()).await;
        if !said.is_empty() {
            events.say(said.join("\n"));
            events.table_footer(self.footer());
        }
    }

    /// Completes when there may be something for [`Mesh::step`] to do. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        tokio::select! {
            changed = self.view.changed() => if changed.is_err() {
                std::future::pending().await
            },
            Some(left) = self.leaving.join_next() => match left {
                Ok(key) => { self.leaving_now.remove(&key); }
                Err(_) => self.leaving_now.retain(|_, leaving| leaving.replica.strong_count() > 0),
            },
        }
    }

    /// Brings each workload as close to its wanted state as is allowed now; see [`rollout`].
    pub async fn step(&mut self) -> Result<(), MeshError> {
        let states = self.view.borrow_and_update().clone();
        let present = self.replicas.borrow().clone();
        let theirs = present.values().map(|replica| (replica.pod.namespace.clone(), replica.pod.workload.clone()));
        let workloads: BTreeSet<_> = self.wanted.keys().cloned().chain(theirs).collect();
        let (mut fresh, mut obsolete, mut rolling) = (Vec::new(), Vec::new(), false);
        for key in workloads {
            let workload = self.wanted.get(&key).cloned();
            let names: Vec<String> = workload.iter().flat_map(|workload| workload.pod_names()).collect();
            let of_it = present.keys().filter(|pod| is_of(&present, pod, &key));
            let seen = |pod: &(String, String)| states.get(pod).is_some_and(|status| status.ready);
            let here: Vec<CurrentReplica<'_>> = of_it
                .map(|pod| CurrentReplica {
                    name: &pod.1,
                    ready: seen(pod),
                    current: workload.as_ref().is_some_and(|workload| is_made_of(&present, pod, workload)),
                })
                .collect();
            let leave = self.leaving_now.iter().filter(|(pod, leaving)| pod.0 == key.0 && leaving.workload == key.1);
            let leaving: BTreeSet<&str> = leave.map(|(pod, _)| pod.1.as_str()).collect();
            let next = next_of(workload.as_deref(), &names, &here, &leaving);
            obsolete.extend(next.retire.iter().map(|name| (key.0.clone(), (*name).to_owned())));
            let start = next.start.iter().map(|name| (*name).to_owned());
            fresh.extend(workload.iter().flat_map(|workload| start.clone().map(|name| (workload.clone(), name))));
            rolling |= here.len() != names.len() || here.iter().any(|replica| !names.iter().any(|n| n == replica.name));
            rolling |= here.iter().any(|replica| !replica.current);
        }
        self.rolling = rolling;
        self.retire(&obsolete);
        fresh.retain(|(workload, _)| !self.stalled.contains(&workload.key()));
        self.start_fresh(fresh).await
    }

    /// Waits until all rollouts are done, with a time limit, because a new replica may never become ready.
    async fn settle(&mut self) -> Result<(), MeshError> {
        let settled = async {
            while self.rolling || !self.leaving.is_empty() {
                self.changed().await;
                self.step().await?;
            }
            Ok(())
        };
        tokio::time::timeout(RESTART_LIMIT, settled).await.unwrap_or(Ok(()))
    }

    async fn start_fresh(&mut self, fresh: Vec<(Arc<Workload>, String)>) -> Result<(), MeshError> {
        let (mut specs, mut failures) = (Vec::new(), Vec::new());
        for (workload, name) in fresh {
            match self.specify(&workload, &name) {
                Ok(spec) => specs.push(((workload.namespace.clone(), name), spec)),
                Err(error) => failures.push((workload.key(), error)),
            }
        }
        failures.extend(self.start_all(specs).await);
        self.stalled.extend(failures.iter().map(|(workload, _)| workload.clone()));
        first_of(failures)
    }

    /// Begins to take replicas out, which takes some time.
    fn retire(&mut self, obsolete: &[(String, String)]) {
        for key in obsolete {
            let replica = self.replicas.borrow().get(key).cloned();
            self.replicas.send_modify(|replicas| {
                Arc::make_mut(replicas).remove(key);
            });
            if let Some(replica) = replica {
                let leaving =
                    RetiringReplica { workload: replica.pod.workload.clone(), replica: Arc::downgrade(&replica) };
                self.leaving_now.insert(key.clone(), leaving);
                let key = key.clone();
                self.leaving.spawn(async move {
                    replica.stop(Retirement::Graceful).await;
                    key
                });
            }
        }
    }

    /// Updates the volumes of replicas that stay.
    ///
    /// # Errors
    /// The first; the other replicas' volumes have been updated.
    fn update_volumes(&self, workloads: &[Workload]) -> Result<(), MeshError> {
        let present = self.replicas.borrow().clone();
        let mut failures = Vec::new();
        for workload in workloads {
            for name in workload.pod_names() {
                let key = (workload.namespace.clone(), name);
                if is_made_of(&present, &key, workload)
                    && let Err(error) = write_volumes(workload, &key.1, &volumes_in(&self.plan.state.mounts(&key.1)))
                {
                    failures.push((workload.key(), error));
                }
            }
        }
        first_of(failures)
    }

    /// Replaces the replicas of workloads, as (namespace, name), by new ones.
    pub async fn restart(&mut self, workloads: &BTreeSet<(String, String)>) -> Result<(), MeshError> {
        workloads.iter().for_each(|key| *self.restarts.entry(key.clone()).or_default() += 1);
        let manifest = self.manifest.clone();
        self.follow(&manifest).await?;
        self.settle().await
    }

    /// Sets up all networks concurrently, because most of the time goes to waiting for `ip` and `nft`. Returns what
    /// could not be started, each with its workload's namespace and name.
    async fn start_all(&mut self, specs: Vec<((String, String), ReplicaSpec)>) -> Vec<((String, String), MeshError)> {
        let starts = specs.into_iter().map(|(key, spec)| {
            let (tools, roster) = (self.plan.tools.clone(), self.roster.clone());
            let workload = (key.0.clone(), spec.pod.workload.clone());
            async move { (key, workload, Replica::start(spec, &tools, roster).await) }
        });
        let mut failures = Vec::new();
        for (key, workload, started) in join_all(starts).await {
            match started {
                Ok(replica) => {
                    let replica = Arc::new(replica);
                    self.replicas.send_modify(|replicas| {
                        Arc::make_mut(replicas).insert(key, replica);
                    });
                }
                Err(error) => failures.push((workload, error.into())),
            }
        }
        failures
    }

    fn next_address(&mut self) -> Result<(Ipv4Addr, String), MeshError> {
        let address = pod_address(self.next_index).ok_or(MeshError::AddressesUsedUp)?;
        let link = format!("ek{}", self.next_index + 1);
        self.next_index += 1;
        Ok((address, link))
    }

    fn specify(&mut self, workload: &Workload, name: &str) -> Result<ReplicaSpec, MeshError> {
        let (address, link) = self.next_address()?;
        // The previous replica of a StatefulSet leaves files that belong to another user.
        remove_folder(&self.plan.state.pod(name))?;
        remove_folder(&self.plan.state.mounts(name))?;
        let (in_mesh, is_gateway) = (workload.sidecar != Sidecar::None, workload.sidecar == Sidecar::Gateway);
        let mut labels = workload.labels.clone();
        labels.insert(TEMPLATE_HASH_LABEL.to_owned(), workload.template_hash.clone());
        let pod = Arc::new(Pod {
            name: name.to_owned(),
            namespace: workload.namespace.clone(),
            workload: workload.name.clone(),
            labels,
            service_account: workload.service_account.clone(),
            address,
            ports: workload.ports.clone(),
            in_mesh,
            is_gateway,
            proxy: workload.proxy.clone(),
        });
        let network = self.network(&pod, link, capture::of_workload(workload, BRIDGE_ADDRESS));
        write_volumes(workload, name, &network.volumes())?;
        let executable = if let Sidecar::Envoy(path) = &workload.sidecar { Some(path.as_path()) } else { None };
        let command = workload.command.as_ref();
        let directory = command.and_then(|command| command.directory.as_deref());
        let mut applicant = self.accounts.of_application(&pod, directory).map_err(ContainerError::from)?;
        applicant.container.view.add_volumes(network.volumes(), &workload.volumes, &workload.mounts);
        let named = command.map(|command| hidden_files::executables(&command.run));
        applicant.container.view.shown.iter_mut().for_each(|shown| shown.extend(named.iter().flatten().cloned()));
        let folder = self.plan.state.pod(&pod.name);
        let beside = self.accounts.of_proxy(&folder, executable).map_err(ContainerError::from)?;
        let credentials = Credentials::new(folder, &pod, beside.privileges.account);
        if in_mesh {
            self.tokens.give(&credentials, SystemTime::now())?;
        }
        let mut program =
            command.map(|command| programs::application(&self.plan, (workload, command), &pod, &applicant));
        let volumes = workload.volumes.iter();
        let variables =
            volumes.map(|volume| (volume.variable(), volume.place(&network.volumes()).display().to_string()));
        program.iter_mut().for_each(|program| program.environment.extend(variables.clone()));
        let mut proxy = programs::proxy(&self.plan, &pod, &workload.sidecar, &credentials);
        // Beside its own addresses a gateway serves the machine's.
        let of_it = self.plan.host_ports.iter().filter(|port| port.gateway.owner == workload.key());
        let sockets = of_it.map(|port| (format!("+{}", port.gateway.listener), port.descriptor()));
        proxy.iter_mut().for_each(|proxy| proxy.listeners.extend(sockets.clone()));
        Ok(ReplicaSpec {
            network,
            proxy,
            program,
            after: workload.before(name).map(|before| (workload.namespace.clone(), before)),
            containers: Containers { program: applicant.container, proxy: beside },
            probe: workload.probe.clone(),
            drain_time: pod.proxy.drain.unwrap_or(self.plan.options.drain_time),
            lifecycle: workload.lifecycle.clone(),
            proxy_grace: self.proxy_grace(&pod),
            behind: self.behind.clone(),
            pod,
        })
    }

    /// The proxy ends by itself when it has drained; this limit is for one that does not.
    fn proxy_grace(&self, pod: &Pod) -> Duration {
        pod.proxy.drain.unwrap_or(self.plan.options.drain_time) + TERMINATION_GRACE
    }

    fn network(&self, pod: &Pod, link: String, capture: Option<Capture>) -> PodNetwork {
        PodNetwork {
            address: pod.address,
            host_name: pod.name.clone(),
            search: search_list(&pod.namespace, CLUSTER_DOMAIN),
            capture,
            folder: self.plan.state.mounts(&pod.name),
            link,
            egress: EgressAccess { plain: !pod.in_mesh, open: self.plan.options.egress },
        }
    }

    /// Replaces tokens long before they expire, until dropped. It runs concurrently with the mesh's other work, which
    /// may take long.
    pub fn renew_tokens(&self) -> impl Future<Output = ()> + use<> {
        let (plan, tokens, replicas) = (self.plan.clone(), self.tokens.clone(), self.replicas.subscribe());
        async move {
            // Check at intervals rather than when they are due, because the clock may jump.
            let mut looks = tokio::time::interval(RENEWAL_PERIOD);
            loop {
                looks.tick().await;
                let (now, replicas) = (SystemTime::now(), replicas.borrow().clone());
                for replica in replicas.values().filter(|replica| replica.pod.in_mesh) {
                    let account = replica.containers.proxy.privileges.account;
                    let credentials = Credentials::new(plan.state.pod(&replica.pod.name), &replica.pod, account);
                    if let Err(error) = tokens.renew(&credentials, now) {
                        tracing::warn!(pod = %replica.pod.name, %error, "a token could not be renewed");
                    }
                }
            }
        }
    }

    /// Stops everything in order: the gateway drains, then the replicas end, then the control plane.
    pub async fn stop(&mut self) {
        let replicas = self.replicas.borrow().clone();
        let (gateways, others): (Vec<_>, Vec<_>) = replicas.values().partition(|replica| replica.pod.is_gateway);
        let leaving: Vec<Arc<Replica>> =
            self.leaving_now.values().filter_map(|leaving| leaving.replica.upgrade()).collect();
        let others: Vec<&Arc<Replica>> = others.into_iter().chain(&leaving).collect();
        for group in [gateways, others] {
            join_all(group.iter().map(|replica| replica.stop(Retirement::Now))).await;
        }
        for last in [&mut self.control, &mut self.egress].into_iter().flatten() {
            last.stop(TERMINATION_GRACE).await;
        }
    }
}

/// Writes the mesh settings, unless the directory has its own, with which they would conflict.
fn settle_mesh_config(state: &StateDir, has_mesh_config: bool) -> Result<(), MeshError> {
    let file = state.runtime().join("mesh.yaml");
    let settled = match has_mesh_config {
        false if file.exists() => Ok(()),
        false => write_atomically(&file, MESH_CONFIG.as_bytes(), Readers::All),
        true => match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    };
    settled.map_err(|source| MeshError::Io { what: "cannot write the mesh's settings", source })
}

/// Whether a Pod belongs to a workload.
fn is_of(replicas: &Replicas, pod: &(String, String), workload: &(String, String)) -> bool {
    pod.0 == workload.0 && replicas.get(pod).is_some_and(|replica| replica.pod.workload == workload.1)
}

/// Whether a Pod exists and has a workload's present template.
fn is_made_of(replicas: &Replicas, pod: &(String, String), workload: &Workload) -> bool {
    let hash = replicas.get(pod).and_then(|replica| replica.pod.labels.get(TEMPLATE_HASH_LABEL));
    hash == Some(&workload.template_hash)
}

/// The next step for a workload that should have replicas of these names; none means that it should not run any more.
fn next_of<'a>(
    workload: Option<&Workload>,
    names: &'a [String],
    here: &[CurrentReplica<'a>],
    leaving: &BTreeSet<&str>,
) -> Step<'a> {
    let wanted = names.iter().map(String::as_str);
    match workload.map(|workload| workload.kind) {
        Some(WorkloadKind::StatefulSet { ordered }) => {
            rollout::next_of_set(&wanted.collect::<Vec<_>>(), here, leaving, ordered)
        }
        Some(WorkloadKind::ProvidedGateway) => rollout::next_of_set(&wanted.collect::<Vec<_>>(), here, leaving, true),
        _ => {
            let mut next = rollout::next(&wanted.collect(), here);
            // After an edit was undone, the name may not be free yet.
            next.start.retain(|name| !leaving.contains(name));
            next
        }
    }
}

/// Starts a component of the mesh itself, in a separate container in the mesh's network.
async fn beside(mut program: Program, spec: ContainerSpec) -> Result<Program, MeshError> {
    let made = tokio::task::spawn_blocking(move || {
        let here = Namespace::of_this_thread()?;
        Container::create(Arc::new(here), spec)
    });
    let ended = |_| Err(io::Error::other("the thread that makes containers ended").into());
    program.container = Some(Arc::new(made.await.unwrap_or_else(ended)?));
    Ok(program)
}

fn remove_folder(folder: &Path) -> Result<(), MeshError> {
    match std::fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(MeshError::Io { what: "cannot remove the files of an earlier replica", source })
        }
        _ => Ok(()),
    }
}

fn write_volumes(workload: &Workload, pod: &str, folder: &Path) -> Result<(), MeshError> {
    let failed =
        |volume: &Directory, source| MeshError::Volume { volume: volume.name.clone(), pod: pod.to_owned(), source };
    workload.volumes.iter().try_for_each(|volume| volume.write(folder).map_err(|source| failed(volume, source)))
}

/// The first of several failures, which concern different workloads; the log has the others.
fn first_of(failures: Vec<((String, String), MeshError)>) -> Result<(), MeshError> {
    let mut failures = failures.into_iter();
    let Some((_, first)) = failures.next() else { return Ok(()) };
    for ((namespace, workload), error) in failures {
        tracing::warn!(namespace, workload, %error, "a workload could not be brought in line with its manifest");
    }
    Err(first)
}

/// Reports when a component of the mesh itself ends, what that means, and when it is back. The table shows the ends of
/// replicas.
async fn tell_crashes(mut state: watch::Receiver<State>, events: Events, what: &'static str, meaning: &'static str) {
    let mut down = false;
    while state.changed().await.is_ok() {
        let phase = state.borrow_and_update().phase.clone();
        match phase {
            Phase::Crashed(reason) => {
                down = true;
                events.say(format!("{what} {reason}; {meaning}; it is restarted"));
            }
            Phase::Running(_) if std::mem::take(&mut down) => events.say(format!("{what} runs again")),
            Phase::Running(_) | Phase::Starting | Phase::Stopped => {}
        }
    }
}
