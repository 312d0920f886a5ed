//! Keys of the graph: its nodes, and who calls whom.

use std::collections::HashMap;
use std::net::IpAddr;

use evenkeel_admin::dashboard::NodeKind;

use crate::source::{ProxyRole, ReplicaStatus};

/// A node of the graph.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum NodeKey {
    /// A workload or gateway.
    Workload {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A Service no endpoint of which got the request.
    Service(String),
    /// A host outside the mesh.
    External(String),
    /// Clients outside the mesh.
    Outside,
    /// Requests that no route matched.
    Unrouted,
}

impl NodeKey {
    /// The node of a replica.
    pub(crate) fn of(replica: &ReplicaStatus) -> Self {
        Self::Workload { namespace: replica.key.namespace.clone(), name: replica.workload.clone() }
    }

    /// The kind of a node that is no workload.
    pub(crate) fn kind(&self) -> NodeKind {
        match self {
            Self::Workload { .. } => NodeKind::Workload,
            Self::Service(_) => NodeKind::Service,
            Self::External(_) => NodeKind::External,
            Self::Outside => NodeKind::Outside,
            Self::Unrouted => NodeKind::Unrouted,
        }
    }

    /// Its name for people.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Workload { name, .. } => name,
            Self::Service(host) => host.split('.').next().unwrap_or(host),
            Self::External(host) => host,
            Self::Outside => "outside",
            Self::Unrouted => "no route",
        }
    }

    /// Its namespace, if it has one.
    pub(crate) fn namespace(&self) -> &str {
        match self {
            Self::Workload { namespace, .. } => namespace,
            // NAME.NAMESPACE.svc.…
            Self::Service(host) => host.split('.').nth(1).unwrap_or_default(),
            Self::External(_) | Self::Outside | Self::Unrouted => "",
        }
    }
}

/// The key in JSON: `NAMESPACE/WORKLOAD`, `service:HOST`, `external:HOST`, `outside`, `unrouted`.
impl std::fmt::Display for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workload { namespace, name } => write!(f, "{namespace}/{name}"),
            Self::Service(host) => write!(f, "service:{host}"),
            Self::External(host) => write!(f, "external:{host}"),
            Self::Outside => f.write_str("outside"),
            Self::Unrouted => f.write_str("unrouted"),
        }
    }
}

/// Who calls whom, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EdgeKey {
    /// The client.
    pub(crate) from: NodeKey,
    /// The server.
    pub(crate) to: NodeKey,
    /// The host that was called; empty if only the server reports the call.
    pub(crate) service: String,
    /// `http`, `grpc` or `tcp`.
    pub(crate) protocol: String,
}

impl std::fmt::Display for EdgeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}>{}>{}>{}", self.from, self.to, self.service, self.protocol)
    }
}

/// The replicas at a moment, by address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inventory {
    /// All of them.
    pub(crate) replicas: Vec<ReplicaStatus>,
    by_address: HashMap<IpAddr, usize>,
}

impl Inventory {
    pub(crate) fn new(replicas: Vec<ReplicaStatus>) -> Self {
        let by_address = replicas.iter().enumerate().map(|(at, replica)| (replica.address, at)).collect();
        Self { replicas, by_address }
    }

    /// The replica with this address.
    pub(crate) fn at(&self, address: &str) -> Option<&ReplicaStatus> {
        self.replicas.get(*self.by_address.get(&address.parse().ok()?)?)
    }

    /// The replicas of a node.
    pub(crate) fn of<'a>(&'a self, node: &'a NodeKey) -> impl Iterator<Item = &'a ReplicaStatus> {
        self.replicas.iter().filter(move |replica| match node {
            NodeKey::Workload { namespace, name } => *namespace == replica.key.namespace && *name == replica.workload,
            _ => false,
        })
    }

    /// What a node is.
    pub(crate) fn kind(&self, node: &NodeKey) -> NodeKind {
        match self.of(node).next().map(|replica| replica.proxy) {
            Some(ProxyRole::Gateway) => NodeKind::Gateway,
            Some(ProxyRole::None) => NodeKind::WithoutProxy,
            Some(ProxyRole::Sidecar) | None => node.kind(),
        }
    }
}
