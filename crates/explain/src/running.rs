//! Compares the decisions of the running proxies on a call's path with the files.

use evenkeel_filters::explain::query::{Decision, EndpointState, ProxyDecision};
use evenkeel_runtime_config::cluster::Discovery;

use crate::answer::{Cluster, Endpoint, Hop, Outcome, Route, Running, Verdict};
use crate::arrival::{Arrival, Side};
use crate::hop::{self, Departure};
use crate::proxy::Proxy;
use crate::running_proxies::RunningProxies;
use crate::unaccepted_tls::NO_CERTIFICATE;
use crate::world::World;

/// Asks the proxy, and joins its answer with what the files say. Returns where the call goes next.
pub fn join(
    (world, proxy): (&World, &Proxy),
    (side, arrival): (Side, &Arrival),
    running: &dyn RunningProxies,
    hop: &mut Hop,
    departure: Option<Departure>,
) -> Option<Departure> {
    // A running proxy is asked about what comes after the handshake.
    if hop.verdict.reason == NO_CERTIFICATE {
        return departure;
    }
    let (listeners, seen) = hop::at_proxy(proxy, side, arrival);
    let answer = match running.decide(&hop.proxy, &hop::asked(&seen, listeners)) {
        Ok(answer) => answer,
        Err(error) => {
            hop.notes.push(format!("the running proxy was not asked: {error}; this is what the files say"));
            hop.running = Some(Running { error: Some(error), ..Running::default() });
            return departure;
        }
    };
    let ProxyDecision { decision, endpoint_states, generation, silent_workers } = answer;
    if silent_workers > 0 {
        hop.notes.push(format!("{silent_workers} workers of the running proxy do not answer"));
    }
    if decision.outcome == "hold" {
        let what = decision.steps.last().cloned().unwrap_or_default();
        hop.notes.push(format!(
            "the workload has not called this yet, so its proxy holds no configuration for it ({what}); this is what the files say"
        ));
        hop.running = Some(Running { held: true, generation, ..Running::default() });
        return departure;
    }
    let differs = differences(hop, &decision);
    let agrees = differs.is_empty();
    hop.running = Some(Running { agrees, differs, generation, ..Running::default() });
    if agrees {
        let departure = departure.map(|departure| toward_healthy(departure, &endpoint_states));
        add_states(world, proxy, endpoint_states, hop);
        return departure.filter(|_| hop.verdict.outcome == Outcome::Forward && hop.verdict.status.is_none());
    }
    hop.notes.push("the running proxy decides otherwise than the files say: it runs another configuration".to_owned());
    overwrite(world, hop, decision, endpoint_states);
    None
}

/// Returns the differences in the proxy's decision.
fn differences(hop: &Hop, decision: &Decision) -> Vec<String> {
    let files = &hop.verdict;
    let chosen = hop.clusters.iter().find(|cluster| cluster.chosen).map(|cluster| cluster.name.clone());
    let text = |value: Option<&str>| value.unwrap_or("none").to_owned();
    let route = hop.route.as_ref().map(|route| &*route.name);
    let is_by_state = decision.by_state;
    let pairs = [
        ("listener", text(hop.listener.as_deref()), text(decision.listener.as_deref())),
        ("virtual host", text(hop.virtual_host.as_deref()), text(decision.virtual_host.as_deref())),
        ("route", text(route.filter(|_| decision.route.is_some())), text(decision.route.as_deref())),
        ("cluster", text(chosen.as_deref()), text(decision.cluster.as_deref())),
        ("outcome", files.outcome.as_str().to_owned(), decision.outcome.clone()),
        ("status", status(files.status), status(decision.status)),
        ("location", text(files.location.as_deref()), text(decision.location.as_deref())),
    ];
    let differ = pairs.into_iter().filter(|(name, files, running)| {
        // An endpoint that has been removed since shows in the list of endpoints.
        let is_endpoints = *name == "status" && (files == "503" || running == "503") && decision.outcome == "forward";
        files != running && !is_endpoints && !is_by_state
    });
    differ.map(|(name, files, running)| format!("{name}: {running}; the files say {files}")).collect()
}

fn status(status: Option<u16>) -> String {
    status.map_or_else(|| "none".to_owned(), |status| status.to_string())
}

/// Towards an endpoint that takes requests.
fn toward_healthy(departure: Departure, states: &[EndpointState]) -> Departure {
    let is_fine = |state: &&EndpointState| state.healthy && state.address.parse() == Ok(departure.to);
    if states.iter().any(|state| is_fine(&state)) {
        return departure;
    }
    let other = states.iter().filter(|state| state.healthy).find_map(|state| state.address.parse().ok());
    Departure { to: other.unwrap_or(departure.to), ..departure }
}

/// Adds the endpoints' health as the proxy sees it.
fn add_states(world: &World, proxy: &Proxy, states: Vec<EndpointState>, hop: &mut Hop) {
    let Some(cluster) = hop.clusters.iter_mut().find(|cluster| cluster.chosen) else { return };
    let compiled = proxy.config.clusters.get(cluster.name.as_str());
    if compiled.is_some_and(|cluster| cluster.discovery.is_by_call()) {
        return;
    }
    let known: Vec<String> = states.iter().map(|state| state.address.clone()).collect();
    let has_any = !states.is_empty();
    let is_down = has_any && states.iter().all(|state| !state.healthy);
    let is_by_name =
        compiled.is_some_and(|cluster| matches!(cluster.discovery, Discovery::StrictDns(_) | Discovery::LogicalDns(_)));
    if is_by_name {
        cluster.endpoints = states.iter().map(|state| endpoint(world, state)).collect();
    } else {
        for state in &states {
            match cluster.endpoints.iter_mut().find(|endpoint| endpoint.address == state.address) {
                Some(endpoint) => (endpoint.healthy, endpoint.flags) = (state.healthy, state.flags.clone()),
                None => cluster.endpoints.push(endpoint(world, state)),
            }
        }
        for endpoint in cluster.endpoints.iter_mut().filter(|endpoint| !known.contains(&endpoint.address)) {
            endpoint.healthy = false;
            endpoint.flags = vec!["not_in_running_proxy".to_owned()];
        }
    }
    if is_down || !has_any {
        let name = hop::short(&cluster.name);
        hop.notes.push(format!("none of {name}'s endpoints takes requests now"));
        hop.verdict.response_flag = Some("UH");
        hop.verdict.reason = format!("{name} has no healthy endpoint");
        if hop.virtual_host.is_some() { hop.verdict.status = Some(503) } else { hop.verdict.outcome = Outcome::Reset }
    } else if hop.verdict.response_flag == Some("UH") {
        hop.verdict = Verdict { reason: format!("forwarded to {}", hop::short(&cluster.name)), ..Verdict::default() };
    }
}

fn endpoint(world: &World, state: &EndpointState) -> Endpoint {
    let address: Option<std::net::SocketAddr> = state.address.parse().ok();
    let workload = address.and_then(|address| world.snapshot.workload_at(address.ip()).cloned());
    Endpoint {
        address: state.address.clone(),
        workload: workload.map(|workload| format!("{}.{}", workload.pod, workload.namespace)),
        locality: String::new(),
        priority: 0,
        healthy: state.healthy,
        flags: state.flags.clone(),
    }
}

/// Replaces what the files say by what the proxy says.
fn overwrite(world: &World, hop: &mut Hop, decision: Decision, states: Vec<EndpointState>) {
    let outcome = Outcome::parse(&decision.outcome);
    let source = decision.origin.as_deref().and_then(|origin| world.of_route(origin)).map(|(_, source)| source);
    hop.listener = decision.listener;
    hop.filter_chain = decision.filter_chain;
    hop.virtual_host = decision.virtual_host;
    hop.route = decision.route.map(|name| Route { name, source });
    (hop.considered, hop.mirrors, hop.filters) = (Vec::new(), Vec::new(), Vec::new());
    (hop.timeout, hop.retries, hop.transport) = (None, None, None);
    hop.rewrites = crate::answer::Rewrites::default();
    let mut endpoints: Vec<Endpoint> = states.iter().map(|state| endpoint(world, state)).collect();
    let chosen = decision.cluster.clone().unwrap_or_default();
    let mut all = decision.clusters;
    if all.is_empty() && !chosen.is_empty() {
        all.push((chosen.clone(), 1));
    }
    hop.clusters = all
        .into_iter()
        .map(|(name, weight)| {
            let is_chosen = name == chosen;
            let endpoints = if is_chosen { std::mem::take(&mut endpoints) } else { Vec::new() };
            let exists = !is_chosen || decision.response_flag.as_deref() != Some("NC");
            Cluster { sources: Vec::new(), name, weight, chosen: is_chosen, exists, endpoints }
        })
        .collect();
    let flag = decision.response_flag.as_deref().and_then(known_flag);
    let reason = decision.steps.last().cloned().unwrap_or_default();
    hop.verdict = Verdict {
        outcome,
        status: decision.status,
        response_flag: flag,
        details: decision.details,
        location: decision.location,
        reason,
    };
}

/// A flag as the answer has it.
fn known_flag(flag: &str) -> Option<&'static str> {
    ["NR", "NC", "UH", "DPE", "FI", "DI", "UO", "RL", "RLSE", "UAEX"].into_iter().find(|known| *known == flag)
}
