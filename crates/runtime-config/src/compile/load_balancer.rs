//! Load balancers: `lb_policy` with its options, and the extensions of `load_balancing_policy`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster;
use evenkeel_xds::pb::envoy::config::cluster::v3::cluster as pb;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::load_balancing_policies as policies;
use evenkeel_xds::pb::envoy::r#type::v3::Percent;
use evenkeel_xds::pb::google::protobuf::{Any, Duration as PbDuration, UInt32Value, UInt64Value};
use policies::common::v3 as common;
use policies::common::v3::locality_lb_config::LocalityConfigSpecifier;

use super::hash_policy::hash_policies;
use super::subset::{subset_config, typed_subset_config};
use super::utilization::utilization;
use super::{Cx, runtime, type_name};
use crate::cluster::{
    Discovery, HashFunction, HashKey, LeastRequest, LoadBalancer, Maglev, OverrideHostStatus, PanicMode, RingHash,
    SlowStart, SubsetConfig, Utilization, ZoneAware,
};
use crate::hash_policy::HashPolicies;

const DEFAULT_MIN_RING_SIZE: u64 = 1024;
const MAX_RING_SIZE: u64 = 8 * 1024 * 1024;
const DEFAULT_TABLE_SIZE: u64 = 65_537;
const MAX_TABLE_SIZE: u64 = 5_000_011;
const DEFAULT_MIN_WEIGHT_PERCENT: f64 = 10.0;

/// All settings of a cluster that determine the next endpoint.
#[derive(Debug)]
pub(super) struct Balancing {
    pub load_balancer: LoadBalancer,
    pub panic: PanicMode,
    pub locality_weighted: bool,
    pub zone_aware: ZoneAware,
    pub utilization: Option<Arc<Utilization>>,
    pub subsets: Option<Arc<SubsetConfig>>,
    pub hash_policies: Arc<HashPolicies>,
    pub override_host_status: OverrideHostStatus,
}

/// Compiles a cluster's load balancing settings.
pub(super) fn balancing(cx: &mut Cx<'_>, c: &cluster::Cluster, discovery: &Discovery) -> Option<Balancing> {
    let common = c.common_lb_config.clone().unwrap_or_default();
    let panic_threshold = panic_threshold(cx, common.healthy_panic_threshold.as_ref());
    let override_host_status = override_host_status(cx, common.override_host_status.as_ref())?;
    let mut balancing = match &c.load_balancing_policy {
        Some(policy) => cx.at("load_balancing_policy", |cx| first_known(cx, policy)),
        None => by_enum(cx, c, &common),
    }?;
    let provided = balancing.load_balancer == LoadBalancer::ClusterProvided;
    if discovery.is_by_call() != provided {
        let reason = "CLUSTER_PROVIDED goes with type ORIGINAL_DST and the dynamic forward proxy, and with no other";
        return cx.fail_at("lb_policy", reason);
    }
    balancing.panic.threshold_percent = panic_threshold?;
    balancing.override_host_status = override_host_status;
    Some(balancing)
}

impl Balancing {
    fn new(load_balancer: LoadBalancer) -> Self {
        Self {
            load_balancer,
            panic: PanicMode::default(),
            locality_weighted: false,
            zone_aware: ZoneAware::default(),
            utilization: None,
            subsets: None,
            hash_policies: Arc::default(),
            override_host_status: OverrideHostStatus::default(),
        }
    }
}

/// The threshold in percent, rounded as in Envoy.
fn panic_threshold(cx: &mut Cx<'_>, threshold: Option<&Percent>) -> Option<u32> {
    let Some(threshold) = threshold else { return Some(PanicMode::default().threshold_percent) };
    if (0.0..=100.0).contains(&threshold.value) {
        Some(threshold.value.round() as u32)
    } else {
        cx.fail_at("common_lb_config.healthy_panic_threshold.value", "must lie between 0 and 100")
    }
}

fn override_host_status(cx: &mut Cx<'_>, set: Option<&core::HealthStatusSet>) -> Option<OverrideHostStatus> {
    let Some(set) = set else { return Some(OverrideHostStatus::default()) };
    let mut status = OverrideHostStatus { healthy: false, degraded: false, draining: false, unhealthy: false };
    cx.each("common_lb_config.override_host_status.statuses", &set.statuses, |cx, value| {
        match core::HealthStatus::try_from(*value) {
            Ok(core::HealthStatus::Unknown | core::HealthStatus::Healthy) => status.healthy = true,
            Ok(core::HealthStatus::Degraded) => status.degraded = true,
            Ok(core::HealthStatus::Draining) => status.draining = true,
            Ok(core::HealthStatus::Unhealthy | core::HealthStatus::Timeout) => status.unhealthy = true,
            Err(_) => return cx.fail(format!("unknown value {value}")),
        }
        Some(())
    });
    Some(status)
}

// --- lb_policy ---

fn by_enum(cx: &mut Cx<'_>, c: &cluster::Cluster, common: &pb::CommonLbConfig) -> Option<Balancing> {
    let policy = pb::LbPolicy::try_from(c.lb_policy);
    options_fit(cx, c, policy.ok())?;
    let hashing = common.consistent_hashing_lb_config.unwrap_or_default();
    let key = hash_key(hashing.use_hostname_for_hashing);
    let factor = cx.at("common_lb_config.consistent_hashing_lb_config", |cx| {
        balance_factor(cx, hashing.hash_balance_factor.as_ref())
    })?;
    let load_balancer = match policy {
        Ok(pb::LbPolicy::RoundRobin) => LoadBalancer::RoundRobin { slow_start: round_robin_slow_start(cx, c)? },
        Ok(pb::LbPolicy::LeastRequest) => least_request(cx, c)?,
        Ok(pb::LbPolicy::Random) => LoadBalancer::Random,
        Ok(pb::LbPolicy::RingHash) => ring_hash(cx, c, key, factor)?,
        Ok(pb::LbPolicy::Maglev) => {
            let size = match &c.lb_config {
                Some(pb::LbConfig::MaglevLbConfig(config)) => config.table_size.as_ref(),
                _ => None,
            };
            LoadBalancer::Maglev(cx.at("maglev_lb_config", |cx| maglev(cx, size, key, factor))?)
        }
        Ok(pb::LbPolicy::ClusterProvided) => LoadBalancer::ClusterProvided,
        Ok(pb::LbPolicy::LoadBalancingPolicyConfig) => {
            return cx.fail_at("load_balancing_policy", "is required by lb_policy LOAD_BALANCING_POLICY_CONFIG");
        }
        Err(_) => return cx.fail_at("lb_policy", format!("unknown value {}", c.lb_policy)),
    };
    let mut balancing = Balancing::new(load_balancer);
    match &common.locality_config_specifier {
        Some(pb::common_lb_config::LocalityConfigSpecifier::LocalityWeightedLbConfig(_)) => {
            balancing.locality_weighted = true;
        }
        Some(pb::common_lb_config::LocalityConfigSpecifier::ZoneAwareLbConfig(zone)) => {
            balancing.panic.fail_traffic = zone.fail_traffic_on_panic;
            let (enabled, min_size) = (zone.routing_enabled.as_ref(), zone.min_cluster_size.as_ref());
            balancing.zone_aware = cx.at("common_lb_config.zone_aware_lb_config", |cx| zones(cx, enabled, min_size))?;
        }
        None => {}
    }
    balancing.subsets = match &c.lb_subset_config {
        None => None,
        Some(_) if load_balancer == LoadBalancer::ClusterProvided => {
            return cx.fail_at("lb_subset_config", "does not go with lb_policy CLUSTER_PROVIDED");
        }
        Some(config) => cx.at("lb_subset_config", |cx| subset_config(cx, config))?.map(Arc::new),
    };
    Some(balancing)
}

/// The options must belong to the policy.
fn options_fit(cx: &mut Cx<'_>, c: &cluster::Cluster, policy: Option<pb::LbPolicy>) -> Option<()> {
    let (field, of) = match &c.lb_config {
        None | Some(pb::LbConfig::OriginalDstLbConfig(_)) => return Some(()),
        Some(pb::LbConfig::LeastRequestLbConfig(_)) => ("least_request_lb_config", pb::LbPolicy::LeastRequest),
        Some(pb::LbConfig::RoundRobinLbConfig(_)) => ("round_robin_lb_config", pb::LbPolicy::RoundRobin),
        Some(pb::LbConfig::RingHashLbConfig(_)) => ("ring_hash_lb_config", pb::LbPolicy::RingHash),
        Some(pb::LbConfig::MaglevLbConfig(_)) => ("maglev_lb_config", pb::LbPolicy::Maglev),
    };
    if policy.is_some_and(|policy| policy != of) {
        return cx.fail_at(field, "does not go with this lb_policy");
    }
    Some(())
}

fn round_robin_slow_start(cx: &mut Cx<'_>, c: &cluster::Cluster) -> Option<Option<SlowStart>> {
    let Some(pb::LbConfig::RoundRobinLbConfig(config)) = &c.lb_config else { return Some(None) };
    cx.at("round_robin_lb_config", |cx| config.slow_start_config.as_ref().map(SlowStartFields::of).compile(cx))
}

fn least_request(cx: &mut Cx<'_>, c: &cluster::Cluster) -> Option<LoadBalancer> {
    let Some(pb::LbConfig::LeastRequestLbConfig(config)) = &c.lb_config else {
        return Some(LoadBalancer::LeastRequest(LeastRequest::default()));
    };
    cx.at("least_request_lb_config", |cx| {
        Some(LoadBalancer::LeastRequest(LeastRequest {
            choices: choices(cx, config.choice_count.as_ref())?,
            full_scan: false,
            active_request_bias: bias(cx, config.active_request_bias.as_ref())?,
            slow_start: config.slow_start_config.as_ref().map(SlowStartFields::of).compile(cx)?,
        }))
    })
}

fn ring_hash(cx: &mut Cx<'_>, c: &cluster::Cluster, key: HashKey, balance_factor: u32) -> Option<LoadBalancer> {
    let config = match &c.lb_config {
        Some(pb::LbConfig::RingHashLbConfig(config)) => *config,
        _ => pb::RingHashLbConfig::default(),
    };
    cx.at("ring_hash_lb_config", |cx| {
        use pb::ring_hash_lb_config::HashFunction as Function;
        let function = match Function::try_from(config.hash_function) {
            Ok(Function::XxHash) => HashFunction::XxHash,
            Ok(Function::MurmurHash2) => HashFunction::MurmurHash2,
            Err(_) => return cx.fail_at("hash_function", format!("unknown value {}", config.hash_function)),
        };
        let (min_size, max_size) =
            ring_sizes(cx, config.minimum_ring_size.as_ref(), config.maximum_ring_size.as_ref())?;
        Some(LoadBalancer::RingHash(RingHash { min_size, max_size, function, key, balance_factor }))
    })
}

// --- load_balancing_policy ---

const ROUND_ROBIN: &str = "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin";
const LEAST_REQUEST: &str = "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest";
const RANDOM: &str = "envoy.extensions.load_balancing_policies.random.v3.Random";
const CLIENT_SIDE_WEIGHTED: &str =
    "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin";
const RING_HASH: &str = "envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash";
const MAGLEV: &str = "envoy.extensions.load_balancing_policies.maglev.v3.Maglev";
const CLUSTER_PROVIDED: &str = "envoy.extensions.load_balancing_policies.cluster_provided.v3.ClusterProvided";
const SUBSET: &str = "envoy.extensions.load_balancing_policies.subset.v3.Subset";

/// The first policy, as Envoy takes the first known one. The table of supported fields has rejected unknown ones by name.
pub(super) fn first_known(cx: &mut Cx<'_>, policy: &cluster::LoadBalancingPolicy) -> Option<Balancing> {
    cx.at("policies", |cx| match policy.policies.first() {
        None => cx.fail("must not be empty"),
        Some(first) => cx.element(0, |cx| {
            let extension = cx.required("typed_extension_config", first.typed_extension_config.as_ref())?;
            cx.at("typed_extension_config", |cx| {
                let any = cx.required("typed_config", extension.typed_config.as_ref())?;
                cx.at("typed_config", |cx| typed(cx, any))
            })
        }),
    })
}

fn typed(cx: &mut Cx<'_>, any: &Any) -> Option<Balancing> {
    match type_name(&any.type_url) {
        ROUND_ROBIN => {
            let config: policies::round_robin::v3::RoundRobin = cx.unpack(any)?;
            let slow_start = config.slow_start_config.as_ref().map(SlowStartFields::of_typed).compile(cx)?;
            Balancing::new(LoadBalancer::RoundRobin { slow_start }).within(cx, config.locality_lb_config.as_ref())
        }
        LEAST_REQUEST => {
            let config: policies::least_request::v3::LeastRequest = cx.unpack(any)?;
            let load_balancer = typed_least_request(cx, &config)?;
            Balancing::new(load_balancer).within(cx, config.locality_lb_config.as_ref())
        }
        RANDOM => {
            let config: policies::random::v3::Random = cx.unpack(any)?;
            Balancing::new(LoadBalancer::Random).within(cx, config.locality_lb_config.as_ref())
        }
        CLIENT_SIDE_WEIGHTED => {
            let config: policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin =
                cx.unpack(any)?;
            let slow_start = config.slow_start_config.as_ref().map(SlowStartFields::of_typed).compile(cx)?;
            let utilization = Some(Arc::new(utilization(cx, &config)?));
            Some(Balancing { utilization, ..Balancing::new(LoadBalancer::ClientSideWeighted { slow_start }) })
        }
        RING_HASH => {
            let config: policies::ring_hash::v3::RingHash = cx.unpack(any)?;
            typed_ring_hash(cx, &config)
        }
        MAGLEV => {
            let config: policies::maglev::v3::Maglev = cx.unpack(any)?;
            let (key, factor, hash_policies) = typed_hashing(cx, config.consistent_hashing_lb_config.as_ref())?;
            let load_balancer = LoadBalancer::Maglev(maglev(cx, config.table_size.as_ref(), key, factor)?);
            let locality_weighted = config.locality_weighted_lb_config.is_some();
            Some(Balancing { locality_weighted, hash_policies, ..Balancing::new(load_balancer) })
        }
        CLUSTER_PROVIDED => Some(Balancing::new(LoadBalancer::ClusterProvided)),
        SUBSET => {
            let config: policies::subset::v3::Subset = cx.unpack(any)?;
            let subsets = typed_subset_config(cx, &config)?;
            let inner = cx.required("subset_lb_policy", config.subset_lb_policy.as_ref())?;
            let inner = cx.at("subset_lb_policy", |cx| first_known(cx, inner))?;
            if inner.subsets.is_some() {
                return cx.fail_at("subset_lb_policy", "subsets cannot be divided again");
            }
            Some(Balancing { subsets: subsets.map(Arc::new), ..inner })
        }
        name => cx.fail(format!("{name} is no load balancing policy")),
    }
}

impl Balancing {
    fn within(mut self, cx: &mut Cx<'_>, localities: Option<&common::LocalityLbConfig>) -> Option<Self> {
        match localities.and_then(|config| config.locality_config_specifier.as_ref()) {
            Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(_)) => self.locality_weighted = true,
            Some(LocalityConfigSpecifier::ZoneAwareLbConfig(zone)) => {
                self.panic.fail_traffic = zone.fail_traffic_on_panic;
                self.zone_aware = cx.at("locality_lb_config.zone_aware_lb_config", |cx| typed_zones(cx, zone))?;
            }
            None => {}
        }
        Some(self)
    }
}

/// The settings of zone-aware routing that both forms have.
fn zones(cx: &mut Cx<'_>, enabled: Option<&Percent>, min_cluster_size: Option<&UInt64Value>) -> Option<ZoneAware> {
    let default = ZoneAware::default();
    let routing_percent = match enabled.map_or(f64::from(default.routing_percent), |enabled| enabled.value) {
        percent if (0.0..=100.0).contains(&percent) => percent.round() as u32,
        _ => return cx.fail_at("routing_enabled.value", "must lie between 0 and 100"),
    };
    let min_cluster_size = min_cluster_size.map_or(default.min_cluster_size, |size| size.value);
    Some(ZoneAware { routing_percent, min_cluster_size, ..default })
}

#[allow(deprecated)] // The older form of `force_local_zone` is still sent.
fn typed_zones(cx: &mut Cx<'_>, zone: &common::locality_lb_config::ZoneAwareLbConfig) -> Option<ZoneAware> {
    use common::locality_lb_config::zone_aware_lb_config::LocalityBasis;
    let by_weight = match LocalityBasis::try_from(zone.locality_basis) {
        Ok(LocalityBasis::HealthyHostsNum) => false,
        Ok(LocalityBasis::HealthyHostsWeight) => true,
        Err(_) => return cx.fail_at("locality_basis", format!("unknown value {}", zone.locality_basis)),
    };
    let force_local_min_hosts = match &zone.force_local_zone {
        Some(forced) => Some(forced.min_size.map_or(1, |size| size.value)),
        None => zone.force_locality_direct_routing.then_some(1),
    };
    let common = zones(cx, zone.routing_enabled.as_ref(), zone.min_cluster_size.as_ref())?;
    Some(ZoneAware { force_local_min_hosts, by_weight, ..common })
}

fn typed_least_request(cx: &mut Cx<'_>, config: &policies::least_request::v3::LeastRequest) -> Option<LoadBalancer> {
    use policies::least_request::v3::least_request::SelectionMethod;
    let full_scan = match SelectionMethod::try_from(config.selection_method) {
        Ok(SelectionMethod::NChoices) => false,
        Ok(SelectionMethod::FullScan) => true,
        Err(_) => return cx.fail_at("selection_method", format!("unknown value {}", config.selection_method)),
    };
    Some(LoadBalancer::LeastRequest(LeastRequest {
        choices: choices(cx, config.choice_count.as_ref())?,
        full_scan,
        active_request_bias: bias(cx, config.active_request_bias.as_ref())?,
        slow_start: config.slow_start_config.as_ref().map(SlowStartFields::of_typed).compile(cx)?,
    }))
}

#[allow(deprecated)] // The flat forms of the hashing options are still sent.
fn typed_ring_hash(cx: &mut Cx<'_>, config: &policies::ring_hash::v3::RingHash) -> Option<Balancing> {
    use policies::ring_hash::v3::ring_hash::HashFunction as Function;
    let function = match Function::try_from(config.hash_function) {
        Ok(Function::DefaultHash | Function::XxHash) => HashFunction::XxHash,
        Ok(Function::MurmurHash2) => HashFunction::MurmurHash2,
        Err(_) => return cx.fail_at("hash_function", format!("unknown value {}", config.hash_function)),
    };
    let (min_size, max_size) = ring_sizes(cx, config.minimum_ring_size.as_ref(), config.maximum_ring_size.as_ref())?;
    let (mut key, mut factor, hash_policies) = typed_hashing(cx, config.consistent_hashing_lb_config.as_ref())?;
    if config.consistent_hashing_lb_config.is_none() {
        key = hash_key(config.use_hostname_for_hashing);
        factor = balance_factor(cx, config.hash_balance_factor.as_ref())?;
    }
    let options = RingHash { min_size, max_size, function, key, balance_factor: factor };
    let locality_weighted = config.locality_weighted_lb_config.is_some();
    Some(Balancing { locality_weighted, hash_policies, ..Balancing::new(LoadBalancer::RingHash(options)) })
}

fn typed_hashing(
    cx: &mut Cx<'_>,
    config: Option<&common::ConsistentHashingLbConfig>,
) -> Option<(HashKey, u32, Arc<HashPolicies>)> {
    let Some(config) = config else { return Some((HashKey::Address, 0, Arc::default())) };
    cx.at("consistent_hashing_lb_config", |cx| {
        let factor = balance_factor(cx, config.hash_balance_factor.as_ref())?;
        let policies = hash_policies(cx, &config.hash_policy)?;
        Some((hash_key(config.use_hostname_for_hashing), factor, Arc::new(policies)))
    })
}

// --- options that both forms have ---

fn choices(cx: &mut Cx<'_>, count: Option<&UInt32Value>) -> Option<u32> {
    match count.map_or(2, |count| count.value) {
        0 | 1 => cx.fail_at("choice_count", "must be at least 2"),
        count => Some(count),
    }
}

fn bias(cx: &mut Cx<'_>, bias: Option<&core::RuntimeDouble>) -> Option<f64> {
    match runtime::double(cx, bias, 1.0) {
        bias if bias >= 0.0 => Some(bias),
        bias => cx.fail_at("active_request_bias.default_value", format!("{bias} is below 0")),
    }
}

fn hash_key(use_hostname: bool) -> HashKey {
    if use_hostname { HashKey::Hostname } else { HashKey::Address }
}

fn balance_factor(cx: &mut Cx<'_>, factor: Option<&UInt32Value>) -> Option<u32> {
    match factor.map(|factor| factor.value) {
        None => Some(0),
        Some(factor @ 100..) => Some(factor),
        Some(factor) => cx.fail_at("hash_balance_factor", format!("{factor} is below 100")),
    }
}

fn ring_sizes(cx: &mut Cx<'_>, min: Option<&UInt64Value>, max: Option<&UInt64Value>) -> Option<(u64, u64)> {
    let min = min.map_or(DEFAULT_MIN_RING_SIZE, |min| min.value);
    let max = max.map_or(MAX_RING_SIZE, |max| max.value);
    if min > max {
        return cx.fail_at("minimum_ring_size", format!("{min} is above maximum_ring_size ({max})"));
    }
    match max {
        0 => cx.fail_at("maximum_ring_size", "must be at least 1"),
        1..=MAX_RING_SIZE => Some((min.max(1), max)),
        _ => cx.fail_at("maximum_ring_size", format!("must not be above {MAX_RING_SIZE}")),
    }
}

fn maglev(cx: &mut Cx<'_>, size: Option<&UInt64Value>, key: HashKey, balance_factor: u32) -> Option<Maglev> {
    let table_size = size.map_or(DEFAULT_TABLE_SIZE, |size| size.value);
    if table_size > MAX_TABLE_SIZE {
        return cx.fail_at("table_size", format!("must not be above {MAX_TABLE_SIZE}"));
    }
    if !is_prime(table_size) {
        return cx.fail_at("table_size", format!("{table_size} is no prime number"));
    }
    Some(Maglev { table_size, key, balance_factor })
}

fn is_prime(number: u64) -> bool {
    number >= 2
        && (2..).take_while(|divisor| divisor * divisor <= number).all(|divisor| !number.is_multiple_of(divisor))
}

/// The fields of both slow start messages, which are the same.
struct SlowStartFields<'m> {
    window: Option<&'m PbDuration>,
    aggression: Option<&'m core::RuntimeDouble>,
    min_weight_percent: Option<&'m Percent>,
}

impl<'m> SlowStartFields<'m> {
    fn of(config: &'m pb::SlowStartConfig) -> Self {
        Self {
            window: config.slow_start_window.as_ref(),
            aggression: config.aggression.as_ref(),
            min_weight_percent: config.min_weight_percent.as_ref(),
        }
    }

    fn of_typed(config: &'m common::SlowStartConfig) -> Self {
        Self {
            window: config.slow_start_window.as_ref(),
            aggression: config.aggression.as_ref(),
            min_weight_percent: config.min_weight_percent.as_ref(),
        }
    }
}

trait Compile {
    /// `None` in the inner option: no slow start.
    fn compile(self, cx: &mut Cx<'_>) -> Option<Option<SlowStart>>;
}

impl Compile for Option<SlowStartFields<'_>> {
    fn compile(self, cx: &mut Cx<'_>) -> Option<Option<SlowStart>> {
        let Some(fields) = self else { return Some(None) };
        cx.at("slow_start_config", |cx| {
            cx.required("slow_start_window", fields.window)?;
            let window = cx.duration("slow_start_window", fields.window)?;
            let aggression = runtime::double(cx, fields.aggression, 1.0);
            if aggression.is_nan() || aggression <= 0.0 {
                return cx.fail_at("aggression.default_value", "must be above 0");
            }
            let min_weight_percent = fields.min_weight_percent.map_or(DEFAULT_MIN_WEIGHT_PERCENT, |p| p.value);
            if !(0.0..=100.0).contains(&min_weight_percent) {
                return cx.fail_at("min_weight_percent.value", "must lie between 0 and 100");
            }
            Some((window > Duration::ZERO).then_some(SlowStart { window, aggression, min_weight_percent }))
        })
    }
}
