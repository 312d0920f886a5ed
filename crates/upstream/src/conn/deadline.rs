//! One timer per connection or request, moved lazily.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline closer than this gets its own timer. Must exceed the time between two calls of [`tick`], so that none is
/// missed.
const NEAR: Duration = Duration::from_secs(3);

/// A deadline that is moved far more often than it is reached.
///
/// Most deadlines are minutes away and are dropped long before, one per request. So on a thread that calls [`tick`] a
/// far deadline is just an entry in a list that is scanned once a second, and only a near one has a timer. On threads
/// that do not tick, every deadline has a timer. A timer is touched only when it fires too early or is set too late:
/// for a busy connection once per timeout instead of once per request.
#[derive(Default)]
pub struct Deadline {
    timer: Option<Pin<Box<Sleep>>>,
    /// Its key in this thread's list, which is why it cannot leave the thread.
    far: Option<usize>,
    here: PhantomData<Rc<()>>,
}

thread_local! {
    /// `None` on threads that do not tick.
    static FAR: RefCell<Option<Far>> = const { RefCell::new(None) };
}

/// The far deadlines of one thread.
struct Far {
    entries: Slab<Entry>,
    ticked: Instant,
}

struct Entry {
    /// The task need not check before this, less [`NEAR`].
    at: Instant,
    /// The task was woken to check, and has not checked since.
    woken: bool,
    waker: Waker,
}

/// Wakes the tasks whose deadlines have come near. Call about once a second.
pub fn tick(now: Instant) {
    FAR.with_borrow_mut(|far| {
        let far = far.get_or_insert_with(|| Far { entries: Slab::new(), ticked: now });
        far.ticked = now;
        for (_, entry) in &mut far.entries {
            if !entry.woken && entry.at <= now + NEAR {
                entry.woken = true;
                entry.waker.wake_by_ref();
            }
        }
    });
}

impl Deadline {
    /// Ready once `at` has passed; never for `None`.
    pub fn poll(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = at else { return Poll::Pending };
        if self.timer.is_none() && self.wait_from_afar(at, cx) {
            return Poll::Pending;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= at {
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
        Poll::Pending
    }

    /// Waits without a timer, if `at` is far away and this thread ticks.
    fn wait_from_afar(&mut self, at: Instant, cx: &mut Context<'_>) -> bool {
        // During thread exit nothing ticks any more.
        let waits = FAR.try_with(|far| {
            let mut far = far.borrow_mut();
            let Some(Far { entries, ticked }) = &mut *far else { return false };
            if at <= *ticked + NEAR {
                if let Some(key) = self.far.take() {
                    entries.try_remove(key);
                }
                return false;
            }
            match self.far.and_then(|key| entries.get_mut(key)) {
                Some(entry) => {
                    // One that is woken too early merely checks again.
                    if entry.woken || at < entry.at {
                        (entry.at, entry.woken) = (at, false);
                    }
                    if !entry.waker.will_wake(cx.waker()) {
                        entry.waker = cx.waker().clone();
                    }
                }
                None => self.far = Some(entries.insert(Entry { at, woken: false, waker: cx.waker().clone() })),
            }
            true
        });
        waits.unwrap_or(false)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(key) = self.far {
            let entry = FAR.try_with(|far| far.borrow_mut().as_mut().and_then(|far| far.entries.try_remove(key)));
            // Dropped after the borrow ends: a waker may hold the last reference to its task, and that task another deadline.
            drop(entry);
        }
    }
}

/// The earlier of two deadlines.
pub fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// `now + after`; `None` if that overflows.
pub fn after(now: Instant, after: Option<Duration>) -> Option<Instant> {
    after.and_then(|duration| now.checked_add(duration))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn far() -> usize {
        FAR.with_borrow(|far| far.as_ref().map_or(0, |far| far.entries.len()))
    }

    #[tokio::test]
    async fn a_far_one_is_woken_when_it_comes_near_and_has_a_timer_from_then_on() {
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(flag.clone());
        let mut cx = Context::from_waker(&waker);
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let woken = || flag.0.swap(false, Ordering::Relaxed);
        let mut deadline = Deadline::default();
        tick(began);
        assert!(deadline.poll(Some(after(100)), &mut cx).is_pending());
        assert!(deadline.timer.is_none() && far() == 1);
        tick(after(96));
        assert!(!woken());
        tick(after(97));
        assert!(woken());
        tick(after(98));
        assert!(!woken(), "once is enough");
        // Moved while it waited.
        assert!(deadline.poll(Some(after(200)), &mut cx).is_pending());
        tick(after(98));
        assert!(!woken() && deadline.timer.is_none() && far() == 1);
        tick(after(197));
        assert!(woken());
        assert!(deadline.poll(Some(after(200)), &mut cx).is_pending());
        assert!(deadline.timer.is_some() && far() == 0);
        FAR.set(None);
    }

    #[tokio::test]
    async fn passes_at_once_when_it_is_moved_into_the_past() {
        let began = Instant::now();
        for ticks in [false, true] {
            FAR.set(None);
            if ticks {
                tick(began);
            }
            let mut deadline = Deadline::default();
            let distant = poll_fn(|cx| Poll::Ready(deadline.poll(Some(began + Duration::from_secs(600)), cx))).await;
            assert!(distant.is_pending());
            assert_eq!((deadline.timer.is_none(), far()), (ticks, usize::from(ticks)));
            poll_fn(|cx| deadline.poll(Some(began), cx)).await;
            drop(deadline);
            assert_eq!(far(), 0);
        }
        FAR.set(None);
    }

    #[tokio::test]
    async fn one_that_is_given_up_leaves_nothing() {
        tick(Instant::now());
        let mut deadline = Deadline::default();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(deadline.poll(Some(Instant::now() + Duration::from_secs(60)), &mut cx).is_pending());
        assert_eq!(far(), 1);
        drop(deadline);
        assert_eq!(far(), 0);
        FAR.set(None);
    }
}
