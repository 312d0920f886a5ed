//! Gateways.

use std::collections::BTreeMap;

use evenkeel_api::{Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_model::Snapshot;
use evenkeel_model::labels::selects;

use super::workloads::template;

/// A selector of proxies, and the certificate that they serve.
type Served<'o> = (&'o BTreeMap<String, String>, &'o str);

/// Gateways of the same proxies that serve the same certificate (IST0138): a browser reuses its connection for all names
/// of a certificate, and the other Gateway's names are 404 there.
pub fn duplicate_certificates(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    let mut known: BTreeMap<Served<'_>, (&Object, Span)> = BTreeMap::new();
    for object in objects {
        let Resource::Gateway(gateway) = &object.resource else { continue };
        let selector = &gateway.spec.selector;
        for server in &gateway.spec.servers {
            let Some(tls) = &server.tls else { continue };
            let Some(certificate) = tls.server_certificate.as_deref().filter(|path| !path.is_empty()) else { continue };
            match known.get(&(selector, certificate)) {
                Some((other, place)) if other.key() != object.key() => {
                    let message = format!(
                        "{object} and {other} serve the same certificate: clients that reuse a connection get 404 for the other's hosts"
                    );
                    let finding = Diagnostic::warning("duplicate-certificate", tls.span.clone(), message)
                        .with_help("serve the hosts of one certificate by one Gateway")
                        .with_related(place.clone(), "the other one");
                    found.push(finding.about(object.reference()));
                }
                Some(_) => {}
                None => {
                    known.insert((selector, certificate), (object, tls.span.clone()));
                }
            }
        }
    }
}

/// Labels of Istio's own gateways, which `evenkeel up` runs if no Deployment has them.
const BUILT_IN: [[(&str, &str); 2]; 2] = [
    [("app", "istio-ingressgateway"), ("istio", "ingressgateway")],
    [("app", "istio-egressgateway"), ("istio", "egressgateway")],
];

/// Gateways whose selector no Pod has (IST0101): no proxy serves them.
pub fn without_proxies(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    let labels_of = |object: &&Object| match (&object.resource, template(object)) {
        (_, Some(template)) => Some(template.labels()),
        (Resource::Pod(_), None) => Some(object.labels.clone()),
        _ => None,
    };
    let running: Vec<BTreeMap<String, String>> = objects.iter().filter_map(labels_of).collect();
    // Files without workloads describe only a part of the mesh.
    if running.is_empty() {
        return;
    }
    let own = BUILT_IN.map(|labels| labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    for object in objects {
        let Resource::Gateway(gateway) = &object.resource else { continue };
        let selector = &gateway.spec.selector;
        let is_served = running.iter().chain(&own).any(|labels| selects(selector, labels));
        if is_served || selector.is_empty() {
            continue;
        }
        let names: Vec<String> = selector.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let message = format!("{object} selects `{}`, which no Pod has: no proxy serves it", names.join(", "));
        let finding = Diagnostic::warning("selects-nothing", object.origin.clone(), message);
        found.push(finding.with_help("compare it with the labels of the gateways").about(object.reference()));
    }
}

/// Ports of Gateways that the Service in front of their proxies does not lead to (IST0162).
pub fn ports_not_exposed(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    for object in objects {
        let Resource::Gateway(gateway) = &object.resource else { continue };
        let selector = &gateway.spec.selector;
        let pods = objects.iter().filter_map(|owner| template(owner).map(|template| (owner, template)));
        let pods: Vec<_> =
            pods.filter(|(_, template)| !selector.is_empty() && selects(selector, &template.labels())).collect();
        let mut ports: Vec<u16> = Vec::new();
        let mut is_fronted = false;
        for service in objects {
            let Resource::Service(kubernetes) = &service.resource else { continue };
            let own = &kubernetes.spec.selector;
            for (_, template) in pods.iter().filter(|(owner, _)| owner.namespace == service.namespace) {
                if own.is_empty() || !selects(own, &template.labels()) {
                    continue;
                }
                is_fronted = true;
                for port in &kubernetes.spec.ports {
                    ports.push(port.port.value.0);
                    ports.extend(port.target_port.as_ref().and_then(|target| template.spec.target_port(target)));
                }
            }
        }
        for server in gateway.spec.servers.iter().filter(|_| is_fronted) {
            let number = server.port.number.value.0;
            if !ports.contains(&number) {
                let message = format!("{object}: no Service of its gateway leads to port {number}");
                let finding = Diagnostic::warning("port-not-exposed", server.port.number.span.clone(), message);
                found.push(finding.with_help("add the port to the gateway's Service").about(object.reference()));
            }
        }
    }
}
