//! DestinationRules and PeerAuthentications that contradict each other (IST0113).

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, ObjectRef};
use evenkeel_model::{ClientTls, DestinationRule, MtlsMode, Snapshot};

/// Rules that tell clients to use plain text where servers accept only mutual TLS, or the other way round.
pub fn conflicts(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    for rule in snapshot.destination_rules.iter() {
        conflict(objects, snapshot, rule, found);
    }
}

fn conflict(objects: &[&Object], snapshot: &Snapshot, rule: &DestinationRule, found: &mut Diagnostics) {
    // Only a wildcard has to be compared with every service.
    let services: Vec<_> = if rule.host.is_wildcard() {
        snapshot.services.iter().filter(|service| rule.host.covers(&service.host)).collect()
    } else {
        snapshot.services_of(rule.host.as_str()).iter().collect()
    };
    for service in services {
        for port in &service.ports {
            let endpoints = snapshot.endpoints(service, port.number);
            let subsets = std::iter::once(None).chain(rule.subsets.iter().map(|subset| Some(&*subset.name)));
            for subset in subsets {
                let Some(tls) = rule.policy_for(subset, port.number).tls else { continue };
                let of_subset = subset.and_then(|name| rule.subset(name));
                let is_mutual = matches!(tls, ClientTls::IstioMutual { .. });
                let mut modes = endpoints
                    .iter()
                    .filter(|endpoint| {
                        of_subset.is_none_or(|subset| evenkeel_model::labels::selects(&subset.labels, &endpoint.labels))
                    })
                    .filter(|endpoint| endpoint.identity.is_some())
                    .map(|endpoint| snapshot.mtls_mode(&endpoint.namespace, &endpoint.labels, endpoint.port));
                let wrong = if is_mutual { MtlsMode::Disable } else { MtlsMode::Strict };
                if !modes.any(|mode| mode == wrong) {
                    continue;
                }
                let name = format!("{} {}/{}", rule.kind, rule.namespace, rule.name);
                let (says, accepts) = if is_mutual {
                    ("use mutual TLS", "its workloads accept only plain text (DISABLE)")
                } else {
                    ("not use the mesh's mutual TLS", "its workloads accept only that (STRICT)")
                };
                let message = format!(
                    "{name} tells clients of {}:{} to {says}, but {accepts}: calls fail",
                    service.host, port.number
                );
                let span = of_subset.map_or(&rule.origin, |subset| &subset.origin).clone();
                let finding = Diagnostic::warning("mtls-conflict", span, message)
                    .with_help("remove `trafficPolicy.tls`: the mesh chooses what the workloads accept");
                found.push(finding.about(reference(objects, rule)));
                return;
            }
        }
    }
}

fn reference(objects: &[&Object], rule: &DestinationRule) -> ObjectRef {
    let is_it = |object: &&&Object| {
        object.kind() == rule.kind && object.namespace == rule.namespace && object.name == rule.name
    };
    let found = objects.iter().find(is_it).map(|object| object.reference());
    found.unwrap_or_else(|| ObjectRef {
        group: rule.kind.group(),
        kind: rule.kind.as_str(),
        namespace: rule.namespace.clone(),
        name: rule.name.clone(),
        source: evenkeel_base::SourceId::files(),
    })
}
