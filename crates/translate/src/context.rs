//! What every generator is given, and the decisions they share.

use std::sync::Arc;

use evenkeel_model::service::ServicePort;
use evenkeel_model::{
    GatewayRef, Labels, LoadBalancer, OutboundTrafficPolicy, Protocol, Service, Snapshot, VirtualService, Workload,
};

use crate::load_balancer;
use crate::names::{BLACK_HOLE_CLUSTER, PASSTHROUGH_CLUSTER};
use crate::routes::action::Place;
use crate::view::{ProxyKind, ProxyView};

/// One proxy and one moment.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Who asks.
    pub view: &'a ProxyView,
    /// What is known.
    pub snapshot: &'a Snapshot,
}

/// How the bytes of a service's port are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    /// As requests.
    Http,
    /// As bytes.
    Tcp,
    /// As the first bytes say.
    Auto,
}

impl Carried {
    /// How this protocol is carried; `None`: not at all.
    pub fn of(protocol: Protocol) -> Option<Self> {
        match protocol {
            Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::GrpcWeb => Some(Self::Http),
            Protocol::Auto => Some(Self::Auto),
            Protocol::Udp => None,
            Protocol::Https | Protocol::Tls | Protocol::Tcp | Protocol::Mongo | Protocol::Mysql | Protocol::Redis => {
                Some(Self::Tcp)
            }
        }
    }
}

impl<'a> Context<'a> {
    /// Whether the proxy stands beside a workload.
    pub fn is_sidecar(&self) -> bool {
        self.view.kind == ProxyKind::Sidecar
    }

    /// The workload behind a sidecar, or the router's own Pod; `None` until the registry knows it.
    pub fn workload(&self) -> Option<&'a Arc<Workload>> {
        let by_pod = self.snapshot.workload(&self.view.namespace, &self.view.pod);
        by_pod.or_else(|| self.view.addresses.iter().find_map(|address| self.snapshot.workload_at(*address)))
    }

    /// Labels that selectors of policies look at: the registry's, else those the proxy brought.
    pub fn labels(&self) -> &'a Labels {
        self.workload().map_or(&self.view.labels, |w| &w.labels)
    }

    /// How endpoints of a service are chosen between, if a DestinationRule says so.
    pub fn load_balancer(&self, service: &Service, port: u16, subset: Option<&str>) -> Option<LoadBalancer> {
        load_balancer::of(self.snapshot, &self.view.namespace, self.labels(), service, port, subset)
    }

    /// Where a request stands that is addressed to this port.
    pub fn place(&self, port: u16) -> Place<'a> {
        Place { snapshot: self.snapshot, namespace: &self.view.namespace, port, labels: self.labels() }
    }

    /// The services the proxy may call, ordered by host.
    pub fn services(&self) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        self.snapshot.services_visible_to(&self.view.namespace)
    }

    /// The ports of those services that are carried, and how.
    pub fn service_ports(&self) -> impl Iterator<Item = (&'a Arc<Service>, &'a ServicePort, Carried)> + use<'a> {
        self.services().flat_map(|service| {
            service
                .ports
                .iter()
                .filter_map(move |port| Carried::of(port.protocol).map(|carried| (service, port, carried)))
        })
    }

    /// The VirtualService that rules a service's traffic in the mesh.
    pub fn virtual_service(&self, service: &Service) -> Option<&'a Arc<VirtualService>> {
        let found = self.snapshot.virtual_services_for(&GatewayRef::Mesh, &self.view.namespace, &service.host);
        found.into_iter().next()
    }

    /// Where traffic goes that no service claims.
    pub fn unknown_cluster(&self) -> &'static str {
        match self.snapshot.mesh.outbound_traffic_policy {
            OutboundTrafficPolicy::AllowAny => PASSTHROUGH_CLUSTER,
            OutboundTrafficPolicy::RegistryOnly => BLACK_HOLE_CLUSTER,
        }
    }

    /// The file of the access log; empty: none.
    pub fn access_log_path(&self) -> &'a str {
        self.snapshot.mesh.access_log_file.as_deref().unwrap_or_default()
    }

    /// Whether VIPs of this service lead to a listener of their own.
    pub fn has_vips(service: &Service) -> bool {
        service.vips().next().is_some()
    }
}
