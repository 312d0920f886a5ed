//! A connection's tasks under a listener's limit of memory: what their buffers take and give back is counted after each turn.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::task::{JoinHandle, spawn_local};

use super::roster::Registration;
use crate::conn::held;
use crate::overload::MemoryLimit;

/// Starts a task of the connection; its buffers count where the connection's listener limits them.
pub(crate) fn spawn(registration: &Rc<Registration>, task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    match registration.memory_limit() {
        None => spawn_local(task),
        Some(limit) => {
            let registration = Rc::clone(registration);
            spawn_local(Charged { task: Some(Box::pin(task)), registration, limit })
        }
    }
}

struct Charged<F> {
    /// `None` once it is being dropped.
    task: Option<Pin<Box<F>>>,
    registration: Rc<Registration>,
    limit: Arc<MemoryLimit>,
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
}

impl<F: Future<Output = ()>> Future for Charged<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().count(|task| task.as_mut().map_or(Poll::Ready(()), |task| task.as_mut().poll(cx)))
    }
}

impl<F> Drop for Charged<F> {
    fn drop(&mut self) {
        self.count(|task| *task = None);
    }
}
