//! Namespaces and workloads.

use std::collections::BTreeMap;

use evenkeel_api::kubernetes::{Container, PodTemplate, TransportProtocol};
use evenkeel_api::{Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_model::Snapshot;
use evenkeel_model::labels::selects;

/// The user that sidecars run as in a cluster: its traffic is not captured.
const PROXY_USER: u32 = 1337;
/// The container of a proxy.
const PROXY_CONTAINER: &str = "istio-proxy";
/// Labels of the control plane's own Pods.
const CONTROL_PLANE: [(&str, &str); 2] = [("app", "istiod"), ("istio", "pilot")];

/// Namespaces with both injection labels (IST0123): which one counts depends on the cluster's webhooks.
pub fn injection_labels(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    for object in objects {
        let Resource::Namespace(_) = &object.resource else { continue };
        if object.labels.contains_key("istio-injection") && object.labels.contains_key("istio.io/rev") {
            let message = format!(
                "{object} has both labels `istio-injection` and `istio.io/rev`; `istio-injection` takes precedence"
            );
            let finding = Diagnostic::warning("two-injection-labels", object.origin.clone(), message);
            found.push(finding.with_help("remove one of them").about(object.reference()));
        }
    }
}

/// Programs that run as the sidecar's user (IST0144): in a cluster their traffic bypasses the mesh. As in Istio's analyzer,
/// proxies and the control plane may.
pub fn reserved_users(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    for object in objects {
        let (spec, labels) = match (&object.resource, template(object)) {
            (_, Some(template)) => (&template.spec, template.labels()),
            (Resource::Pod(pod), None) => (&pod.spec, object.labels.clone()),
            _ => continue,
        };
        let is_control_plane =
            CONTROL_PLANE.iter().any(|(name, value)| labels.get(*name).is_some_and(|own| own == value));
        if is_control_plane && object.namespace == snapshot.mesh.root_namespace {
            continue;
        }
        let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user.as_ref());
        let programs = spec.containers.iter().filter(|container| &*container.name.0 != PROXY_CONTAINER);
        let user = |container: &'_ Container| {
            let own = container.security_context.as_ref().and_then(|context| context.run_as_user.as_ref());
            own.or(of_pod).filter(|user| user.value == PROXY_USER).map(|user| user.span.clone())
        };
        let mut places: Vec<Span> = programs.filter_map(user).collect();
        places.dedup();
        for place in places {
            let message = format!("{object} runs as user {PROXY_USER}, the sidecar's: its traffic is not captured");
            let finding = Diagnostic::warning("reserved-uid", place, message);
            found.push(finding.with_help("choose another user").about(object.reference()));
        }
    }
}

/// Sidecars with different selectors that select the same workload (IST0110): the first applies.
pub fn sidecars_of_one_workload(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    for object in objects {
        let Some(template) = template(object) else { continue };
        let labels = template.labels();
        let selecting = snapshot.sidecars.iter().filter(|sidecar| {
            sidecar.namespace == object.namespace && !sidecar.selector.is_empty() && selects(&sidecar.selector, &labels)
        });
        let selecting: Vec<_> = selecting.collect();
        let Some((first, others)) = selecting.split_first() else { continue };
        for other in others {
            let message = format!(
                "Sidecar {}/{} selects {object}, to which `{}` already applies",
                other.namespace, other.name, first.name
            );
            let finding = Diagnostic::warning("same-workloads", other.origin.clone(), message)
                .with_help("let their selectors exclude each other, or merge the two")
                .with_related(first.origin.clone(), "this one applies");
            let is_it = |object: &&&Object| {
                matches!(object.resource, Resource::Sidecar(_))
                    && object.name == other.name
                    && object.namespace == other.namespace
            };
            found.push(match objects.iter().find(is_it) {
                Some(written) => finding.about(written.reference()),
                None => finding,
            });
        }
    }
}

/// Services that call the same port of a workload by different numbers (IST0137).
pub fn target_ports(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    let mut services: BTreeMap<&str, Vec<&Object>> = BTreeMap::new();
    for object in objects {
        if let Resource::Service(service) = &object.resource
            && !service.spec.selector.is_empty()
        {
            services.entry(&object.namespace).or_default().push(object);
        }
    }
    for object in objects {
        let Some(template) = template(object) else { continue };
        let labels = template.labels();
        // By the port of the workload: the port of the Service that leads to it, the Service, and its position.
        let mut known: BTreeMap<u16, (u16, &Object, Span)> = BTreeMap::new();
        for owner in services.get(&*object.namespace).into_iter().flatten() {
            let Resource::Service(service) = &owner.resource else { continue };
            if !selects(&service.spec.selector, &labels) {
                continue;
            }
            for port in &service.spec.ports {
                let target =
                    port.target_port.as_ref().map_or(Some(port.port.0), |target| template.spec.target_port(target));
                let Some(target) = target else { continue };
                let (number, span) = (port.port.value.0, port.port.span.clone());
                match known.get(&target) {
                    Some((first, other, place)) if *first != number && other.name != owner.name => {
                        let message = format!(
                            "{object}: its port {target} is port {first} of {other} and port {number} of {owner}; the sidecar can apply the settings of only one of them"
                        );
                        let finding = Diagnostic::warning("target-port-conflict", span, message)
                            .with_help("give both Services the same port")
                            .with_related(place.clone(), "the other one");
                        found.push(finding.about(owner.reference()));
                    }
                    Some(_) => {}
                    None => {
                        known.insert(target, (number, owner, span));
                    }
                }
            }
        }
    }
}

/// Ports of Services that lead to a port that no container of the selected Pods declares, though they declare others.
pub fn undeclared_targets(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    for owner in objects {
        let Resource::Service(service) = &owner.resource else { continue };
        let selected: Vec<(&&Object, &PodTemplate)> = objects
            .iter()
            .filter(|object| object.namespace == owner.namespace && !service.spec.selector.is_empty())
            .filter_map(|object| Some((object, template(object)?)))
            .filter(|(_, template)| selects(&service.spec.selector, &template.labels()))
            .collect();
        for port in
            service.spec.ports.iter().filter(|port| port.protocol.is_none_or(|own| own == TransportProtocol::Tcp))
        {
            for (object, template) in &selected {
                let declared: Vec<u16> = template.spec.tcp_ports().map(|own| own.container_port.0).collect();
                let target =
                    port.target_port.as_ref().map_or(Some(port.port.0), |target| template.spec.target_port(target));
                if declared.is_empty() || target.is_some_and(|target| declared.contains(&target)) {
                    continue;
                }
                let span = port.target_port.as_ref().map_or(&port.port.span, |target| &target.span);
                let leads = match target {
                    Some(target) => format!("leads to port {target}"),
                    None => "leads to a port by a name".to_owned(),
                };
                let message =
                    format!("{owner}: its port {} {leads}, which no container of {object} declares", port.port.0);
                let ports: Vec<String> = declared.iter().map(ToString::to_string).collect();
                let help = format!("they declare {}; if a program listens there, declare it, too", ports.join(", "));
                found.push(
                    Diagnostic::warning("target-port", span.clone(), message).with_help(help).about(owner.reference()),
                );
            }
        }
    }
}

/// The template of a workload's Pods.
pub fn template(object: &Object) -> Option<&PodTemplate> {
    match &object.resource {
        Resource::Deployment(set) => Some(&set.spec.template),
        Resource::StatefulSet(set) => Some(&set.spec.template),
        Resource::DaemonSet(set) => Some(&set.spec.template),
        _ => None,
    }
}
