//! Route configurations of a workload's own requests: one per port, with a virtual host for each service.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::service::ServicePort;
use evenkeel_model::{GatewayRef, OutboundTrafficPolicy, Service};

use super::{Generated, action, configuration, matches, virtual_host, virtual_service};
use crate::clusters::outbound_name;
use crate::context::{Carried, Context};
use crate::names::{self, PASSTHROUGH_CLUSTER};
use crate::pb::config::route::{Route, VirtualHost};
use crate::tls::Inner;

/// The port under which hosts that only a VirtualService knows can be called.
const UNREGISTERED_HOST_PORT: u16 = 80;

/// One per HTTP port, named `PORT`, and one per service port without declared protocol, named `HOST:PORT`.
pub fn route_configurations(context: Context<'_>) -> Vec<Generated> {
    let mut by_port: BTreeMap<u16, Vec<(&Arc<Service>, &ServicePort)>> = BTreeMap::new();
    let mut own: Vec<Generated> = Vec::new();
    for (service, port, carried) in context.service_ports() {
        match carried {
            Carried::Tcp => {}
            Carried::Auto if Context::has_vips(service) => own.push(of_service(context, service, port)),
            Carried::Http | Carried::Auto => by_port.entry(port.number).or_default().push((service, port)),
        }
    }
    let shared = by_port.into_iter().map(|(number, services)| of_port(context, number, &services));
    shared.chain(own).collect()
}

/// The name of the route configuration of a service port with a listener of its own.
pub fn own_route_name(service: &Service, port: u16) -> String {
    names::virtual_host(service.host.as_str(), port)
}

fn of_port(context: Context<'_>, number: u16, services: &[(&Arc<Service>, &ServicePort)]) -> Generated {
    let mut origin = None;
    let mut hosts = Vec::new();
    for (service, port) in services {
        let (host, ruled_by) = service_host(context, service, port);
        origin = origin.or(ruled_by);
        hosts.push(host);
    }
    if number == UNREGISTERED_HOST_PORT {
        hosts.extend(unregistered_hosts(context));
    }
    hosts.push(unknown_host(context));
    let origin = origin.or_else(|| services.first().map(|(service, _)| service.origin.clone()));
    (configuration(number.to_string(), hosts), origin)
}

/// The routes behind a service's own listener: whoever connects to its address means it, whatever `Host` says.
fn of_service(context: Context<'_>, service: &Service, port: &ServicePort) -> Generated {
    let (mut host, ruled_by) = service_host(context, service, port);
    host.domains = vec!["*".to_owned()];
    let routes = configuration(own_route_name(service, port.number), vec![host]);
    (routes, ruled_by.or_else(|| Some(service.origin.clone())))
}

/// The virtual host of a service, and the VirtualService that rules it, if one does.
fn service_host(context: Context<'_>, service: &Service, port: &ServicePort) -> (VirtualHost, Option<Span>) {
    let name = names::virtual_host(service.host.as_str(), port.number);
    let ruling = context.virtual_service(service).filter(|v| !v.http.is_empty());
    let (routes, origin) = match ruling {
        Some(ruling) => {
            (virtual_service::routes(context, ruling, &GatewayRef::Mesh, port.number), Some(ruling.origin.clone()))
        }
        None => {
            let cluster = outbound_name(port, "", service, Inner::Http);
            let balancer = context.load_balancer(service, port.number, None);
            let route = Route {
                name: "default".to_owned(),
                r#match: Some(matches::everything()),
                action: Some(action::to_cluster(cluster, context.snapshot.mesh(), balancer.as_ref())),
                ..Default::default()
            };
            (vec![route], None)
        }
    };
    (virtual_host(name, domains(context, service), routes), origin)
}

/// Every name and address by which a client may call a service.
fn domains(context: Context<'_>, service: &Service) -> Vec<String> {
    let host = service.host.as_str();
    let mut all = vec![host.to_owned()];
    if !host.ends_with('*') {
        all.push(format!("{host}."));
    }
    all.extend(service.short_names(context.namespace()));
    all.extend(service.vips().map(|vip| match vip {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }));
    if service.headless && !service.host.is_wildcard() {
        all.push(format!("*.{host}"));
    }
    all
}

/// Hosts of VirtualServices that no service has.
fn unregistered_hosts(context: Context<'_>) -> Vec<VirtualHost> {
    let mut hosts = Vec::new();
    for ruling in context.snapshot.virtual_services_at(&GatewayRef::Mesh, context.namespace()) {
        let registered = |host: &Hostname| context.snapshot.sees_any_under(host, context.namespace());
        for host in ruling.hosts.iter().map(|h| &h.value).filter(|h| !registered(h)) {
            let routes = virtual_service::routes(context, ruling, &GatewayRef::Mesh, UNREGISTERED_HOST_PORT);
            if !routes.is_empty() {
                let name = names::virtual_host(host.as_str(), UNREGISTERED_HOST_PORT);
                hosts.push(virtual_host(name, vec![host.to_string()], routes));
            }
        }
    }
    hosts
}

/// Hosts nobody knows.
fn unknown_host(context: Context<'_>) -> VirtualHost {
    let (name, action) = match context.snapshot.mesh().outbound_traffic_policy {
        OutboundTrafficPolicy::AllowAny => ("allow_any", action::pass_to(PASSTHROUGH_CLUSTER)),
        OutboundTrafficPolicy::RegistryOnly => ("block_all", action::status(502)),
    };
    let route = Route {
        name: name.to_owned(),
        r#match: Some(matches::everything()),
        action: Some(action),
        ..Default::default()
    };
    virtual_host(name.to_owned(), vec!["*".to_owned()], vec![route])
}
