//! A snapshot that records the questions it is asked, so that an answer can be kept until something it depends on
//! changes.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;

use crate::labels::Selectable;
use crate::telemetry::Telemetry;
use crate::{
    AuthorizationPolicy, Credential, DestinationRule, Endpoint, Gateway, GatewayRef, Labels, MeshConfig, MtlsMode,
    NetworkGateway, PeerAuthentication, RequestAuthentication, RouteSet, Service, Snapshot, Viewer,
};

/// What an answer depends on. Two snapshots that agree on all keys of an answer give the same answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The settings of the mesh.
    Mesh,
    /// The services of exactly this host, in any namespace.
    Service(Hostname),
    /// The other names of this host.
    Aliases(Hostname),
    /// The services whose host this name covers.
    ServicesUnder(Hostname),
    /// The endpoints of the service of this namespace and host.
    Endpoints(Arc<str>, Hostname),
    /// The identities of a service's endpoints, and the ports on which all of them accept mutual TLS.
    Peers(Arc<str>, Hostname),
    /// The DestinationRules whose host covers this one.
    DestinationRules(Hostname),
    /// The route sets with a host that covers this one.
    RouteSets(Hostname),
    /// The route sets that lead to this host.
    RouteSetsTo(Hostname),
    /// The route sets that apply at a gateway, with all their content.
    RouteSetsAt(GatewayRef),
    /// The credential of a Secret, by namespace and name.
    Credential(Arc<str>, Arc<str>),
    /// The addresses whose proxies require mutual TLS.
    MutualAddresses,
    /// The Gateways.
    Gateways,
    /// Those of them that pass TLS on to the service its SNI names.
    PassingGateways,
    /// The PeerAuthentications of this namespace.
    PeerAuthentications(Arc<str>),
    /// The AuthorizationPolicies of this namespace.
    AuthorizationPolicies(Arc<str>),
    /// The AuthorizationPolicies that refuse what workloads send, of all namespaces: hardly any mesh has one.
    OutboundPolicies,
    /// The RequestAuthentications of this namespace.
    RequestAuthentications(Arc<str>),
    /// The Telemetry objects.
    Telemetries,
}

/// The keys recorded while one answer is made.
#[derive(Debug, Default)]
pub struct Reads(RefCell<Vec<Key>>);

impl Reads {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// The recorded keys, each once, in order.
    pub fn into_keys(self) -> Vec<Key> {
        let mut keys = self.0.into_inner();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn note(&self, key: Key) {
        self.0.borrow_mut().push(key);
    }
}

/// A [`Snapshot`] that records every question. It offers the snapshot's queries, and no other access.
#[derive(Debug, Clone, Copy)]
pub struct Tracked<'a> {
    snapshot: &'a Snapshot,
    reads: &'a Reads,
}

impl<'a> Tracked<'a> {
    /// Records in `reads` what `snapshot` is asked.
    pub fn new(snapshot: &'a Snapshot, reads: &'a Reads) -> Self {
        Self { snapshot, reads }
    }

    /// Settings of the mesh.
    pub fn mesh(self) -> &'a MeshConfig {
        self.reads.note(Key::Mesh);
        &self.snapshot.mesh
    }

    /// The gateways into a network.
    pub fn gateways_into(self, network: &str) -> &'a [NetworkGateway] {
        self.reads.note(Key::Mesh);
        self.snapshot.network_gateways.get(network).map_or(&[], Vec::as_slice)
    }

    /// See [`Snapshot::service`].
    pub fn service(self, host: &Hostname, client: &impl Viewer) -> Option<&'a Arc<Service>> {
        self.reads.note(Key::Service(host.clone()));
        self.snapshot.service(host.as_str(), client)
    }

    /// See [`Snapshot::aliases`].
    pub fn aliases(self, host: &Hostname) -> &'a [Arc<Service>] {
        self.reads.note(Key::Aliases(host.clone()));
        self.snapshot.aliases(host)
    }

    /// See [`Snapshot::service_if`].
    pub fn service_if(
        self,
        host: &Hostname,
        client: &impl Viewer,
        is_seen: impl Fn(&Service) -> bool + Clone,
    ) -> Option<&'a Arc<Service>> {
        self.reads.note(Key::Service(host.clone()));
        self.snapshot.service_if(host.as_str(), client, is_seen)
    }

    /// See [`Snapshot::services_under`].
    pub fn services_under(
        self,
        wildcard: &Hostname,
        client: &impl Viewer,
        is_seen: impl Fn(&Service) -> bool,
    ) -> Vec<&'a Arc<Service>> {
        self.reads.note(Key::ServicesUnder(wildcard.clone()));
        self.snapshot.services_under(wildcard, client, is_seen)
    }

    /// See [`Snapshot::endpoints`].
    pub fn endpoints(self, service: &Service, port: u16) -> &'a [Endpoint] {
        self.note_endpoints(service);
        self.snapshot.endpoints(service, port)
    }

    /// See [`Snapshot::udp_endpoints`].
    pub fn udp_endpoints(self, service: &Service, port: u16) -> &'a [Endpoint] {
        self.note_endpoints(service);
        self.snapshot.udp_endpoints(service, port)
    }

    /// See [`Snapshot::ready_endpoints`].
    pub fn ready_endpoints(
        self,
        service: &Service,
        port: u16,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Endpoint> + use<'a> {
        self.note_endpoints(service);
        self.snapshot.ready_endpoints(service, port, labels)
    }

    /// See [`Snapshot::identities`]. An added or removed endpoint seldom changes them.
    pub fn identities(self, service: &Service) -> BTreeSet<String> {
        self.note_peers(service);
        self.snapshot.identities(service)
    }

    /// See [`Snapshot::all_take_mtls`].
    pub fn all_take_mtls(self, service: &Service, port: u16) -> bool {
        self.note_peers(service);
        self.snapshot.all_take_mtls(service, port)
    }

    /// See [`Snapshot::mutual_addresses`].
    pub fn mutual_addresses(self) -> impl Iterator<Item = (IpAddr, &'a Arc<str>)> {
        self.reads.note(Key::MutualAddresses);
        self.snapshot.mutual_addresses()
    }

    fn note_peers(self, service: &Service) {
        self.reads.note(Key::Peers(service.namespace.clone(), service.host.clone()));
    }

    fn note_endpoints(self, service: &Service) {
        self.reads.note(Key::Endpoints(service.namespace.clone(), service.host.clone()));
    }

    /// See [`Snapshot::route_sets_at`]. The answer is made again when any of them changes.
    pub fn route_sets_at(self, gateway: &GatewayRef, proxy: &impl Viewer) -> Vec<&'a Arc<RouteSet>> {
        self.reads.note(Key::RouteSetsAt(gateway.clone()));
        self.snapshot.route_sets_at(gateway, proxy)
    }

    /// See [`Snapshot::route_sets_for`].
    pub fn route_sets_for(self, gateway: &GatewayRef, proxy: &impl Viewer, host: &Hostname) -> Vec<&'a Arc<RouteSet>> {
        self.reads.note(Key::RouteSets(host.clone()));
        self.snapshot.route_sets_for(gateway, proxy, host)
    }

    /// See [`Snapshot::route_sets_naming`].
    pub fn route_sets_naming(self, host: &Hostname, proxy: &impl Viewer) -> Vec<&'a Arc<RouteSet>> {
        self.reads.note(Key::RouteSets(host.clone()));
        self.snapshot.route_sets_naming(host, proxy)
    }

    /// See [`Snapshot::route_sets_to`].
    pub fn route_sets_to(self, host: &Hostname) -> &'a [Arc<RouteSet>] {
        self.reads.note(Key::RouteSetsTo(host.clone()));
        self.snapshot.route_sets_to(host)
    }

    /// See [`Snapshot::precedence`]. Nothing is recorded: the order of two route sets changes only if one of them does.
    pub fn precedence<'b>(
        self,
        route_sets: impl IntoIterator<Item = &'b Arc<RouteSet>>,
    ) -> HashMap<*const RouteSet, usize> {
        self.snapshot.precedence(route_sets)
    }

    /// See [`Snapshot::destination_rule_for`].
    pub fn destination_rule_for(
        self,
        service: &Service,
        client: &(impl Selectable + Viewer),
    ) -> Option<&'a Arc<DestinationRule>> {
        self.reads.note(Key::Mesh);
        self.reads.note(Key::DestinationRules(service.host.clone()));
        self.snapshot.destination_rule_for(service, client, client)
    }

    /// See [`Snapshot::general_destination_rule`].
    pub fn general_destination_rule(self, service: &Service, client: &impl Viewer) -> Option<&'a Arc<DestinationRule>> {
        self.reads.note(Key::Mesh);
        self.reads.note(Key::DestinationRules(service.host.clone()));
        self.snapshot.general_destination_rule(service, client)
    }

    /// See [`Snapshot::mtls_mode`].
    pub fn mtls_mode(self, namespace: &Arc<str>, workload: &impl Selectable, port: u16) -> MtlsMode {
        self.note_policies(namespace, Key::PeerAuthentications);
        self.snapshot.mtls_mode(namespace, workload, port)
    }

    /// See [`Snapshot::peer_authentications_of`].
    pub fn peer_authentications_of(self, namespace: &Arc<str>) -> &'a [Arc<PeerAuthentication>] {
        self.reads.note(Key::PeerAuthentications(namespace.clone()));
        self.snapshot.peer_authentications_of(namespace)
    }

    /// See [`Snapshot::policies_for`].
    pub fn policies_for(self, namespace: &Arc<str>, workload: &impl Selectable) -> Vec<&'a Arc<AuthorizationPolicy>> {
        self.note_policies(namespace, Key::AuthorizationPolicies);
        self.snapshot.policies_for(namespace, workload)
    }

    /// Whether there are policies that refuse what workloads send.
    pub fn has_outbound_policies(self) -> bool {
        self.reads.note(Key::OutboundPolicies);
        self.snapshot.has_outbound_policies()
    }

    /// See [`Snapshot::outbound_policies_for`].
    pub fn outbound_policies_for(
        self,
        namespace: &Arc<str>,
        workload: &impl Selectable,
    ) -> Vec<&'a Arc<AuthorizationPolicy>> {
        self.reads.note(Key::Mesh);
        self.reads.note(Key::OutboundPolicies);
        self.snapshot.outbound_policies_for(namespace, workload)
    }

    /// See [`Snapshot::request_authentications_for`].
    pub fn request_authentications_for(
        self,
        namespace: &Arc<str>,
        workload: &impl Selectable,
    ) -> Vec<&'a Arc<RequestAuthentication>> {
        self.note_policies(namespace, Key::RequestAuthentications);
        self.snapshot.request_authentications_for(namespace, workload)
    }

    /// See [`Snapshot::telemetries_for`].
    pub fn telemetries_for<W: Selectable + Viewer>(self, workload: &W) -> Vec<&'a Arc<Telemetry>> {
        self.reads.note(Key::Mesh);
        self.reads.note(Key::Telemetries);
        self.snapshot.telemetries_for(workload)
    }

    /// Records the policies of the namespace and those of the root namespace, which also apply.
    fn note_policies(self, namespace: &Arc<str>, key: impl Fn(Arc<str>) -> Key) {
        self.reads.note(Key::Mesh);
        self.reads.note(key(namespace.clone()));
        self.reads.note(key(self.snapshot.mesh.root_namespace.clone()));
    }

    /// See [`Snapshot::credential`].
    pub fn credential(self, namespace: &Arc<str>, name: &Arc<str>) -> Option<&'a Arc<Credential>> {
        self.reads.note(Key::Credential(namespace.clone(), name.clone()));
        self.snapshot.credential(namespace, name)
    }

    /// See [`Snapshot::gateways_for`].
    pub fn gateways_for(self, router: &(impl Selectable + Viewer)) -> Vec<&'a Arc<Gateway>> {
        self.reads.note(Key::Gateways);
        self.snapshot.gateways_for(router)
    }

    /// The Gateways with a server that passes TLS on to the service named by the SNI. Nearly always there is none, so
    /// nothing more is asked.
    pub fn passing_gateways_for(self, router: &(impl Selectable + Viewer)) -> Vec<&'a Arc<Gateway>> {
        self.reads.note(Key::PassingGateways);
        let passing = self.snapshot.gateways.iter().filter(|gateway| gateway.passes_by_service());
        passing.filter(|gateway| gateway.selects(router)).collect()
    }
}
