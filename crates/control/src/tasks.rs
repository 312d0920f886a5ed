//! The control plane's long-running tasks. None of them ends while the control plane serves: one that does leaves a control plane that looks
//! healthy and lacks a function. Therefore the first end of a task ends the process, which says which task it was.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;

use tokio::task::{Id, JoinError, JoinSet};

/// Named tasks. Those that still run are aborted when this is dropped.
#[derive(Debug, Default)]
pub struct Tasks {
    running: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

/// A task that must not end has ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskEnded {
    /// The task returned.
    #[error("the task `{0}` ended, which it must not while the control plane serves; please report this")]
    Returned(&'static str),
    /// The task panicked, with this text.
    #[error("the task `{0}` failed, please report this: {1}")]
    Panicked(&'static str, String),
}

impl Tasks {
    /// Starts a task.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.running.spawn(task);
        self.names.insert(task.id(), name);
    }

    /// Waits for the first task that ends; forever if there is none. Losing the wait to another one loses no end.
    pub async fn ended(&mut self) -> TaskEnded {
        match self.running.join_next_with_id().await {
            Some(ended) => self.describe(ended),
            None => std::future::pending().await,
        }
    }

    /// Waits until all tasks have ended.
    pub async fn all_ended(&mut self) {
        while self.running.join_next().await.is_some() {}
    }

    fn describe(&mut self, ended: Result<(Id, ()), JoinError>) -> TaskEnded {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, ())| *id);
        let name = self.names.remove(&id).unwrap_or("unnamed");
        match ended.map_err(JoinError::try_into_panic) {
            Err(Ok(panic)) => TaskEnded::Panicked(name, panic_text(&*panic)),
            // Nothing aborts a single task.
            Ok(_) | Err(Err(_)) => TaskEnded::Returned(name),
        }
    }
}

/// Returns the text of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it does not say why".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_first_end_has_a_name() {
        let check = async |task: fn(), expected: &str| {
            let mut tasks = Tasks::default();
            let alive = Arc::new(());
            let held = Arc::clone(&alive);
            tasks.spawn("fetching", async move {
                let _held = held;
                std::future::pending().await
            });
            tasks.spawn("rotating", async move { task() });
            assert_eq!(tasks.ended().await.to_string(), expected);
            drop(tasks);
            tokio::task::yield_now().await;
            assert_eq!(Arc::strong_count(&alive), 1, "the other task goes with the set");
        };
        check(|| {}, "the task `rotating` ended, which it must not while the control plane serves; please report this")
            .await;
        check(|| panic!("no {}", "disk"), "the task `rotating` failed, please report this: no disk").await;
        check(|| panic!("bare"), "the task `rotating` failed, please report this: bare").await;
        check(|| std::panic::panic_any(7), "the task `rotating` failed, please report this: it does not say why").await;
    }

    #[tokio::test]
    async fn no_task_is_no_end() {
        let mut tasks = Tasks::default();
        let waited = tokio::time::timeout(std::time::Duration::ZERO, tasks.ended()).await;
        assert!(waited.is_err());
        tasks.all_ended().await;
    }
}
