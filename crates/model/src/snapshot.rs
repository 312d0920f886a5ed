//! Everything the control plane knows at one moment, and the questions asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;

use crate::index::HostIndex;
use crate::service::EndpointsByPort;
use crate::workload::{Selectable, selects};
use crate::{
    AuthorizationAction, AuthorizationPolicy, DestinationRule, Endpoint, Gateway, GatewayRef, Labels, MeshConfig,
    MtlsMode, PeerAuthentication, Service, VirtualService, Workload,
};

/// Everything the control plane knows at one moment. Never changed: the next one is built anew.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// Settings of the mesh.
    pub mesh: MeshConfig,
    /// Labels of the namespaces that are declared.
    pub namespaces: BTreeMap<Arc<str>, Labels>,
    /// All services, ordered by host, then namespace. A host may appear in several namespaces (ServiceEntries).
    pub services: Vec<Arc<Service>>,
    /// Endpoints of the services, under (namespace, host).
    pub endpoints: BTreeMap<(Arc<str>, Hostname), Arc<EndpointsByPort>>,
    /// All workloads, ordered by namespace and Pod.
    pub workloads: Vec<Arc<Workload>>,
    /// All VirtualServices, in the order of precedence. Where two claim a host in the mesh, the later one appears there
    /// without it.
    pub virtual_services: Vec<Arc<VirtualService>>,
    /// All DestinationRules by namespace, there in the order of precedence; those for one host are already merged.
    pub destination_rules: Vec<Arc<DestinationRule>>,
    /// All Gateways, in the order of precedence.
    pub gateways: Vec<Arc<Gateway>>,
    /// All PeerAuthentications by namespace, there in the order of precedence.
    pub peer_authentications: Vec<Arc<PeerAuthentication>>,
    /// All AuthorizationPolicies, ordered by namespace and name.
    pub authorization_policies: Vec<Arc<AuthorizationPolicy>>,
    /// Of `virtual_services`.
    pub(crate) index: HostIndex,
}

impl Snapshot {
    /// The services a client in `namespace` sees, ordered by host, each host once: its own namespace's before others'.
    pub fn services_visible_to<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        // One host's services stand side by side.
        self.services.chunk_by(|a, b| a.host == b.host).filter_map(move |same| preferred(same, namespace))
    }

    /// The service of exactly this host as a client in `namespace` sees it.
    pub fn service(&self, host: &str, namespace: &str) -> Option<&Arc<Service>> {
        preferred(self.services_of(host), namespace)
    }

    /// All services of exactly this host, whoever sees them.
    pub fn services_of(&self, host: &str) -> &[Arc<Service>] {
        let start = self.services.partition_point(|s| s.host.as_str() < host);
        let end = self.services.partition_point(|s| s.host.as_str() <= host);
        self.services.get(start..end).unwrap_or_default()
    }

    /// Whether a client in `namespace` sees a service whose host `host` covers.
    pub fn sees_any_under(&self, host: &Hostname, namespace: &str) -> bool {
        match host.is_wildcard() {
            true => self.services.iter().any(|s| host.covers(&s.host) && s.export_to.includes(namespace)),
            false => self.service(host.as_str(), namespace).is_some(),
        }
    }

    /// The endpoints of a service's port, those that are not ready included.
    pub fn endpoints(&self, service: &Service, port: u16) -> &[Endpoint] {
        self.endpoints
            .get(&(service.namespace.clone(), service.host.clone()))
            .and_then(|by_port| by_port.get(&port))
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

    /// The identities the endpoints of a service have, as SPIFFE URIs in order: whom a client may meet there.
    pub fn identities(&self, service: &Service) -> BTreeSet<String> {
        let by_port = self.endpoints.get(&(service.namespace.clone(), service.host.clone()));
        let known =
            by_port.into_iter().flat_map(|by_port| by_port.values()).flatten().filter_map(|e| e.identity.as_ref());
        known.map(ToString::to_string).chain(service.subject_alt_names.iter().map(|s| s.to_string())).collect()
    }

    /// The workload with this address.
    pub fn workload_at(&self, address: IpAddr) -> Option<&Arc<Workload>> {
        self.workloads.iter().find(|w| w.addresses.contains(&address))
    }

    /// The workload of this Pod.
    pub fn workload(&self, namespace: &str, pod: &str) -> Option<&Arc<Workload>> {
        let found = self.workloads.binary_search_by(|w| (&*w.namespace, &*w.pod).cmp(&(namespace, pod))).ok()?;
        self.workloads.get(found)
    }

    /// The VirtualServices that apply at `gateway` and that a proxy in `namespace` sees, in order of precedence.
    pub fn virtual_services_at<'a>(
        &'a self,
        gateway: &'a GatewayRef,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<VirtualService>> + use<'a> {
        self.virtual_services.iter().filter(move |v| v.applies_at(gateway) && v.export_to.includes(namespace))
    }

    /// Of those, the ones that serve `host` by its name or a wildcard, the most specific first. In the mesh only the
    /// first is used; a gateway merges the routes of those with the same host.
    pub fn virtual_services_for<'a>(
        &'a self,
        gateway: &'a GatewayRef,
        namespace: &'a str,
        host: &Hostname,
    ) -> Vec<&'a Arc<VirtualService>> {
        let covering = self.index.covering(host).into_iter().filter_map(|position| self.virtual_services.get(position));
        covering.filter(|v| v.applies_at(gateway) && v.export_to.includes(namespace)).collect()
    }

    /// The VirtualServices with exactly this host, in the order of precedence.
    pub fn virtual_services_naming(&self, host: &Hostname) -> Vec<&Arc<VirtualService>> {
        let found = self.index.naming(host);
        found.into_iter().filter_map(|position| self.virtual_services.get(position)).collect()
    }

    /// The place of a VirtualService in the order of precedence.
    pub fn precedence(&self, ruling: &Arc<VirtualService>) -> usize {
        self.virtual_services.iter().position(|other| Arc::ptr_eq(other, ruling)).unwrap_or(usize::MAX)
    }

    /// The DestinationRule that `client` in `namespace` uses for a service. Istio's order: the client's
    /// own namespace, the service's, the root namespace; in each the most specific host, a workload selector first.
    pub fn destination_rule_for(
        &self,
        service: &Service,
        namespace: &str,
        client: &impl Selectable,
    ) -> Option<&Arc<DestinationRule>> {
        let own = &*self.mesh.root_namespace;
        let in_namespace = |wanted: &str, client_is_here: bool| {
            of_namespace(&self.destination_rules, wanted, |r| &r.namespace)
                .iter()
                .filter(|r| r.host.covers(&service.host))
                .filter(|r| client_is_here || r.export_to.includes(namespace))
                .filter(|r| {
                    r.workload_selector.is_empty() || (client_is_here && client.selected_by(&r.workload_selector))
                })
                .min_by(|a, b| {
                    let by_selector = a.workload_selector.is_empty().cmp(&b.workload_selector.is_empty());
                    by_selector.then_with(|| a.host.specificity(&b.host))
                })
        };
        // Rules of the root namespace are the mesh's defaults, not the client's own, even for clients that live there.
        let of_client = (namespace != own).then(|| in_namespace(namespace, true)).flatten();
        of_client
            .or_else(|| (*service.namespace != *namespace).then(|| in_namespace(&service.namespace, false)).flatten())
            .or_else(|| in_namespace(own, namespace == own))
    }

    /// What a workload accepts on one of its ports. Port over workload over namespace over mesh; without any: both.
    pub fn mtls_mode(&self, namespace: &str, workload: &impl Selectable, port: u16) -> MtlsMode {
        let of_workload =
            self.peer_authentication(namespace, |p| !p.selector.is_empty() && workload.selected_by(&p.selector));
        let of_port = of_workload.and_then(|p| p.port_modes.get(&port).copied().flatten());
        of_port.or_else(|| of_workload.and_then(|p| p.mode)).unwrap_or_else(|| self.namespace_mtls_mode(namespace))
    }

    /// What workloads of a namespace accept if no policy of their own says otherwise.
    pub fn namespace_mtls_mode(&self, namespace: &str) -> MtlsMode {
        let whole = |wanted: &str| self.peer_authentication(wanted, |p| p.selector.is_empty()).and_then(|p| p.mode);
        whole(namespace).or_else(|| whole(&self.mesh.root_namespace)).unwrap_or(MtlsMode::Permissive)
    }

    fn peer_authentication(
        &self,
        namespace: &str,
        applies: impl Fn(&PeerAuthentication) -> bool,
    ) -> Option<&Arc<PeerAuthentication>> {
        self.peer_authentications_of(namespace).iter().find(|p| applies(p))
    }

    /// The PeerAuthentications written in a namespace, in the order of precedence.
    pub fn peer_authentications_of(&self, namespace: &str) -> &[Arc<PeerAuthentication>] {
        of_namespace(&self.peer_authentications, namespace, |p| &p.namespace)
    }

    /// The AuthorizationPolicies for a workload: DENY before ALLOW, the mesh's before the namespace's, then by name.
    pub fn policies_for(&self, namespace: &str, workload: &impl Selectable) -> Vec<&Arc<AuthorizationPolicy>> {
        let of = |wanted: &str| of_namespace(&self.authorization_policies, wanted, |p| &p.namespace);
        let root = &*self.mesh.root_namespace;
        let own = if namespace == root { &[] } else { of(namespace) };
        let mut found: Vec<_> = of(root).iter().chain(own).filter(|p| workload.selected_by(&p.selector)).collect();
        found.sort_by_key(|p| p.action != AuthorizationAction::Deny);
        found
    }

    /// The Gateways whose selector fits a router, in the order of precedence.
    pub fn gateways_for(&self, router: &impl Selectable) -> Vec<&Arc<Gateway>> {
        self.gateways.iter().filter(|gateway| router.selected_by(&gateway.selector)).collect()
    }
}

/// Of services with one host, what a client in `namespace` sees: its own namespace's before others'.
fn preferred<'a>(same_host: &'a [Arc<Service>], namespace: &str) -> Option<&'a Arc<Service>> {
    let mut visible = same_host.iter().filter(|s| s.export_to.includes(namespace));
    visible.clone().find(|s| &*s.namespace == namespace).or_else(|| visible.next())
}

/// The part of a list ordered by namespace that belongs to one.
fn of_namespace<'a, T>(list: &'a [T], namespace: &str, of: impl Fn(&T) -> &str) -> &'a [T] {
    let start = list.partition_point(|item| of(item) < namespace);
    let end = list.partition_point(|item| of(item) <= namespace);
    list.get(start..end).unwrap_or_default()
}
