//! Connection limits counted over all workers, and the queue of requests that wait for room.
//!
//! A request that finds no room queues once, whichever worker it is on. The room that a closed connection leaves goes
//! directly to the front of the queue: no other request can take it, and no other wakes. The queue's lock is taken only
//! by requests that wait and by those that give room back while some wait.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// A request may wait this long behind requests of the worker that holds the connections; then its worker gets room.
pub(super) const LONGEST_UNFAIR_WAIT: Duration = Duration::from_millis(10);

/// Counts a limited number of connections.
#[derive(Debug)]
pub struct Slots {
    limit: AtomicU32,
    taken: AtomicU32,
    /// Length of the queue.
    waiting: AtomicU32,
    tickets: AtomicU64,
    queue: Mutex<Queue>,
    workers: Mutex<Vec<Weak<Share>>>,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// When room was last moved from one worker to another that had waited too long.
    moved: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    worker: usize,
    since: Instant,
    grant: oneshot::Sender<Slot>,
}

/// One worker's state that other workers need to see.
#[derive(Debug, Default)]
pub struct Share {
    /// Its idle connections.
    idle: AtomicU32,
    /// Notified when another worker waits for room: an idle connection should be closed.
    wanted: Notify,
}

/// Room for one connection, given back on drop. Without a limit nothing is counted.
#[derive(Debug)]
pub struct Slot(Option<Arc<Slots>>);

/// A position in the queue; resolves to a [`Slot`]. Dropping it leaves the queue.
#[derive(Debug)]
pub struct Waiting {
    slots: Arc<Slots>,
    ticket: u64,
    granted: oneshot::Receiver<Slot>,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            limit: AtomicU32::new(u32::MAX),
            taken: AtomicU32::default(),
            waiting: AtomicU32::default(),
            tickets: AtomicU64::default(),
            queue: Mutex::default(),
            workers: Mutex::default(),
        }
    }
}

impl Slots {
    /// Sets the limit; additional room goes to waiting requests.
    pub fn set_limit(self: &Arc<Self>, limit: u32) {
        if self.limit.swap(limit, Ordering::SeqCst) != limit {
            self.dispatch();
        }
    }

    /// Connections currently counted.
    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Registers a worker.
    pub fn share(&self) -> Arc<Share> {
        let share = Arc::<Share>::default();
        let mut workers = lock(&self.workers);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&share));
        share
    }

    /// Takes room, if any. `counted`: count the connection even if there is no limit.
    pub fn try_take(self: &Arc<Self>, counted: bool) -> Option<Slot> {
        let limit = self.limit.load(Ordering::SeqCst);
        if limit == u32::MAX && !counted {
            return Some(Slot(None));
        }
        let below = |taken: u32| (taken < limit).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, below);
        taken.is_ok().then(|| Slot(Some(Arc::clone(self))))
    }

    /// Queues for room on behalf of `worker`. Asks another worker to close an idle connection, if one has any.
    pub fn wait(self: &Arc<Self>, worker: &Arc<Share>, now: Instant) -> Waiting {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let (grant, granted) = oneshot::channel();
        {
            let mut queue = lock(&self.queue);
            queue.entries.push_back(Entry { ticket, worker: Arc::as_ptr(worker).addr(), since: now, grant });
            self.note_length(&queue);
        }
        let waiting = Waiting { slots: Arc::clone(self), ticket, granted };
        // Room may have been given back just before the queue's length became visible.
        self.dispatch();
        // Counterpart of `Share::set_idle`: either this side sees its idle connection, or it sees that a request waits.
        let workers = lock(&self.workers);
        let mut others = workers.iter().filter_map(Weak::upgrade).filter(|other| !Arc::ptr_eq(other, worker));
        if let Some(other) = others.find(|other| other.idle.load(Ordering::SeqCst) > 0) {
            other.ask();
        }
        waiting
    }

    /// Whether any request waits.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Whether a connection that became idle on `worker` has to be closed in favour of another worker: the worker's own
    /// requests come first, but not forever.
    pub fn must_move(&self, worker: &Arc<Share>, others_wait_here: bool, now: Instant) -> bool {
        let mut queue = lock(&self.queue);
        let Some(front) = queue.entries.front() else { return false };
        if front.worker == Arc::as_ptr(worker).addr() {
            return false;
        }
        if !others_wait_here {
            return true;
        }
        let long = |since: Instant| now.duration_since(since) >= LONGEST_UNFAIR_WAIT;
        let due = long(front.since) && queue.moved.is_none_or(long);
        if due {
            queue.moved = Some(now);
        }
        due
    }

    /// Gives up one connection: its room goes to the front of the queue.
    fn give_back(self: &Arc<Self>) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            self.taken.fetch_sub(1, Ordering::SeqCst);
            // A request that queued in between may have missed the room.
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.dispatch();
            }
            return;
        }
        {
            let mut queue = lock(&self.queue);
            if self.taken.load(Ordering::SeqCst) <= self.limit.load(Ordering::SeqCst) && self.grant(&mut queue) {
                return;
            }
        }
        self.taken.fetch_sub(1, Ordering::SeqCst);
        self.dispatch();
    }

    /// Hands out available room.
    fn dispatch(self: &Arc<Self>) {
        let mut queue = lock(&self.queue);
        while !queue.entries.is_empty() {
            let Some(slot) = self.try_take(true) else { return };
            slot.disarm();
            if !self.grant(&mut queue) {
                self.taken.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Passes room that is already counted to the first request that still waits.
    fn grant(self: &Arc<Self>, queue: &mut Queue) -> bool {
        while let Some(entry) = queue.entries.pop_front() {
            self.note_length(queue);
            match entry.grant.send(Slot(Some(Arc::clone(self)))) {
                Ok(()) => return true,
                // Dropping the slot here would take the lock again; the room is passed on instead.
                Err(slot) => slot.disarm(),
            }
        }
        false
    }

    fn note_length(&self, queue: &Queue) {
        self.waiting.store(u32::try_from(queue.entries.len()).unwrap_or(u32::MAX), Ordering::SeqCst);
    }
}

impl Share {
    /// Sets the number of this worker's idle connections.
    #[inline]
    pub fn set_idle(&self, idle: u32) {
        self.idle.store(idle, Ordering::SeqCst);
    }

    /// Asks this worker to close one of its idle connections.
    pub fn ask(&self) {
        self.wanted.notify_one();
    }

    /// Waits until another worker wants room.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

impl Slot {
    /// Drops the slot without giving its room back.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(slots) = self.0.take() {
            slots.give_back();
        }
    }
}

impl Future for Waiting {
    type Output = Slot;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Slot> {
        match Pin::new(&mut self.granted).poll(cx) {
            Poll::Ready(Ok(slot)) => Poll::Ready(slot),
            // The sender is dropped only after its slot was sent, or together with this.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queue = lock(&self.slots.queue);
        queue.entries.retain(|entry| entry.ticket != self.ticket);
        self.slots.note_length(&queue);
        // A slot that was granted but not taken is given back when the receiver drops, after this lock.
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::FutureExt;

    use super::*;

    fn slots(limit: u32) -> Arc<Slots> {
        let slots = Arc::<Slots>::default();
        slots.set_limit(limit);
        slots
    }

    #[test]
    fn room_goes_to_the_front_of_the_queue_and_to_nobody_else() {
        let (slots, now) = (slots(1), Instant::now());
        let (here, there) = (slots.share(), slots.share());
        let first = slots.try_take(false).expect("room");
        let mut second = slots.wait(&here, now);
        let mut third = slots.wait(&there, now);
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert!(slots.try_take(false).is_none(), "a newcomer does not get between");
        assert!((&mut third).now_or_never().is_none(), "not its turn");
        let got = (&mut second).now_or_never().expect("its turn");
        drop(got);
        assert!((&mut third).now_or_never().is_some());
        assert_eq!((slots.taken(), slots.is_awaited()), (0, false));
    }

    #[test]
    fn who_gives_up_passes_its_turn_on() {
        let (slots, now) = (slots(1), Instant::now());
        let share = slots.share();
        let first = slots.try_take(false).expect("room");
        let (granted_unseen, mut last) = (slots.wait(&share, now), slots.wait(&share, now));
        drop(first);
        drop(granted_unseen);
        assert!((&mut last).now_or_never().is_some(), "what was granted and not taken went on");
        drop(last);
        assert_eq!(slots.taken(), 0);
    }

    #[test]
    fn a_greater_limit_makes_room_and_a_smaller_one_takes_it() {
        let (slots, now) = (slots(1), Instant::now());
        let share = slots.share();
        let first = slots.try_take(false).expect("room");
        let mut second = slots.wait(&share, now);
        slots.set_limit(2);
        let second = (&mut second).now_or_never().expect("room for two");
        slots.set_limit(1);
        let mut third = slots.wait(&share, now);
        drop(first);
        assert!((&mut third).now_or_never().is_none(), "there were two, one remains");
        drop(second);
        assert!((&mut third).now_or_never().is_some());
    }

    #[test]
    fn another_workers_idle_connection_is_asked_for_once() {
        let (slots, now) = (slots(1), Instant::now());
        let (here, busy, idle) = (slots.share(), slots.share(), slots.share());
        let _taken = slots.try_take(false);
        idle.set_idle(1);
        let _waiting = slots.wait(&here, now);
        assert!(idle.wanted().now_or_never().is_some());
        assert!(busy.wanted().now_or_never().is_none() && here.wanted().now_or_never().is_none());
    }

    #[test]
    fn a_worker_keeps_its_connections_for_its_own_requests_but_not_for_ever() {
        let (slots, now) = (slots(1), Instant::now());
        let (here, there) = (slots.share(), slots.share());
        let _taken = slots.try_take(false);
        let _waiting = slots.wait(&there, now);
        assert!(slots.must_move(&here, false, now), "nobody here wants it");
        assert!(!slots.must_move(&here, true, now));
        let later = now + LONGEST_UNFAIR_WAIT;
        assert!(slots.must_move(&here, true, later));
        assert!(!slots.must_move(&here, true, later), "one at a time");
        assert!(!slots.must_move(&there, true, later), "its own");
    }

    #[test]
    fn never_more_than_the_limit_and_nobody_is_forgotten_over_threads() {
        let slots = slots(3);
        let (most, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                    let share = slots.share();
                    let one = || async {
                        let slot = match slots.try_take(false) {
                            Some(slot) => slot,
                            None => slots.wait(&share, Instant::now()).await,
                        };
                        let now_inside = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now_inside, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        served.fetch_add(1, Ordering::SeqCst);
                        drop(slot);
                    };
                    runtime.block_on(futures_util::future::join_all((0..500).map(|_| one())));
                });
            }
        });
        assert_eq!(served.into_inner(), 2000);
        assert!(most.into_inner() <= 3);
        assert_eq!(slots.taken(), 0);
    }
}
