//! Consistent hashing with bounded loads (Mirrokni et al., arXiv 1608.01350), with the random jumps of arXiv 1908.08762.

use std::cell::RefCell;
use std::rc::Rc;

use super::balancer::{Balancer, Pick};
use super::tables::Shared;
use crate::host::Host;

#[derive(Debug)]
struct BoundedLoad {
    hosts: Vec<Rc<Host>>,
    table: Shared,
    /// `hash_balance_factor`: a host may have this percentage of its fair share of the requests in flight.
    factor: u32,
    /// Reused, so that searching for another host allocates nothing.
    order: RefCell<Vec<usize>>,
}

/// Picks by table; another host if that one has too many requests.
pub(super) fn new(hosts: Vec<Rc<Host>>, table: Shared, factor: u32) -> Box<dyn Balancer> {
    let order = RefCell::new(Vec::with_capacity(hosts.len()));
    Box::new(BoundedLoad { hosts, table, factor, order })
}

impl Balancer for BoundedLoad {
    fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>> {
        let chosen = self.table.get(pick.hash, pick.attempt)?;
        let host = self.hosts.get(chosen)?;
        let slots = self.slots(host);
        let overload = self.overload(chosen, slots);
        if overload <= 1.0 { Some(host) } else { self.hosts.get(self.elsewhere(chosen, overload, slots, pick.hash)) }
    }
}

impl BoundedLoad {
    /// Returns the maximum number of requests in flight over all hosts, counting this one.
    fn slots(&self, host: &Host) -> u32 {
        let active = u64::from(host.cluster_active()) + 1;
        u32::try_from((active * u64::from(self.factor)).div_ceil(100)).unwrap_or(u32::MAX)
    }

    /// A host's requests in flight relative to its share of `slots`; above 1 means overloaded.
    fn overload(&self, host: usize, slots: u32) -> f64 {
        let own = (f64::from(slots) * self.table.share(host)).ceil().max(1.0);
        self.hosts.get(host).map_or(f64::MAX, |host| f64::from(host.active_everywhere()) / own)
    }

    /// The first host with room, in an order determined by the hash; if there is none, the least overloaded.
    fn elsewhere(&self, chosen: usize, overload: f64, slots: u32, hash: u64) -> usize {
        let mut order = self.order.borrow_mut();
        order.clear();
        order.extend(0..self.hosts.len());
        let mut random = Mt19937::new(hash as u32);
        let (mut best, mut least) = (chosen, overload);
        for step in 0..order.len() {
            let left = order.len() - step;
            order.swap(step, step + random.below(left as u32) as usize);
            let host = order[step];
            if host == chosen {
                continue;
            }
            let overload = self.overload(host, slots);
            if overload <= 1.0 {
                return host;
            }
            if overload < least {
                (best, least) = (host, overload);
            }
        }
        best
    }
}

/// The Mersenne Twister (Matsumoto and Nishimura 1998): Envoy shuffles hosts with C++'s `std::mt19937`, seeded by the hash.
struct Mt19937 {
    state: [u32; Self::N],
    next: usize,
}

impl Mt19937 {
    const N: usize = 624;
    const M: usize = 397;

    fn new(seed: u32) -> Self {
        let mut state = [seed; Self::N];
        for index in 1..Self::N {
            let before = state[index - 1];
            state[index] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(index as u32);
        }
        Self { state, next: 0 }
    }

    /// The next 32 bits. The state is renewed word by word, not all at once, since few numbers are drawn.
    fn next(&mut self) -> u32 {
        let (now, after, far) = (self.next, (self.next + 1) % Self::N, (self.next + Self::M) % Self::N);
        let joined = (self.state[now] & 0x8000_0000) | (self.state[after] & 0x7fff_ffff);
        let twist = if joined & 1 == 0 { 0 } else { 0x9908_b0df };
        self.state[now] = self.state[far] ^ (joined >> 1) ^ twist;
        self.next = after;
        let mut word = self.state[now];
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// A number in `0..bound`, uniformly distributed.
    fn below(&mut self, bound: u32) -> u32 {
        let Some(width) = (1u64 << 32).checked_div(u64::from(bound)) else { return 0 };
        loop {
            let number = u64::from(self.next()) / width;
            if number < u64::from(bound) {
                return number as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use evenkeel_runtime_config::cluster::HashKey;

    use super::super::balancer::Pool;
    use super::super::by_hash;
    use super::super::fixture::hosts;
    use super::super::table_input::Algorithm;
    use super::super::tables::SharedTables;
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_twister_is_that_of_the_standard_library() {
        // ISO C++ [rand.predef]: the 10000th number of a default-seeded `mt19937` is 4123659995.
        let mut random = Mt19937::new(5489);
        let last = (0..10_000).map(|_| random.next()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    fn balancer(weights: &[u32], factor: u32) -> (Vec<Rc<Host>>, Box<dyn Balancer>) {
        let hosts = hosts(weights);
        let total: u32 = weights.iter().sum();
        let shares = weights.iter().map(|weight| f64::from(*weight) / f64::from(total)).collect();
        let pool = Pool { hosts: hosts.clone(), shares };
        let maglev = Algorithm::Maglev { size: 251 };
        (hosts, by_hash::new(pool, HashKey::Address, factor, maglev, &Arc::<SharedTables>::default()))
    }

    #[test]
    fn a_full_host_is_left_aside_and_always_for_the_same_one() {
        let random = Random::seeded(1);
        let (hosts, bounded) = balancer(&[1, 1, 1, 1], 150);
        let pick = |hash| bounded.pick(&Pick { hash, attempt: 0, random: &random }).cloned().expect("a host");
        let before: Vec<_> = (0..100).map(pick).collect();
        let full = before[0].clone();
        full.set_active(10);
        let after: Vec<_> = (0..100).map(pick).collect();
        assert!(after.iter().all(|host| !Rc::ptr_eq(host, &full)));
        let stayed = before.iter().zip(&after).filter(|(before, after)| Rc::ptr_eq(before, after)).count();
        let elsewhere = before.iter().filter(|host| Rc::ptr_eq(host, &full)).count();
        assert_eq!(stayed, 100 - elsewhere, "only the full host's requests move");
        assert_eq!(
            (0..100).map(pick).map(|host| host.label.clone()).collect::<Vec<_>>(),
            after.iter().map(|host| host.label.clone()).collect::<Vec<_>>(),
            "and the same way again"
        );
        let taken: BTreeSet<_> = before
            .iter()
            .zip(&after)
            .filter(|(before, _)| Rc::ptr_eq(before, &full))
            .map(|(_, after)| after.label.clone())
            .collect();
        assert!(taken.len() > 1, "they spread over the others");
        hosts.iter().for_each(|host| host.set_active(10));
        full.set_active(9);
        assert!((0..100).map(pick).any(|host| Rc::ptr_eq(&host, &full)), "when all are full, the least full");
    }
}
