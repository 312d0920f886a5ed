//! xDS resources compiled to what a connection or a request needs.
//!
//! The proxy's control thread hands resources to [`builder::Builder`]; each is checked against the table of supported
//! fields ([`support`]), compiled, and becomes part of the next immutable [`Config`]. Workers hold one `Arc<Config>` and
//! swap it whole: a connection pins its [`Listener`], a request pins its [`RouteTable`] and its [`Cluster`].
//!
//! Nothing here knows sockets, clocks or tokio, so the same code answers "what would happen to this call?" offline.

// Nothing here panics on bytes from outside: what cannot be is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod access_log;
pub mod access_log_format;
pub mod bootstrap;
pub mod buffer;
pub mod builder;
pub mod cluster;
mod compile;
pub mod cookie;
pub mod cors;
pub mod demand;
pub mod domains;
pub mod dynamic_metadata;
pub mod explain;
pub mod fault;
pub mod filter_chain_match;
pub mod fraction;
pub mod growing;
pub mod grpc_stats;
pub mod hash;
pub mod hash_policy;
pub mod hcm;
pub mod health_check;
pub mod http2;
mod http_filters;
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
pub mod route_filters;
pub mod route_match;
pub mod stateful_session;
pub mod support;
pub mod view;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

pub use builder::Builder;
pub use cluster::{Cluster, EndpointSet};

pub use compile::source::{Reference, Source};
pub use compile::{Environment, ReadFile, ReadVariable};
pub use demand::Demand;
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
    /// Listeners and clusters are asked for by name: one that is neither above nor `absent` may exist.
    pub by_name: bool,
    /// Listeners and clusters that were asked for and do not exist.
    pub absent: HashSet<Demand, FxBuildHasher>,
}

impl Config {
    /// The listeners to ask for before a connection to this destination can be served, if there are any.
    pub fn unanswered_listeners(&self, destination: SocketAddr) -> Vec<Demand> {
        if !self.by_name {
            return Vec::new();
        }
        let names = demand::listeners_of(destination);
        if self.listeners.contains_key(&names[0]) {
            return Vec::new();
        }
        let unknown = |name: &Arc<str>| {
            !self.listeners.contains_key(name) && !self.absent.contains(&Demand::Listener(name.clone()))
        };
        names.into_iter().filter(unknown).map(Demand::Listener).collect()
    }

    /// Whether it says what becomes of whoever needs this.
    pub fn answers(&self, demand: &Demand) -> bool {
        match demand {
            Demand::VirtualHost { table, host } => {
                let growing = self.routes.get(table).and_then(|table| table.growing.as_ref());
                growing.is_none_or(|growing| growing.unanswered(host.as_bytes()).is_none())
            }
            Demand::Listener(name) => self.listeners.contains_key(name) || self.absent.contains(demand),
            Demand::Cluster(name) => self.clusters.contains_key(name) || self.absent.contains(demand),
        }
    }

    /// Whether there is what was needed.
    pub fn has(&self, demand: &Demand) -> bool {
        match demand {
            Demand::VirtualHost { table, host } => {
                let growing = self.routes.get(table).and_then(|table| table.growing.as_ref());
                growing.and_then(|growing| growing.answer(host)).is_some_and(|answer| answer.host.is_some())
            }
            Demand::Listener(name) => self.listeners.contains_key(name),
            Demand::Cluster(name) => self.clusters.contains_key(name),
        }
    }

    /// The cluster to ask for before it can be used, if it has to be.
    pub fn unanswered_cluster(&self, name: &Arc<str>) -> Option<Demand> {
        let demand = Demand::Cluster(name.clone());
        (!self.clusters.contains_key(name) && !self.absent.contains(&demand)).then_some(demand)
    }

    /// Whether both hold the very same parts.
    fn same_as(&self, other: &Self) -> bool {
        same(&self.listeners, &other.listeners)
            && same(&self.routes, &other.routes)
            && same(&self.clusters, &other.clusters)
            && self.absent == other.absent
            && self.by_name == other.by_name
    }
}

fn same<T>(a: &FastMap<Arc<str>, Arc<T>>, b: &FastMap<Arc<str>, Arc<T>>) -> bool {
    a.len() == b.len() && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| Arc::ptr_eq(value, other)))
}
