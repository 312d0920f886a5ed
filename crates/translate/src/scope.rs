//! The scope of a proxy: what its Sidecar lets it see, or without one, everything exported to its namespace.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;
use evenkeel_model::service::ServicePort;
use evenkeel_model::workload::InboundPort;
use evenkeel_model::{
    Destination, EgressListener, Endpoint, GatewayRef, LbPolicy, LoadBalancer, OutboundTrafficPolicy, Protocol,
    Resolution, RouteSet, Service, Sidecar, SidecarOutboundPolicy,
};

use crate::context::{Context, PortProtocol};
use crate::names::{ALLOW_ANY_DYNAMIC_DNS_CLUSTER, BLACK_HOLE_CLUSTER, PASSTHROUGH_CLUSTER, UNIX_PREFIX};
use crate::routes::action::cluster_of;
use crate::traffic::InnerProtocol;

/// The longest chain of aliases that is followed, in hops.
const MAX_ALIAS_HOPS: usize = 16;
/// The port of `http://` without a port.
const HTTP_PORT: u16 = 80;

/// A port of a service that the workload may call.
#[derive(Debug, Clone)]
pub struct CallablePort<'s> {
    /// The port, with the protocol it is called in.
    pub port: Cow<'s, ServicePort>,
    /// How the mesh treats its traffic.
    pub port_protocol: PortProtocol,
    /// The address it is called at, if that is not the service's.
    pub bind: Option<IpAddr>,
    /// Whether calls of gRPC-Web become gRPC: by the port, or by the Sidecar's egress listener for it.
    pub grpc_web: bool,
}

impl<'a> Context<'a> {
    /// The service of exactly this host, if the proxy may call it, or if a route that it follows leads there.
    pub fn service(&self, host: &Hostname) -> Option<&'a Arc<Service>> {
        let Some(sidecar) = self.sidecar() else { return self.snapshot.service(host, self) };
        let imported = self.imported(sidecar, host);
        imported.or_else(|| self.snapshot.service(host, self).filter(|_| self.is_led_to(sidecar, host, None)))
    }

    /// The service of a host that the Sidecar imports. If several have the host, the first listener that imports one
    /// decides, unless a later one imports a Service of Kubernetes (Istio's `appendSidecarServices`).
    fn imported(&self, sidecar: &Sidecar, host: &Hostname) -> Option<&'a Arc<Service>> {
        let namespace = self.namespace();
        let is_seen = |service: &Service| sidecar.imports_service(service, namespace);
        let any = self.snapshot.service_if(host, self, is_seen);
        if sidecar.egress.len() < 2 || any.is_none_or(|service| service.is_kubernetes()) {
            return any;
        }
        let of_listener = |listener: &EgressListener| {
            self.snapshot.service_if(host, self, |service| sidecar.imports_through(listener, service, namespace))
        };
        sidecar.egress.iter().find_map(of_listener)
    }

    /// The service that a route's destination names. If that is another name of a host, the service of that host: its
    /// policies and mutual TLS hold (Istio's `GetDestinationCluster`).
    pub fn destination(&self, host: &Hostname) -> Option<&'a Arc<Service>> {
        let mut found = self.service(host)?;
        // A circle of names leads nowhere.
        for _ in 0..MAX_ALIAS_HOPS {
            let Some(target) = &found.alias_of else { return Some(found) };
            found = self.service(target)?;
        }
        None
    }

    /// Whether the proxy may use an endpoint: any, unless the service is limited to the client's machine.
    pub fn may_reach(&self, service: &Service, endpoint: &Endpoint) -> bool {
        !service.node_local || self.node() == endpoint.node
    }

    /// The Services that are other names of this one, and that the workload may call where it calls this one through
    /// `listener`, that of its Sidecar.
    pub fn aliases(
        &self,
        service: &Service,
        listener: Option<&EgressListener>,
    ) -> impl Iterator<Item = &'a Arc<Service>> {
        let all = self.snapshot.aliases(&service.host).iter();
        // As in Istio's `matchingAliasService` the host must be imported from the namespace of the service.
        all.filter(move |alias| {
            listener.is_none_or(|listener| {
                listener.imports.include_service(&service.namespace, &alias.host, self.namespace())
            })
        })
    }

    /// Whether a route set the proxy follows, or its outbound policy, leads to a host, and to this port of it.
    fn is_led_to(&self, sidecar: &Sidecar, host: &Hostname, port: Option<u16>) -> bool {
        let namespace = self.namespace();
        let is_port = |to: &Destination| to.port.is_none() || port.is_none() || to.port == port;
        let is_there = |to: &Destination| to.host == *host && is_port(to);
        let leads = |routes: &Arc<RouteSet>| {
            routes.applies_at(&GatewayRef::Mesh)
                && routes.export_to.seen_by(self)
                && sidecar.imports_routes_anywhere(routes, namespace)
                && routes.destinations().any(is_there)
        };
        let is_egress_proxy = match self.outbound_policy() {
            SidecarOutboundPolicy::EgressProxy(to) => is_there(to),
            _ => false,
        };
        is_egress_proxy || self.snapshot.route_sets_to(host).iter().any(leads)
    }

    /// The supported ports of a service: those the workload may call, and those that routes may lead to.
    pub fn ports<'s>(&self, service: &'s Service) -> Vec<(Cow<'s, ServicePort>, PortProtocol)> {
        let Some(sidecar) = self.sidecar() else { return port_protocol(service).collect() };
        let any_port = sidecar.for_all_ports(service, self.namespace()).next().is_some();
        let is_seen = |port: &&ServicePort| {
            any_port
                || sidecar.imports_port(service, port.number, self.namespace())
                || self.is_led_to(sidecar, &service.host, Some(port.number))
        };
        let seen = service.ports.iter().filter(is_seen);
        seen.filter_map(|port| with_protocol(self.as_called(service, port))).collect()
    }

    /// The ports of a service that the workload may call.
    pub fn callable<'s>(&self, service: &'s Service) -> Vec<CallablePort<'s>> {
        let Some(sidecar) = self.sidecar() else {
            return port_protocol(service)
                .map(|(port, port_protocol)| {
                    let grpc_web = port.protocol == Protocol::GrpcWeb;
                    CallablePort { port, port_protocol, bind: None, grpc_web }
                })
                .collect();
        };
        let is_called = |port: &&ServicePort| {
            sidecar.imports_port(service, port.number, self.namespace()) && !self.would_return(service, port.number)
        };
        let callable = |port: &'s ServicePort| {
            let listener = sidecar.egress(port.number);
            let declared = listener.and_then(|listener| listener.port).map_or(port.protocol, |(_, protocol)| protocol);
            let (port, port_protocol) = with_protocol(self.as_called(service, port))?;
            let (bind, grpc_web) = (listener.and_then(|listener| listener.bind), declared == Protocol::GrpcWeb);
            Some(CallablePort { port, port_protocol, bind, grpc_web })
        };
        service.ports.iter().filter(is_called).filter_map(callable).collect()
    }

    /// The Sidecar's listeners for calls of every port of a service.
    pub fn for_all_ports(&self, service: &Service) -> Vec<&'a EgressListener> {
        // Without a Sidecar, the namespace makes no difference, and proxies of all share the result.
        let Some(sidecar) = self.sidecar() else { return Vec::new() };
        sidecar.for_all_ports(service, self.namespace()).collect()
    }

    /// The ports of a service that can be called through a listener for all ports, which does not know the original
    /// destination of a connection: those of HTTP, or of bytes. Port 80 comes first: a request without a port means it.
    pub fn ports_through<'s>(&self, listener: &EgressListener, service: &'s Service) -> Vec<Cow<'s, ServicePort>> {
        let carries_http = listener.port.is_none_or(|(_, is)| PortProtocol::of(is) != Some(PortProtocol::Tcp));
        let known = |port: &&ServicePort| !self.goes_on_as_made(service, port.number);
        let carried =
            service.ports.iter().filter(known).filter_map(|port| with_protocol(self.as_called(service, port)));
        let fits = |protocol: PortProtocol| match protocol {
            PortProtocol::Http => carries_http,
            PortProtocol::Tcp => !carries_http,
            PortProtocol::Auto => true,
        };
        let mut ports: Vec<_> = carried.filter(|(_, protocol)| fits(*protocol)).map(|(port, _)| port).collect();
        ports.sort_by_key(|port| port.number != HTTP_PORT);
        ports
    }

    /// The listener for all ports that has this route configuration: requests name host and port.
    fn listener_of_table(&self, table: &str) -> Option<&'a EgressListener> {
        let sidecar = self.sidecar()?;
        let listener = match table.strip_prefix(UNIX_PREFIX) {
            Some(path) => sidecar.listener_at(path),
            None => sidecar.listener_on(table.parse().ok()?),
        };
        listener.filter(|listener| listener.takes_all_ports)
    }

    /// Whether requests name host and port where this route configuration applies.
    pub fn is_for_all_ports(&self, table: &str) -> bool {
        self.listener_of_table(table).is_some()
    }

    /// Whether calls of a port would loop back to the proxy: clients connect to the proxy directly, and the service's
    /// cluster uses the original destination.
    fn would_return(&self, service: &Service, port: u16) -> bool {
        self.is_bound(port) && self.goes_on_as_made(service, port)
    }

    /// Whether the service's cluster uses the original destination.
    fn goes_on_as_made(&self, service: &Service, port: u16) -> bool {
        let passes = |balancer: LoadBalancer| balancer.policy == Some(LbPolicy::Passthrough);
        service.resolution == Resolution::Passthrough || self.load_balancer(service, port, None).is_some_and(passes)
    }

    /// A port of a service, with the protocol it is called in.
    pub fn port<'s>(&self, service: &'s Service, number: u16) -> Option<Cow<'s, ServicePort>> {
        service.port(number).map(|port| self.as_called(service, port))
    }

    /// A port with the protocol of an egress listener. If both are HTTP, the service's protocol is kept.
    fn as_called<'s>(&self, service: &Service, port: &'s ServicePort) -> Cow<'s, ServicePort> {
        let Some(sidecar) = self.sidecar() else { return Cow::Borrowed(port) };
        let listener = sidecar.egress(port.number);
        let Some((_, protocol)) = listener.and_then(|listener| listener.port) else { return Cow::Borrowed(port) };
        let says = PortProtocol::of(port.protocol);
        if says.is_none() || says == PortProtocol::of(protocol) && port.protocol.is_tls() == protocol.is_tls() {
            return Cow::Borrowed(port);
        }
        if sidecar.imports_port(service, port.number, self.namespace()) {
            Cow::Owned(ServicePort { protocol, ..port.clone() })
        } else {
            Cow::Borrowed(port)
        }
    }

    /// Whether an egress listener of the Sidecar has this address.
    pub fn is_egress_address(&self, address: IpAddr, port: u16) -> bool {
        let listener = self.sidecar().and_then(|sidecar| sidecar.listener_on(port));
        listener.is_some_and(|listener| listener.bind == Some(address))
    }

    /// Whether the proxy follows a route set for calls to this port.
    pub fn follows(&self, routes: &RouteSet, port: u16) -> bool {
        self.sidecar().is_none_or(|sidecar| sidecar.imports_routes(routes, port, self.namespace()))
    }

    /// The route sets that apply to a service's port in the mesh, the most specific host first. The first one routes
    /// requests; all of them route connections, [in another order](Self::in_order).
    pub fn route_sets(&self, service: &Service, port: u16) -> Vec<&'a Arc<RouteSet>> {
        let mut found = self.snapshot.route_sets_for(&GatewayRef::Mesh, self, &service.host);
        found.retain(|routes| self.follows(routes, port));
        found
    }

    /// As [`Self::route_sets`], for calls through a listener for every port.
    pub fn route_sets_at(&self, service: &Service, listener: &EgressListener) -> Vec<&'a Arc<RouteSet>> {
        let mut found = self.snapshot.route_sets_for(&GatewayRef::Mesh, self, &service.host);
        found.retain(|routes| listener.imports.include_routes(routes, self.namespace()));
        found
    }

    /// Route sets in the order in which they route connections: the nearest first, then by precedence. As in Istio
    /// (`getConfigsForHost`) it makes no difference how specific their hosts are.
    pub fn in_order(&self, mut route_sets: Vec<&'a Arc<RouteSet>>) -> Vec<&'a Arc<RouteSet>> {
        if route_sets.len() > 1 {
            let precedence = self.snapshot.precedence(route_sets.iter().copied());
            route_sets.sort_by_cached_key(|routes| {
                (routes.export_to.nearness(&routes.namespace, self), precedence.get(&Arc::as_ptr(routes)).copied())
            });
        }
        route_sets
    }

    /// The services that a host matches, and that the workload may call: that of this name, or those that a wildcard covers.
    pub fn services_under(&self, host: &Hostname) -> Vec<&'a Arc<Service>> {
        if !host.is_wildcard() {
            let imported = |service: &&Arc<Service>| {
                self.sidecar().is_none_or(|sidecar| sidecar.imports_service(service, self.namespace()))
            };
            return self.service(host).filter(imported).into_iter().collect();
        }
        let is_seen =
            |service: &Service| self.sidecar().is_none_or(|sidecar| sidecar.imports_service(service, self.namespace()));
        let mut found = self.snapshot.services_under(host, self, is_seen);
        if found.windows(2).any(|pair| matches!(pair, [a, b] if a.host == b.host)) {
            found.retain(|one| self.service(&one.host).is_some_and(|chosen| Arc::ptr_eq(chosen, one)));
        }
        found
    }

    /// Returns how traffic to unknown destinations is handled.
    pub fn outbound_policy(&self) -> &'a SidecarOutboundPolicy {
        if self.registry_only() {
            return &SidecarOutboundPolicy::RegistryOnly;
        }
        let own = self.sidecar().and_then(|sidecar| sidecar.outbound_policy.as_ref());
        own.unwrap_or_else(|| match self.snapshot.mesh().outbound_traffic_policy {
            OutboundTrafficPolicy::AllowAny => {
                self.snapshot.mesh().egress_proxy.as_ref().unwrap_or(&SidecarOutboundPolicy::AllowAny)
            }
            OutboundTrafficPolicy::AllowAnyDynamicDns => &SidecarOutboundPolicy::AllowAnyDynamicDns,
            OutboundTrafficPolicy::RegistryOnly => &SidecarOutboundPolicy::RegistryOnly,
        })
    }

    /// Returns how traffic to unknown destinations on a port is handled. Without redirection it cannot go to its original
    /// destination.
    pub fn outbound_policy_on(&self, port: u16) -> &'a SidecarOutboundPolicy {
        match self.outbound_policy() {
            SidecarOutboundPolicy::AllowAny if self.is_bound(port) => &SidecarOutboundPolicy::RegistryOnly,
            policy => policy,
        }
    }

    /// Whether the workload connects to the proxy directly on this port, without redirection.
    pub fn is_bound(&self, port: u16) -> bool {
        self.sidecar().and_then(|sidecar| sidecar.listener_on(port)).is_some_and(|listener| listener.is_bound)
    }

    /// The cluster for traffic to unknown destinations.
    pub fn unknown_cluster(&self, policy: &SidecarOutboundPolicy, inner: InnerProtocol) -> Cow<'static, str> {
        match policy {
            SidecarOutboundPolicy::AllowAnyDynamicDns if inner == InnerProtocol::Http => {
                ALLOW_ANY_DYNAMIC_DNS_CLUSTER.into()
            }
            SidecarOutboundPolicy::AllowAny | SidecarOutboundPolicy::AllowAnyDynamicDns => PASSTHROUGH_CLUSTER.into(),
            SidecarOutboundPolicy::RegistryOnly => BLACK_HOLE_CLUSTER.into(),
            SidecarOutboundPolicy::EgressProxy(to) => {
                cluster_of(self.route_context(to.port.unwrap_or_default()), to, inner).into()
            }
        }
    }

    /// The ports on which the proxy's workload serves. Without capture these are only those that its Sidecar names: on
    /// others the proxy would be in the workload's way.
    pub fn inbound_ports(&self) -> Vec<InboundPort> {
        let workload = self.workload().map(AsRef::as_ref);
        match self.sidecar() {
            Some(sidecar) if self.is_uncaptured() && sidecar.ingress.is_empty() => Vec::new(),
            Some(sidecar) => sidecar.inbound_ports(workload),
            None => workload.map(|workload| workload.inbound_ports()).unwrap_or_default(),
        }
    }
}

fn port_protocol(service: &Service) -> impl Iterator<Item = (Cow<'_, ServicePort>, PortProtocol)> {
    service.ports.iter().filter_map(|port| with_protocol(Cow::Borrowed(port)))
}

fn with_protocol(port: Cow<'_, ServicePort>) -> Option<(Cow<'_, ServicePort>, PortProtocol)> {
    let port_protocol = PortProtocol::of(port.protocol)?;
    Some((port, port_protocol))
}
