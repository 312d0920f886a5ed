//! Which worker gets a connection.
//!
//! The worker is chosen once, when the connection is accepted, and the connection counts until it is closed; which logical
//! listener serves it plays no part. Choosing and counting are one step under a lock that is taken twice per connection and
//! never per request, so at the moment of every choice no worker has more connections than the chosen one had.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The load of all workers.
#[derive(Debug)]
pub struct Balance {
    active: Mutex<Vec<u32>>,
    /// Published by each worker, in millionths of a second since it started.
    busy_micros: Vec<AtomicU64>,
}

/// A connection's place on a worker; dropping it frees the place.
#[derive(Debug)]
pub struct Seat {
    balance: Arc<Balance>,
    worker: usize,
}

impl Balance {
    /// No connection on any of `workers` workers.
    pub fn new(workers: usize) -> Arc<Self> {
        let workers = workers.max(1);
        Arc::new(Self {
            active: Mutex::new(vec![0; workers]),
            busy_micros: (0..workers).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Takes a place on the worker with the fewest connections; among those, on the one that was busy for the shortest time.
    pub fn choose(self: &Arc<Self>) -> Seat {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |worker: usize, count: u32| (count, self.busy_micros[worker].load(Ordering::Relaxed));
        let worker =
            active.iter().enumerate().min_by_key(|(worker, count)| load(*worker, **count)).map_or(0, |(at, _)| at);
        active[worker] += 1;
        Seat { balance: Arc::clone(self), worker }
    }

    /// Connections per worker.
    pub fn active(&self) -> Vec<u32> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes how long a worker has been busy since it started.
    pub fn publish_busy(&self, worker: usize, micros: u64) {
        self.busy_micros[worker].store(micros, Ordering::Relaxed);
    }

    /// How long a worker has been busy since it started, in microseconds.
    pub fn busy_micros(&self, worker: usize) -> u64 {
        self.busy_micros[worker].load(Ordering::Relaxed)
    }
}

impl Seat {
    /// The worker.
    pub fn worker(&self) -> usize {
        self.worker
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut active = self.balance.active.lock().unwrap_or_else(PoisonError::into_inner);
        active[self.worker] = active[self.worker].saturating_sub(1);
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
            // Close everything on one worker, then open as many: they go where the room is.
            seats.retain(|seat| seat.worker() != 0);
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
}
