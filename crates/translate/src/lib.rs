//! `(ProxyView, Snapshot)` to Envoy xDS v3 resources, one file per resource kind, in the shapes Istio gives them.
//!
//! The generators are pure functions without clock or sockets; [`Translator`] holds the only state. Equal input yields equal bytes, so
//! a resource's content hash is its version. Stock Envoy accepts every generated resource, and `evenkeel proxy` supports exactly the
//! fields that occur in them.
//!
//! | question | file |
//! |---|---|
//! | which listeners, and what do they match on? | `listeners/{outbound,inbound,gateway}.rs` |
//! | which virtual hosts and routes? | `routes/{outbound,inbound,gateway}.rs` |
//! | how is a VirtualService's route translated? | `routes/{matches,action,headers}.rs` |
//! | in which order are HTTP filters? | `filter_slots.rs`, filled by `http.rs` |
//! | where are messages encoded? | `finish.rs` |
//! | how is a service called (subsets, limits, TLS)? | `clusters.rs`, `tls.rs` |
//! | which requests could be read in several ways? | `ambiguous.rs` |
//! | which callers are allowed? | `rbac.rs`; conditions on tokens: `tokens.rs` |
//! | which requests does another service decide about? | `ext_authz.rs` |
//! | what is logged and traced, and where does it go? | `access_log.rs`, `tracing.rs` |
//! | what does a Sidecar let a proxy see? | `scope.rs` |
//! | what do proxyless gRPC programs get? | `grpc/` |
//! | what is generated together, and again after a change? | `plan.rs`, `incremental/` |

#![forbid(unsafe_code)]

pub mod ambiguous;
pub mod clusters;
pub mod context;
mod dynamic_dns;
pub mod endpoints;
mod ext_authz;
mod facts;
pub mod filter_slots;
mod finish;
mod grpc;
mod incremental;
pub mod jwt;
pub mod listeners;
mod load_balancer;
mod metadata_exchange;
mod metrics;
pub mod name_table;
pub mod names;
mod networks;
pub mod node_metadata;
mod otlp_value;
pub mod output;
pub mod proxy_options;
pub mod rbac;
pub mod routes;
pub mod scope;
pub mod tls;
mod tokens;
mod tracing;
pub mod view;
mod view_json;

mod access_log;
mod failover;
mod http;
mod origin;
mod pb;
mod plan;
mod proto;
pub mod secrets;
mod sessions;
mod stat_names;
mod string_match;
pub mod traffic;
mod whole;

pub use self::proxy_options::ProxyOptions;
pub use context::Context;
pub use finish::{MessageKind, Patch, Patches, Typed};
pub use incremental::{Changed, ClassChange, ClassId, Holding, Joined, Mismatch, ProxyChange, Translator};
pub use origin::{config_path, split_origin};
pub use view::{ClientKind, NodeError, ProxyKind, ProxyView};
pub use whole::{patched_resources, resources, traced_resources};
