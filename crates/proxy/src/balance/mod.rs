//! Chooses the worker for each connection, and decides when connections move between workers.
//!
//! The worker is chosen when the connection is accepted, and the connection counts towards it until it is closed; which
//! logical listener serves it plays no part. Choosing and counting are one step under a lock taken twice per connection
//! and never per request, so each choice is exact: no worker has fewer connections than the chosen one.
//!
//! Connections differ in cost, and their cost changes. So the load of all workers is sampled ten times a second, and an
//! overloaded worker gives connections away while they are idle ([`Planner`]). It gets the same number of cold ones back
//! ([`Leveller`]), so that new connections do not all go to the worker that has just given some away.
//!
//! Where most connections last less than a second ([`Churn`]), counts are misleading. A worker with one connection less than
//! the others would get all new connections as long as they are open one at a time; it would get them forever where
//! connections cannot be levelled. In that case workers are chosen in turn (round robin), and counts only break ties.

mod churn;
mod level;
mod plan;
#[cfg(test)]
mod simulation;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::overload::Admission;

use churn::Churn;
pub use level::{Level, Leveller};
pub use plan::{Load, LoadTransfer, Planner};

/// Share of a core, in millionths, from which a worker counts as saturated.
pub const SATURATED_PPM: u32 = 850_000;

/// The load of all workers.
#[derive(Debug)]
pub struct Balance {
    counts: Mutex<WorkerCounts>,
    /// Share of a core each worker used in the last sample, in millionths.
    busy_ppm: Vec<AtomicU32>,
    /// Number of samples so far; connections measure their age in samples.
    epoch: AtomicU32,
}

/// The connection counts of all workers.
#[derive(Debug, Default)]
struct WorkerCounts {
    workers: Vec<WorkerCount>,
    churn: Churn,
}

/// The connection count of one worker.
#[derive(Debug, Clone, Copy, Default)]
struct WorkerCount {
    active: u32,
    /// How often the worker was chosen since the last sample, which its published load does not reflect yet. While
    /// connections churn, it accumulates over samples, less the minimum of all workers.
    turns: u32,
}

impl WorkerCounts {
    /// The worker that gets the next connection; `busy_ppm` breaks ties.
    fn next(&self, busy_ppm: impl Fn(usize) -> u32) -> usize {
        let by_turns = self.churn.is_on();
        let order = |(worker, count): &(usize, &WorkerCount)| {
            if by_turns {
                (count.turns, count.active, busy_ppm(*worker))
            } else {
                (count.active, count.turns, busy_ppm(*worker))
            }
        };
        self.workers.iter().enumerate().min_by_key(order).map_or(0, |(worker, _)| worker)
    }

    fn observe(&mut self) {
        self.churn.observe();
        let fewest = self.workers.iter().map(|count| count.turns).min().unwrap_or(0);
        let by_turns = self.churn.is_on();
        self.workers.iter_mut().for_each(|count| count.turns = if by_turns { count.turns - fewest } else { 0 });
    }
}

/// A connection's slot on a worker; dropping it frees the slot.
#[derive(Debug)]
pub struct WorkerSlot {
    balance: Arc<Balance>,
    worker: usize,
    /// The sample in which the connection was accepted.
    since: u32,
    /// Its slot under the connection limits.
    admission: Admission,
}

impl Balance {
    /// A balance of `workers` workers without connections.
    pub fn new(workers: usize) -> Arc<Self> {
        let workers = workers.max(1);
        Arc::new(Self {
            counts: Mutex::new(WorkerCounts {
                workers: vec![WorkerCount::default(); workers],
                ..WorkerCounts::default()
            }),
            busy_ppm: (0..workers).map(|_| AtomicU32::new(0)).collect(),
            epoch: AtomicU32::new(0),
        })
    }

    /// Takes a slot on the worker with the fewest connections; ties go to the worker chosen least often since the last
    /// sample, then to the one that was least busy in it. While connections churn, the worker chosen least often comes
    /// first.
    pub fn choose(self: &Arc<Self>) -> WorkerSlot {
        let mut counts = self.lock();
        let worker = counts.next(|worker| self.busy_ppm(worker));
        counts.workers[worker].active += 1;
        counts.workers[worker].turns += 1;
        WorkerSlot { balance: Arc::clone(self), worker, since: self.epoch(), admission: Admission::default() }
    }

    fn lock(&self) -> MutexGuard<'_, WorkerCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the worker for a new stream of a connection that stays on worker `here` because it is never idle. The
    /// choice is random between `here` and the workers with clearly less load, weighted by how much less they have.
    /// Loads are compared with each other and not with a full core: on a machine short of cores no worker gets much of
    /// one.
    pub fn stream_worker(&self, here: usize, random: u64) -> usize {
        let fair = self.busy_ppm(here) / 10 * 8;
        let gap = |worker: usize| u64::from(fair.saturating_sub(self.busy_ppm(worker)));
        let workers = 0..self.busy_ppm.len();
        let largest = workers.clone().map(gap).max().unwrap_or(0);
        let weight = |worker: usize| if worker == here { largest } else { gap(worker) };
        let Some(mut point) = random.checked_rem(workers.clone().map(weight).sum()) else { return here };
        for worker in workers {
            match point.checked_sub(weight(worker)) {
                None => return worker,
                Some(rest) => point = rest,
            }
        }
        here
    }

    /// Connection count of each worker.
    pub fn active(&self) -> Vec<u32> {
        self.lock().workers.iter().map(|count| count.active).collect()
    }

    /// Whether most connections are short-lived.
    pub fn come_and_go(&self) -> bool {
        self.lock().churn.is_on()
    }

    /// Publishes the share of a core a worker used in the last sample, in millionths.
    pub fn publish_busy(&self, worker: usize, ppm: u32) {
        self.busy_ppm[worker].store(ppm, Ordering::Relaxed);
    }

    /// Share of a core a worker used in the last sample, in millionths.
    pub fn busy_ppm(&self, worker: usize) -> u32 {
        self.busy_ppm.get(worker).map_or(0, |ppm| ppm.load(Ordering::Relaxed))
    }

    /// Number of the current sample.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Starts the next sample.
    pub fn next_epoch(&self) {
        self.lock().observe();
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }
}

impl WorkerSlot {
    /// The worker.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Holds the connection's slot under the connection limits for as long as the slot lasts, whichever worker it is
    /// on.
    pub(crate) fn admit(&mut self, admission: Admission) {
        self.admission = admission;
    }

    /// Moves the slot to another worker in one step, so the total over all workers stays right. False if there is no
    /// such worker.
    pub fn move_to(&mut self, worker: usize) -> bool {
        self.move_if(worker, |_, _| true)
    }

    /// Moves the slot if that brings the counts of the two workers closer together; true if it moved.
    pub fn level_with(&mut self, worker: usize) -> bool {
        self.move_if(worker, |here, there| here > there + 1)
    }

    fn move_if(&mut self, worker: usize, may: impl FnOnce(u32, u32) -> bool) -> bool {
        let mut counts = self.balance.lock();
        let here = counts.workers[self.worker].active;
        let moves = counts.workers.get_mut(worker).filter(|there| may(here, there.active));
        let Some(there) = moves else { return false };
        there.active += 1;
        counts.workers[self.worker].active -= 1;
        self.worker = worker;
        true
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        let mut counts = self.balance.lock();
        counts.workers[self.worker].active -= 1;
        counts.churn.closed(self.balance.epoch().wrapping_sub(self.since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(balance: &Balance) -> u32 {
        let active = balance.active();
        active.iter().max().unwrap_or(&0) - active.iter().min().unwrap_or(&0)
    }

    #[test]
    fn workers_differ_by_at_most_one_whatever_closes() {
        for workers in [2, 4, 8, 16] {
            let balance = Balance::new(workers);
            let mut seats: Vec<_> = (0..1024).map(|_| balance.choose()).collect();
            assert!(spread(&balance) <= 1);
            // Close everything on one worker, then open as many: they go to the worker that has room.
            seats.retain(|slot| slot.worker() != 0);
            let missing = 1024 - seats.len();
            seats.extend((0..missing).map(|_| balance.choose()));
            assert!(spread(&balance) <= 1, "{:?}", balance.active());
            drop(seats);
            assert_eq!(balance.active(), vec![0; workers]);
        }
    }

    #[test]
    fn choosing_from_many_threads_stays_exact() {
        let balance = Balance::new(4);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let balance = Arc::clone(&balance);
                std::thread::spawn(move || (0..128).map(|_| balance.choose()).collect::<Vec<_>>())
            })
            .collect();
        let seats: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        assert_eq!(balance.active(), vec![256; 4]);
        drop(seats);
    }

    #[test]
    fn busy_time_breaks_ties() {
        let balance = Balance::new(2);
        balance.publish_busy(0, 1000);
        assert_eq!(balance.choose().worker(), 1);
    }

    /// The workers chosen for connections that are open one at a time.
    fn brief<const COUNT: usize>(balance: &Arc<Balance>) -> [usize; COUNT] {
        [(); COUNT].map(|()| balance.choose().worker())
    }

    #[test]
    fn equals_have_a_connection_each_whatever_was_published() {
        let balance = Balance::new(4);
        (0..4).zip([4000, 3000, 1000, 2000]).for_each(|(worker, ppm)| balance.publish_busy(worker, ppm));
        assert_eq!(brief(&balance), [2, 3, 1, 0, 2, 3, 1, 0, 2]);
        balance.next_epoch();
        assert_eq!(brief(&balance), [2, 3, 1, 0]);
    }

    #[test]
    fn where_connections_come_and_go_each_has_its_turn() {
        let balance = Balance::new(3);
        // The last worker has one connection less than the others, and is the least busy.
        let stay: Vec<_> = (0..5).map(|_| balance.choose()).collect();
        (0..3).for_each(|worker| balance.publish_busy(worker, 3000 - worker as u32));
        for _ in 0..3 {
            assert_eq!(brief(&balance), [2; 4]);
            balance.next_epoch();
        }
        // Workers chosen less often come first, and counts break ties.
        let mut chosen = [0; 3];
        for _ in 0..30 {
            brief::<4>(&balance).into_iter().for_each(|worker| chosen[worker] += 1);
            balance.next_epoch();
        }
        assert!(chosen.iter().all(|count| (36..=44).contains(count)), "{chosen:?}");
        // Once connections no longer churn, counts decide again.
        (0..10).for_each(|_| balance.next_epoch());
        assert_eq!(brief(&balance), [2; 4]);
        drop(stay);
        assert_eq!(balance.active(), [0; 3]);
    }

    #[test]
    fn a_seat_levels_with_a_worker_that_has_fewer_by_more_than_one() {
        let balance = Balance::new(2);
        let mut seats: Vec<_> = (0..5).map(|_| balance.choose()).collect();
        seats.iter_mut().for_each(|slot| assert!(slot.move_to(0)));
        let levelled = seats.iter_mut().map(|slot| slot.level_with(1)).collect::<Vec<_>>();
        assert_eq!((levelled, balance.active()), (vec![true, true, false, false, false], vec![3, 2]));
        assert!(!seats[4].level_with(7), "there is no such worker");
        drop(seats);
        assert_eq!(balance.active(), [0, 0]);
    }

    #[test]
    fn a_seat_moves_with_its_connection() {
        let balance = Balance::new(2);
        let mut slot = balance.choose();
        assert!(slot.move_to(1));
        assert_eq!((slot.worker(), balance.active()), (1, vec![0, 1]));
        assert!(!slot.move_to(7));
        assert_eq!((slot.worker(), balance.active()), (1, vec![0, 1]), "there is no such worker");
        drop(slot);
        assert_eq!(balance.active(), [0, 0]);
    }

    #[test]
    fn streams_go_where_there_is_clearly_less_load() {
        let check = |busy: &[u32], expected: &[u32]| {
            let balance = Balance::new(busy.len());
            busy.iter().enumerate().for_each(|(worker, percent)| balance.publish_busy(worker, percent * 10_000));
            let mut counts = vec![0; busy.len()];
            let mut random = 1u64;
            for _ in 0..10_000 {
                // Knuth's MMIX generator: the same numbers in every run.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                counts[balance.stream_worker(0, random >> 16)] += 1;
            }
            for (worker, (count, expected)) in counts.iter().zip(expected).enumerate() {
                assert!(u32::abs_diff(count / 100, *expected) <= 2, "{busy:?}: worker {worker} got {count} of 10000");
            }
        };
        check(&[100, 0], &[50, 50]);
        check(&[100, 0, 0, 0], &[25, 25, 25, 25]);
        check(&[100, 40, 60], &[40, 40, 20]);
        // A machine short of cores.
        check(&[20, 0, 0], &[33, 33, 33]);
        // Equal load, or less load here: moving streams gains nothing.
        check(&[100, 100], &[100, 0]);
        check(&[90, 80], &[100, 0]);
        check(&[10, 90], &[100, 0]);
        check(&[0, 0], &[100, 0]);
    }
}
