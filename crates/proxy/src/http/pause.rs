//! Pauses of filters.

use evenkeel_filters::{Pause, Woken};

/// Waits for what the filter waits for, at most as long as the pause may last.
pub(super) async fn until_woken(pause: Pause) -> Woken {
    let Some(wait) = pause.wait else {
        tokio::time::sleep(pause.limit).await;
        return Woken::TimedOut;
    };
    match tokio::time::timeout(pause.limit, wait).await {
        Ok(()) => Woken::Ready,
        Err(_) => Woken::TimedOut,
    }
}
