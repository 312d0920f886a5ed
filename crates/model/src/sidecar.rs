//! Sidecars: which part of the mesh the proxies of a namespace see, and how connections reach their workloads.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock, OnceLock};

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;

use crate::workload::InboundPort;
use crate::{ConnectionPool, Destination, Labels, Protocol, RouteSet, ServerTls, Service, Workload};

/// Which part of the mesh the proxies of a namespace see, and how connections reach their workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Sidecar {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace. A Sidecar in the root namespace applies to all namespaces without one.
    pub namespace: Arc<str>,
    /// The workloads in its namespace; empty = all.
    pub selector: Labels,
    /// The hosts that may be called, by listener; at least one. A port belongs to the first listener that names it, otherwise
    /// to the one without a port.
    pub egress: Vec<EgressListener>,
    /// Ports of the workload; empty = those of its services.
    pub ingress: Vec<IngressListener>,
    /// Settings of connections to the workload, for ports without their own.
    pub inbound_pool: Option<ConnectionPool>,
    /// How calls of unknown hosts are handled; `None` = the mesh's setting.
    pub outbound_policy: Option<SidecarOutboundPolicy>,
    /// Whether it is a stand-in for a refused one: the workloads it selects cannot call unknown hosts, whatever others
    /// say.
    pub refused: bool,
    /// Where it was written.
    pub origin: Span,
    /// See [`Sidecar::uncaptured`].
    pub(crate) uncaptured: Uncaptured,
}

/// A Sidecar as it holds without capture, made when it is needed first. It follows from the Sidecar, so it counts for
/// nothing in comparisons.
#[derive(Debug, Default)]
pub(crate) struct Uncaptured(OnceLock<Arc<Sidecar>>);

impl PartialEq for Uncaptured {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Clone for Uncaptured {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The hosts that may be called on one port, or on all others.
#[derive(Debug, Clone, PartialEq)]
pub struct EgressListener {
    /// The port and its protocol, which overrides that of the services; `None` = all other ports.
    pub port: Option<(u16, Protocol)>,
    /// The address it is called at; none given = those of the services.
    pub bind: Option<IpAddr>,
    /// The Unix socket that the proxy listens on instead; its port is 0.
    pub socket: Option<Arc<str>>,
    /// Whether clients connect to the proxy directly, without redirection: it then listens on the given address and
    /// port.
    pub is_bound: bool,
    /// Whether it serves calls of every port of the imported services (`HTTP_PROXY`, and Unix sockets): requests name
    /// their destination.
    pub takes_all_ports: bool,
    /// The hosts that may be called.
    pub imports: Imports,
}

/// The hosts that may be called, by the namespace they are defined in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imports {
    own: Vec<Hostname>,
    any: Vec<Hostname>,
    named: BTreeMap<Arc<str>, Vec<Hostname>>,
    /// What is taken away from that; `None`: there is nothing.
    excluded: Option<Box<Imports>>,
}

/// A port of the workload.
#[derive(Debug, Clone, PartialEq)]
pub struct IngressListener {
    /// The number clients call.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// The address to listen on, where connections are not redirected; none given = the Pod's own.
    pub bind: Option<IpAddr>,
    /// Whether clients connect to the proxy directly, without redirection.
    pub is_bound: bool,
    /// Where the workload listens.
    pub endpoint: IngressEndpoint,
    /// Settings of connections to the workload.
    pub pool: Option<ConnectionPool>,
    /// TLS that the proxy terminates for clients outside the mesh. It applies where mutual TLS of the mesh is off.
    pub tls: Option<ServerTls>,
}

/// Where a workload listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngressEndpoint {
    /// The address that the client called.
    AsCalled,
    /// On its loopback address.
    Loopback(IpAddr, u16),
    /// On the Pod's address.
    Own(u16),
    /// On a Unix socket.
    Unix(Arc<str>),
}

/// How calls of hosts that are not imported are handled.
#[derive(Debug, Clone, PartialEq)]
pub enum SidecarOutboundPolicy {
    /// Calls pass.
    AllowAny,
    /// Calls pass; HTTP goes to the host that the request names, which the proxy looks up. Only the mesh says so.
    AllowAnyDynamicDns,
    /// Calls are refused.
    RegistryOnly,
    /// Calls go to this service.
    EgressProxy(Destination),
}

impl EgressListener {
    /// The listener for all calls where no other is: everything may be called.
    pub(crate) fn everything() -> Self {
        Self {
            port: None,
            bind: None,
            socket: None,
            is_bound: false,
            takes_all_ports: false,
            imports: Imports::everything(),
        }
    }

    /// The listener on a port of its own.
    fn bound(&self) -> Self {
        // Where connections would be captured at any address, the default is that.
        let written = self.bind.filter(|address| self.is_bound || !address.is_unspecified());
        let bind = written.or_else(|| self.socket.is_none().then_some(Ipv4Addr::LOCALHOST.into()));
        Self { bind, is_bound: true, ..self.clone() }
    }
}

impl Imports {
    /// Adds `NAMESPACE/HOST`: the namespace may be `.` (the workload's), `*` (any) or `~` (nothing).
    pub(crate) fn add(&mut self, namespace: &str, host: Hostname) {
        match namespace {
            "~" => {}
            "." => self.own.push(host),
            "*" => self.any.push(host),
            name => self.named.entry(name.into()).or_default().push(host),
        }
    }

    /// Takes `NAMESPACE/HOST` away from what is imported: the namespace may be `.` (the workload's) or `*` (any).
    pub(crate) fn exclude(&mut self, namespace: &str, host: Hostname) {
        self.excluded.get_or_insert_default().add(namespace, host);
    }

    /// Imports everything.
    pub(crate) fn everything() -> Self {
        let mut all = Self::default();
        all.any.extend(Hostname::parse("*"));
        all
    }

    /// Whether a proxy in `client` sees the service of this namespace and host.
    pub fn include_service(&self, namespace: &str, host: &Hostname, client: &str) -> bool {
        self.hosts_in(namespace, client).any(|import| import.covers(host))
            && !self.exclude_host(namespace, host, client)
    }

    /// Whether an exclusion covers this host of a namespace.
    fn exclude_host(&self, namespace: &str, host: &Hostname, client: &str) -> bool {
        let excluded = self.excluded.as_ref();
        excluded.is_some_and(|all| all.hosts_in(namespace, client).any(|excluded| excluded.covers(host)))
    }

    /// Whether a proxy in `client` sees a route set. As in Istio, one of its hosts must be imported from its namespace, and
    /// not be excluded; a wildcard host is imported by any name below it.
    pub fn include_routes(&self, routes: &RouteSet, client: &str) -> bool {
        let is_excluded = |host: &Hostname| self.exclude_host(&routes.namespace, host, client);
        let mut hosts = routes.hosts.iter().filter(|host| !is_excluded(host));
        hosts.any(|host| {
            self.hosts_in(&routes.namespace, client).any(|import| import.covers(host) || host.covers(import))
        })
    }

    fn hosts_in<'a>(&'a self, namespace: &str, client: &str) -> impl Iterator<Item = &'a Hostname> + use<'a> {
        let own: &[Hostname] = if namespace == client { &self.own } else { &[] };
        self.named.get(namespace).into_iter().flatten().chain(own).chain(&self.any)
    }
}

impl Sidecar {
    /// The Sidecar as it holds for proxies whose workloads' connections nothing captures (`interceptionMode: NONE`): each
    /// listener binds its port, by default on the loopback address or on the Pod's, as in Istio.
    pub fn uncaptured(&self) -> Arc<Self> {
        let bound = || {
            let egress = self.egress.iter().map(EgressListener::bound);
            let ingress = self.ingress.iter().cloned().map(|listener| IngressListener { is_bound: true, ..listener });
            Arc::new(Self { egress: egress.collect(), ingress: ingress.collect(), ..self.clone() })
        };
        self.uncaptured.0.get_or_init(bound).clone()
    }

    /// The same for workloads without a Sidecar.
    pub fn of_uncaptured() -> Arc<Self> {
        static NONE: LazyLock<Arc<Sidecar>> = LazyLock::new(|| {
            Arc::new(Sidecar {
                name: "default".into(),
                namespace: "".into(),
                selector: Labels::default(),
                egress: vec![EgressListener::everything().bound()],
                ingress: Vec::new(),
                inbound_pool: None,
                outbound_policy: None,
                refused: false,
                origin: Span::whole_file(""),
                uncaptured: Uncaptured::default(),
            })
        });
        NONE.clone()
    }

    /// The listener that decides what may be called on this port of services. On the port of a listener for calls of all
    /// ports, nothing else may be called, as in Istio.
    pub fn egress(&self, port: u16) -> Option<&EgressListener> {
        self.listener_on(port).filter(|listener| !listener.takes_all_ports)
    }

    /// The listener that connections to this port arrive at.
    pub fn listener_on(&self, port: u16) -> Option<&EgressListener> {
        self.egress.iter().find(|listener| listener.port.is_none_or(|(number, _)| number == port))
    }

    /// The listeners for calls of every port of a service.
    pub fn for_all_ports(&self, service: &Service, client: &str) -> impl Iterator<Item = &EgressListener> {
        let imports =
            |listener: &EgressListener| listener.imports.include_service(&service.namespace, &service.host, client);
        self.egress.iter().filter(move |listener| listener.takes_all_ports && imports(listener))
    }

    /// The listener on a Unix socket.
    pub fn listener_at(&self, socket: &str) -> Option<&EgressListener> {
        self.egress.iter().find(|listener| listener.socket.as_deref() == Some(socket))
    }

    /// Whether a proxy in `client` may call a port of a service.
    pub fn imports_port(&self, service: &Service, port: u16, client: &str) -> bool {
        let imports =
            |listener: &EgressListener| listener.imports.include_service(&service.namespace, &service.host, client);
        self.egress(port).is_some_and(imports)
    }

    /// Whether a proxy in `client` may call any port of a service through this listener.
    pub fn imports_through(&self, listener: &EgressListener, service: &Service, client: &str) -> bool {
        let is_it = |port: u16| self.egress(port).is_some_and(|of_port| std::ptr::eq(of_port, listener));
        let is_called = listener.takes_all_ports || service.ports.iter().any(|port| is_it(port.number));
        is_called && listener.imports.include_service(&service.namespace, &service.host, client)
    }

    /// Whether a proxy in `client` may call any port of a service.
    pub fn imports_service(&self, service: &Service, client: &str) -> bool {
        let imports_alias = |listener: &EgressListener| {
            listener.port.is_none() && listener.imports.include_service(&service.namespace, &service.host, client)
        };
        // An alias need not have ports: it is called at those of its host.
        service.alias_of.is_some() && self.egress.iter().any(imports_alias)
            || self.for_all_ports(service, client).next().is_some()
            || service.ports.iter().any(|port| self.imports_port(service, port.number, client))
    }

    /// Whether a proxy in `client` follows a route set for calls to this port.
    pub fn imports_routes(&self, routes: &RouteSet, port: u16, client: &str) -> bool {
        self.listener_on(port).is_some_and(|listener| listener.imports.include_routes(routes, client))
    }

    /// Whether a proxy in `client` follows a route set for calls to any port.
    pub fn imports_routes_anywhere(&self, routes: &RouteSet, client: &str) -> bool {
        self.egress.iter().any(|listener| listener.imports.include_routes(routes, client))
    }

    /// The ingress listener of a port.
    pub fn ingress_of(&self, port: u16) -> Option<&IngressListener> {
        self.ingress.iter().find(|listener| listener.port == port)
    }

    /// Settings of connections to a port of the workload.
    pub fn pool_of(&self, port: u16) -> Option<&ConnectionPool> {
        self.ingress_of(port).and_then(|listener| listener.pool.as_ref()).or(self.inbound_pool.as_ref())
    }

    /// The ports on which a workload serves: those of ingress listeners, else those of its services.
    pub fn inbound_ports(&self, workload: Option<&Workload>) -> Vec<InboundPort> {
        let known = workload.map(|workload| workload.inbound_ports()).unwrap_or_default();
        if self.ingress.is_empty() {
            return known;
        }
        let port = |listener: &IngressListener| InboundPort {
            port: listener.port,
            protocol: listener.protocol,
            service: known.iter().find(|p| p.port == listener.port).and_then(|p| p.service.clone()),
        };
        let mut ports: Vec<InboundPort> = self.ingress.iter().map(port).collect();
        ports.sort_by_key(|port| port.port);
        ports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(entries: &[&str]) -> Imports {
        let mut imports = Imports::default();
        for entry in entries {
            let read = evenkeel_api::istio::EgressHost::parse(entry).unwrap();
            if read.excludes {
                imports.exclude(read.namespace, read.host)
            } else {
                imports.add(read.namespace, read.host)
            }
        }
        imports
    }

    #[test]
    fn imports_are_by_namespace_and_host() {
        let check = |entries: &[&str], service: &str, expected: bool| {
            let (namespace, host) = service.split_once('/').unwrap();
            let found = imports(entries).include_service(namespace, &Hostname::parse(host).unwrap(), "shop");
            assert_eq!(found, expected, "{entries:?} {service}");
        };
        check(&["./*"], "shop/a.shop.svc", true);
        check(&["./*"], "other/a.other.svc", false);
        check(&["*/*"], "other/a.other.svc", true);
        check(&["other/*"], "other/a.other.svc", true);
        check(&["other/*"], "shop/a.shop.svc", false);
        check(&["*/*.example.com"], "shop/a.example.com", true);
        check(&["*/*.example.com"], "shop/example.com", false);
        check(&["*/a.example.com"], "shop/*.example.com", false);
        check(&["./a.shop.svc", "~/*"], "shop/a.shop.svc", true);
        check(&["~/*"], "shop/a.shop.svc", false);
        check(&["*/*", "~other/*"], "other/a.other.svc", false);
        check(&["*/*", "~other/*"], "shop/a.shop.svc", true);
        check(&["*/*", "~other/*.example.com"], "other/a.other.svc", true);
        check(&["*/*", "~/a.other.svc"], "other/a.other.svc", false);
        check(&["other/a.other.svc", "~/*.other.svc"], "other/a.other.svc", false);
        check(&["~./*", "*/*"], "shop/a.shop.svc", false);
        check(&["~other/*"], "shop/a.shop.svc", false);
    }
}
