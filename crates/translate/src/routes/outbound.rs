//! Route configurations of a workload's own requests: one per port, with a virtual host for each service.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::service::ServicePort;
use evenkeel_model::{EgressListener, GatewayRef, RouteSet, Service, SidecarOutboundPolicy};

use super::{action, give_host, hosts_of, matches, put_together, route_set, virtual_host};
use crate::context::{Context, PortProtocol};
use crate::names;
use crate::names::outbound_name;
use crate::output::{Output, Part};
use crate::pb::config::route::{Route, VirtualHost};
use crate::scope::CallablePort;
use crate::traffic::InnerProtocol;
use crate::{sessions, tracing};

/// The port on which hosts of route sets can be called without a service there.
const UNREGISTERED_HOST_PORT: u16 = 80;

/// The routes of a service: a virtual host in the route configuration `PORT` for each of its HTTP ports, and for a port
/// without a declared protocol a route configuration of its own, named `HOST:PORT`.
pub fn of_service(context: Context<'_>, service: &Arc<Service>, out: &mut Output<'_>) {
    for CallablePort { port, port_protocol, bind, .. } in context.callable(service) {
        if port_protocol == PortProtocol::Tcp {
            continue;
        }
        let port = port.as_ref();
        let (host, ruled_by) =
            service_host(context, service, port, context.route_sets(service, port.number), Named::ByHost);
        let at_own_addresses = bind.is_none() && (context.has_vips(service) || service.headless);
        let is_alone = port_protocol == PortProtocol::Auto && at_own_addresses;
        if is_alone || (at_own_addresses && service.is_closed()) {
            // Connections to its address are for it, whatever their `Host` header says.
            let host = VirtualHost { domains: vec!["*".to_owned()], ..host.clone() };
            let table = own_route_name(service, port.number).into();
            give_host(context, &table, &host, ruled_by.clone(), Some(service.origin.clone()), out);
        }
        // At other addresses requests name it, if the port has a listener for HTTP, which a service with addresses of its
        // own does not make.
        let makes_listener = !is_alone || service.ranges().next().is_some();
        let table = port.number.to_string().into();
        give_host(context, &table, &host, ruled_by, makes_listener.then(|| service.origin.clone()), out);
    }
}

/// The virtual hosts of a service in the tables of listeners for all ports: one for each of its HTTP ports. Requests name
/// the host, with its port; without one they go to port 80, or else to the first port.
pub fn for_all_ports(context: Context<'_>, service: &Arc<Service>, out: &mut Output<'_>) {
    for listener in context.for_all_ports(service) {
        let Some((number, protocol)) = listener.port else { continue };
        if PortProtocol::of(protocol) == Some(PortProtocol::Tcp) {
            continue;
        }
        let table: Arc<str> =
            listener.socket.as_ref().map_or_else(|| number.to_string(), |path| names::socket_route(path)).into();
        for port in context.ports_through(listener, service) {
            let route_sets = context.route_sets_at(service, listener);
            let named = Named::WithPort(listener);
            let (host, ruled_by) = service_host(context, service, port.as_ref(), route_sets, named);
            give_host(context, &table, &host, ruled_by, Some(service.origin.clone()), out);
        }
    }
}

/// How requests name a service.
#[derive(Clone, Copy)]
enum Named<'l> {
    /// By its host: the listener is that of the port.
    ByHost,
    /// By its host and port, through this listener.
    WithPort(&'l EgressListener),
}

/// Another name of a service, on the HTTP ports that the alias itself has: routes for this name decide about requests that
/// use it. Without such routes those of the service do, under whose virtual host the name then is.
pub fn of_alias(context: Context<'_>, alias: &Service, out: &mut Output<'_>) {
    for port in alias_ports(context, alias) {
        let Some((route_set, routes)) = alias_routes(context, alias, port) else { continue };
        let name = names::virtual_host(alias.host.as_str(), port);
        let host = virtual_host(context, name, names_of(context, alias), routes);
        give_host(context, &port.to_string().into(), &host, Some(route_set.origin.clone()), None, out);
    }
}

/// The HTTP ports of an alias.
fn alias_ports(context: Context<'_>, alias: &Service) -> BTreeSet<u16> {
    let callable = context.callable(alias).into_iter();
    callable.filter(|called| called.port_protocol != PortProtocol::Tcp).map(|called| called.port.number).collect()
}

/// The routes for a name of a service that has others: those of a route set for this name. As everywhere the nearer or
/// older route set comes first, and the service's own routes are for all its names.
fn alias_routes<'a>(context: Context<'a>, alias: &Service, port: u16) -> Option<(&'a Arc<RouteSet>, Vec<Route>)> {
    let (own, routes) = if alias_ports(context, alias).contains(&port) {
        http_routes(context, alias, port)
    } else {
        routes_beside(context, &alias.host, port)
    }?;
    let target = context.destination(&alias.host).and_then(|service| http_routes(context, service, port));
    let Some((of_target, _)) = target else { return Some((own, routes)) };
    let precedence = context.snapshot.precedence([own, of_target]);
    let rank = |routes: &Arc<RouteSet>| {
        (routes.export_to.nearness(&routes.namespace, &context), precedence.get(&Arc::as_ptr(routes)).copied())
    };
    (rank(own) < rank(of_target)).then_some((own, routes))
}

/// A host of route sets, on ports on which it has no service. As in Istio it can be called on the
/// ports of the services that its route set also names, and on port 80.
pub fn of_unregistered(context: Context<'_>, host: &Hostname, out: &mut Output<'_>) {
    let naming = naming(context, host);
    if naming.is_empty() {
        return;
    }
    // On the services' own ports they decide.
    let own = context.services_under(host);
    let callable = own.iter().flat_map(|service| context.callable(service));
    let taken: BTreeSet<u16> = callable.map(|called| called.port.number).collect();
    let named = own.iter().find(|service| service.host == *host);
    let alias = context.service(host).filter(|service| service.alias_of.is_some());
    let names = match named.filter(|service| service.alias_of.is_none()) {
        Some(service) => names_of(context, service),
        None => vec![host.to_string()],
    };
    let ports: BTreeSet<u16> = naming.iter().flat_map(|route_set| ports_beside(context, route_set)).collect();
    for port in ports.difference(&taken).copied() {
        let found = match alias {
            Some(alias) => alias_routes(context, alias, port),
            None => routes_beside(context, host, port),
        };
        let Some((route_set, routes)) = found else { continue };
        let made = virtual_host(context, names::virtual_host(host.as_str(), port), names.clone(), routes);
        give_host(context, &port.to_string().into(), &made, Some(route_set.origin.clone()), None, out);
    }
}

/// The route sets with exactly this host that route requests in the mesh.
fn naming<'a>(context: Context<'a>, host: &Hostname) -> Vec<&'a Arc<RouteSet>> {
    let routes = |route_set: &&Arc<RouteSet>| route_set.applies_at(&GatewayRef::Mesh) && !route_set.http.is_empty();
    context.snapshot.route_sets_naming(host, &context).into_iter().filter(routes).collect()
}

/// The routes for a host on a port on which it has no service.
fn routes_beside<'a>(context: Context<'a>, host: &Hostname, port: u16) -> Option<(&'a Arc<RouteSet>, Vec<Route>)> {
    let is_called = |route_set: &&Arc<RouteSet>| {
        context.follows(route_set, port) && ports_beside(context, route_set).contains(&port)
    };
    first_routes(context, naming(context, host).into_iter().filter(is_called).collect(), port)
}

/// The HTTP ports of the services that a route set names, and port 80.
fn ports_beside(context: Context<'_>, route_set: &RouteSet) -> BTreeSet<u16> {
    let services = route_set.hosts.iter().flat_map(|host| context.services_under(&host.value));
    let callable = services.flat_map(|service| context.callable(service));
    let ports = callable.filter(|callable| callable.port_protocol != PortProtocol::Tcp);
    ports.map(|callable| callable.port.number).chain([UNREGISTERED_HOST_PORT]).collect()
}

/// The route configuration of a port. Hosts without a service need some service on the port; otherwise there is no
/// listener.
pub fn table(context: Context<'_>, name: &str, parts: &[&Part], out: &mut Output<'_>) {
    let hosts = hosts_of(parts);
    let of_services = || hosts.iter().filter(|host| host.service.is_some());
    let Some(first) = of_services().next() else { return };
    let origin = of_services().find_map(|host| host.ruled_by.as_ref()).or(first.service.as_ref());
    let last = (!is_of_one_service(name)).then(|| unknown_host(context, name));
    out.add_table(name, put_together(context, name, &hosts, last), origin.cloned());
}

/// Whether a route configuration belongs to a single service: it matches all hosts, so other virtual hosts cannot join
/// it.
pub fn is_of_one_service(table: &str) -> bool {
    table.contains(':') && !table.starts_with(names::UNIX_PREFIX)
}

/// The name of the route configuration of a service port with a listener of its own.
pub fn own_route_name(service: &Service, port: u16) -> String {
    names::virtual_host(service.host.as_str(), port)
}

/// The routes of a service's port, and the route set they come from: the first with a route that can match here, of those
/// that may decide.
pub fn http_routes<'a>(context: Context<'a>, service: &Service, port: u16) -> Option<(&'a Arc<RouteSet>, Vec<Route>)> {
    first_routes(context, deciding(&service.host, context.route_sets(service, port)), port)
}

/// Of the route sets for a host, the most specific first, those that may decide about its requests: all that name it, or
/// the first if none does. As in Istio (`mostSpecificWildcardVsIndex`) a wildcard does not stand in for a route set without
/// a route for the port.
fn deciding<'a>(host: &Hostname, mut route_sets: Vec<&'a Arc<RouteSet>>) -> Vec<&'a Arc<RouteSet>> {
    let names_it = |routes: &Arc<RouteSet>| routes.hosts.iter().any(|own| own.value == *host);
    let naming = route_sets.iter().take_while(|routes| names_it(routes)).count();
    route_sets.truncate(naming.max(1));
    route_sets
}

fn first_routes<'a>(
    context: Context<'a>,
    route_sets: Vec<&'a Arc<RouteSet>>,
    port: u16,
) -> Option<(&'a Arc<RouteSet>, Vec<Route>)> {
    let route_context = context.route_context(port);
    let mut found = route_sets.iter().enumerate().filter_map(|(at, route_set)| {
        let routes = route_set::placed_routes(route_context, route_set, &GatewayRef::Mesh);
        (!routes.is_empty()).then_some((at, *route_set, routes))
    });
    let (at, first, mut routes) = found.next()?;
    // Of what other clients see differently nothing is merged: what is for few takes precedence as a whole.
    let rest = route_sets.iter().skip(at + 1).filter(|other| {
        let nearness = |of: &RouteSet| of.export_to.nearness(&of.namespace, &context);
        first.is_sorted_with(other) && nearness(first) == nearness(other)
    });
    for other in rest {
        routes.extend(route_set::placed_routes(route_context, other, &GatewayRef::Mesh));
    }
    routes.sort_by_key(|(place, _)| *place);
    Some((first, routes.into_iter().map(|(_, route)| route).collect()))
}

/// The virtual host of a service, and the route set it comes from, if any.
fn service_host<'a>(
    context: Context<'a>,
    service: &Service,
    port: &ServicePort,
    route_sets: Vec<&'a Arc<RouteSet>>,
    named: Named<'_>,
) -> (VirtualHost, Option<Span>) {
    let name = names::virtual_host(service.host.as_str(), port.number);
    let (routes, origin) = match first_routes(context, deciding(&service.host, route_sets), port.number) {
        Some((route_set, routes)) => (routes, Some(route_set.origin.clone())),
        None => {
            let cluster = outbound_name(port, "", service, InnerProtocol::Http);
            let balancer = context.load_balancer(service, port.number, None);
            let mut route = Route {
                name: "default".to_owned(),
                r#match: Some(matches::everything()),
                action: Some(action::to_cluster(cluster, context.snapshot.mesh(), balancer.as_ref())),
                typed_per_filter_config: sessions::of_service(service),
                ..Default::default()
            };
            tracing::decorate(context, &mut route, service.host.as_str(), port.number);
            (vec![route], None)
        }
    };
    let mut domains = domains(context, service, port.number, named);
    if let Named::WithPort(_) = named {
        let with_port: Vec<String> = domains.iter().map(|domain| format!("{domain}:{}", port.number)).collect();
        domains.extend(with_port);
    }
    (virtual_host(context, name, domains, routes), origin)
}

/// Every name and address by which a client may call a service, those of its aliases included, unless they have routes of
/// their own. Pods of a headless Service also have names under each of its names (Istio's `generateVirtualHostDomains`).
fn domains(context: Context<'_>, service: &Service, port: u16, named: Named<'_>) -> Vec<String> {
    let listener = match named {
        Named::ByHost => context.sidecar().and_then(|sidecar| sidecar.egress(port)),
        Named::WithPort(listener) => Some(listener),
    };
    let mut all = names_of(context, service);
    let mut elsewhere: Vec<String> = Vec::new();
    for alias in context.aliases(service, listener) {
        all.extend(names_of(context, alias));
        if alias_routes(context, alias, port).is_some() {
            if alias_ports(context, alias).contains(&port) {
                elsewhere.extend(names_of(context, alias))
            } else {
                elsewhere.push(alias.host.to_string())
            }
        }
    }
    if service.headless && service.is_kubernetes() {
        let under: Vec<String> = all.iter().map(|name| format!("*.{name}")).collect();
        all.extend(under);
    }
    all.retain(|name| !elsewhere.contains(name));
    all.extend(context.vips(service).map(|vip| match vip {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }));
    all
}

fn names_of(context: Context<'_>, service: &Service) -> Vec<String> {
    let host = service.host.as_str();
    let mut all = vec![host.to_owned()];
    if !host.ends_with('*') {
        all.push(format!("{host}."));
    }
    all.extend(service.short_names(&context));
    all
}

/// The virtual host for unknown hosts in the table of a port.
pub fn unknown_host(context: Context<'_>, table: &str) -> VirtualHost {
    // A Unix socket has the port 0.
    let port = if table.starts_with(names::UNIX_PREFIX) { Ok(0) } else { table.parse() };
    let policy = port.map_or_else(|_| context.outbound_policy(), |port| context.outbound_policy_on(port));
    let (name, action) = match policy {
        SidecarOutboundPolicy::RegistryOnly => ("block_all", action::status(502)),
        SidecarOutboundPolicy::AllowAny
        | SidecarOutboundPolicy::AllowAnyDynamicDns
        | SidecarOutboundPolicy::EgressProxy(_) => {
            ("allow_any", action::pass_to(&context.unknown_cluster(policy, InnerProtocol::Http)))
        }
    };
    let route = Route {
        name: name.to_owned(),
        r#match: Some(matches::everything()),
        action: Some(action),
        ..Default::default()
    };
    virtual_host(context, name.to_owned(), vec!["*".to_owned()], vec![route])
}
