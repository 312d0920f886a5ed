//! What gRPC programs get that are xDS clients themselves: Istio's proxyless gRPC, asked for by the metadata
//! `GENERATOR: grpc`.
//!
//! gRPC refuses a whole resource for one field it does not take (gRFCs A27, A28, A29, A36, A41), and passes over what it does
//! not know. So nothing is handed on from what Envoy gets: each message is written with the fields gRPC reads, and no others.
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

use crate::context::Context;
use crate::listeners::outbound::of_address;
use crate::plan::{Collection, Output, Part, Unit};

/// Makes a unit for a gRPC program.
pub fn generate(unit: &Unit, context: Context<'_>, parts: &[&Part], out: &mut Output) {
    match unit {
        Unit::Inbound => inbound::listeners(context, out),
        Unit::Service(host) => {
            // A client asks for the name it dials, and of those under a wildcard there is no end.
            let Some(service) = context.service(host).filter(|service| !service.host.is_wildcard()) else { return };
            outbound::of_service(context, service, out);
            routes::of_service(context, service, out);
            clusters::of_service(context, service, out);
        }
        Unit::Endpoints(host) => {
            let Some(service) = context.service(host).filter(|service| !service.host.is_wildcard()) else { return };
            clusters::of_endpoints(context, service, out);
        }
        Unit::Assembly(Collection::Target(_)) => of_address(parts, out),
        // It captures nothing and serves no Gateway; hosts without a service lead nowhere.
        Unit::Basics | Unit::Gateways | Unit::Routed(_) | Unit::Assembly(_) => {}
    }
}
