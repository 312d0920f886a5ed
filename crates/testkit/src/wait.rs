//! Waiting for a condition with a deadline: what tests do instead of sleeping.

use std::time::{Duration, Instant};

/// Time limit for something that takes milliseconds on an idle machine; long enough for a busy one.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between two looks at a condition.
const POLL: Duration = Duration::from_millis(10);

/// Calls `probe` until it returns a value, for [`PATIENCE`] at most.
///
/// # Panics
/// When the time is up, naming `what` was awaited.
pub fn eventually<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, probe)
}

/// Like [`eventually`], with another time limit.
///
/// # Panics
/// When the time is up, naming `what` was awaited.
pub fn within<T>(patience: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    poll(patience, &mut probe).unwrap_or_else(|| panic!("waited {patience:?} in vain for {what}"))
}

/// Calls `probe` until it returns a value or the time is up.
pub fn poll<T>(patience: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(value) = probe() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        pause(POLL);
    }
}

/// The only place in the tests that sleeps: between two checks of a condition, or where a fake has to be slow.
#[allow(clippy::disallowed_methods)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
