//! The immutable Snapshot: services, endpoints, policies and gateways, built from the values of crate `api`.
//!
//! Everything in it is resolved: hosts are full names, protocols are known, queries apply inheritance. Each object keeps the place
//! in the user's file that it came from.

#![forbid(unsafe_code)]

mod address_book;
pub mod authz_provider;
mod changes;
mod condition;
pub mod credential;
mod derive;
pub mod destination_rule;
pub mod gateway;
pub mod gateway_api_status;
mod index;
pub mod labels;
mod list;
pub mod mesh;
pub mod policy;
pub mod provider;
pub mod proxy_rule;
mod published_port;
pub mod request_authentication;
pub mod route_set;
pub mod selection;
pub mod service;
pub mod sidecar;
pub mod snapshot;
mod sorted;
mod source;
mod status;
pub mod telemetry;
pub mod tracked;
pub mod traffic;
pub mod trust_domains;
pub mod visibility;
pub mod workload;
pub mod workload_group;

pub use address_book::AddressBook;
pub use changes::Changes;
pub use condition::Condition;
pub use credential::{Credential, KeyPair, ROOTS_SUFFIX, Roots};
pub use derive::{Builder, Built, NOT_ENFORCED, build};
pub use destination_rule::{
    BackendRoots, BackendTls, BackendUtilization, ClientTls, ConnectionPool, DestinationRule, HashKey, HashTable,
    Http2Keepalive, LbPolicy, LoadBalancer, LocalityLb, OutlierDetection, OutsideTls, ProxyProtocol, RetryBudget,
    Shares, Subset, TcpKeepalive, TrafficPolicy, Tunnel, Warmup, ZoneAwareLb,
};
pub use gateway::{Gateway, GatewayHost, Server, ServerProtocol, ServerTls, ServerTlsMode};
pub use gateway_api_status::GatewayApiStatus;
pub use labels::{Labels, Selectable};
pub use list::{Grouped, List, Ordered};
pub use mesh::{
    ExternalSigner, FurtherRoots, IngressMode, IngressSettings, JwksFetching, MeshConfig, OutboundTrafficPolicy,
    PathNormalization, RootsSource, SignerTls, TlsRules,
};
pub use policy::{AuthorizationAction, AuthorizationPolicy, MtlsMode, PeerAuthentication, Unsupported};
pub use published_port::PublishedPort;
pub use request_authentication::{JwksSource, JwtKeys, JwtRule, RemoteJwks, RequestAuthentication};
pub use route_set::{
    AbortStatus, CorsPolicy, Destination, DestinationState, DirectResponse, Fault, GatewayRef, HttpAction, HttpMatch,
    HttpRoute, L4Match, L4Route, MatchOrder, Millionths, Mirror, Redirect, RedirectPort, RetryPolicy, Rewrite,
    RouteOrder, RouteSet, Session, TlsRoute, WeightedDestination,
};
pub use selection::Selection;
pub use service::{
    ClosedBy, Endpoint, EndpointAddress, NetworkGateway, Protocol, Resolution, Service, ServicePort, TargetPort,
};
pub use sidecar::{EgressListener, Imports, IngressEndpoint, IngressListener, Sidecar, SidecarOutboundPolicy};
pub use snapshot::Snapshot;
pub use sorted::SortedMap;
pub use source::{Address, Entry, EntryChange, LastGood, Place, Source, SourceEvent};
pub use status::{HostAddress, Status, StatusSink};
pub use telemetry::{AccessLogFile, AccessLogFormat};
pub use tracked::{Key, Reads, Tracked};
pub use traffic::{HeaderMatch, HeaderOperations, Headers, StringMatch};
pub use visibility::{Nearness, Viewer, Visibility};
pub use workload::{ContainerPort, Workload};
pub use workload_group::WorkloadGroup;
