//! Hosts by priority: selects the priority level for a request and the usable hosts of that level.

use std::rc::Rc;

use evenkeel_runtime_config::cluster::{Cluster, Health};

use super::balancer::{Balancer, Making, Pick, Picked, Pool};
use super::build::build;
use super::locality::{self, ByLocality, Locality};
use super::priority::{Census, Loads, Rules};
use super::zones::{ByZone, Zones};
use crate::host::Host;
use crate::random::Random;
use crate::target::Target;

/// A cluster's hosts, or a subset of them.
#[derive(Debug)]
pub(super) struct Levels {
    levels: Vec<Level>,
    loads: Loads,
    follows_hash: bool,
    /// Whether nothing is picked in panic mode (`fail_traffic_on_panic`).
    fail_on_panic: bool,
}

#[derive(Debug, Default)]
struct Level {
    healthy: Option<Choice>,
    degraded: Option<Choice>,
}

#[derive(Debug)]
enum Choice {
    Flat(Box<dyn Balancer>),
    Localities(ByLocality),
    Zones(ByZone),
}

impl Choice {
    fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>> {
        match self {
            Self::Flat(balancer) => balancer.pick(pick),
            Self::Localities(localities) => localities.pick(pick),
            Self::Zones(zones) => zones.pick(pick),
        }
    }
}

impl Levels {
    /// Groups hosts by their current health; also by locality weights if the cluster uses them and `by_locality` is set.
    pub fn new(hosts: &[Rc<Host>], making: Making<'_>, by_locality: bool) -> Self {
        let config = making.config;
        let count = hosts.iter().map(|host| host.endpoint().priority + 1).max().unwrap_or(0) as usize;
        let mut members: Vec<Vec<Rc<Host>>> = vec![Vec::new(); count];
        for host in hosts {
            if let Some(level) = members.get_mut(host.endpoint().priority as usize) {
                level.push(host.clone());
            }
        }
        let census: Vec<_> = members.iter().map(|level| Census::of(level, config)).collect();
        let rules = Rules {
            overprovisioning_percent: config.endpoints.overprovisioning_percent,
            panic_threshold_percent: config.panic.threshold_percent,
        };
        let loads = Loads::new(&census, rules);
        let own = config.own_locality.as_deref().unwrap_or_default();
        let group = |hosts: &Vec<_>| (by_locality && config.locality_weighted).then(|| locality::group(hosts, own));
        let levels = members.iter().enumerate().map(|(i, hosts)| Level::new(hosts, group(hosts), i, &loads, making));
        Self {
            levels: levels.collect(),
            follows_hash: config.load_balancer.follows_hash(),
            fail_on_panic: config.panic.fail_traffic,
            loads,
        }
    }

    /// Picks a host; repicks while the host was tried before and attempts are left.
    pub fn pick(&self, target: &Target<'_>, random: &Random) -> Picked<'_> {
        if self.follows_hash {
            return self.pick_by_hash(target, random);
        }
        let mut picked = Picked::default();
        let other = self.other_loads(target);
        let loads = other.as_ref().unwrap_or(&self.loads);
        for attempt in 0..=target.reselect_attempts() {
            let Some((level, degraded)) = choose_level(loads, random) else { break };
            picked.panic = self.loads.panic.get(level).copied().unwrap_or_default();
            if picked.panic && self.fail_on_panic {
                picked.host = None;
                break;
            }
            let pick = Pick { hash: 0, attempt, random };
            picked.host = self.levels.get(level).and_then(|level| level.choice(degraded)).and_then(|c| c.pick(&pick));
            if picked.host.is_none_or(|host| !target.refuses(host)) {
                break;
            }
        }
        picked
    }

    /// The hash selects the level too, which stays the same for all attempts.
    fn pick_by_hash(&self, target: &Target<'_>, random: &Random) -> Picked<'_> {
        let hash = target.hash.unwrap_or_else(|| random.next());
        let other = self.other_loads(target);
        let Some((index, _)) = other.as_ref().unwrap_or(&self.loads).choose(hash) else { return Picked::default() };
        let level = self.levels.get(index);
        let panic = self.loads.panic.get(index).copied().unwrap_or_default();
        let mut picked = Picked { panic, ..Picked::default() };
        for attempt in 0..=target.reselect_attempts() {
            let pick = Pick { hash, attempt, random };
            picked.host = level.and_then(|level| level.choice(false)).and_then(|choice| choice.pick(&pick));
            if picked.host.is_none_or(|host| !target.refuses(host)) {
                break;
            }
        }
        picked
    }

    /// The loads for a retry that avoids priorities already tried.
    fn other_loads(&self, target: &Target<'_>) -> Option<Loads> {
        let every = target.retry?.avoid_priorities_every?;
        let tried = target.previous.iter().map(|host| host.endpoint().priority as usize);
        self.loads.without_tried(tried, every)
    }
}

fn choose_level(loads: &Loads, random: &Random) -> Option<(usize, bool)> {
    match loads.healthy.first() {
        Some(100) => Some((0, false)),
        _ => loads.choose(random.next() >> 32),
    }
}

impl Level {
    fn new(
        hosts: &[Rc<Host>],
        localities: Option<Vec<Locality>>,
        index: usize,
        loads: &Loads,
        making: Making<'_>,
    ) -> Self {
        let panic = loads.panic.get(index).copied().unwrap_or_default();
        let config = making.config;
        let usable = |wanted: Health| move |host: &Host| panic || host.health() == wanted;
        if config.load_balancer.follows_hash() {
            let pool = match &localities {
                Some(localities) => locality::shares(localities, usable(Health::Healthy)),
                None => {
                    let mut pool = Pool { hosts: Vec::new(), shares: Vec::new() };
                    pool.add(hosts, 1.0, usable(Health::Healthy));
                    pool
                }
            };
            return Self { healthy: Some(Choice::Flat(build(&config.load_balancer, pool, making))), degraded: None };
        }
        // A retry may go to a priority that has no load for first tries.
        let [healthy, degraded] = loads.availability.get(index).copied().unwrap_or_default();
        let load = |loads: &[u32]| loads.get(index).copied().unwrap_or_default();
        let zones = if index == 0 && !panic { by_zone(hosts, making) } else { None };
        let choice = |health: Health| {
            if let Some((zones, localities)) = &zones {
                return Choice::Zones(ByZone::new(zones, hosts, localities, health, making));
            }
            let by_locality = localities.as_deref().filter(|_| !panic);
            if let Some(found) = by_locality.and_then(|localities| ByLocality::new(localities, health, making)) {
                return Choice::Localities(found);
            }
            let hosts = hosts.iter().filter(|host| usable(health)(host)).cloned().collect();
            Choice::Flat(build(&config.load_balancer, Pool { hosts, shares: Vec::new() }, making))
        };
        Self {
            healthy: (load(&loads.healthy) > 0 || healthy > 0).then(|| choice(Health::Healthy)),
            degraded: (load(&loads.degraded) > 0 || degraded > 0).then(|| choice(Health::Degraded)),
        }
    }

    fn choice(&self, degraded: bool) -> Option<&Choice> {
        if degraded { self.degraded.as_ref() } else { self.healthy.as_ref() }
    }
}

/// The localities of the first priority's hosts, if requests are divided among zones.
fn by_zone(hosts: &[Rc<Host>], making: Making<'_>) -> Option<(Rc<Zones>, Vec<Locality>)> {
    making.config.zone_aware.and(making.zones)?;
    let localities = locality::group(hosts, making.config.own_locality.as_deref().unwrap_or_default());
    Some((Rc::new(Zones::new(&localities, making)?), localities))
}

impl Census {
    fn of(hosts: &[Rc<Host>], config: &Cluster) -> Self {
        let weighted = config.endpoints.weighted_priority_health;
        let mut census = Self { hosts: hosts.len() as u64, ..Self::default() };
        for host in hosts {
            let size = if weighted { u64::from(host.weight()) } else { 1 };
            let (part, sum) = match host.health() {
                Health::Healthy => (&mut census.healthy, Some(&mut census.available.healthy)),
                Health::Degraded => (&mut census.degraded, Some(&mut census.available.degraded)),
                Health::Unhealthy | Health::Draining => (&mut 0, None),
            };
            *part += 1;
            if let Some(sum) = sum {
                *sum += size;
            }
            if !host.is_excluded(config) {
                census.counted += 1;
                census.available.total += size;
            }
        }
        census
    }
}
