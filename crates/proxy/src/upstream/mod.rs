//! Clusters at run time: what all workers share of a cluster, what each worker has of its own, connections and their pools.

pub(crate) mod balancer;
pub(crate) mod cluster;
pub(crate) mod connect;
pub(crate) mod pool;
pub mod shared;

pub(crate) use cluster::{ClusterState, Host};
pub(crate) use pool::{RequestSlot, UpstreamConnection};
