//! Samples the load of all workers ten times a second, on the control thread: workers are not woken for it.

use std::os::unix::thread::JoinHandleExt as _;
use std::time::Duration;

use evenkeel_stats::Writer;
use nix::time::ClockId;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Handle, Message, WorkerPool};
use crate::balance::{Leveller, Load, Planner};
use crate::stats::worker;

/// Time between two samples (samples of the load).
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Looks between two updates of `busy_permille`, which covers the time between them.
const SAMPLES_PER_PUBLICATION: u32 = 10;

/// The values seen of one worker at the last sample.
struct Seen {
    stats: Writer<worker::Stats>,
    work: u64,
    busy: Duration,
    published: (Instant, Duration),
}

impl WorkerPool {
    /// Samples the load for as long as it is polled, and tells workers with too much load, or with more connections
    /// than others, to give some away.
    pub async fn keep_balanced(&self) {
        let mut ticks = tokio::time::interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = ticks.tick().await;
        let mut seen: Vec<Seen> = self.workers.iter().map(|worker| Seen::new(worker, last)).collect();
        let (mut planner, mut leveller) = (Planner::default(), Leveller::default());
        for sample in 1u32.. {
            let now = ticks.tick().await;
            let elapsed = now.duration_since(last);
            last = now;
            let loads: Vec<_> =
                self.workers.iter().zip(&mut seen).map(|(worker, seen)| seen.observe(worker, elapsed)).collect();
            let counts = self.balance.active();
            self.publish(&loads, &counts, &seen);
            if sample.is_multiple_of(SAMPLES_PER_PUBLICATION) {
                seen.iter_mut().for_each(|seen| seen.publish_share(now));
            }
            self.balance.next_epoch();
            let levels = leveller.observe(&counts, self.balance.come_and_go(), &loads);
            let sheds = planner.observe(loads).into_iter().map(|shed| (shed.from, Message::LoadTransfer(shed)));
            for (from, message) in sheds.chain(levels.into_iter().map(|level| (level.from, Message::Level(level)))) {
                // A worker whose inbox is full is busy with other messages; a later sample will repeat the order.
                let _ = self.workers[from].inbox.try_send(message);
            }
        }
    }

    fn publish(&self, loads: &[Load], counts: &[u32], seen: &[Seen]) {
        for (index, (load, seen)) in loads.iter().zip(seen).enumerate() {
            self.balance.publish_busy(index, load.busy_ppm);
            seen.stats.set(worker::Gauge::downstream_cx_active, i64::from(counts.get(index).copied().unwrap_or(0)));
        }
    }
}

impl Seen {
    fn new(worker: &Handle, now: Instant) -> Self {
        Self { stats: worker.stats.writer(), work: 0, busy: Duration::ZERO, published: (now, Duration::ZERO) }
    }

    fn observe(&mut self, worker: &Handle, elapsed: Duration) -> Load {
        let (work, busy) = (worker.stats.counter(worker::Counter::work_total), worker.cpu_time());
        let load = Load {
            work: work.saturating_sub(self.work),
            busy_ppm: share(busy.saturating_sub(self.busy), elapsed, 1_000_000),
        };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.stats.add(worker::Counter::busy_us_total, micros(busy).saturating_sub(micros(self.busy)));
        (self.work, self.busy) = (work, busy);
        load
    }

    fn publish_share(&mut self, now: Instant) {
        let (then, busy) = self.published;
        let permille = share(self.busy.saturating_sub(busy), now.duration_since(then), 1000);
        self.stats.set(worker::Gauge::busy_permille, i64::from(permille));
        self.published = (now, self.busy);
    }
}

fn share(part: Duration, whole: Duration, of: u128) -> u32 {
    u32::try_from((part.as_nanos() * of / whole.as_nanos().max(1)).min(of)).unwrap_or(u32::MAX)
}

impl Handle {
    /// CPU time the worker's thread has used; zero once it has ended. Unlike the time between two waits, it leaves out
    /// the time in which other threads had the core.
    pub(super) fn cpu_time(&self) -> Duration {
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(thread) = thread.as_ref() else { return Duration::ZERO };
        let mut clock = 0;
        // SAFETY: the thread was neither joined nor detached, since its handle is here, so its id is valid even after it
        // has ended; `clock` is writable.
        if unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut clock) } != 0 {
            return Duration::ZERO;
        }
        ClockId::from_raw(clock).now().map_or(Duration::ZERO, Duration::from)
    }
}
