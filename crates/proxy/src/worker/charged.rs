//! A connection's tasks under a listener's limit of memory: what their buffers take and give back is counted after each turn,
//! and where little is left those that hold much read on slowly.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_upstream::conn::held;
use evenkeel_upstream::turn;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use super::registration::Registration;
use crate::overload::MemoryLimit;

/// Bytes a connection may hold and read on whatever the others hold: what most requests need.
const LIGHT_BYTES: i64 = 64 * 1024;
/// Between two reads of a connection that is held back. It is never held up for good: what it waits to hold as a
/// whole might be what keeps memory scarce.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts a task of the connection; its buffers count where the connection's listener limits them.
pub(crate) fn spawn(registration: &Rc<Registration>, task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    match registration.memory_limit() {
        None => turn::spawn(task),
        Some(limit) => {
            let registration = Rc::clone(registration);
            turn::spawn(Charged { task: Some(Box::pin(task)), registration, limit, pause: None })
        }
    }
}

struct Charged<F> {
    /// `None` once it is being dropped.
    task: Option<Pin<Box<F>>>,
    registration: Rc<Registration>,
    limit: Arc<MemoryLimit>,
    /// It wanted to read, and may when this is over.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<F> Charged<F> {
    /// Runs the task, or drops it, and counts the difference.
    fn count<T>(&mut self, run: impl FnOnce(&mut Option<Pin<Box<F>>>) -> T) -> T {
        let before = held::now();
        let result = run(&mut self.task);
        let bytes = held::now() - before;
        if bytes != 0 {
            self.registration.hold(bytes);
            let over = self.limit.add(bytes);
            if over > 0 && bytes > 0 {
                self.registration.relieve(&self.limit, over);
            }
        }
        result
    }

    /// Whether it is held back, and may all the same read once in this turn.
    fn held_back(&mut self, cx: &mut Context<'_>) -> Option<bool> {
        let heavy = self.limit.is_scarce() && self.registration.held() > LIGHT_BYTES;
        let over = self.pause.as_mut().is_some_and(|pause| pause.as_mut().poll(cx).is_ready());
        if !heavy || over {
            self.pause = None;
        }
        heavy.then_some(over)
    }
}

impl<F: Future<Output = ()>> Future for Charged<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(once) = this.held_back(cx) else {
            return this.count(|task| task.as_mut().map_or(Poll::Ready(()), |task| task.as_mut().poll(cx)));
        };
        let (polled, missed) = this.count(|task| {
            held::hardly_reading(once, || task.as_mut().map_or(Poll::Ready(()), |task| task.as_mut().poll(cx)))
        });
        if missed && this.pause.is_none() {
            let mut pause = Box::pin(sleep(PAUSE));
            _ = pause.as_mut().poll(cx);
            this.pause = Some(pause);
            this.registration.count_pause(&this.limit);
        }
        polled
    }
}

impl<F> Drop for Charged<F> {
    fn drop(&mut self) {
        self.count(|task| *task = None);
    }
}
