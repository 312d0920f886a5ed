//! Chains and clusters of a service on a gateway that passes TLS on to the service named by the SNI
//! (`AUTO_PASSTHROUGH`): a filter chain for each name that mesh clients may send, and the cluster of that name. It
//! connects networks: clients of another network call the gateway, and their mutual TLS ends at the workload.

use std::collections::BTreeSet;

use evenkeel_model::labels::selects;
use evenkeel_model::{Endpoint, Resolution, Service};

use super::chain;
use crate::context::Context;
use crate::metrics;
use crate::output::{Collection, Output, Part};
use crate::pb::config::listener::FilterChainMatch;
use crate::rbac::{self, Bytes};
use crate::{clusters, endpoints, ext_authz, http, names};

/// The ALPN protocols of mesh clients. Other clients are refused, because only for these does the workload's proxy
/// surely require a certificate.
const MESH_PROTOCOLS: [&str; 5] = ["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"];

/// Filter chains and clusters of a service, if a server of the gateway passes TLS on to it.
pub fn of_service(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    let listens_on = passed_on_at(context, service);
    if listens_on.is_empty() {
        return;
    }
    let rule = context.destination_rule(service).map(AsRef::as_ref);
    let mut chains = Vec::new();
    for (port, _) in context.ports(service) {
        let subsets = rule.into_iter().flat_map(|rule| rule.subsets.iter().map(Some));
        for subset in std::iter::once(None).chain(subsets) {
            if !clusters::contain_endpoints(service) {
                let (cluster, origin) = clusters::passed_on(context, service, &port, rule, subset);
                out.add(cluster, origin);
            }
            let subset_name = subset.map(|subset| &*subset.name);
            let policy = rule.map(|rule| rule.policy_for(subset_name, port.number)).unwrap_or_default();
            let name = names::sni_dnat_cluster(port.number, subset_name.unwrap_or_default(), &service.host);
            let wanted = FilterChainMatch {
                server_names: vec![name.clone()],
                application_protocols: MESH_PROTOCOLS.map(str::to_owned).to_vec(),
                ..Default::default()
            };
            let mut filters = ext_authz::network_filters(context, Bytes::Declared);
            filters.extend(rbac::network_filters(context, Bytes::Declared));
            filters.push(http::tcp_by(context, &name, "", Some(&policy)));
            chains.push(chain("", wanted, metrics::counting(context, filters)));
        }
    }
    for port in listens_on {
        out.give(Collection::Port(port), Part::Tcp(chains.clone(), service.origin.clone(), service.order()));
    }
}

/// The endpoints of these clusters, and the clusters that contain theirs.
pub fn of_endpoints(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    if passed_on_at(context, service).is_empty() {
        return;
    }
    let rule = context.destination_rule(service).map(AsRef::as_ref);
    for (port, _) in context.ports(service) {
        let subsets = rule.into_iter().flat_map(|rule| rule.subsets.iter().map(Some));
        for subset in std::iter::once(None).chain(subsets) {
            if clusters::contain_endpoints(service) {
                let (cluster, origin) = clusters::passed_on(context, service, &port, rule, subset);
                out.add(cluster, origin);
                continue;
            }
            let subset_name = subset.map(|subset| &*subset.name);
            let policy = rule.map(|rule| rule.policy_for(subset_name, port.number)).unwrap_or_default();
            let name = names::sni_dnat_cluster(port.number, subset_name.unwrap_or_default(), &service.host);
            // A workload without a proxy cannot end the mesh's TLS.
            let takes = |endpoint: &Endpoint| {
                // Those of other networks have gateways of their own: else two gateways might lead to each other.
                endpoint.mtls
                    && context.is_near(endpoint)
                    && subset.is_none_or(|subset| selects(&subset.labels, &endpoint.labels))
            };
            endpoints::of_cluster(context, (service, port.number), &name, &policy, takes, out);
        }
    }
}

/// The ports of the gateway whose servers pass TLS on to the service.
fn passed_on_at(context: Context<'_>, service: &Service) -> BTreeSet<u16> {
    // A wildcard is no server name, so mesh clients send none for it.
    if service.external || service.resolution == Resolution::DynamicDns || service.host.is_wildcard() {
        return BTreeSet::new();
    }
    let gateways = context.snapshot.passing_gateways_for(&context);
    let servers = gateways.iter().flat_map(|gateway| &gateway.servers).filter(|server| server.passes_by_service());
    let serves =
        servers.filter(|server| server.hosts.iter().any(|host| host.value.covers(&service.namespace, &service.host)));
    serves.map(|server| context.listening_port(server.port)).collect()
}
