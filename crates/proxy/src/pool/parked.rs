//! Sends a message to an inbox that may be full: the calling thread sleeps until there is room.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};

use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::unconstrained;

/// The waiting thread, and whether it has been woken.
struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Sends a message and returns how often the thread had to poll before there was room. A message to a closed inbox is
/// dropped.
///
/// Unlike `blocking_send` it may be called within a runtime; the thread's other tasks wait.
pub(super) fn send<T>(inbox: &mpsc::Sender<T>, message: T) -> u32 {
    let message = match inbox.try_send(message) {
        Ok(()) | Err(TrySendError::Closed(_)) => return 0,
        Err(TrySendError::Full(message)) => message,
    };
    let sleeper = Arc::new(Sleeper { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&sleeper));
    // Without `unconstrained`, a task that has used up its coop budget would get `Pending` on every poll, and it cannot
    // yield here.
    let mut sent = pin!(unconstrained(inbox.send(message)));
    let mut samples = 1;
    while sent.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        while !sleeper.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
        samples += 1;
    }
    samples
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::channel;

    use evenkeel_testkit::eventually;

    use super::*;

    /// Messages that fit into the inbox.
    const ROOM: usize = 3;

    /// The kernel's id of this thread.
    fn thread_id() -> i32 {
        nix::unistd::gettid().as_raw()
    }

    /// Waits until a thread sleeps (proc_pid_stat(5)): one that spins never does.
    fn until_asleep(thread: i32) {
        eventually("the thread to sleep", || {
            let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.starts_with('S').then_some(())
        });
    }

    /// The reader takes nothing for a while: the sender polls once, and once more when a message is taken.
    #[test]
    fn who_waits_for_room_sleeps() {
        let (inbox, mut messages) = mpsc::channel(ROOM);
        assert_eq!((0..ROOM).map(|n| send(&inbox, n)).sum::<u32>(), 0, "there is room");
        let (tell, told) = channel();
        let sender = thread::spawn(move || {
            tell.send(thread_id()).expect("somebody who waits");
            send(&inbox, ROOM)
        });
        until_asleep(told.recv().expect("a thread"));
        let first = messages.blocking_recv();
        assert_eq!(sender.join().expect("a sender that ends"), 2);
        let rest = std::iter::from_fn(|| messages.blocking_recv());
        assert_eq!(
            first.into_iter().chain(rest).collect::<Vec<_>>(),
            [0, 1, 2, 3],
            "none is lost, and their order stays"
        );
    }

    #[test]
    fn who_waits_for_a_reader_that_ends_goes_on() {
        let (inbox, messages) = mpsc::channel(1);
        assert_eq!(send(&inbox, ()), 0);
        let (tell, told) = channel();
        let sender = thread::spawn(move || {
            tell.send(thread_id()).expect("somebody who waits");
            (send(&inbox, ()), send(&inbox, ()))
        });
        until_asleep(told.recv().expect("a thread"));
        drop(messages);
        assert_eq!(sender.join().expect("a sender that ends"), (2, 0));
    }

    /// The control thread sends to workers from within its tasks.
    #[tokio::test(flavor = "current_thread")]
    async fn a_task_that_has_used_up_its_turn_may_wait() {
        let (inbox, mut messages) = mpsc::channel(1);
        let this = thread_id();
        let reader = thread::spawn(move || {
            let mut taken = 0;
            until_asleep(this);
            while messages.blocking_recv().is_some() {
                taken += 1;
            }
            taken
        });
        let samples = tokio::spawn(async move {
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::consume_budget().await;
            }
            (0..10).map(|n| send(&inbox, n)).sum::<u32>()
        });
        let samples = samples.await.expect("a task that ends");
        assert!((2..=20).contains(&samples), "{samples}");
        assert_eq!(reader.join().expect("a reader that ends"), 10);
    }
}
