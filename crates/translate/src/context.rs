//! The input of all generators, and decisions that they share.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::istio::InterceptionMode;
use evenkeel_model::gateway::BackendCertificate;
use evenkeel_model::provider::ProviderService;
use evenkeel_model::service::Distribution;
use evenkeel_model::telemetry::{LogChoice, MetricsChoice, Side, Tracer};
use evenkeel_model::{
    DestinationRule, Labels, LoadBalancer, Protocol, Resolution, Selectable, Service, Sidecar, Tracked, TrafficPolicy,
    Viewer, Workload,
};

use crate::facts::{Answer, Client, Facts, Question};
use crate::finish::Patches;
use crate::names;
use crate::proxy_options::{ProxyOptions, TlsContext};
use crate::traffic::InnerProtocol;
use crate::view::{ClientKind, ProxyKind};

/// A generator's view of one proxy and one snapshot. It records every question, so that the results can be kept, and
/// shared with other proxies, as long as the answers are the same.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    client: &'a Client,
    facts: &'a Facts,
    /// Whether routes name the position of the rule that they come from.
    traced: bool,
    side: Side,
    patches: Patches<'a>,
    /// The snapshot.
    pub snapshot: Tracked<'a>,
}

/// How the mesh treats the traffic of a service's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortProtocol {
    /// As HTTP requests.
    Http,
    /// As a byte stream.
    Tcp,
    /// By protocol detection.
    Auto,
}

impl PortProtocol {
    /// How the mesh treats this protocol; `None` if it cannot carry it.
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
    /// The inner protocols that connections to the port may have.
    pub fn inners(self) -> &'static [InnerProtocol] {
        match self {
            Self::Http => &[InnerProtocol::Http],
            Self::Tcp => &[InnerProtocol::Tcp],
            Self::Auto => &[InnerProtocol::Http, InnerProtocol::Tcp],
        }
    }
}

impl Selectable for Context<'_> {
    /// Whether a selector of policies, rules and Gateways matches this proxy's workload.
    fn selected_by(&self, selector: &Labels) -> bool {
        selector.is_empty() || self.ask(Question::SelectedBy(selector.clone())) == Answer::Yes
    }
}

impl Viewer for Context<'_> {
    fn is_in(&self, namespace: &Arc<str>) -> bool {
        self.ask(Question::IsIn(namespace.clone())) == Answer::Yes
    }

    fn takes_own_first(&self) -> bool {
        self.is_sidecar()
    }
}

impl<'a> Context<'a> {
    /// A view of `snapshot` for `client`; questions about the client are recorded in `facts`.
    pub(crate) fn new(client: &'a Client, snapshot: Tracked<'a>, facts: &'a Facts) -> Self {
        Self { client, facts, traced: false, side: Side::Client, patches: Patches::default(), snapshot }
    }

    /// Returns the context for routes that name the position of their rule. Such routes are never sent to proxies: adding a
    /// line to a file would change them all.
    pub(crate) fn traced(self, traced: bool) -> Self {
        Self { traced, ..self }
    }

    /// Returns the context for resources that are changed by these patches.
    pub(crate) fn patched(self, patches: Patches<'a>) -> Self {
        Self { patches, ..self }
    }

    /// The changes of messages before they are encoded.
    pub(crate) fn patches(&self) -> Patches<'a> {
        self.patches
    }

    /// Whether routes name the position of the rule that they come from.
    pub fn is_traced(&self) -> bool {
        self.traced
    }

    /// Returns the context for what the workload receives; otherwise it is for what it sends. Telemetry differs.
    pub(crate) fn receiving(self) -> Self {
        Self { side: Side::Server, ..self }
    }

    /// How requests are traced; `None`: as the proxy's own settings say.
    pub(crate) fn tracer(&self) -> Option<Tracer> {
        self.snapshot.mesh().telemetry.tracer(&self.snapshot.telemetries_for(self), self.side)
    }

    /// The access logs; `None`: as the mesh's settings say without naming providers.
    pub(crate) fn logs(&self) -> Option<Vec<LogChoice>> {
        self.snapshot.mesh().telemetry.logs(&self.snapshot.telemetries_for(self), self.side)
    }

    /// How Istio's metrics are counted; `None`: they are not.
    pub(crate) fn metrics(&self) -> Option<MetricsChoice> {
        if !self.client_kind().is_evenkeel() {
            return None;
        }
        self.snapshot.mesh().telemetry.metrics(&self.snapshot.telemetries_for(self), self.side)
    }

    pub(crate) fn ask_text(&self, question: Question) -> Arc<str> {
        match self.ask(question) {
            Answer::Text(text) => text,
            Answer::Yes | Answer::No | Answer::Alone(..) => "".into(),
        }
    }

    fn ask(&self, question: Question) -> Answer {
        let answer = self.client.answer(&question);
        self.facts.note(question);
        answer
    }

    /// Whether the proxy is a sidecar.
    pub fn is_sidecar(&self) -> bool {
        self.client.view.kind == ProxyKind::Sidecar
    }

    /// See [`ProxyView::wants_whole_tables`](crate::ProxyView::wants_whole_tables).
    pub fn wants_whole_tables(&self) -> bool {
        self.client.view.wants_whole_tables()
    }

    /// The kind of client, and how much of the mesh it wants to hold.
    pub fn client_kind(&self) -> ClientKind {
        self.client.view.client_kind
    }

    /// The proxy's namespace. A result that depends on it is not shared with other namespaces; if only clients of a
    /// certain namespace are treated differently, use [`is_in`](Viewer::is_in).
    pub fn namespace(&self) -> &'a Arc<str> {
        self.ask(Question::Namespace);
        &self.client.view.namespace
    }

    /// The Sidecar that applies to the proxy, if any. Like the kind it is not recorded, because proxies with different
    /// Sidecars share no units.
    pub fn sidecar(&self) -> Option<&'a Sidecar> {
        self.client.sidecar.as_deref()
    }

    /// See [`Client::registry_only`]. It is not recorded either.
    pub fn registry_only(&self) -> bool {
        self.client.registry_only
    }

    /// Returns the parts of its ProxyConfig that its configuration depends on. Like the kind it is not recorded, because
    /// proxies that
    /// differ in it share no units.
    pub fn options(&self) -> &'a ProxyOptions {
        &self.client.options
    }

    /// What its TLS depends on.
    pub fn tls(&self) -> TlsContext<'a> {
        TlsContext {
            mesh: self.snapshot.mesh(),
            names_hybrid_curve: self.options().names_hybrid_curve,
            identifies_only_verified: self.client_kind().is_evenkeel(),
        }
    }

    /// Whether nothing captures the connections of its workload (`interceptionMode: NONE`): all of its listeners bind
    /// their ports.
    pub fn is_uncaptured(&self) -> bool {
        self.is_sidecar() && self.options().interception == InterceptionMode::None
    }

    /// How the proxy finds a service's endpoints. Connections to a gateway have no other destination than the gateway
    /// itself: with `ORIGINAL_DST` it would call its own port, over and over. It uses the endpoints that are known, as
    /// in Istio (`convertResolution`).
    pub fn resolution(&self, service: &Service) -> Resolution {
        match service.resolution {
            Resolution::Passthrough if !self.is_sidecar() => Resolution::Static,
            other => other,
        }
    }

    /// The port on which a gateway listens for a port of a Gateway's server: the `targetPort` of a service in front of it that
    /// has this port, or else the port itself.
    pub fn listening_port(&self, port: u16) -> u16 {
        self.ask(Question::TargetPort(port));
        self.client.target_port(port).unwrap_or(port)
    }

    /// The proxy's first address. A result that depends on it is not shared.
    pub fn address(&self) -> Option<IpAddr> {
        self.ask(Question::Workload);
        self.client.view.addresses.first().copied()
    }

    /// `region/zone/subzone` of the proxy's workload; may be empty.
    pub fn locality(&self) -> &'a str {
        self.ask(Question::Locality);
        self.client.locality()
    }

    /// The machine that the proxy's workload runs on; empty if unknown.
    pub fn node(&self) -> Arc<str> {
        self.ask(Question::Node);
        self.client.node()
    }

    /// A label of the proxy's workload; may be empty.
    pub fn label(&self, name: &Arc<str>) -> Arc<str> {
        self.ask(Question::Label(name.clone()));
        self.client.label(name)
    }

    /// Whether the proxy has a local cluster, of the proxies like it.
    pub fn discovers_itself(&self) -> bool {
        self.ask(Question::DiscoversItself) == Answer::Yes
    }

    /// The labels that proxies like it have in common; `None` if it has no local cluster. A result that depends on them is
    /// not shared.
    pub fn peer_labels(&self) -> Option<&'a [Arc<str>]> {
        self.ask(Question::Workload);
        self.client.view.peer_labels.as_deref()
    }

    /// Whether this is one of the proxy's own addresses.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.ask(Question::HasAddress(address)) == Answer::Yes
    }

    /// Whether a load balancer in front of the proxy sends the PROXY protocol.
    pub fn takes_proxy_protocol(&self) -> bool {
        self.ask(Question::TakesProxyProtocol) == Answer::Yes || !self.is_sidecar() && self.options().proxy_protocol
    }

    /// Whether its certificate has proved that it belongs to its namespace.
    pub fn is_authenticated(&self) -> bool {
        self.ask(Question::IsAuthenticated) == Answer::Yes
    }

    /// The workload of a sidecar, or the gateway's own Pod; `None` until it is in the snapshot. A result that depends
    /// on it is not shared.
    pub fn workload(&self) -> Option<&'a Arc<Workload>> {
        self.ask(Question::Workload);
        self.client.workload.as_ref()
    }

    /// The service of a provider; `None` if there is none that the proxy may call.
    pub(crate) fn provider_service(&self, place: &ProviderService) -> Option<&'a Arc<Service>> {
        let service = self.service(place.host.as_ref()?)?;
        let has_port = self.ports(service).iter().any(|(port, _)| port.number == place.port);
        (place.is_in(&service.namespace) && has_port).then_some(service)
    }

    /// The cluster of a provider's service, and its host.
    pub(crate) fn provider_cluster(&self, place: &ProviderService) -> Option<(String, String)> {
        let service = self.provider_service(place)?;
        Some((names::outbound_cluster(place.port, "", &service.host), service.host.to_string()))
    }

    /// The certificate that a gateway shows to backends that a BackendTLSPolicy names: that of its first Gateway with one.
    pub fn backend_certificate(&self) -> Option<&'a BackendCertificate> {
        let gateways = (!self.is_sidecar()).then(|| self.snapshot.gateways_for(self))?;
        gateways.into_iter().find_map(|gateway| gateway.backend_certificate.as_ref())
    }

    /// The DestinationRule the proxy follows for a service.
    pub fn destination_rule(&self, service: &Service) -> Option<&'a Arc<DestinationRule>> {
        self.snapshot.destination_rule_for(service, self)
    }

    /// The DestinationRule the proxy follows where it receives calls of a service. Rules for some workloads are for
    /// clients only, as in Istio.
    pub fn destination_rule_for_receivers(&self, service: &Service) -> Option<&'a Arc<DestinationRule>> {
        self.snapshot.general_destination_rule(service, self)
    }

    /// The traffic policy for a service from its DestinationRule, if there is one.
    pub fn policy(&self, service: &Service, port: u16, subset: Option<&str>) -> Option<TrafficPolicy> {
        Some(self.destination_rule(service)?.policy_for(subset, port))
    }

    /// Returns the settings of a cluster: those of the DestinationRule, and the mesh's for unset fields. A service's
    /// `trafficDistribution` takes precedence over what the mesh says of localities and zones, its shares of localities
    /// among them.
    pub fn settings(
        &self,
        service: &Service,
        rule: Option<&DestinationRule>,
        subset: Option<&str>,
        port: u16,
    ) -> TrafficPolicy {
        let own = rule.map(|rule| rule.policy_for(subset, port)).unwrap_or_default();
        let mut settings = own.or_of_mesh(self.snapshot.mesh());
        if let Some(balancer) = settings.load_balancer.as_mut().filter(|_| service.distribution != Distribution::Any) {
            balancer.locality = balancer.locality.take().filter(|locality| !locality.of_mesh);
            balancer.zone_aware = balancer.zone_aware.take().filter(|zones| !zones.of_mesh);
        }
        settings
    }

    /// The load balancer for a service from its DestinationRule, if there is one.
    pub fn load_balancer(&self, service: &Service, port: u16, subset: Option<&str>) -> Option<LoadBalancer> {
        self.policy(service, port, subset)?.load_balancer
    }

    /// The virtual addresses at which the proxy's workload calls a service. Allotted ones count only where the
    /// workload's DNS queries are answered with them, as in Istio (`nodeUsesAutoallocatedIPs`).
    pub fn vips<'s>(&self, service: &'s Service) -> impl Iterator<Item = IpAddr> + use<'s> {
        let remote = self.remote_address(service);
        let counts = remote.is_none() && (!service.allotted || self.captures_dns());
        remote.into_iter().chain(service.vips().filter(move |_| counts))
    }

    /// Whether the virtual addresses of this service have listeners of their own.
    pub fn has_vips(&self, service: &Service) -> bool {
        self.vips(service).next().is_some()
    }

    /// Whether a service is called at addresses that have no listener of their own: in its ranges, or without any
    /// address at all addresses of the port.
    pub fn is_called_anywhere(&self, service: &Service) -> bool {
        service.ranges().next().is_some() || !self.has_vips(service)
    }

    /// Whether the workload's DNS queries are answered by its agent, with addresses that are allotted: its node says so, and
    /// no `proxyMetadata` says otherwise (`ISTIO_META_DNS_CAPTURE`, `ISTIO_META_DNS_AUTO_ALLOCATE`).
    pub fn captures_dns(&self) -> bool {
        let options = self.options();
        let denied = options.dns_capture == Some(false) || options.dns_auto_allocate == Some(false);
        !denied && self.ask(Question::CapturesDns) == Answer::Yes
    }
}
