//! What filters wait for.

use evenkeel_filters::{Pause, Woken};

/// Waits for what a filter waits for.
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
