//! Load balancing, compatible with Envoy 1.40.
//!
//! [`HostSet`] is what a worker picks from: [`levels`] by priority and health, or one set of levels per [`subset`]. A
//! level ends in one or more [`Balancer`](balancer::Balancer)s, each over hosts among which it may choose freely. Everything is rebuilt
//! when endpoints or their health change; picking allocates nothing and takes no lock.
//!
//! To add a balancer: a variant of `runtime_config::cluster::LoadBalancer`, a file here that implements it,
//! and a line in [`build`](build::build). A balancer that uses the request's hash also says so in `LoadBalancer::follows_hash`.

mod balancer;
mod bounded_load;
mod build;
mod by_hash;
mod edf;
mod least_request;
mod levels;
mod locality;
mod maglev;
mod priority;
mod random_choice;
mod ring_hash;
mod round_robin;
mod slow_start;
mod subset;
mod table_input;
pub(crate) mod tables;
mod zones;

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::cluster::Health;

use super::host::Host;
use super::target::Target;
use crate::random::Random;
pub(crate) use balancer::{Making, Picked, SubsetOutcome, ZoneContext};
use levels::Levels;
use subset::Subsets;

/// A cluster's hosts, grouped for load balancing.
#[derive(Debug, Default)]
pub(super) struct HostSet {
    /// All hosts, in the order of the configuration.
    pub hosts: Vec<Rc<Host>>,
    /// Indices into `hosts`; built when a stateful session first asks for a host.
    by_address: OnceCell<FastMap<Arc<str>, usize>>,
    arrangement: Arrangement,
}

#[derive(Debug, Default)]
enum Arrangement {
    #[default]
    Empty,
    Whole(Levels),
    Subsets(Subsets),
}

impl HostSet {
    /// Groups hosts by their current health.
    pub fn new(hosts: Vec<Rc<Host>>, making: Making<'_>) -> Self {
        let arrangement = match &making.config.subsets {
            None => Arrangement::Whole(Levels::new(&hosts, making, true)),
            Some(config) => Arrangement::Subsets(Subsets::new(&hosts, config, making)),
        };
        Self { hosts, by_address: OnceCell::new(), arrangement }
    }

    /// Picks a host.
    pub fn pick(&self, target: &Target<'_>, random: &Random) -> Picked<'_> {
        match &self.arrangement {
            Arrangement::Empty => Picked::default(),
            Arrangement::Whole(levels) => levels.pick(target, random),
            Arrangement::Subsets(subsets) => subsets.pick(target, random),
        }
    }

    /// The host at an address.
    pub fn by_address(&self, address: &str) -> Option<&Rc<Host>> {
        let places = || self.hosts.iter().enumerate().map(|(place, host)| (host.label.clone(), place)).collect();
        self.by_address.get_or_init(places).get(address).and_then(|place| self.hosts.get(*place))
    }

    /// Number of subsets.
    pub fn subsets(&self) -> usize {
        match &self.arrangement {
            Arrangement::Subsets(subsets) => subsets.len(),
            Arrangement::Empty | Arrangement::Whole(_) => 0,
        }
    }

    /// Number of hosts with that health.
    pub fn count(&self, health: Health) -> usize {
        self.hosts.iter().filter(|host| host.health() == health).count()
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;
