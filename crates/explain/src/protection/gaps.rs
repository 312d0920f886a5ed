//! Describes who may call, and what is not protected, in sentences.

use super::answer::{Policy, Protection, Rule};

/// Describes who may call a port, from its mutual TLS and the enforced policies.
pub fn callers((port, is_http, captured): (u16, bool, bool), mutual_tls: &str, policies: &[Policy]) -> Vec<String> {
    if !captured {
        return vec!["anyone: connections do not pass the proxy".to_owned()];
    }
    let mut all = vec![
        match mutual_tls {
            "STRICT" => "connections need a certificate of the mesh",
            "PERMISSIVE" => "with a certificate of the mesh or in plain text",
            "DISABLE" => "in plain text only",
            _ => "as the Gateway's servers say",
        }
        .to_owned(),
    ];
    let enforced: Vec<&Policy> = policies.iter().filter(|policy| !policy.dry_run && policy.is_of_callers).collect();
    let of = |action: &str| -> Vec<&&Policy> { enforced.iter().filter(|policy| policy.action == action).collect() };
    let applies = |rule: &&Rule| port == 0 || rule.ports.is_empty() || rule.ports.contains(&port);
    for policy in of("CUSTOM") {
        let provider = policy.provider.as_deref().unwrap_or("an external authorizer");
        for rule in policy.rules.iter().filter(applies) {
            // On a port that is declared to carry bytes.
            all.push(if policy.asks_about_requests && !is_http {
                format!("not asked: {provider} speaks HTTP, and decides about no bytes ({})", rule.text)
            } else {
                format!("{provider} decides about {}", rule.text)
            });
        }
    }
    for policy in of("DENY") {
        if let Some(what) = &policy.unsupported {
            let effect =
                if policy.closes { ", so what it might judge is refused" } else { ", and nothing enforces it" };
            all.push(format!("unknown: {what} is not supported{effect}"));
            continue;
        }
        if policy.refused {
            all.push(format!("refused: what {} might match, because it has mistakes", policy.source.object));
            continue;
        }
        for rule in policy.rules.iter().filter(applies) {
            // Without requests, conditions that need one are left out, so more is denied.
            let wider = if is_http || !rule.needs_http { "" } else { " (without what needs HTTP: more is refused)" };
            all.push(format!("refused: {}{wider}", rule.text));
        }
    }
    let allowing = of("ALLOW");
    if allowing.is_empty() {
        all.push("allowed: everything else".to_owned());
        return all;
    }
    let rules = allowing.iter().filter(|policy| !policy.refused).flat_map(|policy| &policy.rules);
    let rules: Vec<&Rule> = rules.filter(applies).filter(|rule| is_http || !rule.needs_http).collect();
    if rules.is_empty() {
        all.push("allowed: nothing, because no ALLOW rule can match".to_owned())
    } else {
        all.extend(rules.iter().map(|rule| format!("allowed: {}", rule.text)))
    }
    all
}

/// Returns what is not protected.
pub fn of(all: &Protection) -> Vec<String> {
    if all.proxy == "none" {
        return vec![
            "the workload has no proxy of the mesh: whoever reaches its address gets through, and no policy is asked"
                .to_owned(),
        ];
    }
    let mut gaps = Vec::new();
    for port in &all.ports {
        let name = port.port.map_or_else(|| "all other ports".to_owned(), |port| format!("port {port}"));
        let (accept, do_not) = if port.port.is_some() { ("accepts", "does not") } else { ("accept", "do not") };
        if !port.captured {
            gaps.push(format!(
                "{name} {do_not} pass the proxy, because annotations exclude it: no policy is asked there"
            ));
        } else if matches!(port.mutual_tls.as_str(), "PERMISSIVE" | "DISABLE") {
            let mode = &port.mutual_tls;
            gaps.push(format!("{name} {accept} plain text ({mode}): what is sent so can be read, and has no identity"));
        }
    }
    let enforced: Vec<&Policy> = all.policies.iter().filter(|policy| !policy.dry_run).collect();
    if !enforced.iter().any(|policy| policy.action == "ALLOW") {
        gaps.push("no ALLOW policy applies: whatever no other policy refuses is allowed, from anyone".to_owned());
    }
    for policy in enforced.iter().filter(|policy| policy.action == "ALLOW" && !policy.refused) {
        for (at, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| rule.callers == "any caller") {
            gaps.push(format!("rule {at} of {} allows any caller: {}", policy.source.object, rule.text));
        }
    }
    for what in enforced.iter().filter(|policy| !policy.closes).filter_map(|policy| policy.unsupported.as_ref()) {
        gaps.push(format!("{what} is not supported, and nothing enforces it: the calls that it would refuse pass"));
    }
    for policy in all.policies.iter().filter(|policy| policy.dry_run) {
        gaps.push(format!("{} is not enforced: it is only logged and counted (dry run)", policy.source.object));
    }
    let asks_for_tokens = |policy: &&&Policy| {
        policy.rules.iter().any(|rule| rule.text.contains("equestPrincipals ") || rule.text.contains("request.auth."))
    };
    if !all.request_authentications.is_empty() && !enforced.iter().any(|policy| asks_for_tokens(&policy)) {
        gaps.push("a request without a token passes: no policy asks for one (requestPrincipals)".to_owned());
    }
    gaps
}
