//! Prints a snapshot in few lines.

use std::fmt::Write;

use evenkeel_base::Diagnostics;
use evenkeel_model::{Destination, Endpoint, HttpAction, RouteSet, Service, Snapshot, WeightedDestination};

pub(super) fn findings(diagnostics: &Diagnostics) -> String {
    let mut shown = String::new();
    for d in diagnostics {
        let _ = writeln!(shown, "{} {} {}\n  {}", d.span, d.severity, d.code, d.message);
        for (span, label) in &d.related {
            let _ = writeln!(shown, "  {span}: {label}");
        }
        let _ = writeln!(shown, "  help: {}", d.help.as_deref().unwrap_or("NONE"));
    }
    shown
}

pub(super) fn in_short(snapshot: &Snapshot) -> String {
    let mut shown = String::new();
    for service in snapshot.services.iter() {
        let _ = writeln!(shown, "{}", of_service(service));
        for port in &service.ports {
            let endpoints: Vec<_> = snapshot.endpoints(service, port.number).iter().map(of_endpoint).collect();
            let _ = writeln!(shown, "  {} {} {}: {}", port.number, port.protocol, port.name, endpoints.join(", "));
        }
    }
    for w in snapshot.workloads.iter() {
        let ports: Vec<_> = w.inbound_ports().iter().map(|p| format!("{} {}", p.port, p.protocol)).collect();
        let services: Vec<_> = w.services.iter().map(|s| s.host.as_str()).collect();
        let (name, ports, services) = (&w.workload_name, ports.join(", "), services.join(", "));
        let _ = writeln!(
            shown,
            "pod {}/{} of {name} as {} serves [{ports}] for [{services}]",
            w.namespace, w.pod, w.identity
        );
    }
    for rule in snapshot.destination_rules.iter() {
        let subsets: Vec<_> = rule.subsets.iter().map(|s| &*s.name).collect();
        let _ = writeln!(shown, "rule {}/{} for {}: [{}]", rule.namespace, rule.name, rule.host, subsets.join(", "));
    }
    for gateway in &snapshot.gateways {
        let _ = writeln!(shown, "gateway {}/{}", gateway.namespace, gateway.name);
        for server in &gateway.servers {
            let hosts: Vec<_> = server.hosts.iter().map(|h| h.value.to_string()).collect();
            let _ = writeln!(shown, "  {} {}: {}", server.port, server.protocol, hosts.join(", "));
        }
    }
    for service in snapshot.route_sets.iter() {
        let _ = write!(shown, "{}", of_route_set(service));
    }
    shown
}

fn of_service(service: &Service) -> String {
    let addresses: Vec<_> = service.addresses.iter().map(ToString::to_string).collect();
    format!("service {} {:?} [{}]", service.host, service.resolution, addresses.join(", "))
}

fn of_endpoint(e: &Endpoint) -> String {
    let flags = format!("{}{}", if e.ready { "" } else { " not ready" }, if e.mtls { " mtls" } else { "" });
    format!("{}:{}{flags}", e.address, e.port)
}

fn of_route_set(service: &RouteSet) -> String {
    let hosts: Vec<_> = service.hosts.iter().map(|h| h.as_str()).collect();
    let mut shown = format!("routes {}/{} for {hosts:?} at {:?}\n", service.namespace, service.name, service.gateways);
    for route in &service.http {
        let action = match &route.action {
            HttpAction::Route { destinations, .. } => {
                destinations.iter().map(of_weighted).collect::<Vec<_>>().join(", ")
            }
            HttpAction::Redirect(redirect) => format!("redirect {}", redirect.code),
            HttpAction::DirectResponse(response) => format!("answer {}", response.status),
        };
        let _ = writeln!(shown, "  http {}: {action}", route.name);
    }
    for destinations in service.tcp.iter().map(|r| &r.destinations).chain(service.tls.iter().map(|r| &r.destinations)) {
        let _ = writeln!(shown, "  l4: {}", destinations.iter().map(of_weighted).collect::<Vec<_>>().join(", "));
    }
    shown
}

fn of_weighted(weighted: &WeightedDestination) -> String {
    let Destination { host, subset, port, state, .. } = &weighted.destination;
    let subset = subset.as_ref().map(|s| format!("/{s}")).unwrap_or_default();
    let port = port.map(|p| format!(":{p}")).unwrap_or_default();
    format!("{host}{port}{subset} {} {state:?}", weighted.weight)
}
