//! HTTP and network filters, one folder each; what becomes of a call ([`decide`]), and why ([`explain`]).
//!
//! The data path holds one [`HttpFilters`] per connection manager and worker, and one [`NetworkFilters`] per filter chain and
//! worker, created when a configuration arrives. Filters are an enum compiled from the configuration: a request that passes them needs
//! no dynamic dispatch, no lock and no allocation.

#![forbid(unsafe_code)]
// Nothing here panics on bytes from outside: what cannot be is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod buffer;
pub mod callouts;
pub mod connection_limit;
pub mod cors;
pub mod decide;
pub mod explain;
pub mod fault;
pub mod grpc_stats;
pub mod header_mutation;
mod http;
mod info;
pub mod network;
pub mod rbac;
pub mod stateful_session;

#[cfg(feature = "test-filter")]
pub use http::test_filter;
pub use http::{
    Body, ClusterScope, Data, Decision, FilterStreams, Flow, HeadView, HttpFilters, Pause, Remark, Reply,
    RequestContext, ResponseContext, ResponseDecision, RouteContext, Services, Setup, TrailersContext, Wait, Woken,
};
pub use info::{ConnectionInfo, Form, HostOverride, ResponseFlags, StateObject, StreamInfo, Times};
pub use network::NetworkFilters;
