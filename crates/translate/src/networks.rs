//! Clusters and networks: which endpoints a client may use, and how it reaches those of another network.
//!
//! An address means something in its own network only. As in Istio, the endpoints of another network are replaced by the gateways
//! that lead into it; a gateway passes TLS on to the workload that the name in it belongs to, so endpoints without the mesh's TLS
//! cannot be reached. A network without gateways is taken for one that is reachable as it is.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_model::{Endpoint, EndpointAddress, Labels, NetworkGateway, Service};

use crate::context::Context;
use crate::facts::Question;

/// Maximum factor of weights, so that shares of gateways stay whole numbers.
const MAX_FACTOR: usize = 64;

impl<'a> Context<'a> {
    /// The remote cluster that the proxy is in; empty: the control plane's own, or none.
    pub fn cluster(&self) -> Arc<str> {
        self.ask_text(Question::Cluster)
    }

    /// The name of the cluster that an endpoint is in, as metrics have it. That of its own cluster a proxy knows itself.
    pub fn cluster_name(&self, endpoint: &Endpoint) -> Arc<str> {
        if !endpoint.cluster.is_empty() {
            return endpoint.cluster.clone();
        }
        let own = self.ask_text(Question::ClusterName);
        if own.is_empty() { self.snapshot.mesh().cluster.clone() } else { own }
    }

    /// Whether the proxy may use an endpoint of a service, wherever that is: services may stay within one cluster.
    pub fn is_offered(&self, service: &Service, endpoint: &Endpoint) -> bool {
        !service.cluster_local || self.cluster() == endpoint.cluster
    }

    /// Whether the proxy can call the address of an endpoint.
    pub fn is_near(&self, endpoint: &Endpoint) -> bool {
        if endpoint.network.is_empty() {
            return true;
        }
        let own = self.ask_text(Question::Network);
        own.is_empty() || own == endpoint.network
    }

    /// The gateways through which the proxy reaches an endpoint; none if it calls it directly.
    fn gateways_to(&self, endpoint: &Endpoint) -> &'a [NetworkGateway] {
        if self.is_near(endpoint) { &[] } else { self.snapshot.gateways_into(&endpoint.network) }
    }

    /// The address at which clients of the proxy's cluster call a service, if that is a remote one which has it.
    pub fn remote_address(&self, service: &Service) -> Option<IpAddr> {
        if service.remote_addresses.is_empty() {
            return None;
        }
        service.remote_addresses.get(&self.cluster()).copied()
    }
}

/// The endpoints as the proxy calls them: those of other networks are replaced by gateways.
pub fn reached<'a>(context: Context<'_>, endpoints: impl Iterator<Item = &'a Endpoint>) -> Vec<Cow<'a, Endpoint>> {
    let all: Vec<(&Endpoint, &[NetworkGateway])> = endpoints.map(|it| (it, context.gateways_to(it))).collect();
    let counts = all.iter().map(|(_, gateways)| gateways.len()).filter(|count| *count > 0);
    // Each gateway has the same share of the endpoints behind it.
    let Some(factor) = counts.reduce(common_multiple) else {
        return all.into_iter().map(|(endpoint, _)| Cow::Borrowed(endpoint)).collect();
    };
    let scaled = |weight: u32, by: usize| weight.max(1).saturating_mul(u32::try_from(by.max(1)).unwrap_or(u32::MAX));
    let mut found = Vec::new();
    for (endpoint, gateways) in all {
        if gateways.is_empty() {
            found.push(Cow::Owned(Endpoint { weight: scaled(endpoint.weight, factor), ..endpoint.clone() }));
        }
        // Whoever is not in the mesh cannot end its TLS.
        let weight = scaled(endpoint.weight, factor / gateways.len().max(1));
        let through = |gateway: &NetworkGateway| Endpoint { weight, ..at_gateway(endpoint, gateway) };
        found.extend(gateways.iter().filter(|_| endpoint.mtls && endpoint.ready).map(|it| Cow::Owned(through(it))));
    }
    found
}

/// A gateway in place of an endpoint. It is known which cluster it is in, not which workload will take a request.
fn at_gateway(endpoint: &Endpoint, gateway: &NetworkGateway) -> Endpoint {
    let names = ["topology.istio.io/cluster", "topology.istio.io/network"];
    let labels: Labels =
        names.iter().filter_map(|name| Some(((*name).to_owned(), endpoint.labels.get(*name)?.clone()))).collect();
    Endpoint {
        address: EndpointAddress::Ip(gateway.address),
        port: gateway.port,
        labels,
        cluster: gateway.cluster.clone(),
        host_name: None,
        node: "".into(),
        workload_name: "".into(),
        namespace: "".into(),
        ..endpoint.clone()
    }
}

/// The least common multiple, within limits.
fn common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1) * b).min(MAX_FACTOR)
}
