//! Circuit breakers: limits that hold exactly, across all workers.

mod recent;
mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_runtime_config::cluster::Thresholds;
use evenkeel_stats::Writer;

use self::recent::Recent;
use crate::turn;

pub use slots::{Share, Slot, Slots};

evenkeel_stats::layout! {
    /// `cluster.NAME.circuit_breakers.PRIORITY.`
    pub mod breaker_stats {
        counters {}
        gauges { cx_open, cx_pool_open, rq_open, rq_pending_open, rq_retry_open, remaining_cx, remaining_cx_pools,
            remaining_pending, remaining_retries, remaining_rq }
        histograms {}
        statuses None
    }
}

/// One cluster's counts over all workers, for one routing priority.
#[derive(Debug, Default)]
pub struct Counts {
    pub(super) connections: Arc<Slots>,
    pools: AtomicU32,
    pending: AtomicU32,
    requests: AtomicU32,
    retries: AtomicU32,
    /// The latest requests, if the retry budget is a share of these.
    recent: Recent,
}

/// A limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// `max_connections`.
    Connections,
    /// `max_connection_pools`.
    Pools,
    /// `max_pending_requests`.
    Pending,
    /// `max_requests`.
    Requests,
    /// `max_retries`, or the retry budget.
    Retries,
}

/// Counts one unit of a resource until dropped. Without a limit nothing is counted.
#[derive(Debug)]
pub struct Permit(Option<(Arc<Counts>, Overflow)>);

impl Counts {
    fn of(&self, resource: Overflow) -> &AtomicU32 {
        match resource {
            Overflow::Connections | Overflow::Pools => &self.pools,
            Overflow::Pending => &self.pending,
            Overflow::Requests => &self.requests,
            Overflow::Retries => &self.retries,
        }
    }

    /// Counts one up; fails at the threshold. Connections use [`Slots`] instead.
    pub fn try_acquire(self: &Arc<Self>, resource: Overflow, thresholds: &Thresholds) -> Result<Permit, Overflow> {
        let limit = match resource {
            Overflow::Connections => u32::MAX,
            Overflow::Pools => thresholds.max_connection_pools,
            Overflow::Pending => thresholds.max_pending_requests,
            Overflow::Requests => thresholds.max_requests,
            Overflow::Retries => self.max_retries(thresholds),
        };
        // The retry budget is a share of these counts.
        let counted = thresholds.track_remaining || thresholds.retry_budget.is_some();
        if resource == Overflow::Requests
            && let Some(interval) = thresholds.retry_budget.and_then(|budget| budget.interval)
        {
            self.recent.count(turn::now().into_std(), interval);
        }
        // Istio sets the maximum number to mean "no limit": then workers need not share a cache line per request.
        if limit == u32::MAX && !counted {
            return Ok(Permit(None));
        }
        let counter = self.of(resource);
        let below_limit = |count: u32| (count < limit).then_some(count + 1);
        match counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_limit) {
            Ok(_) => Ok(Permit(Some((self.clone(), resource)))),
            Err(_) => Err(resource),
        }
    }

    /// The number of concurrent retries currently allowed.
    fn max_retries(&self, thresholds: &Thresholds) -> u32 {
        let Some(budget) = &thresholds.retry_budget else { return thresholds.max_retries };
        let load = |count: &AtomicU32| f64::from(count.load(Ordering::Relaxed));
        let requests = match budget.interval {
            Some(interval) => f64::from(self.recent.within(turn::now().into_std(), interval)),
            None => load(&self.requests) + load(&self.pending),
        };
        let share = requests * budget.percent / 100.0;
        // The cast saturates; the share is never negative.
        (share as u32).max(budget.min_concurrency)
    }

    /// Sets the gauges.
    pub fn publish(&self, thresholds: &Thresholds, stats: &Writer<breaker_stats::Stats>) {
        use breaker_stats::Gauge;
        let retries = self.max_retries(thresholds);
        let now = |count: &AtomicU32| count.load(Ordering::Relaxed);
        for (count, limit, open, remaining) in [
            (self.connections.taken(), thresholds.max_connections, Gauge::cx_open, Gauge::remaining_cx),
            (now(&self.pools), thresholds.max_connection_pools, Gauge::cx_pool_open, Gauge::remaining_cx_pools),
            (now(&self.pending), thresholds.max_pending_requests, Gauge::rq_pending_open, Gauge::remaining_pending),
            (now(&self.requests), thresholds.max_requests, Gauge::rq_open, Gauge::remaining_rq),
            (now(&self.retries), retries, Gauge::rq_retry_open, Gauge::remaining_retries),
        ] {
            stats.set(open, i64::from(count >= limit));
            if thresholds.track_remaining {
                stats.set(remaining, i64::from(limit.saturating_sub(count)));
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((counts, resource)) = &self.0 {
            counts.of(*resource).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_runtime_config::cluster::RetryBudget;
    use evenkeel_stats::Scope;

    use super::*;

    #[test]
    fn limits_hold_exactly_across_threads() {
        let keep = Arc::<Counts>::default();
        let thresholds = Thresholds { max_requests: 37, max_retries: 0, ..Thresholds::default() };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (counts, thresholds) = (keep.clone(), thresholds.clone());
                std::thread::spawn(move || {
                    let all = (0..100).map(|_| counts.try_acquire(Overflow::Requests, &thresholds));
                    all.flatten().collect::<Vec<_>>()
                })
            })
            .collect();
        let permits: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        assert_eq!(permits.len(), 37);
        assert_eq!(keep.try_acquire(Overflow::Requests, &thresholds).err(), Some(Overflow::Requests));
        drop(permits);
        assert!(keep.try_acquire(Overflow::Requests, &thresholds).is_ok());
        assert!(keep.try_acquire(Overflow::Retries, &thresholds).is_err());
    }

    #[test]
    fn a_retry_budget_is_a_share_of_the_requests() {
        let counts = Arc::<Counts>::default();
        let budget = RetryBudget { percent: 25.0, min_concurrency: 2, interval: None };
        let thresholds =
            Thresholds { retry_budget: Some(budget), max_requests: u32::MAX, max_retries: 0, ..Thresholds::default() };
        let mut requests = Vec::new();
        for (more_requests, allowed) in [(0, 2), (8, 2), (4, 3), (8, 5)] {
            requests.extend((0..more_requests).map(|_| counts.try_acquire(Overflow::Requests, &thresholds)));
            let retries: Vec<_> =
                (0..10).map_while(|_| counts.try_acquire(Overflow::Retries, &thresholds).ok()).collect();
            assert_eq!(retries.len(), allowed, "{} requests", requests.len());
        }
    }

    #[test]
    fn with_an_interval_requests_count_after_they_have_ended() {
        let counts = Arc::<Counts>::default();
        let budget = RetryBudget { percent: 50.0, min_concurrency: 1, interval: Some(Duration::from_secs(600)) };
        let thresholds = Thresholds { retry_budget: Some(budget), max_requests: 5, ..Thresholds::default() };
        for _ in 0..8 {
            drop(counts.try_acquire(Overflow::Requests, &thresholds).expect("a request that ends at once"));
        }
        let retries: Vec<_> = (0..10).map_while(|_| counts.try_acquire(Overflow::Retries, &thresholds).ok()).collect();
        assert_eq!(retries.len(), 4);
    }

    #[test]
    fn gauges_show_what_is_open_and_what_is_left() {
        use breaker_stats::Gauge;
        let counts = Arc::<Counts>::default();
        let scope = Scope::<breaker_stats::Stats>::detached();
        let writer = scope.writer();
        let thresholds =
            Thresholds { max_requests: 2, max_retries: u32::MAX, track_remaining: true, ..Thresholds::default() };
        let one = counts.try_acquire(Overflow::Requests, &thresholds);
        let _retry = counts.try_acquire(Overflow::Retries, &thresholds);
        counts.publish(&thresholds, &writer);
        assert_eq!((scope.gauge(Gauge::rq_open), scope.gauge(Gauge::remaining_rq)), (0, 1));
        assert_eq!(scope.gauge(Gauge::remaining_retries), i64::from(u32::MAX) - 1);
        let two = counts.try_acquire(Overflow::Requests, &thresholds);
        counts.publish(&thresholds, &writer);
        assert_eq!((scope.gauge(Gauge::rq_open), scope.gauge(Gauge::remaining_rq)), (1, 0));
        drop((one, two));
        counts.publish(&thresholds, &writer);
        assert_eq!(scope.gauge(Gauge::rq_open), 0);
    }
}
