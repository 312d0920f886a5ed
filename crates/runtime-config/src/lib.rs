//! Compiles xDS resources into the form that connections and requests use.
//!
//! The proxy's control thread passes resources to [`builder::Builder`]. Each is checked against the table of supported
//! fields ([`support`]), compiled, and becomes part of the next immutable [`Config`]. Workers hold one `Arc<Config>`
//! and swap it as a whole: a connection pins its [`Listener`], a request pins its [`RouteTable`] and its [`Cluster`].
//!
//! Nothing here uses sockets, clocks or tokio, so the same code answers "what would happen to this call?" offline.

#![forbid(unsafe_code)]
// Nothing here panics on input from outside: an impossible state is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod access_log;
pub mod address;
pub mod bind;
pub mod bootstrap;
pub mod builder;
pub mod cluster;
mod compile;
pub mod cookie;
pub mod demand;
pub mod dns;
pub mod domains;
pub mod dynamic_metadata;
pub mod expression;
pub mod filter_chain_match;
mod filter_needs;
mod filters;
pub mod fraction;
pub mod growing;
pub mod grpc_access_log;
pub mod hash;
pub mod hash_policy;
pub mod hcm;
pub mod header_edits;
pub mod health_check;
pub mod histogram_buckets;
pub mod http2;
mod http_filters;
pub mod listener;
pub mod local_reply;
pub mod matching;
pub mod metadata;
pub mod mirror;
mod network_filters;
pub mod outlier_detection;
pub mod overload;
pub mod peer;
pub mod proxy_protocol;
pub mod rate_limit;
pub mod rejection;
pub mod retry;
pub mod rewrite;
pub mod route;
pub mod route_filters;
pub mod route_match;
pub mod route_table;
pub mod runtime;
pub mod skip;
pub mod stats_matcher;
pub mod stats_sinks;
pub mod stats_tags;
pub mod string_match;
/// Format strings.
pub use evenkeel_format as substitution_format;
pub mod support;
pub mod tracing;
pub mod udp_proxy;
pub mod view;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

pub use builder::Builder;
pub use cluster::{Cluster, EndpointSet};
pub use filters::{
    alpn, buffer, compression, compressor, connection_limit, cors, custom, decompressor, dynamic_forward_proxy,
    ext_authz, fault, grpc_stats, grpc_web, header_mutation, istio_stats, jwt_authn, local_ratelimit,
    metadata_exchange, peer_metadata, ratelimit, rbac, stateful_session,
};

pub use compile::source::{InitialMetadata, Reference, Source};
pub use compile::{Environment, ReadFile, ReadVariable, TracingDefaults};
pub use demand::Demand;
pub use hcm::HttpConnectionManager;
pub use listener::Listener;
pub use rejection::{Problem, Rejection};
pub use route_table::RouteTable;

/// A map with the fast hash the request path uses.
pub type FastMap<K, V> = HashMap<K, V, FxBuildHasher>;

/// A map whose clones share all unchanged parts.
pub type PersistentMap<K, V> = imbl::GenericHashMap<K, V, FxBuildHasher, imbl::shared_ptr::DefaultSharedPtr>;
/// A set whose clones share all unchanged parts.
pub type PersistentSet<V> = imbl::GenericHashSet<V, FxBuildHasher, imbl::shared_ptr::DefaultSharedPtr>;

/// Everything a worker needs, immutable. Unchanged parts are shared (same `Arc`) with the previous configuration, and
/// `changes` names the others.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Incremented with each swap.
    pub generation: u64,
    /// The difference from the configuration whose `generation` is one less.
    pub changes: Changes,
    /// Warmed listeners by name.
    pub listeners: PersistentMap<Arc<str>, Arc<Listener>>,
    /// Route tables obtained by RDS, by route configuration name. Inline tables live in their connection manager.
    pub routes: PersistentMap<Arc<str>, Arc<RouteTable>>,
    /// Warmed clusters by name.
    pub clusters: PersistentMap<Arc<str>, Arc<Cluster>>,
    /// Whether listeners and clusters are requested by name: one that is neither above nor in `absent` may exist.
    pub by_name: bool,
    /// Listeners and clusters that were requested and do not exist.
    pub absent: PersistentSet<Demand>,
}

/// Names of resources that are new, changed or removed, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Listeners.
    pub listeners: Vec<Arc<str>>,
    /// Route tables.
    pub routes: Vec<Arc<str>>,
    /// Clusters.
    pub clusters: Vec<Arc<str>>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.routes.is_empty() && self.clusters.is_empty()
    }
}

impl Config {
    /// The listeners to request before a connection to this destination can be served, if any.
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

    /// Whether the configuration has a response to this demand, positive or negative.
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

    /// Whether the demanded resource exists.
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

    /// The cluster to request before it can be used, if necessary.
    pub fn unanswered_cluster(&self, name: &Arc<str>) -> Option<Demand> {
        let demand = Demand::Cluster(name.clone());
        (!self.clusters.contains_key(name) && !self.absent.contains(&demand)).then_some(demand)
    }

    /// Names of listeners that differ from `before`.
    pub fn changed_listeners(&self, before: &Self) -> Cow<'_, [Arc<str>]> {
        if self.follows(before) {
            Cow::Borrowed(&self.changes.listeners)
        } else {
            Cow::Owned(changed(&before.listeners, &self.listeners))
        }
    }

    /// Names of clusters that differ from `before`.
    pub fn changed_clusters(&self, before: &Self) -> Cow<'_, [Arc<str>]> {
        if self.follows(before) {
            Cow::Borrowed(&self.changes.clusters)
        } else {
            Cow::Owned(changed(&before.clusters, &self.clusters))
        }
    }

    /// Whether `changes` describes the difference from `before`.
    fn follows(&self, before: &Self) -> bool {
        self.generation == before.generation + 1
    }
}

/// Compares all entries.
fn changed<T>(before: &PersistentMap<Arc<str>, Arc<T>>, now: &PersistentMap<Arc<str>, Arc<T>>) -> Vec<Arc<str>> {
    let is_same = |name: &Arc<str>, value: &Arc<T>| now.get(name).is_some_and(|other| Arc::ptr_eq(value, other));
    let other = before.iter().filter(|(name, value)| !is_same(name, value)).map(|(name, _)| name);
    let new = now.keys().filter(|name| !before.contains_key(*name));
    other.chain(new).cloned().collect()
}
