//! The decisions of a workload's policies about a call.

use evenkeel_api::ProxyPlace;
use evenkeel_model::{
    AuthorizationAction, AuthorizationPolicy, MtlsMode, PeerAuthentication as Peer, RequestAuthentication, Selectable,
    Workload,
};

use crate::answer::{Missing, PeerAuthentication, Policy};
use crate::near_miss::Facts;
use crate::world::World;

/// A decision of an RBAC filter: whether it let the call pass, and the rule that it names.
pub type Named<'a> = (bool, Option<&'a str>);

/// The AuthorizationPolicies that a workload's proxy asks in this place, in their order.
pub fn authorization(
    world: &World,
    (workload, place): (&Workload, ProxyPlace),
    facts: &Facts<'_>,
    decided: &[Named<'_>],
) -> Vec<Policy> {
    let all = world.snapshot.policies_for(&workload.namespace, &workload.labels).into_iter();
    all.filter(|policy| policy.is_for(place)).map(|policy| asked(world, workload, policy, facts, decided)).collect()
}

/// Where a workload's proxy judges what the workload is sent.
pub fn called_at(world: &World, workload: &Workload) -> ProxyPlace {
    if world.is_gateway(workload) { ProxyPlace::Gateway } else { ProxyPlace::Inbound }
}

/// What is not known about calls that a workload's proxy judges in this place, because something that would judge them is not
/// supported.
pub fn unknown(world: &World, workload: &Workload, place: ProxyPlace) -> Vec<String> {
    let all = world.snapshot.policies_for(&workload.namespace, &workload.labels).into_iter();
    all.filter(|policy| policy.is_for(place)).filter_map(|policy| policy.unknown()).collect()
}

/// The rules that judge the tokens of calls to a workload, in the order of the proxy's providers, each with where it is.
pub fn tokens(world: &World, workload: &Workload) -> Vec<String> {
    let all = world.snapshot.request_authentications_for(&workload.namespace, &workload.labels);
    let rule = |(authentication, index): (&RequestAuthentication, usize)| {
        let rule = authentication.rules.get(index)?;
        let object = format!("RequestAuthentication {}/{}", authentication.namespace, authentication.name);
        let source = world.source(object, &authentication.origin, &format!("spec.jwtRules[{index}].issuer"));
        let place = source.position().map(|position| format!(" ({position})")).unwrap_or_default();
        let keys = if rule.keys.text().is_some() { "" } else { ", whose keys are not known here" };
        Some((rule.issuer.clone(), format!("tokens of {}{keys} are judged by {}{place}", rule.issuer, source.object)))
    };
    let indexes = all.iter().flat_map(|one| (0..one.rules.len()).map(move |index| (&***one, index)));
    let mut rules: Vec<_> = indexes.filter_map(rule).collect();
    rules.sort_by(|(a, _), (b, _)| a.cmp(b));
    rules.into_iter().map(|(_, text)| text).collect()
}

fn asked(
    world: &World,
    workload: &Workload,
    policy: &AuthorizationPolicy,
    facts: &Facts<'_>,
    decided: &[Named<'_>],
) -> Policy {
    // Like DENY, CUSTOM and AUDIT ignore what TCP does not have.
    let is_deny = policy.action != AuthorizationAction::Allow;
    let facts = Facts { is_deny, principal: facts.principal.clone(), ..*facts };
    let named = decided.iter().find_map(|(_, name)| rule_of(policy, (*name)?));
    let needs_http = |rule| facts.request.is_none() && !is_deny && evenkeel_model::policy::Rule::needs_http(rule);
    let missing = |rule| {
        if needs_http(rule) {
            vec![Missing {
                field: "rule".to_owned(),
                wanted: "an HTTP request".to_owned(),
                got: "a TCP connection".to_owned(),
            }]
        } else {
            facts.missing(rule)
        }
    };
    let rules: Vec<Vec<Missing>> = policy.rules.iter().map(missing).collect();
    // Of rules that miss equally much, the one that names the caller is closer.
    let of_caller = |missing: &[Missing]| missing.iter().filter(|one| one.field.starts_with("from")).count();
    let closest = rules.iter().enumerate().min_by_key(|(_, missing)| (missing.len(), of_caller(missing)));
    // The proxy's filter decides; the rest is described in the policy's own terms.
    let (rule, missing) = match (named.flatten(), closest) {
        (Some(rule), _) => (Some(rule), Vec::new()),
        (None, Some((rule, missing))) => (Some(rule), missing.clone()),
        (None, None) => (None, Vec::new()),
    };
    let matches = named.is_some() || (rule.is_some() && missing.is_empty());
    let field = match (rule, missing.first()) {
        (Some(rule), Some(first)) if first.field != "rule" => {
            format!("spec.rules[{rule}].{}", first.field.split(' ').next().unwrap_or_default())
        }
        (Some(rule), _) => format!("spec.rules[{rule}]"),
        (None, _) => "metadata.name".to_owned(),
    };
    let object = policy.object();
    Policy {
        action: policy.action.to_string(),
        provider: policy.provider.as_ref().map(ToString::to_string),
        source: world.source(object, &policy.origin, &field),
        matches,
        decides: named.is_some(),
        rule,
        missing,
        at: format!("{}.{}", workload.pod, workload.namespace),
    }
}

/// The policy of a workload that an RBAC filter has named.
pub fn by_name(world: &World, workload: &Workload, name: &str) -> Option<Policy> {
    let all = world.snapshot.policies_for(&workload.namespace, &workload.labels);
    all.into_iter().find_map(|policy| {
        let rule = rule_of(policy, name)?;
        let field = rule.map_or_else(|| "metadata.name".to_owned(), |rule| format!("spec.rules[{rule}]"));
        let object = policy.object();
        Some(Policy {
            action: policy.action.to_string(),
            provider: policy.provider.as_ref().map(ToString::to_string),
            source: world.source(object, &policy.origin, &field),
            matches: true,
            decides: true,
            rule,
            missing: Vec::new(),
            at: format!("{}.{}", workload.pod, workload.namespace),
        })
    })
}

/// The number of the rule, if an RBAC filter's name is this policy's: `ns[NAMESPACE]-policy[NAME]-rule[N]`. A refused
/// policy's name has no number.
fn rule_of(policy: &AuthorizationPolicy, name: &str) -> Option<Option<usize>> {
    // The rules of CUSTOM policies are named after their provider, and if that cannot be asked, after this fact.
    let of_provider =
        policy.provider.as_ref().and_then(|provider| name.strip_prefix(&format!("istio-ext-authz-{provider}-")));
    let name = of_provider.unwrap_or(name);
    let suffixes = ["-deny-due-to-bad-CUSTOM-action", "-deny-of-what-is-not-HTTP"];
    let name = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    let rest = name.strip_prefix(&format!("ns[{}]-policy[{}]", policy.namespace, policy.name))?;
    Some(rest.strip_prefix("-rule[").and_then(|rest| rest.strip_suffix(']')?.parse().ok()))
}

/// Returns the mode of mutual TLS that a workload accepts on a port, and the PeerAuthentication that sets it.
pub fn authentication(world: &World, workload: &Workload, port: u16) -> PeerAuthentication {
    let mode = world.snapshot.mtls_mode(&workload.namespace, &workload.labels, port);
    let (own, root) = (
        world.snapshot.peer_authentications_of(&workload.namespace),
        world.snapshot.peer_authentications_of(&world.snapshot.mesh.root_namespace),
    );
    let of_workload = own.iter().find(|p| !p.selector.is_empty() && workload.labels.selected_by(&p.selector));
    let of_port = of_workload.filter(|p| p.port_modes.get(&port).is_some_and(Option::is_some));
    let whole =
        |list: &'_ [std::sync::Arc<Peer>]| list.iter().find(|p| p.selector.is_empty() && p.mode.is_some()).cloned();
    let refused = own.iter().chain(root).find(|p| p.refused && workload.labels.selected_by(&p.selector));
    let own_mode = of_workload.filter(|p| p.mode.is_some());
    let chosen = refused
        .map(|p| (p.clone(), p.mode.or(Some(MtlsMode::Strict)), "metadata.name".to_owned()))
        .or_else(|| {
            of_port.map(|p| {
                (p.clone(), p.port_modes.get(&port).copied().flatten(), format!("spec.portLevelMtls.{port}.mode"))
            })
        })
        .or_else(|| {
            own_mode.cloned().or_else(|| whole(own)).or_else(|| whole(root)).map(|p| {
                let mode = p.mode;
                (p, mode, "spec.mtls.mode".to_owned())
            })
        });
    // The policy that is named must agree with the query that configures proxies.
    let source = chosen
        .filter(|(_, said, _)| *said == Some(mode))
        .map(|(p, _, field)| world.source(format!("PeerAuthentication {}/{}", p.namespace, p.name), &p.origin, &field));
    PeerAuthentication { mode: mode.to_string(), source }
}
