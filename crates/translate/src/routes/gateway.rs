//! Route configurations of gateways: one per HTTP port, one per HTTPS server.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::{Gateway, GatewayRef, Nearness, RouteOrder, RouteSet, Server};

use super::action::RouteContext;
use super::{action, give_host, hosts_of, matches, put_together, require_tls, route_set, virtual_host};
use crate::context::Context;
use crate::listeners::gateway::{route_table, terminates_tls};
use crate::names;
use crate::output::{Collection, GatewayRoutes, Output, Part};
use crate::pb::config::route::Route;

/// The route configurations of a gateway: one per HTTP port, named `http.PORT`, and one per HTTPS server.
pub fn servers(context: Context<'_>, out: &mut Output<'_>) {
    for (table, server_index, _, server) in http_servers(context) {
        out.give(Collection::Routes(table.clone()), Part::Server(server.port, server.origin.clone()));
        // Even a host without routes is redirected to https.
        for host in server.hosts.iter().filter(|_| server.https_redirect) {
            let host = host.value.host.clone();
            give(&table, host, server_index, server, (None, Nearness::Own), Vec::new(), server.origin.clone(), out);
        }
    }
    misdirected(context, out);
}

/// Requests over TLS for a host of another HTTPS listener than the one that SNI chose get 421 (Misdirected Request, RFC 9110,
/// section 15.5.20), so that a client that shares a connection between hosts opens another one. Only listeners of the Gateway API,
/// which name the namespace of their proxies, do so; Istio's Gateways answer 404.
fn misdirected(context: Context<'_>, out: &mut Output<'_>) {
    let is_listener = |gateway: &Gateway, server: &Server| gateway.proxy_namespace.is_some() && terminates_tls(server);
    let all = http_servers(context);
    let listeners: Vec<_> = all.iter().filter(|(_, _, gateway, server)| is_listener(gateway, server)).collect();
    for (table, server_index, _, server) in &listeners {
        let others = listeners.iter().filter(|(other, _, _, of)| other != table && of.port == server.port);
        let own: HashSet<&Hostname> = server.hosts.iter().map(|host| &host.value.host).collect();
        let theirs: BTreeSet<&Hostname> =
            others.flat_map(|(_, _, _, of)| &of.hosts).map(|host| &host.value.host).collect();
        let theirs: Vec<&Hostname> = theirs.into_iter().filter(|host| !own.contains(host)).collect();
        let answer =
            Route { r#match: Some(matches::everything()), action: Some(action::status(421)), ..Default::default() };
        let answers = theirs.iter().map(|host| (*host, vec![answer.clone()]));
        // A host of its own without routes answers 404, and not as a wider host of another listener.
        let own = own.into_iter().filter(|_| !theirs.is_empty()).map(|host| (host, Vec::new()));
        for (host, routes) in answers.chain(own) {
            let (host, from, origin) = (host.clone(), (None, Nearness::Own), server.origin.clone());
            give(table, host, *server_index, server, from, routes, origin, out);
        }
    }
}

/// The routes for a host at a gateway from the route sets that name it.
pub fn of_host(context: Context<'_>, host: &Hostname, out: &mut Output<'_>) {
    let naming = context.snapshot.route_sets_naming(host, &context);
    if naming.is_empty() {
        return;
    }
    // Several servers of a table may have the same routes; those of the first are used.
    let mut given = HashSet::new();
    for (table, server_index, gateway, server) in http_servers(context) {
        let reference = GatewayRef::Named { namespace: gateway.namespace.clone(), name: gateway.name.clone() };
        for route_set in naming.iter().filter(|r| !r.http.is_empty() && r.applies_at(&reference)) {
            // A wildcard of the route set is served under each of the server's names below it.
            let served = server.hosts.iter().filter_map(|h| h.value.intersection(route_set, host));
            let served: BTreeSet<&Hostname> = served.collect();
            if served.is_empty() {
                continue;
            }
            let route_context = RouteContext { tls: terminates_tls(server), ..context.route_context(server.port) };
            let routes = route_set::routes(route_context, route_set, &reference);
            // Without routes here, requests are for the routes of a wider name.
            for served in served.into_iter().filter(|_| !routes.is_empty()) {
                let at = differs_by_gateway(route_set).then(|| reference.clone());
                let routes_of = (table.clone(), served, Arc::as_ptr(route_set), at);
                if !given.insert((routes_of, server.port, server.https_redirect)) {
                    continue;
                }
                let nearness = route_set.export_to.nearness(&route_set.namespace, &context);
                let (from, origin) = ((Some((*route_set).clone()), nearness), route_set.origin.clone());
                give(&table, served.clone(), server_index, server, from, routes.clone(), origin, out);
            }
        }
    }
}

/// Whether some routes of a route set are for some gateways only.
fn differs_by_gateway(route_set: &RouteSet) -> bool {
    route_set.http.iter().flat_map(|http| &http.matches).any(|condition| !condition.gateways.is_empty())
}

/// The HTTP servers of the Gateways that select a gateway proxy, with the name of their route configuration and their
/// position.
fn http_servers<'a>(context: Context<'a>) -> Vec<(Arc<str>, usize, &'a Gateway, &'a Server)> {
    let gateways = context.snapshot.gateways_for(&context);
    let servers = gateways.into_iter().flat_map(|gateway| gateway.servers.iter().map(move |s| (&**gateway, s)));
    let table = |(server_index, (gateway, server)): (usize, (&'a Gateway, &'a Server))| {
        let table = route_table(gateway, server, context.listening_port(server.port))?;
        Some((Arc::from(table), server_index, gateway, server))
    };
    servers.enumerate().filter_map(table).collect()
}

#[expect(clippy::too_many_arguments, reason = "all of it is the part")]
fn give(
    table: &Arc<str>,
    host: Hostname,
    server_index: usize,
    server: &Server,
    (route_set, nearness): (Option<Arc<RouteSet>>, Nearness),
    routes: Vec<Route>,
    origin: Span,
    out: &mut Output<'_>,
) {
    let (port, https_redirect) = (server.port, server.https_redirect);
    let part = GatewayRoutes { server: server_index, port, https_redirect, route_set, nearness, routes, origin };
    out.give(Collection::GatewayHost(table.clone(), host), Part::GatewayRoutes(part));
}

/// A virtual host of a route configuration, from all its routes in the order of precedence.
pub fn virtual_host_of(context: Context<'_>, table: &Arc<str>, host: &Hostname, parts: &[&Part], out: &mut Output<'_>) {
    let routes = |part: &&Part| match part {
        Part::GatewayRoutes(routes) => Some(routes.clone()),
        _ => None,
    };
    let mut all: Vec<GatewayRoutes> = parts.iter().filter_map(routes).collect();
    if all.len() > 1 {
        let places = context.snapshot.precedence(all.iter().filter_map(|of| of.route_set.as_ref()));
        let precedence = |route_set: &Arc<RouteSet>| places.get(&Arc::as_ptr(route_set)).copied().unwrap_or(usize::MAX);
        // The server's own routes come first.
        all.sort_by_key(|of| (of.server, of.nearness, of.route_set.as_ref().map(precedence)));
    }
    let Some(first) = all.first() else { return };
    let name = names::virtual_host(host.as_str(), first.port);
    let (origin, https_redirect) = (first.origin.clone(), all.iter().any(|of| of.https_redirect));
    // Several route sets may contribute to one host. A route that matches everything goes last; otherwise it would hide
    // the rest.
    let routes = sorted(all).into_iter().flat_map(|of| of.routes);
    let (last, mut routes): (Vec<Route>, Vec<Route>) = routes.partition(route_set::holds_always);
    routes.extend(last);
    let made = virtual_host(context, name, vec![host.to_string()], routes);
    let made = if https_redirect { require_tls(made) } else { made };
    give_host(context, table, &made, Some(origin), None, out);
}

/// Sorts the routes of all objects in which the order has no meaning, in place of the first of them.
fn sorted(all: Vec<GatewayRoutes>) -> Vec<GatewayRoutes> {
    [RouteOrder::ByPath, RouteOrder::ByPrecedence].into_iter().fold(all, sorted_by)
}

fn sorted_by(all: Vec<GatewayRoutes>, order: RouteOrder) -> Vec<GatewayRoutes> {
    let is_one = |of: &GatewayRoutes| of.route_set.as_ref().is_some_and(|set| set.order == order);
    if all.iter().filter(|of| is_one(of)).count() < 2 {
        return all;
    }
    let mut sorted = Vec::new();
    for of in all.iter().filter(|of| is_one(of)) {
        let routes = of.route_set.iter().flat_map(|set| &set.http);
        // A route for each condition; a route that always holds is the last one.
        let places = routes.flat_map(|http| std::iter::repeat_n(http.place(order), http.matches.len().max(1)));
        sorted.extend(places.zip(of.routes.iter().cloned()));
    }
    sorted.sort_by_key(|(place, _)| *place);
    let mut sorted = Some(sorted.into_iter().map(|(_, route)| route).collect::<Vec<Route>>());
    let place = |of: GatewayRoutes| {
        if is_one(&of) { GatewayRoutes { routes: sorted.take().unwrap_or_default(), ..of } } else { of }
    };
    all.into_iter().map(place).collect()
}

/// A route configuration of a gateway.
pub fn table(context: Context<'_>, name: &str, parts: &[&Part], out: &mut Output<'_>) {
    let server = |part: &&Part| match part {
        Part::Server(port, origin) => Some((*port, origin.clone())),
        _ => None,
    };
    let Some((port, server)) = parts.iter().find_map(server) else { return };
    let hosts = hosts_of(parts);
    // A listener without routes answers every request with 404.
    let nothing = || virtual_host(context, format!("blackhole:{port}"), vec!["*".to_owned()], Vec::new());
    let last = hosts.is_empty().then(nothing);
    let origin = hosts.first().and_then(|host| host.ruled_by.clone()).unwrap_or(server);
    out.add_table(name, put_together(context, name, &hosts, last), Some(origin));
}
