//! Routes of the Gateway API as route sets: one for each place where an object applies.

use evenkeel_api::{Object, Resource};
use evenkeel_base::Diagnostics;

use super::super::tracking::Cx;
use super::outline::{at, empty};
use super::parent_fields::{ParentFields, parent_fields};
use super::parents::{Attached, Attachments, RouteParents};
use super::route_status::RouteResult;
use super::{grpc_routes, http_routes, l4_routes};
use crate::{GatewayRef, HttpRoute, RouteSet};

/// What an object with routes of the Gateway API becomes.
pub(in super::super) struct Parts {
    pub(in super::super) sets: Vec<RouteSet>,
    pub(in super::super) result: RouteResult,
}

/// The route sets of an object, with the findings about it; `None`: it has no routes of the Gateway API.
pub(in super::super) fn parts(cx: &Cx<'_>, object: &Object, found: &mut Diagnostics) -> Option<Parts> {
    let ParentFields { parents, default_scope } = parent_fields(object)?;
    let hostnames = match &object.resource {
        Resource::HttpRoute(route) => &route.spec.hostnames[..],
        Resource::GrpcRoute(route) => &route.spec.hostnames[..],
        Resource::TlsRoute(route) => &route.spec.hostnames[..],
        _ => &[],
    };
    let parents = RouteParents { cx, object, parents, default_scope, hostnames };
    let Attachments { places, status, gateways } = parents.attached(found);
    let mut of_rules = Diagnostics::new();
    let sets = sets(cx, object, places, &mut of_rules)?;
    let result = RouteResult::new(status, gateways, &sets, &of_rules);
    found.extend(of_rules);
    Some(Parts { sets, result })
}

/// The route sets of an object for the places where it applies, with the findings about its rules.
fn sets(cx: &Cx<'_>, object: &Object, attached: Vec<Attached>, found: &mut Diagnostics) -> Option<Vec<RouteSet>> {
    Some(match &object.resource {
        Resource::HttpRoute(route) => {
            let routes = http_routes::routes(cx, object, &route.spec, found);
            attached.into_iter().map(|place| http(object, place, &routes)).collect()
        }
        Resource::GrpcRoute(route) => {
            let routes = grpc_routes::routes(cx, object, &route.spec, found);
            attached.into_iter().map(|place| http(object, place, &routes)).collect()
        }
        Resource::TlsRoute(route) => l4_routes::tls(cx, object, &route.spec, found, attached),
        Resource::TcpRoute(route) => l4_routes::tcp(cx, object, &route.spec, found, attached),
        Resource::UdpRoute(route) => l4_routes::udp(cx, object, &route.spec, found, attached),
        _ => return None,
    })
}

/// The routes that an object has in the mesh, in one: its hosts are those that it claims there.
pub(in super::super) fn in_mesh(object: &Object, parts: &[RouteSet]) -> RouteSet {
    let in_mesh: Vec<&RouteSet> = parts.iter().filter(|part| part.applies_at(&GatewayRef::Mesh)).collect();
    let first = in_mesh.first();
    RouteSet {
        hosts: in_mesh.iter().flat_map(|part| part.hosts.clone()).collect(),
        gateways: first.map(|_| GatewayRef::Mesh).into_iter().collect(),
        export_to: first.map(|part| part.export_to.clone()).unwrap_or_default(),
        http: first.map(|part| part.http.clone()).unwrap_or_default(),
        ..empty(object)
    }
}

fn http(object: &Object, place: Attached, routes: &[HttpRoute]) -> RouteSet {
    let port = place.port;
    let at_port = |mut route: HttpRoute| {
        route.matches.iter_mut().for_each(|condition| condition.port = port);
        route
    };
    RouteSet { http: routes.iter().cloned().map(at_port).collect(), ..at(object, place) }
}
