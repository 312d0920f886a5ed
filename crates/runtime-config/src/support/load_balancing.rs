//! Load balancing: policies and their options, subsets, hash policies.

use super::message::MessageSupport;
use super::message::Role::{Extension, Part};

const NO_STREAM: &str = "it needs enable_oob_load_report, which is rejected";

const fn extension(name: &'static str, full: &'static [&'static str]) -> MessageSupport {
    MessageSupport { name, role: Extension, full, values: &[], no_effect: &[] }
}

const fn part(name: &'static str, full: &'static [&'static str]) -> MessageSupport {
    MessageSupport { name, role: Part, full, values: &[], no_effect: &[] }
}

#[rustfmt::skip]
pub(super) static MESSAGES: &[MessageSupport] = &[
    // Options of lb_policy
    part("envoy.config.cluster.v3.Cluster.LeastRequestLbConfig",
        &["choice_count", "active_request_bias", "slow_start_config"]),
    part("envoy.config.cluster.v3.Cluster.RoundRobinLbConfig", &["slow_start_config"]),
    part("envoy.config.cluster.v3.Cluster.RingHashLbConfig",
        &["minimum_ring_size", "maximum_ring_size", "hash_function"]),
    part("envoy.config.cluster.v3.Cluster.MaglevLbConfig", &["table_size"]),
    part("envoy.config.cluster.v3.Cluster.SlowStartConfig",
        &["slow_start_window", "aggression", "min_weight_percent"]),
    MessageSupport {
        name: "envoy.config.cluster.v3.Cluster.CommonLbConfig",
        role: Part,
        full: &["healthy_panic_threshold", "locality_weighted_lb_config", "zone_aware_lb_config",
            "consistent_hashing_lb_config", "ignore_new_hosts_until_first_hc", "close_connections_on_host_set_change", "override_host_status"],
        values: &[],
        no_effect: &[("updates that arrive together are applied together, without waiting for more",
            &["update_merge_window"])],
    },
    part("envoy.config.cluster.v3.Cluster.CommonLbConfig.LocalityWeightedLbConfig", &[]),
    part("envoy.config.cluster.v3.Cluster.CommonLbConfig.ZoneAwareLbConfig",
        &["routing_enabled", "min_cluster_size", "fail_traffic_on_panic"]),
    part("envoy.config.cluster.v3.Cluster.CommonLbConfig.ConsistentHashingLbConfig",
        &["use_hostname_for_hashing", "hash_balance_factor"]),
    part("envoy.config.core.v3.HealthStatusSet", &["statuses"]),
    MessageSupport {
        name: "envoy.config.core.v3.RuntimeDouble",
        role: Part,
        full: &["default_value", "runtime_key"],
        values: &[],
        no_effect: &[],
    },

    // Subsets
    MessageSupport {
        name: "envoy.config.cluster.v3.Cluster.LbSubsetConfig",
        role: Part,
        full: &["fallback_policy", "default_subset", "subset_selectors", "locality_weight_aware", "panic_mode_any",
            "list_as_any"],
        values: &[("metadata_fallback_policy", "METADATA_NO_FALLBACK")],
        no_effect: &[],
    },
    part("envoy.config.cluster.v3.Cluster.LbSubsetConfig.LbSubsetSelector",
        &["keys", "single_host_per_subset", "fallback_policy", "fallback_keys_subset"]),

    // load_balancing_policy
    part("envoy.config.cluster.v3.LoadBalancingPolicy", &["policies"]),
    part("envoy.config.cluster.v3.LoadBalancingPolicy.Policy", &["typed_extension_config"]),
    extension("envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
        &["slow_start_config", "locality_lb_config"]),
    MessageSupport {
        name: "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
        role: Extension,
        full: &["choice_count", "active_request_bias", "slow_start_config", "locality_lb_config", "selection_method"],
        values: &[],
        no_effect: &[("it has no effect in Envoy either; selection_method replaces it", &["enable_full_scan"])],
    },
    extension("envoy.extensions.load_balancing_policies.random.v3.Random", &["locality_lb_config"]),
    MessageSupport {
        name: "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
        role: Extension,
        full: &["blackout_period", "weight_expiration_period", "weight_update_period", "error_utilization_penalty",
            "metric_names_for_computing_utilization", "slow_start_config"],
        values: &[],
        no_effect: &[(NO_STREAM, &["oob_reporting_period", "oob_reporting_config"])],
    },
    extension("envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash",
        &["hash_function", "minimum_ring_size", "maximum_ring_size", "use_hostname_for_hashing", "hash_balance_factor",
          "consistent_hashing_lb_config", "locality_weighted_lb_config"]),
    extension("envoy.extensions.load_balancing_policies.maglev.v3.Maglev",
        &["table_size", "consistent_hashing_lb_config", "locality_weighted_lb_config"]),
    extension("envoy.extensions.load_balancing_policies.cluster_provided.v3.ClusterProvided", &[]),
    MessageSupport {
        name: "envoy.extensions.load_balancing_policies.subset.v3.Subset",
        role: Extension,
        full: &["fallback_policy", "default_subset", "subset_selectors", "allow_redundant_keys", "locality_weight_aware",
            "panic_mode_any", "list_as_any", "subset_lb_policy"],
        values: &[("metadata_fallback_policy", "METADATA_NO_FALLBACK")],
        no_effect: &[],
    },
    part("envoy.extensions.load_balancing_policies.subset.v3.Subset.LbSubsetSelector",
        &["keys", "single_host_per_subset", "fallback_policy", "fallback_keys_subset"]),
    part("envoy.extensions.load_balancing_policies.common.v3.LocalityLbConfig",
        &["locality_weighted_lb_config", "zone_aware_lb_config"]),
    part("envoy.extensions.load_balancing_policies.common.v3.LocalityLbConfig.LocalityWeightedLbConfig", &[]),
    part("envoy.extensions.load_balancing_policies.common.v3.LocalityLbConfig.ZoneAwareLbConfig",
        &["routing_enabled", "min_cluster_size", "fail_traffic_on_panic", "force_locality_direct_routing",
          "force_local_zone", "locality_basis"]),
    part("envoy.extensions.load_balancing_policies.common.v3.LocalityLbConfig.ZoneAwareLbConfig.ForceLocalZone",
        &["min_size"]),
    part("envoy.extensions.load_balancing_policies.common.v3.SlowStartConfig",
        &["slow_start_window", "aggression", "min_weight_percent"]),
    part("envoy.extensions.load_balancing_policies.common.v3.ConsistentHashingLbConfig",
        &["use_hostname_for_hashing", "hash_balance_factor", "hash_policy"]),

    // Hash policies
    part("envoy.config.route.v3.RouteAction.HashPolicy",
        &["header", "cookie", "connection_properties", "query_parameter", "terminal"]),
    part("envoy.config.route.v3.RouteAction.HashPolicy.Header", &["header_name", "regex_rewrite"]),
    part("envoy.config.route.v3.RouteAction.HashPolicy.Cookie", &["name", "ttl", "path", "attributes"]),
    part("envoy.config.route.v3.RouteAction.HashPolicy.CookieAttribute", &["name", "value"]),
    part("envoy.config.route.v3.RouteAction.HashPolicy.ConnectionProperties", &["source_ip"]),
    part("envoy.config.route.v3.RouteAction.HashPolicy.QueryParameter", &["name"]),
    part("envoy.type.v3.HashPolicy", &["source_ip"]),
    part("envoy.type.v3.HashPolicy.SourceIp", &[]),

    // Endpoints
    part("envoy.config.endpoint.v3.ClusterLoadAssignment.Policy",
        &["overprovisioning_factor", "weighted_priority_health", "drop_overloads"]),
    part("envoy.config.endpoint.v3.ClusterLoadAssignment.Policy.DropOverload", &["category", "drop_percentage"]),
];
