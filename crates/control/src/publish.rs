//! Settings of pushes from environment variables: how many first pushes at a time, and whether every change is checked.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::source::debounce::truth;

/// Default number of concurrent first pushes. Each may hold a copy of resources that are not shared.
const DEFAULT_FIRST_PUSHES: usize = 100;
/// How long a proxy that does not answer its first push may keep others waiting.
const FIRST_PUSH_TIME: Duration = Duration::from_secs(5);
/// Istio's variable for the number of concurrent first pushes.
const THROTTLE: &str = "PILOT_PUSH_THROTTLE";
/// Variable: whether every change is compared with resources built from scratch.
const COMPARE: &str = "EVENKEEL_COMPARE_FULL";

/// Settings of pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishOptions {
    /// How many proxies may get their first resources at a time (`PILOT_PUSH_THROTTLE`).
    pub first_pushes: usize,
    /// Whether after each change resources are also built from scratch and compared (`EVENKEEL_COMPARE_FULL`). Debug builds
    /// do so by default.
    pub compare: bool,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self { first_pushes: DEFAULT_FIRST_PUSHES, compare: cfg!(debug_assertions) }
    }
}

/// An environment variable with an unusable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The value is not a number.
    #[error("environment variable {name}: `{value}` is no number of streams (0: {DEFAULT_FIRST_PUSHES})")]
    Number {
        /// The name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The value is not a boolean.
    #[error("environment variable {name}: `{value}` is neither `true` nor `false`")]
    Bool {
        /// The name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

impl PublishOptions {
    /// Reads the variables through `lookup`; variables that are not set keep their defaults.
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

/// Admits proxies at a bounded rate, those that wait longest first: when all connect at once, a few are served fully instead
/// of all of them a little.
#[derive(Debug)]
pub struct Admission {
    slots: Arc<Semaphore>,
    patience: Duration,
}

/// Permission for one proxy's first push. Others wait until it is dropped or [`done`](Self::done).
#[derive(Debug, Clone)]
pub struct FirstPush(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Admission {
    /// Admits at most `first_pushes` at a time.
    pub fn new(first_pushes: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(first_pushes)), patience: FIRST_PUSH_TIME }
    }

    /// Waits for permission; `None` when the control plane is shutting down.
    pub async fn admit(&self) -> Option<FirstPush> {
        // The semaphore is fair: it serves in the order of requests.
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

    /// Admits nobody any more.
    pub fn close(&self) {
        self.slots.close();
    }
}

impl FirstPush {
    /// Ends the first push: the proxy has what it subscribed to.
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
