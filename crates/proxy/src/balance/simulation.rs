//! Simulates connections of various costs on workers, to test what choosing, moving and levelling achieve. No sockets,
//! no clock.

use std::sync::Arc;

use evenkeel_upstream::random::Random;

use super::{Balance, Leveller, Load, Planner, WorkerSlot};

/// Looks within two seconds.
const TWO_SECONDS: usize = 20;
/// Looks over which the load must be even.
const WINDOW: usize = 10;
/// Short-lived connections per sample, at most.
const MOST_PER_LOOK: u64 = 400;

/// Short-lived connections.
#[derive(Debug, Clone, Copy, Default)]
struct Churn {
    per_look: usize,
    /// Maximum open at once.
    open: usize,
    /// Cost of each.
    cost: u64,
}

struct World {
    balance: Arc<Balance>,
    planner: Planner,
    leveller: Leveller,
    /// The long-lived connections, and the cost of each per sample.
    seats: Vec<WorkerSlot>,
    costs: Vec<u64>,
    /// Whether connections can move.
    movable: bool,
    churn: Churn,
    brief: Vec<WorkerSlot>,
    /// The work each worker has done, per sample.
    done: Vec<Vec<u64>>,
    random: Random,
}

impl World {
    /// `cost` gives each connection's cost, from a random number and its worker.
    fn new(workers: usize, connections: usize, seed: u64, cost: impl Fn(u64, usize) -> u64) -> Self {
        let balance = Balance::new(workers);
        let random = Random::seeded(2 * seed);
        let seats: Vec<_> = (0..connections).map(|_| balance.choose()).collect();
        let costs = seats.iter().map(|slot| cost(random.next(), slot.worker())).collect();
        let (planner, leveller, movable) = (Planner::default(), Leveller::default(), true);
        let (churn, brief, done) = (Churn::default(), Vec::new(), Vec::new());
        Self { balance, planner, leveller, seats, costs, movable, churn, brief, done, random }
    }

    /// Adds short-lived connections, up to `open` of them at once, that make up a third of the load.
    fn churning(mut self, open: usize) -> Self {
        let theirs = self.costs.iter().sum::<u64>() / 2;
        let cost = (theirs / MOST_PER_LOOK).max(4);
        self.churn = Churn { per_look: (theirs / cost) as usize, open, cost };
        self
    }

    /// Ends all load; the long-lived connections stay open.
    fn calm(&mut self) {
        self.churn = Churn::default();
        self.brief.clear();
        self.costs.fill(0);
    }

    /// Simulates the time until the next sample: the work of each worker, and how much of it was for short-lived
    /// connections.
    fn work(&mut self) -> (Vec<u64>, Vec<u64>) {
        let mut work = vec![0; self.balance.active().len()];
        self.seats.iter().zip(&self.costs).for_each(|(slot, cost)| work[slot.worker()] += cost);
        let mut brief = vec![0; work.len()];
        for _ in 0..self.churn.per_look {
            if self.brief.len() == self.churn.open {
                self.brief.swap_remove(self.random.below(self.churn.open));
            }
            let slot = self.balance.choose();
            brief[slot.worker()] += self.churn.cost;
            self.brief.push(slot);
        }
        work.iter_mut().zip(&brief).for_each(|(all, brief)| *all += brief);
        self.done.push(work.clone());
        (work, brief)
    }

    /// The work of each worker over the last samples.
    fn lately(&self) -> Vec<u64> {
        let samples = self.done.iter().rev().take(WINDOW);
        samples.fold(vec![0; self.balance.active().len()], |sum, sample| {
            sum.iter().zip(sample).map(|(a, b)| a + b).collect()
        })
    }

    /// Max/mean is at most 1.1, unless connections are so few and unequal that no assignment can be that even: then a
    /// worker may exceed the mean by `too_much` times the most expensive connection.
    fn is_even(&self, too_much: f64) -> bool {
        let work = self.lately();
        let mean = work.iter().sum::<u64>() as f64 / work.len() as f64;
        let dearest = self.costs.iter().max().copied().unwrap_or(0) as f64 * WINDOW as f64;
        *work.iter().max().unwrap_or(&0) as f64 <= (mean * 1.1).max(mean + dearest * too_much)
    }

    /// Largest connection count minus the smallest.
    fn gap(&self) -> u32 {
        let active = self.balance.active();
        active.iter().max().unwrap_or(&0) - active.iter().min().unwrap_or(&0)
    }

    /// One sample; returns how many connections moved. The load as seen differs from the real one by a few per cent.
    fn observe(&mut self) -> usize {
        let (work, brief) = self.work();
        let loads = self.seen(&work);
        self.balance.next_epoch();
        let levels = self.leveller.observe(&self.balance.active(), self.balance.come_and_go(), &loads);
        let sheds = self.planner.observe(loads);
        if !self.movable {
            return 0;
        }
        let (mut moves, mut levelled) = (Vec::new(), Vec::new());
        for shed in sheds {
            let shares = self.shares(shed.from, brief[shed.from]);
            let hot = shares.into_iter().filter(|(share, _)| *share > 0.0);
            moves.extend(shed.choose(hot.map(|(share, key)| (share * shed.load, key))));
        }
        for level in levels {
            let coldest = self.shares(level.from, brief[level.from]).into_iter().rev();
            levelled.extend(level.choose(coldest.map(|(share, key)| (share * level.load, key))));
        }
        let moved = moves.iter().filter(|(key, to)| self.seats[*key].move_to(*to)).count();
        moved + levelled.iter().filter(|(key, to)| self.seats[*key].level_with(*to)).count()
    }

    fn observe_times(&mut self, samples: usize) -> usize {
        (0..samples).map(|_| self.observe()).sum()
    }

    fn seen(&self, work: &[u64]) -> Vec<Load> {
        let most = work.iter().max().copied().unwrap_or(1).max(1);
        let busy = |work: u64| u32::try_from(self.noisy(work * 900_000 / most)).unwrap_or(u32::MAX);
        let loads: Vec<_> = work.iter().map(|work| Load { work: self.noisy(*work), busy_ppm: busy(*work) }).collect();
        loads.iter().enumerate().for_each(|(worker, load)| self.balance.publish_busy(worker, load.busy_ppm));
        loads
    }

    /// Each long-lived connection's share of that worker's load, the most expensive first. Short-lived ones count in
    /// the total.
    fn shares(&self, worker: usize, brief: u64) -> Vec<(f64, usize)> {
        let own = self.seats.iter().enumerate().filter(|(_, slot)| slot.worker() == worker);
        let mut own: Vec<_> = own.map(|(key, _)| (self.noisy(self.costs[key] * 100), key)).collect();
        own.sort_unstable_by(|a, b| b.cmp(a));
        let total = (own.iter().map(|(cost, _)| *cost).sum::<u64>() + brief * 100).max(1) as f64;
        own.into_iter().map(|(cost, key)| (cost as f64 / total, key)).collect()
    }

    fn noisy(&self, value: u64) -> u64 {
        (value as f64 * (0.97 + self.random.below(61) as f64 / 1000.0)) as u64
    }
}

type Cost = fn(u64, usize) -> u64;

const SKEWS: [(&str, Cost); 4] = [
    ("one worker has all the load", |_, worker| if worker == 0 { 50 } else { 0 }),
    ("half of the workers have it", |random, worker| if worker % 2 == 0 { 20 + random % 20 } else { 0 }),
    ("few are hot, most are cold", |random, _| if random % 8 == 0 { 40 + random / 8 % 80 } else { random % 3 }),
    ("every kind of cost", |random, worker| (random % 100) * if worker == 1 { 3 } else { 1 }),
];

/// Numbers of workers and connections.
const SIZES: [(usize, usize); 5] = [(2, 16), (2, 1024), (4, 64), (8, 256), (16, 1024)];
/// Counts that do not divide evenly, and few connections.
const ODD_SIZES: [(usize, usize); 4] = [(2, 17), (4, 67), (8, 16), (16, 143)];

fn every_world(sizes: &[(usize, usize)], seeds: u64, check: impl Fn(&str, Cost, usize, usize, u64)) {
    for (name, cost) in SKEWS {
        for (workers, connections) in sizes.iter().copied() {
            for seed in 0..seeds {
                let what = format!("{name}: {workers} workers, {connections} connections, seed {seed}");
                check(&what, cost, workers, connections, seed);
            }
        }
    }
}

/// Three seconds after all load has ended the counts are level, and nothing moves any more.
fn check_calm(mut world: World, what: &str) {
    world.calm();
    world.observe_times(TWO_SECONDS + WINDOW);
    assert!(world.gap() <= 1, "{what}: {:?} in the end", world.balance.active());
    assert_eq!(world.observe_times(TWO_SECONDS), 0, "{what}");
}

#[test]
fn skew_is_gone_after_two_seconds_and_little_moves_from_then_on() {
    every_world(&SIZES, 10, |what, cost, workers, connections, seed| {
        let mut world = World::new(workers, connections, seed, cost);
        let moves = world.observe_times(TWO_SECONDS);
        world.observe_times(WINDOW);
        assert!(world.is_even(0.75), "{what}: {:?} after {moves} moves", world.lately());
        assert!(moves <= connections, "{what}: {moves} moves");
        let later = world.observe_times(10 * TWO_SECONDS);
        assert!(later <= connections / 10 + 3 * workers, "{what}: {later} connections moved to and fro");
        check_calm(world, what);
    });
}

#[test]
fn connections_that_come_and_go_do_not_bring_it_back() {
    every_world(&[&SIZES[..], &ODD_SIZES].concat(), 1, |what, cost, workers, connections, seed| {
        for open in [1, 2, 16, 128] {
            let what = format!("{what}, {open} brief ones");
            let mut world = World::new(workers, connections, seed, cost).churning(open);
            let moves = world.observe_times(TWO_SECONDS);
            let mut later = 0;
            for second in 0..10 {
                later += world.observe_times(TWO_SECONDS / 2);
                assert!(world.is_even(1.0), "{what}, {second} s later: {:?} after {moves} moves", world.lately());
            }
            let chance = connections / 10 + 4 * workers + open / 8;
            assert!(later <= chance, "{what}: {later} connections moved to and fro");
            check_calm(world, &what);
        }
    });
}

#[test]
fn where_nothing_can_move_they_are_spread_all_the_same() {
    for (workers, connections) in SIZES {
        for open in [1, 2, 16, 128] {
            let mut world = World::new(workers, connections, 1, |_, _| 10).churning(open);
            // The connections of one worker have closed.
            world.movable = false;
            world.costs.fill(0);
            world.seats.retain(|slot| slot.worker() != 0);
            world.observe_times(TWO_SECONDS);
            for second in 0..10 {
                world.observe_times(TWO_SECONDS / 2);
                let what = format!("{workers} workers, {open} brief ones, {second} s later");
                assert!(world.is_even(0.0), "{what}: {:?}", world.lately());
            }
        }
    }
}

#[test]
fn load_that_comes_and_goes_is_followed() {
    for open in [0, 4] {
        let mut world = World::new(8, 256, 1, |_, _| 10);
        if open > 0 {
            world = world.churning(open);
        }
        for round in 0..20 {
            // A quarter of the connections is replaced by new ones, and all the load is on the connections of one
            // worker.
            let hot = round % 8;
            for key in 0..world.seats.len() {
                if world.random.next().is_multiple_of(4) {
                    world.seats[key] = world.balance.choose();
                }
                world.costs[key] = if world.seats[key].worker() == hot { 30 } else { 1 };
            }
            world.observe_times(TWO_SECONDS);
            world.observe_times(WINDOW);
            assert!(world.is_even(1.0), "round {round}, {open} brief ones: {:?}", world.lately());
        }
    }
}

#[test]
fn connections_that_stay_for_seconds_are_level_though_none_can_move() {
    for (workers, connections) in [(2, 320), (4, 320), (8, 640), (16, 960)] {
        let mut world = World::new(workers, connections, 1, |_, _| 10);
        world.movable = false;
        world.observe_times(TWO_SECONDS);
        for second in 0..60 {
            // One in eight is replaced per second.
            for _ in 0..WINDOW {
                for _ in 0..connections / 80 {
                    let key = world.random.below(connections);
                    // The old connection closes before the next one is accepted.
                    world.seats.swap_remove(key);
                    world.seats.push(world.balance.choose());
                }
                world.observe();
            }
            assert!(world.gap() <= 2, "{workers} workers after {second} s: {:?}", world.balance.active());
        }
    }
}
