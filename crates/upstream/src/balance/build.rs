//! The balancer of each policy.

use evenkeel_runtime_config::cluster::{LoadBalancer, RingHash};

use super::balancer::{Balancer, Making, Pool};
use super::table_input::Algorithm;
use super::{by_hash, least_request, random_choice, round_robin};

/// The balancer for a policy.
pub(super) fn build(policy: &LoadBalancer, pool: Pool, making: Making<'_>) -> Box<dyn Balancer> {
    match *policy {
        LoadBalancer::RoundRobin { slow_start } => round_robin::new(pool.hosts, slow_start, making.random),
        // The hosts' weights are those of their load reports.
        LoadBalancer::ClientSideWeighted { slow_start } => round_robin::new(pool.hosts, slow_start, making.random),
        LoadBalancer::LeastRequest(options) => least_request::new(pool.hosts, options, making.random),
        LoadBalancer::Random => random_choice::new(pool.hosts),
        LoadBalancer::RingHash(options) => {
            let RingHash { key, balance_factor, min_size, max_size, function } = options;
            by_hash::new(pool, key, balance_factor, Algorithm::Ring { min_size, max_size, function }, making.tables)
        }
        LoadBalancer::Maglev(options) => {
            let algorithm = Algorithm::Maglev { size: options.table_size };
            by_hash::new(pool, options.key, options.balance_factor, algorithm, making.tables)
        }
        // Its hosts are created on demand and never get here.
        LoadBalancer::ClusterProvided => round_robin::new(pool.hosts, None, making.random),
    }
}
