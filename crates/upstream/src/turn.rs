//! Worker time, read from the clock at most once per turn.
//!
//! A turn is one poll of a task that [`spawn`] has started: from the runtime's call until the task waits or ends. All
//! calls of [`now`] within one turn return the same time. Timers fire between polls, so a timer that has fired always
//! lies before the reading of its task's turn. The end of the poll discards the reading, so no caller has to refresh
//! it. Outside a turn (in a task that was started otherwise, or in the destructor of an aborted one), each call reads
//! the clock.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::Instant;

thread_local! {
    /// `None` outside a turn; `Some(None)` in a turn that has not read the clock yet.
    static READING: Cell<Option<Option<Instant>>> = const { Cell::new(None) };
}

/// The time of this turn.
#[inline]
pub fn now() -> Instant {
    match READING.get() {
        Some(Some(now)) => now,
        turn => read(turn.is_some()),
    }
}

#[cold]
fn read(in_turn: bool) -> Instant {
    #[cfg(test)]
    tests::READS.set(tests::READS.get() + 1);
    let now = Instant::now();
    if in_turn {
        READING.set(Some(Some(now)));
    }
    now
}

/// Starts a task on this worker. Each of its polls is a turn.
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    spawn_local(Turns { task })
}

pin_project! {
    struct Turns<F> {
        #[pin]
        task: F,
    }
}

impl<F: Future> Future for Turns<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _turn = Turn::begin();
        self.project().task.poll(cx)
    }
}

/// A turn in progress. Its drop discards the reading even if the task panics.
struct Turn;

impl Turn {
    fn begin() -> Self {
        READING.set(Some(None));
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        READING.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::yield_now;

    use super::*;

    thread_local! {
        pub(super) static READS: Cell<u32> = const { Cell::new(0) };
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().enable_time().build_local(LocalOptions::default());
        runtime.expect("a runtime").block_on(test);
    }

    /// Lets real time pass within a turn.
    fn work() {
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(2) {}
    }

    #[test]
    fn time_stands_still_within_a_turn_and_goes_on_after_it() {
        run(async {
            let task = spawn(async {
                let first = now();
                work();
                assert_eq!(now(), first);
                assert_eq!(READS.take(), 1);
                yield_now().await;
                assert!(now() >= first + Duration::from_millis(2));
                assert_eq!(READS.take(), 1);
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(now() >= first + Duration::from_millis(3));
            });
            task.await.expect("it does not panic");
        });
    }

    #[test]
    fn a_timer_that_has_fired_lies_before_the_reading() {
        run(async {
            let task = spawn(async {
                for millis in 0..20 {
                    let until = now() + Duration::from_micros(millis * 300);
                    tokio::time::sleep_until(until).await;
                    assert!(until <= now(), "{millis}");
                }
            });
            task.await.expect("it does not panic");
        });
    }

    #[test]
    fn turns_of_two_tasks_do_not_share_a_reading() {
        run(async {
            let first = spawn(async { now() });
            let second = spawn(async {
                work();
                now()
            });
            let (first, second) = (first.await.expect("a time"), second.await.expect("a time"));
            assert!(second >= first + Duration::from_millis(2));
        });
    }

    #[test]
    fn outside_a_turn_each_question_reads_the_clock() {
        struct Asks(Instant);
        impl Drop for Asks {
            fn drop(&mut self) {
                assert!(now() >= self.0 + Duration::from_millis(2));
            }
        }
        let first = now();
        work();
        assert!(now() >= first + Duration::from_millis(2));
        run(async {
            let task = spawn(async {
                let _asks = Asks(now());
                std::future::pending::<()>().await;
            });
            yield_now().await;
            work();
            task.abort();
            assert!(task.await.expect_err("it was aborted").is_cancelled());
            let task = spawn(async {
                now();
                panic!("in a turn");
            });
            task.await.expect_err("it panics");
            let before = now();
            work();
            assert!(now() > before);
        });
    }
}
