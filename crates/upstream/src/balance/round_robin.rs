//! Weighted round robin.

use std::cell::Cell;
use std::rc::Rc;

use evenkeel_runtime_config::cluster::SlowStart;

use super::balancer::{Balancer, Pick};
use super::slow_start::Ramp;
use crate::host::Host;
use crate::random::Random;

use super::edf::Edf;

#[derive(Debug)]
struct RoundRobin {
    hosts: Vec<Rc<Host>>,
    next: Cell<usize>,
    turns: Turns,
}

/// Schedules hosts with unequal weights.
#[derive(Debug)]
pub(super) struct Turns {
    equal_weights: bool,
    ramp: Ramp,
    edf: Option<Edf>,
}

/// Round robin from a random first host.
pub(super) fn new(hosts: Vec<Rc<Host>>, slow_start: Option<SlowStart>, random: &Random) -> Box<dyn Balancer> {
    let turns = Turns::new(&hosts, slow_start, random, |host| f64::from(host.weight()));
    Box::new(RoundRobin { next: Cell::new(random.below(hosts.len())), hosts, turns })
}

impl Balancer for RoundRobin {
    fn pick(&self, _: &Pick<'_>) -> Option<&Rc<Host>> {
        if let Some(host) = self.turns.next(&self.hosts, |host| f64::from(host.weight())) {
            return Some(host);
        }
        let turn = self.next.get();
        let turn = if turn < self.hosts.len() { turn } else { 0 };
        self.next.set(turn + 1);
        self.hosts.get(turn)
    }
}

impl Turns {
    /// Schedules by weight if weights differ or a host is in slow start.
    pub fn new(
        hosts: &[Rc<Host>],
        slow_start: Option<SlowStart>,
        random: &Random,
        weight: impl Fn(&Host) -> f64,
    ) -> Self {
        let equal_weights = hosts.windows(2).all(|pair| pair[0].weight() == pair[1].weight());
        let ramp = Ramp::new(hosts, slow_start);
        let needed = hosts.len() > 1 && (!equal_weights || ramp.is_on());
        let edf = needed.then(|| {
            let weight = |item: usize| hosts.get(item).map_or(0.0, |host| ramp.weight(host, weight(host)));
            Edf::new(hosts.len(), random.next() as u32, weight)
        });
        Self { equal_weights, ramp, edf }
    }

    /// The next host; `None` when all weights are equal, so that plain rotation suffices.
    pub fn next<'h>(&self, hosts: &'h [Rc<Host>], weight: impl Fn(&Host) -> f64) -> Option<&'h Rc<Host>> {
        let edf = self.edf.as_ref()?;
        if self.equal_weights && !self.ramp.is_on() {
            return None;
        }
        let weight = |item: usize| hosts.get(item).map_or(0.0, |host| self.ramp.weight(host, weight(host)));
        hosts.get(edf.next(weight)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{hosts, spread};
    use super::*;

    #[test]
    fn turns_are_exact() {
        for (weights, picks, expected) in [
            (&[1, 1, 1][..], 300, &[100, 100, 100][..]),
            (&[5, 5], 10, &[5, 5]),
            (&[1, 2, 7], 1000, &[100, 200, 700]),
            (&[3], 4, &[4]),
        ] {
            let random = Random::seeded(7);
            let balancer = new(hosts(weights), None, &random);
            let seen = spread(&*balancer, weights.len(), picks, &random);
            let close =
                seen.iter().zip(expected).all(|(seen, expected): (&usize, &usize)| seen.abs_diff(*expected) <= 1);
            assert!(close, "{weights:?}: {seen:?}, expected {expected:?}");
        }
    }

    #[test]
    fn workers_begin_at_different_hosts() {
        let firsts: std::collections::BTreeSet<_> = (0..50)
            .filter_map(|seed| {
                let random = Random::seeded(seed * 7919);
                let balancer = new(hosts(&[1, 1, 1, 1]), None, &random);
                balancer.pick(&Pick { hash: 0, attempt: 0, random: &random }).map(|host| host.label.clone())
            })
            .collect();
        assert_eq!(firsts.len(), 4);
    }

    #[test]
    fn without_hosts_there_is_no_turn() {
        let random = Random::seeded(1);
        assert!(new(Vec::new(), None, &random).pick(&Pick { hash: 0, attempt: 0, random: &random }).is_none());
    }
}
