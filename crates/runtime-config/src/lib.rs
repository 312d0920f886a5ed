//! xDS resources compiled to what a connection or a request needs.
//!
//! The proxy's control thread hands resources to [`builder::Builder`]; each is checked against the table of supported
//! fields ([`support`]), compiled, and becomes part of the next immutable [`Config`]. Workers hold one `Arc<Config>` and
//! swap it whole: a connection pins its [`Listener`], a request pins its [`RouteTable`] and its [`Cluster`].
//!
//! Nothing here knows sockets, clocks or tokio, so the same code answers "what would happen to this call?" offline.

pub mod access_log;
pub mod access_log_format;
pub mod bootstrap;
pub mod builder;
pub mod cluster;
mod compile;
pub mod cookie;
pub mod explain;
pub mod filter_chain_match;
pub mod hash;
pub mod hash_policy;
pub mod hcm;
pub mod health_check;
pub mod http2;
pub mod listener;
pub mod matching;
pub mod outlier_detection;
pub mod overload;
pub mod rbac;
mod rbac_index;
pub mod rejection;
pub mod retry;
pub mod rewrite;
pub mod route;
pub mod route_match;
pub mod stateful_session;
pub mod support;
pub mod view;

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

pub use builder::Builder;
pub use cluster::{Cluster, EndpointSet};
pub use compile::source::{Reference, Source};
pub use compile::{Environment, ReadFile, ReadVariable};
pub use hcm::HttpConnectionManager;
pub use listener::Listener;
pub use rejection::{Problem, Rejection};
pub use route::RouteTable;

/// A map with the fast hash the request path uses.
pub type FastMap<K, V> = HashMap<K, V, FxBuildHasher>;

/// Everything a worker needs, immutable. Unchanged parts are shared (same `Arc`) with the configuration before it, so a
/// worker finds what changed by comparing pointers.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Counts up by one with each swap.
    pub generation: u64,
    /// Warmed listeners by name.
    pub listeners: FastMap<Arc<str>, Arc<Listener>>,
    /// Route tables obtained by RDS, by route configuration name. Inline tables live in their connection manager.
    pub routes: FastMap<Arc<str>, Arc<RouteTable>>,
    /// Warmed clusters by name.
    pub clusters: FastMap<Arc<str>, Arc<Cluster>>,
}

impl Config {
    /// Whether both hold the very same parts.
    fn same_as(&self, other: &Self) -> bool {
        same(&self.listeners, &other.listeners)
            && same(&self.routes, &other.routes)
            && same(&self.clusters, &other.clusters)
    }
}

fn same<T>(a: &FastMap<Arc<str>, Arc<T>>, b: &FastMap<Arc<str>, Arc<T>>) -> bool {
    a.len() == b.len() && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| Arc::ptr_eq(value, other)))
}
