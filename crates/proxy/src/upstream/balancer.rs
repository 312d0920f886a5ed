//! Picking a host.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use evenkeel_runtime_config::cluster::LoadBalancer;

use crate::upstream::cluster::{ClusterState, Host};

thread_local! {
    /// State of a xorshift64* generator, seeded from the hasher's per-thread entropy.
    static RANDOM: Cell<u64> = Cell::new({
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(std::thread::current().id()) | 1
    });
}

/// A fast random number, good for picking and for ids, not for secrets.
#[inline]
pub(crate) fn random() -> u64 {
    RANDOM.with(|state| {
        let mut x = state.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        state.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    })
}

/// A number below `limit` (0 for 0).
#[inline]
fn below(limit: u64) -> u64 {
    ((u128::from(random()) * u128::from(limit)) >> 64) as u64
}

/// Picks a host; `None` when no host may be picked. `avoid` are hosts tried before: they are picked only after
/// `attempts` draws gave nothing else.
pub(crate) fn pick(cluster: &ClusterState, avoid: &[Rc<Host>], attempts: u32) -> Option<Rc<Host>> {
    let mut host = draw(cluster)?;
    for _ in 0..attempts {
        if !avoid.iter().any(|tried| Rc::ptr_eq(tried, &host)) {
            break;
        }
        host = draw(cluster)?;
    }
    Some(host)
}

fn draw(cluster: &ClusterState) -> Option<Rc<Host>> {
    let count = cluster.candidates.len();
    if count <= 1 {
        return cluster.candidates.first().map(|at| Rc::clone(&cluster.hosts[*at]));
    }
    let at = match cluster.config.load_balancer {
        LoadBalancer::RoundRobin | LoadBalancer::ClusterProvided => next_in_turn(cluster),
        LoadBalancer::Random => weighted(cluster),
        LoadBalancer::LeastRequest { choices } => least_of(cluster, choices),
    };
    cluster.candidates.get(at).map(|at| Rc::clone(&cluster.hosts[*at]))
}

/// Round robin; with weights the smooth kind, which spreads a heavy host's turns instead of bunching them.
fn next_in_turn(cluster: &ClusterState) -> usize {
    if cluster.weight_sums.is_empty() {
        let turn = cluster.local.turn.get();
        cluster.local.turn.set(turn.wrapping_add(1));
        return turn % cluster.candidates.len();
    }
    let total = cluster.weight_sums.last().copied().unwrap_or(1) as i64;
    let mut best = (0, i64::MIN);
    for (at, index) in cluster.candidates.iter().enumerate() {
        let host = &cluster.hosts[*index];
        let current = host.current_weight.get() + i64::from(host.weight);
        host.current_weight.set(current);
        if current > best.1 {
            best = (at, current);
        }
    }
    let chosen = &cluster.hosts[cluster.candidates[best.0]];
    chosen.current_weight.set(best.1 - total);
    best.0
}

fn weighted(cluster: &ClusterState) -> usize {
    match cluster.weight_sums.last() {
        None => below(cluster.candidates.len() as u64) as usize,
        Some(&total) => {
            let point = below(total);
            cluster.weight_sums.partition_point(|sum| *sum <= point)
        }
    }
}

/// The host with the fewest requests in flight of `choices` drawn by weight. The counts are those of all workers.
fn least_of(cluster: &ClusterState, choices: u32) -> usize {
    let active = |at: usize| cluster.hosts[cluster.candidates[at]].shared.active.load(Ordering::Relaxed);
    let mut best = weighted(cluster);
    for _ in 1..choices.max(2) {
        let mut other = weighted(cluster);
        if other == best && cluster.weight_sums.is_empty() {
            // Two different hosts, or the choice is none.
            other = (other + 1) % cluster.candidates.len();
        }
        if active(other) < active(best) {
            best = other;
        }
    }
    best
}
