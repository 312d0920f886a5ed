//! Picks the host with the fewest requests in flight among a few drawn at random; by weight when weights differ.
//!
//! Requests of all workers count. If each of N workers counted only its own, the least loaded of two draws would be
//! close to a random choice as soon as a worker has less than one request in flight per host; a test below shows by how
//! much.

use std::rc::Rc;

use evenkeel_runtime_config::cluster::LeastRequest as Options;

use super::balancer::{Balancer, Pick};
use super::round_robin::Turns;
use crate::host::Host;
use crate::random::Random;

#[derive(Debug)]
struct LeastRequest {
    hosts: Vec<Rc<Host>>,
    options: Options,
    turns: Turns,
}

/// Least request.
pub(super) fn new(hosts: Vec<Rc<Host>>, options: Options, random: &Random) -> Box<dyn Balancer> {
    let turns = Turns::new(&hosts, options.slow_start, random, |host| weight(host, &options));
    Box::new(LeastRequest { hosts, options, turns })
}

impl Balancer for LeastRequest {
    fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>> {
        if let Some(host) = self.turns.next(&self.hosts, |host| weight(host, &self.options)) {
            return Some(host);
        }
        match (self.hosts.as_slice(), self.options.full_scan) {
            ([], _) => None,
            ([only], _) => Some(only),
            (hosts, true) => least_of_all(hosts, pick.random),
            (hosts, false) => least_of_some(hosts, self.options.choices, pick.random),
        }
    }
}

/// A host's weight decreases with its requests in flight.
fn weight(host: &Host, options: &Options) -> f64 {
    let (weight, requests) = (f64::from(host.weight()), f64::from(host.active_everywhere()) + 1.0);
    match options.active_request_bias {
        1.0 => weight / requests,
        0.0 => weight,
        bias => weight / requests.powf(bias),
    }
}

fn least_of_some<'h>(hosts: &'h [Rc<Host>], choices: u32, random: &Random) -> Option<&'h Rc<Host>> {
    let draws = (0..choices).filter_map(|_| hosts.get(random.below(hosts.len())));
    // The first of equals: `min_by_key` guarantees it.
    draws.min_by_key(|host| host.active_everywhere())
}

/// Returns one of the hosts with the fewest requests, each with the same probability.
fn least_of_all<'h>(hosts: &'h [Rc<Host>], random: &Random) -> Option<&'h Rc<Host>> {
    let mut hosts = hosts.iter();
    let mut best = hosts.next()?;
    let (mut fewest, mut equals) = (best.active_everywhere(), 1);
    for host in hosts {
        let active = host.active_everywhere();
        if active < fewest {
            (best, fewest, equals) = (host, active, 1);
        } else if active == fewest {
            equals += 1;
            if random.below(equals) == 0 {
                best = host;
            }
        }
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::fixture::{hosts, spread};
    use super::*;

    const TWO: Options = Options { choices: 2, full_scan: false, active_request_bias: 1.0, slow_start: None };

    fn check(options: Options, weights: &[u32], active: &[u32], expected_percent: &[usize]) {
        let random = Random::seeded(3);
        let hosts = hosts(weights);
        hosts.iter().zip(active).for_each(|(host, active)| host.set_active(*active));
        let balancer = new(hosts, options, &random);
        let picks = 20_000;
        let seen = spread(&*balancer, weights.len(), picks, &random);
        for (seen, percent) in seen.iter().zip(expected_percent) {
            let expected = picks * percent / 100;
            assert!(seen.abs_diff(expected) < picks / 50, "{options:?} {weights:?} {active:?}: {seen}, not {expected}");
        }
    }

    #[test]
    fn the_busy_are_avoided() {
        check(TWO, &[1, 1], &[0, 0], &[50, 50]);
        // Only when both draws are that host.
        check(TWO, &[1, 1], &[50, 0], &[25, 75]);
        check(TWO, &[1, 1, 1, 1], &[9, 1, 1, 1], &[6, 31, 31, 31]);
        check(Options { choices: 5, ..TWO }, &[1, 1], &[50, 0], &[3, 97]);
        check(Options { full_scan: true, ..TWO }, &[1, 1, 1], &[2, 1, 1], &[0, 50, 50]);
        check(TWO, &[], &[], &[]);
    }

    #[test]
    fn weights_and_requests_are_weighed() {
        check(TWO, &[1, 3], &[0, 0], &[25, 75]);
        check(TWO, &[1, 3], &[0, 2], &[50, 50]);
        check(Options { active_request_bias: 0.0, ..TWO }, &[1, 3], &[0, 2], &[25, 75]);
        check(Options { active_request_bias: 2.0, ..TWO }, &[1, 9], &[0, 2], &[50, 50]);
    }

    /// Requests arrive one after the other at workers in turn and stay for a while. Returns the longest queue at any host.
    fn longest_queue(workers: usize, count_everywhere: bool) -> u32 {
        const HOSTS: usize = 20;
        let random = Random::seeded(11);
        let views: Vec<_> = (0..workers).map(|_| hosts(&[1; HOSTS])).collect();
        let balancers: Vec<_> = views.iter().map(|view| new(view.clone(), TWO, &random)).collect();
        let (mut truth, mut flying, mut longest) = ([0u32; HOSTS], VecDeque::new(), 0);
        for arrival in 0..20_000 {
            let worker = arrival % workers;
            let picked = balancers[worker].pick(&Pick { hash: 0, attempt: 0, random: &random });
            let host = views[worker].iter().position(|host| picked.is_some_and(|picked| Rc::ptr_eq(picked, host)));
            flying.push_back((worker, host.expect("a host")));
            let ended = if flying.len() > 2 * HOSTS { flying.pop_front() } else { None };
            for ((worker, host), more) in
                [(flying[flying.len() - 1], true)].into_iter().chain(ended.map(|end| (end, false)))
            {
                truth[host] = if more { truth[host] + 1 } else { truth[host] - 1 };
                for (other, view) in views.iter().enumerate() {
                    if other == worker || count_everywhere {
                        let active = view[host].active_everywhere();
                        view[host].set_active(if more { active + 1 } else { active - 1 });
                    }
                }
            }
            longest = longest.max(truth.into_iter().max().unwrap_or_default());
        }
        longest
    }

    #[test]
    fn counts_of_all_workers_keep_queues_short() {
        let (alone, own, shared) = (longest_queue(1, false), longest_queue(16, false), longest_queue(16, true));
        assert_eq!(shared, alone, "with shared counts the number of workers makes no difference");
        assert!(own >= shared + 3, "counts of 16 workers' own: longest queue {own}; shared: {shared}");
    }
}
