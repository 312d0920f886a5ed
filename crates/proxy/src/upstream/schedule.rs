//! Picks one of several hosts: in turn, least loaded, or any, each by weight.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;

use evenkeel_runtime_config::cluster::LoadBalancer;

use super::host::Host;
use crate::random::Random;

/// Hosts to pick from.
#[derive(Debug)]
pub struct Schedule {
    hosts: Vec<Rc<Host>>,
    equal_weights: bool,
    next: Cell<usize>,
    /// Earliest-deadline-first queue; used with unequal weights.
    deadlines: RefCell<BinaryHeap<Deadline>>,
}

/// When a host's turn comes. Hosts of equal deadline go in the order they were queued.
#[derive(Debug, PartialEq)]
struct Deadline {
    at: f64,
    queued: u64,
    host: usize,
}

impl Eq for Deadline {}

impl Ord for Deadline {
    /// Reversed: the heap's greatest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then_with(|| other.queued.cmp(&self.queued))
    }
}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Schedule {
    /// Starts anywhere, so that workers and proxies do not all begin with the first host.
    pub fn new(hosts: Vec<Rc<Host>>, random: &Random) -> Self {
        let equal_weights = hosts.windows(2).all(|pair| pair[0].weight() == pair[1].weight());
        let start = random.below(hosts.len());
        let schedule = Self { hosts, equal_weights, next: Cell::new(start), deadlines: RefCell::default() };
        if !equal_weights {
            schedule.queue_all();
            for _ in 0..start {
                schedule.earliest(|host| f64::from(host.weight()));
            }
        }
        schedule
    }

    /// One host; `None` when there is none.
    pub fn pick(&self, policy: LoadBalancer, random: &Random) -> Option<&Rc<Host>> {
        match (policy, self.equal_weights) {
            (LoadBalancer::RoundRobin | LoadBalancer::ClusterProvided, true) => {
                let turn = self.next.get();
                self.next.set(turn.wrapping_add(1));
                self.hosts.get(turn % self.hosts.len().max(1))
            }
            (LoadBalancer::RoundRobin | LoadBalancer::ClusterProvided, false) => {
                self.earliest(|host| f64::from(host.weight()))
            }
            (LoadBalancer::LeastRequest { choices }, true) => self.least_of(choices, random),
            (LoadBalancer::LeastRequest { .. }, false) => {
                self.earliest(|host| f64::from(host.weight()) / f64::from(host.active_requests() + 1))
            }
            (LoadBalancer::Random, true) => self.hosts.get(random.below(self.hosts.len())),
            (LoadBalancer::Random, false) => self.by_weight(random),
        }
    }

    fn least_of(&self, choices: u32, random: &Random) -> Option<&Rc<Host>> {
        let draws = (0..choices.max(1)).filter_map(|_| self.hosts.get(random.below(self.hosts.len())));
        draws.min_by_key(|host| host.active_requests())
    }

    fn by_weight(&self, random: &Random) -> Option<&Rc<Host>> {
        let total: usize = self.hosts.iter().map(|host| host.weight() as usize).sum();
        let mut draw = random.below(total);
        self.hosts.iter().find(|host| {
            let hit = draw < host.weight() as usize;
            draw = draw.saturating_sub(host.weight() as usize);
            hit
        })
    }

    fn queue_all(&self) {
        let mut deadlines = self.deadlines.borrow_mut();
        for (index, host) in self.hosts.iter().enumerate() {
            deadlines.push(Deadline { at: 1.0 / f64::from(host.weight()), queued: index as u64, host: index });
        }
    }

    /// The host whose turn it is; its next turn comes after 1 ÷ weight.
    fn earliest(&self, weight: impl Fn(&Host) -> f64) -> Option<&Rc<Host>> {
        let mut deadlines = self.deadlines.borrow_mut();
        let due = deadlines.pop()?;
        let host = self.hosts.get(due.host)?;
        let queued = due.queued + self.hosts.len() as u64;
        deadlines.push(Deadline { at: due.at + 1.0 / weight(host).max(f64::MIN_POSITIVE), queued, host: due.host });
        Some(host)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use evenkeel_runtime_config::cluster::{Endpoint, EndpointAddress, Health, Transport};

    use super::*;

    fn host(port: u16, weight: u32) -> Rc<Host> {
        let endpoint = Endpoint {
            address: EndpointAddress::Socket(SocketAddr::from(([127, 0, 0, 1], port))),
            hostname: "".into(),
            weight,
            health: Health::Healthy,
            priority: 0,
            locality: "".into(),
            locality_weight: 0,
            transport_labels: Vec::new(),
            transport_index: None,
            check: Default::default(),
        };
        Host::new(&endpoint, Transport::Raw)
    }

    fn spread(policy: LoadBalancer, weights: &[u32], picks: usize) -> Vec<usize> {
        let random = Random::seeded(7);
        let hosts = weights.iter().enumerate().map(|(index, weight)| host(index as u16, *weight)).collect();
        let schedule = Schedule::new(hosts, &random);
        let mut counts = BTreeMap::new();
        for _ in 0..picks {
            let picked = schedule.pick(policy, &random).expect("a host");
            *counts.entry(picked.label.clone()).or_insert(0) += 1;
        }
        counts.into_values().collect()
    }

    #[test]
    fn turns_are_exact() {
        assert_eq!(spread(LoadBalancer::RoundRobin, &[1, 1, 1], 300), [100, 100, 100]);
        let weighted = spread(LoadBalancer::RoundRobin, &[1, 2, 7], 1000);
        let close = |seen: usize, expected: usize| seen.abs_diff(expected) <= 2;
        assert!(close(weighted[0], 100) && close(weighted[1], 200) && close(weighted[2], 700), "{weighted:?}");
    }

    #[test]
    fn chance_follows_the_weights() {
        for (policy, weights) in [
            (LoadBalancer::Random, [1, 1, 1]),
            (LoadBalancer::Random, [1, 2, 7]),
            (LoadBalancer::LeastRequest { choices: 2 }, [1, 1, 1]),
            (LoadBalancer::LeastRequest { choices: 2 }, [1, 2, 7]),
        ] {
            let seen = spread(policy, &weights, 30_000);
            let total: u32 = weights.iter().sum();
            for (seen, weight) in seen.iter().zip(weights) {
                let expected = 30_000 * weight as usize / total as usize;
                assert!(seen.abs_diff(expected) < 600, "{policy:?} {weights:?}: {seen} for weight {weight}");
            }
        }
    }

    #[test]
    fn least_request_avoids_the_busy() {
        let random = Random::seeded(3);
        let (busy, free) = (host(1, 1), host(2, 1));
        busy.active.set(50);
        let schedule = Schedule::new(vec![busy.clone(), free], &random);
        let to_busy = (0..4000)
            .filter(|_| {
                let picked = schedule.pick(LoadBalancer::LeastRequest { choices: 2 }, &random);
                picked.is_some_and(|picked| Rc::ptr_eq(picked, &busy))
            })
            .count();
        assert!((800..1200).contains(&to_busy), "only when both draws hit it, a quarter: {to_busy}");
    }

    #[test]
    fn no_hosts_no_pick() {
        let random = Random::seeded(1);
        let schedule = Schedule::new(Vec::new(), &random);
        for policy in [LoadBalancer::RoundRobin, LoadBalancer::Random, LoadBalancer::LeastRequest { choices: 2 }] {
            assert!(schedule.pick(policy, &random).is_none());
        }
    }
}
