//! How pushing is done, by the environment: how many first pushes at a time, and whether every change is checked.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::source::debounce::truth;

/// First pushes at a time unless the operator says otherwise, in streams. Each may hold a copy of what is not shared.
const DEFAULT_FIRST_PUSHES: usize = 100;
/// How long one that does not answer may keep others waiting.
const FIRST_PUSH_TIME: Duration = Duration::from_secs(5);
/// Istio's variable of the former.
const THROTTLE: &str = "PILOT_PUSH_THROTTLE";
/// Whether every change is checked against resources made from nothing.
const COMPARE: &str = "EVENKEEL_COMPARE_FULL";

/// How pushing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishOptions {
    /// Proxies that may get their first resources at a time (`PILOT_PUSH_THROTTLE`).
    pub first_pushes: usize,
    /// Whether resources are made from nothing after each change too, and compared (`EVENKEEL_COMPARE_FULL`). Debug
    /// builds do unless told otherwise.
    pub compare: bool,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self { first_pushes: DEFAULT_FIRST_PUSHES, compare: cfg!(debug_assertions) }
    }
}

/// A variable of the environment that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Not a number.
    #[error("environment variable {name}: `{value}` is no number of streams (0: {DEFAULT_FIRST_PUSHES})")]
    Number {
        /// Its name.
        name: &'static str,
        /// What it holds.
        value: String,
    },
    /// Not a truth value.
    #[error("environment variable {name}: `{value}` is neither `true` nor `false`")]
    Bool {
        /// Its name.
        name: &'static str,
        /// What it holds.
        value: String,
    },
}

impl PublishOptions {
    /// Reads the variables through `lookup`; what is not set keeps its default.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, PublishError> {
        let default = Self::default();
        let first_pushes = match lookup(THROTTLE) {
            None => default.first_pushes,
            Some(value) => match value.parse() {
                Ok(0) => default.first_pushes,
                Ok(number) => number,
                Err(_) => return Err(PublishError::Number { name: THROTTLE, value }),
            },
        };
        let compare = match lookup(COMPARE) {
            None => default.compare,
            Some(value) => truth(&value).ok_or(PublishError::Bool { name: COMPARE, value })?,
        };
        Ok(Self { first_pushes: first_pushes.min(Semaphore::MAX_PERMITS), compare })
    }
}

/// Lets proxies in at a bounded rate, those that wait longest first: when all connect at once, a few are served fully
/// instead of all of them a little.
#[derive(Debug)]
pub struct Admission {
    slots: Arc<Semaphore>,
    patience: Duration,
}

/// Leave for one proxy's first push. Others wait until it is dropped or [`done`](Self::done).
#[derive(Debug, Clone)]
pub struct FirstPush(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Admission {
    /// At most `first_pushes` at a time.
    pub fn new(first_pushes: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(first_pushes)), patience: FIRST_PUSH_TIME }
    }

    /// Waits for leave; `None` at the end of the control plane.
    pub async fn admit(&self) -> Option<FirstPush> {
        // The semaphore is fair: it serves in the order of asking.
        let permit = self.slots.clone().acquire_owned().await.ok()?;
        let first = FirstPush(Arc::new(Mutex::new(Some(permit))));
        let (late, patience) = (Arc::downgrade(&first.0), self.patience);
        tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            if let Some(slot) = late.upgrade() {
                FirstPush(slot).done();
            }
        });
        Some(first)
    }

    /// Lets nobody in any more.
    pub fn close(&self) {
        self.slots.close();
    }
}

impl FirstPush {
    /// The proxy has what it asked for.
    pub fn done(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_environment() {
        let check = |name: &str, value: &str, expected: Result<PublishOptions, &str>| {
            let got = PublishOptions::from_env(|asked| (asked == name).then(|| value.to_owned()));
            assert_eq!(got.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{name}={value}");
        };
        let default = PublishOptions::default();
        check("OTHER", "1", Ok(default));
        check(THROTTLE, "0", Ok(default));
        check(THROTTLE, "7", Ok(PublishOptions { first_pushes: 7, ..default }));
        let number = "environment variable PILOT_PUSH_THROTTLE: `many` is no number of streams (0: 100)";
        check(THROTTLE, "many", Err(number));
        check(COMPARE, "false", Ok(PublishOptions { compare: false, ..default }));
        check(COMPARE, "true", Ok(PublishOptions { compare: true, ..default }));
        let truth = "environment variable EVENKEEL_COMPARE_FULL: `perhaps` is neither `true` nor `false`";
        check(COMPARE, "perhaps", Err(truth));
    }

    #[tokio::test]
    async fn those_that_wait_longest_come_first() {
        let admission = Arc::new(Admission::new(1));
        let first = admission.admit().await.expect("leave");
        let order = Arc::new(Mutex::new(Vec::new()));
        let wait = |number| {
            let (admission, order) = (admission.clone(), order.clone());
            tokio::spawn(async move {
                let leave = admission.admit().await.expect("leave");
                order.lock().unwrap().push(number);
                leave.done();
            })
        };
        let waiting: Vec<_> = (0..6).map(wait).collect();
        tokio::task::yield_now().await;
        assert!(order.lock().unwrap().is_empty());
        drop(first);
        for task in waiting {
            task.await.expect("a task");
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
        admission.close();
        assert!(admission.admit().await.is_none());
    }

    #[tokio::test]
    async fn one_that_never_answers_does_not_keep_others_waiting() {
        let admission = Admission { patience: Duration::from_millis(1), ..Admission::new(1) };
        let silent = admission.admit().await.expect("leave");
        assert!(admission.admit().await.is_some());
        silent.done();
    }
}
