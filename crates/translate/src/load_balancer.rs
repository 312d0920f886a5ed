//! Load balancing from DestinationRules: settings in clusters, routes and endpoints.

use evenkeel_model::{BackendUtilization, HashKey, HashTable, LbPolicy as Policy, LoadBalancer, LocalityLb, Warmup};

use crate::pb::client_side_weighted_round_robin::ClientSideWeightedRoundRobin;
use crate::pb::config::cluster::cluster::common_lb_config::{
    LocalityConfigSpecifier, LocalityWeightedLbConfig, ZoneAwareLbConfig,
};
use crate::pb::config::cluster::cluster::{
    ClusterDiscoveryType, DiscoveryType, LbConfig, LbPolicy, LeastRequestLbConfig, MaglevLbConfig, RingHashLbConfig,
    RoundRobinLbConfig, SlowStartConfig,
};
use crate::pb::config::cluster::{Cluster, LoadBalancingPolicy, load_balancing_policy};
use crate::pb::config::endpoint::ClusterLoadAssignment;
use crate::pb::config::route::route_action::HashPolicy;
use crate::pb::config::route::route_action::hash_policy::{
    ConnectionProperties, Cookie, CookieAttribute, Header, PolicySpecifier, QueryParameter,
};
use crate::pb::core::{Locality, RuntimeDouble, TypedExtensionConfig};
use crate::pb::envoy_type::{self, Percent};
use crate::pb::google::protobuf::{FloatValue, UInt64Value};
use crate::pb::load_balancing;
use crate::proto::{any, duration, u32_value};

/// Sets a cluster's load balancer; the default is least request. `has_local`: whether the proxy has a local cluster.
pub fn apply(load_balancer: &LoadBalancer, has_local: bool, cluster: &mut Cluster) {
    if let Some(common) = &mut cluster.common_lb_config {
        common.locality_config_specifier = by_locality(load_balancer, has_local);
    }
    if cluster.lb_policy == LbPolicy::ClusterProvided as i32 {
        return;
    }
    let slow_start_config = load_balancer.warmup.as_ref().map(slow_start);
    let (policy, config) = match &load_balancer.policy {
        Some(Policy::RoundRobin) => (
            LbPolicy::RoundRobin,
            slow_start_config
                .map(|warmup| LbConfig::RoundRobinLbConfig(RoundRobinLbConfig { slow_start_config: Some(warmup) })),
        ),
        Some(Policy::Random) => (LbPolicy::Random, None),
        Some(Policy::BackendUtilization(setting)) => {
            cluster.load_balancing_policy = Some(by_utilization(setting, load_balancer.warmup.as_ref()));
            (LbPolicy::LoadBalancingPolicyConfig, None)
        }
        Some(Policy::LeastRequest) | None => (
            LbPolicy::LeastRequest,
            slow_start_config.map(|warmup| {
                let config = LeastRequestLbConfig { slow_start_config: Some(warmup), ..Default::default() };
                LbConfig::LeastRequestLbConfig(config)
            }),
        ),
        Some(Policy::ConsistentHash(_, HashTable::Ring(size))) => {
            let config = |size: u32| {
                let minimum_ring_size = Some(UInt64Value { value: u64::from(size) });
                LbConfig::RingHashLbConfig(RingHashLbConfig { minimum_ring_size, ..Default::default() })
            };
            (LbPolicy::RingHash, size.map(config))
        }
        Some(Policy::ConsistentHash(_, HashTable::Maglev(size))) => {
            let config = |size: u32| {
                let table_size = Some(UInt64Value { value: u64::from(size) });
                LbConfig::MaglevLbConfig(MaglevLbConfig { table_size })
            };
            (LbPolicy::Maglev, size.map(config))
        }
        Some(Policy::Passthrough) => {
            cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::OriginalDst as i32));
            cluster.eds_cluster_config = None;
            cluster.load_assignment = None;
            cluster.common_lb_config = None;
            (LbPolicy::ClusterProvided, None)
        }
    };
    cluster.lb_policy = policy as i32;
    cluster.lb_config = config;
}

/// How requests are divided among localities. A proxy with a local cluster divides requests among zones unless it is told
/// not to, as Envoy does.
fn by_locality(load_balancer: &LoadBalancer, has_local: bool) -> Option<LocalityConfigSpecifier> {
    if load_balancer.zones().is_none() && load_balancer.locality.as_ref().is_some_and(weighs_localities) {
        return Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(LocalityWeightedLbConfig {}));
    }
    let config = match load_balancer.zones() {
        Some(zones) => {
            let min_cluster_size = zones.min_cluster_size.map(|size| UInt64Value { value: u64::from(size) });
            ZoneAwareLbConfig { min_cluster_size, ..Default::default() }
        }
        None if has_local || load_balancer.zone_aware.is_some() => {
            ZoneAwareLbConfig { routing_enabled: Some(Percent { value: 0.0 }), ..Default::default() }
        }
        None => return None,
    };
    Some(LocalityConfigSpecifier::ZoneAwareLbConfig(config))
}

/// Weights from load reports in responses.
fn by_utilization(setting: &BackendUtilization, warmup: Option<&Warmup>) -> LoadBalancingPolicy {
    let config = ClientSideWeightedRoundRobin {
        blackout_period: setting.stabilization.map(duration),
        weight_expiration_period: setting.expiration.map(duration),
        weight_update_period: setting.update.map(duration),
        error_utilization_penalty: setting
            .error_penalty_percent
            .map(|percent| FloatValue { value: (f64::from(percent) / 100.0) as f32 }),
        metric_names_for_computing_utilization: setting.metrics.iter().map(ToString::to_string).collect(),
        slow_start_config: warmup.map(|warmup| {
            let SlowStartConfig { slow_start_window, aggression, min_weight_percent } = slow_start(warmup);
            load_balancing::SlowStartConfig { slow_start_window, aggression, min_weight_percent }
        }),
        ..Default::default()
    };
    let extension = TypedExtensionConfig {
        name: "envoy.load_balancing_policies.client_side_weighted_round_robin".to_owned(),
        typed_config: Some(any(&config)),
    };
    LoadBalancingPolicy { policies: vec![load_balancing_policy::Policy { typed_extension_config: Some(extension) }] }
}

fn slow_start(warmup: &Warmup) -> SlowStartConfig {
    SlowStartConfig {
        slow_start_window: Some(duration(warmup.duration)),
        aggression: warmup.aggression.map(|value| RuntimeDouble { default_value: value, ..Default::default() }),
        min_weight_percent: warmup.minimum_percent.map(|value| Percent { value }),
    }
}

fn weighs_localities(locality: &LocalityLb) -> bool {
    !locality.disabled && !locality.distribute.is_empty()
}

/// The hash policy of routes to a cluster, if it uses consistent hashing.
pub fn hash_policy(load_balancer: &LoadBalancer) -> Option<HashPolicy> {
    let Some(Policy::ConsistentHash(key, _)) = &load_balancer.policy else { return None };
    let specifier = match key {
        HashKey::Header(name) => {
            PolicySpecifier::Header(Header { header_name: name.to_string(), ..Default::default() })
        }
        HashKey::Cookie { name, path, ttl, attributes } => PolicySpecifier::Cookie(Cookie {
            name: name.to_string(),
            path: path.to_string(),
            ttl: ttl.map(duration),
            attributes: attributes
                .iter()
                .map(|(name, value)| CookieAttribute { name: name.to_string(), value: value.to_string() })
                .collect(),
        }),
        HashKey::SourceIp => PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: true }),
        HashKey::QueryParameter(name) => PolicySpecifier::QueryParameter(QueryParameter { name: name.to_string() }),
    };
    Some(HashPolicy { policy_specifier: Some(specifier), ..Default::default() })
}

/// The hash policy of TCP connections, of which only the client's address is known.
pub fn tcp_hash_policy(load_balancer: &LoadBalancer) -> Option<envoy_type::HashPolicy> {
    use envoy_type::hash_policy::{PolicySpecifier, SourceIp};
    let Some(Policy::ConsistentHash(HashKey::SourceIp, _)) = &load_balancer.policy else { return None };
    Some(envoy_type::HashPolicy { policy_specifier: Some(PolicySpecifier::SourceIp(SourceIp {})) })
}

/// Sets the weights of an assignment's localities for a client in `from`; localities that no entry of `to` names get
/// none.
pub fn weigh_localities(locality: &LocalityLb, from: &str, assignment: &mut ClusterLoadAssignment) {
    if !weighs_localities(locality) {
        return;
    }
    let from = parts(from);
    let Some((_, to)) = locality.distribute.iter().find(|(origin, _)| matches(from, origin)) else { return };
    // The most specific names come first; `*` takes the rest.
    let mut to: Vec<_> = to.iter().collect();
    to.sort_by_key(|(name, _)| parts(name).iter().filter(|part| matches!(**part, "*" | "")).count());
    let mut left: Vec<usize> = (0..assignment.endpoints.len()).collect();
    for (name, weight) in to {
        let (found, rest): (Vec<usize>, Vec<usize>) = left.into_iter().partition(|index| {
            let group = assignment.endpoints.get(*index).and_then(|group| group.locality.as_ref());
            matches(group.map(names).unwrap_or_default(), name)
        });
        left = rest;
        let size = |index: &usize| assignment.endpoints.get(*index).map_or(0, |group| group.lb_endpoints.len() as u64);
        let total: u64 = found.iter().map(size).sum();
        // Localities with the same entry share its weight in proportion to their endpoints.
        let shares: Vec<_> = found.iter().map(|index| (*index, size(index))).collect();
        for (index, size) in shares {
            let share = (size * u64::from(*weight)).div_ceil(total.max(1));
            if let Some(group) = assignment.endpoints.get_mut(index) {
                group.load_balancing_weight = (share > 0).then(|| u32_value(u32::try_from(share).unwrap_or(u32::MAX)));
            }
        }
    }
    for index in left {
        if let Some(group) = assignment.endpoints.get_mut(index) {
            group.lb_endpoints.clear();
        }
    }
}

pub(crate) type Parts<'a> = [&'a str; 3];

/// Region, zone and sub-zone.
pub(crate) fn parts(name: &str) -> Parts<'_> {
    let mut parts = name.splitn(3, '/');
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

fn names(locality: &Locality) -> Parts<'_> {
    [&locality.region, &locality.zone, &locality.sub_zone]
}

/// Whether a locality matches a rule's name, in which `*`, or a missing zone or sub-zone, matches anything.
fn matches(locality: Parts<'_>, rule: &str) -> bool {
    let rule = parts(rule);
    locality
        .into_iter()
        .zip(rule)
        .enumerate()
        .all(|(level, (own, wanted))| wanted == "*" || own == wanted || (level > 0 && wanted.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::config::endpoint::{LbEndpoint, LocalityLbEndpoints};

    fn weights(from: &str, distribute: &[(&str, &[(&str, u32)])], groups: &[(&str, usize)]) -> Vec<Option<u32>> {
        let group = |(name, endpoints): &(&str, usize)| {
            let [region, zone, sub_zone] = parts(name).map(str::to_owned);
            LocalityLbEndpoints {
                locality: Some(Locality { region, zone, sub_zone }),
                lb_endpoints: vec![LbEndpoint::default(); *endpoints],
                ..Default::default()
            }
        };
        let mut assignment =
            ClusterLoadAssignment { endpoints: groups.iter().map(group).collect(), ..Default::default() };
        let to = |to: &[(&str, u32)]| to.iter().map(|(name, weight)| ((*name).into(), *weight)).collect();
        let distribute = distribute.iter().map(|(from, shares)| ((*from).into(), to(shares))).collect();
        let setting = LocalityLb { distribute, ..LocalityLb::default() };
        weigh_localities(&setting, from, &mut assignment);
        let weight = |group: &LocalityLbEndpoints| {
            group.load_balancing_weight.filter(|_| !group.lb_endpoints.is_empty()).map(|weight| weight.value)
        };
        assignment.endpoints.iter().map(weight).collect()
    }

    #[test]
    fn localities_get_their_shares() {
        let rules: &[(&str, &[(&str, u32)])] =
            &[("r1/z1/*", &[("*", 20), ("r1/z1/*", 80)]), ("r2/*", &[("r1/z1", 100)])];
        let groups = [("r1/z1/a", 1), ("r1/z1/b", 3), ("r2/z1", 2), ("r3", 2)];
        assert_eq!(weights("r1/z1/c", rules, &groups), [Some(20), Some(60), Some(10), Some(10)]);
        assert_eq!(weights("r2/z9", rules, &groups), [Some(25), Some(75), None, None]);
        assert_eq!(weights("r9", rules, &groups), [None; 4]);
    }
}
