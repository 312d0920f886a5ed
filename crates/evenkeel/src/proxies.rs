//! The running proxies of a mesh, as they are asked about calls: from inside their network namespaces, through a cluster's API server, or
//! by the address of an admin port.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, anyhow};
use evenkeel_explain::RunningProxies;
use evenkeel_explain::answer::ProxyName;
use evenkeel_filters::explain::query::{ProxyDecision, QueriedCall, RecentRequest, RecentRequests};
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::exec::{self, ReplicaInfo};
use evenkeel_local::reader;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::in_cluster::{self, ClusterMesh};
use crate::manifests::Manifests;
use crate::{admin, proxy_config};

/// Proxies asked at a time: each takes two processes.
const AT_A_TIME: usize = 8;

/// The running proxies.
#[derive(Debug, Clone)]
pub enum Proxies {
    /// The proxies of `evenkeel up`.
    OfMesh {
        /// This program.
        program: PathBuf,
        /// The state directory.
        state: PathBuf,
    },
    /// The proxies of a cluster's Pods.
    OfCluster(ClusterMesh),
    /// One, by its admin port.
    At(SocketAddr),
}

/// What the user says about which proxies are meant.
#[derive(Debug, Clone, Copy)]
pub struct ProxiesChoice<'a> {
    /// An admin port.
    pub admin: Option<SocketAddr>,
    /// The state directory of a running `up`.
    pub state: Option<&'a PathBuf>,
    /// The cluster.
    pub cluster: &'a ClusterOptions,
}

impl ProxiesChoice<'_> {
    /// The cluster, if its proxies are meant: it is named, or nothing else is named or runs on this machine.
    pub fn cluster_mesh(&self) -> anyhow::Result<Option<ClusterMesh>> {
        let Self { admin, state, cluster } = self;
        let is_usual = || state.is_none() && cluster.is_named() && !Manifests::is_running(None);
        let is_meant = admin.is_none() && (cluster.is_given() || is_usual());
        is_meant.then(|| ClusterMesh::connect(cluster)).transpose()
    }
}

/// A question to a proxy.
enum PendingAnswer {
    /// A process is asking it.
    Process(Child),
    /// A task is asking it.
    Task(JoinHandle<anyhow::Result<Vec<u8>>>),
    /// The proxy has answered.
    Answered(Vec<u8>),
}

impl PendingAnswer {
    /// Waits for the answer.
    fn answer(self) -> anyhow::Result<Vec<u8>> {
        let child = match self {
            Self::Answered(answer) => return Ok(answer),
            Self::Task(task) => return in_cluster::runtime()?.block_on(task).context("waiting for it")?,
            Self::Process(child) => child,
        };
        let output = child.wait_with_output().context("waiting for it")?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it ended");
        Err(anyhow!("{}", line.trim_start_matches("error: ")))
    }
}

/// The recent requests that the proxies of a mesh keep.
#[derive(Debug, Default)]
pub struct Collected {
    /// The requests, and the proxies that keep them.
    pub requests: Vec<(ProxyName, RecentRequest)>,
    /// The proxies that are missing, one line each.
    pub problems: Vec<String>,
    /// Number of proxies that have answered.
    pub proxies: usize,
}

impl Proxies {
    /// The proxy at an address; those of the cluster that flags name; those of the mesh with this state directory, or of the mesh that
    /// runs on this machine; or else those of the cluster that kubectl would use.
    pub fn find(choice: &ProxiesChoice<'_>) -> anyhow::Result<Self> {
        match (choice.admin, choice.cluster_mesh()?) {
            (Some(admin), _) => Ok(Self::At(admin)),
            (None, Some(mesh)) => Ok(Self::OfCluster(mesh)),
            (None, None) => Self::of_mesh(choice.state),
        }
    }

    /// Those of the mesh with this state directory.
    pub fn of_mesh(state: Option<&PathBuf>) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        Ok(Self::OfMesh { program, state: state.cloned().unwrap_or_else(StateDir::default_path) })
    }

    /// The replicas of a mesh; all of them, or those of a workload.
    pub fn replicas(&self, workload: &str, namespace: Option<&str>) -> anyhow::Result<Vec<ReplicaInfo>> {
        match self {
            Self::OfMesh { state, .. } => Ok(exec::list(state, workload, namespace)?),
            Self::OfCluster(mesh) => mesh.replicas(workload, namespace),
            Self::At(_) => Ok(Vec::new()),
        }
    }

    /// Begins to ask one proxy for a page. `body`: sent with POST.
    fn begin(&self, pod: &str, namespace: &str, (page, body): (&str, Option<&[u8]>)) -> anyhow::Result<PendingAnswer> {
        let (program, state) = match self {
            Self::OfMesh { program, state } => (program, state),
            Self::OfCluster(mesh) => {
                let (address, page) = (mesh.proxy(namespace, pod)?, page.to_owned());
                let body = body.map(<[u8]>::to_vec);
                // The exchange has a runtime of its own, as those of other commands.
                let asking = move || match &body {
                    Some(body) => admin::post_within(proxy_config::PATIENCE, admin::PROXY, address, (&page, body)),
                    None => admin::get_within(proxy_config::patience(&page), admin::PROXY, address, &page),
                };
                return Ok(PendingAnswer::Task(in_cluster::runtime()?.spawn_blocking(asking)));
            }
            Self::At(address) => {
                return Ok(PendingAnswer::Answered(match body {
                    Some(body) => admin::post_within(proxy_config::PATIENCE, admin::PROXY, *address, (page, body)),
                    None => admin::get_within(proxy_config::patience(page), admin::PROXY, *address, page),
                }?));
            }
        };
        let mut command = Command::new(program);
        command.args(["proxy-config", "page", page, pod, "--namespace", namespace, "--state"]).arg(state);
        command.args(body.map(|_| "--post"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("running {}", program.display()))?;
        if let (Some(mut input), Some(body)) = (child.stdin.take(), body) {
            // A process that ends early says why.
            let _ = reader::despite_closed_pipes(|| input.write_all(body));
        }
        Ok(PendingAnswer::Process(child))
    }

    /// The answer of one proxy. `body`: sent with POST.
    pub fn page(&self, replica: &ReplicaInfo, page: &str, body: Option<&[u8]>) -> anyhow::Result<Vec<u8>> {
        self.begin(&replica.pod, &replica.namespace, (page, body))?.answer()
    }

    /// Fetches a page from each of these proxies, parsed as `T`.
    pub fn pages<T: DeserializeOwned>(&self, replicas: &[ReplicaInfo], page: &str) -> Vec<anyhow::Result<T>> {
        let mut all = Vec::new();
        for batch in replicas.chunks(AT_A_TIME) {
            let begin = |replica: &ReplicaInfo| self.begin(&replica.pod, &replica.namespace, (page, None));
            let asked: Vec<anyhow::Result<PendingAnswer>> = batch.iter().map(begin).collect();
            all.extend(
                asked.into_iter().map(|asked| asked.and_then(PendingAnswer::answer).and_then(|page| parsed(&page))),
            );
        }
        all
    }

    /// Collects the recent requests of all proxies, or of a workload's. Without a mesh, `workload` names the proxy to ask.
    pub fn collect(&self, workload: &str, namespace: Option<&str>) -> anyhow::Result<Collected> {
        let replicas = match self {
            Self::OfMesh { .. } | Self::OfCluster(_) => self.replicas(workload, namespace)?,
            Self::At(_) => {
                let (pod, namespace) = (workload.to_owned(), namespace.unwrap_or("default").to_owned());
                vec![ReplicaInfo { namespace, workload: pod.clone(), pod, failing: Vec::new() }]
            }
        };
        let mut all = Collected::default();
        for (replica, answer) in replicas.iter().zip(self.pages(&replicas, "/requests")) {
            all.add(replica, answer);
        }
        Ok(all)
    }
}

impl Collected {
    fn add(&mut self, replica: &ReplicaInfo, answer: anyhow::Result<RecentRequests>) {
        let ReplicaInfo { namespace, workload, pod, .. } = replica;
        let name = format!("{pod}.{namespace}");
        let page = match answer {
            Ok(page) => page,
            Err(error) => return self.problems.push(format!("{name}: {error:#}")),
        };
        self.proxies += 1;
        if page.limit == 0 {
            self.problems.push(format!("{name} keeps no requests: it runs with --recent-requests 0"));
        }
        if page.silent_workers > 0 {
            self.problems.push(format!("{name}: {} workers do not answer", page.silent_workers));
        }
        let proxy = ProxyName { side: "", workload: workload.clone(), pod: pod.clone(), namespace: namespace.clone() };
        self.requests.extend(page.requests.into_iter().map(|request| (proxy.clone(), request)));
    }
}

impl RunningProxies for Proxies {
    fn decide(&self, proxy: &ProxyName, call: &QueriedCall) -> Result<ProxyDecision, String> {
        let ask = || -> anyhow::Result<ProxyDecision> {
            let body = serde_json::to_vec(call)?;
            parsed(&self.begin(&proxy.pod, &proxy.namespace, ("/explain", Some(&body)))?.answer()?)
        };
        ask().map_err(|error| format!("{error:#}"))
    }
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body).context("it is another version of Evenkeel's proxy, or another proxy")
}
