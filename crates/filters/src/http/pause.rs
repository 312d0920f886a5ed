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
    /// Whether more of the body is read meanwhile. The filter is then called with each piece, and what it returns replaces this pause.
    pub reads_on: bool,
}

/// How many bytes of a body a filter may hold back while more of it is read: as much as Envoy buffers by default
/// (`per_connection_buffer_limit_bytes`).
pub const MAX_HELD_BYTES: usize = 1024 * 1024;

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
        Self { wait: None, limit, reads_on: false }
    }

    /// Waits until `wait` is ready, at most for the limit.
    pub fn until(wait: impl Future<Output = ()> + 'static, limit: Duration) -> Self {
        Self { wait: Some(Box::pin(wait)), limit, reads_on: false }
    }

    /// In a data hook that holds back this many bytes: more of the body is read, unless these are [too many](MAX_HELD_BYTES). The wait
    /// has to be for all pieces that the filter has handed away.
    #[must_use]
    pub fn holding(self, bytes: usize) -> Self {
        Self { reads_on: bytes < MAX_HELD_BYTES, ..self }
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").field("limit", &self.limit).finish_non_exhaustive()
    }
}
