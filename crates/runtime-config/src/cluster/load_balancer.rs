//! Load balancing policies.

use std::time::Duration;

/// `lb_policy` with its options, or the equivalent extension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadBalancer {
    /// Weighted round robin.
    RoundRobin {
        /// Slow start of new hosts.
        slow_start: Option<SlowStart>,
    },
    /// Least request.
    LeastRequest(LeastRequest),
    /// Random.
    Random,
    /// Weighted round robin by weights from the hosts' load reports (see [`Utilization`]).
    ClientSideWeighted {
        /// Slow start of new hosts.
        slow_start: Option<SlowStart>,
    },
    /// Ring hash.
    RingHash(RingHash),
    /// Maglev.
    Maglev(Maglev),
    /// Decided by the discovery type (`CLUSTER_PROVIDED`).
    ClusterProvided,
}

impl LoadBalancer {
    /// Whether hosts are picked by the request's hash.
    pub fn follows_hash(&self) -> bool {
        matches!(self, Self::RingHash(_) | Self::Maglev(_))
    }

    /// Whether hosts are picked by their requests in flight.
    pub fn follows_load(&self) -> bool {
        match self {
            Self::LeastRequest(_) => true,
            Self::RingHash(options) => options.balance_factor > 0,
            Self::Maglev(options) => options.balance_factor > 0,
            Self::RoundRobin { .. } | Self::ClientSideWeighted { .. } | Self::Random | Self::ClusterProvided => false,
        }
    }

    /// Whether requests may be divided among zones (Envoy's zone-aware routing).
    pub fn divides_among_zones(&self) -> bool {
        !self.follows_hash() && *self != Self::ClusterProvided
    }

    /// The name of the policy (`Cluster.LbPolicy`).
    pub fn name(&self) -> &'static str {
        match self {
            Self::RoundRobin { .. } => "ROUND_ROBIN",
            Self::LeastRequest(_) => "LEAST_REQUEST",
            Self::Random => "RANDOM",
            Self::ClientSideWeighted { .. } => "CLIENT_SIDE_WEIGHTED_ROUND_ROBIN",
            Self::RingHash(_) => "RING_HASH",
            Self::Maglev(_) => "MAGLEV",
            Self::ClusterProvided => "CLUSTER_PROVIDED",
        }
    }
}

/// `SlowStartConfig`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowStart {
    /// Time until a host has its full weight.
    pub window: Duration,
    /// Above 1, weight grows faster at first; below 1, slower (1 when unset).
    pub aggression: f64,
    /// Smallest fraction of its weight a host has, in percent (10 when unset).
    pub min_weight_percent: f64,
}

/// How weights are computed from load reports (`ClientSideWeightedRoundRobin`).
#[derive(Debug, Clone, PartialEq)]
pub struct Utilization {
    /// How long a host must have reported before its weight is used (10 s when unset).
    pub blackout: Duration,
    /// After this long without a report a weight is no longer used (3 min when unset).
    pub expiration: Duration,
    /// How often weights are computed (1 s when unset).
    pub update: Duration,
    /// Weight of the error rate (0 when unset).
    pub error_penalty: f64,
    /// The metrics whose greatest value is the utilization; if it is 0, `application_utilization` or else
    /// `cpu_utilization` is.
    pub metrics: Vec<Metric>,
}

/// A metric of a load report (`metric_names_for_computing_utilization`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Metric {
    CpuUtilization,
    MemUtilization,
    ApplicationUtilization,
    ErrorsPerSecond,
    RequestsPerSecond,
    /// An entry of a map; `None`: the greatest of all.
    Entry(MetricMap, Option<Box<str>>),
}

/// A map of metrics in a load report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MetricMap {
    Named,
    Utilization,
    RequestCost,
}

/// Zone-aware routing: requests stay in the proxy's own locality as far as the hosts there can take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneAware {
    /// Percentage of requests that it applies to (100 when unset).
    pub routing_percent: u32,
    /// Minimum number of healthy hosts for it to apply (6 when unset).
    pub min_cluster_size: u64,
    /// All requests stay in the own locality if it has at least this many healthy hosts; `None`: it is not forced.
    pub force_local_min_hosts: Option<u32>,
    /// Localities are compared by the weights of their healthy hosts, not by their number.
    pub by_weight: bool,
}

impl Default for ZoneAware {
    fn default() -> Self {
        Self { routing_percent: 100, min_cluster_size: 6, force_local_min_hosts: None, by_weight: false }
    }
}

/// `LeastRequestLbConfig`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeastRequest {
    /// Hosts drawn when weights are equal (2 when unset).
    pub choices: u32,
    /// Whether all hosts are compared instead (`FULL_SCAN`).
    pub full_scan: bool,
    /// Influence of requests in flight when weights differ: weight ÷ (requests + 1) ^ bias (1 when unset).
    pub active_request_bias: f64,
    /// Slow start of new hosts.
    pub slow_start: Option<SlowStart>,
}

impl Default for LeastRequest {
    fn default() -> Self {
        Self { choices: 2, full_scan: false, active_request_bias: 1.0, slow_start: None }
    }
}

/// `RingHashLbConfig`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingHash {
    /// Minimum number of points (1024 when unset).
    pub min_size: u64,
    /// Maximum number of points (8,388,608 when unset).
    pub max_size: u64,
    /// Hash function for the points.
    pub function: HashFunction,
    /// The input of the hashes of points.
    pub key: HashKey,
    /// Requests in flight a host may have, in percent of its fair share; 0: unlimited.
    pub balance_factor: u32,
}

/// `RingHashLbConfig.HashFunction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HashFunction {
    /// xxHash64.
    #[default]
    XxHash,
    /// MurmurHash64A, seeded like C++'s standard library on Linux.
    MurmurHash2,
}

/// `MaglevLbConfig`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maglev {
    /// Number of entries, a prime (65,537 when unset).
    pub table_size: u64,
    /// The input of the hash for a host's order of entries.
    pub key: HashKey,
    /// Requests in flight a host may have, in percent of its fair share; 0: unlimited.
    pub balance_factor: u32,
}

/// The hash key of a host without a `hash_key` in its `envoy.lb` metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashKey {
    /// Its address and port.
    #[default]
    Address,
    /// Its host name (`use_hostname_for_hashing`).
    Hostname,
}

/// Panic mode: behaviour when few hosts are healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PanicMode {
    /// Percentage of healthy hosts below which all are used (50 when unset); 0: never.
    pub threshold_percent: u32,
    /// Whether no host is used in panic (`fail_traffic_on_panic`).
    pub fail_traffic: bool,
}

impl Default for PanicMode {
    fn default() -> Self {
        Self { threshold_percent: 50, fail_traffic: false }
    }
}
