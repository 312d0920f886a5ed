//! Route configurations of gateways: one per HTTP port, one per HTTPS server.

use std::collections::BTreeMap;

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::{Gateway, GatewayRef, Server, ServerProtocol};

use super::{Generated, configuration, require_tls, virtual_host, virtual_service};
use crate::context::Context;
use crate::listeners::gateway::{bound_port, https_route, terminates_tls};
use crate::names;
use crate::pb::config::route::{Route, VirtualHost};

/// One per HTTP port, named `http.PORT`, and one per HTTPS server.
pub fn route_configurations(context: Context<'_>) -> Vec<Generated> {
    let mut plain: BTreeMap<u16, Vec<(&Gateway, &Server)>> = BTreeMap::new();
    let mut all = Vec::new();
    for gateway in context.snapshot.gateways_for(&context) {
        for server in &gateway.servers {
            match server.protocol {
                ServerProtocol::Http => plain.entry(bound_port(server.port)).or_default().push((gateway, server)),
                ServerProtocol::Https if terminates_tls(server) => {
                    all.push(routes(context, https_route(gateway, server), &[(gateway, server)]));
                }
                _ => {}
            }
        }
    }
    let shared = plain.into_iter().map(|(port, servers)| routes(context, names::gateway_route(port), &servers));
    shared.chain(all).collect()
}

fn routes(context: Context<'_>, name: String, servers: &[(&Gateway, &Server)]) -> Generated {
    let mut origin = None;
    let mut hosts: Vec<Host> = Vec::new();
    for (gateway, server) in servers {
        add_server(context, gateway, server, &mut hosts, &mut origin);
    }
    if hosts.is_empty() {
        // Listening without a route: every request is answered with 404.
        let port = servers.first().map_or(0, |(_, server)| server.port);
        let host = virtual_host(format!("blackhole:{port}"), vec!["*".to_owned()], Vec::new());
        return (configuration(name, vec![host]), servers.first().map(|(_, server)| server.origin.clone()));
    }
    let virtual_hosts = hosts.into_iter().map(Host::finish).collect();
    (configuration(name, virtual_hosts), origin)
}

/// A host and what the VirtualServices bound to it add up to.
struct Host {
    name: Hostname,
    port: u16,
    https_redirect: bool,
    routes: Vec<Route>,
}

fn add_server(
    context: Context<'_>,
    gateway: &Gateway,
    server: &Server,
    hosts: &mut Vec<Host>,
    origin: &mut Option<Span>,
) {
    let reference = GatewayRef::Named { namespace: gateway.namespace.clone(), name: gateway.name.clone() };
    if server.https_redirect {
        // Even a host without routes is sent to https.
        for host in &server.hosts {
            entry(hosts, &host.value.host, server);
            origin.get_or_insert_with(|| server.origin.clone());
        }
    }
    for ruling in context.snapshot.virtual_services_at(&reference, context.namespace()) {
        for wanted in &ruling.hosts {
            let served = server.hosts.iter().find_map(|h| h.value.intersection(ruling, &wanted.value));
            let Some(host) = served.filter(|_| !ruling.http.is_empty()) else { continue };
            let routes = virtual_service::routes(context, ruling, &reference, server.port);
            entry(hosts, host, server).routes.extend(routes);
            origin.get_or_insert_with(|| ruling.origin.clone());
        }
    }
}

fn entry<'h>(hosts: &'h mut Vec<Host>, name: &Hostname, server: &Server) -> &'h mut Host {
    let found = hosts.iter().position(|h| h.name == *name);
    let index = found.unwrap_or_else(|| {
        hosts.push(Host { name: name.clone(), port: server.port, https_redirect: false, routes: Vec::new() });
        hosts.len() - 1
    });
    let host = &mut hosts[index];
    host.https_redirect |= server.https_redirect;
    host
}

impl Host {
    fn finish(self) -> VirtualHost {
        let name = names::virtual_host(self.name.as_str(), self.port);
        // Several VirtualServices may add to one host: what always holds goes last, or it would hide the rest.
        let (last, mut routes): (Vec<Route>, Vec<Route>) =
            self.routes.into_iter().partition(virtual_service::holds_always);
        routes.extend(last);
        let host = virtual_host(name, vec![self.name.to_string()], routes);
        match self.https_redirect {
            true => require_tls(host),
            false => host,
        }
    }
}
