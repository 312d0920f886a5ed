//! How an endpoint is chosen.

use std::time::Duration;

/// `lb_policy` with its options, or the extension that stands for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadBalancer {
    /// In turn, by weight.
    RoundRobin {
        /// How new hosts begin.
        slow_start: Option<SlowStart>,
    },
    /// The least loaded of some.
    LeastRequest(LeastRequest),
    /// Any.
    Random,
    /// By hash, on a ring.
    RingHash(RingHash),
    /// By hash, in a Maglev table.
    Maglev(Maglev),
    /// Decided by the discovery type (`CLUSTER_PROVIDED`).
    ClusterProvided,
}

impl LoadBalancer {
    /// Whether hosts are chosen by the request's hash.
    pub fn follows_hash(&self) -> bool {
        matches!(self, Self::RingHash(_) | Self::Maglev(_))
    }

    /// Whether hosts are chosen by the requests they have.
    pub fn follows_load(&self) -> bool {
        match self {
            Self::LeastRequest(_) => true,
            Self::RingHash(options) => options.balance_factor > 0,
            Self::Maglev(options) => options.balance_factor > 0,
            Self::RoundRobin { .. } | Self::Random | Self::ClusterProvided => false,
        }
    }

    /// The name of the policy (`Cluster.LbPolicy`).
    pub fn name(&self) -> &'static str {
        match self {
            Self::RoundRobin { .. } => "ROUND_ROBIN",
            Self::LeastRequest(_) => "LEAST_REQUEST",
            Self::Random => "RANDOM",
            Self::RingHash(_) => "RING_HASH",
            Self::Maglev(_) => "MAGLEV",
            Self::ClusterProvided => "CLUSTER_PROVIDED",
        }
    }
}

/// `SlowStartConfig`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowStart {
    /// How long it takes until a host has its whole weight.
    pub window: Duration,
    /// Above 1 weight grows faster at first, below 1 slower (1 when unset).
    pub aggression: f64,
    /// The least part of its weight a host has, in percent (10 when unset).
    pub min_weight_percent: f64,
}

/// `LeastRequestLbConfig`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeastRequest {
    /// Hosts drawn when weights are equal (2 when unset).
    pub choices: u32,
    /// All hosts are looked at instead (`FULL_SCAN`).
    pub full_scan: bool,
    /// How much requests count when weights differ: weight ÷ (requests + 1) ^ bias (1 when unset).
    pub active_request_bias: f64,
    /// How new hosts begin.
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
    /// Points at least (1024 when unset).
    pub min_size: u64,
    /// Points at most (8,388,608 when unset).
    pub max_size: u64,
    /// Function of the points.
    pub function: HashFunction,
    /// What points are made from.
    pub key: HashKey,
    /// Requests a host may have, in percent of its fair part; 0: any number.
    pub balance_factor: u32,
}

/// `RingHashLbConfig.HashFunction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HashFunction {
    /// xxHash64.
    #[default]
    XxHash,
    /// MurmurHash64A, as C++'s standard library on Linux seeds it.
    MurmurHash2,
}

/// `MaglevLbConfig`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maglev {
    /// Entries, a prime (65,537 when unset).
    pub table_size: u64,
    /// What a host's order of entries is made from.
    pub key: HashKey,
    /// Requests a host may have, in percent of its fair part; 0: any number.
    pub balance_factor: u32,
}

/// What stands for a host that has no `hash_key` in its `envoy.lb` metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashKey {
    /// Its address and port.
    #[default]
    Address,
    /// Its host name (`use_hostname_for_hashing`).
    Hostname,
}

/// What happens when few hosts are healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PanicMode {
    /// Percentage of healthy hosts below which all are used (50 when unset); 0: never.
    pub threshold_percent: u32,
    /// Then none is used instead (`fail_traffic_on_panic`).
    pub fail_traffic: bool,
}

impl Default for PanicMode {
    fn default() -> Self {
        Self { threshold_percent: 50, fail_traffic: false }
    }
}
