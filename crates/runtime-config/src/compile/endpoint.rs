//! `ClusterLoadAssignment`: endpoints by locality and priority.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::endpoint::v3 as endpoint;

use super::Cx;
use super::address::{endpoint_address, port};
use super::fraction::parts_per_million;
use super::health_check::endpoint_check;
use super::metadata::{lb_metadata, string_fields, text_of};
use crate::address::EndpointAddress;
use crate::cluster::{Endpoint, EndpointSet, Health};
use crate::dns::DnsTarget;
use crate::metadata::MetadataValue;

/// Metadata key of the labels that select a transport socket.
const TRANSPORT_SOCKET_MATCH: &str = "envoy.transport_socket_match";

/// The kind of an assignment's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressKind {
    /// IP addresses and pipes.
    Address,
    /// Host names to resolve.
    Name,
}

/// An assignment whose endpoints are not yet matched to a cluster's transport sockets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assignment {
    /// Endpoints with addresses. Names have a placeholder address until resolved.
    pub endpoints: Vec<Endpoint>,
    /// `targets[i]` is the name that `endpoints[i]` is resolved from.
    pub targets: Vec<DnsTarget>,
    /// Settings for all endpoints.
    pub policy: Policy,
}

/// `ClusterLoadAssignment.Policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    pub overprovisioning_percent: u32,
    pub weighted_priority_health: bool,
    pub drop_overload_ppm: u32,
}

impl Default for Policy {
    fn default() -> Self {
        let EndpointSet { overprovisioning_percent, weighted_priority_health, drop_overload_ppm, .. } =
            EndpointSet::default();
        Self { overprovisioning_percent, weighted_priority_health, drop_overload_ppm }
    }
}

/// Compiles an assignment.
pub(crate) fn assignment(
    cx: &mut Cx<'_>,
    assignment: &endpoint::ClusterLoadAssignment,
    kind: AddressKind,
) -> Option<Assignment> {
    let policy = match &assignment.policy {
        None => Some(Policy::default()),
        Some(given) => cx.at("policy", |cx| policy(cx, given)),
    };
    let mut result = Assignment { policy: policy.unwrap_or_default(), ..Assignment::default() };
    cx.each("endpoints", &assignment.endpoints, |cx, locality| {
        if locality.priority > HIGHEST_PRIORITY {
            cx.fail_at::<()>("priority", format!("must not be above {HIGHEST_PRIORITY}"));
        }
        let shared = Locality {
            name: locality_name(locality.locality.as_ref()),
            weight: locality.load_balancing_weight.as_ref().map_or(0, |weight| weight.value),
            priority: locality.priority,
        };
        cx.each("lb_endpoints", &locality.lb_endpoints, |cx, lb_endpoint| {
            let (endpoint, target) = lb_endpoint_of(cx, lb_endpoint, &shared, kind)?;
            result.endpoints.push(endpoint);
            result.targets.extend(target);
            Some(())
        });
        Some(())
    });
    check_priorities(cx, &result.endpoints);
    Some(result)
}

fn policy(cx: &mut Cx<'_>, policy: &endpoint::cluster_load_assignment::Policy) -> Option<Policy> {
    let mut result = Policy { weighted_priority_health: policy.weighted_priority_health, ..Policy::default() };
    match policy.overprovisioning_factor.as_ref().map(|factor| factor.value) {
        None => {}
        Some(0) => return cx.fail_at("overprovisioning_factor", "must be above 0"),
        Some(factor) => result.overprovisioning_percent = factor,
    }
    if policy.drop_overloads.len() > 1 {
        return cx.fail_at("drop_overloads", "at most one category is supported, as in Envoy");
    }
    let dropped = cx.each("drop_overloads", &policy.drop_overloads, |cx, overload| {
        cx.non_empty("category", &overload.category)?;
        let percentage = cx.required("drop_percentage", overload.drop_percentage.as_ref())?;
        cx.at("drop_percentage", |cx| parts_per_million(cx, percentage))
    });
    result.drop_overload_ppm = dropped.first().copied().unwrap_or_default();
    Some(result)
}

/// Envoy's limit of priorities.
const HIGHEST_PRIORITY: u32 = 128;

struct Locality {
    name: Arc<str>,
    weight: u32,
    priority: u32,
}

pub(crate) fn locality_name(locality: Option<&core::Locality>) -> Arc<str> {
    let Some(locality) = locality else { return Arc::from("") };
    let parts = [&locality.region, &locality.zone, &locality.sub_zone];
    let used = parts.iter().rposition(|part| !part.is_empty()).map_or(0, |last| last + 1);
    parts[..used].iter().map(|part| part.as_str()).collect::<Vec<_>>().join("/").into()
}

fn lb_endpoint_of(
    cx: &mut Cx<'_>,
    lb: &endpoint::LbEndpoint,
    locality: &Locality,
    kind: AddressKind,
) -> Option<(Endpoint, Option<DnsTarget>)> {
    let Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(endpoint)) = &lb.host_identifier else {
        return cx.fail_at("endpoint", "is required");
    };
    let weight = lb.load_balancing_weight.as_ref().map_or(1, |weight| weight.value);
    if weight == 0 {
        return cx.fail_at("load_balancing_weight", "must be at least 1");
    }
    let (address, target) = cx.at("endpoint", |cx| match kind {
        AddressKind::Address => endpoint_address(cx, endpoint.address.as_ref()).map(|address| (address, None)),
        AddressKind::Name => named_address(cx, endpoint.address.as_ref(), weight),
    })?;
    let hostname = match (&target, endpoint.hostname.as_str()) {
        (Some(target), "") => target.host.clone(),
        (_, name) => name.into(),
    };
    let lb_metadata = lb_metadata(lb.metadata.as_ref());
    let hash_key = match lb_metadata.get("hash_key") {
        Some(MetadataValue::Text(key)) if !key.is_empty() => Some(Arc::from(&**key)),
        _ => None,
    };
    let endpoint = Endpoint {
        further: Vec::new(),
        address,
        hostname,
        weight,
        health: health(cx, lb.health_status)?,
        priority: locality.priority,
        locality: locality.name.clone(),
        locality_weight: locality.weight,
        hash_key,
        lb_metadata,
        workload: text_of(lb.metadata.as_ref(), "istio", "workload").map(Arc::from),
        transport_labels: transport_labels(lb.metadata.as_ref()),
        transport_index: None,
        check: cx.at("endpoint", |cx| endpoint_check(cx, endpoint.health_check_config.as_ref()))?,
    };
    Some((endpoint, target))
}

/// An address that may be a name. An IP address in a DNS cluster resolves to itself.
fn named_address(
    cx: &mut Cx<'_>,
    address: Option<&core::Address>,
    weight: u32,
) -> Option<(EndpointAddress, Option<DnsTarget>)> {
    let address = cx.required("address", address)?;
    cx.at("address", |cx| {
        let Some(core::address::Address::SocketAddress(address)) = &address.address else {
            return cx.fail("must be a socket_address");
        };
        cx.at("socket_address", |cx| {
            let host = cx.non_empty("address", &address.address)?;
            if address.protocol != core::socket_address::Protocol::Tcp as i32 {
                return cx.fail_at("protocol", "only TCP is supported");
            }
            let port = port(cx, address)?;
            let placeholder = EndpointAddress::Socket((std::net::Ipv4Addr::UNSPECIFIED, port).into());
            Some((placeholder, Some(DnsTarget { host: host.into(), port, weight })))
        })
    })
}

fn health(cx: &mut Cx<'_>, status: i32) -> Option<Health> {
    match core::HealthStatus::try_from(status) {
        Ok(core::HealthStatus::Unknown | core::HealthStatus::Healthy) => Some(Health::Healthy),
        Ok(core::HealthStatus::Degraded) => Some(Health::Degraded),
        Ok(core::HealthStatus::Unhealthy | core::HealthStatus::Timeout) => Some(Health::Unhealthy),
        Ok(core::HealthStatus::Draining) => Some(Health::Draining),
        Err(_) => cx.fail_at("health_status", format!("unknown value {status}")),
    }
}

/// `envoy.transport_socket_match` labels; only strings can match.
pub(crate) fn transport_labels(metadata: Option<&core::Metadata>) -> Vec<(Box<str>, Box<str>)> {
    let labels = metadata.and_then(|metadata| metadata.filter_metadata.get(TRANSPORT_SOCKET_MATCH));
    labels.map(string_fields).unwrap_or_default()
}

/// Checks that priorities start at 0 and have no gaps.
fn check_priorities(cx: &mut Cx<'_>, endpoints: &[Endpoint]) {
    let mut used: Vec<u32> = endpoints.iter().map(|endpoint| endpoint.priority).collect();
    used.sort_unstable();
    used.dedup();
    if let Some((expected, _)) = (0..).zip(&used).find(|(expected, priority)| expected != *priority) {
        cx.fail_at::<()>("endpoints", format!("no locality has priority {expected}; priorities must have no gaps"));
    }
}
