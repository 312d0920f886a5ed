//! PeerAuthentications and AuthorizationPolicies.

use std::sync::Arc;

use evenkeel_api::istio::{self, AuthorizationPolicySpec, PeerAuthenticationSpec, WorkloadSelector};
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::{Objects, note_idle_selector, shared};
use crate::policy::{Condition, ConditionKey, Operation, PathMatch, Rule, Source};
use crate::{AuthorizationAction, AuthorizationPolicy, Labels, MeshConfig, MtlsMode, PeerAuthentication, StringMatch};

pub(super) fn peer_authentications(
    objects: &Objects<'_>,
    mesh: &MeshConfig,
    diagnostics: &mut Diagnostics,
) -> Vec<Arc<PeerAuthentication>> {
    let mut built: Vec<Arc<PeerAuthentication>> = Vec::new();
    for object in objects.of(Kind::PeerAuthentication) {
        let Resource::PeerAuthentication(policy) = &object.resource else { continue };
        let policy = peer_authentication(object, policy.spec.as_ref());
        if policy.namespace == mesh.root_namespace && !policy.selector.is_empty() {
            let message =
                format!("{object} is ignored: in the root namespace only the mode of the whole mesh can be set");
            let help = "remove the selector, or move it to the namespace of the workloads";
            diagnostics.push(Diagnostic::warning("no-effect", object.origin.clone(), message).with_help(help));
            continue;
        }
        note_idle_selector(objects, object, &policy.selector, diagnostics);
        match built.iter().find(|p| p.namespace == policy.namespace && p.selector == policy.selector) {
            Some(first) => diagnostics.push(overridden(object, &policy, first)),
            None => built.push(Arc::new(policy)),
        }
    }
    // Stable: within a namespace the order of precedence stays.
    built.sort_by(|a, b| a.namespace.cmp(&b.namespace));
    built
}

fn overridden(object: &Object, policy: &PeerAuthentication, first: &PeerAuthentication) -> Diagnostic {
    let whom = if policy.selector.is_empty() { "the whole namespace" } else { "the same workloads" };
    let message = format!("{object} is ignored: `{}` already applies to {whom}", first.name);
    Diagnostic::warning("overridden", object.origin.clone(), message)
        .with_help("merge the two")
        .with_related(first.origin.clone(), "this one applies")
}

fn peer_authentication(object: &Object, spec: Option<&PeerAuthenticationSpec>) -> PeerAuthentication {
    let mode = |m: &istio::MutualTls| match m.mode {
        None | Some(istio::MtlsMode::Unset) => None,
        Some(istio::MtlsMode::Disable) => Some(MtlsMode::Disable),
        Some(istio::MtlsMode::Permissive) => Some(MtlsMode::Permissive),
        Some(istio::MtlsMode::Strict) => Some(MtlsMode::Strict),
    };
    PeerAuthentication {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        selector: selector(spec.and_then(|s| s.selector.as_ref())),
        mode: spec.and_then(|s| s.mtls.as_ref()).and_then(mode),
        port_modes: spec.map(|s| s.port_level_mtls.iter().map(|(p, m)| (p.0, mode(m))).collect()).unwrap_or_default(),
        origin: object.origin.clone(),
    }
}

fn selector(written: Option<&WorkloadSelector>) -> Labels {
    written.map(|s| s.match_labels.clone()).unwrap_or_default()
}

pub(super) fn authorization_policies(
    objects: &Objects<'_>,
    diagnostics: &mut Diagnostics,
) -> Vec<Arc<AuthorizationPolicy>> {
    let mut built: Vec<AuthorizationPolicy> = Vec::new();
    for object in objects.of(Kind::AuthorizationPolicy) {
        let Resource::AuthorizationPolicy(policy) = &object.resource else { continue };
        let policy = authorization_policy(object, policy.spec.as_ref());
        note_idle_selector(objects, object, &policy.selector, diagnostics);
        built.push(policy);
    }
    built.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    built.into_iter().map(Arc::new).collect()
}

fn authorization_policy(object: &Object, spec: Option<&AuthorizationPolicySpec>) -> AuthorizationPolicy {
    AuthorizationPolicy {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        selector: selector(spec.and_then(|s| s.selector.as_ref())),
        action: match spec.and_then(|s| s.action) {
            Some(istio::Action::Deny) => AuthorizationAction::Deny,
            Some(istio::Action::Allow) | None => AuthorizationAction::Allow,
        },
        rules: spec.map(|s| s.rules.iter().map(|r| rule(r, &object.namespace)).collect()).unwrap_or_default(),
        origin: object.origin.clone(),
    }
}

fn rule(rule: &istio::Rule, namespace: &str) -> Rule {
    Rule {
        from: rule.from.iter().map(|f| source(&f.source, namespace)).collect(),
        to: rule.to.iter().map(|t| operation(&t.operation)).collect(),
        when: rule.when.iter().filter_map(condition).collect(),
    }
}

fn strings(values: &[String]) -> Vec<StringMatch> {
    values.iter().map(|v| StringMatch::from_policy_value(v)).collect()
}

fn spanned_strings(values: &[Spanned<String>]) -> Vec<StringMatch> {
    values.iter().map(|v| StringMatch::from_policy_value(v)).collect()
}

fn source(source: &istio::Source, namespace: &str) -> Source {
    let accounts = |list: &[Spanned<String>]| {
        let account = |text: &Spanned<String>| match text.split_once('/') {
            Some((namespace, name)) => (shared(namespace), shared(name)),
            None => (shared(namespace), shared(text)),
        };
        list.iter().map(account).collect()
    };
    Source {
        principals: strings(&source.principals),
        not_principals: strings(&source.not_principals),
        namespaces: strings(&source.namespaces),
        not_namespaces: strings(&source.not_namespaces),
        service_accounts: accounts(&source.service_accounts),
        not_service_accounts: accounts(&source.not_service_accounts),
        ip_blocks: source.ip_blocks.clone(),
        not_ip_blocks: source.not_ip_blocks.clone(),
        remote_ip_blocks: source.remote_ip_blocks.clone(),
        not_remote_ip_blocks: source.not_remote_ip_blocks.clone(),
    }
}

fn operation(operation: &istio::Operation) -> Operation {
    // The decoder has checked that these are ports.
    let ports = |list: &[Spanned<String>]| list.iter().filter_map(|p| p.parse().ok()).collect();
    let paths = |list: &[Spanned<String>]| list.iter().map(|p| path(p)).collect();
    Operation {
        hosts: strings(&operation.hosts),
        not_hosts: strings(&operation.not_hosts),
        ports: ports(&operation.ports),
        not_ports: ports(&operation.not_ports),
        methods: strings(&operation.methods),
        not_methods: strings(&operation.not_methods),
        paths: paths(&operation.paths),
        not_paths: paths(&operation.not_paths),
    }
}

/// Envoy's templates write `*` for a segment and `**` for the rest, without the braces.
fn path(text: &str) -> PathMatch {
    match text.contains("{*}") || text.contains("{**}") {
        true => PathMatch::Template(text.replace("{**}", "**").replace("{*}", "*").into()),
        false => PathMatch::String(StringMatch::from_policy_value(text)),
    }
}

/// The decoder has checked that the key is one of these.
fn condition(condition: &istio::Condition) -> Option<Condition> {
    let key = condition.key.as_str();
    let header = key.strip_prefix("request.headers[").and_then(|rest| rest.strip_suffix(']'));
    let key = match (header, key) {
        (Some(name), _) => ConditionKey::RequestHeader(name.to_ascii_lowercase().into()),
        (None, "source.ip") => ConditionKey::SourceIp,
        (None, "remote.ip") => ConditionKey::RemoteIp,
        (None, "source.namespace") => ConditionKey::SourceNamespace,
        (None, "source.principal") => ConditionKey::SourcePrincipal,
        (None, "source.serviceAccount") => ConditionKey::SourceServiceAccount,
        (None, "destination.ip") => ConditionKey::DestinationIp,
        (None, "destination.port") => ConditionKey::DestinationPort,
        (None, "connection.sni") => ConditionKey::ConnectionSni,
        _ => return None,
    };
    let (values, not_values) = (spanned_strings(&condition.values), spanned_strings(&condition.not_values));
    Some(Condition { key, values, not_values })
}
