//! Workloads: each is one Pod or WorkloadEntry.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::mutual_addresses::MutualPorts;
use evenkeel_base::spiffe::SpiffeId;

use crate::labels::{Labels, Selectable};
use crate::service::{EndpointAddress, Protocol, Service, ServicePort, TargetPort};
use crate::visibility::Viewer;

/// Namespace and name of a Pod; a WorkloadEntry's name follows [`ENTRY_PREFIX`], that of a Pod in a remote cluster follows the
/// cluster ([`evenkeel_api::remote::name_in`]).
pub type Pod = (Arc<str>, Arc<str>);

/// The label of Services that do not say on which port a gateway listens.
const UNTRANSLATED_LABEL: &str = "experimental.istio.io/disable-gateway-port-translation";

/// Prefix of a WorkloadEntry's name in [`Pod`]. No Pod has such a name.
pub const ENTRY_PREFIX: &str = "workloadentry/";

/// One replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The Pod's name, as in [`Pod`].
    pub pod: Arc<str>,
    /// The remote cluster that it is in; empty: the control plane's own, or none.
    pub cluster: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// The name of the Pod's owner (a Deployment), otherwise the Pod's own; Istio's `WORKLOAD_NAME`.
    pub workload_name: Arc<str>,
    /// Its host name, and the headless Service under which it has that name.
    pub host_name: Option<(Arc<str>, Arc<str>)>,
    /// Its addresses; empty until it runs.
    pub addresses: Vec<IpAddr>,
    /// Its labels.
    pub labels: Labels,
    /// Its service account; `default` if none is given.
    pub service_account: Arc<str>,
    /// Its SPIFFE id.
    pub identity: SpiffeId,
    /// `region/zone/subzone`, from the `topology.kubernetes.io` and `istio-locality` labels; may be empty.
    pub locality: Arc<str>,
    /// Whether it takes traffic (condition `Ready`).
    pub ready: bool,
    /// Whether it is about to end: it is not counted among those that should take traffic.
    pub ends: bool,
    /// Whether it has a proxy that accepts mutual TLS.
    pub has_proxy: bool,
    /// The settings of its proxy from its annotations `proxy.istio.io/config` and `sidecar.istio.io/interceptionMode`.
    pub proxy_config: Option<Arc<evenkeel_api::istio::ProxyConfig>>,
    /// The ports on which its proxy requires mutual TLS, also of who calls its address; `None`: on none.
    pub mutual: Option<MutualPorts>,
    /// Ports its containers declare; those of a WorkloadEntry by the names of the services' ports.
    pub ports: Vec<ContainerPort>,
    /// Ports of UDP that its containers declare.
    pub udp_ports: Vec<ContainerPort>,
    /// Whether it is a WorkloadEntry.
    pub is_entry: bool,
    /// The DNS name or Unix socket that a WorkloadEntry has instead of an address.
    pub named_address: Option<EndpointAddress>,
    /// The machine it runs on; empty if unknown.
    pub node: Arc<str>,
    /// Its share of the load; 1 if not given.
    pub weight: u32,
    /// The network it is in; empty: the same as all others without one.
    pub network: Arc<str>,
    /// Whether its addresses are in another network than the control plane's own cluster, where others may have them as well.
    pub is_elsewhere: bool,
    /// Ports on which it serves services that do not select it but name its address, in ServiceEntries and
    /// EndpointSlices.
    pub named_ports: Vec<InboundPort>,
    /// The services that select it, ordered by host.
    pub services: Vec<Arc<Service>>,
    /// Where it was written.
    pub origin: Span,
}

/// A port a container declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// Its name, which a Service's `targetPort` may use.
    pub name: Option<Arc<str>>,
    /// Its number.
    pub number: u16,
}

/// A port on which a workload serves, from which inbound listeners and clusters are generated.
#[derive(Debug, Clone, PartialEq)]
pub struct InboundPort {
    /// The port number the workload listens on.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// The service it belongs to, and the number of the service's port; `None` for a container port without a service.
    pub service: Option<(Arc<Service>, u16)>,
}

impl Selectable for Workload {
    fn selected_by(&self, selector: &Labels) -> bool {
        self.labels.selected_by(selector)
    }
}

impl Viewer for Workload {
    fn is_in(&self, namespace: &Arc<str>) -> bool {
        self.namespace == *namespace
    }
}

impl Workload {
    /// The number of a container port by its name.
    pub fn port_named(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|p| p.name.as_deref() == Some(name)).map(|p| p.number)
    }

    /// The port on which it serves a port of a service that selects it.
    pub fn port_of(&self, service: &Service, port: &ServicePort) -> Option<u16> {
        match (self.is_entry, &port.target) {
            (true, TargetPort::Name(name)) => self.port_named(name),
            (false, TargetPort::Name(name)) if port.protocol == Protocol::Udp => {
                self.udp_ports.iter().find(|own| own.name.as_deref() == Some(name)).map(|own| own.number)
            }
            // The ports of a WorkloadEntry are named after those of the service. Without a `targetPort`, those of a
            // Kubernetes Service are called on its own number, as in Istio.
            (true, TargetPort::Same) if service.is_kubernetes() => Some(port.number),
            (true, _) => self.port_named(&port.name).or_else(|| port.target.number_on(self, port.number)),
            _ => port.target.number_on(self, port.number),
        }
    }

    /// The port on which a gateway gets what is sent to a port of the services in front of it: those that select it, then
    /// those that name its address. Of several the first decides, so that routes of different ports do not merge by
    /// accident, and those with the label `disable-gateway-port-translation` do not count (Istio's `resolvePorts`). `None`: no service
    /// has the port, and the gateway listens on the port itself.
    pub fn target_port(&self, port: u16) -> Option<u16> {
        let translates = |service: &Service| !service.labels.contains_key(UNTRANSLATED_LABEL);
        let selecting = self.services.iter().filter(|service| translates(service));
        let mut selected = selecting.filter_map(|service| self.port_of(service, service.port(port)?));
        let of_port = |inbound: &&InboundPort| {
            inbound.service.as_ref().is_some_and(|(service, number)| *number == port && translates(service))
        };
        let named = || self.named_ports.iter().find(of_port).map(|inbound| inbound.port);
        selected.next().or_else(named)
    }

    /// Where its endpoints listen; `None` until it runs.
    pub fn endpoint_address(&self) -> Option<EndpointAddress> {
        self.named_address.clone().or_else(|| self.addresses.first().copied().map(EndpointAddress::Ip))
    }

    /// The ports it serves for services, each number once, in ascending order. As in Istio the first service (by host)
    /// decides if two share a target port; those that select it precede those that name its address.
    pub fn inbound_ports(&self) -> Vec<InboundPort> {
        let mut ports: BTreeMap<u16, InboundPort> = BTreeMap::new();
        for service in &self.services {
            for service_port in &service.ports {
                let Some(port) = self.port_of(service, service_port) else { continue };
                ports.entry(port).or_insert_with(|| InboundPort {
                    port,
                    protocol: service_port.protocol,
                    service: Some((service.clone(), service_port.number)),
                });
            }
        }
        for named in &self.named_ports {
            ports.entry(named.port).or_insert_with(|| named.clone());
        }
        ports.into_values().collect()
    }
}

impl TargetPort {
    /// The number on one workload, if it has such a port.
    pub fn number_on(&self, workload: &Workload, service_port: u16) -> Option<u16> {
        match self {
            Self::Same => Some(service_port),
            Self::Number(number) => Some(*number),
            Self::Name(name) => workload.port_named(name),
        }
    }
}
