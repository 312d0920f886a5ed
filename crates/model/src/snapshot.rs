//! The snapshot: the immutable model of the mesh at one moment, and queries on it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::ProxyPlace;
use evenkeel_api::istio::ProxyConfig;
use evenkeel_base::hostname::Hostname;

use imbl::OrdMap;

use crate::destination_rule::{RuleClient, applicable};
use crate::index::{Index, covering, under_hosts_covering};
use crate::labels::{Selectable, selects};
use crate::policy;
use crate::proxy_rule::{self, ProxyRule};
use crate::request_authentication::jwks_sources;
use crate::service::{EndpointsByPort, TransportPort, all_take_mtls, preferred};
use crate::telemetry::Telemetry;
use crate::workload::Pod;
use crate::workload_group::WorkloadGroup;
use crate::{
    AuthorizationPolicy, Credential, DestinationRule, Endpoint, Gateway, GatewayRef, Grouped, JwksSource, Labels, List,
    MeshConfig, MtlsMode, NetworkGateway, Ordered, PeerAuthentication, Place, RequestAuthentication, RouteSet, Service,
    Sidecar, Viewer, Workload,
};

/// Everything the control plane knows at one moment. It is immutable; the next snapshot shares all unchanged parts with
/// it by pointer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// Settings of the mesh.
    pub mesh: MeshConfig,
    /// The gateways into networks, by network.
    pub network_gateways: Arc<BTreeMap<Arc<str>, Vec<NetworkGateway>>>,
    /// Labels of the namespaces that are declared.
    pub namespaces: Arc<BTreeMap<Arc<str>, Labels>>,
    /// All services, ordered by host. A host may appear in several namespaces (ServiceEntries): those of Kubernetes first,
    /// then in the order of precedence.
    pub services: Grouped<Hostname, Service>,
    /// Endpoints of the services, under (namespace, host).
    pub endpoints: OrdMap<(Arc<str>, Hostname), Arc<EndpointsByPort>>,
    /// All workloads, ordered by namespace and Pod.
    pub workloads: Ordered<Pod, Workload>,
    /// All route sets, in the order of precedence, which decides if several have a host.
    pub route_sets: Ordered<(Place, usize), RouteSet>,
    /// All DestinationRules by namespace and host, there in the order of precedence; those for one host are already merged.
    pub destination_rules: Grouped<(Arc<str>, Hostname), DestinationRule>,
    /// All Gateways, in the order of precedence.
    pub gateways: List<Gateway>,
    /// The TLS contents of Secrets, by namespace and name.
    pub credentials: Ordered<(Arc<str>, Arc<str>), Credential>,
    /// All PeerAuthentications by namespace, there in the order of precedence.
    pub peer_authentications: List<PeerAuthentication>,
    /// All Sidecars by namespace, there in the order of precedence.
    pub sidecars: List<Sidecar>,
    /// All AuthorizationPolicies, ordered by namespace and name.
    pub authorization_policies: List<AuthorizationPolicy>,
    /// All RequestAuthentications, ordered by namespace and name.
    pub request_authentications: List<RequestAuthentication>,
    /// All ProxyConfigs, in the order of precedence.
    pub proxy_rules: List<ProxyRule>,
    /// All Telemetry objects, in the order of precedence.
    pub telemetries: List<Telemetry>,
    /// All WorkloadGroups, in the order of precedence.
    pub workload_groups: List<WorkloadGroup>,
    /// An example kind, only in tests.
    #[cfg(test)]
    pub(crate) examples: List<crate::derive::example::Example>,
    /// Indexes for queries.
    pub(crate) index: Index,
}

impl Snapshot {
    /// The service of exactly this host as a client sees it.
    pub fn service(&self, host: &str, client: &(impl Viewer + ?Sized)) -> Option<&Arc<Service>> {
        preferred(self.services_of(host).iter(), client)
    }

    /// Like [`Self::service`], but only among services for which `is_seen` holds.
    pub fn service_if(
        &self,
        host: &str,
        client: &(impl Viewer + ?Sized),
        is_seen: impl Fn(&Service) -> bool + Clone,
    ) -> Option<&Arc<Service>> {
        preferred(self.services_of(host).iter().filter(move |service| is_seen(service)), client)
    }

    /// All services of exactly this host, regardless of visibility.
    pub fn services_of(&self, host: &str) -> &[Arc<Service>] {
        self.services.of(host)
    }

    /// The Services that are other names of this host.
    pub fn aliases(&self, host: &Hostname) -> &[Arc<Service>] {
        self.index.aliases.get(host.as_str()).map_or(&[], |list| list)
    }

    /// The services that a wildcard covers, that are exported to the client, and that `is_seen` there.
    pub fn services_under(
        &self,
        wildcard: &Hostname,
        client: &(impl Viewer + ?Sized),
        is_seen: impl Fn(&Service) -> bool,
    ) -> Vec<&Arc<Service>> {
        let is_one = |s: &&Arc<Service>| {
            s.alias_of.is_none() && wildcard.covers(&s.host) && s.export_to.seen_by(client) && is_seen(s)
        };
        self.services.iter().filter(is_one).collect()
    }

    /// The endpoints of a service's port, including those that are not ready.
    pub fn endpoints(&self, service: &Service, port: u16) -> &[Endpoint] {
        self.endpoints
            .get(&(service.namespace.clone(), service.host.clone()))
            .and_then(|by_port| by_port.get(&TransportPort::Tcp(port)))
            .map_or(&[], Vec::as_slice)
    }

    /// The endpoints of a service's port of UDP, including those that are not ready.
    pub fn udp_endpoints(&self, service: &Service, port: u16) -> &[Endpoint] {
        self.endpoints
            .get(&(service.namespace.clone(), service.host.clone()))
            .and_then(|by_port| by_port.get(&TransportPort::Udp(port)))
            .map_or(&[], Vec::as_slice)
    }

    /// The endpoints of a service's port that take traffic and have all of `labels` (a subset's; empty = all).
    pub fn ready_endpoints<'a>(
        &'a self,
        service: &Service,
        port: u16,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Endpoint> + use<'a> {
        self.endpoints(service, port).iter().filter(move |e| e.ready && selects(labels, &e.labels))
    }

    /// The identities of a service's endpoints as sorted SPIFFE URIs; clients accept only these.
    pub fn identities(&self, service: &Service) -> BTreeSet<String> {
        let by_port = self.endpoints.get(&(service.namespace.clone(), service.host.clone()));
        let known =
            by_port.into_iter().flat_map(|by_port| by_port.values()).flatten().filter_map(|e| e.identity.as_ref());
        let further = service.subject_alt_names.iter().chain(&service.identities);
        known.map(ToString::to_string).chain(further.map(ToString::to_string)).collect()
    }

    /// The credential of a Secret.
    pub fn credential(&self, namespace: &Arc<str>, name: &Arc<str>) -> Option<&Arc<Credential>> {
        self.credentials.get(&(namespace.clone(), name.clone()))
    }

    /// Whether a service's port has endpoints and all of them accept mutual TLS of the mesh.
    pub fn all_take_mtls(&self, service: &Service, port: u16) -> bool {
        all_take_mtls(self.endpoints(service, port))
    }

    /// The workload with this address.
    pub fn workload_at(&self, address: IpAddr) -> Option<&Arc<Workload>> {
        self.index.workloads.get(&address)?.first()
    }

    /// The addresses whose proxies require mutual TLS: by network, the text of [`evenkeel_base::mutual_addresses`].
    pub fn mutual_addresses(&self) -> impl Iterator<Item = (IpAddr, &Arc<str>)> {
        self.index.mutual.iter().map(|(network, text)| (*network, text))
    }

    /// The workload of this Pod.
    pub fn workload(&self, namespace: &Arc<str>, pod: &Arc<str>) -> Option<&Arc<Workload>> {
        self.workloads.get(&(namespace.clone(), pod.clone()))
    }

    /// The route sets that apply at `gateway` and that a proxy sees, the nearest first, then in order of precedence.
    pub fn route_sets_at(&self, gateway: &GatewayRef, proxy: &(impl Viewer + ?Sized)) -> Vec<&Arc<RouteSet>> {
        seen_from(proxy, self.index.at_gateway.get(gateway).into_iter().flat_map(Ordered::iter))
    }

    /// Those of them that serve `host` by its name or a wildcard, the most specific first, then the nearest. In the mesh the
    /// first routes requests; a gateway merges the routes of all with the same host.
    pub fn route_sets_for(
        &self,
        gateway: &GatewayRef,
        proxy: &(impl Viewer + ?Sized),
        host: &Hostname,
    ) -> Vec<&Arc<RouteSet>> {
        let mut found: Vec<&Arc<RouteSet>> = Vec::new();
        for of_host in under_hosts_covering(&self.index.route_sets, host) {
            for service in seen_from(proxy, of_host.iter().filter(|service| service.applies_at(gateway))) {
                // A route set with several hosts that cover this one counts by its most specific host.
                if !found.iter().any(|other| Arc::ptr_eq(other, service)) {
                    found.push(service);
                }
            }
        }
        found
    }

    /// The route sets with exactly this host that a proxy sees, the nearest first, then in the order of precedence.
    pub fn route_sets_naming(&self, host: &Hostname, proxy: &(impl Viewer + ?Sized)) -> Vec<&Arc<RouteSet>> {
        seen_from(proxy, self.index.route_sets.get(host.as_str()).into_iter().flatten())
    }

    /// Whether any route set has exactly this host.
    pub fn is_routed(&self, host: &Hostname) -> bool {
        self.index.route_sets.contains_key(host.as_str())
    }

    /// The route sets that lead to exactly this host, in the order of precedence.
    pub fn route_sets_to(&self, host: &Hostname) -> &[Arc<RouteSet>] {
        self.index.routes_to.get(host.as_str()).map_or(&[], |list| list)
    }

    /// The places of route sets in the order of precedence, by their pointers. They are collected in one walk, because
    /// a lookup for each comparison of a sort would take millions of steps with thousands of route sets.
    pub fn precedence<'a>(
        &self,
        route_sets: impl IntoIterator<Item = &'a Arc<RouteSet>>,
    ) -> HashMap<*const RouteSet, usize> {
        let wanted: HashSet<_> = route_sets.into_iter().map(Arc::as_ptr).collect();
        let all = self.route_sets.iter().map(Arc::as_ptr).enumerate();
        let found = all.filter(|(_, route_set)| wanted.contains(route_set));
        found.map(|(place, route_set)| (route_set, place)).take(wanted.len()).collect()
    }

    /// The DestinationRule that `client`, whose namespace `viewer` knows, uses for a service. Istio's order: the client's
    /// own namespace, the service's, the root namespace; in each the most specific host, of which a rule that selects the
    /// client comes first.
    pub fn destination_rule_for(
        &self,
        service: &Service,
        viewer: &(impl Viewer + ?Sized),
        client: &impl Selectable,
    ) -> Option<&Arc<DestinationRule>> {
        self.rule_for(service, viewer, |selector| client.selected_by(selector))
    }

    /// The DestinationRule for a service among those that are not for some workloads.
    pub fn general_destination_rule(
        &self,
        service: &Service,
        viewer: &(impl Viewer + ?Sized),
    ) -> Option<&Arc<DestinationRule>> {
        self.rule_for(service, viewer, |_| false)
    }

    fn rule_for(
        &self,
        service: &Service,
        viewer: &(impl Viewer + ?Sized),
        selected: impl Fn(&Labels) -> bool,
    ) -> Option<&Arc<DestinationRule>> {
        let mut namespaces =
            under_hosts_covering(&self.index.rule_namespaces, &service.host).flat_map(|all| all.iter());
        let own = namespaces.find(|namespace| viewer.is_in(namespace)).map(|namespace| &**namespace);
        let client = RuleClient { own, viewer, selected };
        applicable(&service.namespace, &self.mesh.root_namespace, client, |wanted| {
            self.index.rules.get(wanted).into_iter().flat_map(|rules| covering(rules, &service.host))
        })
    }

    /// Returns the mode of mutual TLS that a workload accepts on one of its ports. Port overrides workload, which overrides
    /// namespace, which overrides mesh; without any policy both are accepted.
    pub fn mtls_mode(&self, namespace: &str, workload: &impl Selectable, port: u16) -> MtlsMode {
        let root = &*self.mesh.root_namespace;
        policy::mtls_mode(self.peer_authentications_of(namespace), self.peer_authentications_of(root), workload, port)
    }

    /// Returns the mode of mutual TLS of a namespace's workloads without a policy of their own.
    pub fn namespace_mtls_mode(&self, namespace: &str) -> MtlsMode {
        policy::namespace_mtls_mode(
            self.peer_authentications_of(namespace),
            self.peer_authentications_of(&self.mesh.root_namespace),
        )
    }

    /// The PeerAuthentications written in a namespace, in the order of precedence.
    pub fn peer_authentications_of(&self, namespace: &str) -> &[Arc<PeerAuthentication>] {
        of_namespace(&self.peer_authentications, namespace, |p| &p.namespace)
    }

    /// The AuthorizationPolicies for a workload: in the order of evaluation (CUSTOM, AUDIT, DENY, ALLOW), the mesh's before
    /// the namespace's, then by name.
    pub fn policies_for(&self, namespace: &str, workload: &impl Selectable) -> Vec<&Arc<AuthorizationPolicy>> {
        let mut found: Vec<_> = self.policies_among(namespace, workload, |_| true).collect();
        found.sort_by_key(|p| p.action);
        found
    }

    /// Those of them that refuse what the workload sends: stand-ins for what is not supported.
    pub fn outbound_policies_for(&self, namespace: &str, workload: &impl Selectable) -> Vec<&Arc<AuthorizationPolicy>> {
        self.policies_among(namespace, workload, |policy| policy.is_for(ProxyPlace::Outbound)).collect()
    }

    /// Whether there are such policies for any workload.
    pub fn has_outbound_policies(&self) -> bool {
        self.authorization_policies.iter().any(|policy| policy.is_for(ProxyPlace::Outbound))
    }

    fn policies_among<'s>(
        &'s self,
        namespace: &str,
        workload: &impl Selectable,
        wanted: impl Fn(&AuthorizationPolicy) -> bool,
    ) -> impl Iterator<Item = &'s Arc<AuthorizationPolicy>> {
        let of = |wanted: &str| of_namespace(&self.authorization_policies, wanted, |p| &p.namespace);
        let root = &*self.mesh.root_namespace;
        let own = if namespace == root { &[] } else { of(namespace) };
        let all = of(root).iter().chain(own).filter(move |policy| wanted(policy));
        all.filter(move |policy| policy.selection.includes(&policy.namespace, namespace, workload))
    }

    /// The RequestAuthentications for a workload: the mesh's before the namespace's, then by name. All apply.
    pub fn request_authentications_for(
        &self,
        namespace: &str,
        workload: &impl Selectable,
    ) -> Vec<&Arc<RequestAuthentication>> {
        let of = |wanted: &str| of_namespace(&self.request_authentications, wanted, |p| &p.namespace);
        let root = &*self.mesh.root_namespace;
        let own = if namespace == root { &[] } else { of(namespace) };
        let includes = |one: &&Arc<RequestAuthentication>| one.selection.includes(&one.namespace, namespace, workload);
        of(root).iter().chain(own).filter(includes).collect()
    }

    /// The Telemetry objects for a workload whose namespace `viewer` knows, the outermost first: that of the mesh, that of the
    /// namespace, and all that select the workload, which are always of its namespace.
    pub fn telemetries_for<W: Selectable + Viewer>(&self, workload: &W) -> Vec<&Arc<Telemetry>> {
        let (of_all, selecting): (Vec<_>, Vec<_>) =
            self.telemetries.iter().partition(|one| one.selection.is_everything());
        let root = &self.mesh.root_namespace;
        let (of_mesh, of_namespaces): (Vec<_>, Vec<_>) = of_all.into_iter().partition(|one| one.namespace == *root);
        let own = of_namespaces.into_iter().chain(selecting.into_iter().filter(|one| one.selection.fits(workload)));
        of_mesh.into_iter().chain(own.filter(|one| workload.is_in(&one.namespace))).collect()
    }

    /// Returns the sources of issuers' keys, each with the shortest time limit that a rule sets for it.
    pub fn jwks_sources(&self) -> BTreeMap<JwksSource, Option<Duration>> {
        jwks_sources(&self.request_authentications)
    }

    /// The Sidecar that applies to a workload: the first in its namespace that selects it, otherwise that of the
    /// namespace, otherwise that of the root namespace, otherwise what the mesh's settings say.
    pub fn sidecar_for(&self, namespace: &str, workload: &impl Selectable) -> Option<&Arc<Sidecar>> {
        let of = |wanted: &str| of_namespace(&self.sidecars, wanted, |sidecar| &sidecar.namespace);
        let selecting = of(namespace).iter().find(|s| !s.selector.is_empty() && workload.selected_by(&s.selector));
        let of_all = |wanted: &str| of(wanted).iter().find(|sidecar| sidecar.selector.is_empty());
        let written = selecting.or_else(|| of_all(namespace)).or_else(|| of_all(&self.mesh.root_namespace));
        written.or(self.mesh.default_sidecar.as_ref())
    }

    /// Whether a refused Sidecar blocks a workload's calls of unknown hosts: one in its namespace that selects it, one
    /// in the root namespace unless its own namespace has one for it, or one whose namespace cannot be read.
    pub fn is_registry_only(&self, namespace: &str, workload: &impl Selectable) -> bool {
        let refused = |wanted: &str| {
            let all = of_namespace(&self.sidecars, wanted, |sidecar| &sidecar.namespace);
            all.iter().any(|sidecar| sidecar.refused && workload.selected_by(&sidecar.selector))
        };
        let root = &*self.mesh.root_namespace;
        let is_of_root = || self.sidecar_for(namespace, workload).is_none_or(|sidecar| &*sidecar.namespace == root);
        refused(namespace) || refused("") || refused(root) && is_of_root()
    }

    /// The Gateways whose selector matches a gateway proxy, in the order of precedence.
    pub fn gateways_for(&self, router: &(impl Selectable + Viewer)) -> Vec<&Arc<Gateway>> {
        self.gateways.iter().filter(|gateway| gateway.selects(router)).collect()
    }

    /// The settings of a workload's proxy, without those of its own annotation: the mesh's `defaultConfig`, then the
    /// ProxyConfigs of the root namespace, of its namespace, and of its workload.
    pub fn proxy_config(&self, namespace: &str, workload: &impl Selectable) -> ProxyConfig {
        let (defaults, root) = (&self.mesh.proxy_defaults, &*self.mesh.root_namespace);
        proxy_rule::effective(&self.proxy_rules, defaults, root, namespace, workload)
    }

    /// The WorkloadGroup of a name.
    pub fn workload_group(&self, namespace: &str, name: &str) -> Option<&Arc<WorkloadGroup>> {
        self.workload_groups.iter().find(|group| *group.namespace == *namespace && *group.name == *name)
    }
}

/// Those of some route sets, in the order of precedence, that a viewer sees: the nearest first.
fn seen_from<'a>(
    viewer: &(impl Viewer + ?Sized),
    all: impl Iterator<Item = &'a Arc<RouteSet>>,
) -> Vec<&'a Arc<RouteSet>> {
    let mut seen: Vec<_> = all.filter(|route_set| route_set.export_to.seen_by(viewer)).collect();
    if seen.len() > 1 {
        seen.sort_by_cached_key(|route_set| route_set.export_to.nearness(&route_set.namespace, viewer));
    }
    seen
}

/// The part of a list ordered by namespace that belongs to one.
fn of_namespace<'a, T>(list: &'a [T], namespace: &str, of: impl Fn(&T) -> &str) -> &'a [T] {
    let start = list.partition_point(|item| of(item) < namespace);
    let end = list.partition_point(|item| of(item) <= namespace);
    list.get(start..end).unwrap_or_default()
}
