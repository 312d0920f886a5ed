//! Runs a connection's tasks under the listener's memory limit: the change in bytes held by their buffers is counted
//! after each poll, and when little memory is left, connections that hold much are slowed down.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_upstream::conn::held;
use evenkeel_upstream::turn;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use super::Worker;
use super::registration::Registration;
use crate::overload::MemoryLimit;

/// Bytes up to which a connection is never slowed down, whatever others hold: enough for most requests.
const LIGHT_BYTES: i64 = 64 * 1024;
/// Interval between two reads of a connection that is slowed down. It is never stopped completely: it may have to
/// buffer a whole message before it can release the memory that is scarce.
const PAUSE: Duration = Duration::from_millis(200);

impl Worker {
    /// Spawns the task that serves this connection.
    pub(crate) fn start(&self, registration: &Rc<Registration>, task: impl Future<Output = ()> + 'static) {
        let task = spawn(registration, task);
        self.roster.set_task(registration.key(), task.abort_handle());
    }
}

/// Spawns a task of the connection; its buffers are counted if the connection's listener has a memory limit.
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
    /// `None` while it is being dropped.
    task: Option<Pin<Box<F>>>,
    registration: Rc<Registration>,
    limit: Arc<MemoryLimit>,
    /// The task was denied a read, and may do one when this has elapsed.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<F> Charged<F> {
    /// Polls or drops the task, and counts the change in bytes held.
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

    /// `Some` when the connection is slowed down: whether it may do one read in this poll all the same.
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
