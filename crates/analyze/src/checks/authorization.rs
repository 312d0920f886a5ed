//! AuthorizationPolicies whose provider cannot be asked, and rules about requests on ports without requests.

use evenkeel_api::istio::AuthorizationPolicySpec;
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::suggest::instead;
use evenkeel_base::{Diagnostic, Diagnostics};
use evenkeel_model::authz_provider::AuthzProvider;
use evenkeel_model::{AuthorizationAction, AuthorizationPolicy, Protocol, ServerProtocol, Service, Snapshot};

/// Reports CUSTOM policies whose provider is not declared, or whose service does not exist. Proxies deny requests that they
/// match.
pub fn providers(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    let custom = snapshot.authorization_policies.iter().filter(|policy| policy.action == AuthorizationAction::Custom);
    for policy in custom {
        let name = policy.provider.as_deref().unwrap_or_default();
        let known = &snapshot.mesh.authz_providers;
        let problem = match known.iter().find(|provider| *provider.name == *name) {
            None => {
                let help = instead(name, known.iter().map(|provider| &*provider.name));
                Some((format!("there is no provider `{name}` of external authorization"), help))
            }
            Some(provider) => unreachable_service(provider, snapshot),
        };
        if let Some((problem, help)) = problem {
            let message = format!(
                "AuthorizationPolicy {}/{}: {problem}; calls that the policy matches are refused",
                policy.namespace, policy.name
            );
            let name = written(objects, policy).and_then(|spec| spec.provider.as_ref()?.name.as_ref());
            let place = name.map_or(&policy.origin, |name| &name.span).clone();
            let finding = Diagnostic::error("unknown-provider", place, message).with_help(help);
            found.push(about(objects, policy, finding));
        }
    }
}

/// Why the provider's service cannot be asked, and what to do.
fn unreachable_service(provider: &AuthzProvider, snapshot: &Snapshot) -> Option<(String, String)> {
    let name = &provider.name;
    let Some(host) = &provider.service.host else {
        let help = "write `service: [NAMESPACE/]HOST` in `meshConfig.extensionProviders`".to_owned();
        return Some((format!("the service of the provider `{name}` is no host"), help));
    };
    let services = snapshot.services_of(host.as_str());
    let in_namespace = |service: &&std::sync::Arc<Service>| provider.service.is_in(&service.namespace);
    let Some(service) = services.iter().find(in_namespace) else {
        let place = provider.service.namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        let help = "add a Service or ServiceEntry for it; write the full name, e.g. `ext-authz.foo.svc.cluster.local`";
        return Some((
            format!("the provider `{name}` has the service {host}{place}, which does not exist"),
            help.into(),
        ));
    };
    if service.port(provider.service.port).is_none() {
        let ports: Vec<_> = service.ports.iter().map(|port| port.number.to_string()).collect();
        let problem =
            format!("the provider `{name}` has port {} of {host}, which does not exist", provider.service.port);
        return Some((problem, format!("its ports: {}", ports.join(", "))));
    }
    None
}

/// Rules about requests (hosts, methods, paths, headers, tokens) of policies for workloads with a TCP port.
pub fn requests_on_tcp_ports(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    for policy in snapshot.authorization_policies.iter().filter(|policy| !policy.of_tokens && !policy.refused) {
        let Some(rule) = policy.rules.iter().position(|rule| rule.needs_http()) else { continue };
        let written = written(objects, policy).and_then(|spec| spec.rules.get(rule));
        let place = written.map_or(&policy.origin, |rule| &rule.span).clone();
        let is_of_policy = |service: &&std::sync::Arc<Service>| {
            let in_namespace =
                service.namespace == policy.namespace || policy.namespace == snapshot.mesh.root_namespace;
            let selects = || policy.selection.includes(&policy.namespace, &service.namespace, &service.selector);
            in_namespace && !service.selector.is_empty() && selects()
        };
        let tcp = snapshot.services.iter().filter(is_of_policy).find_map(|service| {
            let port = service.ports.iter().find(|port| port.protocol == Protocol::Tcp)?;
            Some((service, port.number))
        });
        let Some((service, port)) = tcp else { continue };
        let effect = match policy.action {
            AuthorizationAction::Allow => "there it never matches",
            AuthorizationAction::Deny => "there these conditions are left out, so it refuses more",
            AuthorizationAction::Custom => {
                "there these conditions do not apply, so its provider decides about more requests"
            }
            AuthorizationAction::Audit => "there these conditions are left out, so it logs more",
        };
        let message = format!(
            "AuthorizationPolicy {}/{}: rule {rule} looks at requests, and port {port} of {} is TCP; {effect}",
            policy.namespace, policy.name, service.host
        );
        let help = "name the ports that the rule is about (`to[].operation.ports`), or write one rule for each kind";
        let finding = Diagnostic::warning("http-on-tcp", place, message).with_help(help);
        found.push(about(objects, policy, finding.with_related(service.origin.clone(), "this Service")));
    }
}

/// Policies for gateways with listeners of UDP. They judge connections and requests, and cannot judge datagrams, so such a listener is
/// closed.
pub fn closed_datagrams(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    for gateway in snapshot.gateways.iter() {
        let Some(server) = gateway.servers.iter().find(|server| server.protocol == ServerProtocol::Udp) else {
            continue;
        };
        let namespace = gateway.proxy_namespace.as_ref().unwrap_or(&gateway.namespace);
        let mut policies = snapshot.policies_for(namespace, &gateway.selector);
        for pod in snapshot.workloads.iter().filter(|pod| gateway.selects(&***pod)) {
            policies.extend(snapshot.policies_for(&pod.namespace, &**pod));
        }
        let Some(policy) = policies.first() else { continue };
        let message = format!(
            "AuthorizationPolicy {}/{} selects a gateway that serves datagrams at port {}: it cannot judge them, so all are dropped",
            policy.namespace, policy.name, server.port
        );
        let help = "serve UDP by a Gateway of its own, whose Pods no policy selects, and guard it by a NetworkPolicy";
        let finding = Diagnostic::warning("closed-datagrams", policy.origin.clone(), message).with_help(help);
        found.push(about(objects, policy, finding.with_related(server.origin.clone(), "the listener")));
    }
}

fn about(objects: &[&Object], policy: &AuthorizationPolicy, finding: Diagnostic) -> Diagnostic {
    match object_of(objects, policy) {
        Some(object) => finding.about(object.reference()),
        None => finding,
    }
}

fn object_of<'o>(objects: &[&'o Object], policy: &AuthorizationPolicy) -> Option<&'o Object> {
    let is_it = |object: &&Object| {
        object.kind() == Kind::AuthorizationPolicy && object.namespace == policy.namespace && object.name == policy.name
    };
    objects.iter().copied().find(is_it)
}

/// The policy as it is written; `None` if it was refused.
fn written<'o>(objects: &[&'o Object], policy: &AuthorizationPolicy) -> Option<&'o AuthorizationPolicySpec> {
    match &object_of(objects, policy)?.resource {
        Resource::AuthorizationPolicy(written) => written.spec.as_ref(),
        _ => None,
    }
}
