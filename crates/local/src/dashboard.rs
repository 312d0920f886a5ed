//! The dashboard on the host's loopback. Its data comes from the proxies' admin ports, which are on the loopback of their own
//! networks, and from the control plane, which is in the mesh's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_admin::client::{ClientError, Connection};
use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_dashboard::source::{FetchedPage, ProxyRole, ReplicaKey, ReplicaStatus, Source};
use http::{Request, StatusCode, header};
use http_body_util::Full;
use tokio::sync::{oneshot, watch};

use crate::addresses::CONTROL_DEBUG;
use crate::client;
use crate::exec::ADMIN_VARIABLE;
use crate::namespace::Namespace;
use crate::pods::{PodStatus, RosterView};
use crate::replica::Replicas;

/// The usual port.
const USUAL_PORT: u16 = 15099;
/// The proxy's admin port, if nothing else says so.
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 15000);
/// How long a page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a page, in bytes.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// A socket of the host's network for the dashboard.
#[derive(Debug)]
pub struct DashboardPort {
    listener: TcpListener,
    /// Its address.
    pub address: SocketAddr,
}

impl DashboardPort {
    /// Opens the usual port, or a free one if something else has it.
    ///
    /// # Errors
    /// If no port of the loopback can be opened.
    pub fn open() -> io::Result<Self> {
        let listener = bind()?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// The URL for a browser.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Records the address, then serves the dashboard until aborted: on a thread of its own, so that reading many proxies delays
    /// nobody's probes.
    pub(crate) async fn serve(&self, record: &Path, mesh: MeshSource) -> io::Result<()> {
        write_atomically(record, self.address.to_string().as_bytes(), Readers::All)?;
        let listener = self.listener.try_clone()?;
        let (_stop, stopped) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        std::thread::Builder::new().name("dashboard".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let outcome = runtime.and_then(|runtime| {
                runtime.block_on(async {
                    tokio::select! {
                        outcome = evenkeel_dashboard::server::serve(listener, Arc::new(mesh)) => outcome,
                        _ = stopped => Ok(()),
                    }
                })
            });
            let _ = done.send(outcome);
        })?;
        ended.await.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

/// Opens the dashboard's usual port of the loopback, or a free one if something else has it.
///
/// # Errors
/// If no port of the loopback can be opened.
pub fn bind() -> io::Result<TcpListener> {
    let usual = TcpListener::bind((Ipv4Addr::LOCALHOST, USUAL_PORT));
    usual.or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
}

/// Returns the address of the dashboard of a run with this state directory; `None` if none runs.
pub fn of_run(state: &Path) -> Option<SocketAddr> {
    let state = crate::cleanup::StateDir::new(state).ok()?;
    state.running()?;
    std::fs::read_to_string(state.dashboard()).ok()?.parse().ok()
}

/// The running mesh, as the dashboard reads it.
#[derive(Debug)]
pub(crate) struct MeshSource {
    pub(crate) roster: RosterView,
    pub(crate) replicas: watch::Receiver<Replicas>,
}

impl Source for MeshSource {
    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.roster.borrow().values().map(status).collect()
    }

    fn proxy_page<'a>(&'a self, replica: &'a ReplicaKey, path: &'a str) -> FetchedPage<'a> {
        Box::pin(async move {
            let key = (replica.namespace.clone(), replica.pod.clone());
            let found = self.replicas.borrow().get(&key).cloned().ok_or("it is about to end")?;
            let variables = found.surroundings.proxy.0.iter();
            let admin = variables.filter(|(name, _)| name == ADMIN_VARIABLE).find_map(|(_, value)| value.parse().ok());
            fetch(Some(&found.namespace), admin.unwrap_or(ADMIN), path).await
        })
    }

    fn control_page<'a>(&'a self, path: &'a str) -> FetchedPage<'a> {
        Box::pin(fetch(None, CONTROL_DEBUG, path))
    }
}

/// Fetches a page from a port in a replica's network, or in the mesh's.
async fn fetch(namespace: Option<&Namespace>, address: SocketAddr, path: &str) -> Result<Bytes, String> {
    let request = Request::get(path).header(header::HOST, "localhost").body(Full::new(Bytes::new()));
    let exchange = async {
        let stream = client::connect(namespace, address).await?;
        Connection::open(stream).await?.send(request?, MAX_PAGE_BYTES).await
    };
    let timed_out = |_| Err(ClientError::TimedOut(PAGE_TIMEOUT));
    let response = tokio::time::timeout(PAGE_TIMEOUT, exchange).await.unwrap_or_else(timed_out);
    match response {
        Ok(response) if response.status() == StatusCode::OK => Ok(response.into_body()),
        Ok(response) => Err(format!("it answers {}", response.status().as_u16())),
        Err(error) => Err(error.to_string()),
    }
}

fn status(status: &PodStatus) -> ReplicaStatus {
    let pod = &status.pod;
    let label = |names: [&str; 2]| names.iter().find_map(|name| pod.labels.get(*name)).cloned().unwrap_or_default();
    ReplicaStatus {
        key: ReplicaKey { namespace: pod.namespace.clone(), pod: pod.name.clone() },
        workload: pod.workload.clone(),
        app: label(["app", "app.kubernetes.io/name"]),
        version: label(["version", "app.kubernetes.io/version"]),
        address: pod.address.into(),
        proxy: match (pod.in_mesh, pod.is_gateway) {
            (_, true) => ProxyRole::Gateway,
            (true, false) => ProxyRole::Sidecar,
            (false, false) => ProxyRole::None,
        },
        ready: status.ready,
        detail: status.detail.clone(),
        restarts: status.restarts,
    }
}
