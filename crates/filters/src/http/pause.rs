//! What a filter may wait for, and how that ends.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

/// What a filter waits for. The filter is not told when the wait is abandoned because the client has gone.
pub struct Pause {
    /// Ready when the filter can continue; `None`: it only waits for the time limit.
    pub wait: Option<Wait>,
    /// The longest wait.
    pub limit: Duration,
}

/// What a filter waits for; results are left where the filter's state finds them.
pub type Wait = Pin<Box<dyn Future<Output = ()>>>;

/// How a pause ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The wait completed.
    Ready,
    /// The time limit passed.
    TimedOut,
}

impl Pause {
    /// Waits this long.
    pub fn for_time(limit: Duration) -> Self {
        Self { wait: None, limit }
    }

    /// Waits until `wait` is ready, at most for the limit.
    pub fn until(wait: impl Future<Output = ()> + 'static, limit: Duration) -> Self {
        Self { wait: Some(Box::pin(wait)), limit }
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").field("limit", &self.limit).finish_non_exhaustive()
    }
}
