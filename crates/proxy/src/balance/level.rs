//! Detects workers that have had more connections than others for longer than chance explains, and plans how many
//! should move.
//!
//! New connections go to the worker with the fewest. That is right where connections have closed: the gap is filled.
//! But a worker that has given busy connections away, or whose connections have all closed, would get every new one
//! until it has caught up. So moves are made into exchanges: a worker with more connections than others gives its
//! coldest to those with fewer.
//!
//! Load takes precedence: only connections with little or no load move ([`SLACK`]), so this never undoes what
//! [`super::Planner`] did.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::Load;
use super::plan::MIN_WORK;

/// Looks in all of which a worker must have had more, or fewer: with short-lived connections, counts differ at any
/// moment.
const PERSISTS: usize = 5;
/// Decay factor of a worker's past work, applied at each sample.
const KEPT: f64 = 0.75;
/// By what share of the mean load a taker may exceed it, and a giver fall short of it: half of the planner's tolerance.
const SLACK: f64 = 0.03;

/// Tells a worker to give its coldest connections away.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// The worker.
    pub from: usize,
    /// Its load, in an arbitrary unit used throughout this plan.
    pub load: f64,
    /// The part of it that the worker may give away.
    pub gives: f64,
    /// The takers.
    pub to: Vec<Room>,
}

/// The load that a worker takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Room {
    /// The worker.
    pub worker: usize,
    /// Number of connections.
    pub connections: u32,
    /// Maximum load, in the giver's unit.
    pub load: f64,
}

impl Level {
    /// Assigns connections to takers. `candidates` are the cost of each connection, in the unit of `load`, and its key;
    /// the coldest first.
    pub fn choose<K>(&self, candidates: impl Iterator<Item = (f64, K)>) -> impl Iterator<Item = (K, usize)> {
        let (mut gives, mut rooms) = (self.gives, self.to.clone());
        candidates.map_while(move |(load, key)| {
            let open = rooms.iter_mut().filter(|room| room.connections > 0);
            let room = open.max_by(|a, b| a.load.total_cmp(&b.load))?;
            // A connection without load may always move.
            if load > 0.0 && load > room.load.min(gives) {
                return None;
            }
            gives -= load;
            room.load -= load;
            room.connections -= 1;
            Some((key, room.worker))
        })
    }
}

/// Remembers the last samples and decides what should move. It has no clock and no threads: one call per sample.
#[derive(Debug, Default)]
pub struct Leveller {
    /// Each worker's connection count minus its fair share, for each sample.
    surplus: VecDeque<Vec<i64>>,
    /// Each worker's recent work, decaying.
    work: Vec<f64>,
}

impl Leveller {
    /// Records the newest sample and returns which workers should give how many connections to which; usually empty.
    /// While connections churn, differences within chance are left: counts do not decide the choice of workers then.
    pub fn observe(&mut self, counts: &[u32], come_and_go: bool, loads: &[Load]) -> Vec<Level> {
        self.work.resize(loads.len(), 0.0);
        self.work.iter_mut().zip(loads).for_each(|(work, load)| *work = *work * KEPT + load.work as f64);
        if self.surplus.len() == PERSISTS {
            self.surplus.pop_front();
        }
        self.surplus.push_back(surplus(counts));
        if self.surplus.len() < PERSISTS {
            return Vec::new();
        }
        let mean = counts.iter().copied().map(f64::from).sum::<f64>() / counts.len().max(1) as f64;
        let chance = if come_and_go { mean.sqrt() } else { 0.0 };
        let plan = self.plan(chance);
        if !plan.is_empty() {
            // Looks taken before the plan is carried out say nothing about what is left to do after it.
            self.surplus.clear();
        }
        plan
    }

    /// The plan; empty unless some count is off by more than `chance`.
    fn plan(&self, chance: f64) -> Vec<Level> {
        let lasting: Vec<i64> = (0..self.work.len()).map(|worker| self.lasting(worker)).collect();
        if lasting.iter().all(|surplus| surplus.unsigned_abs() as f64 <= chance) {
            return Vec::new();
        }
        let mean = self.work.iter().sum::<f64>() / self.work.len().max(1) as f64;
        // Without significant load, no balance of load can be disturbed.
        let idle = mean * (1.0 - KEPT) < MIN_WORK;
        let limit = |load: f64| if idle { f64::INFINITY } else { load.max(0.0) };
        let mut missing: Vec<i64> = lasting.iter().map(|surplus| (-surplus).max(0)).collect();
        let mut take = |worker: usize, left: &mut i64| {
            let connections = missing[worker].min(*left);
            missing[worker] -= connections;
            *left -= connections;
            let part = connections as f64 / lasting[worker].unsigned_abs().max(1) as f64;
            let load = limit((mean * (1.0 + SLACK) - self.work[worker]) * part);
            Room { worker, connections: u32::try_from(connections).unwrap_or(0), load }
        };
        let givers = lasting.iter().enumerate().filter(|(_, surplus)| **surplus > 0);
        let plan = givers.map(|(from, surplus)| {
            let mut left = *surplus;
            let rooms = (0..self.work.len()).map(|worker| take(worker, &mut left));
            let to = rooms.filter(|room| room.connections > 0).collect();
            let load = self.work[from];
            Level { from, load, gives: limit(load - mean * (1.0 - SLACK)), to }
        });
        plan.filter(|level| !level.to.is_empty()).collect()
    }

    /// The surplus or deficit that the worker had in every sample; 0 if it had both, or none.
    fn lasting(&self, worker: usize) -> i64 {
        let seen = || self.surplus.iter().map(|surplus| surplus.get(worker).copied().unwrap_or(0));
        let (least, most) = (seen().min().unwrap_or(0), seen().max().unwrap_or(0));
        if least > 0 { least } else { most.min(0) }
    }
}

/// Each count minus its fair share: the mean, and where that is not an integer, one more for the workers that have the
/// most.
fn surplus(counts: &[u32]) -> Vec<i64> {
    let total: i64 = counts.iter().map(|count| i64::from(*count)).sum();
    let workers = i64::try_from(counts.len().max(1)).unwrap_or(i64::MAX);
    let mut most_first: Vec<usize> = (0..counts.len()).collect();
    most_first.sort_by_key(|worker| Reverse(counts[*worker]));
    let mut surplus = vec![0; counts.len()];
    for (rank, worker) in (0..).zip(most_first) {
        surplus[worker] = i64::from(counts[worker]) - total / workers - i64::from(rank < total % workers);
    }
    surplus
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the leveller `samples` equal samples: the first plan, and after how many samples it came.
    fn plan(counts: &[u32], work: &[u64], samples: usize) -> Option<(usize, Vec<Level>)> {
        let mut leveller = Leveller::default();
        let loads: Vec<_> = work.iter().map(|work| Load { work: *work, busy_ppm: 0 }).collect();
        (1..=samples).find_map(|sample| {
            let plan = leveller.observe(counts, false, &loads);
            (!plan.is_empty()).then_some((sample, plan))
        })
    }

    #[test]
    fn whoever_has_more_gives_to_those_with_fewer() {
        let check = |counts: &[u32], expected: &[(usize, usize, u32)]| {
            let found = plan(counts, &vec![0; counts.len()], 2 * PERSISTS);
            assert!(found.iter().all(|(samples, _)| *samples == PERSISTS), "{counts:?}: {found:?}");
            let levels = found.into_iter().flat_map(|(_, levels)| levels);
            let moves = levels.flat_map(|level| level.to.into_iter().map(move |room| (level.from, room)));
            let moves: Vec<_> = moves.map(|(from, room)| (from, room.worker, room.connections)).collect();
            assert_eq!(moves, expected, "{counts:?}");
        };
        check(&[8, 0], &[(0, 1, 4)]);
        check(&[4, 28, 16, 16], &[(1, 0, 12)]);
        check(&[0, 10, 11, 0], &[(1, 0, 5), (2, 3, 5)]);
        check(&[9, 0, 9], &[(0, 1, 3), (2, 1, 3)]);
        // Totals that do not divide evenly.
        check(&[3, 3, 3, 1], &[(2, 3, 1)]);
        check(&[4, 3, 3, 3, 1], &[(0, 4, 1)]);
        for level in [&[5, 5, 5][..], &[5, 6, 5, 6], &[1, 0, 0, 0], &[0, 0], &[7], &[]] {
            check(level, &[]);
        }
    }

    #[test]
    fn what_differs_only_now_and_then_stays() {
        let mut leveller = Leveller::default();
        for sample in 0..10 * PERSISTS {
            let counts = if sample % PERSISTS == 0 { [16, 16] } else { [20, 12] };
            assert_eq!(leveller.observe(&counts, false, &[Load::default(); 2]), []);
        }
        // Only the surplus that was there in every sample moves.
        let plans = (0..PERSISTS)
            .filter_map(|sample| leveller.observe(&[20 + sample as u32, 12], false, &[Load::default(); 2]).pop());
        assert_eq!(plans.map(|level| level.to[0].connections).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn chance_is_left_where_connections_come_and_go() {
        let plans = |counts: &[u32]| {
            let mut leveller = Leveller::default();
            let sample = |_| leveller.observe(counts, true, &vec![Load::default(); counts.len()]).len();
            (0..PERSISTS).map(sample).sum::<usize>()
        };
        assert_eq!((plans(&[20, 12]), plans(&[21, 11])), (0, 1));
        assert_eq!((plans(&[17, 17, 17, 13]), plans(&[18, 18, 18, 10])), (0, 3));
        assert_eq!(plans(&[2, 0]), 0, "the one that comes and goes");
    }

    #[test]
    fn load_that_is_even_is_not_upset() {
        // Two expensive connections here, many cheap ones there.
        let (_, plan) = plan(&[2, 12], &[100, 100], 10).expect("a plan");
        let level = &plan[0];
        let limits = [level.gives / level.load, level.to[0].load / level.load];
        assert!(limits.iter().all(|limit| (limit - SLACK).abs() < 1e-9), "{level:?}");
        // 0.02 of the load may move; connections without load always may.
        let costs = |costs: &[f64]| costs.iter().map(|cost| cost * level.load).zip(0..).collect::<Vec<_>>();
        let check = |candidates: &[f64], expected: &[(usize, usize)]| {
            assert_eq!(level.choose(costs(candidates).into_iter()).collect::<Vec<_>>(), expected, "{candidates:?}");
        };
        check(&[0.0, 0.0, 0.02, 0.02, 0.08], &[(0, 0), (1, 0), (2, 0)]);
        check(&[0.08; 12], &[]);
        check(&[0.0; 12], &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
    }

    #[test]
    fn those_with_load_to_give_give_to_those_with_room() {
        let (_, plan) = plan(&[12, 2], &[150, 50], 10).expect("a plan");
        assert!(plan[0].gives / plan[0].load > 0.3 && plan[0].to[0].load / plan[0].load > 0.3, "{plan:?}");
        let (_, plan) = super::tests::plan(&[2, 12], &[150, 50], 10).expect("a plan");
        assert_eq!((plan[0].from, plan[0].gives, plan[0].to[0].load), (1, 0.0, 0.0), "only what costs nothing");
    }
}
