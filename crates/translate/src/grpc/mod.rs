//! Resources of gRPC programs that are xDS clients themselves: Istio's proxyless gRPC, selected by the metadata
//! `GENERATOR: grpc`.
//!
//! gRPC refuses a whole resource because of one unsupported field (gRFCs A27, A28, A29, A36, A41), and ignores fields
//! it does not know. So nothing is copied from Envoy's resources: each message has only the fields that gRPC reads.
//!
//! | resource | name |
//! |---|---|
//! | listener of a client | `NAME:PORT` for each name of a service, and `NAME` alone if it has one port |
//! | listener of a server | `xds.istio.io/grpc/lds/inbound/ADDRESS:PORT` |
//! | route configuration, cluster, endpoints | `outbound\|PORT\|SUBSET\|HOST` |

mod clusters;
mod endpoints;
mod inbound;
mod outbound;
mod routes;

use evenkeel_model::Service;

use crate::context::Context;
use crate::listeners::outbound::of_first;
use crate::output::{Collection, Output, Part, Unit};

/// Makes a unit for a gRPC program.
pub fn generate(unit: &Unit, context: Context<'_>, parts: &[&Part], out: &mut Output<'_>) {
    match unit {
        Unit::Inbound => inbound::listeners(context, out),
        Unit::Service(host) => {
            // A client requests the name it dials, so a wildcard would need infinitely many resources.
            let Some(service) = context.service(host).filter(|service| can_be_dialed(service)) else { return };
            outbound::of_service(context, service, out);
            routes::of_service(context, service, out);
            clusters::of_service(context, service, out);
        }
        Unit::Endpoints(host) => {
            let Some(service) = context.service(host).filter(|service| can_be_dialed(service)) else { return };
            clusters::of_endpoints(context, service, out);
        }
        Unit::Assembly(Collection::Target(_)) => of_first(parts, out),
        // There is no capture and no Gateway, and hosts without a service have no clusters.
        Unit::Basics | Unit::AsCalled | Unit::Gateways | Unit::Datagrams | Unit::Routed(_) | Unit::Assembly(_) => {}
    }
}

/// Whether a program can dial a service. An alias of a host has no listener.
fn can_be_dialed(service: &Service) -> bool {
    !service.host.is_wildcard() && service.alias_of.is_none()
}
