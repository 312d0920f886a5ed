//! HTTP and network filters, one folder each; the decision what happens to a call ([`decide`]), and its explanation ([`explain`]).
//!
//! The data path holds one [`HttpFilters`] per connection manager and worker, and one [`NetworkFilters`] per filter
//! chain and worker, created when a configuration arrives. Filters are an enum compiled from the configuration: a
//! request passes them without dynamic dispatch, locks or allocations.

#![forbid(unsafe_code)]
// Nothing here panics on input from outside: an impossible state is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod alpn;
pub mod buffer;
pub mod callouts;
pub mod cel;
mod compression;
mod compressor;
pub mod connection_limit;
pub mod cors;
pub mod decide;
mod decompressor;
mod descriptor;
pub mod dynamic_forward_proxy;
pub mod explain;
pub mod ext_authz;
pub mod fault;
pub mod format;
pub mod grpc_stats;
pub mod grpc_web;
pub mod header_edits;
pub mod header_mutation;
mod http;
mod info;
pub mod istio_stats;
pub mod jwt_authn;
mod local_ratelimit;
pub mod network;
pub mod peer_metadata;
mod ratelimit;
pub mod rbac;
mod remark;
mod resolution;
pub mod stateful_session;
pub mod tracing;
mod uuid;
mod verdict;
mod wire;

#[cfg(feature = "test-filter")]
pub use http::test_filter;
pub use http::verdict as http_verdict;
pub use http::{
    BadBody, Body, Clock, ClusterScope, Clusters, CustomFactory, CustomFilter, Data, Decision, FilterStreams, Flow,
    HeadView, Hooks, HttpFilters, MAX_HELD_BYTES, Names, Pause, Reply, RequestContext, RequestFacts,
    RequestTrailersContext, ResponseContext, ResponseDecision, RouteContext, Services, Setup, SystemClock, Tasks,
    TrailersContext, Wait, Woken,
};
pub use info::edges;
pub use info::{
    ConnectionInfo, EXEMPLAR, EarlierTry, Form, Hello, HostOverride, ResponseFlags, StateObject, StreamInfo, Times,
};
pub use network::NetworkFilters;
pub use network::verdict as network_verdict;
pub use remark::Remark;
pub use resolution::{ForwardProxyFacts, HostLookup, LookupError, Resolved};
pub use verdict::{FilterPolicy, FilterVerdict};
