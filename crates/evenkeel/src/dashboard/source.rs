//! The mesh of a cluster, as the dashboard reads it: Pods by the API server, pages by port-forwards that stay open.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_admin::client::{Address, ClientError, Connection, is_page};
use evenkeel_dashboard::source::{FetchedPage, ProxyRole, ReplicaKey, ReplicaStatus, Source};
use tokio::sync::Mutex as AsyncMutex;

use crate::in_cluster::{self, ClusterMesh, ControlPlaneChoice, ControlPlaneName, MeshPod};

/// Maximum number of Pods that are shown: each has a port-forward.
const MAX_PODS: usize = 200;
/// How often Pods are listed.
const PERIOD: Duration = Duration::from_secs(5);
/// How long a page may take; the first one includes the port-forward.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a page, in bytes.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// A connection that stays open, and to where.
struct Line {
    address: Address,
    connection: AsyncMutex<Option<Connection>>,
}

/// The mesh of a cluster.
pub(super) struct ClusterSource {
    mesh: ClusterMesh,
    control_plane: ControlPlaneName,
    pods: Mutex<Vec<MeshPod>>,
    /// The connections to proxies; that to the control plane has no key.
    lines: Mutex<BTreeMap<Option<ReplicaKey>, Arc<Line>>>,
}

impl ClusterSource {
    /// Lists the Pods, and goes on doing so as long as the process runs.
    pub(super) fn start(in_cluster: &ControlPlaneChoice, namespace: Option<&str>) -> anyhow::Result<Arc<Self>> {
        let mesh = ClusterMesh::connect(&in_cluster.cluster)?;
        let pods = Mutex::new(limited(mesh.with_proxies(namespace)?));
        let control_plane = in_cluster.name.clone();
        let source = Arc::new(Self { mesh, control_plane, pods, lines: Mutex::default() });
        let (refreshed, namespace) = (source.clone(), namespace.map(str::to_owned));
        in_cluster::runtime()?.spawn(async move {
            loop {
                tokio::time::sleep(PERIOD).await;
                // While the API server cannot be read, what it has said last is shown.
                if let Ok(pods) = refreshed.mesh.list_with_proxies(namespace.as_deref()).await {
                    refreshed.replace(limited(pods));
                }
            }
        });
        Ok(source)
    }

    fn replace(&self, pods: Vec<MeshPod>) {
        let is_there = |key: &ReplicaKey| pods.iter().any(|pod| pod.name == key.pod && pod.namespace == key.namespace);
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|key, _| key.as_ref().is_none_or(is_there));
        drop(lines);
        *self.pods.lock().unwrap_or_else(PoisonError::into_inner) = pods;
    }

    /// The connection to a proxy, or to the control plane.
    async fn line(&self, key: Option<&ReplicaKey>) -> anyhow::Result<Arc<Line>> {
        let known = self.lines.lock().unwrap_or_else(PoisonError::into_inner).get(&key.cloned()).cloned();
        if let Some(line) = known {
            return Ok(line);
        }
        let address = match key {
            Some(key) => self.mesh.proxy(&key.namespace, &key.pod)?,
            None => self.mesh.find_control_plane(&self.control_plane).await?,
        };
        let line = Arc::new(Line { address, connection: AsyncMutex::new(None) });
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).insert(key.cloned(), line.clone());
        Ok(line)
    }

    async fn fetch(&self, key: Option<&ReplicaKey>, path: &str) -> Result<Bytes, String> {
        let line = self.line(key).await.map_err(|error| format!("{error:#}"))?;
        let fetched = tokio::time::timeout(PAGE_TIMEOUT, line.page(path)).await;
        match fetched.unwrap_or(Err(ClientError::TimedOut(PAGE_TIMEOUT))) {
            Ok(response) if is_page(&response) => Ok(response.into_body()),
            Ok(response) => Err(format!("it answers {}", response.status().as_u16())),
            Err(error) => {
                // Another replica may have taken over.
                if key.is_none() {
                    self.lines.lock().unwrap_or_else(PoisonError::into_inner).remove(&None);
                }
                Err(error.to_string())
            }
        }
    }
}

impl Line {
    /// Fetches a page by the open connection, or by a new one.
    async fn page(&self, path: &str) -> Result<http::Response<Bytes>, ClientError> {
        let mut held = self.connection.lock().await;
        if let Some(mut connection) = held.take()
            && let Ok(response) = connection.page(path, MAX_PAGE_BYTES).await
        {
            *held = Some(connection);
            return Ok(response);
        }
        let mut connection = Connection::to(&self.address).await?;
        let response = connection.page(path, MAX_PAGE_BYTES).await?;
        *held = Some(connection);
        Ok(response)
    }
}

fn limited(mut pods: Vec<MeshPod>) -> Vec<MeshPod> {
    pods.truncate(MAX_PODS);
    pods
}

impl Source for ClusterSource {
    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).iter().map(status).collect()
    }

    fn proxy_page<'a>(&'a self, replica: &'a ReplicaKey, path: &'a str) -> FetchedPage<'a> {
        Box::pin(self.fetch(Some(replica), path))
    }

    fn control_page<'a>(&'a self, path: &'a str) -> FetchedPage<'a> {
        Box::pin(self.fetch(None, path))
    }
}

fn status(pod: &MeshPod) -> ReplicaStatus {
    let label = |names: [&str; 2]| names.iter().find_map(|name| pod.labels.get(*name)).cloned().unwrap_or_default();
    ReplicaStatus {
        key: ReplicaKey { namespace: pod.namespace.clone(), pod: pod.name.clone() },
        workload: pod.workload.clone(),
        app: label(["app", "app.kubernetes.io/name"]),
        version: label(["version", "app.kubernetes.io/version"]),
        address: pod.address.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        proxy: if pod.is_gateway { ProxyRole::Gateway } else { ProxyRole::Sidecar },
        ready: pod.ready,
        detail: String::new(),
        restarts: pod.restarts,
    }
}
