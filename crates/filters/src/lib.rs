//! HTTP and network filters, one folder each.
//!
//! The data path holds one [`HttpFilters`] per connection manager and worker, and one [`NetworkFilters`] per filter chain and
//! worker, made when a configuration arrives. Filters are an enum compiled from configuration: no dispatch through pointers,
//! no lock, no allocation for a request that passes.

// Nothing here panics on bytes from outside: what cannot be is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod buffer;
pub mod callouts;
pub mod connection_limit;
pub mod cors;
pub mod fault;
pub mod grpc_stats;
pub mod header_mutation;
mod http;
pub mod network;
pub mod rbac;
pub mod stateful_session;

pub use http::{
    Body, ClusterScope, Data, Decision, FilterFacts, FilterStreams, Flow, Form, HeadView, HostOverride, HttpFilters,
    Pause, Reply, RequestContext, ResponseContext, RouteContext, Services, Setup, StateObject, TrailersContext, Wait,
    Woken,
};
pub use network::NetworkFilters;
