//! Zone-aware routing. Of the requests to a cluster's first priority, as many stay in the proxy's own locality as its hosts
//! there can take; the others go where there is room. All proxies like this one are assumed to get equal shares of the
//! requests, so comparing the two clusters' hosts by locality shows how much each locality has to give away.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::cluster::{Health, ZoneAware};
use evenkeel_stats::Writer;

use super::balancer::{Balancer, Making, Pick, Pool};
use super::build::build;
use super::locality::Locality;
use crate::host::Host;
use crate::local_hosts::{LocalCounts, LocalHosts, Size};
use crate::random::Random;
use crate::stats::zone::{Counter, Stats};

/// Shares are computed in parts of this, as in Envoy.
const WHOLE: u64 = 10_000;

/// The localities of a priority's hosts, and how requests are divided among them.
#[derive(Debug)]
pub(super) struct Zones {
    settings: ZoneAware,
    panic_threshold_percent: f64,
    fail_on_panic: bool,
    /// Name and healthy hosts of each locality; the proxy's own is the first one, if it has hosts.
    localities: Vec<(Arc<str>, Size)>,
    has_own: bool,
    local: Rc<LocalHosts>,
    stats: Rc<Writer<Stats>>,
    /// The division, and the version of the local hosts that it was computed for.
    division: RefCell<(u64, Division)>,
}

/// How requests are distributed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Division {
    /// Without regard to locality.
    None,
    /// All to the proxy's own locality.
    Own,
    /// `own` of [`WHOLE`] to the own locality, the others by `room`: the added-up room of all localities up to this one.
    Residual { own: u64, room: Vec<u64> },
}

/// The destination of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// To any host.
    Anywhere,
    /// To a locality.
    Locality(usize),
    /// To no host: so few proxies like this one are healthy that the request has to fail (`fail_traffic_on_panic`).
    Nowhere,
}

impl Zones {
    /// For the hosts of one priority; `None` if the cluster does not divide requests among zones.
    pub fn new(localities: &[Locality], making: Making<'_>) -> Option<Self> {
        let (settings, context) = (making.config.zone_aware?, making.zones?);
        let sized = |locality: &Locality| {
            let mut size = Size::default();
            locality.hosts.iter().filter(|host| host.health() == Health::Healthy).for_each(|host| size.add(host));
            (locality.name.clone(), size)
        };
        let localities: Vec<_> = localities.iter().map(sized).collect();
        let own = making.config.own_locality.as_ref();
        let zones = Self {
            settings,
            panic_threshold_percent: f64::from(making.config.panic.threshold_percent),
            fail_on_panic: making.config.panic.fail_traffic,
            has_own: own.is_some() && localities.first().map(|(name, _)| name) == own,
            localities,
            local: Rc::clone(context.local),
            stats: Rc::clone(context.stats),
            division: RefCell::new((0, Division::None)),
        };
        zones.divide();
        Some(zones)
    }

    /// Recomputes the distribution.
    fn divide(&self) {
        self.stats.inc(Counter::lb_recalculate_zone_structures);
        let division = self.division_for(&self.local.counts());
        self.division.replace((self.local.version(), division));
    }

    fn division_for(&self, local: &LocalCounts) -> Division {
        if self.localities.len() < 2 || local.healthy.len() < 2 {
            return Division::None;
        }
        if !local.has_own {
            self.stats.inc(Counter::lb_local_cluster_not_ok);
            return Division::None;
        }
        if self.localities.iter().map(|(_, size)| size.hosts).sum::<u64>() < self.settings.min_cluster_size {
            self.stats.inc(Counter::lb_zone_cluster_too_small);
            return Division::None;
        }
        let shares = self.shares(local);
        let first = shares.first().copied().filter(|_| self.has_own);
        if let Some((here, there)) = first {
            let own_hosts = self.localities.first().map_or(0, |(_, size)| size.hosts);
            let forced = self.settings.force_local_min_hosts.is_some_and(|least| own_hosts >= u64::from(least));
            if (there > 0 && there >= here) || forced {
                return Division::Own;
            }
        }
        let own = first.map_or(0, |(here, there)| (there * WHOLE).checked_div(here).unwrap_or(0));
        let mut total = 0;
        let room = shares.iter().enumerate().map(|(index, (here, there))| {
            if index > 0 || !self.has_own {
                total += there.saturating_sub(*here);
            }
            total
        });
        Division::Residual { own, room: room.collect() }
    }

    /// Returns for each locality its shares of the local cluster's hosts and of this cluster's.
    fn shares(&self, local: &LocalCounts) -> Vec<(u64, u64)> {
        let measure = |size: Size| size.measure(self.settings.by_weight);
        let all_here: u64 = local.healthy.values().copied().map(measure).sum();
        let all_there: u64 = self.localities.iter().map(|(_, size)| measure(*size)).sum();
        let share = |part: u64, all: u64| (WHOLE * part).checked_div(all).unwrap_or(0);
        let of = |(name, size): &(Arc<str>, Size)| match size.hosts {
            0 => (0, 0),
            _ => {
                let here = local.healthy.get(name).copied().map_or(0, measure);
                (share(here, all_here), share(measure(*size), all_there))
            }
        };
        self.localities.iter().map(of).collect()
    }

    /// Returns the destination of the next request.
    pub fn route(&self, random: &Random) -> Route {
        if self.division.borrow().0 != self.local.version() {
            self.divide();
        }
        let division = self.division.borrow();
        if division.1 == Division::None || random.below(100) >= self.settings.routing_percent as usize {
            return Route::Anywhere;
        }
        if self.local.counts().usable_percent < self.panic_threshold_percent {
            self.stats.inc(Counter::lb_local_cluster_not_ok);
            return if self.fail_on_panic { Route::Nowhere } else { Route::Anywhere };
        }
        match &division.1 {
            Division::None => Route::Anywhere,
            Division::Own => {
                self.stats.inc(Counter::lb_zone_routing_all_directly);
                Route::Locality(0)
            }
            Division::Residual { own, room } => Route::Locality(self.sample(*own, room, random)),
        }
    }

    fn sample(&self, own: u64, room: &[u64], random: &Random) -> usize {
        if (random.below(WHOLE as usize) as u64) < own {
            self.stats.inc(Counter::lb_zone_routing_sampled);
            return 0;
        }
        self.stats.inc(Counter::lb_zone_routing_cross_zone);
        let total = room.last().copied().unwrap_or(0);
        if total == 0 {
            // Only by rounding.
            self.stats.inc(Counter::lb_zone_no_capacity_left);
            return random.below(room.len());
        }
        let point = random.below(total as usize) as u64;
        room.iter().position(|up_to| point < *up_to).unwrap_or(0)
    }
}

/// The hosts of one health among which requests are divided by locality.
#[derive(Debug)]
pub(super) struct ByZone {
    zones: Rc<Zones>,
    all: Box<dyn Balancer>,
    localities: Vec<Box<dyn Balancer>>,
}

impl ByZone {
    /// The `hosts` that have this health; `localities`, which are those of `zones`, have the same ones.
    pub fn new(
        zones: &Rc<Zones>,
        hosts: &[Rc<Host>],
        localities: &[Locality],
        health: Health,
        making: Making<'_>,
    ) -> Self {
        let balancer = |hosts: &[Rc<Host>]| {
            let hosts = hosts.iter().filter(|host| host.health() == health).cloned().collect();
            build(&making.config.load_balancer, Pool { hosts, shares: Vec::new() }, making)
        };
        Self {
            zones: Rc::clone(zones),
            all: balancer(hosts),
            localities: localities.iter().map(|locality| balancer(&locality.hosts)).collect(),
        }
    }

    /// A host of the locality that the request goes to.
    pub fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>> {
        match self.zones.route(pick.random) {
            Route::Anywhere => self.all.pick(pick),
            Route::Locality(index) => self.localities.get(index)?.pick(pick),
            Route::Nowhere => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_runtime_config::Cluster;
    use evenkeel_stats::Registry;

    use super::super::fixture::{cluster, host_with};
    use super::super::locality;
    use super::*;
    use crate::stats::scope;

    const SMALL: ZoneAware =
        ZoneAware { routing_percent: 100, min_cluster_size: 1, force_local_min_hosts: None, by_weight: false };

    /// A mesh of proxies and a cluster, each as numbers of healthy hosts by locality; `a` is the proxy's own.
    struct World {
        local: Rc<LocalHosts>,
        zones: Zones,
    }

    fn hosts(groups: &[(&str, u16)], edit: impl Fn(&mut evenkeel_runtime_config::cluster::Endpoint)) -> Vec<Rc<Host>> {
        let names = groups.iter().flat_map(|(name, count)| (0..*count).map(move |_| *name));
        let host = |(name, port): (&str, u16)| {
            host_with(port, |endpoint| {
                endpoint.locality = name.into();
                edit(endpoint);
            })
        };
        names.zip(1..).map(host).collect()
    }

    fn config(hosts: &[Rc<Host>], settings: ZoneAware) -> Cluster {
        Cluster { zone_aware: Some(settings), own_locality: Some("a".into()), ..cluster(hosts) }
    }

    impl World {
        fn new(local: &[(&str, u16)], upstream: &[(&str, u16)], settings: ZoneAware) -> Self {
            Self::of(&hosts(local, |_| {}), &hosts(upstream, |_| {}), settings)
        }

        fn of(local: &[Rc<Host>], upstream: &[Rc<Host>], settings: ZoneAware) -> Self {
            let registry = Registry::new();
            let (config, local_hosts) = (config(upstream, settings), Rc::new(LocalHosts::default()));
            local_hosts.set(local, &config);
            let (random, tables) = (Random::seeded(1), Arc::default());
            let stats = Rc::new(scope::<Stats>(&registry, "c").writer());
            let context = super::super::ZoneContext { local: &local_hosts, stats: &stats };
            let making = Making { config: &config, random: &random, tables: &tables, zones: Some(context) };
            let zones = Zones::new(&locality::group(upstream, "a"), making).expect("zone-aware");
            Self { local: local_hosts, zones }
        }

        fn division(&self) -> Division {
            self.zones.division.borrow().1.clone()
        }

        /// Requests of 10,000 by locality; the last number: those that go anywhere.
        fn spread(&self) -> Vec<usize> {
            let random = Random::seeded(7);
            let mut counts = vec![0; self.zones.localities.len() + 1];
            for _ in 0..10_000 {
                let index = match self.zones.route(&random) {
                    Route::Locality(index) => index,
                    Route::Anywhere => counts.len() - 1,
                    Route::Nowhere => continue,
                };
                counts[index] += 1;
            }
            counts
        }
    }

    #[test]
    fn requests_are_divided_as_in_envoy() {
        let residual = |own, room: &[u64]| Division::Residual { own, room: room.to_vec() };
        let check = |local: &[(&str, u16)], upstream: &[(&str, u16)], settings: ZoneAware, expected: Division| {
            assert_eq!(World::new(local, upstream, settings).division(), expected, "{local:?} {upstream:?}");
        };
        let two: &[(&str, u16)] = &[("a", 1), ("b", 1)];
        check(two, two, SMALL, Division::Own);
        check(two, &[("a", 3), ("b", 1)], SMALL, Division::Own);
        check(&[("a", 2), ("b", 2)], &[("a", 1), ("b", 3)], SMALL, residual(5000, &[0, 2500]));
        let three: &[(&str, u16)] = &[("a", 2), ("b", 2), ("c", 1)];
        check(three, &[("a", 1), ("b", 2), ("c", 1)], SMALL, residual(6250, &[0, 1000, 1500]));
        // Zones that only one of both has.
        check(two, &[("b", 1), ("c", 1)], SMALL, residual(0, &[0, 5000]));
        check(two, &[("a", 1), ("c", 1)], SMALL, Division::Own);
        check(&[("a", 3), ("b", 1)], &[("a", 1), ("c", 1)], SMALL, residual(6666, &[0, 5000]));
        check(two, &[("c", 1), ("d", 3)], SMALL, residual(0, &[2500, 10_000]));
        // Too little to go by.
        check(two, &[("a", 2)], SMALL, Division::None);
        check(two, &[], SMALL, Division::None);
        check(&[("a", 2)], two, SMALL, Division::None);
        check(&[], two, SMALL, Division::None);
        check(&[("b", 1), ("c", 1)], two, SMALL, Division::None);
        check(two, &[("a", 3), ("b", 2)], ZoneAware::default(), Division::None);
        check(two, &[("a", 3), ("b", 3)], ZoneAware::default(), Division::Own);
        // Forced.
        let forced = |least| ZoneAware { force_local_min_hosts: Some(least), ..SMALL };
        check(three, &[("a", 1), ("b", 9)], forced(1), Division::Own);
        check(three, &[("a", 1), ("b", 9)], forced(2), residual(2500, &[0, 5000]));
        check(three, &[("b", 9), ("c", 1)], forced(1), residual(0, &[5000, 5000]));
    }

    #[test]
    fn only_healthy_hosts_count_and_their_weights_if_wanted() {
        use evenkeel_runtime_config::cluster::Health as H;
        let local = hosts(&[("a", 1), ("b", 1)], |_| {});
        let upstream = |health: H, weight: u32| {
            let mut all = hosts(&[("a", 1)], |endpoint| endpoint.weight = weight);
            all.extend(hosts(&[("a", 1)], |endpoint| endpoint.health = health));
            all.extend(hosts(&[("b", 2)], |_| {}));
            all
        };
        let check = |upstream: Vec<Rc<Host>>, settings: ZoneAware, expected: Division| {
            assert_eq!(World::of(&local, &upstream, settings).division(), expected);
        };
        check(upstream(H::Healthy, 1), SMALL, Division::Own);
        check(upstream(H::Unhealthy, 1), SMALL, Division::Residual { own: 6666, room: vec![0, 1666] });
        check(upstream(H::Unhealthy, 2), ZoneAware { by_weight: true, ..SMALL }, Division::Own);
        // The proxies themselves: the first zone has none that is healthy, so that it has nothing to give away.
        let mut sick = hosts(&[("a", 1)], |endpoint| endpoint.health = H::Unhealthy);
        sick.extend(hosts(&[("b", 3)], |_| {}));
        let world = World::of(&sick, &hosts(&[("a", 1), ("b", 3)], |_| {}), SMALL);
        assert_eq!(world.division(), Division::Own);
    }

    #[test]
    fn requests_follow_the_division() {
        let close = |seen: &[usize], expected: &[usize]| {
            let near = seen.len() == expected.len() && seen.iter().zip(expected).all(|(s, e)| s.abs_diff(*e) < 200);
            assert!(near, "{seen:?}, not {expected:?}");
        };
        let three: &[(&str, u16)] = &[("a", 2), ("b", 2), ("c", 1)];
        let upstream: &[(&str, u16)] = &[("a", 1), ("b", 2), ("c", 1)];
        close(&World::new(three, upstream, SMALL).spread(), &[6250, 2500, 1250, 0]);
        let half = ZoneAware { routing_percent: 50, ..SMALL };
        close(&World::new(three, upstream, half).spread(), &[3125, 1250, 625, 5000]);
        assert_eq!(World::new(three, upstream, ZoneAware { routing_percent: 0, ..SMALL }).spread(), [0, 0, 0, 10_000]);
        // Rounding leaves no room: any zone will do.
        let even: &[(&str, u16)] = &[("a", 2), ("b", 1), ("c", 1)];
        let world = World::new(even, even, SMALL);
        world.zones.division.replace((world.local.version(), Division::Residual { own: 0, room: vec![0, 0, 0] }));
        close(&world.spread(), &[3333, 3333, 3333, 0]);
    }

    #[test]
    fn a_change_of_the_local_cluster_counts_at_once() {
        let upstream: &[(&str, u16)] = &[("a", 1), ("b", 1)];
        let world = World::new(&[("a", 2)], upstream, SMALL);
        assert_eq!(world.spread(), [0, 0, 10_000]);
        let set = |groups: &[(&str, u16)], healthy: bool| {
            let all = hosts(groups, |endpoint| {
                if !healthy {
                    endpoint.health = Health::Unhealthy;
                }
            });
            world.local.set(&all, &config(&all, SMALL));
        };
        set(&[("a", 1), ("b", 1)], true);
        assert_eq!(world.spread(), [10_000, 0, 0]);
        // When most proxies like this one are unhealthy, their number does not indicate their requests.
        set(&[("a", 1), ("b", 1)], false);
        assert_eq!(world.spread(), [0, 0, 10_000]);
    }
}
