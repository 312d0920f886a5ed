//! Localities: hosts of one region, zone and sub-zone, which share a weight.

use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::cluster::Health;

use super::balancer::{Balancer, Making, Pick, Pool};
use super::build::build;
use super::edf::Edf;
use crate::host::Host;

/// Hosts of one locality within a priority.
#[derive(Debug)]
pub(super) struct Locality {
    pub name: Arc<str>,
    pub weight: u32,
    pub hosts: Vec<Rc<Host>>,
}

/// Groups a priority's hosts by locality, sorted by name, with the proxy's own locality first.
pub(super) fn group(hosts: &[Rc<Host>], own: &str) -> Vec<Locality> {
    let mut named: Vec<Locality> = Vec::new();
    for host in hosts {
        let endpoint = host.endpoint();
        match named.binary_search_by(|locality| compare(&locality.name, &endpoint.locality, own)) {
            Ok(place) => named[place].hosts.push(host.clone()),
            Err(place) => {
                let (name, weight) = (endpoint.locality.clone(), endpoint.locality_weight);
                named.insert(place, Locality { name, weight, hosts: vec![host.clone()] });
            }
        }
    }
    named
}

fn compare(one: &str, other: &str, own: &str) -> Ordering {
    let first = |name: &str| name == own && !own.is_empty();
    first(other).cmp(&first(one)).then_with(|| one.split('/').cmp(other.split('/')))
}

/// Hosts for consistent hashing, with each host's share of all requests. Locality weights, if any, are divided first.
pub(super) fn shares(localities: &[Locality], wanted: impl Fn(&Host) -> bool) -> Pool {
    let mut pool = Pool { hosts: Vec::new(), shares: Vec::new() };
    let total: u64 = localities.iter().map(|locality| u64::from(locality.weight)).sum();
    for locality in localities.iter().filter(|locality| locality.weight > 0) {
        pool.add(&locality.hosts, f64::from(locality.weight) / total as f64, &wanted);
    }
    pool
}

impl Pool {
    /// Adds hosts that divide `part` of all requests among them.
    pub fn add(&mut self, hosts: &[Rc<Host>], part: f64, wanted: impl Fn(&Host) -> bool) {
        let wanted = hosts.iter().filter(|host| wanted(host));
        let total: u64 = wanted.clone().map(|host| u64::from(host.weight())).sum();
        self.shares.extend(wanted.clone().map(|host| f64::from(host.weight()) * part / total as f64));
        self.hosts.extend(wanted.cloned());
    }
}

/// Weighted round robin over localities, with a load balancer for each.
#[derive(Debug)]
pub(super) struct ByLocality {
    weights: Vec<f64>,
    turns: Edf,
    balancers: Vec<Box<dyn Balancer>>,
}

impl ByLocality {
    /// `None` when no locality has both a weight and a host.
    pub fn new(localities: &[Locality], health: Health, making: Making<'_>) -> Option<Self> {
        let overprovisioning = f64::from(making.config.endpoints.overprovisioning_percent) / 100.0;
        let mut found = Self { weights: Vec::new(), turns: Edf::new(0, 0, |_| 0.0), balancers: Vec::new() };
        for locality in localities {
            let usable: Vec<_> = locality.hosts.iter().filter(|host| host.health() == health).cloned().collect();
            let counted = locality.hosts.iter().filter(|host| !host.is_excluded(making.config)).count();
            if usable.is_empty() || counted == 0 || locality.weight == 0 {
                continue;
            }
            // A locality that lost hosts gets less, unless overprovisioning makes up for them.
            let there = (overprovisioning * usable.len() as f64 / counted as f64).min(1.0);
            found.weights.push(f64::from(locality.weight) * there);
            let pool = Pool { hosts: usable, shares: Vec::new() };
            found.balancers.push(build(&making.config.load_balancer, pool, making));
        }
        let turns = making.random.next() as u32;
        found.turns = Edf::new(found.weights.len(), turns, |locality| found.weights[locality]);
        (!found.weights.is_empty()).then_some(found)
    }

    /// A host of the next locality in turn.
    pub fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>> {
        let locality = self.turns.next(|locality| self.weights.get(locality).copied().unwrap_or_default())?;
        self.balancers.get(locality)?.pick(pick)
    }
}
