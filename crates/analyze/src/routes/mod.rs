//! Routes of the Gateway API for VirtualServices, Istio's Gateways and Ingresses, where these have an equal.
//!
//! An object is replaced as a whole or not at all, because the order of its routes matters. Each field without an equal is a
//! finding. What is written is read again before it is returned, so that it has no mistakes.
//!
//! | question | file |
//! |---|---|
//! | where do the routes of a VirtualService attach? | `places.rs` |
//! | what is the equal of a condition? | `conditions.rs` |
//! | what is the equal of what happens to a request? | `actions.rs`, `headers.rs`, `retries.rs` |
//! | does the order of precedence decide as the written order does? | `order.rs` |
//! | may it be a GRPCRoute? | `grpc.rs` |
//! | routes of connections | `l4.rs` |
//! | what is the equal of Istio's Gateway? | `gateways.rs`; do policies guard its proxies as before? `guards.rs` |
//! | Ingresses | `ingresses.rs`; annotations of ingress-nginx: `nginx.rs`, `nginx_table.rs` |
//! | the objects, without those that say the same twice | `documents.rs` |

mod actions;
mod conditions;
mod documents;
mod gateways;
mod grpc;
mod guards;
mod headers;
mod http;
mod ingresses;
mod l4;
mod nginx;
mod nginx_table;
mod order;
mod places;
mod retries;
mod writer;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_api::{Kind, Object};
use evenkeel_base::{Diagnostics, ObjectRef};
use evenkeel_model::Snapshot;
use serde_json::Value;

/// What the user has chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// A prefix becomes one of whole parts between slashes (`PathPrefix`), which matches less and reads better, instead of a
    /// regular expression, which matches the same.
    pub by_parts: bool,
    /// The Gateway that routes of Ingresses attach to; a Gateway for each namespace is written if none is named.
    pub gateway: Option<GatewayName>,
}

/// A Gateway of the Gateway API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WrittenRoutes {
    /// The objects.
    pub documents: Vec<Value>,
    /// The objects that these replace.
    pub replaced: Vec<ObjectRef>,
    /// The objects that remain, because they have parts without an equal.
    pub remaining: Vec<ObjectRef>,
    /// What has no equal (`no-equal`), what differs though it is written (`not-quite`), and what to know (`route-note`).
    pub findings: Diagnostics,
}

/// Writes routes for the VirtualServices, Istio's Gateways and the Ingresses among these objects, of which `snapshot` was built.
pub fn write(objects: &[Object], snapshot: &Snapshot, options: &RouteOptions) -> WrittenRoutes {
    let sound: Vec<&Object> = objects.iter().filter(|object| object.refused.is_none()).collect();
    let mut written = WrittenRoutes::default();
    let mut documents = documents::Documents::of(&sound);
    let gateways = gateways::write(&sound, snapshot, &mut written.findings);
    let services = http::write(&sound, snapshot, options, &gateways);
    let mut used = BTreeSet::new();
    for service in services {
        written.findings.extend(service.findings);
        match service.routes {
            Some(routes) => {
                used.extend(service.gateways);
                documents.extend(routes);
                written.replaced.push(service.object);
            }
            None => written.remaining.push(service.object),
        }
    }
    gateways::finish(gateways, &used, &sound, &mut documents, &mut written);
    ingresses::write(&sound, snapshot, options, &mut documents, &mut written);
    refused(objects, &mut written);
    let checked = documents.checked(&mut written.findings);
    written.documents = checked.documents;
    if !checked.is_whole {
        // Others may refer to what is missing, so nothing is to be deleted.
        written.remaining.append(&mut written.replaced);
    }
    written.findings.sort();
    written
}

/// Objects with mistakes remain: what they would say is not known.
fn refused(objects: &[Object], written: &mut WrittenRoutes) {
    let kinds = [Kind::VirtualService, Kind::Gateway, Kind::Ingress];
    for object in objects.iter().filter(|object| kinds.contains(&object.kind())) {
        let Some(refusal) = &object.refused else { continue };
        let message = format!("{object} has mistakes, so no routes are written for it: {refusal}");
        let finding = evenkeel_base::Diagnostic::error("no-equal", refusal.place.clone(), message);
        written.findings.push(finding.with_help("correct it first").about(object.reference()));
        written.remaining.push(object.reference());
    }
}
