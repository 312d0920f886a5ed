//! `(ProxyView, Snapshot)` to Envoy xDS v3 resources, one file per resource kind, in the shapes Istio gives them.
//!
//! Pure functions: no clock, no sockets, no state. Equal input yields equal bytes, so a resource's content hash is its
//! version. Stock Envoy accepts everything written here, and `evenkeel proxy` supports exactly these fields.
//!
//! | question | file |
//! |---|---|
//! | which listeners, and what do they match on? | `listeners/{outbound,inbound,gateway}.rs` |
//! | which virtual hosts and routes? | `routes/{outbound,inbound,gateway}.rs` |
//! | how is a VirtualService's route written? | `routes/{matches,action,headers}.rs` |
//! | how is a service called (subsets, limits, TLS)? | `clusters.rs`, `tls.rs` |
//! | who may call? | `rbac.rs` |

pub mod clusters;
pub mod context;
pub mod endpoints;
mod facts;
pub mod listeners;
mod load_balancer;
pub mod name_table;
pub mod names;
pub mod rbac;
pub mod routes;
pub mod tls;
pub mod view;

mod access_log;
mod http;
mod origin;
mod pb;
mod proto;

use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_model::{Reads, Snapshot, Tracked};
use evenkeel_xds::{Any, Resource, ResourceSet, ResourceType, pack};

pub use context::Context;
use facts::{Client, Facts};
pub use view::{NodeError, ProxyKind, ProxyView};

/// Everything one proxy is to hold. `generation` is the snapshot's.
pub fn resources(view: &ProxyView, snapshot: &Snapshot, generation: u64) -> ResourceSet {
    let (reads, facts) = (Reads::new(), Facts::new());
    let client = Client::new(Arc::new(view.clone()), snapshot);
    let context = Context::new(&client, Tracked::new(snapshot, &reads), &facts);
    let mut set = ResourceSet::new(generation);
    for (cluster, origin) in clusters::clusters(context) {
        insert(&mut set, ResourceType::Cluster, &cluster.name, pack(&cluster), origin);
    }
    for (assignment, origin) in endpoints::load_assignments(context) {
        insert(&mut set, ResourceType::Endpoint, &assignment.cluster_name, pack(&assignment), origin);
    }
    for (listener, origin) in listeners::listeners(context) {
        insert(&mut set, ResourceType::Listener, &listener.name, pack(&listener), origin);
    }
    for (routes, origin) in routes::route_configurations(context) {
        insert(&mut set, ResourceType::Route, &routes.name, pack(&routes), origin);
    }
    if context.is_sidecar() {
        // One per proxy; as from Istio it has no name.
        insert(&mut set, ResourceType::NameTable, "", name_table::packed(context), None);
    }
    set
}

fn insert(set: &mut ResourceSet, kind: ResourceType, name: &str, any: Any, origin: Option<Span>) {
    let mut resource = Resource::new(name, &any);
    if let Some(origin) = origin.filter(|span| span.line > 0) {
        resource = resource.with_origin(origin.to_string());
    }
    set.insert(kind, Arc::new(resource));
}
