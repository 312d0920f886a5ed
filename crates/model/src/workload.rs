//! Workloads: each is one Pod.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::spiffe::SpiffeId;

use crate::Service;

/// Labels of an object, or a selector that requires all of them.
pub type Labels = BTreeMap<String, String>;

/// Whether all labels of a selector are present. The empty selector selects everything.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// Namespace and name of a Pod.
pub type Pod = (Arc<str>, Arc<str>);

/// Something that has labels for selectors.
pub trait Selectable {
    /// Whether all labels of `selector` are present. The empty selector selects everything.
    fn selected_by(&self, selector: &Labels) -> bool;
}

impl Selectable for Labels {
    fn selected_by(&self, selector: &Labels) -> bool {
        selects(selector, self)
    }
}

/// One replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The Pod's name.
    pub pod: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// The name of the Pod's owner (a Deployment), otherwise the Pod's own; Istio's `WORKLOAD_NAME`.
    pub workload_name: Arc<str>,
    /// Its host name, and the headless Service under which it has that name.
    pub host_name: Option<(Arc<str>, Arc<str>)>,
    /// Its addresses; none until it runs.
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
    /// Whether it has a proxy that accepts mutual TLS.
    pub has_proxy: bool,
    /// The settings of its proxy from its annotation `proxy.istio.io/config`.
    pub proxy_config: Option<Arc<evenkeel_api::istio::ProxyConfig>>,
    /// Ports its containers declare.
    pub ports: Vec<ContainerPort>,
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
    pub protocol: crate::Protocol,
    /// The service it belongs to, and the number of the service's port; `None` for a container port without a service.
    pub service: Option<(Arc<Service>, u16)>,
}

impl Workload {
    /// The number of a container port by its name.
    pub fn port_named(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|p| p.name.as_deref() == Some(name)).map(|p| p.number)
    }

    /// The ports it serves for services, each number once, in ascending order. As in Istio the first service (by host)
    /// decides if two share a target port.
    pub fn inbound_ports(&self) -> Vec<InboundPort> {
        let mut ports: BTreeMap<u16, InboundPort> = BTreeMap::new();
        for service in &self.services {
            for service_port in &service.ports {
                let Some(port) = service_port.target.number_on(self, service_port.number) else { continue };
                ports.entry(port).or_insert_with(|| InboundPort {
                    port,
                    protocol: service_port.protocol,
                    service: Some((service.clone(), service_port.number)),
                });
            }
        }
        ports.into_values().collect()
    }
}
