//! Connections that cost what they cost, on workers: what choosing and moving make of them. No sockets, no clock.

use std::sync::Arc;

use super::{Balance, Load, Planner, Relief, Seat};
use crate::random::Random;

/// Looks in two seconds.
const TWO_SECONDS: usize = 20;
/// Looks over which load must be even.
const WINDOW: usize = 10;

/// Connections that come and go in a look, at most.
const MOST_PER_LOOK: u64 = 400;

/// Connections that come and go.
#[derive(Debug, Clone, Copy, Default)]
struct Churn {
    per_look: usize,
    /// Most that are open at once.
    open: usize,
    /// What each costs.
    cost: u64,
}

struct World {
    balance: Arc<Balance>,
    /// The connections that stay, and what each costs per look.
    seats: Vec<Seat>,
    costs: Vec<u64>,
    churn: Churn,
    brief: Vec<Seat>,
    relief: Relief,
    /// What each worker has done in the last looks.
    done: Vec<Vec<u64>>,
    random: Random,
}

impl World {
    /// `cost` says what each connection costs, by a random number and its worker.
    fn new(workers: usize, connections: usize, seed: u64, cost: impl Fn(u64, usize) -> u64) -> Self {
        let balance = Balance::new(workers);
        let random = Random::seeded(seed);
        let seats: Vec<_> = (0..connections).map(|_| balance.choose()).collect();
        let costs = seats.iter().map(|seat| cost(random.next(), seat.worker())).collect();
        let (churn, brief, done) = (Churn::default(), Vec::new(), Vec::new());
        Self { balance, seats, costs, churn, brief, relief: Relief::default(), done, random }
    }

    /// A third of the load is that of connections that come and go, so many of which are open at once.
    fn churning(mut self, open: usize) -> Self {
        let theirs = self.costs.iter().sum::<u64>() / 2;
        let cost = (theirs / MOST_PER_LOOK).max(4);
        self.churn = Churn { per_look: (theirs / cost) as usize, open, cost };
        self
    }

    fn workers(&self) -> usize {
        self.balance.active().len()
    }

    /// What the workers do until the next look; and what of that is for connections that come and go.
    fn work(&mut self) -> (Vec<u64>, Vec<u64>) {
        let mut work = vec![0; self.workers()];
        self.seats.iter().zip(&self.costs).for_each(|(seat, cost)| work[seat.worker()] += cost);
        let mut brief = vec![0; work.len()];
        for _ in 0..self.churn.per_look {
            if self.brief.len() == self.churn.open {
                let closes = self.random.next() as usize % self.brief.len();
                self.brief.swap_remove(closes);
            }
            let seat = self.balance.choose();
            brief[seat.worker()] += self.churn.cost;
            self.brief.push(seat);
        }
        work.iter_mut().zip(&brief).for_each(|(all, brief)| *all += brief);
        self.done.push(work.clone());
        (work, brief)
    }

    /// What the workers have done in the last looks.
    fn lately(&self) -> Vec<u64> {
        let looks = self.done.iter().rev().take(WINDOW);
        looks.fold(vec![0; self.workers()], |sum, look| sum.iter().zip(look).map(|(a, b)| a + b).collect())
    }

    /// Max/mean is 1.1 at most, unless connections are so few and unequal that no assignment can be that even: then a worker has
    /// over the mean `too_much` of the dearest.
    fn is_even(&self, too_much: f64) -> bool {
        let work = self.lately();
        let mean = work.iter().sum::<u64>() as f64 / work.len() as f64;
        let dearest = self.costs.iter().max().copied().unwrap_or(0) as f64 * WINDOW as f64;
        *work.iter().max().unwrap_or(&0) as f64 <= (mean * 1.1).max(mean + dearest * too_much)
    }

    /// One look; returns how many connections moved. What is seen differs from what is by a few per cent.
    fn look(&mut self, planner: &mut Planner) -> usize {
        let (work, brief) = self.work();
        let noisy = |value: u64| (value as f64 * (0.97 + (self.random.next() % 61) as f64 / 1000.0)) as u64;
        let most = work.iter().max().copied().unwrap_or(1).max(1);
        let load = |work: &u64| Load {
            work: noisy(*work),
            busy_ppm: u32::try_from(noisy(work * 900_000 / most)).unwrap_or(u32::MAX),
        };
        let loads: Vec<_> = work.iter().map(load).collect();
        loads.iter().enumerate().for_each(|(worker, load)| self.balance.publish_busy(worker, load.busy_ppm));
        self.balance.next_epoch(self.relief.look(&loads));
        let mut moves = Vec::new();
        for shed in planner.look(loads) {
            let own = self.seats.iter().enumerate().filter(|(_, seat)| seat.worker() == shed.from);
            let mut own: Vec<_> = own.map(|(key, _)| (noisy(self.costs[key] * 100), key)).collect();
            own.sort_unstable_by(|a, b| b.cmp(a));
            // What has closed since has done its part of the load, too.
            let closed = brief[shed.from] * 100;
            let total = (own.iter().map(|(cost, _)| *cost).sum::<u64>() + closed).max(1) as f64;
            let candidates = own.into_iter().map(|(cost, key)| (cost as f64 / total * shed.load, key));
            moves.extend(shed.choose(candidates));
        }
        moves.iter().for_each(|(key, to)| self.seats[*key].move_to(*to));
        moves.len()
    }

    fn look_for(&mut self, looks: usize, planner: &mut Planner) -> usize {
        (0..looks).map(|_| self.look(planner)).sum()
    }
}

type Cost = fn(u64, usize) -> u64;

const SKEWS: [(&str, Cost); 4] = [
    ("one worker has all the load", |_, worker| if worker == 0 { 50 } else { 0 }),
    ("half of the workers have it", |random, worker| if worker % 2 == 0 { 20 + random % 20 } else { 0 }),
    ("few are hot, most are cold", |random, _| if random % 8 == 0 { 40 + random / 8 % 80 } else { random % 3 }),
    ("every kind of cost", |random, worker| (random % 100) * if worker == 1 { 3 } else { 1 }),
];

const SIZES: [(usize, usize); 5] = [(2, 16), (2, 1024), (4, 64), (8, 256), (16, 1024)];

fn every_world(seeds: u64, check: impl Fn(&str, Cost, usize, usize, u64)) {
    for (name, cost) in SKEWS {
        for (workers, connections) in SIZES {
            for seed in 0..seeds {
                let what = format!("{name}: {workers} workers, {connections} connections, seed {seed}");
                check(&what, cost, workers, connections, seed);
            }
        }
    }
}

#[test]
fn skew_is_gone_after_two_seconds_and_little_moves_from_then_on() {
    every_world(20, |what, cost, workers, connections, seed| {
        let mut world = World::new(workers, connections, seed, cost);
        let mut planner = Planner::default();
        let moves = world.look_for(TWO_SECONDS, &mut planner);
        world.look_for(WINDOW, &mut planner);
        assert!(world.is_even(0.75), "{what}: {:?} after {moves} moves", world.lately());
        assert!(moves <= connections, "{what}: {moves} moves");
        let later = world.look_for(10 * TWO_SECONDS, &mut planner);
        assert!(later <= connections / 10 + 3 * workers, "{what}: {later} connections moved to and fro");
    });
}

#[test]
fn connections_that_come_and_go_do_not_bring_it_back() {
    every_world(2, |what, cost, workers, connections, seed| {
        for open in [1, 2, 16, 128] {
            let mut world = World::new(workers, connections, seed, cost).churning(open);
            let mut planner = Planner::default();
            let moves = world.look_for(TWO_SECONDS, &mut planner);
            for second in 0..5 {
                world.look_for(TWO_SECONDS / 2, &mut planner);
                let what = format!("{what}, {open} brief ones, {second} s later");
                assert!(world.is_even(1.0), "{what}: {:?} after {moves} moves", world.lately());
            }
        }
    });
}

#[test]
fn load_that_comes_and_goes_is_followed() {
    for open in [0, 4] {
        let mut world = World::new(8, 256, 1, |_, _| 10);
        if open > 0 {
            world = world.churning(open);
        }
        let mut planner = Planner::default();
        for round in 0..20 {
            // A quarter of the connections closes, others come, and all the load is with what one worker has.
            let hot = round % 8;
            for key in 0..world.seats.len() {
                if world.random.next().is_multiple_of(4) {
                    world.seats[key] = world.balance.choose();
                }
                world.costs[key] = if world.seats[key].worker() == hot { 30 } else { 1 };
            }
            world.look_for(TWO_SECONDS, &mut planner);
            world.look_for(WINDOW, &mut planner);
            assert!(world.is_even(1.0), "round {round}, {open} brief ones: {:?}", world.lately());
        }
    }
}
