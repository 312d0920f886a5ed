//! Where the dashboard's data comes from.

use std::net::IpAddr;
use std::pin::Pin;

use bytes::Bytes;

/// A page of a program, or why there is none.
pub type FetchedPage<'a> = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send + 'a>>;

/// A mesh, as the dashboard reads it.
pub trait Source: Send + Sync + 'static {
    /// The replicas that there are now.
    fn replicas(&self) -> Vec<ReplicaStatus>;

    /// Fetches a page from the admin port of a replica's proxy, within a time limit.
    fn proxy_page<'a>(&'a self, replica: &'a ReplicaKey, path: &'a str) -> FetchedPage<'a>;

    /// Fetches a page from the control plane's HTTP port, within a time limit.
    fn control_page<'a>(&'a self, path: &'a str) -> FetchedPage<'a>;
}

/// Identifies a replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaKey {
    /// Its namespace.
    pub namespace: String,
    /// Its Pod.
    pub pod: String,
}

impl std::fmt::Display for ReplicaKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.pod, self.namespace)
    }
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its namespace and Pod.
    pub key: ReplicaKey,
    /// Its workload.
    pub workload: String,
    /// The label `app`, or `app.kubernetes.io/name`.
    pub app: String,
    /// The label `version`.
    pub version: String,
    /// Its address.
    pub address: IpAddr,
    /// Its proxy.
    pub proxy: ProxyRole,
    /// Whether it receives requests.
    pub ready: bool,
    /// Why not.
    pub detail: String,
    /// How often its program was restarted.
    pub restarts: u32,
}

/// The proxy of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyRole {
    /// None: nothing reports its traffic but the other side.
    None,
    /// Beside the program.
    Sidecar,
    /// Alone.
    Gateway,
}
