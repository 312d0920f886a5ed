//! Endpoints of EDS clusters.

use std::collections::BTreeMap;

use evenkeel_base::Span;
use evenkeel_model::{Endpoint, EndpointAddress, Labels, Resolution};

use crate::clusters::{TLS_MODE, TLS_MODE_ISTIO, outbound_name};
use crate::context::{Carried, Context};
use crate::load_balancer;
use crate::pb::config::endpoint::Endpoint as EnvoyEndpoint;
use crate::pb::config::endpoint::{
    ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};
use crate::pb::core::{Address, Locality, Pipe, address};
use crate::proto::{self, metadata, u32_value};
use crate::tls::Inner;

/// An assignment and where the user asked for it.
pub type Generated = (ClusterLoadAssignment, Option<Span>);

/// The endpoints of every EDS cluster of a proxy, in the order of its clusters.
pub fn load_assignments(context: Context<'_>) -> Vec<Generated> {
    let mut all = Vec::new();
    let whole = Labels::new();
    for (service, port, carried) in context.service_ports() {
        if service.resolution != Resolution::Static {
            continue;
        }
        let rule = context.destination_rule(service);
        let subsets = rule.into_iter().flat_map(|r| r.subsets.iter().map(|s| (&*s.name, &s.labels)));
        for (subset, labels) in std::iter::once(("", &whole)).chain(subsets) {
            let inners: &[Inner] = match carried {
                Carried::Http => &[Inner::Http],
                Carried::Tcp => &[Inner::Tcp],
                Carried::Auto => &[Inner::Http, Inner::Tcp],
            };
            for inner in inners {
                let name = outbound_name(port, subset, service, *inner);
                let ready = context.snapshot.ready_endpoints(service, port.number, labels);
                // EDS takes addresses only; a name would make Envoy refuse the whole assignment.
                let addressed = ready.filter(|e| !matches!(e.address, EndpointAddress::Name(_)));
                let mut assigned = assignment(&name, addressed);
                let policy = rule.map(|r| r.policy_for(Some(subset).filter(|s| !s.is_empty()), port.number));
                let setting = policy.and_then(|policy| policy.load_balancer).and_then(|lb| lb.locality);
                if let Some(setting) = setting {
                    load_balancer::weigh_localities(&setting, context.locality(), &mut assigned);
                }
                all.push((assigned, Some(service.origin.clone())));
            }
        }
    }
    all
}

/// One assignment, its endpoints grouped by locality.
pub fn assignment<'a>(cluster_name: &str, endpoints: impl Iterator<Item = &'a Endpoint>) -> ClusterLoadAssignment {
    let mut by_locality: BTreeMap<&str, Vec<LbEndpoint>> = BTreeMap::new();
    for endpoint in endpoints {
        by_locality.entry(&endpoint.locality).or_default().push(lb_endpoint(endpoint));
    }
    let groups = by_locality.into_iter().map(|(name, lb_endpoints)| LocalityLbEndpoints {
        locality: locality(name),
        lb_endpoints,
        ..Default::default()
    });
    ClusterLoadAssignment { cluster_name: cluster_name.to_owned(), endpoints: groups.collect(), ..Default::default() }
}

fn lb_endpoint(endpoint: &Endpoint) -> LbEndpoint {
    let address = match &endpoint.address {
        EndpointAddress::Ip(ip) => proto::address(&ip.to_string(), u32::from(endpoint.port)),
        EndpointAddress::Name(name) => proto::address(name.as_str(), u32::from(endpoint.port)),
        EndpointAddress::Unix(path) => {
            let pipe = Pipe { path: path.to_string(), ..Default::default() };
            Address { address: Some(address::Address::Pipe(pipe)) }
        }
    };
    let tls = endpoint.mtls.then(|| metadata("envoy.transport_socket_match", TLS_MODE, TLS_MODE_ISTIO));
    LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(EnvoyEndpoint { address: Some(address), ..Default::default() })),
        load_balancing_weight: Some(u32_value(endpoint.weight.max(1))),
        metadata: tls,
        ..Default::default()
    }
}

fn locality(name: &str) -> Option<Locality> {
    let mut parts = name.splitn(3, '/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let locality = Locality { region: next(), zone: next(), sub_zone: next() };
    (!name.is_empty()).then_some(locality)
}
