//! Gateways: the Deployments that are gateways, those that are provided because Gateways select them, and the ports that the
//! machine opens for all of them.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::decode::IntOrString;
use evenkeel_api::istio::{Gateway, ServerTlsMode};
use evenkeel_api::kubernetes::{PodTemplate, Service, ServiceType};
use evenkeel_api::{Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_inject::{GATEWAY_TEMPLATE, TEMPLATES_ANNOTATION};
use evenkeel_model::labels::selects;

use super::provided_gateways::{EGRESS, INGRESS, Provided};
use super::proxy_config::ProxyConfigs;
use super::served;
use super::{Sidecar, Workload};
use crate::pods::ContainerPort;
use crate::ports::{GatewayPort, UDP};

/// Label of a Service whose ports do not translate those of Gateways.
const NO_TRANSLATION_LABEL: &str = "experimental.istio.io/disable-gateway-port-translation";

/// Whether a template is that of a gateway: its Pods have a proxy, and no other program.
pub(super) fn is_gateway(template: &PodTemplate) -> bool {
    let none = BTreeMap::new();
    let annotations = template.metadata.as_ref().map_or(&none, |metadata| &metadata.annotations);
    evenkeel_inject::is_gateway(annotations, &template.spec)
}

/// Servers that the gateways with some labels have to offer.
struct GatewayServers<'a> {
    selector: &'a BTreeMap<String, String>,
    /// The object's namespace.
    namespace: String,
    /// Only gateways of this namespace offer them.
    is_local: bool,
    servers: Vec<Server>,
    /// The object, for findings.
    object: String,
    span: Span,
}

impl GatewayServers<'_> {
    fn selects(&self, workload: &Workload) -> bool {
        selects(self.selector, &workload.labels) && (!self.is_local || workload.namespace == self.namespace)
    }
}

/// A server without the gateway that offers it.
struct Server {
    number: u16,
    protocol: String,
    host: Option<String>,
    /// A path that a route serves.
    path: String,
    certificate: Option<String>,
    is_mutual: bool,
    span: Span,
}

/// Adds the gateways that Gateways select and the files do not have, and returns the ports that the machine opens for all
/// gateways.
pub(super) fn settle(
    objects: &[Object],
    proxies: &ProxyConfigs,
    workloads: &mut Vec<Workload>,
    diagnostics: &mut Diagnostics,
) -> Vec<GatewayPort> {
    let of_gateways = objects.iter().filter_map(|object| of_gateway(objects, object));
    let wanted: Vec<GatewayServers<'_>> = of_gateways.chain(converted(proxies)).collect();
    for one in &wanted {
        if workloads.iter().any(|workload| workload.sidecar == Sidecar::Gateway && one.selects(workload)) {
            continue;
        }
        match workloads.iter().find(|workload| one.selects(workload)) {
            Some(program) => diagnostics.push(not_served(one, program)),
            None => {
                let provided = Provided::of(one.selector, &one.namespace, objects);
                workloads.push(provided.workload(proxies, workloads));
            }
        }
    }
    let mut ports: Vec<GatewayPort> = Vec::new();
    for gateway in workloads.iter().filter(|workload| workload.sidecar == Sidecar::Gateway) {
        let in_front = services(objects, gateway);
        if !faces_outside(gateway, &in_front) {
            continue;
        }
        let mut numbers = BTreeSet::new();
        let of_it = wanted.iter().filter(|one| one.selects(gateway));
        for server in of_it.flat_map(|one| &one.servers) {
            if numbers.insert((server.number, server.protocol == UDP)) {
                ports.push(server.at(gateway, target_port(&in_front, gateway, server.number)));
            }
        }
    }
    // The first one is that of a `--gateway-port` without a number.
    let rank = |port: &GatewayPort| (port.owner.1 != INGRESS.name, port.owner.clone(), port.number);
    ports.sort_by_key(rank);
    ports
}

/// Only a workload that is no gateway has the labels.
fn not_served(one: &GatewayServers<'_>, program: &Workload) -> Diagnostic {
    let selector: Vec<String> = one.selector.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let message = format!(
        "the labels that {} selects ({}) are those of {}/{}, which is no gateway, so nothing serves it",
        one.object,
        selector.join(", "),
        program.namespace,
        program.name
    );
    let help = format!(
        "select other labels, such as `istio: ingressgateway`, or make it a gateway by the annotation \
         `{TEMPLATES_ANNOTATION}: {GATEWAY_TEMPLATE}` of its Pods"
    );
    Diagnostic::warning("no-gateway", one.span.clone(), message).with_help(help)
}

fn of_gateway<'a>(objects: &[Object], object: &'a Object) -> Option<GatewayServers<'a>> {
    let Resource::Gateway(gateway) = &object.resource else { return None };
    let servers = servers(gateway, &served::path(objects, object));
    Some(GatewayServers {
        selector: &gateway.spec.selector,
        namespace: object.namespace.to_string(),
        is_local: false,
        servers,
        object: object.to_string(),
        span: object.origin.clone(),
    })
}

/// `path`: one that its routes serve.
fn servers(gateway: &Gateway, path: &str) -> Vec<Server> {
    let servers = gateway.spec.servers.iter().map(|server| {
        let (port, tls) = (&server.port, server.tls.as_ref());
        let mode = tls.and_then(|tls| tls.mode);
        Server {
            number: port.number.0,
            protocol: port.protocol.value.clone(),
            host: server.hosts.iter().find_map(|host| name_of(host)),
            path: path.to_owned(),
            certificate: tls.and_then(|tls| tls.server_certificate.clone()),
            is_mutual: matches!(mode, Some(ServerTlsMode::Mutual | ServerTlsMode::IstioMutual)),
            span: port.number.span.clone(),
        }
    });
    servers.collect()
}

/// The gateways that the control plane makes of Ingresses and of the Gateway API.
fn converted(proxies: &ProxyConfigs) -> impl Iterator<Item = GatewayServers<'_>> {
    proxies.made_gateways().map(|gateway| {
        let servers = gateway.servers.iter().map(|server| Server {
            number: server.port,
            protocol: server.protocol.to_string(),
            host: server.hosts.iter().find_map(|host| name_of(host.host.as_str())),
            path: "/".to_owned(),
            certificate: None,
            is_mutual: false,
            span: server.origin.clone(),
        });
        let span = gateway.origin.clone();
        GatewayServers {
            selector: &gateway.selector,
            namespace: gateway.proxy_namespace.as_ref().unwrap_or(&gateway.namespace).to_string(),
            is_local: gateway.proxy_namespace.is_some(),
            servers: servers.collect(),
            object: format!("the object at {span}"),
            span,
        }
    })
}

/// The Services in front of a gateway that translate ports of Gateways, in the order of their names.
fn services<'a>(objects: &'a [Object], gateway: &Workload) -> Vec<&'a Service> {
    let of_it = |object: &'a Object| {
        let Resource::Service(service) = &object.resource else { return None };
        let selector = &service.spec.selector;
        let selects = !selector.is_empty() && selects(selector, &gateway.labels);
        let translates = !object.labels.contains_key(NO_TRANSLATION_LABEL);
        (selects && translates && *object.namespace == *gateway.namespace).then_some((&*object.name, &**service))
    };
    let mut found: Vec<(&str, &Service)> = objects.iter().filter_map(of_it).collect();
    found.sort_by_key(|(name, _)| *name);
    found.into_iter().map(|(_, service)| service).collect()
}

/// Whether a gateway is called from outside the mesh: by its place in Istio's installation, else by its Services. A gateway that
/// `up` provides has nothing else to say how it is called if no Service leads to it.
fn faces_outside(gateway: &Workload, in_front: &[&Service]) -> bool {
    let from_outside =
        |service: &&Service| matches!(service.spec.kind, Some(ServiceType::LoadBalancer | ServiceType::NodePort));
    match gateway.labels.get("istio").map(String::as_str) {
        Some(label) if label == INGRESS.label => true,
        Some(label) if label == EGRESS.label => in_front.iter().any(from_outside),
        _ if gateway.is_provided() && in_front.is_empty() => true,
        _ => in_front.iter().any(from_outside),
    }
}

/// The port on which a gateway listens for a port of a Gateway's server: the `targetPort` of the first Service in front of it
/// that has this port, as the control plane resolves it, or else the port itself.
fn target_port(in_front: &[&Service], gateway: &Workload, number: u16) -> u16 {
    let ports = in_front.iter().flat_map(|service| &service.spec.ports).filter(|port| port.port.value.0 == number);
    let target =
        |port: &evenkeel_api::kubernetes::ServicePort| match port.target_port.as_ref().map(|target| &target.value) {
            None => Some(number),
            Some(IntOrString::Port(target)) => Some(target.0),
            Some(IntOrString::Name(name)) => named_port(&gateway.ports, name),
        };
    ports.filter_map(target).next().unwrap_or(number)
}

fn named_port(ports: &[ContainerPort], name: &str) -> Option<u16> {
    ports.iter().find(|port| port.name.as_deref() == Some(name)).map(|port| port.number)
}

impl Server {
    fn at(&self, gateway: &Workload, listener: u16) -> GatewayPort {
        GatewayPort {
            owner: gateway.key(),
            number: self.number,
            listener,
            protocol: self.protocol.clone(),
            host: self.host.clone(),
            path: self.path.clone(),
            certificate: self.certificate.clone(),
            is_mutual: self.is_mutual,
            span: self.span.clone(),
        }
    }
}

/// A host name with which a client can reach a server's host: `NAMESPACE/HOST` without the namespace, and an example
/// for `*.HOST`. `None` if any name is served.
fn name_of(host: &str) -> Option<String> {
    let host = host.rsplit('/').next().filter(|host| *host != "*")?;
    Some(host.strip_prefix("*.").map_or_else(|| host.to_owned(), |suffix| format!("www.{suffix}")))
}
