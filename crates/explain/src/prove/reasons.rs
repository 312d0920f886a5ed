//! Why no request gets through on a call path: the objects without which one would.

use evenkeel_api::ProxyPlace;
use evenkeel_model::Workload;

use super::answer::{Claim, Party, Reason};
use super::call_path::{CallPath, LeftOut};
use super::call_paths::Client;
use super::search::is_open;
use crate::place::Source;
use crate::policies;
use crate::world::World;

/// The proxies that judge the calls of a call path: the workload's at its end, and that of the caller.
fn judges<'c>(world: &World, call_path: &'c CallPath) -> Vec<(&'c Workload, ProxyPlace)> {
    let server = call_path.server.iter().map(|server| (&**server, policies::called_at(world, server)));
    let client = match (&call_path.client, &call_path.first) {
        (Client::Workload(own), Some(_)) => Some((&**own, ProxyPlace::Outbound)),
        (Client::Outside(gateway), Some(_)) => Some((&**gateway, ProxyPlace::Gateway)),
        _ => None,
    };
    server.chain(client).collect()
}

/// What is not supported, and would judge the calls of a call path.
pub fn unknown(world: &World, call_path: &CallPath) -> Vec<String> {
    let all = judges(world, call_path).into_iter();
    let mut all: Vec<String> = all.flat_map(|(workload, place)| policies::unknown(world, workload, place)).collect();
    all.dedup();
    all
}

/// Whether only what stands in for something that is not supported refuses all requests of a call path.
pub fn is_unknown(world: &World, claim: &Claim, call_path: &CallPath) -> bool {
    let mut policies = Vec::new();
    for (workload, place) in judges(world, call_path) {
        let all = world.snapshot.policies_for(&workload.namespace, &workload.labels).into_iter();
        let unsupported = all.filter(|policy| policy.unsupported.is_some() && policy.is_for(place));
        policies.extend(unsupported.map(|policy| named(policy)));
    }
    !policies.is_empty() && is_open(call_path, world, claim, &LeftOut { policies, allow: false })
}

/// The name of a policy in the rules of proxies.
fn named(policy: &evenkeel_model::AuthorizationPolicy) -> String {
    let kind = if policy.of_tokens { "request-authentication" } else { "policy" };
    format!("ns[{}]-{kind}[{}]", policy.namespace, policy.name)
}

/// Returns why nothing gets through on a call path.
pub fn of(world: &World, claim: &Claim, call_path: &CallPath) -> Reason {
    let from = call_path.client.name();
    let Some(server) = &call_path.server else {
        return Reason { text: format!("{from} cannot reach {}", call_path.upstream.to), sources: Vec::new() };
    };
    let name = format!("{}.{}", server.workload_name, server.namespace);
    let port = call_path.upstream.to.port();
    if let Some(met) = call_path.at_server(world) {
        let needs = met.served().map(|(_, chain)| chain.tls.as_ref().is_some_and(|tls| tls.is_mutual()));
        let has = call_path.upstream.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        if needs.is_none() || (needs == Some(true) && !has) {
            let peer = policies::authentication(world, server, port);
            let how = super::call_paths::secured(call_path.upstream.tls.as_ref());
            let text = format!("{name} accepts on port {port} only mutual TLS ({}), and {from} sends {how}", peer.mode);
            return Reason { text, sources: peer.source.into_iter().collect() };
        }
    }
    let enforced = world.snapshot.policies_for(&server.namespace, &server.labels);
    let enforced: Vec<_> = enforced.into_iter().filter(|policy| !policy.dry_run).collect();
    // An object that can be left out without opening the call path is not the reason.
    let mut left_out = LeftOut::default();
    // What the caller's proxy refuses, it refuses in place of something that is not supported, which is told already.
    if let Client::Workload(own) = &call_path.client {
        let stand_ins = world.snapshot.outbound_policies_for(&own.namespace, &own.labels).into_iter();
        left_out.policies.extend(stand_ins.map(|policy| named(policy)));
    }
    let mut kept = Vec::new();
    let denying = enforced.iter().filter(|policy| policy.action.to_string() == "DENY");
    for policy in denying.clone() {
        left_out.policies.push(named(policy));
    }
    let needs_allow = !is_open(call_path, world, claim, &left_out);
    left_out.allow = !needs_allow;
    if needs_allow {
        let without_any = LeftOut { allow: true, ..left_out.clone() };
        if !is_open(call_path, world, claim, &without_any) {
            let text = format!("no route or filter chain leads such requests from {from} to {name}, port {port}");
            return Reason { text, sources: Vec::new() };
        }
        let allowing = enforced.iter().filter(|policy| policy.action.to_string() == "ALLOW");
        let sources = allowing.map(|policy| source(world, policy)).collect();
        let text = format!("no ALLOW policy of {name} matches any request of {from} to port {port}");
        return Reason { text, sources };
    }
    // The ALLOW policies alone let something pass: they stay, and DENY policies are added again one after the other.
    left_out.allow = false;
    for policy in denying {
        let mut tried = left_out.clone();
        tried.policies.retain(|own| *own != named(policy));
        if is_open(call_path, world, claim, &tried) {
            left_out = tried;
        } else {
            kept.push(source(world, policy));
        }
    }
    let what = if enforced.iter().any(|policy| policy.action.to_string() == "ALLOW") {
        "what ALLOW policies let pass"
    } else {
        "every request"
    };
    Reason { text: format!("DENY policies of {name} refuse {what} from {from} to port {port}"), sources: kept }
}

fn source(world: &World, policy: &evenkeel_model::AuthorizationPolicy) -> Source {
    let field = if policy.rules.is_empty() { "metadata.name" } else { "spec.rules[0]" };
    let object = if policy.of_tokens && policy.unsupported.is_none() {
        format!("RequestAuthentication {}/{}", policy.namespace, policy.name)
    } else {
        policy.object()
    };
    world.source(object, &policy.origin, field)
}

/// Why there is not even a call path.
pub fn no_way(claim: &Claim) -> String {
    match (&claim.from, &claim.to) {
        (Party::Outside, _) => "no route of a gateway leads there".to_owned(),
        (_, Party::Outside) => "no listener or route leads out of the mesh (REGISTRY_ONLY)".to_owned(),
        _ => "no service, route or Sidecar leads there".to_owned(),
    }
}
