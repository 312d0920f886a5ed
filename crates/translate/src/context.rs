//! What every generator is given, and the decisions they share.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_model::{
    DestinationRule, Labels, LoadBalancer, Protocol, Selectable, Service, Sidecar, Tracked, TrafficPolicy, Viewer,
    Workload,
};

use crate::facts::{Answer, Client, Facts, Question};
use crate::routes::action::RouteContext;
use crate::tls::InnerProtocol;
use crate::view::{ClientKind, ProxyKind};

/// One proxy and one moment, as generators see them: every question is noted, so that what is made of the answers can be
/// kept, and shared with other proxies, for as long as the answers are the same.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    client: &'a Client,
    facts: &'a Facts,
    /// What is known.
    pub snapshot: Tracked<'a>,
}

/// How the bytes of a service's port are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortProtocol {
    /// As requests.
    Http,
    /// As bytes.
    Tcp,
    /// As the first bytes say.
    Auto,
}

impl PortProtocol {
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

impl PortProtocol {
    /// What connections to it may hold.
    pub fn inners(self) -> &'static [InnerProtocol] {
        match self {
            Self::Http => &[InnerProtocol::Http],
            Self::Tcp => &[InnerProtocol::Tcp],
            Self::Auto => &[InnerProtocol::Http, InnerProtocol::Tcp],
        }
    }
}

impl Selectable for Context<'_> {
    /// Whether a selector of policies, rules and Gateways chooses this proxy's workload.
    fn selected_by(&self, selector: &Labels) -> bool {
        selector.is_empty() || self.ask(Question::SelectedBy(selector.clone())) == Answer::Yes
    }
}

impl Viewer for Context<'_> {
    fn is_in(&self, namespace: &Arc<str>) -> bool {
        self.ask(Question::IsIn(namespace.clone())) == Answer::Yes
    }
}

impl<'a> Context<'a> {
    /// What `client` is told of `snapshot`; what depends on the client is noted into `facts`.
    pub(crate) fn new(client: &'a Client, snapshot: Tracked<'a>, facts: &'a Facts) -> Self {
        Self { client, facts, snapshot }
    }

    fn ask(&self, question: Question) -> Answer {
        let answer = self.client.answer(&question);
        self.facts.note(question);
        answer
    }

    /// Whether the proxy stands beside a workload.
    pub fn is_sidecar(&self) -> bool {
        self.client.view.kind == ProxyKind::Sidecar
    }

    /// See [`ProxyView::wants_whole_tables`](crate::ProxyView::wants_whole_tables).
    pub fn wants_whole_tables(&self) -> bool {
        self.client.view.wants_whole_tables()
    }

    /// What the proxy is, and how much it wants to hold.
    pub fn client_kind(&self) -> ClientKind {
        self.client.view.client_kind
    }

    /// The proxy's namespace. What asks for it is shared with no other namespace: where only some namespace's own
    /// clients are treated otherwise, ask [`is_in`](Viewer::is_in).
    pub fn namespace(&self) -> &'a Arc<str> {
        self.ask(Question::Namespace);
        &self.client.view.namespace
    }

    /// The Sidecar that holds for the proxy, if one does. Like kinds it is not noted: proxies of different Sidecars share
    /// no units.
    pub fn sidecar(&self) -> Option<&'a Sidecar> {
        self.client.sidecar.as_deref()
    }

    /// See [`Client::registry_only`]. Not noted either.
    pub fn registry_only(&self) -> bool {
        self.client.registry_only
    }

    /// The proxy's first address. What asks for it is made for this proxy alone.
    pub fn address(&self) -> Option<IpAddr> {
        self.ask(Question::Workload);
        self.client.view.addresses.first().copied()
    }

    /// `region/zone/subzone` of the proxy's workload; may be empty.
    pub fn locality(&self) -> &'a str {
        self.ask(Question::Locality);
        self.client.locality()
    }

    /// A label of the proxy's workload; may be empty.
    pub fn label(&self, name: &Arc<str>) -> Arc<str> {
        self.ask(Question::Label(name.clone()));
        self.client.label(name)
    }

    /// Whether this is one of the proxy's own addresses.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.ask(Question::HasAddress(address)) == Answer::Yes
    }

    /// Whether a load balancer before the proxy tells who the client is (PROXY protocol).
    pub fn takes_proxy_protocol(&self) -> bool {
        self.ask(Question::TakesProxyProtocol) == Answer::Yes
    }

    /// The workload behind a sidecar, or the router's own Pod; `None` until the registry knows it. What asks for it is
    /// made for this proxy alone.
    pub fn workload(&self) -> Option<&'a Arc<Workload>> {
        self.ask(Question::Workload);
        self.client.workload.as_ref()
    }

    /// The DestinationRule the proxy follows for a service.
    pub fn destination_rule(&self, service: &Service) -> Option<&'a Arc<DestinationRule>> {
        self.snapshot.destination_rule_for(service, self)
    }

    /// What a DestinationRule says of connections to a service, if there is one.
    pub fn policy(&self, service: &Service, port: u16, subset: Option<&str>) -> Option<TrafficPolicy> {
        Some(self.destination_rule(service)?.policy_for(subset, port))
    }

    /// How endpoints of a service are chosen between, if a DestinationRule says so.
    pub fn load_balancer(&self, service: &Service, port: u16, subset: Option<&str>) -> Option<LoadBalancer> {
        self.policy(service, port, subset)?.load_balancer
    }

    /// Where a request stands that is addressed to this port.
    pub fn route_context(&self, port: u16) -> RouteContext<'a> {
        RouteContext { context: *self, port }
    }

    /// Whether VIPs of this service lead to a listener of their own.
    pub fn has_vips(service: &Service) -> bool {
        service.vips().next().is_some()
    }
}
