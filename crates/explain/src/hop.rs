//! The decision of one proxy about a call.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_api::ProxyPlace;
use evenkeel_filters::explain::query::{self, QueriedCall, QueriedHead, QueriedTls, chain_name};
use evenkeel_filters::explain::{Explainer, Explanation, Says, Step, Trace};
use evenkeel_model::{ClosedBy, GatewayRef, Workload};
use evenkeel_runtime_config::address::{EndpointAddress, ListenAddress};
use evenkeel_runtime_config::cluster::{Cluster as Compiled, Discovery, Endpoint as Host, Health};
use evenkeel_runtime_config::demand::listeners_of;
use evenkeel_runtime_config::listener::{Listener, Terminal};
use evenkeel_runtime_config::mirror::MirrorCluster;
use evenkeel_runtime_config::route::RouteAction;
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_translate::ambiguous;
use evenkeel_translate::names::{BLACK_HOLE_CLUSTER, PASSTHROUGH_CLUSTER, VIRTUAL_INBOUND, VIRTUAL_OUTBOUND};

use crate::answer::{Cluster, Endpoint, Hop, Mirror, Outcome, ProxyName, Retries, Rewrites, Route, Verdict};
use crate::arrival::{Arrival, Side, TlsClient};
use crate::considered::{self, RuleContext};
use crate::near_miss::Facts;
use crate::proxy::Proxy;
use crate::unaccepted_tls;
use crate::world::World;
use crate::{policies, transport};

/// Maximum number of endpoints of a cluster that are listed.
const MAX_ENDPOINTS: usize = 100;
/// Maximum number of weighted destinations that are listed.
const MAX_CLUSTERS: usize = 100;

/// The call as it leaves a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// The endpoint.
    pub to: SocketAddr,
    /// TLS towards it.
    pub tls: Option<TlsClient>,
    /// The request, if the proxy saw one.
    pub request: Option<PlainRequest>,
}

/// Takes a call through a proxy. Returns where it goes next, if it leaves the proxy.
pub fn take(world: &World, proxy: &Proxy, side: Side, arrival: &Arrival) -> (Hop, Option<Departure>) {
    let workload = &proxy.workload;
    let mut hop = Hop { proxy: name(side, workload), arrives: arrives(arrival), ..Hop::default() };
    let Some(listener) = listener_of(proxy, side, arrival) else {
        hop.verdict = Verdict {
            outcome: Outcome::Reset,
            reason: format!("nothing listens on {}", arrival.called()),
            ..Verdict::default()
        };
        add_refused(proxy, &mut hop);
        return (hop, None);
    };
    // A gateway's proxy sees the port that it listens on; rules refer to the one that was called.
    let called = arrival;
    let seen = Arrival { destination: at_listener(side, listener, called.destination), ..called.clone() };
    let arrival = &seen;
    let (explanation, trace) = decide(proxy, listener, arrival);
    hop.listener = Some(listener.name.to_string());
    hop.filter_chain = trace.chain.as_ref().map(|chain| chain_name(chain, listener));
    let has_request = explanation.steps.iter().any(|step| matches!(step, Step::VirtualHost { .. } | Step::NoRoute));
    read_steps(&explanation, &mut hop);
    hop.route = route(world, &trace).or_else(|| l4_route(world, proxy, arrival, &explanation));
    hop.virtual_host = hop.virtual_host.take().or_else(|| trace.host.as_ref().map(|host| host.name.to_string()));
    let gateways = gateways_of(world, side, workload);
    let asked = RuleContext {
        world,
        workload,
        gateways: &gateways,
        port: called.destination.port(),
        host: arrival.host.clone(),
    };
    if side != Side::Inbound && (has_request || trace.host.is_some()) {
        hop.considered = considered::rules(&asked, &trace, arrival.random);
    }
    add_policies(world, proxy, side, arrival, (&explanation, &trace), &mut hop);
    let chosen = add_clusters(world, proxy, &explanation, &trace, arrival, &mut hop);
    hop.rewrites = rewrites(&explanation, &trace, arrival.request.as_ref());
    hop.mirrors = mirrors(&trace, chosen.as_deref());
    hop.verdict = verdict(&explanation, &trace, &hop, arrival, chosen.as_deref());
    if let Some(cluster) = &chosen {
        add_closed(world, proxy, cluster, &mut hop);
    }
    unaccepted_tls::judge(side, arrival, &trace, &mut hop);
    add_refused(proxy, &mut hop);
    let left = chosen.filter(|_| hop.verdict.outcome == Outcome::Forward && hop.verdict.status.is_none());
    let departure = left.and_then(|cluster| departure(world, proxy, &cluster, &trace, arrival, &mut hop));
    (hop, departure)
}

pub fn name(side: Side, workload: &Workload) -> ProxyName {
    ProxyName {
        side: side.as_str(),
        workload: workload.workload_name.to_string(),
        pod: workload.pod.to_string(),
        namespace: workload.namespace.to_string(),
    }
}

fn arrives(arrival: &Arrival) -> String {
    let protocol = if arrival.request.is_some() { "HTTP" } else { "TCP" };
    match &arrival.tls {
        None => format!("plain {protocol} to {}", arrival.called()),
        Some(tls) => {
            let sni = tls.server_name.as_ref().map(|name| format!(", SNI {name}")).unwrap_or_default();
            match &tls.identity {
                Some(identity) => format!("mutual TLS to {} as {identity}{sni}", arrival.called()),
                None => format!("TLS to {}{sni}", arrival.called()),
            }
        }
    }
}

/// The listeners that may serve a connection at a proxy, by name, and the call as the first one sees it.
pub fn at_proxy(proxy: &Proxy, side: Side, arrival: &Arrival) -> (Vec<String>, Arrival) {
    let found = listener_of(proxy, side, arrival);
    let mut names: Vec<String> = found.iter().map(|listener| listener.name.to_string()).collect();
    match side {
        Side::Outbound if arrival.socket.is_some() => {}
        Side::Outbound => {
            names = listeners_of(arrival.destination).iter().map(ToString::to_string).collect();
            names.push(VIRTUAL_OUTBOUND.to_owned());
        }
        Side::Inbound => names.push(VIRTUAL_INBOUND.to_owned()),
        Side::Gateway => {}
    }
    let destination = found.map_or(arrival.destination, |listener| at_listener(side, listener, arrival.destination));
    (names, Arrival { destination, ..arrival.clone() })
}

fn listener_of<'p>(proxy: &'p Proxy, side: Side, arrival: &Arrival) -> Option<&'p Arc<Listener>> {
    let Some(socket) = &arrival.socket else { return listener(proxy, side, arrival.destination) };
    let is_it = |listener: &&Arc<Listener>| matches!(&listener.address, ListenAddress::Pipe(path) if path == socket);
    proxy.config.listeners.values().find(is_it)
}

/// The listener that serves a connection to this address.
pub fn listener(proxy: &Proxy, side: Side, destination: SocketAddr) -> Option<&Arc<Listener>> {
    let listeners = &proxy.config.listeners;
    let of_connections = || listeners.values().filter(|listener| listener.udp.is_none());
    let at_port =
        |port: u16| of_connections().find(|listener| listener.address.socket().map(|own| own.port()) == Some(port));
    match side {
        Side::Gateway => {
            let port = destination.port();
            // The Service in front of a gateway may lead to another port.
            let targets = |port: u16| proxy.workload.target_port(port).into_iter().chain([port]);
            let below = below_1024(port).into_iter().flat_map(targets);
            targets(port).chain(below).find_map(at_port)
        }
        Side::Outbound => {
            let by_address = listeners_of(destination).into_iter().find_map(|name| listeners.get(&*name));
            by_address.or_else(|| listeners.get(VIRTUAL_OUTBOUND))
        }
        Side::Inbound => {
            let is_own =
                |listener: &&Arc<Listener>| listener.address.socket() == Some(destination) && listener.bind_to_port;
            let bound = listeners_of(destination).into_iter().find_map(|name| listeners.get(&*name)).filter(is_own);
            bound.or_else(|| listeners.get(VIRTUAL_INBOUND))
        }
    }
}

/// The port of a Gateway that `evenkeel up` serves on this port of the machine's loopback, where it moves ports below 1024 up
/// by 8000.
pub fn below_1024(port: u16) -> Option<u16> {
    port.checked_sub(8000).filter(|port| (1..1024).contains(port))
}

/// The address as the proxy sees it.
pub fn at_listener(side: Side, listener: &Listener, destination: SocketAddr) -> SocketAddr {
    match side {
        Side::Gateway => SocketAddr::new(destination.ip(), listener.address.port().unwrap_or_default()),
        Side::Outbound | Side::Inbound => destination,
    }
}

/// The call as a proxy is asked about it.
pub fn asked(arrival: &Arrival, listeners: Vec<String>) -> QueriedCall {
    let tls = arrival.tls.as_ref().map(|tls| QueriedTls {
        server_name: tls.server_name.clone(),
        alpn: tls.alpn.clone(),
        identities: tls.identity.iter().cloned().collect(),
        ..QueriedTls::default()
    });
    let request = arrival.request.as_ref().map(|request| QueriedHead {
        method: request.method.clone(),
        authority: request.authority.clone(),
        path: request.path.clone(),
        scheme: request.scheme.clone(),
        headers: request.headers.clone(),
        ..QueriedHead::default()
    });
    QueriedCall {
        listeners,
        source: Some(arrival.source),
        destination: Some(arrival.destination),
        tls,
        request,
        random: arrival.random,
        ..QueriedCall::default()
    }
}

/// Lets the proxy decide.
fn decide(proxy: &Proxy, listener: &Listener, arrival: &Arrival) -> (Explanation, Trace) {
    let asked = asked(arrival, vec![listener.name.to_string()]);
    query::trace(&mut Explainer::default(), &proxy.config, listener, &asked)
}

/// Reads time limits, retries and filters from the steps.
fn read_steps(explanation: &Explanation, hop: &mut Hop) {
    for step in &explanation.steps {
        match step {
            Step::VirtualHost { name, .. } => hop.virtual_host = Some(name.to_string()),
            Step::Limits { limits, retries } => {
                hop.timeout = limits.timeout;
                let retries = retries.as_ref().filter(|retries| retries.most > 0 && !retries.on.is_empty());
                hop.retries = retries.map(|retries| Retries {
                    attempts: retries.most,
                    on: retries.on.clone(),
                    per_try_timeout: retries.per_try_timeout,
                });
            }
            Step::Filter { name, says, chance } if !matches!(says, Says::Passes) => {
                hop.filters.push(format!("{name}: {says}{}", if *chance { ", by chance" } else { "" }));
            }
            Step::Normalized { path, authority } => {
                hop.notes.push(format!("matched as path {path}, authority {authority}"));
            }
            Step::Route { share_ppm: Some(share), .. } => {
                hop.notes.push(format!("the route takes {} % of requests, at random", f64::from(*share) / 10_000.0));
            }
            _ => {}
        }
    }
}

fn route(world: &World, trace: &Trace) -> Option<Route> {
    let route = trace.route.as_ref()?;
    let source = route.origin.as_deref().and_then(|origin| world.of_route(origin)).map(|(_, source)| source);
    Some(Route { name: route.name.to_string(), source })
}

/// The tcp or tls rule of a route set that leads to the chosen cluster: filter chains do not name their rule.
fn l4_route(world: &World, proxy: &Proxy, arrival: &Arrival, explanation: &Explanation) -> Option<Route> {
    let Some(Step::Endpoints { cluster, .. } | Step::NoHost { cluster } | Step::NoCluster { cluster, .. }) =
        explanation.steps.last()
    else {
        return None;
    };
    let parts = transport::Parts::of(cluster)?;
    let host = arrival.host.as_ref()?;
    let leads = |destinations: &[evenkeel_model::WeightedDestination]| {
        destinations.iter().any(|to| {
            to.destination.host.as_str() == parts.host
                && to.destination.subset.as_deref().unwrap_or_default() == parts.subset
        })
    };
    let gateways =
        gateways_of(world, if proxy.workload.has_proxy { Side::Outbound } else { Side::Gateway }, &proxy.workload);
    let applies =
        |condition: &evenkeel_model::L4Match| condition.port.is_none_or(|port| port == arrival.destination.port());
    for set in world.snapshot.route_sets.iter() {
        let is_for =
            set.hosts.iter().any(|own| own.value.covers(host)) && set.gateways.iter().any(|at| gateways.contains(at));
        if !is_for {
            continue;
        }
        let tls = set.tls.iter().filter(|rule| rule.matches.iter().any(|(_, condition)| applies(condition)));
        let tls = tls.filter(|rule| leads(&rule.destinations)).map(|rule| &rule.origin);
        let tcp = set.tcp.iter().filter(|rule| rule.matches.is_empty() || rule.matches.iter().any(applies));
        let tcp = tcp.filter(|rule| leads(&rule.destinations)).map(|rule| &rule.origin);
        if let Some(span) = tls.chain(tcp).next() {
            let object = format!("{} {}/{}", set.kind, set.namespace, set.name);
            return Some(Route { name: String::new(), source: Some(crate::place::Source::at(object, span)) });
        }
    }
    None
}

/// Returns the gateways whose rules apply at a proxy.
fn gateways_of(world: &World, side: Side, workload: &Workload) -> Vec<GatewayRef> {
    match side {
        Side::Outbound => vec![GatewayRef::Mesh],
        Side::Inbound => Vec::new(),
        Side::Gateway => world
            .snapshot
            .gateways_for(workload)
            .into_iter()
            .map(|gateway| GatewayRef::Named { namespace: gateway.namespace.clone(), name: gateway.name.clone() })
            .collect(),
    }
}

fn add_policies(
    world: &World,
    proxy: &Proxy,
    side: Side,
    arrival: &Arrival,
    (explanation, trace): (&Explanation, &Trace),
    hop: &mut Hop,
) {
    let place = match side {
        Side::Inbound => ProxyPlace::Inbound,
        Side::Outbound => ProxyPlace::Outbound,
        Side::Gateway => ProxyPlace::Gateway,
    };
    let decided: Vec<policies::Named<'_>> = explanation
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Rbac { verdict } => Some((verdict.allowed, verdict.policy.as_deref())),
            _ => None,
        })
        .collect();
    let ends_tls = trace.chain.as_ref().is_some_and(|chain| chain.tls.is_some());
    let tls = arrival.tls.as_ref();
    let identity = tls.and_then(|tls| tls.identity.as_deref()).filter(|_| ends_tls);
    let facts = Facts {
        principal: identity.map(|id| id.trim_start_matches("spiffe://").to_owned()),
        source: arrival.source.ip(),
        client: trace.client.map_or(arrival.source.ip(), |client| client.ip()),
        destination: (arrival.destination.ip(), arrival.destination.port()),
        sni: tls.and_then(|tls| tls.server_name.as_deref()),
        request: trace.matched.as_ref(),
        is_deny: false,
        mesh: &world.snapshot.mesh,
    };
    hop.policies = policies::authorization(world, (&proxy.workload, place), &facts, &decided);
    hop.notes.extend(policies::unknown(world, &proxy.workload, place));
    if arrival.request.is_some() && side != Side::Outbound {
        hop.notes.extend(policies::tokens(world, &proxy.workload));
    }
    if side == Side::Inbound {
        hop.peer_authentication = Some(policies::authentication(world, &proxy.workload, arrival.destination.port()));
    }
}

/// Lists where the call may go; returns the cluster that it goes to.
fn add_clusters(
    world: &World,
    proxy: &Proxy,
    explanation: &Explanation,
    trace: &Trace,
    arrival: &Arrival,
    hop: &mut Hop,
) -> Option<Arc<Compiled>> {
    let chosen = explanation.steps.iter().rev().find_map(|step| match step {
        Step::Endpoints { cluster, .. } | Step::NoHost { cluster } | Step::NoCluster { cluster, .. } => {
            Some(Arc::clone(cluster))
        }
        _ => None,
    })?;
    let action = trace.route.as_ref().and_then(|route| match &route.action {
        RouteAction::Forward(action) => Some(action),
        RouteAction::Redirect(_) | RouteAction::DirectResponse { .. } => None,
    });
    let shares: Vec<(Arc<str>, u32)> = match (action, trace.chain.as_ref().map(|chain| &chain.terminal)) {
        (Some(action), _) => action.clusters.iter().map(|entry| (entry.cluster.clone(), entry.weight)).collect(),
        (None, Some(Terminal::Tcp(proxy))) => {
            proxy.clusters.iter().map(|entry| (entry.cluster.clone(), entry.weight)).collect()
        }
        _ => vec![(chosen.clone(), 1)],
    };
    for (name, weight) in shares.iter().take(MAX_CLUSTERS) {
        let compiled = proxy.config.clusters.get(&**name);
        hop.clusters.push(Cluster {
            name: name.to_string(),
            weight: (*weight).max(u32::from(shares.len() == 1)),
            chosen: *name == chosen,
            exists: compiled.is_some(),
            sources: transport::sources(world, &proxy.workload, name),
            endpoints: compiled.map(|cluster| endpoints(world, cluster, arrival)).unwrap_or_default(),
        });
    }
    proxy.config.clusters.get(&*chosen).cloned()
}

/// Says that a cluster has no endpoints because something that would judge the calls is not supported.
fn add_closed(world: &World, proxy: &Proxy, cluster: &Compiled, hop: &mut Hop) {
    let closed_by = transport::closed_by(world, &proxy.workload, &cluster.name);
    hop.notes.extend(closed_by.iter().map(ClosedBy::unknown));
    if let Some(first) = closed_by.first().filter(|_| hop.verdict.response_flag == Some("UH")) {
        hop.verdict.reason = format!("{} closes {}, because it is not supported", first.what, short(&cluster.name));
    }
}

fn endpoints(world: &World, cluster: &Compiled, arrival: &Arrival) -> Vec<Endpoint> {
    let workload = |address: &EndpointAddress| match address {
        EndpointAddress::Socket(address) => {
            let found = world.snapshot.workload_at(address.ip())?;
            Some(format!("{}.{}", found.pod, found.namespace))
        }
        EndpointAddress::Pipe(_) => None,
    };
    if let Discovery::OriginalDst(_) = &cluster.discovery {
        let address = EndpointAddress::Socket(arrival.destination);
        return vec![Endpoint {
            workload: workload(&address),
            address: arrival.destination.to_string(),
            locality: String::new(),
            priority: 0,
            healthy: true,
            flags: Vec::new(),
        }];
    }
    let describe = |host: &Arc<Host>| Endpoint {
        address: match &*host.hostname {
            "" => host.address.to_string(),
            name if workload(&host.address).is_none() && !matches!(host.address, EndpointAddress::Pipe(_)) => {
                named(name, &host.address)
            }
            _ => host.address.to_string(),
        },
        workload: workload(&host.address),
        locality: host.locality.to_string(),
        priority: host.priority,
        healthy: host.health == Health::Healthy,
        flags: Vec::new(),
    };
    cluster.endpoints.hosts.iter().take(MAX_ENDPOINTS).map(describe).collect()
}

/// A host that DNS finds, by its name.
fn named(name: &str, address: &EndpointAddress) -> String {
    match address {
        EndpointAddress::Socket(address) if !name.contains(':') => format!("{name}:{}", address.port()),
        _ => name.to_owned(),
    }
}

fn rewrites(explanation: &Explanation, trace: &Trace, request: Option<&PlainRequest>) -> Rewrites {
    let edits = explanation.steps.iter().filter_map(|step| match step {
        Step::Headers { edits, .. } => Some(edits.clone()),
        _ => None,
    });
    let mut all = Rewrites { headers: edits.flatten().collect(), ..Rewrites::default() };
    let (Some(request), Some(sent)) = (request, &trace.sent) else { return all };
    all.path = (sent.path != request.path).then(|| sent.path.clone());
    all.authority = (sent.authority != request.authority).then(|| sent.authority.clone());
    // With the values that the request determines.
    for line in &mut all.headers {
        let name = line.strip_prefix("request: add ").map(str::to_ascii_lowercase);
        let value = name.and_then(|name| sent.headers.iter().find(|(known, _)| *known == name));
        if let Some((_, value)) = value.filter(|(_, value)| !value.is_empty()) {
            line.push_str(&format!(": {value}"));
        }
    }
    all
}

fn mirrors(trace: &Trace, cluster: Option<&Compiled>) -> Vec<Mirror> {
    let of_route = trace.route.as_ref().and_then(|route| match &route.action {
        RouteAction::Forward(action) => action.mirrors.clone(),
        RouteAction::Redirect(_) | RouteAction::DirectResponse { .. } => None,
    });
    let all = cluster.and_then(|cluster| cluster.mirrors.clone()).or(of_route);
    let describe = |mirror: &evenkeel_runtime_config::mirror::MirrorPolicy| Mirror {
        cluster: match &mirror.cluster {
            MirrorCluster::Named(name) => name.to_string(),
            MirrorCluster::Header(header) => format!("named by header {header}"),
        },
        percentage: f64::from(mirror.fraction_ppm) / 10_000.0,
    };
    all.iter().flat_map(|all| all.iter()).map(describe).collect()
}

/// Returns the outcome of the call at this proxy.
fn verdict(
    explanation: &Explanation,
    trace: &Trace,
    hop: &Hop,
    arrival: &Arrival,
    cluster: Option<&Compiled>,
) -> Verdict {
    let details =
        explanation.answer.as_ref().map(|answer| answer.details.clone()).filter(|details| !details.is_empty());
    let status = explanation.answer.as_ref().map(|answer| answer.status);
    let made = |outcome, flag: &'static str, reason: String| Verdict {
        outcome,
        status,
        response_flag: (!flag.is_empty()).then_some(flag),
        details: details.clone(),
        location: None,
        reason,
    };
    let is_http = trace.matched.is_some();
    match explanation.steps.last() {
        Some(Step::Endpoints { cluster: name, count }) => {
            let is_anywhere = cluster.is_some_and(|cluster| cluster.discovery.is_by_call());
            let usable = hop.clusters.iter().filter(|c| c.chosen).flat_map(|c| &c.endpoints).any(|e| e.healthy);
            if is_anywhere || usable {
                return made(Outcome::Forward, "", format!("forwarded to {}", short(name)));
            }
            let why = match (&**name, count) {
                (BLACK_HOLE_CLUSTER, _) => "nothing that the workload may call has this address".to_owned(),
                (_, 0) => format!("{} has no endpoints", short(name)),
                _ => format!("{} has no healthy endpoint", short(name)),
            };
            if is_http {
                Verdict { status: Some(503), ..made(Outcome::Forward, "UH", why) }
            } else {
                made(Outcome::Reset, "UH", why)
            }
        }
        Some(Step::NoHost { cluster }) => {
            made(Outcome::Reset, "UH", format!("no host is resolved for {}", short(cluster)))
        }
        Some(Step::NoCluster { cluster, status: 0 }) => {
            made(Outcome::Reset, "NC", format!("{} does not exist", short(cluster)))
        }
        Some(Step::NoCluster { cluster, .. }) => {
            made(Outcome::Direct, "NC", format!("{} does not exist", short(cluster)))
        }
        Some(Step::Rbac { verdict }) if !verdict.allowed => {
            let reason = match &verdict.policy {
                Some(policy) => ambiguous::meaning(policy).unwrap_or_else(|| format!("denied by {policy}")),
                None => "no ALLOW policy of the workload matches".to_owned(),
            };
            let details = format!("rbac_access_denied_matched_policy[{}]", verdict.policy.as_deref().unwrap_or("none"));
            Verdict { details: Some(details), ..made(Outcome::Deny, "", reason) }
        }
        Some(Step::Redirect { location, .. } | Step::TlsRedirect { location } | Step::PathRedirect { location }) => {
            Verdict {
                location: Some(location.clone()),
                ..made(Outcome::Redirect, "", format!("redirected to {location}"))
            }
        }
        Some(Step::DirectResponse { .. }) => {
            let reason = match hop.virtual_host.as_deref() {
                Some("block_all") => "the outbound traffic policy is REGISTRY_ONLY, and nothing known has this host",
                _ => "the route answers by itself",
            };
            made(Outcome::Direct, "", reason.to_owned())
        }
        Some(Step::NoRoute) => made(Outcome::Direct, "NR", why_no_route(hop, arrival)),
        Some(Step::NoFilterChain { .. }) => made(Outcome::Reset, "NR", why_no_filter_chain(hop, arrival).to_owned()),
        Some(Step::NoRouteTable { name, .. }) => made(Outcome::Direct, "NR", format!("there is no route table {name}")),
        Some(Step::Filter { name, says: Says::Replies { flags, .. }, .. }) => {
            let flag = flags.short_names().next().unwrap_or_default();
            made(Outcome::Direct, flag, format!("the filter {name} answers"))
        }
        Some(Step::PathRefused { .. }) => made(Outcome::Direct, "", "the path is refused".to_owned()),
        Some(Step::UpgradeRefused { .. }) => made(Outcome::Direct, "", "the upgrade is not allowed".to_owned()),
        Some(Step::FilterChain { .. }) if !is_http => {
            made(Outcome::Reset, "DPE", "the port speaks HTTP, and the connection does not".to_owned())
        }
        Some(other) => made(Outcome::Reset, "", other.to_string()),
        None => made(Outcome::Reset, "", "nothing decides".to_owned()),
    }
}

fn why_no_route(hop: &Hop, arrival: &Arrival) -> String {
    match &hop.virtual_host {
        Some(_) => "no rule of the virtual host matches".to_owned(),
        None => {
            let host = arrival.request.as_ref().map_or("", |request| &request.authority);
            format!("no virtual host is for {host}")
        }
    }
}

fn why_no_filter_chain(hop: &Hop, arrival: &Arrival) -> &'static str {
    match (&arrival.tls, &hop.peer_authentication) {
        (None, Some(peer)) if peer.mode == "STRICT" => {
            "the workload accepts only mutual TLS (STRICT), and the call is plain text"
        }
        _ => "no filter chain accepts the connection",
    }
}

/// A cluster's name for people: host, port and subset.
pub fn short(name: &str) -> String {
    match transport::Parts::of(name) {
        Some(parts) if parts.subset.is_empty() => format!("{}:{}", parts.host, parts.port),
        Some(parts) => format!("{}:{} subset {}", parts.host, parts.port, parts.subset),
        None => name.to_owned(),
    }
}

/// Lists the resources that the proxy rejected: without them it decides differently.
pub fn add_refused(proxy: &Proxy, hop: &mut Hop) {
    hop.notes.extend(proxy.refused.iter().take(10).map(|refused| format!("the proxy refuses {refused}")));
}

/// The call as it leaves the proxy, towards the first healthy endpoint.
fn departure(
    world: &World,
    proxy: &Proxy,
    cluster: &Arc<Compiled>,
    trace: &Trace,
    arrival: &Arrival,
    hop: &mut Hop,
) -> Option<Departure> {
    if hop.proxy.side == "inbound" {
        return None;
    }
    let endpoint = first_healthy(cluster, None);
    hop.transport = Some(transport::describe(world, &proxy.workload, cluster, endpoint.map(AsRef::as_ref)));
    let (departure, tls) = leaving(world, proxy, (cluster, None), trace, arrival)?;
    let is_passthrough = *cluster.name == *PASSTHROUGH_CLUSTER;
    if let (Some(tls), true, Some(transport)) = (tls, is_passthrough, &mut hop.transport) {
        (transport.mode, transport.identity) = ("mtls", tls.identity);
        transport.reason = "automatic: the workload at this address requires mutual TLS".to_owned();
    }
    Some(departure)
}

/// The endpoint that a call goes to: the files do not show which are busy. `known`: the one that a proxy has chosen.
fn first_healthy(cluster: &Compiled, known: Option<SocketAddr>) -> Option<&Arc<Host>> {
    let is_known = |host: &&&Arc<Host>| known.is_some_and(|known| host.address == EndpointAddress::Socket(known));
    let healthy: Vec<&Arc<Host>> =
        cluster.endpoints.hosts.iter().filter(|host| host.health == Health::Healthy).collect();
    healthy.iter().find(is_known).or_else(|| healthy.iter().min_by_key(|host| host.priority)).copied()
}

/// The call as it leaves a proxy towards a cluster, and the TLS that the proxy itself begins. `known`: the endpoint that the proxy
/// has chosen.
pub fn leaving(
    world: &World,
    proxy: &Proxy,
    (cluster, known): (&Compiled, Option<SocketAddr>),
    trace: &Trace,
    arrival: &Arrival,
) -> Option<(Departure, Option<TlsClient>)> {
    let endpoint = first_healthy(cluster, known);
    let to = match (&cluster.discovery, endpoint.map(|endpoint| &endpoint.address)) {
        (Discovery::OriginalDst(_), _) => arrival.destination,
        (_, Some(EndpointAddress::Socket(address))) => *address,
        (_, Some(EndpointAddress::Pipe(_)) | None) => return None,
    };
    let own = tls_to(world, proxy, cluster, (to, endpoint.map(AsRef::as_ref)), trace.sent.is_some());
    // A client's own TLS passes through.
    let passed = || arrival.tls.clone().filter(|_| trace.chain.as_ref().is_some_and(|chain| chain.tls.is_none()));
    let tls = own.clone().or_else(passed);
    let request = trace.sent.clone().or_else(|| arrival.request.clone().filter(|_| tls_inside(arrival, trace)));
    Some((Departure { to, tls, request }, own))
}

/// ALPN protocols that sidecars offer each other for HTTP/1.1.
const MESH_HTTP1: [&str; 3] = ["istio-http/1.1", "istio", "http/1.1"];

/// The TLS of a proxy's connection to an endpoint, or to an address that was called directly.
pub fn tls_to(
    world: &World,
    proxy: &Proxy,
    cluster: &Compiled,
    (to, endpoint): (SocketAddr, Option<&Host>),
    is_http: bool,
) -> Option<TlsClient> {
    if let Discovery::OriginalDst(_) = &cluster.discovery {
        // Evenkeel's proxies have a table of the addresses that require it; the configuration here is that of any proxy.
        let called = world.snapshot.workload_at(to.ip()).and_then(|called| called.mutual.as_ref());
        let requires = called.is_some_and(|ports| ports.contains(to.port()));
        let is_mutual = requires && world.snapshot.mesh.enable_auto_mtls && *cluster.name == *PASSTHROUGH_CLUSTER;
        if is_mutual {
            return Some(TlsClient {
                server_name: None,
                alpn: MESH_HTTP1.map(str::to_owned).to_vec(),
                identity: Some(proxy.workload.identity.to_string()),
            });
        }
    }
    let tls = transport::tls(transport::compiled(cluster, endpoint))?;
    let is_mesh = transport::is_mesh(tls);
    let alpn = if is_mesh && is_http {
        MESH_HTTP1.map(str::to_owned).to_vec()
    } else {
        tls.alpn().iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    };
    let identity = is_mesh.then(|| proxy.workload.identity.to_string());
    Some(TlsClient { server_name: tls.server_name(), alpn, identity })
}

/// Whether the request is still there, unseen, inside what a TCP proxy passed on.
fn tls_inside(arrival: &Arrival, trace: &Trace) -> bool {
    arrival.tls.is_some() || trace.chain.as_ref().is_some_and(|chain| matches!(chain.terminal, Terminal::Tcp(_)))
}
