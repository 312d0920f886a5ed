//! Finds all call paths of a caller to some workloads.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_model::{ClosedBy, Endpoint, EndpointAddress, Workload};
use evenkeel_runtime_config::hcm::RouteSource;
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::route::RouteAction;
use evenkeel_runtime_config::route_table::RouteTable;
use evenkeel_runtime_config::{Config, HttpConnectionManager};
use evenkeel_translate::names::BLACK_HOLE_CLUSTER;

use super::answer::{Claim, Party, Proof};
use super::call_path::{CallPath, First, Routed};
use super::call_paths::{self, Client, Dialled, Kind, ProxyArrival, UpstreamConnection};
use crate::arrival::Side;
use crate::hop;
use crate::proxy::Proxy;
use crate::transport;
use crate::world::World;

/// All call paths of a client to the targets; without targets, to hosts outside the mesh.
pub fn of(
    world: &World,
    claim: &Claim,
    client: &Client,
    targets: &[Arc<Workload>],
    proof: &mut Proof,
) -> Vec<CallPath> {
    match client {
        Client::Anyone => targets.iter().flat_map(|target| of_anyone(world, claim, target)).collect(),
        Client::Outside(gateway) => of_outside(world, claim, (client, gateway), targets, proof),
        Client::Workload(workload) => of_workload(world, claim, (client, workload), targets, proof),
    }
}

fn of_anyone(world: &World, claim: &Claim, target: &Arc<Workload>) -> Vec<CallPath> {
    let dialled = call_paths::dialled(world, std::slice::from_ref(target), (claim.host.as_deref(), claim.port));
    let is_own = |dialled: &Dialled| target.addresses.contains(&dialled.address.ip());
    dialled
        .into_iter()
        .filter(is_own)
        .map(|dialled| CallPath {
            client: Client::Anyone,
            upstream: UpstreamConnection { to: dialled.address, tls: dialled.tls.clone() },
            dialled,
            first: None,
            server: Some(Arc::clone(target)),
        })
        .collect()
}

fn of_workload(
    world: &World,
    claim: &Claim,
    (client, workload): (&Client, &Arc<Workload>),
    targets: &[Arc<Workload>],
    proof: &mut Proof,
) -> Vec<CallPath> {
    let mut all = Vec::new();
    let mut dialled = call_paths::dialled(world, targets, (claim.host.as_deref(), claim.port));
    if claim.to == Party::Outside {
        dialled.extend(call_paths::elsewhere(claim));
    }
    // Paths that lead to a target by its name come first, because a witness should call as people do.
    let leads = |dialled: &Dialled| {
        let service = dialled.host.as_ref().and_then(|host| world.snapshot.services_of(host.as_str()).first());
        let endpoints =
            service.map(|service| world.snapshot.endpoints(service, dialled.address.port())).unwrap_or_default();
        endpoints.iter().any(|endpoint| {
            let address = endpoint.address.clone();
            targets.iter().any(|target| target.addresses.iter().any(|own| address == EndpointAddress::Ip(*own)))
        })
    };
    dialled.sort_by_cached_key(|dialled| (dialled.kind != Kind::Http, !leads(dialled)));
    for dialled in dialled {
        if !world.leaves_through_proxy(workload, dialled.address) {
            for to in world.without_proxy_all(dialled.host.as_ref(), dialled.address) {
                let Some(server) = target_at(world, targets, to) else { continue };
                let upstream = UpstreamConnection { to, tls: dialled.tls.clone() };
                all.push(CallPath { client: client.clone(), dialled: dialled.clone(), first: None, upstream, server });
            }
            continue;
        }
        let met = |world: &World| ProxyArrival {
            proxy: world.proxy(workload),
            side: Side::Outbound,
            source: workload.addresses.first().copied().unwrap_or(call_paths::OUTSIDE.into()),
            destination: dialled.address,
            tls: dialled.tls.clone(),
            kind: dialled.kind,
        };
        all.extend(through(world, (client, &dialled), &met, targets, proof));
    }
    all
}

fn of_outside(
    world: &World,
    claim: &Claim,
    (client, gateway): (&Client, &Arc<Workload>),
    targets: &[Arc<Workload>],
    proof: &mut Proof,
) -> Vec<CallPath> {
    let proxy = world.proxy(gateway);
    let address = gateway.addresses.first().copied().unwrap_or(call_paths::OUTSIDE.into());
    let mut all = Vec::new();
    let servers = world.snapshot.gateways_for(&**gateway);
    let ports: Vec<u16> = servers.iter().flat_map(|gateway| gateway.servers.iter().map(|server| server.port)).collect();
    for port in ports.into_iter().collect::<BTreeSet<_>>() {
        if claim.port.is_some_and(|wanted| wanted != port) {
            continue;
        }
        let destination = SocketAddr::new(address, port);
        let Some(listener) = hop::listener(&proxy, Side::Gateway, destination) else { continue };
        for tls in call_paths::gateway_clients(listener) {
            for kind in [Kind::Http, Kind::Bytes, Kind::Tls] {
                if (kind == Kind::Tls) != tls.is_some() && kind != Kind::Http {
                    continue;
                }
                let name = claim.host.clone().or_else(|| tls.as_ref()?.server_name.clone());
                let name = name.unwrap_or_else(|| address.to_string());
                let dialled =
                    Dialled { address: destination, host: None, name, kind, tls: tls.clone(), unnamed_port: false };
                let met = |world: &World| ProxyArrival {
                    proxy: world.proxy(gateway),
                    side: Side::Gateway,
                    source: call_paths::OUTSIDE.into(),
                    destination,
                    tls: dialled.tls.clone(),
                    kind,
                };
                all.extend(through(world, (client, &dialled), &met, targets, proof));
            }
        }
    }
    all
}

/// The call paths through a first proxy.
fn through(
    world: &World,
    (client, dialled): (&Client, &Dialled),
    met: &dyn Fn(&World) -> ProxyArrival,
    targets: &[Arc<Workload>],
    proof: &mut Proof,
) -> Vec<CallPath> {
    let first = met(world);
    let Some((_, chain)) = first.served() else { return Vec::new() };
    let config = Arc::clone(&first.proxy.config);
    let mut leads: Vec<(Option<Routed>, Arc<str>)> = Vec::new();
    match &chain.terminal {
        Terminal::Tcp(proxy) => {
            let is_used = |weight: u32| weight > 0 || proxy.clusters.len() == 1;
            leads
                .extend(proxy.clusters.iter().filter(|own| is_used(own.weight)).map(|own| (None, own.cluster.clone())));
        }
        Terminal::Http(_) if dialled.kind != Kind::Http => {}
        Terminal::Http(manager) => {
            let Some(table) = table_of(&config, manager) else { return Vec::new() };
            for host in &table.virtual_hosts {
                for (number, route) in host.routes.iter().enumerate() {
                    let RouteAction::Forward(action) = &route.action else { continue };
                    let is_used = |weight: u32| weight > 0 || action.clusters.len() == 1;
                    for (entry, own) in action.clusters.iter().enumerate().filter(|(_, own)| is_used(own.weight)) {
                        let routed = Routed { table: Arc::clone(&table), host: Arc::clone(host), at: (number, entry) };
                        leads.push((Some(routed), own.cluster.clone()));
                    }
                }
            }
        }
    }
    let mut all = Vec::new();
    for (route, cluster) in leads {
        let Some(compiled) = config.clusters.get(&*cluster).filter(|_| *cluster != *BLACK_HOLE_CLUSTER) else {
            continue;
        };
        note_closed(world, &first.proxy, &cluster, targets, proof);
        let is_http = route.is_some();
        let own = dialled.tls.as_ref().filter(|_| chain.tls.is_none());
        for upstream in call_paths::upstreams(world, &first.proxy, compiled, (dialled.address, is_http), own) {
            let Some(server) = target_at(world, targets, upstream.to) else {
                note_gateway(world, &upstream, proof);
                continue;
            };
            let route = route.as_ref().map(|own| Routed {
                table: Arc::clone(&own.table),
                host: Arc::clone(&own.host),
                at: own.at,
            });
            let first = First { met: met(world), chain: Arc::clone(&chain), route, cluster: cluster.clone() };
            all.push(CallPath {
                client: client.clone(),
                dialled: dialled.clone(),
                first: Some(first),
                upstream,
                server,
            });
        }
    }
    all
}

/// Calls to a service that its clients refuse might get through, as far as is known.
fn note_closed(world: &World, proxy: &Proxy, cluster: &str, targets: &[Arc<Workload>], proof: &mut Proof) {
    let closed_by = transport::closed_by(world, &proxy.workload, cluster);
    if closed_by.is_empty() {
        return;
    }
    let Some((parts, service, _)) = transport::of_cluster(world, &proxy.workload, cluster) else { return };
    let endpoints = world.snapshot.endpoints(&service, parts.port);
    let leads_there = |target: &Arc<Workload>| {
        let is_its = |endpoint: &Endpoint| match &endpoint.address {
            EndpointAddress::Ip(address) => target.addresses.contains(address),
            EndpointAddress::Name(_) | EndpointAddress::Unix(_) => false,
        };
        endpoints.iter().any(is_its)
    };
    if targets.is_empty() || targets.iter().any(leads_there) {
        proof.closed.extend(closed_by.iter().map(ClosedBy::unknown));
    }
}

/// A call path over a further gateway is not followed.
fn note_gateway(world: &World, upstream: &UpstreamConnection, proof: &mut Proof) {
    let Some(gateway) = world.snapshot.workload_at(upstream.to.ip()).filter(|own| world.is_gateway(own)) else {
        return;
    };
    let note = format!("call paths over the gateway {}.{} are not followed", gateway.workload_name, gateway.namespace);
    if !proof.gateways.iter().any(|(known, _)| Arc::ptr_eq(known, gateway)) {
        proof.gateways.push((Arc::clone(gateway), note));
    }
}

/// Returns the target at an address: a workload, or a host outside the mesh.
fn target_at(world: &World, targets: &[Arc<Workload>], to: SocketAddr) -> Option<Option<Arc<Workload>>> {
    let found = world.snapshot.workload_at(to.ip());
    if targets.is_empty() {
        found.is_none().then_some(None)
    } else {
        targets.iter().find(|target| target.addresses.contains(&to.ip())).map(|target| Some(Arc::clone(target)))
    }
}

fn table_of(config: &Config, manager: &HttpConnectionManager) -> Option<Arc<RouteTable>> {
    match &manager.routes {
        RouteSource::Static(table) => Some(Arc::clone(table)),
        RouteSource::Rds(name) => config.routes.get(&**name).cloned(),
    }
}
