//! Detects overloaded workers and plans which workers take some of their load.
//!
//! Load is counted in units of work (a request is one unit, and so is each 16 KiB of its bodies): the count is exact,
//! while CPU shares are noisy, as there may be more workers than cores. CPU time is still considered: no worker gives
//! to one that is busier, and where equal counts leave one worker saturated and another not, CPU shares are balanced
//! instead of counts.

use std::collections::VecDeque;

use super::SATURATED_PPM;

/// Looks remembered: an imbalance too small to tell from chance in two samples may be significant over all of them.
const MAX_HISTORY: usize = 10;
/// Looks needed before a plan is made.
const MIN_HISTORY: usize = 2;
/// Looks ignored after connections were told to move: they move at their next message boundary.
const SETTLING: u32 = 1;
/// By what share of the mean the heaviest worker must exceed it: the first number, plus the second divided by the
/// number of samples, since few samples are noisy.
const TOLERANCE: (f64, f64) = (0.06, 0.12);
/// Besides, by how many standard deviations of a random arrival process it must exceed the mean, for two workers. With
/// more workers, the expected maximum is further above the mean by chance alone: by the root of the logarithm of their
/// number.
const DEVIATIONS: f64 = 1.5;
/// Work per sample and worker, averaged over the window, below which moving is not worth it.
pub(super) const MIN_WORK: f64 = 1.0;
/// Smallest significant difference between CPU shares, in millionths of a core.
const BUSY_GAP_PPM: u32 = 250_000;
/// How much busier than the giver a taker may be, in millionths of a core.
const BUSY_SLACK_PPM: u32 = 100_000;
/// After a move the taker must be below the giver's previous load by at least this share of it.
const WORTH: f64 = 0.05;

/// The load of a worker since the previous sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Units of work.
    pub work: u64,
    /// Share of a core used, in millionths.
    pub busy_ppm: u32,
}

/// Tells a worker to give load away until it is down to `mean`, or no connection fits.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadTransfer {
    /// The worker.
    pub from: usize,
    /// Its load, in an arbitrary unit used throughout this plan.
    pub load: f64,
    /// The load it should have.
    pub mean: f64,
    /// Workers that take some, and the load to assume for each: higher than the real one where several workers give to
    /// the same takers.
    pub to: Vec<(usize, f64)>,
    /// Load that a taker may reach. Only the heaviest worker may bring others over the mean.
    pub limit: f64,
}

impl LoadTransfer {
    /// Assigns connections to takers. `candidates` are the cost of each connection, in the unit of `load`, and its key;
    /// the most expensive first. A move that would merely swap the heavier and the lighter worker is not made.
    pub fn choose<K>(&self, candidates: impl Iterator<Item = (f64, K)>) -> impl Iterator<Item = (K, usize)> {
        let (mut own, mean, limit, mut takers) = (self.load, self.mean, self.limit, self.to.clone());
        candidates.filter_map(move |(load, key)| {
            let taker = takers.iter_mut().min_by(|a, b| a.1.total_cmp(&b.1))?;
            // The giver may fall below the mean by half of the connection's cost: that is closer to the mean than
            // keeping it.
            if own - load < mean - load / 2.0 || taker.1 + load > limit.min(own * (1.0 - WORTH)) {
                return None;
            }
            own -= load;
            taker.1 += load;
            Some((key, taker.0))
        })
    }
}

/// Remembers the last samples and decides what should move. It has no clock and no threads: one call per sample.
#[derive(Debug, Default)]
pub struct Planner {
    history: VecDeque<Vec<Load>>,
    settling: u32,
}

impl Planner {
    /// Records the newest sample and returns which workers should give load to which; usually empty.
    pub fn observe(&mut self, loads: Vec<Load>) -> Vec<LoadTransfer> {
        if self.settling > 0 {
            self.settling -= 1;
            return Vec::new();
        }
        if self.history.len() == MAX_HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(loads);
        if self.history.len() < MIN_HISTORY {
            return Vec::new();
        }
        let windows = [MIN_HISTORY, self.history.len()];
        let plan = windows.into_iter().find_map(|samples| Some(self.plan(samples)).filter(|plan| !plan.is_empty()));
        let plan = plan.unwrap_or_default();
        if !plan.is_empty() {
            self.history.clear();
            self.settling = SETTLING;
        }
        plan
    }

    /// The plan based on the newest `samples` samples.
    fn plan(&self, samples: usize) -> Vec<LoadTransfer> {
        let Some(skip) = self.history.len().checked_sub(samples) else { return Vec::new() };
        let Some(newest) = self.history.back() else { return Vec::new() };
        let mut work = vec![0.0; newest.len()];
        let mut busy = vec![0u64; newest.len()];
        for sample in self.history.iter().skip(skip) {
            for (worker, load) in sample.iter().enumerate().take(work.len()) {
                work[worker] += load.work as f64;
                busy[worker] += u64::from(load.busy_ppm);
            }
        }
        let busy: Vec<u32> = busy.iter().map(|sum| u32::try_from(sum / samples as u64).unwrap_or(u32::MAX)).collect();
        let by_work = by(&work, &busy, significant(&work, samples));
        if !by_work.is_empty() {
            return by_work;
        }
        let (least, most) = (busy.iter().min().copied().unwrap_or(0), busy.iter().max().copied().unwrap_or(0));
        if most < SATURATED_PPM || most - least < BUSY_GAP_PPM {
            return Vec::new();
        }
        let shares: Vec<f64> = busy.iter().copied().map(f64::from).collect();
        by(&shares, &busy, f64::from(BUSY_GAP_PPM) / 2.0)
    }
}

/// By how much the heaviest worker must exceed the mean to be significant rather than chance; infinite when there is
/// too little work.
fn significant(work: &[f64], samples: usize) -> f64 {
    let mean = work.iter().sum::<f64>() / work.len().max(1) as f64;
    if mean < MIN_WORK * samples as f64 {
        return f64::INFINITY;
    }
    let chance = (mean * (work.len() as f64).log2()).sqrt() * DEVIATIONS;
    (mean * (TOLERANCE.0 + TOLERANCE.1 / samples as f64)).max(chance)
}

/// Plans the moves that bring all workers to the mean; nothing while the heaviest exceeds it by `excess` or less.
fn by(loads: &[f64], busy: &[u32], excess: f64) -> Vec<LoadTransfer> {
    let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
    let heaviest = loads.iter().copied().fold(0.0, f64::max);
    if heaviest - mean <= excess {
        return Vec::new();
    }
    let over = |load: f64| (load - mean).max(0.0);
    let total: f64 = loads.iter().copied().map(over).sum();
    let givers = loads.iter().enumerate().filter(|(_, load)| over(**load) > mean * TOLERANCE.0 / 2.0);
    let plan = givers.map(|(from, load)| {
        // The takers' room is divided among the givers in proportion to what each has to give.
        let part = over(*load) / total;
        let takers = loads.iter().enumerate().filter(|(to, load)| {
            **load < mean && busy.get(*to) <= busy.get(from).map(|busy| busy + BUSY_SLACK_PPM).as_ref()
        });
        let to = takers.map(|(to, load)| (to, mean - (mean - load) * part)).collect();
        let limit = if *load >= heaviest { *load } else { mean * (1.0 + TOLERANCE.0) };
        LoadTransfer { from, load: *load, mean, to, limit }
    });
    plan.filter(|shed| !shed.to.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(work: &[u64], busy: &[u32]) -> Vec<Load> {
        work.iter().zip(busy).map(|(work, busy)| Load { work: *work, busy_ppm: busy * 10_000 }).collect()
    }

    /// Feeds the planner `samples` equal samples: the first plan, and after how many samples it came.
    fn plan(work: &[u64], busy_percent: &[u32], samples: usize) -> Option<(usize, Vec<LoadTransfer>)> {
        let mut planner = Planner::default();
        (1..=samples).find_map(|sample| {
            let plan = planner.observe(loads(work, busy_percent));
            (!plan.is_empty()).then_some((sample, plan))
        })
    }

    #[test]
    fn a_worker_with_everything_gives_to_all_others() {
        let (samples, plan) = plan(&[400, 0, 0, 0], &[90, 1, 1, 1], 10).expect("a plan");
        let expected =
            LoadTransfer { from: 0, load: 800.0, mean: 200.0, to: vec![(1, 0.0), (2, 0.0), (3, 0.0)], limit: 800.0 };
        assert_eq!((samples, plan), (2, vec![expected]));
    }

    #[test]
    fn those_who_take_are_shared_out_among_those_who_give() {
        let (_, plan) = plan(&[150, 250, 0, 0], &[60, 90, 0, 0], 10).expect("a plan");
        let to = |shed: &LoadTransfer| shed.to.iter().map(|(worker, load)| (*worker, load.round())).collect::<Vec<_>>();
        assert_eq!(plan.iter().map(|shed| shed.from).collect::<Vec<_>>(), [0, 1]);
        // Worker 0 has a quarter of the total to give, so it sees only a quarter of the takers' room.
        assert_eq!(to(&plan[0]), [(2, 150.0), (3, 150.0)]);
        assert_eq!(to(&plan[1]), [(2, 50.0), (3, 50.0)]);
    }

    #[test]
    fn chance_is_told_from_imbalance() {
        let check = |work: &[u64], expected: Option<usize>| {
            let busy = vec![50; work.len()];
            assert_eq!(plan(work, &busy, 30).map(|(samples, _)| samples), expected, "{work:?}");
        };
        // 20 against 30 may be chance in two samples but not in three; with more workers it takes five.
        check(&[20, 30], Some(3));
        check(&[20, 30, 20, 30], Some(5));
        check(&[100, 120], Some(4));
        check(&[1000, 1300], Some(2));
        check(&[1000, 1100], None);
        check(&[0, 1], None);
        check(&[0, 0], None);
        check(&[7], None);
    }

    #[test]
    fn nobody_gives_to_a_worker_that_is_busier() {
        assert_eq!(plan(&[400, 100], &[40, 80], 30), None);
        let (_, plan) = plan(&[400, 100, 100], &[40, 80, 30], 30).expect("a plan");
        assert_eq!(plan[0].to.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn equal_counts_of_unequal_work_are_balanced_by_busy_time() {
        let (_, plan) = plan(&[100, 100], &[98, 40], 10).expect("a plan");
        assert_eq!((plan[0].from, plan[0].load, plan[0].mean), (0, 980_000.0, 690_000.0));
        assert_eq!(plan.len(), 1);
    }

    #[test]
    fn what_was_seen_before_a_move_does_not_count_after_it() {
        let mut planner = Planner::default();
        let skewed = || loads(&[400, 0], &[90, 1]);
        assert!(planner.observe(skewed()).is_empty());
        assert_eq!(planner.observe(skewed()).len(), 1);
        // One sample for the connections to move, two to see the result.
        assert!(planner.observe(skewed()).is_empty());
        assert!(planner.observe(skewed()).is_empty());
        assert_eq!(planner.observe(skewed()).len(), 1);
    }

    #[test]
    fn the_dearest_that_fit_go_first_and_nothing_is_only_exchanged() {
        let check = |load: f64, mean: f64, to: &[f64], costs: &[f64], expected: &[(usize, usize)]| {
            let shed = LoadTransfer { from: 0, load, mean, to: (1..).zip(to.iter().copied()).collect(), limit: load };
            let candidates = costs.iter().copied().zip(0..);
            assert_eq!(shed.choose(candidates).collect::<Vec<_>>(), expected, "{costs:?} over {to:?}");
        };
        check(40.0, 10.0, &[0.0, 0.0, 0.0], &[10.0; 4], &[(0, 1), (1, 2), (2, 3)]);
        check(100.0, 50.0, &[0.0], &[60.0, 30.0, 10.0], &[(0, 1)]);
        check(100.0, 50.0, &[0.0], &[90.0, 10.0], &[(0, 1)]);
        check(100.0, 50.0, &[0.0], &[100.0], &[]);
        // Two connections against one: a move would only swap the counts.
        check(20.0, 15.0, &[10.0], &[10.0, 10.0], &[]);
        check(30.0, 20.0, &[10.0], &[10.0, 10.0, 10.0], &[(0, 1)]);
    }
}
